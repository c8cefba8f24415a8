#include "tests/engine/adapters/adapter_rig.h"

#include "kernels/compute/overlay.h"
#include "models/checkpoint/safetensors.h"
#include "tests/models/small/small_folder.h"
#include "tests/models/small/small_models.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROWS 2
#define SIDE 8
#define TOKENS 7

static void must(bool ok, const char *what) {
    if (!ok) {
        printf("the test cannot run: %s\n", what);
        exit(1);
    }
}

void rig_make(struct rig *rig, const struct kernels *kernels, enum dtype dtype) {
    static const struct small_folder small = {
        .latent_channels = 4, .vae_blocks = 2, .sample_size = SIDE
    };
    *rig = (struct rig){ .kernels = kernels, .dtype = dtype };
    char checkpoint[96];
    snprintf(rig->root, sizeof(rig->root), "/tmp/latentd-adapters-XXXXXX");
    must(mkdtemp(rig->root), "no temporary folder");
    snprintf(checkpoint, sizeof(checkpoint), "%s/checkpoint", rig->root);
    small_folder_write(checkpoint, &small);
    snprintf(rig->loras, sizeof(rig->loras), "%s/loras", rig->root);
    must(mkdir(rig->loras, 0755) == 0, rig->loras);
}

static void rig_close(struct rig *rig) {
    adapters_destroy(rig->adapters);
    text_encoder_destroy(rig->text_encoder);
    unet_destroy(rig->unet);
    rig->adapters = NULL;
    rig->text_encoder = NULL;
    rig->unet = NULL;
}

static void open_models(struct rig *rig, struct checkpoint *checkpoint) {
    struct error err = { 0 };
    const struct weights text = weights_from_checkpoint(
        checkpoint, COMPONENT_TEXT_ENCODER, rig->kernels, rig->dtype);
    const struct weights unet = weights_from_checkpoint(
        checkpoint, COMPONENT_UNET, rig->kernels, rig->dtype);
    must(text_encoder_create(
             checkpoint_text_encoder_config(checkpoint), &text, &rig->text_encoder, &err) &&
             unet_create(checkpoint_unet_config(checkpoint), &unet, &rig->unet, &err),
        err.message);
    rig->outputs = SIDE * SIDE * unet_get_config(rig->unet)->out_channels +
                   TOKENS * text_encoder_get_config(rig->text_encoder)->hidden_size;
}

void rig_open(struct rig *rig, size_t memory_bytes, bool merge) {
    struct error err = { 0 };
    struct checkpoint *checkpoint;
    char path[96];
    rig_close(rig);
    snprintf(path, sizeof(path), "%s/checkpoint", rig->root);
    must(checkpoint_open(path, NULL, &checkpoint, &err), err.message);
    open_models(rig, checkpoint);
    const struct adapters_options options = { rig->loras[0] ? rig->loras : NULL, memory_bytes,
        merge, rig->upload_patience_s };
    const struct adapters_base base = { checkpoint, rig->kernels, rig->dtype,
        unet_weights(rig->unet), text_encoder_weights(rig->text_encoder) };
    must(adapters_create(&options, &base, &rig->adapters, &err), err.message);
}

void rig_remove(struct rig *rig) {
    char command[160];
    rig_close(rig);
    snprintf(command, sizeof(command), "rm -rf '%s'", rig->root);
    must(system(command) == 0, command);
}

/* ---- files ---- */

struct writer {
    struct safetensors_item *items; /* owned, with names and data */
    size_t count;
    int seed;
};

static void write_tensor(struct writer *w, const char *layer, const char *suffix, int rank,
    const int64_t *shape, double scale) {
    int64_t count = 1;
    for (int i = 0; i < rank; i++)
        count *= shape[i];
    char *name = NULL, seeded[SAFETENSORS_MAX_NAME_BYTES + 16];
    must(asprintf(&name, "%s.%s", layer, suffix) >= 0, "no memory");
    snprintf(seeded, sizeof(seeded), "%d %s", w->seed, name);
    double *numbers = calloc((size_t)count, sizeof(*numbers));
    float *values = calloc((size_t)count, sizeof(*values));
    w->items = reallocarray(w->items, w->count + 1, sizeof(*w->items));
    must(numbers && values && w->items, "no memory");
    rule_numbers(seeded, count, numbers);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(scale * numbers[i]);
    free(numbers);
    struct tensor t = { .data = values, .dtype = DTYPE_F32, .rank = rank };
    memcpy(t.shape, shape, (size_t)rank * sizeof(*shape));
    w->items[w->count++] = (struct safetensors_item){ name, t };
}

static void write_scalar(struct writer *w, const char *layer, const char *suffix, double value) {
    const int64_t one = 1;
    write_tensor(w, layer, suffix, 1, &one, 0);
    *(float *)w->items[w->count - 1].tensor.data = (float)value;
}

static void write_layer(struct writer *w, const char *name, const struct named_weight *layer,
    enum rig_kind kind, int64_t rank) {
    const int64_t size = layer->is_conv && layer->kind != CONV_1X1 ? 3 : 1;
    const int dims = layer->is_conv ? 4 : 2;
    const int64_t down[4] = { rank, layer->k, size, size }, up[4] = { layer->n, rank, 1, 1 };
    const int64_t full[4] = { layer->n, layer->k, size, size };
    const double inputs = sqrt((double)(layer->k * size * size)), ranks = sqrt((double)rank);
    switch (kind) {
    case RIG_LORA:
    case RIG_LOCON:
    case RIG_OVERFLOW:
        write_tensor(w, name, "lora_down.weight", dims, down, 1 / inputs);
        write_tensor(w, name, "lora_up.weight", dims, up, kind == RIG_OVERFLOW ? 1e38 : 1 / ranks);
        write_scalar(w, name, "alpha", 0.75 * (double)rank);
        break;
    case RIG_LOHA:
        write_tensor(w, name, "hada_w1_a", 2, (int64_t[]){ layer->n, rank }, 1);
        write_tensor(w, name, "hada_w1_b", 2, (int64_t[]){ rank, layer->k }, 1 / ranks);
        write_tensor(w, name, "hada_w2_a", 2, (int64_t[]){ layer->n, rank }, 1);
        write_tensor(w, name, "hada_w2_b", 2, (int64_t[]){ rank, layer->k }, 1 / inputs);
        write_scalar(w, name, "alpha", 0.5 * (double)rank);
        break;
    case RIG_FULL:
        write_tensor(w, name, "diff", dims, full, 0.5 / inputs);
        if (layer->has_bias)
            write_tensor(w, name, "diff_b", 1, &layer->n, 0.1);
        break;
    case RIG_NORM: /* write_norms writes these */
        break;
    }
}

static void write_list(struct writer *w, const struct weight_list *list, const char *prefix,
    enum rig_kind kind, int64_t rank, const char *part) {
    for (size_t i = 0; i < list->count; i++) {
        char name[SAFETENSORS_MAX_NAME_BYTES + 16];
        const struct named_weight *layer = &list->items[i];
        const bool fits = kind == RIG_LOCON || kind == RIG_FULL || !layer->is_conv;
        if (kind == RIG_NORM || !fits || !strstr(layer->name, part))
            continue;
        snprintf(name, sizeof(name), "%s%s", prefix, layer->name);
        for (char *at = name; *at; at++)
            *at = *at == '.' ? '_' : *at;
        write_layer(w, name, layer, kind, rank);
    }
}

/* Scales and shifts of the norms. */
static void write_norms(
    struct writer *w, const struct weight_list *list, const char *prefix, const char *part) {
    for (size_t i = 0; i < list->resident_count; i++) {
        const struct named_resident *norm = &list->residents[i];
        char name[SAFETENSORS_MAX_NAME_BYTES + 16];
        if (norm->weight.rank != 1 || !strstr(norm->name, part))
            continue;
        snprintf(name, sizeof(name), "%s%s", prefix, norm->name);
        for (char *at = name; *at; at++)
            *at = *at == '.' ? '_' : *at;
        write_tensor(w, name, "w_norm", 1, norm->weight.shape, 0.3);
        write_tensor(w, name, "b_norm", 1, norm->weight.shape, 0.3);
    }
}

void rig_write(const struct rig *rig, const char *path, enum rig_kind kind, int64_t rank,
    const char *part, int seed) {
    struct writer w = { .seed = seed };
    struct error err = { 0 };
    write_list(&w, unet_weights(rig->unet), "lora_unet_", kind, rank, part);
    write_list(&w, text_encoder_weights(rig->text_encoder), "lora_te_", kind, rank, part);
    if (kind == RIG_NORM) {
        write_norms(&w, unet_weights(rig->unet), "lora_unet_", part);
        write_norms(&w, text_encoder_weights(rig->text_encoder), "lora_te_", part);
    }
    must(safetensors_write(path, w.items, w.count, NULL, &err), err.message);
    for (size_t i = 0; i < w.count; i++) {
        free((char *)(uintptr_t)w.items[i].name);
        free(w.items[i].tensor.data);
    }
    free(w.items);
}

const char *rig_path(const struct rig *rig, const char *name) {
    static _Thread_local char path[256];
    snprintf(path, sizeof(path), "%s/%s.safetensors", rig->loras, name);
    return path;
}

void rig_put(const struct rig *rig, const char *name, enum rig_kind kind, int64_t rank,
    const char *part, int seed) {
    rig_write(rig, rig_path(rig, name), kind, rank, part, seed);
}

/* ---- what the models compute ---- */

struct adapter_set *rig_set(
    struct rig *rig, const char *a, double a_weight, const char *b, double b_weight) {
    struct lora_choice choices[2] = { { .weight = a_weight, .text_encoder_weight = a_weight },
        { .weight = b_weight, .text_encoder_weight = b_weight } };
    struct adapter_set *set;
    struct error err = { 0 };
    snprintf(choices[0].name, sizeof(choices[0].name), "%s", a);
    snprintf(choices[1].name, sizeof(choices[1].name), "%s", b ? b : "");
    must(adapters_resolve(rig->adapters, choices, b ? 2 : 1, true, &set, &err), err.message);
    return set;
}

struct run {
    const struct rig *rig;
    const struct row_overlay *unet[ROWS], *text_encoder[ROWS];
    float *signal; /* every input's numbers */
    float *out;    /* [ROWS][rig->outputs] */
};

static void run_unet(struct compute *c, struct run *run) {
    const struct unet *unet = run->rig->unet;
    const struct unet_config *config = unet_get_config(unet);
    const enum dtype dtype = unet_activation_dtype(unet);
    const float timesteps[ROWS] = { 321, 321 };
    struct tensor x = compute_tensor_4d(c, DTYPE_F32, ROWS, SIDE, SIDE, config->in_channels);
    struct tensor y = compute_tensor_4d(c, DTYPE_F32, ROWS, SIDE, SIDE, config->out_channels);
    struct tensor t = compute_tensor_1d(c, DTYPE_F32, ROWS);
    struct tensor raw = compute_tensor_3d(c, DTYPE_F32, ROWS, TOKENS, config->cross_attention_dim);
    struct tensor context = compute_tensor_3d(c, dtype, ROWS, TOKENS, config->cross_attention_dim);
    struct tensor kv = compute_tensor_3d(c, dtype, ROWS, TOKENS, unet_context_channels(unet));
    for (int row = 0; row < ROWS; row++) { /* the same inputs for each row */
        const struct tensor x_row = tensor_rows(&x, row, 1), raw_row = tensor_rows(&raw, row, 1);
        compute_upload(c, run->signal, &x_row);
        compute_upload(c, run->signal, &raw_row);
    }
    compute_upload(c, timesteps, &t);
    op_convert(c, &(struct convert_args){ .x = &raw, .y = &context });
    const struct overlay overlay = { run->unet, ROWS };
    c->overlay = &overlay;
    unet_encode_context(unet, c, &context, &kv);
    unet_forward(unet, c, &x, &t, &kv, NULL, &y);
    c->overlay = NULL;
    const float *seen = compute_view(c, &y);
    const int64_t count = SIDE * SIDE * config->out_channels;
    for (int row = 0; seen && row < ROWS; row++)
        memcpy(
            run->out + row * run->rig->outputs, seen + row * count, (size_t)count * sizeof(*seen));
}

static void run_text_encoder(struct compute *c, struct run *run) {
    const struct text_encoder *encoder = run->rig->text_encoder;
    const int64_t width = text_encoder_get_config(encoder)->hidden_size;
    const enum dtype dtype = run->rig->kernels->activation_dtype(run->rig->dtype);
    int32_t numbers[ROWS * TOKENS];
    for (int i = 0; i < ROWS * TOKENS; i++)
        numbers[i] = 3 + 5 * (i % TOKENS);
    struct tensor ids = compute_tensor_2d(c, DTYPE_I32, ROWS, TOKENS);
    struct tensor y = compute_tensor_3d(c, dtype, ROWS, TOKENS, width);
    compute_upload(c, numbers, &ids);
    const struct overlay overlay = { run->text_encoder, ROWS };
    c->overlay = &overlay;
    text_encoder_forward(encoder, c, &ids, 0, &y);
    c->overlay = NULL;
    const char *seen = compute_view(c, &y);
    const int64_t count = TOKENS * width;
    for (int row = 0; seen && row < ROWS; row++)
        convert_elements(run->out + (row + 1) * run->rig->outputs - count, DTYPE_F32,
            seen + (size_t)(row * count) * dtype_size(dtype), dtype, count);
}

static void run_both(struct compute *c, void *user) {
    const size_t mark = arena_mark(c->arena);
    run_unet(c, user);
    arena_release(c->arena, mark);
    run_text_encoder(c, user);
    arena_release(c->arena, mark);
}

float *rig_run(const struct rig *rig, const struct adapter_set *set) {
    struct run run = { .rig = rig,
        .unet = { NULL, adapter_set_unet(set) },
        .text_encoder = { NULL, adapter_set_text_encoder(set) },
        .signal = rule_signal("the row's numbers", 4096),
        .out = calloc((size_t)(ROWS * rig->outputs), sizeof(float)) };
    must(run.out, "no memory");
    run_model(rig->kernels, run_both, &run);
    free(run.signal);
    return run.out;
}
