/* An adapter file: what it changes of one model, layer by layer.
 *
 * Every way of writing one is read: kohya's (lora_unet_*, lora_te_*, with diffusers' or LDM's block
 * names), diffusers' old and new, PEFT's files and folders, LyCORIS's kinds. A module of the file
 * is found in the model by comparing names with the model's own list of layers, never by taking
 * names apart, and each of its tensors is checked against that layer's shape and read through once:
 * after adapter_open nothing about the file can surprise but the file itself (adapter_intact).
 *
 * Two things can be had of a module. Plain low-rank ones (LoRA, LoCon) give their two factors; all
 * kinds give the difference that they make to a layer's weights, which some of them (DoRA) make
 * from the weights themselves. A norm's scale and shift are changed by differences only.
 *
 * An adapter that is open may be read by several threads at a time. */
#ifndef MODELS_CHECKPOINT_ADAPTER_H
#define MODELS_CHECKPOINT_ADAPTER_H

#include "models/checkpoint/adapter_names.h"
#include "models/checkpoint/checkpoint.h"
#include "models/weights.h"

struct adapter;

/* What an adapter may change. Borrowed as long as the adapter is open. */
struct adapter_targets {
    const struct weight_list *unet, *text_encoder;
};

/* One layer's change. */
struct adapter_module {
    enum component component;          /* COMPONENT_UNET or COMPONENT_TEXT_ENCODER */
    const struct named_weight *target; /* borrowed from the targets' list */
    /* Borrowed likewise: the layer is a norm. target then belongs to the adapter, and says that the
     * scale is a weight of one input, and the shift a bias. NULL: it is none. */
    const struct named_resident *norm;
    enum adapter_kind kind;
    bool dora;       /* the result's norm is stored beside the kind's own tensors */
    bool low_rank;   /* adapter_module_factors has it; else it can be had as a difference only */
    bool has_weight; /* it changes the weights */
    bool has_bias;   /* it changes the bias; the layer has one */
    int64_t rank;    /* 0: nothing of it is low-rank */
    double alpha;    /* as stored; the rank where nothing is stored */
    float scale;     /* of the product of the factors: alpha / rank, say */
    struct adapter_factor {
        const char *name; /* of the tensor in the file, borrowed from it; NULL: there is none */
        struct tensor tensor;
    } factors[ADAPTER_PART_COUNT];
};

/* Something in the file that has no effect. Strings are borrowed from the adapter. */
struct adapter_leftover {
    const char *name; /* a module's, or a tensor's that is no part of an adapter */
    const char *why;
};

/* Opens a safetensors file, or a folder that peft wrote (adapter_config.json beside
 * adapter_model.safetensors). Errors begin with the path and name the tensor, its shape and the
 * shape that would be right. ERROR_UNSUPPORTED: an adapter of another family of models (both are
 * named), or of a kind that is not taken. An adapter of whose modules the targets have none is
 * ERROR_INVALID. */
bool adapter_open(const char *path, const struct adapter_targets *targets, struct adapter **out,
    struct error *err) __attribute__((warn_unused_result));
/* The same of a file that is open: `fd` is taken over, also on failure; `path` is for messages. */
bool adapter_open_fd(int fd, const char *path, const struct adapter_targets *targets,
    struct adapter **out, struct error *err) __attribute__((warn_unused_result));
void adapter_close(struct adapter *adapter); /* NULL is fine */

/* False if the file was cut short or written to since it was opened: what was read after that is
 * not what it held. Ask after reading factors or differences. */
bool adapter_intact(const struct adapter *adapter, struct error *err)
    __attribute__((warn_unused_result));

/* In the order of the targets' lists, the UNet's first, its norms behind the others; no layer is
 * there twice. Borrowed. */
const struct adapter_module *adapter_modules(const struct adapter *adapter, size_t *count);
const struct adapter_leftover *adapter_leftovers(const struct adapter *adapter, size_t *count);
/* Format, kinds, ranks and alphas. Borrowed. */
const struct adapter_summary *adapter_get_summary(const struct adapter *adapter);
/* "__metadata__", an object of strings, or NULL. Borrowed. */
const json_t *adapter_metadata(const struct adapter *adapter);
uint64_t adapter_file_bytes(const struct adapter *adapter);

/* Numbers of one input channel of the target: 9 for a 3x3 convolution, else 1. */
int64_t adapter_target_taps(const struct named_weight *target);
/* Of a low_rank module: down [rank][k][taps] (a convolution's [rank][k][3][3]) and up [n][rank],
 * f32. Its change at strength 1 is scale * up . down, which is exact: a Tucker core is folded into
 * down. Fails when memory for that is refused. */
bool adapter_module_factors(const struct adapter_module *module, float *down, float *up,
    struct error *err) __attribute__((warn_unused_result));

/* weights += strength * change, f32 [n][k][taps], for any module that has_weight. `pristine`, of
 * the same shape, holds the layer's weights as the checkpoint has them, which is what DoRA's change
 * is made of (W + strength * (W'' - W), where W'' is W at full strength); others may pass NULL.
 * Several modules of several adapters add up in the same `weights`. Fails when memory is refused.
 */
bool adapter_module_add(const struct adapter_module *module, const float *pristine, float strength,
    float *weights, struct error *err) __attribute__((warn_unused_result));
/* bias += strength * change, f32 [n], for a module that has_bias. */
void adapter_module_add_bias(const struct adapter_module *module, float strength, float *bias);

#endif
