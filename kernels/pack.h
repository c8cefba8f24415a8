/* Weights in a device's own form: the table's packing, with checked arguments. */
#ifndef KERNELS_PACK_H
#define KERNELS_PACK_H

#include "kernels/kernels.h"

/* Pack a weight with its bias (or NULL). `name` is the tensor's name, for error messages. The
 * caller destroys *out. */
bool linear_pack(const struct kernels *kernels, const char *name, const struct tensor *weight,
    const struct tensor *bias, bool geglu, enum dtype dtype, struct packed **out, struct error *err)
    __attribute__((warn_unused_result));
bool conv2d_pack(const struct kernels *kernels, const char *name, const struct tensor *weight,
    const struct tensor *bias, enum conv_kind kind, enum dtype dtype, struct packed **out,
    struct error *err) __attribute__((warn_unused_result));
/* Reads a packed weight back into host memory, as kernels.unpack describes. */
bool packed_unpack(const struct packed *packed, float *weight, float *bias, struct error *err)
    __attribute__((warn_unused_result));
/* Replaces a weight's numbers by others in the table's memory, as kernels.rewrite describes. No
 * computation may be using the weight. */
bool packed_rewrite(struct packed *packed, const float *weight, const float *bias,
    struct error *err) __attribute__((warn_unused_result));
/* NULL is fine. */
void packed_destroy(struct packed *packed);

#endif
