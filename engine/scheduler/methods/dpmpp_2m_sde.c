/* DPM-Solver++ multistep for the SDE: dpmpp_2m with fresh noise at every step, under its usual
 * name. */
#include "engine/scheduler/methods/dpm_multistep.h"
#include "engine/scheduler/sigmas.h"

static bool fill(const struct scheduler_config *config, const struct noise_schedule *schedule,
    int steps, struct scheduler_plan *plan, struct error *err) {
    return dpm_multistep_fill(config, schedule, steps, true, plan, err);
}

static const char *const aliases[] = { "DPM++ 2M SDE", NULL };

const struct scheduler_class scheduler_dpmpp_2m_sde = {
    .info = {
        .name = "dpmpp_2m_sde",
        .class_name = "DPMSolverMultistepScheduler",
        .display_name = "DPM++ 2M SDE",
        .description = "DPM++ 2M with fresh noise at every step.",
        .aliases = aliases,
    },
    .options = { DPM_MULTISTEP_OPTIONS },
    .fill = fill,
};
