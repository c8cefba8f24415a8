/* The f32 matrix products of kernels/cpu against a plain sum in double, for every instruction
 * set that this processor runs: all shapes of convolution, sizes that are not multiples of a
 * block, f32 and bf16 weights, and the gradients of their inputs. A row's bits must not depend
 * on its batch. */
#include "kernels/cpu/level.h"
#include "tests/check.h"
#include "tests/kernels/narrow.h"

#include <stdlib.h>

static uint64_t seed = 1;

static float uniform(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(int64_t)(seed >> 33) / (float)(1u << 30) - 1.0f;
}

static float *random_floats(int64_t count) {
    float *p = aligned_alloc(64, ((size_t)count * sizeof(float) + 63) / 64 * 64);
    for (int64_t i = 0; i < count; i++)
        p[i] = uniform();
    return p;
}

struct shape {
    const char *name;
    int64_t rows, h, w, h_out, w_out, stride, padding, taps, k, n;
    bool upsample, geglu;
};

/* w: [n][taps][k] in plain order, not packed. */
struct problem {
    struct shape shape;
    struct matmul_weight weight;
    struct matmul_job job;
    float *plain, *x, *bias, *row_add, *residual, *y;
    void *panels;
    float *bias_panels, *zeros;
    uint16_t *x_bf16, *y_bf16; /* the same in bf16; y: residual and result */
};

static void problem_init(struct problem *p, const struct shape *s, bool bf16, int width) {
    *p = (struct problem){ .shape = *s };
    int64_t half = s->geglu ? s->n / 2 : s->n, pixels = s->rows * s->h_out * s->w_out;
    int64_t count = (half + width - 1) / width * (s->geglu ? 2 : 1), row = s->taps * s->k;
    p->plain = random_floats(s->n * row);
    p->bias = random_floats(s->n);
    p->x = random_floats(s->rows * s->h * s->w * s->k);
    p->row_add = random_floats(s->rows * s->n);
    p->residual = random_floats(pixels * half);
    p->y = random_floats(pixels * half);
    p->panels = random_floats(count * row * width);
    p->bias_panels = random_floats(count * width);
    p->zeros = calloc((size_t)s->k, sizeof(float));
    for (int64_t i = 0; i < s->n * row; i++)
        p->plain[i] = bf16 ? bf16_to_f32(f32_to_bf16(p->plain[i])) : p->plain[i];
    /* Every number fits in bf16, so f32 and bf16 activations have the same expected result. */
    int64_t x_count = s->rows * s->h * s->w * s->k;
    p->x_bf16 = malloc((size_t)x_count * sizeof(uint16_t));
    p->y_bf16 = malloc((size_t)(pixels * half) * sizeof(uint16_t));
    convert_elements(p->x_bf16, DTYPE_BF16, p->x, DTYPE_F32, x_count);
    convert_elements(p->x, DTYPE_F32, p->x_bf16, DTYPE_BF16, x_count);
    convert_elements(p->y_bf16, DTYPE_BF16, p->residual, DTYPE_F32, pixels * half);
    convert_elements(p->residual, DTYPE_F32, p->y_bf16, DTYPE_BF16, pixels * half);
    for (int64_t panel = 0; panel < count; panel++) {
        for (int64_t i = 0; i < row * width; i++) {
            int64_t lane = i % width;
            int64_t column = (s->geglu ? panel / 2 : panel) * width + lane;
            int64_t j = column + (s->geglu ? panel % 2 * half : 0);
            float value = column < half ? p->plain[j * row + i / width] : 0;
            if (bf16)
                ((uint16_t *)p->panels)[panel * row * width + i] = f32_to_bf16(value);
            else
                ((float *)p->panels)[panel * row * width + i] = value;
            p->bias_panels[panel * width + lane] = column < half ? p->bias[j] : 0;
        }
    }
    p->weight = (struct matmul_weight){ .panels = p->panels,
        .bf16 = bf16,
        .bias = p->bias_panels,
        .zeros = p->zeros,
        .n = s->n,
        .k = s->k,
        .taps = s->taps,
        .panel_count = count,
        .geglu = s->geglu };
    p->job = (struct matmul_job){ .weight = &p->weight,
        .x = p->x,
        .rows = s->rows,
        .h = s->h,
        .w = s->w,
        .h_out = s->h_out,
        .w_out = s->w_out,
        .stride = s->stride,
        .padding = s->padding,
        .upsample = s->upsample,
        .row_add = s->geglu ? NULL : p->row_add,
        .row_add_step = s->n,
        .residual = p->residual,
        .y = p->y };
}

static void problem_finish(struct problem *p) {
    free(p->plain);
    free(p->x);
    free(p->bias);
    free(p->row_add);
    free(p->residual);
    free(p->y);
    free(p->panels);
    free(p->bias_panels);
    free(p->zeros);
    free(p->x_bf16);
    free(p->y_bf16);
}

static double plain_sum(const struct problem *p, int64_t row, int64_t oy, int64_t ox, int64_t j) {
    const struct shape *s = &p->shape;
    double sum = (double)p->bias[j];
    for (int64_t tap = 0; tap < s->taps; tap++) {
        int64_t y = oy * s->stride - s->padding + tap / 3;
        int64_t x = ox * s->stride - s->padding + tap % 3;
        if (y < 0 || x < 0 || y >= (s->upsample ? s->h_out : s->h) ||
            x >= (s->upsample ? s->w_out : s->w))
            continue;
        if (s->upsample) {
            y /= 2;
            x /= 2;
        }
        for (int64_t i = 0; i < s->k; i++)
            sum += (double)p->x[((row * s->h + y) * s->w + x) * s->k + i] *
                   (double)p->plain[(j * s->taps + tap) * s->k + i];
    }
    return sum;
}

/* |y - truth| / |truth| over everything. */
static double relative_error(const struct problem *p) {
    const struct shape *s = &p->shape;
    int64_t half = s->geglu ? s->n / 2 : s->n;
    double error = 0, norm = 0;
    for (int64_t i = 0; i < s->rows * s->h_out * s->w_out * half; i++) {
        int64_t pixel = i / half, j = i % half, row = pixel / (s->h_out * s->w_out);
        int64_t oy = pixel / s->w_out % s->h_out, ox = pixel % s->w_out;
        double truth = plain_sum(p, row, oy, ox, j);
        if (s->geglu) {
            double gate = plain_sum(p, row, oy, ox, half + j);
            truth *= 0.5 * gate * (1 + erf(gate / sqrt(2)));
        } else {
            truth += (double)p->row_add[row * s->n + j];
        }
        truth += (double)p->residual[i];
        error += (truth - (double)p->y[i]) * (truth - (double)p->y[i]);
        norm += truth * truth;
    }
    return sqrt(error / norm);
}

/* tile 0 is the direct product; otherwise Winograd's with this tile. */
static void run(const struct matmul *matmul, const struct matmul_job *job, int tile) {
    if (!tile) {
        matmul->direct(job);
        return;
    }
    size_t bytes = (matmul->winograd_scratch(job, tile) + 63) / 64 * 64;
    void *scratch = aligned_alloc(64, bytes);
    memset(scratch, 0xff, bytes); /* NaN exposes a read of unwritten memory */
    matmul->winograd(job, tile, scratch);
    free(scratch);
}

static void last_row_alone_is_the_same(struct problem *p, const struct matmul *matmul, int tile) {
    const struct shape *s = &p->shape;
    if (s->rows < 2)
        return;
    int64_t last = s->rows - 1, pixels = s->h_out * s->w_out;
    int64_t out = s->geglu ? s->n / 2 : s->n;
    float *alone = random_floats(pixels * out);
    struct matmul_job job = p->job;
    job.x = p->x + last * s->h * s->w * s->k;
    job.rows = 1;
    job.row_add = job.row_add ? p->row_add + last * s->n : NULL;
    job.residual = p->residual + last * pixels * out;
    job.y = alone;
    run(matmul, &job, tile);
    CHECK(memcmp(alone, p->y + last * pixels * out, (size_t)(pixels * out) * sizeof(float)) == 0,
        "%s, tile %d, %s: the last row alone has other bits", s->name, tile, matmul->name);
    free(alone);
}

/* Checks the product of bf16 activations, which is added to a residual in place. */
static void bf16_activations_match(struct problem *p, const struct matmul *matmul, int tile) {
    struct matmul_job job = p->job;
    job.bf16 = true;
    job.x = p->x_bf16;
    job.residual = job.y = p->y_bf16;
    run(matmul, &job, tile);
    int64_t count = p->shape.rows * p->shape.h_out * p->shape.w_out * p->shape.n;
    convert_elements(p->y, DTYPE_F32, p->y_bf16, DTYPE_BF16, count);
    double error = relative_error(p);
    CHECK(error <= 4e-3, "%s, tile %d, %s, bf16 activations: error %.2e", p->shape.name, tile,
        matmul->name, error);
}

/* ---- the gradient of x, from the same panels ---- */

/* Adds to dx: each output sends its gradient back to the inputs it read. */
static void plain_gradient(const struct shape *s, const float *w, const float *dy, double *dx) {
    for (int64_t i = 0; i < s->rows * s->h_out * s->w_out; i++) {
        int64_t row = i / (s->h_out * s->w_out);
        int64_t oy = i / s->w_out % s->h_out, ox = i % s->w_out;
        for (int64_t tap = 0; tap < s->taps; tap++) {
            int64_t y = oy * s->stride - s->padding + tap / 3;
            int64_t x = ox * s->stride - s->padding + tap % 3;
            if (y < 0 || x < 0 || y >= (s->upsample ? s->h_out : s->h) ||
                x >= (s->upsample ? s->w_out : s->w))
                continue;
            double *to =
                dx + ((row * s->h + y / (1 + s->upsample)) * s->w + x / (1 + s->upsample)) * s->k;
            for (int64_t j = 0; j < s->n; j++)
                for (int64_t c = 0; c < s->k; c++)
                    to[c] += (double)dy[i * s->n + j] * (double)w[(j * s->taps + tap) * s->k + c];
        }
    }
}

static double distance(const double *truth, const float *y, int64_t count) {
    double error = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        error += (truth[i] - (double)y[i]) * (truth[i] - (double)y[i]);
        norm += truth[i] * truth[i];
    }
    return sqrt(error / norm);
}

/* Checks dx of all rows, added to the old contents; then of the last row alone; then in bf16. */
static double check_gradient(const struct problem *p, const struct matmul *matmul, int tile) {
    const struct shape *s = &p->shape;
    const int64_t dy_row = s->h_out * s->w_out * s->n, dx_row = s->h * s->w * s->k;
    const int64_t count = s->rows * dx_row, dy_count = s->rows * dy_row, last = s->rows - 1;
    float *zeros = calloc((size_t)(s->n + s->k + matmul->width), sizeof(float));
    float *dy = random_floats(dy_count), *dx = random_floats(count), *alone = random_floats(dx_row);
    uint16_t *dy_bf16 = malloc((size_t)dy_count * 2), *dx_bf16 = malloc((size_t)count * 2);
    double *truth = calloc((size_t)count, sizeof(double));
    convert_elements(dy_bf16, DTYPE_BF16, dy, DTYPE_F32, dy_count);
    convert_elements(dy, DTYPE_F32, dy_bf16, DTYPE_BF16, dy_count);
    convert_elements(dx_bf16, DTYPE_BF16, dx, DTYPE_F32, count);
    convert_elements(dx, DTYPE_F32, dx_bf16, DTYPE_BF16, count);
    memcpy(alone, dx + last * dx_row, (size_t)dx_row * sizeof(float));
    for (int64_t i = 0; i < count; i++)
        truth[i] = (double)dx[i];
    plain_gradient(s, p->plain, dy, truth);
    const struct matmul_weight turned = matmul_turned(&p->weight, zeros, matmul->width);
    struct matmul_job job = { .weight = &turned,
        .x = dy,
        .rows = s->rows,
        .h = s->h_out,
        .w = s->w_out,
        .h_out = s->h,
        .w_out = s->w,
        .stride = s->stride,
        .padding = s->padding,
        .upsample = s->upsample,
        .residual = dx,
        .y = dx };
    run(matmul, &job, tile);
    const double error = distance(truth, dx, count);
    job.x = dy + last * dy_row;
    job.rows = 1;
    job.residual = job.y = alone;
    run(matmul, &job, tile);
    CHECK(memcmp(alone, dx + last * dx_row, (size_t)dx_row * sizeof(float)) == 0,
        "gradient of %s, tile %d, %s: the last row alone has other bits", s->name, tile,
        matmul->name);
    if (tile) {
        job.bf16 = true;
        job.rows = s->rows;
        job.x = dy_bf16;
        job.residual = job.y = dx_bf16;
        run(matmul, &job, tile);
        convert_elements(dx, DTYPE_F32, dx_bf16, DTYPE_BF16, count);
        const double rounded = distance(truth, dx, count);
        CHECK(rounded <= 4e-3, "gradient of %s, tile %d, %s, bf16: error %.2e", s->name, tile,
            matmul->name, rounded);
    }
    free(zeros);
    free(dy);
    free(dx);
    free(alone);
    free(dy_bf16);
    free(dx_bf16);
    free(truth);
    return error;
}

static const struct shape shapes[] = {
    { "linear 77", 1, 77, 1, 77, 1, 1, 0, 1, 70, 100, false, false },
    { "linear rows of 5", 4, 5, 1, 5, 1, 1, 0, 1, 700, 33, false, false },
    { "linear rows of 1", 3, 1, 1, 1, 1, 1, 0, 1, 128, 64, false, false },
    { "linear 400", 1, 400, 1, 400, 1, 1, 0, 1, 33, 130, false, false },
    { "geglu", 2, 50, 1, 50, 1, 1, 0, 1, 40, 152, false, true },
    { "1x1", 2, 5, 7, 5, 7, 1, 0, 1, 20, 48, false, false },
    { "3x3", 2, 9, 10, 9, 10, 1, 1, 9, 32, 24, false, false },
    { "3x3 over blocks", 3, 16, 20, 16, 20, 1, 1, 9, 48, 84, false, false },
    { "3x3 one pixel", 1, 1, 1, 1, 1, 1, 1, 9, 16, 3, false, false },
    { "3x3 many tiles", 2, 25, 70, 25, 70, 1, 1, 9, 16, 40, false, false },
    { "3x3 deep", 1, 4, 4, 4, 4, 1, 1, 9, 704, 20, false, false },
    { "3x3 from 4 channels", 2, 13, 17, 13, 17, 1, 1, 9, 4, 40, false, false },
    { "3x3 from 18 channels", 1, 5, 6, 5, 6, 1, 1, 9, 18, 5, false, false },
    { "down", 2, 9, 8, 5, 4, 2, 1, 9, 32, 17, false, false },
    { "down right", 2, 8, 9, 4, 4, 2, 0, 9, 32, 17, false, false },
    { "up", 2, 5, 6, 10, 12, 1, 1, 9, 32, 20, true, false },
    { "up odd", 2, 5, 6, 9, 11, 1, 1, 9, 32, 20, true, false },
    { "up to 48 channels", 2, 5, 6, 10, 12, 1, 1, 9, 35, 48, true, false },
    { "up odd to 48 channels", 2, 5, 6, 9, 11, 1, 1, 9, 32, 48, true, false },
    { "down to 700 channels", 2, 9, 8, 5, 4, 2, 1, 9, 64, 700, false, false },
    { "down right to 64 channels", 1, 7, 6, 3, 3, 2, 0, 9, 33, 64, false, false },
    { "3x3 to 352 channels", 1, 4, 4, 4, 4, 1, 1, 9, 70, 352, false, false },
};

/* By tile. */
static const double allowed[5] = { [0] = 5e-7, [2] = 1e-6, [4] = 4e-6 };

int main(void) {
    double worst[5] = { 0 }, worst_gradient[5] = { 0 };
    const struct matmul *seen = NULL;
    for (const struct cpu_level *const *level = cpu_levels(); *level; level++) {
        const struct matmul *const matmul = (*level)->matmul;
        if (matmul == seen)
            continue;
        seen = matmul;
        for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
            const struct shape *s = &shapes[i];
            for (int tile = 0; tile <= 4; tile += 2) {
                if (tile && (s->taps == 1 || s->stride > 1))
                    continue;
                for (int bf16 = 0; bf16 < 2; bf16++) {
                    struct problem p;
                    problem_init(&p, s, bf16, matmul->width);
                    if (!tile || s->n % 16 == 0) {
                        const double error = check_gradient(&p, matmul, tile);
                        CHECK(error <= allowed[tile], "gradient of %s, tile %d, %s%s: error %.2e",
                            s->name, tile, matmul->name, bf16 ? ", bf16" : "", error);
                        if (error > worst_gradient[tile])
                            worst_gradient[tile] = error;
                    }
                    if (tile && s->k % 16) {
                        problem_finish(&p);
                        continue;
                    }
                    run(matmul, &p.job, tile);
                    double error = relative_error(&p);
                    CHECK(error <= allowed[tile], "%s, tile %d, %s%s: error %.2e", s->name, tile,
                        matmul->name, bf16 ? ", bf16" : "", error);
                    worst[tile] = error > worst[tile] ? error : worst[tile];
                    last_row_alone_is_the_same(&p, matmul, tile);
                    if (tile)
                        bf16_activations_match(&p, matmul, tile);
                    problem_finish(&p);
                }
            }
        }
        printf("%s: worst relative error so far: direct %.1e, F(2,3) %.1e, F(4,3) %.1e; of "
               "gradients %.1e, %.1e, %.1e\n",
            matmul->name, worst[0], worst[2], worst[4], worst_gradient[0], worst_gradient[2],
            worst_gradient[4]);
    }
    return check_done();
}
