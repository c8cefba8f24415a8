#include "kernels/cpu/cpu.h"

#include "base/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static int chosen = 2;

static void choose(void) {
    static const char *const names[] = { "avx512", "avx2", "portable" };
    int best = 2;
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    best = avx512 ? 0 : avx2 ? 1 : 2;
#endif
    chosen = best;
    const char *wish = getenv("LATENTD_CPU");
    if (!wish || !*wish)
        return;
    for (int i = best; i < 3; i++) {
        if (strcmp(wish, names[i]) == 0) {
            chosen = i;
            return;
        }
    }
    log_warning("LATENTD_CPU: %.32s is not one of portable, avx2 and avx512 that this processor "
                "has; using %s",
        wish, names[best]);
}

int cpu_isa(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose);
    return chosen;
}
