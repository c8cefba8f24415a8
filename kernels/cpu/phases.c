/* The phases engine: nearest upsampling and a 3x3 convolution as four 2x2 convolutions of the small
 * image, one for each parity of the output's row and column, in oneDNN's bf16.
 *
 * Output row 2i reads the enlarged rows 2i - 1, 2i and 2i + 1, which are the small rows i - 1, i
 * and i; row 2i + 1 reads i, i and i + 1. So the weights of a phase are sums of the 3x3 weights,
 * and an output needs 4 products instead of 9. A sum is rounded once, as a weight is. Each phase is
 * computed into dense memory and then interleaved with the others here, because oneDNN 2.6 has no
 * fast code for a strided output.
 *
 * If the output has 2h - 1 rows, the convolution reads zeros after its last row, where the phases
 * would read the last row of x once more. Calls with such an output, and calls that add a residual,
 * go through the panels engine, which has its own weights.
 *
 * Thread-safe.
 */
#include "kernels/cpu/layers.h"
#include "kernels/cpu/scratch.h"

#include <stdlib.h>
#include <string.h>

#define PHASES 4 /* 2 * (parity of the row) + parity of the column */

struct phases {
    struct layer layer;
    struct layer *phase[PHASES]; /* owned */
    struct layer *whole;         /* owned: the panels engine's */
};

static void phases_destroy(struct layer *layer) {
    struct phases *p = (struct phases *)layer;
    for (int i = 0; i < PHASES; i++)
        if (p->phase[i])
            dnnl_engine.destroy(p->phase[i]);
    if (p->whole)
        panels_engine.destroy(p->whole);
    free(p);
}

/* out[n][k][2][2]: the sums of weight[n][k][3][3] that the phase (row, column) reads. */
static void sum_weights(const struct tensor *weight, int row, int column, float *out) {
    int64_t filters = weight->shape[0] * weight->shape[1];
    size_t size = dtype_size(weight->dtype);
    for (int64_t i = 0; i < filters; i++, out += 4) {
        float w[9];
        convert_elements(
            w, DTYPE_F32, (const char *)weight->data + (size_t)(9 * i) * size, weight->dtype, 9);
        memset(out, 0, 4 * sizeof(float));
        for (int y = 0; y < 3; y++)
            for (int x = 0; x < 3; x++)
                out[2 * ((y + 1 - row) / 2) + (x + 1 - column) / 2] += w[3 * y + x];
    }
}

static bool phases_pack(const struct tensor *weight, const struct tensor *bias, bool is_conv,
    enum conv_kind kind, bool geglu, enum dtype dtype, struct layer **out, struct error *err) {
    int64_t n = weight->shape[0], k = weight->shape[1];
    struct phases *p = calloc(1, sizeof(*p));
    float *sums = calloc((size_t)(n * k), 4 * sizeof(*sums));
    if (!p || !sums) {
        free(p);
        free(sums);
        return error_set(err, ERROR_NO_MEMORY, "no memory for a weight");
    }
    bool ok = true;
    for (int i = 0; ok && i < PHASES; i++) {
        const struct tensor part = tensor_4d(sums, DTYPE_F32, n, k, 2, 2);
        sum_weights(weight, i / 2, i % 2, sums);
        ok = dnnl_pack_2x2(&part, bias, 1 - i / 2, 1 - i % 2, dtype, &p->phase[i], err);
    }
    free(sums);
    ok = ok && panels_engine.pack(weight, bias, is_conv, kind, geglu, dtype, &p->whole, err);
    if (!ok) {
        phases_destroy(&p->layer);
        return false;
    }
    /* An engine's pack leaves `kind` to its caller. For p->whole the caller is this function. */
    p->whole->packed.kind = kind;
    p->layer.packed.bytes = p->whole->packed.bytes + sizeof(*p);
    for (int i = 0; i < PHASES; i++)
        p->layer.packed.bytes += p->phase[i]->packed.bytes;
    *out = &p->layer;
    return true;
}

/* y[2i + row][2j + column] = part[i][j] for images of [h][w] pixels of `pixel` bytes. */
static void interleave(const char *part, int64_t images, int64_t h, int64_t w, size_t pixel,
    int64_t row, int64_t column, char *y) {
#pragma omp parallel for
    for (int64_t line = 0; line < images * h; line++) {
        const char *from = part + (size_t)(line * w) * pixel;
        char *to = y + (size_t)((2 * line + row) * 2 * w + column) * pixel;
        for (int64_t j = 0; j < w; j++)
            memcpy(to + (size_t)(2 * j) * pixel, from + (size_t)j * pixel, pixel);
    }
}

static bool phases_conv2d(struct layer *layer, const struct conv2d_args *args, struct error *err) {
    struct phases *p = (struct phases *)layer;
    const struct tensor *x = args->x, *y = args->y;
    int64_t n = x->shape[0], h = x->shape[1], w = x->shape[2], c = y->shape[3];
    if (y->shape[1] != 2 * h || y->shape[2] != 2 * w || args->residual)
        return panels_engine.conv2d(p->whole, args, err);
    struct tensor part = tensor_4d(NULL, y->dtype, n, h, w, c);
    struct conv2d_args one = *args;
    one.y = &part;
    part.data = cpu_scratch_outer(tensor_bytes(&part), err);
    bool ok = part.data != NULL;
    for (int i = 0; ok && i < PHASES; i++) {
        ok = dnnl_engine.conv2d(p->phase[i], &one, err);
        if (ok && !cpu_plans())
            interleave(part.data, n, h, w, (size_t)c * dtype_size(y->dtype), i / 2, i % 2, y->data);
    }
    return ok;
}

static bool phases_unpack(struct layer *layer, float *weight, float *bias, struct error *err) {
    return panels_engine.unpack(((struct phases *)layer)->whole, weight, bias, err);
}

/* Does what sum_weights does, from [n][3][3][k] to [n][2][2][k]. */
static void sum_lines(const float *weight, int64_t n, int64_t k, int row, int column, float *out) {
    memset(out, 0, (size_t)(n * k) * 4 * sizeof(*out));
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++)
        for (int y = 0; y < 3; y++)
            for (int x = 0; x < 3; x++) {
                const float *from = weight + (i * 9 + 3 * y + x) * k;
                float *to = out + (i * 4 + 2 * ((y + 1 - row) / 2) + (x + 1 - column) / 2) * k;
                for (int64_t c = 0; c < k; c++)
                    to[c] += from[c];
            }
}

static bool phases_rewrite(
    struct layer *layer, const float *weight, const float *bias, struct error *err) {
    struct phases *p = (struct phases *)layer;
    const int64_t n = layer->packed.n, k = layer->packed.k;
    float *sums = malloc((size_t)(n * k) * 4 * sizeof(*sums));
    bool ok = sums || error_set(err, ERROR_NO_MEMORY, "no memory for a weight");
    for (int i = 0; ok && i < PHASES; i++) {
        sum_lines(weight, n, k, i / 2, i % 2, sums);
        ok = dnnl_engine.rewrite(p->phase[i], sums, bias, err);
    }
    free(sums);
    return ok && panels_engine.rewrite(p->whole, weight, bias, err);
}

/* Uses the panels engine's whole weight: it needs one pass, while four phases would have to be
 * summed. */
static bool phases_conv2d_dx(
    struct layer *layer, const struct conv2d_backward_args *args, struct error *err) {
    return panels_engine.conv2d_dx(((struct phases *)layer)->whole, args, err);
}

const struct layer_engine phases_engine = {
    .pack = phases_pack,
    .destroy = phases_destroy,
    .unpack = phases_unpack,
    .rewrite = phases_rewrite,
    .conv2d = phases_conv2d,
    .conv2d_dx = phases_conv2d_dx,
};
