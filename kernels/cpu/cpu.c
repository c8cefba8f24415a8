#include "kernels/cpu/cpu.h"
#include "kernels/cpu/scratch.h"

#include "kernels/cpu/layers.h"

#include <pthread.h>

/* Uses the level's own bf16 attention if the level has one that takes this call. */
static bool cpu_attention(const struct attention_args *args, struct error *err) {
    const struct cpu_level *level = cpu_level();
    const struct own_attention *own = level->attention;
    return own && own->takes(args) ? own->compute(args, err) : level->simd->attention(args, err);
}

static bool cpu_geglu(const struct geglu_args *args, struct error *err) {
    const struct tensor *h = args->h;
    const int64_t n = h->shape[h->rank - 1];
    (void)err;
    cpu_level()->matmul->geglu(h->data, tensor_elements(h) / n, n, h->dtype,
        args->residual ? args->residual->data : NULL, args->y->data);
    return true;
}

/* One example of each kind of layer that may have an implementation of its own. */
#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)
static const struct {
    const char *name;
    bool is_conv;
    enum conv_kind kind;
    int64_t c_out;
} layers[] = {
    { "linear", false, CONV_1X1, 320 },
    { "conv 1x1 and stride 2", true, CONV_3X3_DOWN, 320 },
    { "conv 3x3", true, CONV_3X3, 320 },
    { "conv 3x3 to " TEXT_OF(LEVEL_DEEP) " channels and more", true, CONV_3X3, LEVEL_DEEP },
    { "upsampling", true, CONV_3X3_UP, 320 },
};

#define LAYERS (sizeof(layers) / sizeof(layers[0]))

/* One list for f32 and one for bf16 activations; each ends with an empty entry. */
static struct implementation implementations[2][LAYERS + 3];

static void list_implementations(enum dtype activation_dtype, struct implementation *out) {
    const struct cpu_level *level = cpu_level();
    const bool f32 = activation_dtype == DTYPE_F32;
    *out++ = (struct implementation){ "level", level->name };
    for (size_t i = 0; i < LAYERS; i++)
        *out++ = (struct implementation){ layers[i].name,
            layer_code_name(layers_code(
                layers[i].is_conv, layers[i].kind, layers[i].c_out, 320, activation_dtype)) };
    *out++ = (struct implementation){ "attention",
        f32 || !level->attention ? "f32" : level->attention->name };
}

static const struct implementation *cpu_implementations(enum dtype weight_dtype) {
    return implementations[kernels_cpu()->activation_dtype(weight_dtype) == DTYPE_BF16];
}

static struct kernels table;

static void fill_table(void) {
    const struct simd *simd = cpu_level()->simd;
    table = *kernels_reference();
    table.name = "cpu";
    table.weight_dtypes = 1u << DTYPE_F32 | 1u << DTYPE_BF16;
    table.default_dtype = DTYPE_BF16;
    table.batch_images = 4;
    table.batch_px = 512 * 512;
    table.geglu_tokens = 128;
    table.widens = false;
#define ENTRY(name) table.name = simd->name;
    SIMD_OPERATIONS(ENTRY)
#undef ENTRY
    table.attention = cpu_attention;
    table.geglu = cpu_geglu;
    layers_register(&table);
    list_implementations(DTYPE_F32, implementations[0]);
    list_implementations(DTYPE_BF16, implementations[1]);
    table.implementations = cpu_implementations;
    table.lend = cpu_lend;
    table.scratch_operations = OPERATION_BIT(linear) | OPERATION_BIT(conv2d) |
                               OPERATION_BIT(group_norm) | OPERATION_BIT(attention) |
                               OPERATION_BIT(low_rank) | OPERATION_BIT(linear_backward) |
                               OPERATION_BIT(conv2d_backward) | OPERATION_BIT(attention_backward) |
                               OPERATION_BIT(group_norm_backward) |
                               OPERATION_BIT(layer_norm_backward) |
                               OPERATION_BIT(low_rank_backward) | OPERATION_BIT(prodigy_sums) |
                               OPERATION_BIT(adafactor);
}

const struct kernels *kernels_cpu(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_table);
    return &table;
}
