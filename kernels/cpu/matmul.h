/* Our own f32 arithmetic for linear layers and convolutions: one blocked matrix product and one
 * Winograd convolution, written once over vectors of 4, 8 or 16 floats and compiled for each
 * instruction set.
 *
 * Weights are stored in panels of `width` output channels, as f32 or bf16. bf16 is expanded in
 * cache-sized blocks just before it is multiplied, so that the resident weight is half the size.
 * Every output element is a sum over its inputs in one fixed order, whatever the other rows of the
 * batch are. Rows are therefore independent bit for bit.
 *
 * All functions use every OpenMP thread and allocate nothing.
 */
#ifndef KERNELS_CPU_MATMUL_H
#define KERNELS_CPU_MATMUL_H

#include "kernels/kernels.h"

/* A weight [n][taps][k] in panels: [panel][tap][k][width], the last panel padded with zeros. With
 * geglu, panels 2j and 2j + 1 hold the same columns of the value half and of the gate half. */
struct matmul_weight {
    const void *panels; /* f32 or bf16, 64-byte aligned */
    bool bf16;
    const float *bias;  /* [panel_count][width] */
    const float *zeros; /* [k]: read by taps outside the image */
    int64_t n, k;       /* n counts both halves with geglu */
    int64_t taps;       /* 1 or 9 */
    int64_t panel_count;
    bool geglu;
    /* For the gradient of x: the weight whose panels this one reads transposed (matmul_turned).
     * Else NULL. */
    const struct matmul_weight *turned;
};

/* Returns `weight` transposed, so that it maps its outputs to its inputs. n, k and panel_count are
 * those of the transposed product. The result reads the panels of `weight`, which is borrowed.
 * `zeros` serves as bias and as the pixel outside the image. It must be long enough for the inputs
 * and for the outputs of `weight`. */
static inline struct matmul_weight matmul_turned(
    const struct matmul_weight *weight, const float *zeros, int width) {
    return (struct matmul_weight){ .panels = weight->panels,
        .bf16 = weight->bf16,
        .bias = zeros,
        .zeros = zeros,
        .n = weight->k,
        .k = weight->n,
        .taps = weight->taps,
        .panel_count = (weight->k + width - 1) / width,
        .turned = weight };
}

/* The arguments of one call. A linear layer on m tokens is a 1x1 convolution of an image
 * [1][m][1][k]. `upsample`:
 * the image read is x enlarged by nearest neighbour to h_out x w_out.
 *
 * A call with a turned weight computes the gradient of the x of a forward call, with the forward
 * call's stride, padding and upsample. Here `x` is dy and `y` is dx. With upsampling, a pixel of dx
 * is the sum over the pixels to which the same pixel of x was copied.
 */
struct matmul_job {
    const struct matmul_weight *weight;
    bool bf16;     /* x, residual and y; `direct` takes f32 only */
    const void *x; /* [rows][h][w][k] */
    int64_t rows, h, w, h_out, w_out;
    int64_t stride, padding; /* zeros above and left; the others are implied */
    bool upsample;
    enum activation activation; /* before row_add and residual; NONE for winograd */
    bool ungated;               /* with geglu: y is [m][n], values, then gates */
    bool row_add_bf16;
    const void *row_add; /* [rows][row_add_step], the first n of each, or NULL */
    int64_t row_add_step;
    const void *residual; /* like y, may be y, or NULL */
    void *y;              /* [rows][h_out][w_out][n], or n/2 with geglu */
};

/* A call for the gradient of one layer's parameters. dy and x: `rows` images, or one image with all
 * tokens. The other members are those of matmul_job. */
struct matmul_gradient {
    bool bf16;      /* x and dy */
    const void *dy; /* [rows][h_out][w_out][n] */
    const void *x;  /* [rows][h][w][k] */
    int64_t rows, h, w, h_out, w_out;
    int64_t stride, padding;
    bool upsample;
    int64_t n, k, taps;
    float *dw; /* [n][taps][k], added to */
};

/* The functions of one instruction set. */
struct matmul {
    const char *name;
    int width; /* output channels per panel */

    /* y = activation(x * W + bias) + row_add + residual, directly. */
    void (*direct)(const struct matmul_job *job);

    /* Computes what `direct` does for 3x3 and stride 1, by Winograd's minimal filtering with output
     * tiles of `tile` = 2 or 4 pixels. k must be a multiple of 16. `scratch`: winograd_scratch(job,
     * tile) bytes, 64-byte aligned. */
    void (*winograd)(const struct matmul_job *job, int tile, void *scratch);
    size_t (*winograd_scratch)(const struct matmul_job *job, int tile);

    void (*gradient)(const struct matmul_gradient *job);
    /* sums[rows][n] = dy summed over the pixels of each row. */
    void (*gradient_sums)(const struct matmul_gradient *job, float *sums);

    /* y[i][j] = h[i][j] * gelu(h[i][n/2 + j]) + residual; h: [rows][n], y and residual (or NULL):
     * [rows][n/2], all of `dtype`, f32 or bf16. */
    void (*geglu)(
        const void *h, int64_t rows, int64_t n, enum dtype dtype, const void *residual, void *y);
};

#endif
