/* The six operations on AMX tiles: 8 registers of up to 16 rows of 64 bytes.
 *
 * They are the processor's instructions or, with TILE_TWIN defined, plain C with the same bits
 * (tile_twin.h), so that code on tiles passes every check on machines without them. Tile numbers
 * are compile-time constants. A thread configures its tiles before its work and releases them
 * after. Before the first use, the process asks for permission (amx.h). In memory a tile's rows lie
 * 64 bytes apart.
 *
 * We use our own assembly, because GCC 12's intrinsics do not tell the compiler that they read and
 * write memory. The compiler could therefore move vector stores past them.
 */
#ifndef KERNELS_CPU_ATTENTION_TILE_H
#define KERNELS_CPU_ATTENTION_TILE_H

#include <stdint.h>

#define TILES 8
#define TILE_ROWS 16
#define TILE_ROW_BYTES 64

/* The layout that ldtilecfg reads. */
struct tile_config {
    uint8_t palette; /* 1 */
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64)));
_Static_assert(sizeof(struct tile_config) == 64, "ldtilecfg reads 64 bytes");

#if defined(TILE_TWIN)

#include "kernels/cpu/attention/tile_twin.h"

#define tile_configure twin_configure
#define tile_release twin_release
#define tile_zero twin_zero
#define tile_load twin_load
#define tile_store twin_store
#define tile_multiply twin_multiply

#else

/* Configures the tiles and sets all of them to zero. */
static inline void tile_configure(const struct tile_config *config) {
    __asm__ volatile("ldtilecfg %0" : : "m"(*config) : "memory");
}

static inline void tile_release(void) {
    __asm__ volatile("tilerelease" : : : "memory");
}

#define tile_zero(t) __asm__ volatile("tilezero %%tmm" #t : :)
#define tile_load(t, from)                                                                         \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t                                               \
                     :                                                                             \
                     : "r"(from), "r"((int64_t)TILE_ROW_BYTES)                                     \
                     : "memory")
#define tile_store(t, to)                                                                          \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)"                                           \
                     :                                                                             \
                     : "r"(to), "r"((int64_t)TILE_ROW_BYTES)                                       \
                     : "memory")
/* c f32 [rows][columns] += a [rows][pairs] . b [pairs][columns]. The elements of a and b are pairs
 * of bf16; the product of two pairs is the sum of the products of their members. */
#define tile_multiply(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

#endif

#endif
