/* An adapter file: what it changes in one model, layer by layer.
 *
 * All common formats are read: kohya's (lora_unet_*, lora_te_*, with the block names of diffusers
 * or LDM), diffusers' old and new ones, PEFT's files and folders, and LyCORIS's kinds. A module of
 * the file is matched to the model by comparing its name with the model's own list of layers, never
 * by splitting the name. Each tensor of the module is checked against that layer's shape and read
 * once. After adapter_open only a change of the file itself can cause an error
 * (adapter_intact).
 *
 * Plain low-rank modules (LoRA, LoCon) give their two factors. Modules of all kinds give the
 * difference that they make to a layer's weights; some (DoRA) compute it from the weights
 * themselves. Changes to a norm's scale and shift are differences only.
 *
 * Several threads at a time may read an open adapter.
 */
#ifndef MODELS_ADAPTER_ADAPTER_H
#define MODELS_ADAPTER_ADAPTER_H

#include "models/adapter/adapter_names.h"
#include "models/checkpoint/checkpoint.h"
#include "models/weights.h"

struct adapter;

/* The layers that an adapter may change. Borrowed while the adapter is open. */
struct adapter_targets {
    const struct weight_list *unet, *text_encoder;
};

/* One layer's change. */
struct adapter_module {
    enum component component;          /* COMPONENT_UNET or COMPONENT_TEXT_ENCODER */
    const struct named_weight *target; /* borrowed from the targets' list */
    /* If the layer is a norm: the norm, borrowed from the targets' list. NULL for other layers. For
     * a norm, `target` belongs to the adapter; it describes the scale as a weight of one input, and
     * the shift as a bias. */
    const struct named_resident *norm;
    enum adapter_kind kind;
    bool dora;       /* DoRA: the file also has a magnitude tensor */
    bool low_rank;   /* adapter_module_factors works; false: there is only the difference */
    bool has_weight; /* it changes the weights */
    bool has_bias;   /* it changes the layer's bias */
    int64_t rank;    /* 0: nothing in it is low-rank */
    double alpha;    /* as in the file; if missing, the rank */
    float scale;     /* factor of the product, for example alpha / rank */
    struct adapter_factor {
        const char *name; /* the tensor's name in the file, borrowed; NULL: no tensor */
        struct tensor tensor;
    } factors[ADAPTER_PART_COUNT];
};

/* A part of the file that has no effect. Strings are borrowed from the adapter. */
struct adapter_leftover {
    const char *name; /* name of a module, or of a tensor that belongs to no adapter */
    const char *why;
};

/* Opens a safetensors file, or a folder in PEFT's format (adapter_config.json beside
 * adapter_model.safetensors). Errors begin with the path. They name the tensor, its shape and the
 * right shape. ERROR_UNSUPPORTED if the adapter is for another family of models (both are named) or
 * of an unsupported kind. ERROR_INVALID if none of its modules belongs to the targets. */
bool adapter_open(const char *path, const struct adapter_targets *targets, struct adapter **out,
    struct error *err) __attribute__((warn_unused_result));
/* Does what adapter_open does, for an open file. Takes over `fd`, also on failure; `path` is for
 * messages. */
bool adapter_open_fd(int fd, const char *path, const struct adapter_targets *targets,
    struct adapter **out, struct error *err) __attribute__((warn_unused_result));
void adapter_close(struct adapter *adapter); /* NULL is fine */

/* Returns false if the file was truncated or written to since it was opened. Data read after that
 * may be wrong. Call it after reading factors or differences. */
bool adapter_intact(const struct adapter *adapter, struct error *err)
    __attribute__((warn_unused_result));

/* Returns all modules in the order of the targets' lists: the UNet's first, and norms after the
 * other layers. No layer appears twice. Borrowed. */
const struct adapter_module *adapter_modules(const struct adapter *adapter, size_t *count);
const struct adapter_leftover *adapter_leftovers(const struct adapter *adapter, size_t *count);
/* Returns format, kinds, ranks and alphas. Borrowed. */
const struct adapter_summary *adapter_get_summary(const struct adapter *adapter);
uint64_t adapter_file_bytes(const struct adapter *adapter);

/* Returns the numbers per input channel of the target: 9 for a 3x3 convolution, else 1. */
int64_t adapter_target_taps(const struct named_weight *target);
/* Writes the factors of a low_rank module in f32: down [rank][k][taps] (a convolution's
 * [rank][k][3][3]) and up [n][rank]. The module's change at strength 1 is exactly scale * up .
 * down: a Tucker core is folded into down. Fails if memory is refused. */
bool adapter_module_factors(const struct adapter_module *module, float *down, float *up,
    struct error *err) __attribute__((warn_unused_result));

/* weights += strength * change, f32 [n][k][taps], for any module that has_weight. `pristine`, of
 * the same shape, is the layer's weights as in the checkpoint. DoRA's change is computed from them:
 * W + strength * (W'' - W), where W'' is W at full strength. For other kinds `pristine` may be
 * NULL. Several modules of several adapters may be added to the same `weights`. Fails if memory is
 * refused. */
bool adapter_module_add(const struct adapter_module *module, const float *pristine, float strength,
    float *weights, struct error *err) __attribute__((warn_unused_result));
/* bias += strength * change, f32 [n], for a module that has_bias. */
void adapter_module_add_bias(const struct adapter_module *module, float strength, float *bias);

#endif
