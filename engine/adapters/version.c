#include "engine/adapters/internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Changes of a bias, and changes that are not a product of two factors, need a working copy. Apart
 * from the `merge` option, only the file decides this, not the other adapters of a request. */
static bool needs_copy(const struct adapters *adapters, const struct adapter_module *module) {
    return !module->low_rank || module->has_bias || adapters->options.merge;
}

static bool no_memory(const char *path, struct error *err) {
    return error_set(err, ERROR_NO_MEMORY, "%s: no memory for the list of its modules", path);
}

/* Sorts the modules into pairs and copies. *bytes: size of the pairs' factors. */
static bool sort_modules(
    const struct adapters *adapters, struct adapter_version *v, size_t *bytes) {
    size_t count;
    const struct adapter_module *modules = adapter_modules(v->file, &count);
    v->pairs = calloc(count ? count : 1, sizeof(*v->pairs));
    v->copied = calloc(count ? count : 1, sizeof(*v->copied));
    if (!v->pairs || !v->copied)
        return false;
    *bytes = 0;
    v->matched = count;
    for (size_t i = 0; i < count; i++) {
        const struct adapter_module *m = &modules[i];
        v->changes[m->component] = true;
        if (needs_copy(adapters, m)) {
            v->copied[v->copied_count++] = m;
            continue;
        }
        const int64_t inputs = m->target->k * adapter_target_taps(m->target);
        *bytes += (size_t)(m->rank * (inputs + m->target->n)) * sizeof(float);
        v->pairs[v->pair_count++] = (struct placed_pair){
            .component = m->component, .target = m->target, .scale = m->scale
        };
    }
    return true;
}

static bool copy_leftovers(struct adapter_version *v) {
    size_t count;
    const struct adapter_leftover *leftovers = adapter_leftovers(v->file, &count);
    v->unmatched = calloc(count ? count : 1, sizeof(*v->unmatched));
    if (!v->unmatched)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (asprintf(&v->unmatched[i], "%s: %s", leftovers[i].name, leftovers[i].why) < 0) {
            v->unmatched[i] = NULL;
            return false;
        }
        v->unmatched_count++;
    }
    return true;
}

bool version_open(const struct adapters *adapters, int fd, const char *path,
    struct adapter_version **out, size_t *bytes, struct error *err) {
    const struct adapter_targets targets = { adapters->base.unet, adapters->base.text_encoder };
    struct adapter *file;
    if (!adapters->base.unet) {
        if (fd >= 0)
            close(fd);
        return error_set(
            err, ERROR_UNAVAILABLE, "%s: another checkpoint is being loaded: try again", path);
    }
    if (fd < 0 ? !adapter_open(path, &targets, &file, err)
               : !adapter_open_fd(fd, path, &targets, &file, err))
        return false;
    struct adapter_version *v = calloc(1, sizeof(*v));
    if (!v) {
        adapter_close(file);
        return no_memory(path, err);
    }
    v->file = file;
    v->summary = *adapter_get_summary(file);
    v->file_bytes = adapter_file_bytes(file);
    if (!sort_modules(adapters, v, bytes) || !copy_leftovers(v)) {
        version_destroy(v);
        return no_memory(path, err);
    }
    *out = v;
    return true;
}

/* Copies the two factors of one module to the device. `numbers` has room for both factors. */
static bool place(struct adapters *adapters, const struct adapter_module *m, float *numbers,
    struct placed_pair *out, struct error *err) {
    const struct named_weight *target = m->target;
    const int64_t taps = adapter_target_taps(target);
    float *down = numbers, *up = numbers + m->rank * target->k * taps;
    if (!adapter_module_factors(m, down, up, err))
        return false;
    struct tensor down_tensor = tensor_2d(down, DTYPE_F32, m->rank, target->k);
    if (taps == 9)
        down_tensor = tensor_4d(down, DTYPE_F32, m->rank, target->k, 3, 3);
    const struct tensor up_tensor = tensor_2d(up, DTYPE_F32, target->n, m->rank);
    adapters_device_take(adapters);
    const bool ok = low_rank_pair_create(
        target->name, target->packed, target->n, &down_tensor, &up_tensor, &out->pair, err);
    adapters_device_give(adapters);
    return ok;
}

static bool place_all(
    struct adapters *adapters, struct adapter_version *v, float *numbers, struct error *err) {
    size_t count, at = 0;
    const struct adapter_module *modules = adapter_modules(v->file, &count);
    for (size_t i = 0; i < count && at < v->pair_count; i++) {
        struct placed_pair *pair = &v->pairs[at];
        if (modules[i].target != pair->target || modules[i].component != pair->component)
            continue;
        if (!place(adapters, &modules[i], numbers, pair, err))
            return false;
        v->bytes += low_rank_pair_bytes(pair->pair);
        at++;
    }
    return true;
}

bool version_place(struct adapters *adapters, struct adapter_version *v, struct error *err) {
    size_t count;
    int64_t most = 1;
    const struct adapter_module *modules = adapter_modules(v->file, &count);
    for (size_t i = 0; i < count; i++) {
        const int64_t inputs = modules[i].target->k * adapter_target_taps(modules[i].target);
        const int64_t numbers = modules[i].rank * (inputs + modules[i].target->n);
        most = numbers > most ? numbers : most;
    }
    float *numbers = calloc((size_t)most, sizeof(*numbers));
    if (!numbers)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a pair of factors");
    bool ok = place_all(adapters, v, numbers, err) && adapter_intact(v->file, err);
    free(numbers);
    if (ok && v->copied_count == 0) {
        adapter_close(v->file);
        v->file = NULL;
    }
    return ok;
}

void version_destroy(struct adapter_version *v) {
    if (!v)
        return;
    for (size_t i = 0; i < v->pair_count; i++)
        low_rank_pair_destroy(v->pairs[i].pair);
    for (size_t i = 0; i < v->unmatched_count; i++)
        free(v->unmatched[i]);
    free(v->pairs);
    free(v->copied);
    free(v->unmatched);
    adapter_close(v->file);
    free(v);
}
