/* For tests that run once for each level of CPU instructions. */
#ifndef TESTS_KERNELS_CPU_LEVEL_H
#define TESTS_KERNELS_CPU_LEVEL_H

#include "kernels/cpu/level.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns true, after saying so, if LATENTD_CPU asks for a level that this processor does not
 * have. */
static inline bool level_is_missing(void) {
    const char *wish = getenv("LATENTD_CPU");
    if (!wish || strcmp(wish, cpu_level()->name) == 0)
        return false;
    printf("this processor has no %s\n", wish);
    return true;
}

#endif
