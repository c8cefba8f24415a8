/* diffusers' published numbers, without torch.
 *
 * diffusers' own unit tests print a corner of what each block gives with freshly initialised
 * weights. torch initialises from one generator in the order of the constructors, so drawing the
 * same numbers in the same order recreates weights, inputs and outputs here. Sources:
 * tests/models/unets/ test_unet_2d_blocks.py, tests/models/test_layers_utils.py,
 * tests/pipelines/ddim and ddpm.
 */
#include "kernels/random/noise.h"
#include "models/image_attention.h"
#include "models/resnet.h"
#include "models/transformer.h"
#include "tests/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TEMB 128
#define MAX_TENSORS 192

/* The published numbers have four decimals. DDIM's are truncated, the others rounded. */
static const double rounded = 6e-5, cut = 1e-4;
static const float eps = 1e-6f; /* the blocks' default, not that of a UNet's config */

struct named {
    char name[96];
    struct tensor tensor;
};

/* One case: a random generator, the tensors drawn from it, and the memory for computing. */
struct stage {
    struct noise_generator rng;
    struct named tensors[MAX_TENSORS]; /* data is owned */
    int count;
    struct weights w;
    struct compute c;
};

static float *add_tensor(
    struct stage *s, const char *name, const char *kind, int rank, const int64_t *shape) {
    struct named *named = &s->tensors[s->count++];
    snprintf(named->name, sizeof(named->name), "%s.%s", name, kind);
    named->tensor = (struct tensor){ .dtype = DTYPE_F32, .rank = rank };
    memcpy(named->tensor.shape, shape, (size_t)rank * sizeof(*shape));
    named->tensor.data = calloc((size_t)tensor_elements(&named->tensor), sizeof(float));
    return named->tensor.data;
}

/* Source of weights: the drawn tensors. Norms start with one and zero and draw no numbers. */
static bool stage_get(void *user, const char *name, int rank, const int64_t *shape,
    struct tensor *out, struct error *err) {
    struct stage *s = user;
    int64_t count = 1;
    for (int i = 0; i < rank; i++)
        count *= shape[i];
    for (int i = 0; i < s->count; i++) {
        if (strcmp(s->tensors[i].name, name) == 0 &&
            tensor_elements(&s->tensors[i].tensor) == count) {
            *out = s->tensors[i].tensor;
            return true;
        }
    }
    if (!strstr(name, "norm") || s->count == MAX_TENSORS)
        return error_set(err, ERROR_NOT_FOUND, "%s was not drawn", name);
    float *data = add_tensor(s, "", "", rank, shape);
    snprintf(s->tensors[s->count - 1].name, sizeof(s->tensors[0].name), "%s", name);
    for (int64_t i = 0; i < count; i++)
        data[i] = strstr(name, ".weight") ? 1.0f : 0.0f;
    *out = s->tensors[s->count - 1].tensor;
    return true;
}

static void stage_begin(struct stage *s, const struct kernels *kernels, uint64_t seed) {
    struct error err = { 0 };
    memset(s, 0, sizeof(*s));
    noise_init(&s->rng, RNG_CPU, seed);
    s->w = (struct weights){ .get = stage_get, .user = s, .kernels = kernels, .dtype = DTYPE_F32 };
    s->c.kernels = kernels;
    CHECK(arena_create(s->c.kernels->memory, &s->c.arena, &err) &&
              arena_reserve(s->c.arena, 64 << 20, &err),
        "%s", err.message);
}

static void stage_end(struct stage *s) {
    for (int i = 0; i < s->count; i++)
        free(s->tensors[i].tensor.data);
    arena_destroy(s->c.arena);
}

/* ---- torch's initialisation ---- */

static void draw_uniform(struct stage *s, float *out, int64_t count, double bound) {
    const float low = (float)-bound, high = (float)bound;
    for (int64_t i = 0; i < count; i++) {
        const float u = (float)(mt19937_next(&s->rng.mt) & 0xffffff) * (1.0f / 16777216.0f);
        out[i] = u * (high - low) + low;
    }
}

/* Draws a Linear (size 1) or a Conv2d: the weight, then the bias. */
static void draw_layer(struct stage *s, const char *prefix, const char *leaf, int64_t n, int64_t k,
    int size, bool bias) {
    const int64_t shape[4] = { n, k, size, size };
    const double fan_in = (double)(k * size * size);
    char name[80];
    snprintf(name, sizeof(name), "%s.%s", prefix, leaf);
    /* kaiming_uniform with a = sqrt(5) */
    draw_uniform(s, add_tensor(s, name, "weight", 4, shape), n * k * size * size,
        sqrt(3.0) * (sqrt(2.0 / 6.0) / sqrt(fan_in)));
    if (bias)
        draw_uniform(s, add_tensor(s, name, "bias", 1, shape), n, 1.0 / sqrt(fan_in));
}

static void draw_resnet(
    struct stage *s, const char *prefix, int64_t c_in, int64_t c_out, int64_t temb, bool shortcut) {
    draw_layer(s, prefix, "conv1", c_out, c_in, 3, true);
    if (temb)
        draw_layer(s, prefix, "time_emb_proj", c_out, temb, 1, true);
    draw_layer(s, prefix, "conv2", c_out, c_out, 3, true);
    if (shortcut)
        draw_layer(s, prefix, "conv_shortcut", c_out, c_in, 1, true);
}

static void draw_attention(
    struct stage *s, const char *prefix, int64_t channels, int64_t context, bool bias) {
    draw_layer(s, prefix, "to_q", channels, channels, 1, bias);
    draw_layer(s, prefix, "to_k", channels, context, 1, bias);
    draw_layer(s, prefix, "to_v", channels, context, 1, bias);
    draw_layer(s, prefix, "to_out.0", channels, channels, 1, true);
}

static void draw_transformer(struct stage *s, int64_t channels, int64_t context) {
    draw_layer(s, "t", "proj_in", channels, channels, 1, true);
    draw_attention(s, "t.transformer_blocks.0.attn1", channels, channels, false);
    if (context) {
        draw_attention(s, "t.transformer_blocks.0.attn2", channels, context, false);
    } else { /* not in diffusers: loaded but never used */
        const int64_t square[2] = { channels, channels };
        add_tensor(s, "t.transformer_blocks.0.attn2.to_q", "weight", 2, square);
        add_tensor(s, "t.transformer_blocks.0.attn2.to_out.0", "weight", 2, square);
        add_tensor(s, "t.transformer_blocks.0.attn2.to_out.0", "bias", 1, square);
    }
    draw_layer(s, "t", "transformer_blocks.0.ff.net.0.proj", 8 * channels, channels, 1, true);
    draw_layer(s, "t", "transformer_blocks.0.ff.net.2", channels, 4 * channels, 1, true);
    draw_layer(s, "t", "proj_out", channels, channels, 1, true);
}

/* Draws `rows` images [c][h][w] of normal noise. Returns the first, channels last. */
static struct tensor draw_image(struct stage *s, int rows, int64_t c, int64_t h, int64_t w) {
    float *all = malloc((size_t)(rows * c * h * w) * sizeof(float));
    struct tensor x = compute_tensor_4d(&s->c, DTYPE_F32, 1, h, w, c);
    noise_draw(&s->rng, all, rows * c * h * w);
    for (int64_t i = 0; i < c; i++)
        for (int64_t p = 0; p < h * w; p++)
            ((float *)x.data)[p * c + i] = all[i * h * w + p];
    free(all);
    return x;
}

/* Draws `rows` time embeddings. Returns silu of the first. */
static struct tensor draw_silu_temb(struct stage *s, int rows) {
    struct tensor image = draw_image(s, rows, TEMB, 1, 1);
    struct tensor temb = tensor_view_2d(&image, 1, TEMB);
    op_add(&s->c, &(struct add_args){ .a = &temb, .activation = ACTIVATION_SILU, .y = &temb });
    return temb;
}

/* ---- the blocks, by name, computed with latentd's code ---- */

static struct tensor like(struct stage *s, const struct tensor *x, int64_t channels) {
    return compute_tensor_4d(&s->c, DTYPE_F32, x->shape[0], x->shape[1], x->shape[2], channels);
}

static struct tensor run_conv(struct stage *s, const char *prefix, const char *leaf,
    enum conv_kind kind, const struct tensor *x, int64_t c_out) {
    struct error err = { 0 };
    struct packed *conv = NULL;
    CHECK(conv_load(&s->w, prefix, leaf, kind, c_out, x->shape[3], &conv, &err), "%s", err.message);
    struct tensor y = compute_tensor_4d(&s->c, DTYPE_F32, 1, conv_out_size(kind, x->shape[1]),
        conv_out_size(kind, x->shape[2]), c_out);
    layer_conv(&s->c, x, conv, &y);
    packed_destroy(conv);
    return y;
}

static struct tensor run_time_part(
    struct stage *s, const char *prefix, const struct tensor *silu_temb, int64_t c_out) {
    struct error err = { 0 };
    struct linear_part part;
    struct packed *weight = NULL;
    CHECK(resnet_time_part(prefix, c_out, &part, &err) &&
              linear_load_stacked(&s->w, &part, 1, silu_temb->shape[1], true, &weight, &err),
        "%s", err.message);
    struct tensor y = compute_tensor_2d(&s->c, DTYPE_F32, silu_temb->shape[0], c_out);
    layer_linear(&s->c, silu_temb, weight, &y);
    packed_destroy(weight);
    return y;
}

static struct tensor run_resnet(struct stage *s, const char *prefix, struct tensor x, int64_t c_out,
    const struct tensor *silu_temb, int groups, float resnet_eps, bool force_shortcut) {
    struct error err = { 0 };
    struct resnet resnet;
    const struct resnet_shape shape = {
        .c_in = x.shape[3], .c_out = c_out, .groups = groups, .eps = resnet_eps
    };
    CHECK(resnet_load(&s->w, prefix, &shape, &resnet, &err), "%s", err.message);
    if (force_shortcut && x.shape[3] == c_out) {
        CHECK(conv_load(&s->w, prefix, "conv_shortcut", CONV_1X1, c_out, c_out,
                  &resnet.conv_shortcut, &err),
            "%s", err.message);
    }
    struct tensor y = like(s, &x, c_out), time_add;
    if (silu_temb)
        time_add = run_time_part(s, prefix, silu_temb, c_out);
    resnet_forward(&resnet, &s->c, &x, RESNET_KEEP_INPUT, silu_temb ? &time_add : NULL, &y);
    resnet_finish(&resnet);
    return y;
}

static void run_image_attention(
    struct stage *s, const char *prefix, struct tensor *x, int heads, int groups, float norm_eps) {
    struct error err = { 0 };
    struct image_attention attention;
    const struct image_attention_shape shape = {
        .channels = x->shape[3], .heads = heads, .groups = groups, .eps = norm_eps
    };
    CHECK(image_attention_load(&s->w, prefix, &shape, &attention, &err), "%s", err.message);
    image_attention_forward(&attention, &s->c, x);
    image_attention_finish(&attention);
}

/* The context of a Transformer2DModel's second attention. */
enum context { CONTEXT_NONE, CONTEXT_ITSELF, CONTEXT_DRAWN };

static void run_transformer(struct stage *s, struct tensor *x, int heads, enum context kind) {
    const int64_t channels = x->shape[3], tokens = x->shape[1] * x->shape[2];
    struct error err = { 0 };
    struct transformer t;
    struct packed *kv_weight = NULL;
    struct linear_part parts[2];
    const struct transformer_shape shape = { .channels = channels, .heads = heads, .groups = 32 };
    CHECK(transformer_load(&s->w, "t", &shape, &t, &err), "%s", err.message);
    if (kind != CONTEXT_NONE) {
        CHECK(transformer_context_parts("t", channels, parts, &err) &&
                  linear_load_stacked(&s->w, parts, 2, channels, false, &kv_weight, &err),
            "%s", err.message);
    }
    if (kind == CONTEXT_DRAWN) {
        struct tensor drawn = compute_tensor_3d(&s->c, DTYPE_F32, 1, 4, channels);
        struct tensor kv = compute_tensor_3d(&s->c, DTYPE_F32, 1, 4, 2 * channels);
        noise_draw(&s->rng, drawn.data, 4 * channels);
        layer_linear(&s->c, &drawn, kv_weight, &kv);
        transformer_forward(&t, &s->c, x, &(struct transformer_context){ .kv = &kv });
    } else {
        struct tensor tokens_x = compute_tensor_3d(&s->c, DTYPE_F32, 1, tokens, channels);
        transformer_enter(&t, &s->c, x, &tokens_x);
        transformer_self_attention(&t, &s->c, &tokens_x);
        if (kind == CONTEXT_ITSELF) {
            struct tensor normed = compute_tensor_3d(&s->c, DTYPE_F32, 1, tokens, channels);
            struct tensor kv = compute_tensor_3d(&s->c, DTYPE_F32, 1, tokens, 2 * channels);
            layer_layer_norm(&s->c, &tokens_x, &t.norm2, 1e-5f, &normed);
            layer_linear(&s->c, &normed, kv_weight, &kv);
            transformer_cross_attention(
                &t, &s->c, &tokens_x, &(struct transformer_context){ .kv = &kv });
        }
        transformer_feed_forward(&t, &s->c, &tokens_x);
        transformer_leave(&t, &s->c, &tokens_x, x);
    }
    packed_destroy(kv_weight);
    transformer_finish(&t);
}

/* Compares the last three rows and columns of the last channel of y [1][h][w][c]. */
static void check_corner(const struct stage *s, const char *name, const struct tensor *y,
    const double expected[9], double tolerance) {
    const int64_t h = y->shape[1], w = y->shape[2], c = y->shape[3];
    double worst = 0;
    CHECK(compute_ok(&s->c), "%s: %s", name, s->c.error.message);
    for (int i = 0; i < 9; i++) {
        const int64_t pixel = (h - 3 + i / 3) * w + w - 3 + i % 3;
        const float value = ((const float *)y->data)[pixel * c + c - 1];
        CHECK(fabs((double)value - expected[i]) <= tolerance, "%s, %s: %.5f, published %.5f", name,
            s->c.kernels->name, (double)value, expected[i]);
        worst = fmax(worst, fabs((double)value - expected[i]));
    }
    printf("%-28s %-9s off by at most %.1e\n", name, s->c.kernels->name, worst);
}

enum middle { NOTHING, IMAGE_ATTENTION, TRANSFORMER, TRANSFORMER_SELF, TRANSFORMER_CROSS };
enum end { END_NOTHING, END_DOWN, END_UP, END_RESNET };

/* The parts that a block may have: concatenation with a skip connection, a resnet, an attention, a
 * resampler. */
static const struct block {
    const char *name;
    int rows, size; /* the input's; only the first image is used */
    int64_t channels;
    int temb_rows;
    bool skip, resnet, shortcut;
    enum middle middle;
    enum end end;
    double expected[9];
} blocks[] = {
    { "Upsample2D", .rows = 1, .size = 32, .channels = 32, .end = END_UP,
        .expected = { 0.7145, 1.3773, 0.3492, 0.8448, 1.0839, -0.3341, 0.5956, 0.1250, -0.4841 } },
    { "Downsample2D", .rows = 1, .size = 64, .channels = 32, .end = END_DOWN,
        .expected = { 0.9267, 0.5878, 0.3337, 1.2321, -0.1191, -0.3984, -0.7532, -0.0715,
            -0.3913 } },
    { "ResnetBlock2D", .rows = 1, .size = 64, .channels = 32, .temb_rows = 1, .resnet = true,
        .expected = { -1.9010, -0.2974, -0.8245, -1.3533, 0.8742, -0.9645, -2.0584, 1.3387,
            -0.4746 } },
    { "ResnetBlock2D shortcut", .rows = 1, .size = 64, .channels = 32, .temb_rows = 1,
        .resnet = true, .shortcut = true,
        .expected = { 0.2226, -1.0791, -0.1629, 0.3659, -0.2889, -1.2376, 0.0582, 0.9206,
            0.0044 } },
    { "Transformer2DModel self", .rows = 1, .size = 64, .channels = 32, .middle = TRANSFORMER_SELF,
        .expected = { -1.9455, -0.0066, -1.3933, -1.5878, 0.5325, -0.6486, -1.8648, 0.7515,
            -0.9689 } },
    { "Transformer2DModel cross", .rows = 1, .size = 64, .channels = 64,
        .middle = TRANSFORMER_CROSS,
        .expected = { 0.0143, -0.6909, -2.1547, -1.8893, 1.4097, 0.1359, -0.2521, -1.3359,
            0.2598 } },
    { "DownBlock2D", .rows = 4, .size = 32, .channels = 32, .temb_rows = 4, .resnet = true,
        .end = END_DOWN,
        .expected = { -0.0232, -0.9869, 0.8054, -0.0637, -0.1688, -1.4264, 0.4470, -1.3394,
            0.0904 } },
    { "AttnDownBlock2D", .rows = 4, .size = 32, .channels = 32, .temb_rows = 4, .resnet = true,
        .middle = IMAGE_ATTENTION, .end = END_DOWN,
        .expected = { 0.0636, 0.8964, -0.6234, -1.0131, 0.0844, 0.4935, 0.3437, 0.0911, -0.2957 } },
    { "CrossAttnDownBlock2D", .rows = 4, .size = 32, .channels = 32, .temb_rows = 4, .resnet = true,
        .middle = TRANSFORMER, .end = END_DOWN,
        .expected = { 0.2238, -0.7396, -0.2255, -0.3829, 0.1925, 1.1665, 0.0603, -0.7295,
            0.1983 } },
    { "DownEncoderBlock2D", .rows = 4, .size = 32, .channels = 32, .resnet = true, .end = END_DOWN,
        .expected = { 1.1102, 0.5302, 0.4872, -0.0023, -0.8042, 0.0483, -0.3489, -0.5632,
            0.7626 } },
    { "UNetMidBlock2D", .rows = 4, .size = 32, .channels = 32, .temb_rows = 4, .resnet = true,
        .middle = IMAGE_ATTENTION, .end = END_RESNET,
        .expected = { -0.1062, 1.7248, 0.3494, 1.4569, -0.0910, -1.2421, -0.9984, 0.6736,
            1.0028 } },
    { "UNetMidBlock2DCrossAttn", .rows = 4, .size = 32, .channels = 32, .temb_rows = 4,
        .resnet = true, .middle = TRANSFORMER, .end = END_RESNET,
        .expected = { 0.0187, 2.4220, 0.4484, 1.1203, -0.6121, -1.5122, -0.8270, 0.7851, 1.8335 } },
    { "UpBlock2D", .rows = 4, .size = 32, .channels = 32, .temb_rows = 4, .skip = true,
        .resnet = true, .end = END_UP,
        .expected = { -0.2041, -0.4165, -0.3022, 0.0041, -0.6628, -0.7053, 0.1928, -0.0325,
            0.0523 } },
    { "AttnUpBlock2D", .rows = 4, .size = 32, .channels = 32, .temb_rows = 4, .skip = true,
        .resnet = true, .middle = IMAGE_ATTENTION, .end = END_UP,
        .expected = { 0.0979, 0.1326, 0.0021, 0.0659, 0.2249, 0.0059, 0.1132, 0.5952, 0.1033 } },
    { "CrossAttnUpBlock2D", .rows = 4, .size = 32, .channels = 32, .temb_rows = 4, .skip = true,
        .resnet = true, .middle = TRANSFORMER, .end = END_UP,
        .expected = { -0.1403, -0.3515, -0.0420, -0.1425, 0.3167, 0.5094, -0.2181, 0.5931,
            0.5582 } },
    { "UpDecoderBlock2D", .rows = 4, .size = 32, .channels = 32, .resnet = true, .end = END_UP,
        .expected = { 0.4404, 0.1998, -0.9886, -0.3320, -0.3128, -0.7034, -0.6955, -0.2338,
            -0.3137 } },
};

static void draw_block(struct stage *s, const struct block *b) {
    const int64_t c = b->channels, temb = b->temb_rows ? TEMB : 0;
    if (b->resnet)
        draw_resnet(s, "r", b->skip ? 2 * c : c, c, temb, b->skip || b->shortcut);
    if (b->middle == IMAGE_ATTENTION)
        draw_attention(s, "a", c, c, true);
    else if (b->middle != NOTHING)
        draw_transformer(s, c, b->middle == TRANSFORMER_SELF ? 0 : c);
    if (b->end == END_RESNET)
        draw_resnet(s, "end", c, c, temb, false);
    else if (b->end != END_NOTHING)
        draw_layer(s, "end", "conv", c, c, 3, true);
}

static void matches_published_corner(const struct kernels *kernels, const struct block *b) {
    static struct stage s;
    const int64_t c = b->channels;
    struct tensor temb;
    stage_begin(&s, kernels, 0);
    struct tensor x = draw_image(&s, b->rows, c, b->size, b->size);
    if (b->temb_rows)
        temb = draw_silu_temb(&s, b->temb_rows);
    if (b->skip) { /* starts a new generator, which is used from here on */
        noise_init(&s.rng, RNG_CPU, 1);
        struct tensor skip = draw_image(&s, b->rows, c, b->size, b->size);
        struct tensor cat = like(&s, &x, 2 * c);
        op_concat(&s.c, &(struct concat_args){ .a = &x, .b = &skip, .y = &cat });
        x = cat;
    }
    draw_block(&s, b);
    struct tensor *silu_temb = b->temb_rows ? &temb : NULL;
    if (b->resnet)
        x = run_resnet(&s, "r", x, c, silu_temb, 32, eps, b->shortcut);
    if (b->middle == IMAGE_ATTENTION)
        run_image_attention(&s, "a", &x, 32, 32, eps);
    else if (b->middle == TRANSFORMER) /* without a context it attends to itself */
        run_transformer(&s, &x, 1, CONTEXT_ITSELF);
    else if (b->middle == TRANSFORMER_SELF)
        run_transformer(&s, &x, 1, CONTEXT_NONE);
    else if (b->middle == TRANSFORMER_CROSS)
        run_transformer(&s, &x, 2, CONTEXT_DRAWN);
    if (b->end == END_RESNET)
        x = run_resnet(&s, "end", x, c, silu_temb, 32, eps, false);
    else if (b->end != END_NOTHING)
        x = run_conv(&s, "end", "conv", b->end == END_UP ? CONV_3X3_UP : CONV_3X3_DOWN, &x, c);
    check_corner(&s, b->name, &x, b->expected, rounded);
    stage_end(&s);
}

/* ---- two whole pipelines: a UNet2DModel of two levels on 8x8 pixels, two steps ---- */

#define PIXELS 64

static void draw_unet2d(struct stage *s) {
    draw_layer(s, "u", "conv_in", 4, 3, 3, true);
    draw_layer(s, "u", "time1", 16, 4, 1, true);
    draw_layer(s, "u", "time2", 16, 16, 1, true);
    draw_resnet(s, "d0", 4, 4, 16, false);
    draw_layer(s, "u", "down", 4, 4, 3, true);
    draw_resnet(s, "d1", 4, 8, 16, true);
    draw_attention(s, "da", 8, 8, true);
    draw_resnet(s, "m0", 8, 8, 16, false);
    draw_attention(s, "ma", 8, 8, true);
    draw_resnet(s, "m1", 8, 8, 16, false);
    draw_resnet(s, "u00", 16, 8, 16, true);
    draw_attention(s, "ua0", 8, 8, true);
    draw_resnet(s, "u01", 12, 8, 16, true);
    draw_attention(s, "ua1", 8, 8, true);
    draw_layer(s, "u", "up", 8, 8, 3, true);
    draw_resnet(s, "u10", 12, 4, 16, true);
    draw_resnet(s, "u11", 8, 4, 16, true);
    draw_layer(s, "u", "conv_out", 3, 4, 3, true);
}

static struct tensor time_linear(struct stage *s, const char *leaf, const struct tensor *x) {
    struct error err = { 0 };
    struct packed *linear = NULL;
    const struct linear_shape shape = { .n = 16, .k = x->shape[1], .bias = true };
    CHECK(linear_load(&s->w, "u", leaf, shape, &linear, &err), "%s", err.message);
    struct tensor y = compute_tensor_2d(&s->c, DTYPE_F32, 1, 16);
    op_linear(&s->c,
        &(struct linear_args){ .x = x, .weight = linear, .activation = ACTIVATION_SILU, .y = &y });
    packed_destroy(linear);
    return y;
}

static struct tensor cat_resnet(struct stage *s, const char *prefix, const struct tensor *x,
    const struct tensor *skip, int64_t c_out, const struct tensor *silu_temb) {
    struct tensor cat = like(s, x, x->shape[3] + skip->shape[3]);
    op_concat(&s->c, &(struct concat_args){ .a = x, .b = skip, .y = &cat });
    return run_resnet(s, prefix, cat, c_out, silu_temb, 4, 1e-5f, false);
}

/* Returns the predicted noise for image [1][8][8][3]. */
static struct tensor unet2d(struct stage *s, const struct tensor *image, float t) {
    const struct tensor timestep = tensor_1d(&t, DTYPE_F32, 1);
    struct tensor sinusoid = compute_tensor_2d(&s->c, DTYPE_F32, 1, 4);
    op_timestep_embedding(
        &s->c, &(struct timestep_embedding_args){
                   .timesteps = &timestep, .flip_sin_to_cos = true, .y = &sinusoid });
    const struct tensor hidden = time_linear(s, "time1", &sinusoid);
    const struct tensor temb = time_linear(s, "time2", &hidden);

    const struct tensor s0 = run_conv(s, "u", "conv_in", CONV_3X3, image, 4);
    const struct tensor s1 = run_resnet(s, "d0", s0, 4, &temb, 4, 1e-5f, false);
    const struct tensor s2 = run_conv(s, "u", "down", CONV_3X3_DOWN, &s1, 4);
    struct tensor s3 = run_resnet(s, "d1", s2, 8, &temb, 4, 1e-5f, false);
    run_image_attention(s, "da", &s3, 1, 4, 1e-5f);
    struct tensor x = run_resnet(s, "m0", s3, 8, &temb, 4, 1e-5f, false);
    run_image_attention(s, "ma", &x, 1, 4, 1e-5f);
    x = run_resnet(s, "m1", x, 8, &temb, 4, 1e-5f, false);
    x = cat_resnet(s, "u00", &x, &s3, 8, &temb);
    run_image_attention(s, "ua0", &x, 1, 4, 1e-5f);
    x = cat_resnet(s, "u01", &x, &s2, 8, &temb);
    run_image_attention(s, "ua1", &x, 1, 4, 1e-5f);
    x = run_conv(s, "u", "up", CONV_3X3_UP, &x, 8);
    x = cat_resnet(s, "u10", &x, &s1, 4, &temb);
    x = cat_resnet(s, "u11", &x, &s0, 4, &temb);
    const float one[4] = { 1, 1, 1, 1 }, zero[4] = { 0 };
    const struct tensor gamma = tensor_1d((void *)one, DTYPE_F32, 4);
    const struct tensor beta = tensor_1d((void *)zero, DTYPE_F32, 4);
    op_group_norm(&s->c, &(struct group_norm_args){ .x = &x,
                             .gamma = &gamma,
                             .beta = &beta,
                             .groups = 4,
                             .eps = 1e-5f,
                             .silu = true,
                             .y = &x });
    return run_conv(s, "u", "conv_out", CONV_3X3, &x, 3);
}

/* One step of DDPM (with noise, except the last) or of DDIM, as in the papers. alpha and alpha_prev
 * are the cumulated products before and after the step. */
static void sampler_step(struct stage *s, bool ddpm, bool is_last, double alpha, double alpha_prev,
    const float *noise_pred, float *image) {
    struct tensor noise = { 0 };
    if (ddpm && !is_last)
        noise = draw_image(s, 1, 3, 8, 8);
    for (int i = 0; i < 3 * PIXELS; i++) {
        const double eps_pred = (double)noise_pred[i], x = (double)image[i];
        double x0 = (x - sqrt(1 - alpha) * eps_pred) / sqrt(alpha);
        x0 = fmin(fmax(x0, -1), 1);
        if (!ddpm) {
            image[i] = (float)(sqrt(alpha_prev) * x0 + sqrt(1 - alpha_prev) * eps_pred);
            continue;
        }
        const double step_alpha = alpha / alpha_prev;
        const double variance = (1 - alpha_prev) / (1 - alpha) * (1 - step_alpha);
        const double mean = sqrt(alpha_prev) * (1 - step_alpha) / (1 - alpha) * x0 +
                            sqrt(step_alpha) * (1 - alpha_prev) / (1 - alpha) * x;
        image[i] = (float)(is_last ? mean
                                   : mean + sqrt(variance) * (double)((float *)noise.data)[i]);
    }
}

static void pipeline_matches_published_corner(
    const struct kernels *kernels, bool ddpm, const char *name, const double expected[9]) {
    static struct stage s;
    double alphas_cumprod[1000], product = 1;
    for (int i = 0; i < 1000; i++) {
        product *= 1 - (1e-4 + (0.02 - 1e-4) * i / 999);
        alphas_cumprod[i] = product;
    }
    stage_begin(&s, kernels, 0);
    draw_unet2d(&s);
    noise_init(&s.rng, RNG_CPU, 0);
    struct tensor image = draw_image(&s, 1, 3, 8, 8);
    for (int t = 500; t >= 0; t -= 500) {
        const struct tensor noise_pred = unet2d(&s, &image, (float)t);
        sampler_step(&s, ddpm, t == 0, alphas_cumprod[t], t ? alphas_cumprod[t - 500] : 1.0,
            noise_pred.data, image.data);
    }
    for (int i = 0; i < 3 * PIXELS; i++) {
        float *p = (float *)image.data + i;
        *p = fminf(fmaxf(*p / 2 + 0.5f, 0), 1);
    }
    check_corner(&s, name, &image, expected, ddpm ? rounded : cut);
    stage_end(&s);
}

/* usage: golden_blocks_test [reference | cpu], cpu by default */
int main(int argc, char **argv) {
    const bool plain = argc > 1 && strcmp(argv[1], "reference") == 0;
    const struct kernels *kernels = plain ? kernels_reference() : kernels_cpu();
    for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++)
        matches_published_corner(kernels, &blocks[i]);
    pipeline_matches_published_corner(kernels, false, "DDIMPipeline, 2 steps",
        (const double[9]){
            0.0, 9.979e-01, 0.0, 9.999e-01, 9.986e-01, 9.991e-01, 7.106e-04, 0.0, 0.0 });
    pipeline_matches_published_corner(kernels, true, "DDPMPipeline, 2 steps",
        (const double[9]){
            0.0, 0.9996672, 0.00329116, 1.0, 0.9995991, 1.0, 0.0060907, 0.00115037, 0.0 });
    return check_done();
}
