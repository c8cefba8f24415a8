/* Attention in bf16 on AMX tiles, and whether this process may use them. */
#ifndef KERNELS_CPU_ATTENTION_AMX_H
#define KERNELS_CPU_ATTENTION_AMX_H

#include "kernels/kernels.h"

/* Whether the processor has AMX for bf16 and the AVX-512 instructions used beside it, and the
 * system allows this process to use AMX. Asks the system once; any thread. False on other
 * machines. */
bool amx_permitted(void);

/* Whether the entries below can compute this call: bf16, with a positive scale that is not
 * extreme. */
bool attention_tiles_takes(const struct attention_args *args);

/* The table's entry for attention (kernels/kernels.h). attention_tiles requires AMX to be
 * permitted. attention_tiles_twin runs everywhere with the same bits, for tests. */
bool attention_tiles(const struct attention_args *args, struct error *err);
bool attention_tiles_twin(const struct attention_args *args, struct error *err);

#endif
