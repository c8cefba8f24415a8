/* Compares a model's weight_list with the tensors that the model was loaded from. An entry names
 * some rows of a packed weight. Multiplied with the same input, these rows must give the same
 * numbers as the tensors with the entry's name. Every row of every packed weight must have exactly
 * one name. */
#include "models/layers.h"
#include "models/repack.h"
#include "tests/check.h"
#include "tests/models/find_weight.h"
#include "tests/models/small/small_models.h"

#include <stdlib.h>

static const struct text_encoder_config text_config = {
    .vocab_size = 20,
    .hidden_size = 24,
    .intermediate_size = 40,
    .num_hidden_layers = 2,
    .num_attention_heads = 2,
    .max_position_embeddings = 7,
    .hidden_act = ACTIVATION_QUICK_GELU,
    .layer_norm_eps = 1e-5f,
};
static const struct vae_config vae_config = {
    .in_channels = 3,
    .out_channels = 3,
    .latent_channels = 4,
    .block_count = 3,
    .block_out_channels = { 8, 16, 24 },
    .layers_per_block = 1,
    .norm_num_groups = 4,
    .scaling_factor = 0.5f,
};

/* ---- the outputs of a packed weight, and the outputs expected from its tensors ---- */

#define H 5 /* a convolution's input size; a linear layer has H*W rows */
#define W 6

struct product {
    const struct packed *weight;
    float *x, *y; /* [H*W][k], [out_h*out_w][channels] */
    int64_t out_h, out_w, channels;
};

static void multiply(struct compute *c, void *user) {
    struct product *p = user;
    const struct packed *weight = p->weight;
    if (weight->is_conv) {
        const struct tensor x = tensor_4d(p->x, DTYPE_F32, 1, H, W, weight->k);
        struct tensor y = tensor_4d(p->y, DTYPE_F32, 1, p->out_h, p->out_w, p->channels);
        layer_conv(c, &x, weight, &y);
    } else {
        const struct tensor x = tensor_3d(p->x, DTYPE_F32, 1, H * W, weight->k);
        struct tensor y = tensor_3d(p->y, DTYPE_F32, 1, H * W, p->channels);
        layer_linear(c, &x, weight, &y);
    }
}

static struct product product_of(const struct kernels *kernels, const struct packed *weight) {
    struct product p = { .weight = weight, .out_h = H, .out_w = W };
    if (weight->is_conv) {
        p.out_h = conv_out_size(weight->kind, H);
        p.out_w = conv_out_size(weight->kind, W);
    }
    p.channels = weight->geglu ? weight->n / 2 : weight->n;
    p.x = rule_signal("x", H * W * weight->k);
    p.y = calloc((size_t)(p.out_h * p.out_w * p.channels), sizeof(*p.y));
    run_model(kernels, multiply, &p);
    return p;
}

/* Returns the input pixel that kernel column (or row) `at` uses for output `out`; -1 if it is
 * padding. */
static int64_t source_pixel(enum conv_kind kind, int64_t out, int64_t at, int64_t size) {
    const int64_t doubled = 2 * size;
    int64_t in = out + at - 1;
    switch (kind) {
    case CONV_1X1:
        return out;
    case CONV_3X3:
        break;
    case CONV_3X3_DOWN:
        in = 2 * out + at - 1;
        break;
    case CONV_3X3_DOWN_RIGHT:
        in = 2 * out + at;
        break;
    case CONV_3X3_UP:
        return in < 0 || in >= doubled ? -1 : in / 2;
    }
    return in < 0 || in >= size ? -1 : in;
}

/* Returns output `n` of the named layer at (oy, ox). For a linear layer that is row oy * W + ox. */
static double expected_output(const struct named_weight *named, const float *x, const float *weight,
    int64_t oy, int64_t ox, int64_t n) {
    const int64_t size = named->is_conv && named->kind != CONV_1X1 ? 3 : 1;
    const enum conv_kind kind = named->is_conv ? named->kind : CONV_1X1;
    double sum = 0;
    for (int64_t ky = 0; ky < size; ky++)
        for (int64_t kx = 0; kx < size; kx++) {
            const int64_t y = source_pixel(kind, oy, ky, H), at = source_pixel(kind, ox, kx, W);
            if (y < 0 || at < 0)
                continue;
            for (int64_t k = 0; k < named->k; k++)
                sum += (double)weight[((n * named->k + k) * size + ky) * size + kx] *
                       (double)x[(y * W + at) * named->k + k];
        }
    return sum;
}

static double gelu(double x) {
    return 0.5 * x * (1 + erf(x / sqrt(2)));
}

/* Returns norm(difference) / norm(expected) over the rows that the entry names. */
static double rows_error(const struct named_weight *named, const struct product *p,
    const float *weight, const float *bias) {
    double difference = 0, norm = 0;
    const int64_t half = named->n / 2, outputs = named->packed->geglu ? half : named->n;
    for (int64_t oy = 0; oy < p->out_h; oy++)
        for (int64_t ox = 0; ox < p->out_w; ox++)
            for (int64_t n = 0; n < outputs; n++) {
                double e = expected_output(named, p->x, weight, oy, ox, n) +
                           (bias ? (double)bias[n] : 0);
                if (named->packed->geglu)
                    e *= gelu(expected_output(named, p->x, weight, oy, ox, n + half) +
                              (bias ? (double)bias[n + half] : 0));
                const double d =
                    (double)p->y[(oy * p->out_w + ox) * p->channels + named->first + n] - e;
                difference += d * d;
                norm += e * e;
            }
    return sqrt(difference / norm);
}

/* ---- a list against its source ---- */

static const float *find_tensor(
    const struct rule_source *source, const char *layer, const char *kind, int *rank) {
    char name[SAFETENSORS_MAX_NAME_BYTES + 8];
    snprintf(name, sizeof(name), "%s.%s", layer, kind);
    for (size_t i = 0; i < source->count; i++)
        if (strcmp(source->items[i].name, name) == 0) {
            *rank = source->items[i].tensor.rank;
            return source->items[i].tensor.data;
        }
    return NULL;
}

/* Every matrix that the model took has an entry, except embeddings. */
static void every_matrix_is_named(
    const struct rule_source *source, const struct weight_list *list) {
    size_t matrices = 0;
    for (size_t i = 0; i < source->count; i++) {
        char layer[SAFETENSORS_MAX_NAME_BYTES];
        snprintf(layer, sizeof(layer), "%s", source->items[i].name);
        if (source->items[i].tensor.rank < 2 || strstr(layer, "embeddings."))
            continue;
        *strrchr(layer, '.') = 0;
        matrices++;
        CHECK(weight_list_find(list, layer), "%s has no entry", layer);
    }
    CHECK(list->count == matrices, "%zu entries for %zu matrices", list->count, matrices);
}

/* All other tensors that the model took are listed unpacked, with the source's numbers. */
static void every_other_tensor_is_resident(const struct kernels *kernels,
    const struct rule_source *source, const struct weight_list *list) {
    size_t tensors = 0;
    for (size_t i = 0; i < list->resident_count; i++) {
        const struct named_resident *r = &list->residents[i];
        const struct tensor *parts[] = { &r->weight, &r->bias };
        for (int k = 0; k < 2; k++) {
            int rank = 0;
            struct error err = { 0 };
            const float *want = find_tensor(source, r->name, k ? "bias" : "weight", &rank);
            CHECK((want != NULL) == (parts[k]->data != NULL), "%s, part %d", r->name, k);
            if (!want || !parts[k]->data)
                continue;
            const void *got = kernels->memory->view(parts[k]->data, tensor_bytes(parts[k]), &err);
            CHECK(parts[k]->rank == rank && memcmp(got, want, tensor_bytes(parts[k])) == 0,
                "%s: part %d has other numbers than its tensor", r->name, k);
            tensors++;
        }
        CHECK(!weight_list_find(list, r->name), "%s is listed twice", r->name);
    }
    for (size_t i = 0; i < list->count; i++)
        tensors += list->items[i].has_bias ? 2 : 1;
    CHECK(tensors == source->count, "only %zu of %zu tensors have a name", tensors, source->count);
}

/* The entries of one packed weight follow one another without a gap. */
static void every_row_has_a_name(const struct weight_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        const struct packed *packed = list->items[i].packed;
        int64_t rows = 0, next = 0;
        for (size_t k = 0; k < list->count; k++)
            if (list->items[k].packed == packed) {
                CHECK(list->items[k].first == next, "%s begins at %lld, not %lld",
                    list->items[k].name, (long long)list->items[k].first, (long long)next);
                next = list->items[k].first + list->items[k].n;
                rows += list->items[k].n;
            }
        CHECK(rows == packed->n, "%s: %lld of %lld rows have a name", list->items[i].name,
            (long long)rows, (long long)packed->n);
    }
}

static void rows_are_the_named_tensors(const char *model, const struct kernels *kernels,
    const struct rule_source *source, const struct weight_list *list) {
    double worst = 0;
    size_t fused = 0;
    for (size_t i = 0; i < list->count; i++) {
        const struct named_weight *named = &list->items[i];
        int rank = 0, bias_rank = 0;
        const float *weight = find_tensor(source, named->name, "weight", &rank);
        const float *bias = find_tensor(source, named->name, "bias", &bias_rank);
        CHECK(weight && (bias != NULL) == named->has_bias, "%s", named->name);
        CHECK(named->is_conv == (rank == 4) && named->is_conv == named->packed->is_conv &&
                  (!named->is_conv || named->kind == named->packed->kind),
            "%s is listed as the wrong kind of layer", named->name);
        struct product p = product_of(kernels, named->packed);
        const double error = rows_error(named, &p, weight, bias);
        CHECK(error <= 1e-5, "%s, %s: rows %lld to %lld differ by %.1e", kernels->name, named->name,
            (long long)named->first, (long long)(named->first + named->n), error);
        worst = error > worst ? error : worst;
        fused += named->n != named->packed->n;
        free(p.x);
        free(p.y);
    }
    every_matrix_is_named(source, list);
    every_row_has_a_name(list);
    every_other_tensor_is_resident(kernels, source, list);
    printf("%s, %s: %zu entries, %zu of them in fused weights; largest relative error %.1e\n",
        model, kernels->name, list->count, fused, worst);
}

static void every_row_of_every_weight(const struct kernels *kernels) {
    struct rule_source sources[3] = { { .gain = 0.7 }, { .gain = 0.7 }, { .gain = 0.7 } };
    struct weights w[3];
    struct text_encoder *text = NULL;
    struct unet *unet = NULL;
    struct vae *vae = NULL;
    struct error err = { 0 };
    for (int i = 0; i < 3; i++)
        w[i] = rule_weights(&sources[i], kernels, DTYPE_F32);
    CHECK(text_encoder_create(&text_config, &w[0], &text, &err) &&
              unet_create(&small_unets[0].config, &w[1], &unet, &err) &&
              vae_create(&vae_config, &w[2], VAE_BOTH, &vae, &err),
        "%s", err.message);
    rows_are_the_named_tensors("text encoder", kernels, &sources[0], text_encoder_weights(text));
    rows_are_the_named_tensors("unet", kernels, &sources[1], unet_weights(unet));
    rows_are_the_named_tensors("vae", kernels, &sources[2], vae_weights(vae));
    text_encoder_destroy(text);
    unet_destroy(unet);
    vae_destroy(vae);
    for (int i = 0; i < 3; i++)
        rule_source_finish(&sources[i]);
}

/* ---- packing a weight again ---- */

/* Adds `step` times the identity to a layer's weight, and 1 to its biases. */
static bool add_diagonal(
    void *user, const struct named_weight *layer, float *weight, float *bias, struct error *err) {
    const float step = *(const float *)user;
    const int64_t taps = layer->is_conv && layer->kind != CONV_1X1 ? 9 : 1;
    (void)err;
    for (int64_t i = 0; i < layer->n && i < layer->k; i++)
        weight[(i * layer->k + i) * taps + taps / 2] += step;
    for (int64_t i = 0; bias && step != 0 && i < layer->n; i++)
        bias[i] += 1;
    return true;
}

/* `before` and `after` are the products of one weight before and after its change. Returns the
 * relative error of `after` - `before`. For a linear layer or a plain convolution, the difference
 * must be the input of the same row or pixel, plus 1 if the layer has a bias. */
static double diagonal_error(
    const struct weight_list *list, const struct product *before, const struct product *after) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < list->count; i++) {
        const struct named_weight *layer = &list->items[i];
        if (layer->packed != before->weight)
            continue;
        for (int64_t row = 0; row < H * W; row++)
            for (int64_t j = 0; j < layer->n; j++) {
                const int64_t at = row * before->channels + layer->first + j;
                const double added = (j < layer->k ? (double)before->x[row * layer->k + j] : 0) +
                                     (layer->has_bias ? 1 : 0);
                const double d = (double)after->y[at] - (double)before->y[at] - added;
                difference += d * d;
                norm += added * added;
            }
    }
    return sqrt(difference / norm);
}

static void weight_is_made_again(const struct weights *w, const struct weight_list *list,
    const struct packed *packed, double *worst, size_t *same) {
    const float steps[2] = { 0, 1 };
    struct product p[3] = { product_of(w->kernels, packed) };
    struct packed *made[2] = { NULL, NULL };
    struct error err = { 0 };
    for (int i = 0; i < 2; i++) {
        struct weight_numbers numbers;
        CHECK(weight_numbers_read(
                  w, list, packed, add_diagonal, (void *)(uintptr_t)&steps[i], &numbers, &err) &&
                  weight_numbers_pack(w, &numbers, packed, &made[i], &err),
            "%s", err.message);
        weight_numbers_finish(&numbers);
        p[i + 1] = product_of(w->kernels, made[i]);
    }
    const size_t bytes = (size_t)(p[0].out_h * p[0].out_w * p[0].channels) * sizeof(float);
    const bool equal = memcmp(p[0].y, p[1].y, bytes) == 0;
    CHECK(equal, "%s: the weight, packed again, computes other bits", w->kernels->name);
    *same += equal;
    const bool plain = !packed->is_conv || packed->kind == CONV_1X1 || packed->kind == CONV_3X3;
    if (!packed->geglu && plain) {
        const double error = diagonal_error(list, &p[0], &p[2]);
        CHECK(error <= 1e-5, "%s: the change differs by %.1e", w->kernels->name, error);
        *worst = error > *worst ? error : *worst;
    } else {
        CHECK(memcmp(p[0].y, p[2].y, bytes) != 0,
            "%s: a change of the weight does not change the result", w->kernels->name);
    }
    for (int i = 0; i < 3; i++) {
        free(p[i].x);
        free(p[i].y);
    }
    packed_destroy(made[0]);
    packed_destroy(made[1]);
}

static void every_weight_can_be_made_again(const struct kernels *kernels, enum dtype source_dtype) {
    struct rule_source source = { .gain = 0.7, .dtype = source_dtype };
    const struct weights w = rule_weights(&source, kernels, DTYPE_F32);
    struct unet *unet = NULL;
    struct error err = { 0 };
    double worst = 0;
    size_t weights = 0, same = 0;
    CHECK(unet_create(&small_unets[0].config, &w, &unet, &err), "%s", err.message);
    const struct weight_list *list = unet_weights(unet);
    for (size_t i = 0; i < list->count; i++) {
        if (list->items[i].first != 0)
            continue;
        weight_is_made_again(&w, list, list->items[i].packed, &worst, &same);
        weights++;
    }
    printf("%s, %s: %zu of %zu packed weights made again compute the same bits; a change of their "
           "diagonals by 1 is off by %.1e\n",
        kernels->name, dtype_name(source_dtype), same, weights, worst);
    unet_destroy(unet);
    rule_source_finish(&source);
}

/* In a VAE that only decodes, the encoder's weights have names but no packed weight. */
static void a_part_not_loaded_has_no_weight(void) {
    struct rule_source source = { .gain = 0.7 };
    const struct weights w = rule_weights(&source, kernels_reference(), DTYPE_F32);
    struct vae *vae = NULL;
    struct error err = { 0 };
    CHECK(vae_create(&vae_config, &w, VAE_DECODER, &vae, &err), "%s", err.message);
    const struct weight_list *list = vae_weights(vae);
    for (size_t i = 0; i < list->count; i++) {
        const bool encoder = strncmp(list->items[i].name, "encoder.", 8) == 0 ||
                             strcmp(list->items[i].name, "quant_conv") == 0;
        CHECK((list->items[i].packed == NULL) == encoder, "%s", list->items[i].name);
    }
    vae_destroy(vae);
    rule_source_finish(&source);
}

int main(void) {
    every_row_of_every_weight(kernels_reference());
    every_row_of_every_weight(kernels_cpu());
    a_part_not_loaded_has_no_weight();
    every_weight_can_be_made_again(kernels_reference(), DTYPE_F32);
    every_weight_can_be_made_again(kernels_cpu(), DTYPE_F32);
    every_weight_can_be_made_again(kernels_cpu(), DTYPE_F16);
    return check_done();
}
