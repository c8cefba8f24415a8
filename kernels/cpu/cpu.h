/* Inside the CPU back end: the parts that kernels/cpu/cpu.c puts together.
 *
 */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "kernels/kernels.h"

/* Puts linear and conv2d (oneDNN) into the table. */
void dnnl_register(struct kernels *table);

#endif
