/* A world of one rank. */
#include "cluster/cluster.h"

#include <stdlib.h>
#include <string.h>

static bool gather(struct cluster *c, const void *own, size_t bytes, void *all, struct error *err) {
    (void)c;
    (void)err;
    if (bytes)
        memmove(all, own, bytes);
    return true;
}

static bool broadcast(struct cluster *c, void *data, size_t bytes, int from, struct error *err) {
    (void)c;
    (void)data;
    (void)bytes;
    (void)from;
    (void)err;
    return true;
}

static bool open_window(
    struct cluster *c, int64_t count, struct cluster_window *out, struct error *err) {
    (void)c;
    const size_t bytes = ((size_t)count * sizeof(float) / 64 + 1) * 64;
    *out = (struct cluster_window){ aligned_alloc(64, bytes), count, NULL };
    if (out->floats)
        memset(out->floats, 0, bytes);
    return out->floats || error_set(err, ERROR_NO_MEMORY, "no memory for a window of %lld floats",
                              (long long)count);
}

static void close_window(struct cluster *c, struct cluster_window *window) {
    (void)c;
    free(window->floats);
    *window = (struct cluster_window){ 0 };
}

static bool add_to_owner(struct cluster *c, const struct cluster_window *window,
    const int64_t *cuts, uint64_t present, float *onto, struct error *err) {
    (void)c;
    (void)err;
    const float *from = window->floats + cuts[0];
    if (present & 1)
        for (int64_t i = 0; i < cuts[1] - cuts[0]; i++)
            onto[i] += from[i];
    return true;
}

static bool share(struct cluster *c, const struct cluster_window *window, const int64_t *cuts,
    struct error *err) {
    (void)c;
    (void)window;
    (void)cuts;
    (void)err;
    return true;
}

static void busy(struct cluster *c, bool is_busy) {
    (void)c;
    (void)is_busy;
}

static void end(struct cluster *c) {
    free(c);
}

static const struct cluster_ops ops = {
    .name = "alone",
    .gather = gather,
    .broadcast = broadcast,
    .open_window = open_window,
    .close_window = close_window,
    .add_to_owner = add_to_owner,
    .share = share,
    .busy = busy,
    .end = end,
};

struct cluster *cluster_alone(struct error *err) {
    struct cluster *c = calloc(1, sizeof(*c));
    if (!c) {
        error_set(err, ERROR_NO_MEMORY, "no memory for a cluster");
        return NULL;
    }
    c->ops = &ops;
    c->place = (struct cluster_place){ .world = 1, .local_world = 1, .nodes = 1 };
    return c;
}
