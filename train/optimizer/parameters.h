/* What a job trains, in flat buffers: the values and their gradients are each one array in device
 * memory, so that an optimizer handles them in a few calls and several processes can split them.
 *
 * For a LoRA job these are the two factors of each layer that target_modules names, layer after
 * layer, in peft's order (module_order.h) and with peft's initial values: down gaussian or kaiming,
 * up zeros, drawn from torch's CPU generator. They are stored in panels (kernels.h), down then up,
 * with padding that is and stays zero. The overlay reads them in place, so the next forward uses
 * what the optimizer writes.
 *
 * For DoRA, LoHa and LoKr see products.h.
 *
 * For a full fine-tune they are all weights, biases, norms and tables of the models, in the order
 * of packed_unpack, a weight before its bias (parameters_full.c). The optimizer's output is then
 * copied into the models' packed weights. If these are f32 in host memory, there is no separate
 * buffer of values: each weight is unpacked while it is stepped. */
#ifndef TRAIN_OPTIMIZER_PARAMETERS_H
#define TRAIN_OPTIMIZER_PARAMETERS_H

#include "kernels/backward.h"
#include "kernels/random/noise.h"
#include "kernels/tape.h"
#include "models/checkpoint/checkpoint.h"
#include "models/weights.h"
#include "train/config.h"

/* One layer's pair of factors. */
struct trained_module {
    enum component component;
    const struct named_weight *target; /* borrowed from the model's list */
    struct low_rank_pair *pair;        /* owned; its data begins at `at` in the values */
    int64_t at, down_floats, up_floats;
    double learning_rate, weight_decay; /* of its parameter group, before the schedule */
};

/* A part of a model: a packed weight, a norm or a table. */
struct trained_weight {
    enum tape_parameter_kind kind;   /* TAPE_WEIGHT, TAPE_NORM or TAPE_TABLE */
    struct packed *packed;           /* borrowed; NULL: norm or table, which have: */
    struct tensor weight, bias;      /* borrowed; a table's bias has no data */
    int64_t at, floats[2];           /* the bias, if any, follows the weight */
    size_t first_range, range_count; /* its ranges in parameters.ranges */
};

/* A tensor of the checkpoint: a trained weight, or some of the weight's outputs. */
struct trained_tensor {
    enum component component;
    char *name; /* owned */
    int64_t at; /* [n][taps][k]; in a file [n][k][taps] */
    int64_t n, taps, k;
    int rank; /* its rank in a file; 4: convolution */
    double learning_rate, weight_decay;
};

/* Adjacent values that are stepped with the same settings. */
struct parameter_range {
    int64_t at, count; /* floats */
    double learning_rate, weight_decay;
};

struct parameters {
    const struct kernels *kernels; /* borrowed */
    /* For a LoRA: */
    struct trained_module *modules; /* owned */
    size_t count;
    int64_t rank;
    double alpha, scale;         /* scale: alpha / rank, or alpha / sqrt(rank) with use_rslora */
    struct products *products;   /* owned: of an adapter that is no plain LoRA; else NULL */
    struct row_overlay *overlay; /* owned: each pair on its weight, times the scale */
    /* For a full fine-tune: */
    struct trained_weight *weights; /* owned */
    size_t weight_count;
    struct trained_tensor *tensors; /* owned */
    size_t tensor_count;
    float *work; /* owned: memory for one weight if `values` is NULL */
    int64_t work_floats;

    struct parameter_range *ranges; /* owned */
    size_t range_count;
    int64_t floats;            /* size of each buffer, with padding */
    int64_t trained;           /* trained numbers, without padding */
    float *values, *gradients; /* owned, device memory; values may be NULL */
};

/* Makes the parameters of a LoRA job. Drawing the initial values of a large rank takes seconds:
 * `is_wanted` (may be NULL) is asked before each layer, and false ends the call with
 * ERROR_CANCELLED.
 *
 * `text_encoder` is NULL unless it is trained. ERROR_INVALID names a model's targets if none of
 * them is the end of a layer's name, as in peft. The generator advances as torch's does when peft
 * makes the adapter. */
bool parameters_create(const struct kernels *kernels, const struct train_config *config,
    const struct weight_list *unet, const struct weight_list *text_encoder,
    struct noise_generator *generator, bool (*is_wanted)(void *user), void *user,
    struct parameters **out, struct error *err) __attribute__((warn_unused_result));
/* A model that is trained as a whole. */
struct trained_model {
    const struct weight_list *list; /* training writes to its weights */
    const struct weights *source;   /* files of the model; borrowed for the call */
};
/* Makes the parameters of a full fine-tune. `text_encoder` is NULL unless it is trained. `room` is
 * the device's memory that the job may take; NULL: what the device has left now. ERROR_NO_MEMORY if
 * that is too little. */
bool parameters_create_full(const struct kernels *kernels, const struct train_config *config,
    const struct trained_model *unet, const struct trained_model *text_encoder,
    const struct available *room, struct parameters **out, struct error *err)
    __attribute__((warn_unused_result));
void parameters_destroy(struct parameters *parameters); /* NULL is fine */

/* For products.c: parameters that have only `modules`, the target layers in peft's order, and
 * rank, alpha and scale; and those of a full fine-tune that is stepped by no optimizer. */
bool parameters_find_targets(const struct kernels *kernels, const struct train_config *config,
    const struct weight_list *unet, const struct weight_list *text_encoder, struct parameters **out,
    struct error *err) __attribute__((warn_unused_result));
bool parameters_create_weights(const struct kernels *kernels, const struct train_config *config,
    const struct trained_model *unet, const struct trained_model *text_encoder,
    const struct available *room, struct parameters **out, struct error *err)
    __attribute__((warn_unused_result));
/* Draws a target's down factor in torch's order, [rank][k][taps]. */
void parameters_draw_down(const struct train_config *config, const struct named_weight *target,
    struct noise_generator *generator, float *out);

/* Returns whether parameters_create would find layers to train, with the same ERROR_INVALID. The
 * models may have been loaded with weights.check_only. */
bool parameters_are_there(const struct train_config *config, const struct weight_list *unet,
    const struct weight_list *text_encoder, struct error *err) __attribute__((warn_unused_result));
/* Returns unused target `index` (from 0): one that matches no layer's name and so trains nothing.
 * NULL after the last one. Borrowed from the targets. */
const char *parameters_unused_target(
    const struct weight_list *list, const struct train_texts *targets, size_t index);

size_t parameters_bytes(const struct parameters *parameters); /* of device memory */
/* Returns the host memory that they take beside it: for products.h the untouched weights, and a
 * second copy while a step computes with them. */
size_t parameters_host_bytes(const struct parameters *parameters);

/* Describes the parameters to a tape. The tape borrows `seed` and `step`, for dropout. */
size_t parameters_taped_count(const struct parameters *parameters);
void parameters_taped(const struct parameters *parameters, float dropout, const uint64_t *seed,
    const uint64_t *step, struct tape_parameter *out);

/* Returns all values in one buffer in device memory. It is `values`; if that is NULL, it is
 * `gradients`, whose contents are lost and which the caller must clear. */
float *parameters_gather(struct parameters *parameters, struct error *err);
/* Copies the values from the buffer that parameters_gather returned into the models, or what
 * follows from them (products.h). */
bool parameters_scatter(struct parameters *parameters, struct error *err)
    __attribute__((warn_unused_result));
/* Completes the gradients before a step of the optimizer: for products.h, computes them. */
bool parameters_pull_gradients(struct parameters *parameters, struct error *err)
    __attribute__((warn_unused_result));
bool parameters_clear_gradients(struct parameters *parameters, struct error *err)
    __attribute__((warn_unused_result));
/* Converts a tensor between the buffer's order and the file's. */
void trained_tensor_turn(
    const struct trained_tensor *tensor, const float *from, bool to_file, float *to);
/* Take one weight's values from the model for the optimizer, and put them back. Used if `values` is
 * NULL. */
float *parameters_take(
    struct parameters *parameters, const struct trained_weight *weight, struct error *err);
bool parameters_put(struct parameters *parameters, const struct trained_weight *weight,
    const float *values, struct error *err) __attribute__((warn_unused_result));

/* A weight, bias or factor of its own in torch, for optimizers that need its shape. */
struct parameters_tensor {
    int64_t at;
    struct factored_shape shape;
};
/* Describes tensor `index`, in the order of the buffers. Returns false after the last one. */
bool parameters_tensor_at(
    const struct parameters *parameters, size_t index, struct parameters_tensor *out);

/* Sets the learning rate and weight decay of the parameters with this name, before the schedule. */
void parameters_rates(const struct train_config *config, enum component component, const char *name,
    double *learning_rate, double *weight_decay);

/* Converts factors from panels to down [rank][k][taps] and up [n][rank]. `values` is host memory,
 * laid out like the buffers; it has the values themselves, or their average. */
void parameters_plain(
    const struct trained_module *module, int64_t rank, const float *values, float *down, float *up);

/* Returns the factor that scale_lr applies to every learning rate. */
double parameters_rate_scale(const struct train_config *config);

/* Returns whether a module's name contains the pattern; '*' matches anything. */
bool parameters_name_fits(const char *name, const char *pattern);

#endif
