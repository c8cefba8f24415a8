/* Adapters in the models' calls. A small UNet and a small text encoder with low-rank overlays on
 * every weight matrix are compared with the same models whose weights were merged while loading.
 * Rows of one call with different adapters or none are compared with the same rows alone. */
#include "kernels/compute/overlay.h"
#include "tests/check.h"
#include "tests/models/find_weight.h"
#include "tests/models/small/small_models.h"

#include <math.h>
#include <stdlib.h>

#define ROWS 5
#define TOKENS 11
#define CONTEXT_DIM SMALL_CONTEXT_DIM
#define LATENT_H 8
#define LATENT_W 12
#define CHANNELS 4

static const struct text_encoder_config text_config = { .vocab_size = 50,
    .hidden_size = 32,
    .intermediate_size = 96,
    .num_hidden_layers = 3,
    .num_attention_heads = 4,
    .max_position_embeddings = TOKENS,
    .hidden_act = ACTIVATION_QUICK_GELU,
    .layer_norm_eps = 1e-5f };

/* One adapter: factors for the weights whose names contain `part`. The factors are derived from the
 * names. */
struct adapter {
    const char *name, *part;
    int64_t rank;
};

static const struct adapter adapters[] = { { "everything", "", 4 }, { "attention", "attn", 3 } };
#define ADAPTERS 2

/* Each row's weight of each adapter. */
static const float weights_of_rows[ROWS][ADAPTERS] = { { 0, 0 }, { 1, 0 }, { 0.7f, -0.3f },
    { 0, 0.9f }, { -0.5f, 0 } };

static bool has(const struct adapter *a, const char *layer) {
    return strstr(layer, a->part) != NULL;
}

/* Returns a factor's numbers. The product of both factors is about a third as large as a weight.
 * The caller frees them. */
static float *factor(
    const struct adapter *a, const char *layer, const char *which, int64_t count, int64_t inputs) {
    char name[320];
    snprintf(name, sizeof(name), "%s.%s.%s", a->name, layer, which);
    float *numbers = rule_signal(name, count);
    for (int64_t i = 0; i < count; i++)
        numbers[i] *= 0.5f / sqrtf((float)inputs);
    return numbers;
}

/* --- weights that are merged when they are loaded --- */

struct merged_source {
    struct rule_source rules;
    const struct weight_list *layers; /* the base model's; borrowed */
    const float *weights;             /* one per adapter */
};

static void merge(const struct adapter *a, const char *layer, float weight, struct tensor *t) {
    const int64_t n = t->shape[0], inner = tensor_elements(t) / n;
    float *down = factor(a, layer, "down", a->rank * inner, inner);
    float *up = factor(a, layer, "up", n * a->rank, a->rank);
    for (int64_t j = 0; j < n * inner; j++) {
        double sum = 0;
        for (int64_t r = 0; r < a->rank; r++)
            sum += (double)up[j / inner * a->rank + r] * (double)down[r * inner + j % inner];
        float *w = (float *)t->data + j;
        *w = (float)((double)*w + (double)weight * sum);
    }
    free(down);
    free(up);
}

static bool merged_get(void *user, const char *name, int rank, const int64_t *shape,
    struct tensor *out, struct error *err) {
    struct merged_source *source = user;
    const struct weights rules = rule_weights(&source->rules, NULL, DTYPE_F32);
    char layer[SAFETENSORS_MAX_NAME_BYTES];
    if (!rules.get(rules.user, name, rank, shape, out, err))
        return false;
    const size_t length = strlen(name), end = strlen(".weight");
    if (rank < 2 || length < end)
        return true;
    snprintf(layer, sizeof(layer), "%.*s", (int)(length - end), name);
    for (int i = 0; i < ADAPTERS; i++)
        if (source->weights[i] != 0 && weight_list_find(source->layers, layer) &&
            has(&adapters[i], layer))
            merge(&adapters[i], layer, source->weights[i], out);
    return true;
}

/* --- overlays --- */

#define PAIRS_MAX 512

struct overlays {
    struct low_rank_pair *pairs[ADAPTERS][PAIRS_MAX]; /* owned; indexed by the model's layers */
    struct row_overlay *rows[ROWS];                   /* owned; NULL for the row without adapters */
};

static struct low_rank_pair *make_pair(const struct adapter *a, const struct named_weight *w) {
    const int64_t side = w->is_conv && w->kind != CONV_1X1 ? 3 : 1, inner = w->k * side * side;
    float *down = factor(a, w->name, "down", a->rank * inner, inner);
    float *up = factor(a, w->name, "up", w->n * a->rank, a->rank);
    const struct tensor d = tensor_4d(down, DTYPE_F32, a->rank, w->k, side, side);
    const struct tensor u = tensor_4d(up, DTYPE_F32, w->n, a->rank, 1, 1);
    struct low_rank_pair *pair = NULL;
    struct error err = { 0 };
    CHECK(low_rank_pair_create(w->name, w->packed, w->n, &d, &u, &pair, &err), "%s", err.message);
    free(down);
    free(up);
    return pair;
}

static void overlays_make(struct overlays *o, const struct weight_list *layers) {
    struct error err = { 0 };
    memset(o, 0, sizeof(*o));
    CHECK(layers->count <= PAIRS_MAX, "%zu layers", layers->count);
    for (size_t l = 0; l < layers->count; l++)
        for (int a = 0; a < ADAPTERS; a++)
            if (has(&adapters[a], layers->items[l].name))
                o->pairs[a][l] = make_pair(&adapters[a], &layers->items[l]);
    for (int row = 1; row < ROWS; row++) {
        CHECK(row_overlay_create(&o->rows[row], &err), "%s", err.message);
        for (size_t l = 0; l < layers->count; l++)
            for (int a = 0; a < ADAPTERS; a++)
                if (o->pairs[a][l] && weights_of_rows[row][a] != 0)
                    CHECK(
                        row_overlay_add_low_rank(o->rows[row], layers->items[l].packed,
                            layers->items[l].first, o->pairs[a][l], weights_of_rows[row][a], &err),
                        "%s", err.message);
    }
}

static void overlays_finish(struct overlays *o) {
    for (int row = 0; row < ROWS; row++)
        row_overlay_destroy(o->rows[row]);
    for (int a = 0; a < ADAPTERS; a++)
        for (int l = 0; l < PAIRS_MAX; l++)
            low_rank_pair_destroy(o->pairs[a][l]);
}

/* --- the models --- */

/* Either a UNet or a text encoder; the other is NULL. */
struct model {
    struct unet *unet;
    struct text_encoder *text;
};

struct run {
    const struct model *model;
    const struct overlay *overlay; /* or NULL */
    struct tensor latents, timesteps, context, ids;
    struct tensor out; /* f32 */
};

static void forward_unet(struct compute *c, const struct run *run) {
    const enum dtype dtype = unet_activation_dtype(run->model->unet);
    const int64_t n = run->context.shape[0];
    struct tensor context = compute_tensor_3d(c, dtype, n, TOKENS, CONTEXT_DIM);
    struct tensor kv = compute_tensor_3d(
        c, dtype, n, TOKENS, unet_context_channels(run->model->unet));
    struct tensor out = run->out;
    op_convert(c, &(struct convert_args){ .x = &run->context, .y = &context });
    unet_encode_context(run->model->unet, c, &context, &kv);
    unet_forward(run->model->unet, c, &run->latents, &run->timesteps, &kv, NULL, &out);
}

static void forward_text(struct compute *c, const struct run *run) {
    struct tensor y = compute_tensor_3d(c, text_encoder_activation_dtype(run->model->text),
        run->ids.shape[0], TOKENS, text_config.hidden_size);
    struct tensor out = run->out;
    text_encoder_forward(run->model->text, c, &run->ids, 0, &y);
    op_convert(c, &(struct convert_args){ .x = &y, .y = &out });
}

static void forward(struct compute *c, void *user) {
    const struct run *run = user;
    c->overlay = run->overlay;
    (run->model->unet ? forward_unet : forward_text)(c, run);
}

static struct model load(bool is_unet, const struct weights *w) {
    struct model m = { NULL, NULL };
    struct error err = { 0 };
    bool ok = is_unet ? unet_create(&small_unets[0].config, w, &m.unet, &err)
                      : text_encoder_create(&text_config, w, &m.text, &err);
    CHECK(ok, "%s", err.message);
    return m;
}

static void model_finish(struct model *m) {
    unet_destroy(m->unet);
    text_encoder_destroy(m->text);
}

static struct tensor output(const struct run *all, int64_t rows) {
    struct tensor t = all->out;
    t.shape[0] = rows;
    t.data = malloc(tensor_bytes(&t));
    return t;
}

/* Runs only row `row` of the inputs, with `model` and with the changes of `overlay` (or NULL). The
 * caller frees the data. */
static struct tensor run_alone(const struct kernels *kernels, const struct run *all, int row,
    const struct model *model, const struct row_overlay *overlay) {
    const struct overlay one = { &overlay, 1 };
    struct run run = { .model = model, .overlay = overlay ? &one : NULL };
    if (model->unet) {
        run.latents = tensor_rows(&all->latents, row, 1);
        run.timesteps = tensor_rows(&all->timesteps, row, 1);
        run.context = tensor_rows(&all->context, row, 1);
    } else {
        run.ids = tensor_rows(&all->ids, row, 1);
    }
    run.out = output(all, 1);
    run_model(kernels, forward, &run);
    return run.out;
}

static bool same_bits(const struct tensor *a, const struct tensor *b) {
    return memcmp(a->data, b->data, tensor_bytes(a)) == 0;
}

/* Makes the inputs of all rows. */
static struct run inputs(bool is_unet, const struct model *model) {
    static float timesteps[ROWS] = { 1, 500.25f, 999, 37, 700 };
    static int32_t ids[ROWS * TOKENS];
    struct run run = { .model = model };
    for (int i = 0; i < ROWS * TOKENS; i++)
        ids[i] = i * 7919 % text_config.vocab_size;
    run.ids = tensor_2d(ids, DTYPE_I32, ROWS, TOKENS);
    run.latents = tensor_4d(rule_signal("latents", ROWS * LATENT_H * LATENT_W * CHANNELS),
        DTYPE_F32, ROWS, LATENT_H, LATENT_W, CHANNELS);
    run.timesteps = tensor_1d(timesteps, DTYPE_F32, ROWS);
    run.context = tensor_3d(
        rule_signal("context", ROWS * TOKENS * CONTEXT_DIM), DTYPE_F32, ROWS, TOKENS, CONTEXT_DIM);
    run.out = is_unet ? run.latents
                      : tensor_3d(NULL, DTYPE_F32, ROWS, TOKENS, text_config.hidden_size);
    run.out = output(&run, ROWS);
    return run;
}

static void check_row(const struct kernels *kernels, const struct run *all, int row,
    const struct row_overlay *overlay, const struct weight_list *layers, enum dtype dtype) {
    const bool is_unet = all->model->unet != NULL;
    const char *name = is_unet ? "UNet" : "text encoder";
    struct merged_source source = { { .gain = 0.6 }, layers, weights_of_rows[row] };
    const struct weights w = {
        .get = merged_get, .user = &source, .kernels = kernels, .dtype = dtype
    };
    struct model merged = load(is_unet, &w);
    rule_source_finish(&source.rules);
    struct tensor want = run_alone(kernels, all, row, &merged, NULL);
    struct tensor alone = run_alone(kernels, all, row, all->model, overlay);
    struct tensor plain = run_alone(kernels, all, row, all->model, NULL);
    const struct tensor here = tensor_rows(&all->out, row, 1);
    const double error = relative_error(here.data, want.data, tensor_elements(&want));
    const double moved = relative_error(plain.data, want.data, tensor_elements(&want));
    const double allowed = dtype == DTYPE_F32 ? 1e-5 : 0.05;
    printf("%s, %s, %s, row %d: %.1e from the merged weights, allowed %.0e; without adapters "
           "%.1e\n",
        kernels->name, name, dtype_name(dtype), row, error, allowed, moved);
    CHECK(error <= allowed, "%s, %s, row %d: %.2e", kernels->name, name, row, error);
    CHECK(same_bits(&here, &alone), "%s, %s: row %d computed alone has other bits", kernels->name,
        name, row);
    if (overlay)
        CHECK(moved > 0.1, "%s, %s, row %d: the adapters change %.2e", kernels->name, name, row,
            moved);
    else
        CHECK(same_bits(&here, &plain) && same_bits(&here, &want),
            "%s, %s: the row without adapters differs from a call without an overlay",
            kernels->name, name);
    model_finish(&merged);
    free(want.data);
    free(alone.data);
    free(plain.data);
}

static void rows_have_their_adapters(
    const struct kernels *kernels, bool is_unet, enum dtype dtype) {
    struct rule_source source = { .gain = 0.6 };
    const struct weights w = rule_weights(&source, kernels, dtype);
    struct model model = load(is_unet, &w);
    rule_source_finish(&source);
    const struct weight_list *layers = is_unet ? unet_weights(model.unet)
                                               : text_encoder_weights(model.text);
    struct overlays overlays;
    overlays_make(&overlays, layers);
    struct run all = inputs(is_unet, &model);
    struct tensor before = run_alone(kernels, &all, 1, &model, NULL);
    const struct overlay overlay = { (const struct row_overlay *const *)overlays.rows, ROWS };
    all.overlay = &overlay;
    run_model(kernels, forward, &all);
    for (int row = 0; row < ROWS; row++)
        check_row(kernels, &all, row, overlays.rows[row], layers, dtype);
    struct tensor after = run_alone(kernels, &all, 1, &model, NULL);
    CHECK(same_bits(&before, &after), "%s: the base weights have changed", kernels->name);
    free(before.data);
    free(after.data);
    free(all.out.data);
    free(all.latents.data);
    free(all.context.data);
    overlays_finish(&overlays);
    model_finish(&model);
}

int main(void) {
    const struct kernels *tables[] = { kernels_reference(), kernels_cpu() };
    for (int i = 0; i < 2; i++) {
        rows_have_their_adapters(tables[i], true, DTYPE_F32);
        rows_have_their_adapters(tables[i], false, DTYPE_F32);
    }
    rows_have_their_adapters(kernels_cpu(), true, DTYPE_BF16);
    rows_have_their_adapters(kernels_cpu(), false, DTYPE_BF16);
    return check_done();
}
