/* Inside the CPU back end: the parts that kernels/cpu/cpu.c puts together.
 *
 */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "kernels/kernels.h"

/* Puts packing, linear and conv2d into the table. */
void layers_register(struct kernels *table);

#endif
