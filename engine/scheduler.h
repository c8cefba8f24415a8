/* Schedulers as tables: from (config, number of steps) to timesteps and rows of coefficients.
 *
 * Every sampler here is linear: the next sample is a weighted sum of the sample, the model output,
 * earlier model outputs (or a saved sample) and fresh noise. A scheduler fills one row of weights a
 * UNet evaluation; engine/sampler applies any row with the one fused operation op_combine.
 * Exactly as diffusers defines them; scalars are float32 where diffusers' are.
 */
#ifndef ENGINE_SCHEDULER_H
#define ENGINE_SCHEDULER_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum scheduler_kind { SCHEDULER_DDPM, SCHEDULER_DDIM, SCHEDULER_PNDM, SCHEDULER_COUNT };
enum timestep_spacing { SPACING_LEADING, SPACING_TRAILING, SPACING_LINSPACE };
enum prediction_type { PREDICTION_EPSILON, PREDICTION_V, PREDICTION_SAMPLE };
enum beta_schedule { BETA_LINEAR, BETA_SCALED_LINEAR, BETA_SQUAREDCOS_CAP_V2 };

/* What a request may override; `has_*` says which. Everything else comes from the checkpoint. */
struct scheduler_options {
    bool has_kind, has_spacing, has_prediction, has_eta, has_beta_schedule, has_steps_offset,
        has_set_alpha_to_one, has_rescale_zero_snr;
    enum scheduler_kind kind;
    enum timestep_spacing spacing;
    enum prediction_type prediction;
    enum beta_schedule beta_schedule;
    double eta; /* DDIM only, 0..1 */
    int steps_offset;
    bool set_alpha_to_one;
    bool rescale_zero_snr;
};

#endif
