#include "kernels/cpu/attention/amx.h"

#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023 /* asm/prctl.h, Linux 5.16 and later */
#define XFEATURE_TILE_CONFIG 17
#define XFEATURE_TILE_DATA 18

static bool permitted;

/* The register states that the system saves when it switches threads. */
static uint64_t saved_state(void) {
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool processor_has_amx(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) ||
        !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return false;
    const unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
    const uint64_t tiles = 1u << XFEATURE_TILE_CONFIG | 1u << XFEATURE_TILE_DATA;
    return (d & amx_bf16) && (d & amx_tile) && (saved_state() & tiles) == tiles &&
           __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("fma");
}

static void ask(void) {
    if (!processor_has_amx())
        return;
    /* Permits AMX to all threads of the process. The state that the system saves for signals then
     * includes the tiles' 8 KiB. */
    permitted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
    if (!permitted)
        log_warning("the system refuses AMX (%s); going on without", strerror(errno));
}

bool amx_permitted(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask);
    return permitted;
}

#else

bool amx_permitted(void) {
    return false;
}

#endif

bool attention_tiles_takes(const struct attention_args *args) {
    return args->y->dtype == DTYPE_BF16 && args->scale >= 0x1p-64f && args->scale <= 0x1p64f;
}
