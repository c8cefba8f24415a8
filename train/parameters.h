/* What a job trains, in flat buffers: values and their gradients, each one array in the device's
 * memory, so that an optimizer walks them in a few calls and several processes can cut them.
 *
 * For a LoRA job these are the two factors of each layer that target_modules names, layer after
 * layer, in the order and with the values that peft gives them (module_order.h): down gaussian or
 * kaiming, up zeros, drawn from torch's CPU generator. They lie in panels (kernels.h), down then
 * up, with padding that is zero and stays zero, and the overlay reads them where they lie: what the
 * optimizer writes is what the next forward computes with.
 *
 * For a full fine-tune they are all weights, biases, norms and tables of the models, one after the
 * other as packed_unpack orders them, a weight before its bias (parameters_full.c). What the
 * optimizer writes is then put into the models' packed weights. Where these hold f32 in the host's
 * memory, there are no other values: a weight is unpacked while it is stepped. */
#ifndef TRAIN_PARAMETERS_H
#define TRAIN_PARAMETERS_H

#include "kernels/noise.h"
#include "kernels/tape.h"
#include "models/checkpoint/checkpoint.h"
#include "models/weights.h"
#include "train/config.h"

/* One layer's pair of factors. */
struct trained_module {
    enum component component;
    const struct named_weight *target; /* borrowed from the model's list */
    struct low_rank_pair *pair;        /* owned; lies at `at` of the values */
    int64_t at, down_floats, up_floats;
    double learning_rate, weight_decay; /* its group's, before the schedule */
};

/* What a model keeps as one: a packed weight, a norm or a table. */
struct trained_weight {
    enum tape_parameter_kind kind;   /* TAPE_WEIGHT, TAPE_NORM or TAPE_TABLE */
    struct packed *packed;           /* borrowed; or, of the others: */
    struct tensor weight, bias;      /* borrowed; a table's bias has no data */
    int64_t at, floats[2];           /* the bias, if there is one, behind the weight */
    size_t first_range, range_count; /* its part of the ranges */
};

/* A checkpoint's tensor: a trained weight, or some of its outputs. */
struct trained_tensor {
    enum component component;
    char *name; /* owned */
    int64_t at; /* [n][taps][k]; a file has [n][k][taps] */
    int64_t n, taps, k;
    int rank; /* in a file: 4 of a convolution */
    double learning_rate, weight_decay;
};

/* Neighbours that are stepped alike. */
struct parameter_range {
    int64_t at, count; /* floats */
    double learning_rate, weight_decay;
};

struct parameters {
    const struct kernels *kernels; /* borrowed */
    /* A LoRA's: */
    struct trained_module *modules; /* owned */
    size_t count;
    int64_t rank;
    double alpha;
    struct row_overlay *overlay; /* owned: every pair on its weight, scaled by alpha / rank */
    /* A full fine-tune's: */
    struct trained_weight *weights; /* owned */
    size_t weight_count;
    struct trained_tensor *tensors; /* owned */
    size_t tensor_count;
    float *work; /* owned: one weight, where there are no values */
    int64_t work_floats;

    struct parameter_range *ranges; /* owned */
    size_t range_count;
    int64_t floats;            /* of each buffer, padding counted */
    int64_t trained;           /* numbers that are trained: without padding */
    float *values, *gradients; /* owned, device memory; values may be NULL */
};

/* Drawing the first values of a large rank takes seconds: before each layer `is_wanted` is asked,
 * unless it is NULL, and false ends it with ERROR_CANCELLED.
 *
 * `text_encoder` is NULL unless it is trained. ERROR_INVALID names the targets of a model if no
 * layer's name ends with any of them, as in peft. The generator moves on as torch's does when peft
 * makes the adapter. */
bool parameters_create(const struct kernels *kernels, const struct train_config *config,
    const struct weight_list *unet, const struct weight_list *text_encoder,
    struct noise_generator *generator, bool (*is_wanted)(void *user), void *user,
    struct parameters **out, struct error *err) __attribute__((warn_unused_result));
/* A model of which everything is trained. */
struct trained_model {
    const struct weight_list *list; /* its weights are written to */
    const struct weights *source;   /* that it was made of; borrowed for the call */
};
/* `text_encoder` is NULL unless it is trained. */
bool parameters_create_full(const struct kernels *kernels, const struct train_config *config,
    const struct trained_model *unet, const struct trained_model *text_encoder,
    struct parameters **out, struct error *err) __attribute__((warn_unused_result));
void parameters_destroy(struct parameters *parameters); /* NULL is fine */

/* Whether parameters_create would find layers to train; the models may have been made by
 * weights.check_only. The same ERROR_INVALID. */
bool parameters_are_there(const struct train_config *config, const struct weight_list *unet,
    const struct weight_list *text_encoder, struct error *err) __attribute__((warn_unused_result));
/* Target number `index`, from 0, of those that are the end of no layer's name and so train nothing;
 * NULL behind the last one. Borrowed from the targets. */
const char *parameters_unused_target(
    const struct weight_list *list, const struct train_texts *targets, size_t index);

/* Bytes of device memory that both buffers take, before there are any. */
bool parameters_measure(const struct train_config *config, const struct weight_list *unet,
    const struct weight_list *text_encoder, size_t *bytes, struct error *err)
    __attribute__((warn_unused_result));

size_t parameters_bytes(const struct parameters *parameters); /* of the device */

/* What a tape is told of them; `seed` and `step` are borrowed by it, for dropout. */
size_t parameters_taped_count(const struct parameters *parameters);
void parameters_taped(const struct parameters *parameters, float dropout, const uint64_t *seed,
    const uint64_t *step, struct tape_parameter *out);

/* All values in one buffer, device memory: `values`, or, without one, `gradients`, whose contents
 * are lost and which the caller clears. */
float *parameters_gather(struct parameters *parameters, struct error *err);
/* What was written to that buffer is what the models compute with. */
bool parameters_scatter(struct parameters *parameters, struct error *err)
    __attribute__((warn_unused_result));
bool parameters_clear_gradients(struct parameters *parameters, struct error *err)
    __attribute__((warn_unused_result));
/* Between a buffer's order and a file's. */
void trained_tensor_turn(
    const struct trained_tensor *tensor, const float *from, bool to_file, float *to);
/* One weight's values for the optimizer, and back into the model: without `values`. */
float *parameters_take(
    struct parameters *parameters, const struct trained_weight *weight, struct error *err);
bool parameters_put(struct parameters *parameters, const struct trained_weight *weight,
    const float *values, struct error *err) __attribute__((warn_unused_result));

/* The rate and decay of what goes by this name, before the schedule. */
void parameters_rates(const struct train_config *config, enum component component, const char *name,
    double *learning_rate, double *weight_decay);

/* Factors outside of panels: down [rank][k][taps], up [n][rank]. `values` is host memory, laid out
 * as the buffers are (the values themselves, or an average of them). */
void parameters_plain(
    const struct trained_module *module, int64_t rank, const float *values, float *down, float *up);

/* What scale_lr makes of every learning rate. */
double parameters_rate_scale(const struct train_config *config);

/* Whether a module's name has the pattern in it; '*' stands for anything. */
bool parameters_name_fits(const char *name, const char *pattern);

#endif
