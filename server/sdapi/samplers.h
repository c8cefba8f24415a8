/* AUTOMATIC1111's samplers and schedules, and their native schedulers and options. */
#ifndef SERVER_SDAPI_SAMPLERS_H
#define SERVER_SDAPI_SAMPLERS_H

#include "engine/scheduler/scheduler.h"

#define SDAPI_ALIASES_MAX 3

/* A schedule: how the noise levels (sigmas) are spaced. */
struct sdapi_schedule {
    const char *name, *label;               /* "sgm_uniform", "SGM Uniform" */
    const char *aliases[SDAPI_ALIASES_MAX]; /* ends with NULL */
    double default_rho;                     /* -1: none */
    bool need_inner_model;                  /* as GET /sdapi/v1/schedulers reports it */
    enum timestep_spacing spacing;          /* all levels; with `levels`, only the outer two */
    enum scheduler_option_id levels;        /* use_..._sigmas; SCHEDULER_OPTION_COUNT: none */
};

struct sdapi_sampler {
    const char *name;                       /* "DPM++ 2M" */
    const char *aliases[SDAPI_ALIASES_MAX]; /* ends with NULL */
    enum scheduler_kind kind;
    const char *schedule;     /* the name of its own schedule; NULL: "uniform" */
    bool own_timesteps;       /* schedules do not apply to it */
    bool takes_eta;           /* uses the request's eta */
    double default_eta;       /* without takes_eta the only one; 0: eta means nothing to it */
    const char *eta_name;     /* in infotexts; NULL: "Eta" */
    bool two_calls, brownian; /* as GET /sdapi/v1/samplers reports them */
};

/* The sampler and schedule of a request. */
struct sdapi_sampling {
    const struct sdapi_sampler *sampler;
    const struct sdapi_schedule *schedule; /* the sampler's own, never "automatic" */
};

/* Returns sampler `index`; NULL past the last. */
const struct sdapi_sampler *sdapi_sampler_at(size_t index);
/* Returns schedule `index`; NULL past the last. The first is "automatic", a placeholder. */
const struct sdapi_schedule *sdapi_schedule_at(size_t index);

/* Finds a sampler and a schedule; case is ignored. `sampler` is a name or an alias. A schedule may
 * follow it ("DPM++ 2M Karras"), and then replaces `schedule`. `schedule` is a name, a label or an
 * alias; NULL: "automatic". For an unknown sampler the error is ERROR_INVALID without a field,
 * "Sampler not found" as in AUTOMATIC1111. For a schedule that is unknown, or not supported with
 * this sampler, the error's field is "scheduler". */
bool sdapi_sampling_find(const char *sampler, const char *schedule, struct sdapi_sampling *out,
    struct error *err) __attribute__((warn_unused_result));

/* Translates the sampling to a native scheduler and its options. `eta` may be NULL: the sampler's
 * default is used. */
void sdapi_sampling_choose(
    const struct sdapi_sampling *sampling, const double *eta, struct scheduler_choice *out);

/* Finds the sampler and the schedule that draw with this configuration: those in *sampling if they
 * do, else the first that do. Returns false if AUTOMATIC1111 has none. */
bool sdapi_sampling_of(const struct scheduler_config *config, struct sdapi_sampling *sampling);

/* Return the answers of GET /sdapi/v1/samplers and /schedulers; NULL when memory is short. */
json_t *sdapi_samplers_json(void);
json_t *sdapi_schedules_json(void);

#endif
