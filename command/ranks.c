#include "command/ranks.h"

#include "base/log.h"
#include "base/sha256.h"
#include "kernels/tuner_cache.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the machine that ranks share --- */

/* Gives this rank its part of the machine's processors. A launcher may have bound it to fewer. */
static void divide_threads(const struct cluster_place *place) {
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    const int part = (int)(processors / place->local_world), all = omp_get_max_threads();
    if (!getenv("OMP_NUM_THREADS"))
        omp_set_num_threads(part < 1 ? 1 : part < all ? part : all);
}

bool ranks_start(const char *kind, double timeout_s, struct ranks *out, struct error *err) {
    *out = (struct ranks){ .cluster = cluster_start(kind, timeout_s, err) };
    if (!out->cluster)
        return false;
    const struct cluster_place *place = &out->cluster->place;
    if (place->world == 1)
        return true;
    divide_threads(place);
    if (place->rank > 0)
        log_set_level(LOG_LEVEL_WARNING);
    log_set_rank(place->rank);
    /* First of all: what the ranks tell each other may differ between versions. */
    return cluster_compare(out->cluster, "the version of latentd", LATENTD_VERSION, err) &&
           agreement_create(out->cluster, &out->agreement, err);
}

void ranks_end(struct ranks *ranks, const struct error *err) {
    if (agreement_is_lost(ranks->agreement))
        cluster_fail(ranks->cluster, err);
    agreement_destroy(ranks->agreement);
    if (ranks->cluster)
        ranks->cluster->ops->end(ranks->cluster);
    *ranks = (struct ranks){ 0 };
}

void ranks_choose_device(const struct ranks *ranks, struct device_choice *device) {
    if (ranks->agreement && !device->indexed)
        device->index = ranks->cluster->place.local_rank;
}

/* --- what they compute with --- */

/* Writes the digest of the kernels that were chosen by measurements on this chip, on which the bits
 * depend. The list itself may be longer than what can be compared. */
static void write_tuned(FILE *to, const struct kernels *kernels) {
    char identity[TUNER_IDENTITY_BYTES], path[4096], text[DIGEST_TEXT_BYTES];
    struct tuner_cache cache;
    struct sha256 sha;
    sha256_begin(&sha);
    kernels->tuner->identity(identity);
    fprintf(to, "%s; ", identity);
    tuner_cache_init(&cache, identity);
    if (tuner_cache_path(identity, path, sizeof(path)))
        tuner_cache_load(&cache, path);
    for (int i = 0; i < cache.count; i++) {
        sha256_add_text(&sha, cache.entries[i].key);
        sha256_add_text(&sha, cache.entries[i].name);
    }
    const struct digest digest = sha256_end(&sha);
    digest_to_text(&digest, text);
    fprintf(to, "%d choices of the tuner, digest %.16s; ", cache.count, text);
    tuner_cache_finish(&cache);
}

static void write_device(FILE *to, const struct kernels *kernels) {
    struct device_figures figures;
    if (kernels->device == DEVICE_CPU)
        fprintf(to, "cpu; ");
    else if (kernels->figures && kernels->figures(&figures, NULL))
        fprintf(to, "%s, driver %d, runtime %d; ", figures.name, figures.driver_version,
            figures.runtime_version);
    for (int dtype = 0; kernels->implementations && dtype < 32; dtype++)
        for (const struct implementation *i = kernels->weight_dtypes >> dtype & 1
                                                  ? kernels->implementations((enum dtype)dtype)
                                                  : NULL;
             i && i->layer; i++)
            fprintf(to, "%s: %s; ", i->layer, i->code);
    if (kernels->tuner)
        write_tuned(to, kernels);
}

/* Counts the ranks that compute on this one's device. GPUs are told apart by their bus, as the
 * environment may give each rank another GPU as number 0. */
static bool count_sharers(struct ranks *ranks, const struct kernels *kernels, struct error *err) {
    struct device {
        int32_t node;
        char bus_id[32];
    } own = { .node = ranks->cluster->place.node }, all[CLUSTER_RANKS_MAX];
    struct device_figures figures;
    const bool apart = kernels->device != DEVICE_CPU && kernels->figures;
    const bool ok = !apart || kernels->figures(&figures, err);
    if (!agreement_meet(ranks->agreement, ok, err))
        return false;
    if (apart)
        snprintf(own.bus_id, sizeof(own.bus_id), "%s", figures.bus_id);
    if (!ranks->cluster->ops->gather(ranks->cluster, &own, sizeof(own), all, err))
        return agreement_lose(ranks->agreement);
    ranks->device_ranks = 0;
    for (int rank = 0; rank < ranks->cluster->place.world; rank++)
        ranks->device_ranks += memcmp(&own, &all[rank], sizeof(own)) == 0;
    return true;
}

bool ranks_compute_alike(struct ranks *ranks, const struct kernels *kernels, struct error *err) {
    char *text = NULL;
    size_t size = 0;
    if (!ranks->agreement)
        return true;
    FILE *to = open_memstream(&text, &size);
    if (to)
        write_device(to, kernels);
    const bool ok = (to && fclose(to) == 0) ||
                    error_set(err, ERROR_NO_MEMORY, "no memory to describe a device");
    const bool alike = agreement_meet(ranks->agreement, ok, err) &&
                       agreement_compare(ranks->agreement, "the device", text, err) &&
                       count_sharers(ranks, kernels, err);
    free(text);
    return alike;
}
