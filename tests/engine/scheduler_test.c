/* Schedulers against diffusers: the sums that its own unit tests publish, the timesteps, and
 * trajectories recorded with tests/reference/schedulers.py. */
#include "engine/noise.h"
#include "engine/scheduler/noise_schedule.h"
#include "tests/check.h"

#include <stdlib.h>

#define MAX_ELEMENTS 768
#define RECORDED_SEED 11
#define RECORDED_ELEMENTS 16

/* A plan applied in plain loops, so that only the table is under test here. */
struct run {
    int count;
    float terms[TERM_COUNT][MAX_ELEMENTS];
    struct noise_generator generator;
};

static void apply(struct run *run, const struct scheduler_evaluation *evaluation) {
    if (evaluation->draws_noise)
        noise_draw(&run->generator, run->terms[TERM_NOISE], run->count);
    for (int u = 0; u < evaluation->update_count; u++) {
        const struct scheduler_update *update = &evaluation->updates[u];
        for (int i = 0; i < run->count; i++) {
            float sum = 0;
            for (int term = 0; term < TERM_COUNT; term++)
                if (update->weights[term] != 0)
                    sum += update->weights[term] * run->terms[term][i];
            run->terms[update->target][i] = sum;
        }
    }
}

/* diffusers' own scheduler tests: the sample is a ramp, the model x t / (t + 1). */
static void fill_ramp(float *out, bool reversed) {
    for (int b = 0; b < 4; b++)
        for (int k = 0; k < 192; k++) {
            float value = (float)(k * 4 + b) / MAX_ELEMENTS;
            out[b * 192 + k] = reversed ? (float)(767 - (k * 4 + b)) / MAX_ELEMENTS : value;
        }
}

struct published {
    const char *name, *file;
    struct scheduler_options options;
    int steps, first; /* first > 0: starts there, with the ramp noised to its level */
    double sum, mean;
};

/* Their DDPM and DDIM clip x0 to [-1, 1], which is not linear: it is done here, outside the plan,
 * on a plan for models that predict x0. For DDIM, whose noise is not recomputed from the clipped
 * x0, the sample is set such that the plan recovers the noise unchanged. */
static void step_clipped(struct run *run, const struct scheduler_evaluation *evaluation,
    enum prediction_type prediction, float alpha, bool keeps_noise) {
    float *sample = run->terms[TERM_SAMPLE], *output = run->terms[TERM_OUTPUT];
    float a = sqrtf(alpha), b = sqrtf(1 - alpha);
    for (int i = 0; i < run->count; i++) {
        float e = output[i], x = sample[i];
        float x0 = prediction == PREDICTION_V ? a * x - b * e : (x - b * e) / a;
        float noise = prediction == PREDICTION_V ? a * e + b * x : e;
        output[i] = fminf(fmaxf(x0, -1), 1);
        if (keeps_noise)
            sample[i] = a * output[i] + b * noise;
    }
    apply(run, evaluation);
}

static void sum_is_published(const struct published *p) {
    static struct run run;
    struct error err = { 0 };
    json_t *file = json_loads(p->file, 0, NULL);
    struct scheduler_config config;
    struct scheduler_plan *plan = NULL;
    struct noise_schedule schedule = { 0 };
    bool clips = p->options.kind != SCHEDULER_PNDM;
    bool ok = scheduler_config_resolve(file, &p->options, &config, &err);
    enum prediction_type prediction = config.prediction;
    if (clips)
        config.prediction = PREDICTION_SAMPLE;
    ok = ok && scheduler_plan_create(&config, p->steps, &plan, &err) &&
         noise_schedule_init(&config, &schedule, &err);
    CHECK(ok, "%s: %s", p->name, err.message);
    if (!ok)
        return;
    memset(&run, 0, sizeof(run));
    run.count = MAX_ELEMENTS;
    noise_init(&run.generator, RNG_CPU, 0);
    fill_ramp(run.terms[TERM_SAMPLE], false);
    if (p->first) {
        float alpha = schedule.alphas_cumprod[(int)plan->evaluations[p->first].timestep];
        float noise[MAX_ELEMENTS];
        fill_ramp(noise, true);
        for (int i = 0; i < MAX_ELEMENTS; i++)
            run.terms[TERM_SAMPLE][i] = sqrtf(alpha) * run.terms[TERM_SAMPLE][i] +
                                        sqrtf(1 - alpha) * noise[i];
    }
    for (int k = p->first; k < plan->count; k++) {
        const struct scheduler_evaluation *evaluation = &plan->evaluations[k];
        float t = evaluation->timestep;
        for (int i = 0; i < MAX_ELEMENTS; i++)
            run.terms[TERM_OUTPUT][i] = run.terms[TERM_SAMPLE][i] * t / (t + 1);
        if (clips)
            step_clipped(&run, evaluation, prediction, schedule.alphas_cumprod[(int)t],
                p->options.kind == SCHEDULER_DDIM);
        else
            apply(&run, evaluation);
    }
    double sum = 0;
    for (int i = 0; i < MAX_ELEMENTS; i++)
        sum += fabsf(run.terms[TERM_SAMPLE][i]);
    printf("%-28s sum %.4f published %.4f\n", p->name, sum, p->sum);
    CHECK_NEAR(sum, p->sum, 1e-2);
    CHECK_NEAR(sum / MAX_ELEMENTS, p->mean, 1e-3);
    noise_schedule_finish(&schedule);
    scheduler_plan_destroy(plan);
    json_decref(file);
}

static void published_sums(void) {
#define CLASS(name) "{\"_class_name\": \"" name "\"}"
#define HIGH_BETA(alpha)                                                                           \
    "{\"beta_start\": 0.01, \"set_alpha_to_one\": " alpha ", \"steps_offset\": 0}"
#define KIND(k) .has_kind = true, .kind = k, .has_steps_offset = true
#define V .has_prediction = true, .prediction = PREDICTION_V
    const struct published cases[] = {
        { "ddim", CLASS("x"), { KIND(SCHEDULER_DDIM) }, 10, 0, 172.0067, 0.223967 },
        { "ddim v", CLASS("x"), { KIND(SCHEDULER_DDIM), V }, 10, 0, 52.5302, 0.0684 },
        { "ddim alpha to one", HIGH_BETA("true"), { KIND(SCHEDULER_DDIM) }, 10, 0, 149.8295,
            0.1951 },
        { "ddim no alpha to one", HIGH_BETA("false"), { KIND(SCHEDULER_DDIM) }, 10, 0, 149.0784,
            0.1941 },
        { "ddim from noise", CLASS("x"), { KIND(SCHEDULER_DDIM) }, 10, 8, 354.5418, 0.4616 },
        { "ddpm", CLASS("x"), { KIND(SCHEDULER_DDPM) }, 1000, 0, 258.9606, 0.3372 },
        { "ddpm v", CLASS("x"), { KIND(SCHEDULER_DDPM), V }, 1000, 0, 202.0296, 0.2631 },
        { "ddpm from noise", CLASS("x"), { KIND(SCHEDULER_DDPM) }, 1000, 998, 387.9466, 0.5051 },
        { "pndm prk", CLASS("x"), { KIND(SCHEDULER_PNDM) }, 10, 0, 198.1318, 0.2580 },
        { "pndm prk v", CLASS("x"), { KIND(SCHEDULER_PNDM), V }, 10, 0, 67.3986, 0.0878 },
        { "pndm prk alpha to one", HIGH_BETA("true"), { KIND(SCHEDULER_PNDM) }, 10, 0, 230.0399,
            0.2995 },
        { "pndm prk no alpha to one", HIGH_BETA("false"), { KIND(SCHEDULER_PNDM) }, 10, 0, 186.9482,
            0.2434 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        sum_is_published(&cases[i]);
}

/* The options of a recorded case, by the API's names. */
static struct scheduler_options parse_options(const json_t *item) {
    struct scheduler_options o = { .has_kind = true };
    const json_t *options = json_object_get(item, "options"), *value;
    const char *word = json_string_value(json_object_get(item, "scheduler"));
    CHECK(scheduler_kind_from_name(word, &o.kind), "%s", word);
    if ((value = json_object_get(options, "timestep_spacing")))
        o.has_spacing = timestep_spacing_from_name(json_string_value(value), &o.spacing);
    if ((value = json_object_get(options, "prediction_type")))
        o.has_prediction = prediction_type_from_name(json_string_value(value), &o.prediction);
    if ((value = json_object_get(options, "beta_schedule")))
        o.has_beta_schedule = beta_schedule_from_name(json_string_value(value), &o.beta_schedule);
    if ((value = json_object_get(options, "eta"))) {
        o.has_eta = true;
        o.eta = json_number_value(value);
    }
    if ((value = json_object_get(options, "steps_offset"))) {
        o.has_steps_offset = true;
        o.steps_offset = (int)json_integer_value(value);
    }
    if ((value = json_object_get(options, "set_alpha_to_one"))) {
        o.has_set_alpha_to_one = true;
        o.set_alpha_to_one = json_is_true(value);
    }
    if ((value = json_object_get(options, "rescale_betas_zero_snr"))) {
        o.has_rescale_zero_snr = true;
        o.rescale_zero_snr = json_is_true(value);
    }
    return o;
}

static double trajectory_error(const json_t *item, const struct scheduler_plan *plan) {
    static struct run run;
    memset(&run, 0, sizeof(run));
    run.count = RECORDED_ELEMENTS;
    noise_init(&run.generator, RNG_CPU, RECORDED_SEED);
    float *x = run.terms[TERM_SAMPLE];
    noise_draw(&run.generator, x, RECORDED_ELEMENTS);
    for (int k = 0; k < plan->count; k++) {
        float t = plan->evaluations[k].timestep;
        for (int i = 0; i < RECORDED_ELEMENTS; i++)
            run.terms[TERM_OUTPUT][i] = sinf(3 * x[i]) / 2 + x[i] * ((t + 1) / 2000);
        apply(&run, &plan->evaluations[k]);
    }
    const json_t *final = json_object_get(item, "final");
    double largest = 0, difference = 0;
    for (size_t i = 0; i < RECORDED_ELEMENTS; i++) {
        double expected = json_number_value(json_array_get(final, i));
        largest = fmax(largest, fabs(expected));
        difference = fmax(difference, fabs(x[i] - expected));
        if (isnan(x[i]))
            return INFINITY;
    }
    return difference / largest;
}

static void recorded_trajectories(const json_t *cases) {
    size_t index;
    json_t *item;
    double worst = 0;
    json_array_foreach(cases, index, item) {
        struct error err = { 0 };
        struct scheduler_config config;
        struct scheduler_plan *plan = NULL;
        struct scheduler_options options = parse_options(item);
        char *text = json_dumps(item, JSON_COMPACT);
        text[strcspn(text, "[")] = 0;
        if (!scheduler_config_resolve(json_object_get(item, "file"), &options, &config, &err) ||
            !scheduler_plan_create(
                &config, (int)json_integer_value(json_object_get(item, "steps")), &plan, &err)) {
            CHECK(false, "case %zu: %s", index, err.message);
            free(text);
            continue;
        }
        const json_t *timesteps = json_object_get(item, "timesteps");
        bool same = json_array_size(timesteps) == (size_t)plan->count;
        for (int k = 0; same && k < plan->count; k++)
            same = plan->evaluations[k].timestep ==
                   (float)json_integer_value(json_array_get(timesteps, (size_t)k));
        CHECK(same, "timesteps of case %zu %s", index, text);
        double error = trajectory_error(item, plan);
        worst = fmax(worst, error);
        CHECK(error <= 1e-5, "case %zu %s: relative error %.2g", index, text, error);
        free(text);
        scheduler_plan_destroy(plan);
    }
    CHECK(index > 400, "%zu cases", index);
    printf("%zu trajectories of diffusers, worst relative error %.2g\n", index, worst);
}

static void spaced_timesteps_of_every_length(const json_t *checksums) {
    int compared = 0;
    for (int spacing = 0; spacing < SPACING_COUNT; spacing++) {
        struct scheduler_config config = { .num_train_timesteps = 1000,
            .spacing = (enum timestep_spacing)spacing };
        const json_t *sums = json_object_get(checksums, timestep_spacing_name(config.spacing));
        for (int n = 1; n <= 1000; n++) {
            int timesteps[1000];
            json_int_t sum = 0;
            struct error err = { 0 };
            CHECK(noise_schedule_timesteps(&config, n, timesteps, &err), "%s", err.message);
            for (int i = 0; i < n; i++)
                sum += (json_int_t)(i + 1) * timesteps[i];
            CHECK(sum == json_integer_value(json_array_get(sums, (size_t)n - 1)), "%s %d",
                timestep_spacing_name(config.spacing), n);
            CHECK(timesteps[n - 1] >= 0, "%s %d ends at %d", timestep_spacing_name(config.spacing),
                n, timesteps[n - 1]);
            compared++;
        }
    }
    printf("%d lists of timesteps\n", compared);
}

static void alphas_of_stable_diffusion(void) {
    const struct {
        int t;
        float value;
    } known[] = { { 0, 0.99914998f }, { 1, 0.99829602f }, { 500, 0.27633247f },
        { 999, 0.00466010f } };
    struct scheduler_config config = { .num_train_timesteps = 1000,
        .beta_start = 0.00085,
        .beta_end = 0.012,
        .beta_schedule = BETA_SCALED_LINEAR };
    struct noise_schedule schedule;
    struct error err = { 0 };
    CHECK(noise_schedule_init(&config, &schedule, &err), "%s", err.message);
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(schedule.alphas_cumprod[known[i].t], known[i].value, 1e-8);
    noise_schedule_finish(&schedule);
    config.rescale_zero_snr = true;
    CHECK(noise_schedule_init(&config, &schedule, &err), "%s", err.message);
    CHECK(schedule.alphas_cumprod[999] == 0, "%g", schedule.alphas_cumprod[999]);
    noise_schedule_finish(&schedule);
}

static void refused(const char *file, struct scheduler_options options, int steps,
    enum error_code code, const char *part) {
    struct error err = { 0 };
    struct scheduler_config config;
    struct scheduler_plan *plan = NULL;
    json_t *json = json_loads(file, JSON_DECODE_ANY, NULL);
    CHECK(!scheduler_config_resolve(json, &options, &config, &err) ||
              !scheduler_plan_create(&config, steps, &plan, &err),
        "%s is taken", file);
    CHECK(err.code == code, "%s: %s", error_code_name(err.code), err.message);
    CHECK_CONTAINS(err.message, part);
    scheduler_plan_destroy(plan);
    json_decref(json);
}

static void refusals_name_the_key(void) {
    const struct scheduler_options none = { 0 };
#define DDIM "{\"_class_name\": \"DDIMScheduler\", "
#define PNDM "{\"_class_name\": \"PNDMScheduler\", "
    refused("[]", none, 5, ERROR_INVALID, "not a JSON object");
    refused("{}", none, 5, ERROR_UNSUPPORTED, "_class_name");
    refused("{\"_class_name\": \"EulerDiscreteScheduler\"}", none, 5, ERROR_UNSUPPORTED,
        "EulerDiscreteScheduler");
    refused(DDIM "\"thresholding\": true}", none, 5, ERROR_UNSUPPORTED, "thresholding");
    refused(DDIM "\"beta_start\": 1.5}", none, 5, ERROR_INVALID, "beta_start: 1.5");
    refused(DDIM "\"beta_schedule\": \"sigmoid\"}", none, 5, ERROR_INVALID, "squaredcos_cap_v2");
    refused(DDIM "\"num_train_timesteps\": 0}", none, 5, ERROR_INVALID, "num_train_timesteps");
    refused(DDIM "\"num_train_timesteps\": 99999999999}", none, 5, ERROR_INVALID, "integer");
    refused(DDIM "\"trained_betas\": [0.1]}", none, 5, ERROR_INVALID, "trained_betas");
    refused(DDIM "\"set_alpha_to_one\": 1}", none, 5, ERROR_INVALID, "true or false");
    refused(DDIM "\"beta_start\": 0, \"beta_end\": 0}", none, 5, ERROR_INVALID, "betas");
    refused(PNDM "\"prediction_type\": \"sample\"}", none, 5, ERROR_INVALID, "prediction_type");
    refused("{\"_class_name\": \"DDPMScheduler\", \"variance_type\": \"learned\"}", none, 5,
        ERROR_INVALID, "variance_type");
    /* 1000 leading steps with offset 1 would start at timestep 1000 of 0..999. */
    refused(DDIM "\"steps_offset\": 1}", none, 1000, ERROR_INVALID, "first timestep would be 1000");
    refused(DDIM "\"num_train_timesteps\": 20}", none, 21, ERROR_INVALID, "1 to 20");
    refused(DDIM "\"steps_offset\": 1}", none, 0, ERROR_INVALID, "num_inference_steps");
    refused(PNDM "\"skip_prk_steps\": false}", none, 3, ERROR_INVALID, "at least 4");
    refused(DDIM "\"rescale_betas_zero_snr\": true, \"timestep_spacing\": \"trailing\"}", none, 5,
        ERROR_INVALID, "v_prediction");
    refused(PNDM "\"steps_offset\": 1}", (struct scheduler_options){ .has_eta = true }, 5,
        ERROR_INVALID, "pndm has no such option");
    refused(DDIM "\"steps_offset\": 1}", (struct scheduler_options){ .has_eta = true, .eta = 1.5 },
        5, ERROR_INVALID, "0 to 1");
    refused(DDIM "\"steps_offset\": 1}",
        (struct scheduler_options){ .has_steps_offset = true, .steps_offset = -1 }, 5,
        ERROR_INVALID, "steps_offset");
}

static void pipeline_fixes_are_reported(void) {
    struct scheduler_config config;
    struct error err = { 0 };
    json_t *json = json_loads(
        DDIM "\"steps_offset\": 0, \"zeta\": 1, \"use_karras_sigmas\": true}", 0, NULL);
    CHECK(scheduler_config_resolve(json, &(struct scheduler_options){ 0 }, &config, &err), "%s",
        err.message);
    CHECK(config.steps_offset == 1 && config.replaced_steps_offset, "%d", config.steps_offset);
    CHECK(config.replaced_clip_sample, "DDIM's default clip_sample is true");
    CHECK_STRING(config.ignored_keys, "zeta");
    CHECK(config.set_alpha_to_one, "DDIM's default");
    json_decref(json);
}

int main(int argc, char **argv) {
    json_error_t why;
    json_t *data = argc == 2 ? json_load_file(argv[1], 0, &why) : NULL;
    if (!data)
        return 2;
    published_sums();
    alphas_of_stable_diffusion();
    recorded_trajectories(json_object_get(data, "cases"));
    spaced_timesteps_of_every_length(json_object_get(data, "checksums"));
    refusals_name_the_key();
    pipeline_fixes_are_reported();
    json_decref(data);
    return check_done();
}
