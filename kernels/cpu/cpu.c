#include "kernels/cpu/cpu.h"
#include "kernels/cpu/scratch.h"

#include "kernels/cpu/amx.h"
#include "kernels/cpu/attention_pairs.h"
#include "kernels/cpu/level.h"

#include <pthread.h>

/* bf16 goes to the level's own attention, if that takes it. */
static bool cpu_attention(const struct attention_args *args, struct error *err) {
    const struct cpu_level *level = cpu_level();
    switch (level->attention) {
    case ATTENTION_F32:
        break;
#if defined(__x86_64__)
    case ATTENTION_PAIRS:
        if (attention_pairs_takes(args))
            return attention_pairs(args, err);
        break;
    case ATTENTION_TILES:
        if (attention_tiles_takes(args))
            return attention_tiles(args, err);
        break;
#else
    case ATTENTION_PAIRS:
    case ATTENTION_TILES:
        break;
#endif
    case ATTENTION_PAIRS_TWIN:
        if (attention_pairs_takes(args))
            return attention_pairs_twin(args, err);
        break;
    case ATTENTION_TILES_TWIN:
        if (attention_tiles_takes(args))
            return attention_tiles_twin(args, err);
        break;
    }
    return level->simd->attention(args, err);
}

static struct kernels table;

static void fill_table(void) {
    const struct simd *simd = cpu_level()->simd;
    table = *kernels_reference();
    table.name = "cpu";
    table.weight_dtypes = 1u << DTYPE_F32 | 1u << DTYPE_BF16;
    table.default_dtype = DTYPE_BF16;
    table.batch_images = 4;
    table.batch_px = 2 * 512 * 512;
#define ENTRY(name) table.name = simd->name;
    SIMD_OPERATIONS(ENTRY)
#undef ENTRY
    table.attention = cpu_attention;
    layers_register(&table);
    table.lend = cpu_lend;
    table.scratch_operations = 1u << OPERATION_linear | 1u << OPERATION_conv2d |
                               1u << OPERATION_group_norm | 1u << OPERATION_attention;
}

const struct kernels *kernels_cpu(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_table);
    return &table;
}
