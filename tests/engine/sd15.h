/* The figures of an SD-1.5 checkpoint, for tests that resolve requests without a checkpoint. */
#ifndef TESTS_ENGINE_SD15_H
#define TESTS_ENGINE_SD15_H

#include "engine/resolve/resolve.h"

/* Returns its scheduler/scheduler_config.json; owned by the caller. */
static inline json_t *sd15_scheduler_json(void) {
    return json_pack("{s:s, s:f, s:f, s:s, s:i, s:b, s:b, s:i, s:b, s:n}", "_class_name",
        "PNDMScheduler", "beta_start", 0.00085, "beta_end", 0.012, "beta_schedule", "scaled_linear",
        "num_train_timesteps", 1000, "set_alpha_to_one", 0, "skip_prk_steps", 1, "steps_offset", 1,
        "clip_sample", 0, "trained_betas");
}

/* Borrows both arguments. */
static inline struct resolve_figures sd15_figures(
    const struct tokenizer *tokenizer, const json_t *scheduler_json) {
    return (struct resolve_figures){
        .tokenizer = tokenizer,
        .scheduler_json = scheduler_json,
        .default_px = 512,
        .vae_scale = 8,
        .latent_channels = 4,
        .context_length = 77,
        .context_width = 768,
        .text_layers = 12,
    };
}

#endif
