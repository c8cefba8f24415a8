/* DPM-Solver++ multistep: the solver of dpmpp_2m and dpmpp_2m_sde. Only for this folder. */
#ifndef ENGINE_SCHEDULER_METHODS_DPM_MULTISTEP_H
#define ENGINE_SCHEDULER_METHODS_DPM_MULTISTEP_H

#include "engine/scheduler/class.h"

/* The `fill` of struct scheduler_class, for the probability flow or, with `sde`, for the SDE (fresh
 * noise at every step). */
bool dpm_multistep_fill(const struct scheduler_config *config,
    const struct noise_schedule *schedule, int steps, bool sde, struct scheduler_plan *plan,
    struct error *err) __attribute__((warn_unused_result));

/* The options of both classes. */
#define DPM_MULTISTEP_OPTIONS                                                                      \
    WHOLE_SIGMA_OPTIONS,                                                                           \
        [OPTION_RESCALE_BETAS_ZERO_SNR] = { true, false },                                         \
        [OPTION_FINAL_SIGMAS_TYPE] = { true, FINAL_SIGMA_ZERO },                                   \
        [OPTION_USE_LU_LAMBDAS] = { true, false }, [OPTION_SOLVER_ORDER] = { true, 2 },            \
        [OPTION_SOLVER_TYPE] = { true, SOLVER_MIDPOINT,                                            \
            .words = 1 << SOLVER_MIDPOINT | 1 << SOLVER_HEUN,                                      \
            .foreign = 1 << SOLVER_BH1 | 1 << SOLVER_BH2 | 1 << SOLVER_LOGRHO },                   \
        [OPTION_LOWER_ORDER_FINAL] = { true, true }, [OPTION_EULER_AT_FINAL] = { true, false },    \
        [OPTION_THRESHOLDING] = { true, false }

#endif
