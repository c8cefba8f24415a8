/* What LoRAs cost a UNet step, for bench_lora.py.
 *
 *   lora_tool --model PATH --dtype f32|bf16 --rank R --rows N --adapters M
 *
 * Loads the UNet and makes M random adapters of rank R for its to_q, to_k, to_v and to_out. For
 * each line "base" or "lora" it makes a step of N rows at 512x512 with 77 tokens: "base" without
 * adapters, "lora" with adapter i % M in row i. It answers with one line of JSON that holds the
 * step's wall-clock seconds and the processor seconds of all threads. The keys and values of the
 * texts are computed before, because a picture needs them only once per prompt.
 */
#include "base/monotonic.h"
#include "kernels/compute/overlay.h"
#include "models/checkpoint/checkpoint.h"
#include "models/unet.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROWS_MAX 16
#define LATENT 64
#define TOKENS 77

struct adapter {
    struct row_overlay *overlay; /* owned, as are the pairs */
    struct low_rank_pair **pairs;
    int count;
    size_t bytes;
};

struct tool {
    struct unet *unet;
    struct arena *arena;
    struct compute compute;
    int rows, rank;
    struct adapter adapters[ROWS_MAX];
    int adapter_count;
    struct tensor latents, timesteps, kv, out; /* owned data */
};

static uint32_t state = 12345;

/* Fills with numbers of mean 0 and this deviation, approximately normally distributed. */
static void fill_random(float *data, int64_t count, float deviation) {
    for (int64_t i = 0; i < count; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) {
            state = state * 1664525u + 1013904223u;
            sum += (float)(state >> 8) / (float)(1 << 24) - 0.5f;
        }
        data[i] = sum * 1.7320508f * deviation;
    }
}

static bool own(struct tensor *t, float deviation, struct error *err) {
    const int64_t count = tensor_elements(t);
    float *numbers = malloc((size_t)count * sizeof(float));
    t->data = malloc(tensor_bytes(t));
    if (!numbers || !t->data) {
        free(numbers);
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu bytes", tensor_bytes(t));
    }
    fill_random(numbers, count, deviation);
    convert_elements(t->data, t->dtype, numbers, DTYPE_F32, count);
    free(numbers);
    return true;
}

static bool is_target(const char *name) {
    static const char *const leaves[] = { ".to_q", ".to_k", ".to_v", ".to_out.0" };
    const char *attention = strstr(name, ".attn");
    for (size_t i = 0; attention && i < sizeof(leaves) / sizeof(leaves[0]); i++)
        if (strcmp(attention + 6, leaves[i]) == 0)
            return true;
    return false;
}

static bool add_pair(
    struct adapter *adapter, const struct named_weight *weight, int rank, struct error *err) {
    struct tensor down = tensor_2d(NULL, DTYPE_F32, rank, weight->k);
    struct tensor up = tensor_2d(NULL, DTYPE_F32, weight->n, rank);
    struct low_rank_pair *pair = NULL;
    bool ok = own(&down, 1 / sqrtf((float)weight->k), err) && own(&up, 0.05f, err) &&
              low_rank_pair_create(weight->name, weight->packed, weight->n, &down, &up, &pair, err);
    free(down.data);
    free(up.data);
    if (!ok)
        return false;
    adapter->pairs[adapter->count++] = pair;
    adapter->bytes += low_rank_pair_bytes(pair);
    return row_overlay_add_low_rank(
        adapter->overlay, weight->packed, weight->first, pair, 0.8f, err);
}

static bool make_adapter(const struct tool *tool, struct adapter *adapter, struct error *err) {
    const struct weight_list *list = unet_weights(tool->unet);
    adapter->pairs = calloc(list->count, sizeof(struct low_rank_pair *));
    if (!adapter->pairs)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an adapter");
    if (!row_overlay_create(&adapter->overlay, err))
        return false;
    for (size_t i = 0; i < list->count; i++)
        if (is_target(list->items[i].name) && !add_pair(adapter, &list->items[i], tool->rank, err))
            return false;
    return true;
}

static void run_step(struct compute *c, void *user) {
    struct tool *tool = user;
    const size_t mark = arena_mark(c->arena);
    unet_forward(tool->unet, c, &tool->latents, &tool->timesteps, &tool->kv, NULL, &tool->out);
    arena_release(c->arena, mark);
}

static bool load(struct tool *tool, const char *model, enum dtype dtype, struct error *err) {
    const struct kernels *kernels = kernels_cpu();
    struct checkpoint *c = NULL;
    if (!checkpoint_open(model, NULL, &c, err) || !arena_create(kernels->memory, &tool->arena, err))
        return false;
    const struct weights w = weights_from_checkpoint(c, COMPONENT_UNET, kernels, dtype);
    bool ok = unet_create(checkpoint_unet_config(c), &w, &tool->unet, err);
    checkpoint_close(c);
    if (!ok)
        return false;
    tool->compute = (struct compute){ .kernels = kernels, .arena = tool->arena };
    const struct unet_config *config = unet_get_config(tool->unet);
    tool->latents = tensor_4d(NULL, DTYPE_F32, tool->rows, LATENT, LATENT, config->in_channels);
    tool->timesteps = tensor_1d(NULL, DTYPE_F32, tool->rows);
    tool->kv = tensor_3d(NULL, unet_activation_dtype(tool->unet), tool->rows, TOKENS,
        unet_context_channels(tool->unet));
    tool->out = tensor_4d(NULL, DTYPE_F32, tool->rows, LATENT, LATENT, config->out_channels);
    if (!own(&tool->latents, 1, err) || !own(&tool->timesteps, 0, err) || !own(&tool->kv, 1, err) ||
        !own(&tool->out, 0, err))
        return false;
    for (int i = 0; i < tool->rows; i++)
        ((float *)tool->timesteps.data)[i] = 801;
    for (int i = 0; i < tool->adapter_count; i++)
        if (!make_adapter(tool, &tool->adapters[i], err))
            return false;
    return true;
}

static double busy_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* took: wall-clock time; busy: the threads' processor time. */
static bool step(struct tool *tool, const struct overlay *overlay, double *took, double *busy,
    struct error *err) {
    struct compute *c = &tool->compute;
    c->overlay = overlay;
    if (!compute_plan(c, run_step, tool, err))
        return false;
    const double begin = monotonic_seconds(), begin_busy = busy_seconds();
    run_step(c, tool);
    *took = monotonic_seconds() - begin;
    *busy = busy_seconds() - begin_busy;
    if (!compute_ok(c))
        *err = c->error;
    return compute_ok(c);
}

static bool answer(struct tool *tool, struct error *err) {
    const struct row_overlay *rows[ROWS_MAX];
    for (int i = 0; i < tool->rows; i++)
        rows[i] = tool->adapters[i % tool->adapter_count].overlay;
    const struct overlay overlay = { rows, tool->rows };
    char line[64];
    double took, busy;
    printf("{\"event\": \"loaded\", \"software\": \"latentd, %s\", \"modules\": %d, "
           "\"adapter_bytes\": %zu}\n",
        tool->compute.kernels->name, tool->adapters[0].count, tool->adapters[0].bytes);
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = 0;
        const bool with = strcmp(line, "lora") == 0;
        if (!with && strcmp(line, "base") != 0)
            return error_field(err, "command", line, "base or lora");
        if (!step(tool, with ? &overlay : NULL, &took, &busy, err))
            return false;
        printf("{\"event\": \"%s\", \"seconds\": %.6f, \"busy\": %.6f}\n", line, took, busy);
        fflush(stdout);
    }
    return true;
}

static void finish(struct tool *tool) {
    for (int i = 0; i < tool->adapter_count; i++) {
        row_overlay_destroy(tool->adapters[i].overlay);
        for (int j = 0; j < tool->adapters[i].count; j++)
            low_rank_pair_destroy(tool->adapters[i].pairs[j]);
        free(tool->adapters[i].pairs);
    }
    unet_destroy(tool->unet);
    arena_destroy(tool->arena);
    free(tool->latents.data);
    free(tool->timesteps.data);
    free(tool->kv.data);
    free(tool->out.data);
}

int main(int argc, char **argv) {
    struct tool tool = { .rows = 2, .rank = 16, .adapter_count = 1 };
    struct error err = { 0 };
    const char *model = NULL;
    enum dtype dtype = DTYPE_F32;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (strcmp(name, "--model") == 0)
            model = value;
        else if (strcmp(name, "--dtype") == 0)
            dtype = strcmp(value, "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
        else if (strcmp(name, "--rank") == 0)
            tool.rank = atoi(value);
        else if (strcmp(name, "--rows") == 0)
            tool.rows = atoi(value);
        else if (strcmp(name, "--adapters") == 0)
            tool.adapter_count = atoi(value);
    }
    bool ok = model && tool.rank > 0 && tool.rows > 0 && tool.rows <= ROWS_MAX &&
              tool.adapter_count > 0 && tool.adapter_count <= ROWS_MAX;
    if (!ok)
        error_set(&err, ERROR_INVALID, "--model, and rank, rows and adapters of 1 to %d", ROWS_MAX);
    ok = ok && load(&tool, model, dtype, &err) && answer(&tool, &err);
    finish(&tool);
    if (!ok)
        fprintf(stderr, "lora_tool: %s\n", err.message);
    return !ok;
}
