/* Attention in bf16 on AMX tiles, and who may use them. */
#ifndef KERNELS_CPU_AMX_H
#define KERNELS_CPU_AMX_H

#include "kernels/kernels.h"

/* Whether the processor has AMX for bf16, with the vectors that go with it, and the system lets
 * this process use it. Asks once; any thread. False on other machines. */
bool amx_permitted(void);

/* Whether the entries below compute this: bf16, with a scale above 0 that is no extreme. */
bool attention_tiles_takes(const struct attention_args *args);

/* As the table's entry (kernels/kernels.h). The first only where AMX is permitted; the second
 * everywhere, with the same bits, for tests. */
bool attention_tiles(const struct attention_args *args, struct error *err);
bool attention_tiles_twin(const struct attention_args *args, struct error *err);

#endif
