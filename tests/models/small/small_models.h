/* Helpers for the tests of models: weights and inputs that are computed from their names, the
 * outputs of diffusers and transformers for the same numbers (tests/reference/small_models.py), and
 * functions that run a model. Helpers end the program if the test itself is broken. */
#ifndef TESTS_MODELS_SMALL_SMALL_MODELS_H
#define TESTS_MODELS_SMALL_SMALL_MODELS_H

#include "kernels/compute/compute.h"
#include "models/checkpoint/safetensors.h"
#include "models/text_encoder.h"
#include "models/unet.h"
#include "models/vae.h"

/* Makes `count` numbers in [-1, 1) that depend only on the name. */
void rule_numbers(const char *name, int64_t count, double *out);
/* Returns an input of variance 1; the caller frees it. */
float *rule_signal(const char *name, int64_t count);

/* A source of weights that has every tensor, in whatever shape is requested. */
struct rule_source {
    double gain;
    enum dtype dtype;               /* of the weights given; zeroed: f32 */
    struct safetensors_item *items; /* the weights given; owned, with names and data */
    size_t count;
};
struct weights rule_weights(
    struct rule_source *source, const struct kernels *kernels, enum dtype dtype);
void rule_source_finish(struct rule_source *source);

/* Small UNets of every kind. */
struct small_unet {
    const char *name;
    double gain;
    int h, w; /* of the latents */
    struct unet_config config;
};
#define SMALL_UNETS 4
#define SMALL_CONTEXT_DIM 24
#define SMALL_TOKENS 5
extern const struct small_unet small_unets[SMALL_UNETS];
struct unet *small_unet(
    const struct small_unet *small, const struct kernels *kernels, enum dtype dtype);

/* Returns the numbers of the f32 tensor `name`, which must have `count` of them. Borrowed from the
 * file. */
struct safetensors *reference_open(const char *path);
const float *reference_get(struct safetensors *reference, const char *name, int64_t count);

/* Returns norm(a - b) / norm(b) over all numbers; NaN if any is NaN. */
double relative_error(const float *a, const float *b, int64_t count);

/* Plans the arena, runs `forward` and checks the error. */
void run_model(
    const struct kernels *kernels, void (*forward)(struct compute *c, void *user), void *user);

/* Runs a model twice, with weights in bf16 (`rough`) and in f32 (`exact`). Both runs write `count`
 * numbers to `out`, where the f32 run's remain. Prints both errors. Returns true if f32 agrees with
 * tensor `name` of the reference to 1e-5, and bf16 to 1.1 times the error of the original library's
 * own bf16 ("NAME.bf16"). */
bool agrees_with_original(struct safetensors *reference, const struct kernels *kernels,
    const char *name, void (*forward)(struct compute *c, void *user), void *rough, void *exact,
    const float *out, int64_t count);

#endif
