/* AUTOMATIC1111's samplers and schedules, and which of ours each of them is. */
#ifndef SERVER_SDAPI_SAMPLERS_H
#define SERVER_SDAPI_SAMPLERS_H

#include "engine/scheduler/scheduler.h"

#define SDAPI_ALIASES_MAX 3

/* A list of noise levels. */
struct sdapi_schedule {
    const char *name, *label;               /* "sgm_uniform", "SGM Uniform" */
    const char *aliases[SDAPI_ALIASES_MAX]; /* ends with NULL */
    double default_rho;                     /* -1: it has none */
    bool need_inner_model;                  /* as GET /sdapi/v1/schedulers says it */
    enum timestep_spacing spacing;          /* of the levels, or of what is between the ends */
    enum scheduler_option_id levels;        /* use_..._sigmas, unless the spacing is all */
};

struct sdapi_sampler {
    const char *name;                       /* "DPM++ 2M" */
    const char *aliases[SDAPI_ALIASES_MAX]; /* ends with NULL */
    enum scheduler_kind kind;
    const char *schedule;     /* its automatic one, by name; NULL: "uniform" */
    bool own_timesteps;       /* no schedule applies to it */
    bool takes_eta;           /* a request's eta is ours */
    double default_eta;       /* if so */
    bool two_calls, brownian; /* as GET /sdapi/v1/samplers says it */
};

/* What a request asks for. */
struct sdapi_sampling {
    const struct sdapi_sampler *sampler;
    const struct sdapi_schedule *schedule; /* the automatic one is replaced by what it means */
};

/* By index; NULL past the last. */
const struct sdapi_sampler *sdapi_sampler_at(size_t index);
/* The first is "automatic", which is no schedule of its own. */
const struct sdapi_schedule *sdapi_schedule_at(size_t index);

/* `sampler` is a name or an alias of one, which a schedule may follow ("DPM++ 2M Karras"); it then
 * wins over `schedule`, which is a name, a label or an alias, NULL for "automatic". Case does not
 * matter. ERROR_INVALID without a field, "Sampler not found", as AUTOMATIC1111 says it; with the
 * field "scheduler" for an unknown schedule, and for one that the sampler does not take here. */
bool sdapi_sampling_find(const char *sampler, const char *schedule, struct sdapi_sampling *out,
    struct error *err) __attribute__((warn_unused_result));

/* The same for our own: what a request sets. `eta`: NULL for the sampler's default. */
void sdapi_sampling_choose(
    const struct sdapi_sampling *sampling, const double *eta, struct scheduler_choice *out);

/* GET /sdapi/v1/samplers and /schedulers; NULL when memory is short. */
json_t *sdapi_samplers_json(void);
json_t *sdapi_schedules_json(void);

#endif
