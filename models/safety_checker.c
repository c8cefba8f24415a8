#include "models/safety_checker.h"

#include "models/clip_layer.h"
#include "pictures/resize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHANNELS 3
#define ADJUSTMENT 0.01

/* The concepts of one kind: embeddings [count][projection_dim], each of length 1, and a threshold
 * for each. */
struct concepts {
    float *embeddings; /* owned */
    float thresholds[SAFETY_CONCEPTS];
    int count;
};

struct safety_checker {
    struct safety_checker_config config;
    enum dtype activation_dtype;
    float *positions; /* owned; the first includes the class embedding */
    struct packed *patch_embedding, *visual_projection;
    struct norm pre_layrnorm, post_layernorm; /* spelt as in the files */
    struct clip_layer *layers;                /* owned: [num_hidden_layers] */
    struct concepts special, concepts;
};

static int64_t tokens_of(const struct safety_checker_config *config) {
    const int64_t side = config->image_size / config->patch_size;
    return 1 + side * side;
}

static int64_t patch_numbers(const struct safety_checker_config *config) {
    return (int64_t)CHANNELS * config->patch_size * config->patch_size;
}

/* --- loading --- */

static bool get_f32(const struct weights *w, const char *name, int rank, const int64_t *shape,
    float *out, struct error *err) {
    struct tensor t;
    if (!w->get(w->user, name, rank, shape, &t, err))
        return false;
    convert_elements(out, DTYPE_F32, t.data, t.dtype, tensor_elements(&t));
    return true;
}

static float *new_floats(int64_t count, struct error *err) {
    float *numbers = calloc((size_t)count, sizeof(*numbers));
    if (!numbers)
        error_set(err, ERROR_NO_MEMORY, "no memory for %lld numbers", (long long)count);
    return numbers;
}

/* Loads the patches' convolution as a linear layer, which is the same because the patches do not
 * overlap. */
static bool load_patch_embedding(
    const struct weights *w, struct safety_checker *s, struct error *err) {
    static const char name[] = "vision_model.embeddings.patch_embedding";
    const int64_t p = s->config.patch_size, c = s->config.hidden_size;
    const int64_t shape[4] = { c, CHANNELS, p, p };
    struct tensor t;
    if (!w->get(w->user, "vision_model.embeddings.patch_embedding.weight", 4, shape, &t, err))
        return false;
    t = tensor_2d(t.data, t.dtype, c, patch_numbers(&s->config));
    return w->check_only ||
           linear_pack(w->kernels, name, &t, NULL, false, w->dtype, &s->patch_embedding, err);
}

static bool load_positions(const struct weights *w, struct safety_checker *s, struct error *err) {
    const int64_t c = s->config.hidden_size, shape[2] = { tokens_of(&s->config), c };
    float *class = new_floats(c, err);
    s->positions = class ? new_floats(shape[0] * c, err) : NULL;
    const bool ok = s->positions &&
                    get_f32(w, "vision_model.embeddings.position_embedding.weight", 2, shape,
                        s->positions, err) &&
                    get_f32(w, "vision_model.embeddings.class_embedding", 1, &c, class, err);
    for (int64_t i = 0; ok && i < c; i++)
        s->positions[i] += class[i];
    free(class);
    return ok;
}

/* Divides by the length or by 1e-12, whichever is larger, as torch's normalize does. */
static void normalise(float *v, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)v[i] * (double)v[i];
    const double length = fmax(sqrt(sum), 1e-12);
    for (int64_t i = 0; i < count; i++)
        v[i] = (float)((double)v[i] / length);
}

static bool load_concepts(const struct weights *w, const char *name, const char *thresholds,
    int count, int64_t dim, struct concepts *out, struct error *err) {
    const int64_t shape[2] = { count, dim };
    out->count = count;
    out->embeddings = new_floats(count * dim, err);
    if (!out->embeddings || !get_f32(w, name, 2, shape, out->embeddings, err) ||
        !get_f32(w, thresholds, 1, shape, out->thresholds, err))
        return false;
    for (int i = 0; i < count; i++)
        normalise(out->embeddings + i * dim, dim);
    return true;
}

static bool load(const struct weights *w, struct safety_checker *s, struct error *err) {
    const int64_t c = s->config.hidden_size, dim = s->config.projection_dim;
    const struct linear_shape projection = { .n = dim, .k = c };
    const struct clip_layer_config of_layer = clip_layer_config_of(&s->config, false);
    for (int i = 0; i < s->config.num_hidden_layers; i++)
        if (!clip_layer_load(w, "vision_model.encoder.layers", i, &of_layer, &s->layers[i], err))
            return false;
    return load_patch_embedding(w, s, err) && load_positions(w, s, err) &&
           norm_load(w, "vision_model", "pre_layrnorm", c, &s->pre_layrnorm, err) &&
           norm_load(w, "vision_model", "post_layernorm", c, &s->post_layernorm, err) &&
           linear_load(w, "", "visual_projection", projection, &s->visual_projection, err) &&
           load_concepts(w, "special_care_embeds", "special_care_embeds_weights", SAFETY_SPECIAL,
               dim, &s->special, err) &&
           load_concepts(w, "concept_embeds", "concept_embeds_weights", SAFETY_CONCEPTS, dim,
               &s->concepts, err) &&
           weights_end(w, err);
}

bool safety_checker_create(const struct safety_checker_config *config, const struct weights *w,
    struct safety_checker **out, struct error *err) {
    struct safety_checker *s = calloc(1, sizeof(*s));
    if (s) {
        s->config = *config;
        s->activation_dtype = w->kernels->activation_dtype(w->dtype);
        s->layers = calloc((size_t)config->num_hidden_layers, sizeof(*s->layers));
    }
    bool ok = (s && s->layers) ||
              error_set(err, ERROR_NO_MEMORY, "no memory for %d layers", config->num_hidden_layers);
    ok = ok && load(w, s, err);
    if (!ok) {
        safety_checker_destroy(s);
        return error_prefix(err, "safety_checker");
    }
    *out = s;
    return true;
}

void safety_checker_destroy(struct safety_checker *s) {
    if (!s)
        return;
    for (int i = 0; s->layers && i < s->config.num_hidden_layers; i++)
        clip_layer_finish(&s->layers[i]);
    free(s->layers);
    packed_destroy(s->patch_embedding);
    packed_destroy(s->visual_projection);
    norm_finish(&s->pre_layrnorm);
    norm_finish(&s->post_layernorm);
    free(s->special.embeddings);
    free(s->concepts.embeddings);
    free(s->positions);
    free(s);
}

const struct safety_checker_config *safety_checker_get_config(
    const struct safety_checker *checker) {
    return &checker->config;
}

/* --- a picture --- */

int64_t safety_checker_input_count(const struct safety_checker *checker) {
    return tokens_of(&checker->config) * patch_numbers(&checker->config);
}

const float *safety_checker_positions(const struct safety_checker *checker) {
    return checker->positions;
}

/* Computes the size of the resized picture: the shorter side is `resize`, and the other keeps the
 * proportions, rounded down. */
static bool resize(const struct safety_checker_config *config, const struct picture *picture,
    struct picture *out, struct error *err) {
    const int64_t w = picture->width, h = picture->height, side = config->resize;
    const int width = (int)(w <= h ? side : side * w / h);
    const int height = (int)(w <= h ? side * h / w : side);
    return picture_resize(picture, width, height, RESIZE_BICUBIC, out, err);
}

/* Returns the normalised value at (x, y) of the square that is cut out of the middle of the resized
 * picture. Outside the picture the value is that of black. */
static float pixel(const struct safety_checker_config *config, const struct picture *resized, int x,
    int y, int channel) {
    const int left = resized->width - config->image_size,
              top = resized->height - config->image_size;
    x += left >= 0 ? left / 2 : -(-left / 2);
    y += top >= 0 ? top / 2 : -(-top / 2);
    const bool inside = x >= 0 && y >= 0 && x < resized->width && y < resized->height;
    const size_t at = inside ? ((size_t)y * (size_t)resized->width + (size_t)x) * CHANNELS : 0;
    const float value = inside ? (float)resized->pixels[at + (size_t)channel] : 0;
    return (value * config->rescale_factor - config->image_mean[channel]) /
           config->image_std[channel];
}

bool safety_checker_read(const struct safety_checker *checker, const struct picture *picture,
    float *out, struct error *err) {
    const struct safety_checker_config *config = &checker->config;
    const int p = config->patch_size, side = config->image_size / p;
    struct picture resized;
    if (!resize(config, picture, &resized, err))
        return error_prefix(err, "safety_checker");
    memset(out, 0, (size_t)patch_numbers(config) * sizeof(*out));
    out += patch_numbers(config);
    for (int patch = 0; patch < side * side; patch++)
        for (int c = 0; c < CHANNELS; c++)
            for (int y = 0; y < p; y++)
                for (int x = 0; x < p; x++)
                    *out++ = pixel(config, &resized, patch % side * p + x, patch / side * p + y, c);
    picture_finish(&resized);
    return true;
}

void safety_checker_forward(const struct safety_checker *s, struct compute *c,
    const struct tensor *input, const struct tensor *positions, struct tensor *embedding) {
    const size_t mark = arena_mark(c->arena);
    const enum dtype dtype = s->activation_dtype;
    const int64_t tokens = tokens_of(&s->config), hidden = s->config.hidden_size;
    const struct clip_layer_config of_layer = clip_layer_config_of(&s->config, false);
    const float eps = s->config.layer_norm_eps;

    /* x = patches and class token, each at its position */
    struct tensor x = compute_tensor_3d(c, dtype, 1, tokens, hidden);
    const size_t inner = arena_mark(c->arena);
    struct tensor flat = tensor_view_2d(&x, tokens, hidden);
    const struct tensor patches = layer_to_dtype(c, input, dtype);
    const struct tensor places = layer_to_dtype(c, positions, dtype);
    layer_linear(c, &patches, s->patch_embedding, &flat);
    op_add(c, &(struct add_args){ .a = &flat, .b = &places, .y = &flat });
    arena_release(c->arena, inner);

    layer_layer_norm(c, &x, &s->pre_layrnorm, eps, &x);
    for (int i = 0; compute_ok(c) && i < s->config.num_hidden_layers; i++)
        clip_layer_forward(c, &s->layers[i], &of_layer, &x);

    /* y = visual_projection(post_layernorm(the class token)) */
    struct tensor class = tensor_rows(&flat, 0, 1);
    layer_layer_norm(c, &class, &s->post_layernorm, eps, &class);
    struct tensor y = compute_tensor_2d(c, dtype, 1, s->config.projection_dim);
    layer_linear(c, &class, s->visual_projection, &y);
    op_convert(c, &(struct convert_args){ .x = &y, .y = embedding });
    arena_release(c->arena, mark);
}

/* --- the scores --- */

static double score(const struct concepts *concepts, int index, const float *embedding, int64_t dim,
    double length, double adjustment) {
    const float *concept = concepts->embeddings + index * dim;
    double cosine = 0;
    for (int64_t i = 0; i < dim; i++)
    cosine += (double)concept[i] * (double)embedding[i];
    return rint((cosine / length - (double)concepts->thresholds[index] + adjustment) * 1000) / 1000;
}

void safety_checker_score(
    const struct safety_checker *s, const float *embedding, struct safety_scores *out) {
    const int64_t dim = s->config.projection_dim;
    double adjustment = 0, length = 0;
    *out = (struct safety_scores){ 0 };
    for (int64_t i = 0; i < dim; i++)
        length += (double)embedding[i] * (double)embedding[i];
    length = fmax(sqrt(length), 1e-12);
    for (int i = 0; i < SAFETY_SPECIAL; i++) {
        out->special[i] = score(&s->special, i, embedding, dim, length, adjustment);
        if (out->special[i] > 0)
            adjustment = ADJUSTMENT;
    }
    for (int i = 0; i < SAFETY_CONCEPTS; i++) {
        out->concepts[i] = score(&s->concepts, i, embedding, dim, length, adjustment);
        out->flagged = out->flagged || out->concepts[i] > 0;
    }
}
