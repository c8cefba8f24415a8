/* Weights in the form that a device likes best: the table's packing, checked. */
#ifndef KERNELS_PACK_H
#define KERNELS_PACK_H

#include "kernels/kernels.h"

/* `name` is the tensor's name, for the error. */
bool linear_pack(const struct kernels *kernels, const char *name, const struct tensor *weight,
    const struct tensor *bias, bool geglu, enum dtype dtype, struct packed **out, struct error *err)
    __attribute__((warn_unused_result));
bool conv2d_pack(const struct kernels *kernels, const char *name, const struct tensor *weight,
    const struct tensor *bias, enum conv_kind kind, enum dtype dtype, struct packed **out,
    struct error *err) __attribute__((warn_unused_result));
/* What was packed, as struct kernels says: host memory. */
bool packed_unpack(const struct packed *packed, float *weight, float *bias, struct error *err)
    __attribute__((warn_unused_result));
/* Other numbers in its place, as struct kernels says: the table's memory. Nothing may be computing
 * with it. */
bool packed_rewrite(struct packed *packed, const float *weight, const float *bias,
    struct error *err) __attribute__((warn_unused_result));
/* NULL is fine. */
void packed_destroy(struct packed *packed);

#endif
