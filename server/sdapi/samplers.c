#include "server/sdapi/samplers.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define NO_LEVELS SCHEDULER_OPTION_COUNT

/* In AUTOMATIC1111's order; turbo, the last, is Forge's. The first, "automatic", is replaced by the
 * sampler's own schedule. Polyexponential is the same as exponential here: AUTOMATIC1111's
 * additional rho is 1. */
static const struct sdapi_schedule schedules[] = {
    { "automatic", "Automatic", { NULL }, -1, false, SPACING_LINSPACE, NO_LEVELS },
    { "uniform", "Uniform", { NULL }, -1, true, SPACING_LINSPACE, NO_LEVELS },
    { "karras", "Karras", { NULL }, 7, false, SPACING_LINSPACE, OPTION_USE_KARRAS_SIGMAS },
    { "exponential", "Exponential", { NULL }, -1, false, SPACING_LINSPACE,
        OPTION_USE_EXPONENTIAL_SIGMAS },
    { "polyexponential", "Polyexponential", { NULL }, 1, false, SPACING_LINSPACE,
        OPTION_USE_EXPONENTIAL_SIGMAS },
    { "sgm_uniform", "SGM Uniform", { "SGMUniform" }, -1, true, SPACING_SGM_UNIFORM, NO_LEVELS },
    { "kl_optimal", "KL Optimal", { NULL }, -1, false, SPACING_LINSPACE,
        OPTION_USE_KL_OPTIMAL_SIGMAS },
    { "align_your_steps", "Align Your Steps", { NULL }, -1, false, SPACING_LINSPACE,
        OPTION_USE_AYS_SIGMAS },
    { "simple", "Simple", { NULL }, -1, true, SPACING_TRAILING, NO_LEVELS },
    { "normal", "Normal", { NULL }, -1, true, SPACING_LINSPACE, NO_LEVELS },
    { "ddim", "DDIM", { NULL }, -1, true, SPACING_LEADING, NO_LEVELS },
    { "beta", "Beta", { NULL }, -1, true, SPACING_LINSPACE, OPTION_USE_BETA_SIGMAS },
    { "turbo", "Turbo", { NULL }, -1, true, SPACING_TRAILING, NO_LEVELS },
};

static const struct sdapi_sampler samplers[] = {
    { .name = "DPM++ 2M", { "k_dpmpp_2m" }, SCHEDULER_DPMPP_2M, .schedule = "karras" },
    { .name = "DPM++ SDE",
        { "k_dpmpp_sde" },
        SCHEDULER_DPMPP_SDE,
        .schedule = "karras",
        .default_eta = 1,
        .two_calls = true,
        .brownian = true },
    { .name = "DPM++ 2M SDE",
        { "k_dpmpp_2m_sde" },
        SCHEDULER_DPMPP_2M_SDE,
        .schedule = "exponential",
        .default_eta = 1,
        .brownian = true },
    { .name = "DPM++ 2M SDE Heun",
        { "k_dpmpp_2m_sde_heun" },
        SCHEDULER_DPMPP_2M_SDE,
        .schedule = "exponential",
        .default_eta = 1,
        .brownian = true },
    { .name = "DPM++ 2S a",
        { "k_dpmpp_2s_a" },
        SCHEDULER_DPMPP_2S_ANCESTRAL,
        .schedule = "karras",
        .takes_eta = true,
        .default_eta = 1,
        .two_calls = true },
    { .name = "DPM++ 3M SDE",
        { "k_dpmpp_3m_sde" },
        SCHEDULER_DPMPP_3M_SDE,
        .schedule = "exponential",
        .takes_eta = true,
        .default_eta = 1,
        .brownian = true },
    { .name = "Euler a",
        { "k_euler_a", "k_euler_ancestral" },
        SCHEDULER_EULER_ANCESTRAL,
        .default_eta = 1 },
    { .name = "Euler", { "k_euler" }, SCHEDULER_EULER },
    { .name = "LMS", { "k_lms" }, SCHEDULER_LMS },
    { .name = "Heun", { "k_heun" }, SCHEDULER_HEUN, .two_calls = true },
    { .name = "DPM2", { "k_dpm_2" }, SCHEDULER_DPM2, .schedule = "karras", .two_calls = true },
    { .name = "DPM2 a",
        { "k_dpm_2_a" },
        SCHEDULER_DPM2_ANCESTRAL,
        .schedule = "karras",
        .default_eta = 1,
        .two_calls = true },
    { .name = "DPM fast",
        { "k_dpm_fast" },
        SCHEDULER_DPM_FAST,
        .own_timesteps = true,
        .takes_eta = true,
        .default_eta = 1 },
    { .name = "Restart",
        { "restart" },
        SCHEDULER_RESTART,
        .schedule = "karras",
        .two_calls = true },
    { .name = "DDIM",
        { "ddim" },
        SCHEDULER_DDIM,
        .own_timesteps = true,
        .takes_eta = true,
        .eta_name = "Eta DDIM" },
    { .name = "DDIM CFG++",
        { "ddim_cfgpp" },
        SCHEDULER_DDIM_CFGPP,
        .own_timesteps = true,
        .takes_eta = true,
        .eta_name = "Eta DDIM" },
    { .name = "PLMS", { "plms" }, SCHEDULER_PNDM, .own_timesteps = true },
    { .name = "UniPC", { "unipc" }, SCHEDULER_UNIPC, .own_timesteps = true },
    { .name = "LCM", { "k_lcm" }, SCHEDULER_LCM, .own_timesteps = true },
};

const struct sdapi_sampler *sdapi_sampler_at(size_t index) {
    return index < ARRAY_SIZE(samplers) ? &samplers[index] : NULL;
}

const struct sdapi_schedule *sdapi_schedule_at(size_t index) {
    return index < ARRAY_SIZE(schedules) ? &schedules[index] : NULL;
}

/* --- finding --- */

/* Returns whether the `length` bytes of `text` are `name`, ignoring case. */
static bool is(const char *text, size_t length, const char *name) {
    return name && strlen(name) == length && strncasecmp(text, name, length) == 0;
}

static bool is_one_of(
    const char *text, size_t length, const char *name, const char *const *aliases) {
    for (size_t i = 0; i < SDAPI_ALIASES_MAX && aliases[i]; i++)
        if (is(text, length, aliases[i]))
            return true;
    return is(text, length, name);
}

static const struct sdapi_sampler *find_sampler(const char *text, size_t length) {
    for (size_t i = 0; i < ARRAY_SIZE(samplers); i++)
        if (is_one_of(text, length, samplers[i].name, samplers[i].aliases))
            return &samplers[i];
    return NULL;
}

static const struct sdapi_schedule *find_schedule(const char *text) {
    const size_t length = strlen(text);
    for (size_t i = 0; i < ARRAY_SIZE(schedules); i++)
        if (is_one_of(text, length, schedules[i].name, schedules[i].aliases) ||
            is(text, length, schedules[i].label))
            return &schedules[i];
    return NULL;
}

/* Finds "DPM++ 2M Karras": the name of a sampler, a space and the name of a schedule. */
static const struct sdapi_sampler *find_both(
    const char *text, const struct sdapi_schedule **schedule) {
    for (const char *space = strchr(text, ' '); space; space = strchr(space + 1, ' ')) {
        const struct sdapi_sampler *sampler = find_sampler(text, (size_t)(space - text));
        const struct sdapi_schedule *found = sampler ? find_schedule(space + 1) : NULL;
        if (found) {
            *schedule = found;
            return sampler;
        }
    }
    return NULL;
}

static bool refuse_schedule(const char *schedule, const char *why, struct error *err) {
    char value[64], names[256];
    size_t used = 0;
    snprintf(value, sizeof(value), "\"%.60s\"", schedule);
    for (size_t i = 0; i < ARRAY_SIZE(schedules) && used < sizeof(names); i++)
        used += (size_t)snprintf(
            names + used, sizeof(names) - used, "%s%s", i ? ", " : "", schedules[i].name);
    return error_field(err, "scheduler", value, "%s%s", why, names);
}

/* Returns whether the native scheduler supports the schedule's spacing and levels. */
static bool goes_with(enum scheduler_kind kind, const struct sdapi_schedule *schedule) {
    return (scheduler_known_words(kind, OPTION_TIMESTEP_SPACING) & 1u << schedule->spacing) &&
           (schedule->levels == NO_LEVELS || scheduler_has_option(kind, schedule->levels));
}

bool sdapi_sampling_find(
    const char *sampler, const char *schedule, struct sdapi_sampling *out, struct error *err) {
    const struct sdapi_schedule *asked = find_schedule(schedule ? schedule : "automatic");
    const struct sdapi_sampler *found = find_sampler(sampler, strlen(sampler));
    if (!asked)
        return refuse_schedule(schedule, "known are ", err);
    if (!found)
        found = find_both(sampler, &asked);
    if (!found)
        return error_set(err, ERROR_INVALID, "Sampler not found");
    if (asked == &schedules[0])
        asked = find_schedule(found->schedule ? found->schedule : "uniform");
    if (!found->own_timesteps && !goes_with(found->kind, asked))
        return refuse_schedule(asked->name, "with this sampler another of ", err);
    *out = (struct sdapi_sampling){ found, asked };
    return true;
}

void sdapi_sampling_choose(
    const struct sdapi_sampling *sampling, const double *eta, struct scheduler_choice *out) {
    const struct sdapi_sampler *sampler = sampling->sampler;
    memset(out, 0, sizeof(*out));
    out->has_kind = true;
    out->kind = sampler->kind;
    if (sampler->takes_eta)
        scheduler_choose(out, OPTION_ETA, eta ? *eta : sampler->default_eta);
    /* Also switches off the levels that the checkpoint's file asks for. */
    for (size_t i = 0; i < ARRAY_SIZE(schedules); i++)
        if (schedules[i].levels != NO_LEVELS &&
            scheduler_has_option(sampler->kind, schedules[i].levels))
            scheduler_choose(out, schedules[i].levels,
                !sampler->own_timesteps && schedules[i].levels == sampling->schedule->levels);
    switch (sampler->kind) {
    case SCHEDULER_DDIM:
    case SCHEDULER_DDIM_CFGPP:
    case SCHEDULER_PNDM:
        scheduler_choose(out, OPTION_TIMESTEP_SPACING, SPACING_LEADING);
        scheduler_choose(out, OPTION_STEPS_OFFSET, 1);
        scheduler_choose(out, OPTION_SET_ALPHA_TO_ONE, false);
        return;
    case SCHEDULER_UNIPC: /* AUTOMATIC1111's defaults: order 3, B(h) = h, lowest noise at the end */
        scheduler_choose(out, OPTION_TIMESTEP_SPACING, SPACING_LINSPACE);
        scheduler_choose(out, OPTION_FINAL_SIGMAS_TYPE, FINAL_SIGMA_MIN);
        scheduler_choose(out, OPTION_SOLVER_ORDER, 3);
        scheduler_choose(out, OPTION_SOLVER_TYPE, SOLVER_BH1);
        return;
    case SCHEDULER_LCM:
    case SCHEDULER_DPM_FAST:
        return;
    default:
        break;
    }
    scheduler_choose(out, OPTION_TIMESTEP_SPACING, sampling->schedule->spacing);
    if (sampling->schedule->spacing == SPACING_LEADING)
        scheduler_choose(out, OPTION_STEPS_OFFSET, 1);
    if (sampling->schedule->levels == OPTION_USE_KL_OPTIMAL_SIGMAS &&
        scheduler_has_option(sampler->kind, OPTION_FINAL_SIGMAS_TYPE)) /* as AUTOMATIC1111's ends */
        scheduler_choose(out, OPTION_FINAL_SIGMAS_TYPE, FINAL_SIGMA_MIN);
    if (strcmp(sampler->name, "DPM++ 2M SDE Heun") == 0)
        scheduler_choose(out, OPTION_SOLVER_TYPE, SOLVER_HEUN);
}

/* Returns whether the sampling would draw with this configuration. Eta may differ. */
static bool draws_as(const struct sdapi_sampling *sampling, const struct scheduler_config *config) {
    struct scheduler_choice choice;
    sdapi_sampling_choose(sampling, NULL, &choice);
    bool same = choice.kind == config->kind;
    for (int id = 0; same && id < SCHEDULER_OPTION_COUNT; id++) {
        const struct field *field = &scheduler_options[id].field;
        same = !choice.given[id] || id == OPTION_ETA ||
               field_get(field, &choice.values) == field_get(field, &config->values);
    }
    return same;
}

bool sdapi_sampling_of(const struct scheduler_config *config, struct sdapi_sampling *out) {
    if (draws_as(out, config))
        return true;
    for (size_t i = 0; i < ARRAY_SIZE(samplers); i++)
        for (size_t s = 1; s < ARRAY_SIZE(schedules); s++) {
            *out = (struct sdapi_sampling){ &samplers[i], &schedules[s] };
            if (goes_with(config->kind, out->schedule) && draws_as(out, config))
                return true;
        }
    return false;
}

/* --- listing --- */

static json_t *aliases_json(const char *const *aliases) {
    json_t *list = json_array();
    for (size_t i = 0; list && i < SDAPI_ALIASES_MAX && aliases[i]; i++)
        if (json_array_append_new(list, json_string(aliases[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static json_t *sampler_json(const struct sdapi_sampler *sampler) {
    json_t *options = json_object();
    bool ok = options != NULL;
    if (ok && sampler->schedule)
        ok = json_object_set_new(options, "scheduler", json_string(sampler->schedule)) == 0;
    if (ok && sampler->two_calls) /* false options are left out */
        ok = json_object_set_new(options, "second_order", json_true()) == 0;
    if (ok && sampler->brownian)
        ok = json_object_set_new(options, "brownian_noise", json_true()) == 0;
    if (ok)
        return json_pack("{s:s, s:o, s:o}", "name", sampler->name, "aliases",
            aliases_json(sampler->aliases), "options", options);
    json_decref(options);
    return NULL;
}

static json_t *schedule_json(const struct sdapi_schedule *schedule) {
    return json_pack("{s:s, s:s, s:o, s:f, s:b}", "name", schedule->name, "label", schedule->label,
        "aliases", schedule->aliases[0] ? aliases_json(schedule->aliases) : json_null(),
        "default_rho", schedule->default_rho, "need_inner_model", schedule->need_inner_model);
}

/* Takes over `item`. Returns false if memory is short, also if `item` is NULL for that reason. */
static bool append(json_t *list, json_t *item) {
    return json_array_append_new(list, item) == 0;
}

json_t *sdapi_samplers_json(void) {
    json_t *list = json_array();
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < ARRAY_SIZE(samplers); i++)
        ok = append(list, sampler_json(&samplers[i]));
    if (!ok)
        json_decref(list);
    return ok ? list : NULL;
}

json_t *sdapi_schedules_json(void) {
    json_t *list = json_array();
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < ARRAY_SIZE(schedules); i++)
        ok = append(list, schedule_json(&schedules[i]));
    if (!ok)
        json_decref(list);
    return ok ? list : NULL;
}
