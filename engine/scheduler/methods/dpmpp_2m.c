/* DPM-Solver++ multistep (Lu et al., 2022), for the probability flow unless algorithm_type says
 * otherwise. */
#include "engine/scheduler/methods/dpm_multistep.h"
#include "engine/scheduler/sigmas.h"

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    bool sde = config->values.algorithm_type == ALGORITHM_SDE_DPMSOLVERPP;
    return dpm_multistep_fill(config, schedule, steps, sde, plan, err);
}

static const char *const aliases[] = { "DPM++ 2M", "DPMSolverMultistepScheduler", NULL };

const struct scheduler_class scheduler_dpmpp_2m = {
    .info = {
        .name = "dpmpp_2m",
        .class_name = "DPMSolverMultistepScheduler",
        .display_name = "DPM++ 2M",
        .description = "Second-order multistep, no fresh noise: good pictures in 20 steps.",
        .aliases = aliases,
    },
    .options = {
        DPM_MULTISTEP_OPTIONS,
        [OPTION_ALGORITHM_TYPE] = { true, ALGORITHM_DPMSOLVERPP,
            .words = 1 << ALGORITHM_DPMSOLVERPP | 1 << ALGORITHM_SDE_DPMSOLVERPP },
    },
    .fill = fill,
};
