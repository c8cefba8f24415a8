#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/tune/tuner.h"

#include <stdio.h>
#include <string.h>

static struct kernels table;
static char table_name[16];

static bool figures(struct device_figures *out, struct error *err) {
    const struct cuda_properties *p = cuda_get_properties();
    size_t free_bytes = 0, total = 0;
    memset(out, 0, sizeof(*out));
    if (!cuda_enter(err) || !cuda_ok(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo", err))
        return false;
    snprintf(out->name, sizeof(out->name), "%s", p->name);
    snprintf(out->bus_id, sizeof(out->bus_id), "%s", p->bus_id);
    out->driver_version = p->driver_version;
    out->runtime_version = p->runtime_version;
    out->memory_total = (int64_t)total;
    out->memory_free = (int64_t)free_bytes;
    out->weight_bytes = (int64_t)cuda_memory.used(MEMORY_WEIGHTS);
    out->activation_bytes = (int64_t)cuda_memory.used(MEMORY_ACTIVATIONS);
    cuda_utilisation(p->bus_id, &out->utilisation_percent, &out->memory_utilisation_percent);
    return true;
}

/* On a GPU, activations have the dtype of the weights. */
static enum dtype same_dtype(enum dtype weight_dtype) {
    return weight_dtype;
}

/* bf16 is the default where the chip has it: it has float32's range, and it is the CPU's default
 * too. On chips before compute capability 8.0 the tensor cores multiply f16 but not bf16, so f16 is
 * the default. */
static void choose_dtypes(int capability) {
    table.weight_dtypes = 1u << DTYPE_F32 | 1u << DTYPE_F16;
    table.default_dtype = DTYPE_F16;
    if (capability >= 80) {
        table.weight_dtypes |= 1u << DTYPE_BF16;
        table.default_dtype = DTYPE_BF16;
    }
}

const struct kernels *kernels_cuda(int index, struct error *err) {
    if (!cuda_open(index, err))
        return NULL;
    if (table.name)
        return &table;
    const struct cuda_properties *p = cuda_get_properties();
    snprintf(table_name, sizeof(table_name), "cuda:%d", p->index);
    table.device = DEVICE_CUDA;
    table.memory = &cuda_memory;
    table.recorder = &cuda_recorder;
    table.tuner = &cuda_tuner;
    table.figures = figures;
    table.activation_dtype = same_dtype;
    table.batch_images = 8;
    table.batch_px = 8 * 512 * 512;
    table.joins = true;
    table.adds_shortcuts = true;
    table.widens = true;
    choose_dtypes(p->capability);
    table.linear_pack = gemm_linear_pack;
    table.conv2d_pack = gemm_conv2d_pack;
    table.packed_destroy = gemm_packed_destroy;
    table.unpack = gemm_unpack;
    table.rewrite = gemm_rewrite;
#define ENTRY(operation) table.operation = cuda_##operation;
    ALL_OPERATIONS(ENTRY)
#undef ENTRY
    table.name = table_name;
    return &table;
}
