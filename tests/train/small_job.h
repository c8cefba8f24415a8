/* A LoRA of small models whose weights follow a rule, shared by the tests of train/. */
#ifndef TESTS_TRAIN_SMALL_JOB_H
#define TESTS_TRAIN_SMALL_JOB_H

#include "models/text_encoder.h"
#include "models/unet.h"
#include "tests/check.h"
#include "tests/models/small/small_models.h"
#include "train/optimizer/parameters.h"

/* Match small_unet() and small_text_encoder() of training.py. */
static const struct unet_config small_unet_config = { .sample_size = 8,
    .in_channels = 4,
    .out_channels = 4,
    .block_count = 2,
    .block_out_channels = { 16, 32 },
    .down_has_attention = { true, false },
    .up_has_attention = { false, true },
    .layers_per_block = 1,
    .heads = { 4, 4 },
    .cross_attention_dim = 24,
    .norm_num_groups = 8,
    .norm_eps = 1e-5f,
    .flip_sin_to_cos = true };
static const struct text_encoder_config small_text_config = { 50, 32, 96, 2, 4, 11,
    ACTIVATION_QUICK_GELU, 1e-5f, 1 };

struct small_job {
    struct rule_source source;
    struct unet *unet;
    struct text_encoder *text_encoder;
    struct train_config config;
    struct noise_generator generator; /* seeded with 11, after drawing the adapter */
    struct parameters *parameters;
};

/* Match UNET_TARGETS and TEXT_TARGETS of training.py. `more`: further fields of the job. */
static inline struct train_config small_job_config(const char *more) {
    char text[1024];
    snprintf(text, sizeof(text),
        "{\"name\": \"n\", \"dataset\": \"d\", \"max_train_steps\": 1, \"alpha\": 8, "
        "\"train_text_encoder\": true, \"text_encoder_target_modules\": [\"q_proj\", \"v_proj\", "
        "\"fc1\"], \"target_modules\": [\"to_k\", \"to_q\", \"to_v\", \"to_out.0\", \"conv1\", "
        "\"proj_in\", \"ff.net.2\", \"conv\"]%s}",
        more);
    json_t *json = json_loads(text, 0, NULL);
    struct train_config config;
    struct error err = { 0 };
    CHECK(train_config_parse(json, &config, &err), "%s", err.message);
    json_decref(json);
    return config;
}

static inline void small_job_models(struct small_job *job, const struct kernels *kernels) {
    struct error err = { 0 };
    job->source = (struct rule_source){ .gain = 0.5 };
    const struct weights weights = rule_weights(&job->source, kernels, DTYPE_F32);
    CHECK(unet_create(&small_unet_config, &weights, &job->unet, &err) &&
              text_encoder_create(&small_text_config, &weights, &job->text_encoder, &err),
        "%s", err.message);
}

/* Makes the adapter with a newly seeded generator. */
static inline void small_job_parameters(struct small_job *job, uint64_t seed) {
    struct error err = { 0 };
    noise_init(&job->generator, RNG_CPU, seed);
    CHECK(parameters_create(kernels_reference(), &job->config, unet_weights(job->unet),
              text_encoder_weights(job->text_encoder), &job->generator, NULL, NULL,
              &job->parameters, &err),
        "%s", err.message);
}

static inline void small_job_init(struct small_job *job, const char *more) {
    small_job_models(job, kernels_reference());
    job->config = small_job_config(more);
    small_job_parameters(job, 11);
}

static inline void small_job_parameters_finish(struct small_job *job) {
    parameters_destroy(job->parameters);
    job->parameters = NULL;
    train_config_finish(&job->config);
}

static inline void small_job_finish(struct small_job *job) {
    small_job_parameters_finish(job);
    unet_destroy(job->unet);
    text_encoder_destroy(job->text_encoder);
    rule_source_finish(&job->source);
}

#endif
