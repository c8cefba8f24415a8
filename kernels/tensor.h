/* A dense, row-major block of numbers with a shape.
 *
 * Activations are channels-last everywhere: an image is [n][h][w][c], and the same memory is the
 * token matrix [n][h*w][c] of a transformer block, so no transpose is needed between them.
 */
#ifndef KERNELS_TENSOR_H
#define KERNELS_TENSOR_H

#include "base/limits.h"
#include "kernels/dtype.h"

#include <stdbool.h>

enum device_kind { DEVICE_CPU, DEVICE_CUDA };

/* `data` is borrowed: an arena, a weight file or the caller owns it. */
struct tensor {
    void *data;
    enum dtype dtype;
    enum device_kind device;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
};

/* The number of elements and of bytes of the whole tensor. Shapes come from validated sources:
 * overflow is not checked. */
int64_t tensor_elements(const struct tensor *t);
size_t tensor_bytes(const struct tensor *t);

/* Describe memory that the caller owns as a tensor, with device DEVICE_CPU. */
struct tensor tensor_1d(void *data, enum dtype dtype, int64_t a);
struct tensor tensor_2d(void *data, enum dtype dtype, int64_t a, int64_t b);
struct tensor tensor_3d(void *data, enum dtype dtype, int64_t a, int64_t b, int64_t c);
struct tensor tensor_4d(void *data, enum dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d);

/* The same memory viewed as [a][b] (or [a][b][c]). The number of elements must stay the same. */
struct tensor tensor_view_2d(const struct tensor *t, int64_t a, int64_t b);
struct tensor tensor_view_3d(const struct tensor *t, int64_t a, int64_t b, int64_t c);
/* Rows [first, first + count) of the outermost dimension. */
struct tensor tensor_rows(const struct tensor *t, int64_t first, int64_t count);

bool tensor_same_shape(const struct tensor *a, const struct tensor *b);
/* Writes "bf16 [2][64][64][320]" and returns `text`. */
const char *tensor_describe(const struct tensor *t, char *text, size_t size);

#endif
