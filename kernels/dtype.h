/* The types of a tensor's elements, and conversions between the floating-point ones. */
#ifndef KERNELS_DTYPE_H
#define KERNELS_DTYPE_H

#include <stddef.h>
#include <stdint.h>

/* f64 is used only for sums. */
enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I32, DTYPE_I64, DTYPE_F64 };

/* Bytes of one element. */
size_t dtype_size(enum dtype dtype);
/* "f32", "f16", "bf16", "i32", "i64", "f64". */
const char *dtype_name(enum dtype dtype);

float f16_to_f32(uint16_t h);
float bf16_to_f32(uint16_t h);

/* Converts n host elements between f32, f16 and bf16, rounding to nearest even; NaN stays NaN.
 * Source and destination must not overlap, unless both the memory and the dtype are the same. */
void convert_elements(
    void *dst, enum dtype dst_dtype, const void *src, enum dtype src_dtype, int64_t n);

#endif
