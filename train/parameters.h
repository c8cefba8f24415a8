/* What a job trains, in flat buffers: values and their gradients, each one array in the device's
 * memory, so that an optimizer walks them in a few calls and several processes can cut them.
 *
 * For a LoRA job these are the two factors of each layer that target_modules names, layer after
 * layer, in the order and with the values that peft gives them (module_order.h): down gaussian or
 * kaiming, up zeros, drawn from torch's CPU generator. They lie in panels (kernels.h), down then
 * up, with padding that is zero and stays zero, and the overlay reads them where they lie: what the
 * optimizer writes is what the next forward computes with. */
#ifndef TRAIN_PARAMETERS_H
#define TRAIN_PARAMETERS_H

#include "kernels/noise.h"
#include "kernels/overlay.h"
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

/* Neighbours that are stepped alike. */
struct parameter_range {
    int64_t at, count; /* floats */
    double learning_rate, weight_decay;
};

struct parameters {
    const struct kernels *kernels;  /* borrowed */
    struct trained_module *modules; /* owned */
    size_t count;
    struct parameter_range *ranges; /* owned */
    size_t range_count;
    int64_t rank;
    double alpha;
    int64_t floats;              /* of each buffer, padding counted */
    int64_t trained;             /* numbers that are trained: without padding */
    float *values, *gradients;   /* owned, device memory */
    struct row_overlay *overlay; /* owned: every pair on its weight, scaled by alpha / rank */
};

/* `text_encoder` is NULL unless it is trained. ERROR_INVALID names a target that no layer's name
 * ends with. The generator moves on as torch's does when peft makes the adapter. */
bool parameters_create(const struct kernels *kernels, const struct train_config *config,
    const struct weight_list *unet, const struct weight_list *text_encoder,
    struct noise_generator *generator, struct parameters **out, struct error *err)
    __attribute__((warn_unused_result));
void parameters_destroy(struct parameters *parameters); /* NULL is fine */

/* Bytes of device memory that both buffers take, before there are any. */
bool parameters_measure(const struct train_config *config, const struct weight_list *unet,
    const struct weight_list *text_encoder, size_t *bytes, struct error *err)
    __attribute__((warn_unused_result));

/* Factors outside of panels: down [rank][k][taps], up [n][rank]. `values` is host memory, laid out
 * as the buffers are (the values themselves, or an average of them). */
void parameters_plain(
    const struct trained_module *module, int64_t rank, const float *values, float *down, float *up);

/* Whether a module's name has the pattern in it; '*' stands for anything. */
bool parameters_name_fits(const char *name, const char *pattern);

#endif
