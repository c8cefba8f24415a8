/* What the model tests share: weights and inputs that follow from their names by a rule, the
 * outputs that diffusers and transformers gave for the same rule (tests/reference/small_models.py),
 * and the few lines that run a model. Helpers end the program when the test itself is broken. */
#ifndef TESTS_MODELS_SMALL_SMALL_MODELS_H
#define TESTS_MODELS_SMALL_SMALL_MODELS_H

#include "kernels/compute/compute.h"
#include "models/checkpoint/safetensors.h"
#include "models/text_encoder.h"
#include "models/unet.h"
#include "models/vae.h"

/* `count` numbers in [-1, 1) that depend on the name alone. */
void rule_numbers(const char *name, int64_t count, double *out);
/* An input of variance 1; the caller frees it. */
float *rule_signal(const char *name, int64_t count);

/* A source of weights that has every tensor, of whatever shape is asked for. */
struct rule_source {
    double gain;
    enum dtype dtype;               /* what it hands out; zeroed: f32 */
    struct safetensors_item *items; /* owned, with names and data: what was handed out */
    size_t count;
};
struct weights rule_weights(
    struct rule_source *source, const struct kernels *kernels, enum dtype dtype);
void rule_source_finish(struct rule_source *source);

/* Small UNets of every kind. */
struct small_unet {
    const char *name;
    double gain;
    int h, w; /* of its latents */
    struct unet_config config;
};
#define SMALL_UNETS 4
#define SMALL_CONTEXT_DIM 24
#define SMALL_TOKENS 5
extern const struct small_unet small_unets[SMALL_UNETS];
struct unet *small_unet(
    const struct small_unet *small, const struct kernels *kernels, enum dtype dtype);

/* The numbers of the f32 tensor `name`, of which there must be `count`. Borrowed from the file. */
struct safetensors *reference_open(const char *path);
const float *reference_get(struct safetensors *reference, const char *name, int64_t count);

/* norm(a - b) / norm(b) over everything; NaN if any is NaN. */
double relative_error(const float *a, const float *b, int64_t count);

/* Plans the arena, runs `forward` and checks the error. */
void run_model(
    const struct kernels *kernels, void (*forward)(struct compute *c, void *user), void *user);

/* Runs a model twice, with its weights in bf16 (`rough`) and in f32 (`exact`): runs that are alike
 * otherwise and write `count` numbers to `out`, where f32's stay. Prints both errors; true if f32
 * agrees with tensor `name` of the reference to 1e-5, and bf16 to 1.1 times the error that the
 * original library's own bf16 has ("NAME.bf16"). */
bool agrees_with_original(struct safetensors *reference, const struct kernels *kernels,
    const char *name, void (*forward)(struct compute *c, void *user), void *rough, void *exact,
    const float *out, int64_t count);

#endif
