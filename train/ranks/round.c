#include "train/ranks/round.h"

#include "cluster/plan.h"
#include "train/examples/order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Gradients go from and to the device in pieces: the device keeps a pinned block of host memory as
 * large as the largest. */
#define PIECE_FLOATS ((int64_t)8 << 20)

/* --- who computes what --- */

int round_rank(int64_t batch, int accumulation, int world) {
    return (int)(batch % accumulation % world);
}

bool round_ends(int64_t batch, int64_t batches, int accumulation, int world) {
    return round_rank(batch, accumulation, world) == world - 1 ||
           order_syncs(batch, batches, accumulation);
}

bool round_suits(int64_t accumulation, int world, struct error *err) {
    char text[32];
    if (world <= accumulation)
        return true;
    snprintf(text, sizeof(text), "%lld", (long long)accumulation);
    error_field(err, "gradient_accumulation_steps", text,
        "at least the number of ranks, %d, or data_parallel \"multiply\"", world);
    return error_prefix(err, "%d ranks share %lld micro-batch%s", world, (long long)accumulation,
        accumulation == 1 ? "" : "es");
}

/* --- memory --- */

static size_t bytes_of(const struct parameters *p) {
    return (size_t)p->floats * sizeof(float);
}

static int64_t own_floats(const struct round *r) {
    const int rank = agreement_rank(r->agreement);
    return r->cuts[rank + 1] - r->cuts[rank];
}

/* Puts the gradients into the window. */
static void move_gradients(struct round *r) {
    struct parameters *p = r->parameters;
    p->kernels->memory->release(MEMORY_WEIGHTS, p->gradients, bytes_of(p));
    p->gradients = r->window.floats;
    r->in_place = true;
}

bool round_open(
    struct round *r, struct agreement *agreement, struct parameters *p, struct error *err) {
    const int world = agreement_world(agreement);
    struct cluster *c = agreement->cluster;
    *r = (struct round){ .agreement = agreement, .parameters = p };
    plan_cuts(p->floats, NULL, 0, world, r->cuts);
    r->sums = calloc((size_t)own_floats(r) + 1, sizeof(*r->sums));
    const bool ok = r->sums || error_set(err, ERROR_NO_MEMORY, "no memory for sums of gradients");
    if (!agreement_meet(agreement, ok, err))
        return false;
    if (!c->ops->open_window(c, p->floats, &r->window, err)) {
        agreement->failed = err->code == ERROR_NO_MEMORY; /* then every rank has an error */
        agreement->lost = !agreement->failed;
        return false;
    }
    if (p->kernels->device == DEVICE_CPU)
        move_gradients(r);
    return true;
}

void round_close(struct round *r) {
    if (r->in_place)
        r->parameters->gradients = NULL;
    if (r->window.floats)
        r->agreement->cluster->ops->close_window(r->agreement->cluster, &r->window);
    free(r->sums);
    *r = (struct round){ 0 };
}

size_t round_bytes(const struct round *r) {
    if (!r->sums)
        return 0;
    return (size_t)own_floats(r) * sizeof(float) + (r->in_place ? 0 : bytes_of(r->parameters));
}

void round_forget(struct round *r) {
    if (r->sums)
        memset(r->sums, 0, (size_t)own_floats(r) * sizeof(*r->sums));
}

/* --- a round --- */

static int64_t floats_of_piece(const struct round *r, int64_t at) {
    const int64_t left = r->parameters->floats - at;
    return left < PIECE_FLOATS ? left : PIECE_FLOATS;
}

/* Copies the gradients from the device into the window. */
static bool fetch(struct round *r, struct error *err) {
    const struct parameters *p = r->parameters;
    for (int64_t at = 0; at < p->floats; at += PIECE_FLOATS) {
        const size_t bytes = (size_t)floats_of_piece(r, at) * sizeof(float);
        const void *seen = p->kernels->memory->view(p->gradients + at, bytes, err);
        if (!seen)
            return false;
        memory_copy(r->window.floats + at, seen, bytes);
    }
    return true;
}

/* Copies the window to the device's gradients. */
static bool put(struct round *r, struct error *err) {
    struct parameters *p = r->parameters;
    for (int64_t at = 0; at < p->floats; at += PIECE_FLOATS)
        if (!p->kernels->memory->upload(p->gradients + at, r->window.floats + at,
                (size_t)floats_of_piece(r, at) * sizeof(float), err))
            return false;
    return true;
}

/* Gives all ranks all sums. */
static bool share_sums(struct round *r, struct error *err) {
    struct cluster *c = r->agreement->cluster;
    memcpy(r->window.floats + r->cuts[c->place.rank], r->sums,
        (size_t)own_floats(r) * sizeof(*r->sums));
    round_forget(r);
    if (!c->ops->share(c, &r->window, r->cuts, err))
        return agreement_lose(r->agreement);
    return r->in_place || put(r, err);
}

bool round_end(
    struct round *r, int count, double loss, int64_t rows, bool ends_step, struct error *err) {
    struct cluster *c = r->agreement->cluster;
    const uint64_t present = UINT64_MAX >> (64 - count);
    const bool ok = !rows || r->in_place || fetch(r, err);
    if (!agreement_exchange(r->agreement, ok, loss, rows, err))
        return false;
    if (!c->ops->add_to_owner(c, &r->window, r->cuts, present, r->sums, err))
        return agreement_lose(r->agreement);
    return !ends_step || share_sums(r, err);
}
