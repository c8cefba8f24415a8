/* Who may use AMX tiles. */
#ifndef KERNELS_CPU_AMX_H
#define KERNELS_CPU_AMX_H

#include <stdbool.h>

/* Whether the processor has AMX for bf16, with the vectors that go with it, and the system lets
 * this process use it. Asks once; any thread. False on other machines. */
bool amx_permitted(void);

#endif
