/* The panels engine: weights in the panels of matmul.h. Thread-safe. */
#include "kernels/cpu/layers.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/scratch.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64

struct panels {
    struct layer layer;
    struct matmul_weight weight, turned;
    void *memory; /* owned: panels, bias and zeros */
};

static size_t align(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Returns the row of the weight that lane `lane` of a panel holds; -1 for padding. */
static int64_t source_row(const struct matmul_weight *weight, int width, int64_t panel, int lane) {
    if (!weight->geglu) {
        int64_t row = panel * width + lane;
        return row < weight->n ? row : -1;
    }
    int64_t half = weight->n / 2, row = panel / 2 * width + lane;
    return row < half ? panel % 2 * half + row : -1;
}

/* Fills one panel: out[tap][i][lane] = rows[lane][i][tap]. out: [taps][k][width]; rows:
 * [width][k][taps]. Elements have 4 bytes, in interleave_16 2 bytes. */
static void interleave_32(const uint32_t *rows, int64_t k, int64_t taps, int width, uint32_t *out) {
    for (int64_t tap = 0; tap < taps; tap++)
        for (int64_t i = 0; i < k; i++)
            for (int lane = 0; lane < width; lane++)
                *out++ = rows[(lane * k + i) * taps + tap];
}

static void interleave_16(const uint16_t *rows, int64_t k, int64_t taps, int width, uint16_t *out) {
    for (int64_t tap = 0; tap < taps; tap++)
        for (int64_t i = 0; i < k; i++)
            for (int lane = 0; lane < width; lane++)
                *out++ = rows[(lane * k + i) * taps + tap];
}

/* Lays out the weight and the bias in panels. `rows`: scratch of width * k * taps elements for each
 * thread. */
static void lay_out(const struct tensor *weight, const struct tensor *bias, int width,
    const struct matmul_weight *w, void *panels, float *bias_panels, char *rows) {
    enum dtype dtype = w->bf16 ? DTYPE_BF16 : DTYPE_F32;
    size_t element = dtype_size(dtype), source_element = dtype_size(weight->dtype);
    int64_t row_elements = w->k * w->taps;
    size_t panel_bytes = (size_t)(row_elements * width) * element;
#pragma omp parallel for schedule(dynamic)
    for (int64_t panel = 0; panel < w->panel_count; panel++) {
        char *own = rows + (size_t)omp_get_thread_num() * panel_bytes;
        for (int lane = 0; lane < width; lane++) {
            int64_t row = source_row(w, width, panel, lane);
            char *to = own + (size_t)(lane * row_elements) * element;
            if (row < 0) {
                memset(to, 0, (size_t)row_elements * element);
                continue;
            }
            convert_elements(to, dtype,
                (const char *)weight->data + (size_t)(row * row_elements) * source_element,
                weight->dtype, row_elements);
            if (bias)
                convert_elements(bias_panels + panel * width + lane, DTYPE_F32,
                    (const char *)bias->data + (size_t)row * dtype_size(bias->dtype), bias->dtype,
                    1);
        }
        char *out = (char *)panels + (size_t)panel * panel_bytes;
        if (w->bf16)
            interleave_16((const uint16_t *)own, w->k, w->taps, width, (uint16_t *)out);
        else
            interleave_32((const uint32_t *)own, w->k, w->taps, width, (uint32_t *)out);
    }
}

static bool panels_pack(const struct tensor *weight, const struct tensor *bias, bool is_conv,
    enum conv_kind kind, bool geglu, enum dtype dtype, struct layer **out, struct error *err) {
    const int width = cpu_level()->matmul->width;
    struct matmul_weight w = { .bf16 = dtype == DTYPE_BF16,
        .n = weight->shape[0],
        .k = weight->shape[1],
        .taps = is_conv && kind != CONV_1X1 ? 9 : 1,
        .geglu = geglu };
    w.panel_count = geglu ? (w.n / 2 + width - 1) / width * 2 : (w.n + width - 1) / width;
    size_t panel_bytes = (size_t)(w.taps * w.k * width) * (w.bf16 ? 2 : 4);
    size_t panels_bytes = align((size_t)w.panel_count * panel_bytes);
    size_t bias_bytes = align((size_t)(w.panel_count * width) * sizeof(float));
    size_t zeros_bytes = align((size_t)((w.n > w.k ? w.n : w.k) + width) * sizeof(float));
    size_t bytes = panels_bytes + bias_bytes + zeros_bytes;
    struct panels *p = calloc(1, sizeof(*p));
    char *memory = aligned_alloc(ALIGNMENT, bytes);
    char *rows = malloc((size_t)omp_get_max_threads() * panel_bytes);
    if (!p || !memory || !rows) {
        free(p);
        free(memory);
        free(rows);
        return error_set(err, ERROR_NO_MEMORY, "no memory for a weight of %zu bytes", bytes);
    }
    memset(memory + panels_bytes, 0, bias_bytes + zeros_bytes);
    w.panels = memory;
    w.bias = (const float *)(memory + panels_bytes);
    w.zeros = (const float *)(memory + panels_bytes + bias_bytes);
    lay_out(weight, bias, width, &w, memory, (float *)(memory + panels_bytes), rows);
    free(rows);
    p->weight = w;
    p->turned = matmul_turned(&p->weight, w.zeros, width);
    p->memory = memory;
    p->layer.packed.bytes = bytes + sizeof(*p);
    *out = &p->layer;
    return true;
}

static void panels_destroy(struct layer *layer) {
    struct panels *p = (struct panels *)layer;
    free(p->memory);
    free(p);
}

/* Copies the values of one lane of a panel [taps * k][width] to `row`. */
static void take_lane(
    const struct matmul_weight *w, int width, int64_t panel, int lane, float *row) {
    const int64_t inner = w->taps * w->k, first = panel * inner * width + lane;
    for (int64_t i = 0; i < inner; i++)
        row[i] = w->bf16 ? bf16_to_f32(((const uint16_t *)w->panels)[first + i * width])
                         : ((const float *)w->panels)[first + i * width];
}

static bool panels_unpack(struct layer *layer, float *weight, float *bias, struct error *err) {
    const struct matmul_weight *w = &((const struct panels *)layer)->weight;
    const int width = cpu_level()->matmul->width;
    (void)err;
#pragma omp parallel for
    for (int64_t panel = 0; panel < w->panel_count; panel++) {
        for (int lane = 0; lane < width; lane++) {
            const int64_t row = source_row(w, width, panel, lane);
            if (weight && row >= 0)
                take_lane(w, width, panel, lane, weight + row * w->taps * w->k);
            if (bias && row >= 0)
                bias[row] = w->bias[panel * width + lane];
        }
    }
    return true;
}

/* Writes one panel from the weight's rows; padding becomes zeros. */
static void put_panel(
    const struct matmul_weight *w, int width, int64_t panel, const float *weight, void *panels) {
    const int64_t inner = w->taps * w->k;
    const size_t element = w->bf16 ? sizeof(uint16_t) : sizeof(float);
    char *to = (char *)panels + (size_t)(panel * inner * width) * element;
    float line[64]; /* one value per lane */
    for (int64_t i = 0; i < inner; i++, to += (size_t)width * element) {
        for (int lane = 0; lane < width; lane++) {
            const int64_t row = source_row(w, width, panel, lane);
            line[lane] = row < 0 ? 0 : weight[row * inner + i];
        }
        convert_elements(to, w->bf16 ? DTYPE_BF16 : DTYPE_F32, line, DTYPE_F32, width);
    }
}

static bool panels_rewrite(
    struct layer *layer, const float *weight, const float *bias, struct error *err) {
    struct panels *p = (struct panels *)layer;
    const int width = cpu_level()->matmul->width;
    (void)err;
#pragma omp parallel for
    for (int64_t panel = 0; panel < p->weight.panel_count; panel++) {
        put_panel(&p->weight, width, panel, weight, p->memory);
        for (int lane = 0; lane < width; lane++) {
            const int64_t row = source_row(&p->weight, width, panel, lane);
            if (bias && row >= 0)
                ((float *)p->weight.bias)[panel * width + lane] = bias[row];
        }
    }
    return true;
}

/* Describes a product of tokens as a convolution of one image. */
static struct matmul_job linear_job(const struct matmul_weight *weight, const struct tensor *x) {
    const int64_t tokens = tensor_elements(x) / weight->k;
    return (struct matmul_job){ .weight = weight,
        .bf16 = x->dtype == DTYPE_BF16,
        .x = x->data,
        .rows = 1,
        .h = tokens,
        .w = 1,
        .h_out = tokens,
        .w_out = 1,
        .stride = 1 };
}

static bool panels_linear(struct layer *layer, const struct linear_args *args, struct error *err) {
    (void)err;
    if (cpu_plans())
        return true;
    struct panels *p = (struct panels *)layer;
    struct matmul_job job = linear_job(&p->weight, args->x);
    job.activation = args->activation;
    job.ungated = args->ungated;
    job.residual = args->residual ? args->residual->data : NULL;
    job.y = args->y->data;
    cpu_level()->matmul->direct(&job);
    return true;
}

bool panels_take_winograd(enum conv_kind kind, int64_t k) {
    return (kind == CONV_3X3 || kind == CONV_3X3_UP) && k % 16 == 0;
}

/* Computes on f32 copies of bf16 activations, for the rare convolutions that neither Winograd's
 * form nor oneDNN takes. */
static bool direct_bf16(struct matmul_job job, struct error *err) {
    int64_t x_count = job.rows * job.h * job.w * job.weight->k;
    int64_t y_count = job.rows * job.h_out * job.w_out * job.weight->n;
    size_t x_bytes = align((size_t)x_count * sizeof(float));
    char *scratch = cpu_scratch(x_bytes + (size_t)y_count * sizeof(float), err);
    if (!scratch || cpu_plans())
        return scratch != NULL;
    void *y = job.y;
    float *x = (float *)scratch;
    convert_elements(x, DTYPE_F32, job.x, DTYPE_BF16, x_count);
    job.x = x;
    job.y = scratch + x_bytes;
    if (job.residual) {
        convert_elements(job.y, DTYPE_F32, job.residual, DTYPE_BF16, y_count);
        job.residual = job.y;
    }
    cpu_level()->matmul->direct(&job);
    convert_elements(y, DTYPE_BF16, job.y, DTYPE_F32, y_count);
    return true;
}

/* Returns scratch bytes that are enough for the whole batch and for any part of it. A part may be
 * divided into tasks of other sizes, and may then need more bytes than the whole batch. */
static size_t winograd_scratch(
    const struct matmul *matmul, const struct matmul_job *job, int tile) {
    size_t most = 0;
    struct matmul_job part = *job;
    for (part.rows = 1; part.rows <= job->rows; part.rows++) {
        const size_t bytes = matmul->winograd_scratch(&part, tile);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* f32 weights use the smaller tile, whose error is nearly that of the direct sum. bf16 weights use
 * the larger tile, whose error is far below that of rounding the weights. */
static bool run_conv2d(const struct matmul_job *job, bool winograd, struct error *err) {
    const struct matmul *matmul = cpu_level()->matmul;
    int tile = job->weight->bf16 ? 4 : 2;
    if (winograd) {
        void *scratch = cpu_scratch(winograd_scratch(matmul, job, tile), err);
        if (scratch && !cpu_plans())
            matmul->winograd(job, tile, scratch);
        return scratch != NULL;
    }
    if (job->bf16)
        return direct_bf16(*job, err);
    if (!cpu_plans())
        matmul->direct(job);
    return true;
}

/* Describes a convolution from the image x to the image y. With a turned weight, this is the
 * gradient. */
static struct matmul_job conv2d_job(enum conv_kind kind, const struct matmul_weight *weight,
    const struct tensor *x, const struct tensor *y) {
    return (struct matmul_job){ .weight = weight,
        .bf16 = x->dtype == DTYPE_BF16,
        .x = x->data,
        .rows = x->shape[0],
        .h = x->shape[1],
        .w = x->shape[2],
        .h_out = y->shape[1],
        .w_out = y->shape[2],
        .stride = kind == CONV_3X3_DOWN || kind == CONV_3X3_DOWN_RIGHT ? 2 : 1,
        .padding = kind == CONV_1X1 || kind == CONV_3X3_DOWN_RIGHT ? 0 : 1,
        .upsample = kind == CONV_3X3_UP,
        .y = y->data };
}

static bool panels_conv2d(struct layer *layer, const struct conv2d_args *args, struct error *err) {
    struct panels *p = (struct panels *)layer;
    enum conv_kind kind = layer->packed.kind;
    struct matmul_job job = conv2d_job(kind, &p->weight, args->x, args->y);
    if (args->row_add) {
        job.row_add_bf16 = args->row_add->dtype == DTYPE_BF16;
        job.row_add = (const char *)args->row_add->data +
                      (size_t)args->row_add_offset * dtype_size(args->row_add->dtype);
        job.row_add_step = args->row_add->shape[1];
    }
    job.residual = args->residual ? args->residual->data : NULL;
    return run_conv2d(&job, panels_take_winograd(kind, p->weight.k), err);
}

static bool panels_linear_dx(
    struct layer *layer, const struct linear_backward_args *args, struct error *err) {
    struct matmul_job job = linear_job(&((struct panels *)layer)->turned, args->dy);
    job.residual = args->accumulate ? args->dx->data : NULL;
    job.y = args->dx->data;
    return run_conv2d(&job, false, err);
}

static bool panels_conv2d_dx(
    struct layer *layer, const struct conv2d_backward_args *args, struct error *err) {
    struct panels *p = (struct panels *)layer;
    enum conv_kind kind = layer->packed.kind;
    struct matmul_job job = conv2d_job(kind, &p->turned, args->dy, args->dx);
    job.residual = args->accumulate ? args->dx->data : NULL;
    return run_conv2d(&job, panels_take_winograd(kind, p->turned.k), err);
}

const struct layer_engine panels_engine = {
    .pack = panels_pack,
    .destroy = panels_destroy,
    .unpack = panels_unpack,
    .rewrite = panels_rewrite,
    .linear = panels_linear,
    .conv2d = panels_conv2d,
    .linear_dx = panels_linear_dx,
    .conv2d_dx = panels_conv2d_dx,
};
