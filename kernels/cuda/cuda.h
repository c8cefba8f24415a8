/* Inside kernels/cuda/: who fills the table. Each file of entries has one such function, which puts
 * its entries in. */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#include "kernels/cuda/device.h"

#ifdef __cplusplus
extern "C" {
#endif

void cuda_register_matmul(struct kernels *table); /* linear, conv2d and their packing */
void cuda_register_attention(struct kernels *table);
void cuda_register_embedding(struct kernels *table); /* embedding, timestep_embedding */
void cuda_register_group_norm(struct kernels *table);
void cuda_register_layer_norm(struct kernels *table);
void cuda_register_noise(struct kernels *table);
void cuda_register_pointwise(struct kernels *table); /* add, concat, combine, convert */

#ifdef __cplusplus
}
#endif

#endif
