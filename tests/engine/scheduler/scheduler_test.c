/* Schedulers compared with diffusers: the sums in diffusers' own unit tests, its timesteps, and
 * runs recorded with tests/reference/schedulers.py. */
#include "engine/scheduler/brownian.h"
#include "engine/scheduler/class.h"
#include "kernels/random/noise.h"
#include "tests/check.h"

#include <stdlib.h>

#define MAX_ELEMENTS 768
#define BAR 1e-5 /* allowed error / sample's mean size, each step */
#define RECORDED_SEED 11
#define RECORDED_GUIDANCE 7.5f
#define RECORDED_ELEMENTS 16
#define RECORDED_VALUES 4   /* the first of RECORDED_ELEMENTS */
#define RECORDED_IN_A_ROW 6 /* consecutive evaluations kept of a long run */
#define MAX_KEPT 64         /* evaluations kept of one run */
#define MAX_GAPS 16         /* gaps between kept evaluations */

/* Applies a plan with plain loops, so that only the plan's table is under test. */
struct run {
    int count;
    float terms[TERM_COUNT][MAX_ELEMENTS];
    struct noise_generator generator;
    struct brownian *brownian; /* owned */
};

static void start_noise(struct run *run, const struct scheduler_plan *plan, uint64_t seed) {
    struct error err = { 0 };
    noise_init(&run->generator, RNG_CPU, seed);
    run->brownian = NULL;
    if (scheduler_plan_is_brownian(plan) &&
        !brownian_create(plan, RNG_CPU, seed, run->count, false, &run->brownian, &err))
        CHECK(false, "%s", err.message);
}

static void apply(struct run *run, const struct scheduler_evaluation *evaluation) {
    if (evaluation_is_brownian(evaluation))
        brownian_draw(run->brownian, run->terms[TERM_NOISE]);
    else if (evaluation->draws_noise)
        noise_draw(&run->generator, run->terms[TERM_NOISE], run->count);
    for (int u = 0; u < evaluation->update_count; u++) {
        const struct scheduler_update *update = &evaluation->updates[u];
        for (int i = 0; i < run->count; i++) {
            float sum = 0;
            for (int term = 0; term < TERM_COUNT; term++)
                if (update->weights[term] != 0)
                    sum += update->weights[term] * run->terms[term][i];
            run->terms[update->target][i] = sum / update->divisor;
        }
    }
}

/* From diffusers' own scheduler tests: the sample is a ramp, and the model computes x t / (t +
 * 1). */
static void fill_ramp(float *out, bool reversed) {
    for (int b = 0; b < 4; b++)
        for (int k = 0; k < 192; k++) {
            float value = (float)(k * 4 + b) / MAX_ELEMENTS;
            out[b * 192 + k] = reversed ? (float)(767 - (k * 4 + b)) / MAX_ELEMENTS : value;
        }
}

struct published {
    const char *name, *file;
    enum scheduler_kind kind;
    bool predicts_v;
    int steps, first; /* first > 0: starts there, with noise added to the ramp */
    double sum, mean; /* sum 0: not published */
};

/* diffusers' DDPM and DDIM tests clip x0 to [-1, 1], which a linear plan cannot do. So it is
 * clipped here, and the plan is one for models that predict x0. DDIM does not recompute the noise
 * from the clipped x0, so the sample is set such that the plan recovers the noise unchanged. */
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

/* Makes the start of diffusers' tests: the ramp; for `first` > 0, the ramp with the noise of that
 * step. */
static void start_published(struct run *run, const struct scheduler_plan *plan,
    const struct noise_schedule *schedule, int first) {
    const struct scheduler_evaluation *evaluation = &plan->evaluations[first];
    float noise[MAX_ELEMENTS], divisor = evaluation->input_divisor;
    /* In sigma-space the sample is not scaled and the noise is scaled by sigma. */
    bool in_sigmas = divisor != 1;
    float alpha = in_sigmas ? 0 : schedule->alphas_cumprod[(int)evaluation->timestep];
    float ramp_size = !first ? 1 : in_sigmas ? 1 : sqrtf(alpha);
    float noise_size = !first ? 0 : in_sigmas ? sqrtf(divisor * divisor - 1) : sqrtf(1 - alpha);
    float *sample = run->terms[TERM_SAMPLE];
    fill_ramp(sample, false);
    fill_ramp(noise, true);
    for (int i = 0; i < MAX_ELEMENTS; i++)
        sample[i] = ramp_size * plan->init_noise_sigma * sample[i] + noise_size * noise[i];
}

static void sum_is_published(const struct published *p) {
    static struct run run;
    struct error err = { 0 };
    json_t *file = json_loads(p->file, 0, NULL);
    struct scheduler_config config;
    struct scheduler_plan *plan = NULL;
    struct noise_schedule schedule = { 0 };
    bool clips = p->kind == SCHEDULER_DDPM || p->kind == SCHEDULER_DDIM;
    struct scheduler_choice choice = { .has_kind = true, .kind = p->kind };
    if (scheduler_has_option(p->kind, OPTION_STEPS_OFFSET))
        scheduler_choose(&choice, OPTION_STEPS_OFFSET, 0);
    if (p->predicts_v)
        scheduler_choose(&choice, OPTION_PREDICTION_TYPE, PREDICTION_V);
    bool ok = scheduler_config_resolve(file, &choice, &config, &err);
    enum prediction_type prediction = config.values.prediction_type;
    if (clips)
        config.values.prediction_type = PREDICTION_SAMPLE;
    ok = ok && scheduler_plan_create(&config, p->steps, &plan, &err) &&
         noise_schedule_init(&config, &schedule, &err);
    CHECK(ok, "%s: %s", p->name, err.message);
    if (!ok)
        return;
    memset(&run, 0, sizeof(run));
    run.count = MAX_ELEMENTS;
    start_noise(&run, plan, 0);
    start_published(&run, plan, &schedule, p->first);
    for (int k = p->first; k < plan->count; k++) {
        const struct scheduler_evaluation *evaluation = &plan->evaluations[k];
        float t = evaluation->timestep;
        for (int i = 0; i < MAX_ELEMENTS; i++) {
            /* diffusers' tests continue from the scaled sample. */
            run.terms[TERM_SAMPLE][i] /= evaluation->input_divisor;
            run.terms[TERM_OUTPUT][i] = run.terms[TERM_SAMPLE][i] * t / (t + 1);
        }
        if (clips)
            step_clipped(&run, evaluation, prediction, schedule.alphas_cumprod[(int)t],
                p->kind == SCHEDULER_DDIM);
        else
            apply(&run, evaluation);
    }
    double sum = 0;
    for (int i = 0; i < MAX_ELEMENTS; i++)
        sum += fabsf(run.terms[TERM_SAMPLE][i]);
    printf("%-28s sum %.4f published %.4f, mean %.4f published %.4f\n", p->name, sum, p->sum,
        sum / MAX_ELEMENTS, p->mean);
    if (p->sum > 0)
        CHECK_NEAR(sum, p->sum, 1e-2);
    CHECK_NEAR(sum / MAX_ELEMENTS, p->mean, 1e-3);
    brownian_destroy(run.brownian);
    noise_schedule_finish(&schedule);
    scheduler_plan_destroy(plan);
    json_decref(file);
}

static void published_sums(void) {
#define CLASS(name) "{\"_class_name\": \"" name "\"}"
#define HIGH_BETA(alpha)                                                                           \
    "{\"beta_start\": 0.01, \"set_alpha_to_one\": " alpha ", \"steps_offset\": 0}"
#define T1100(more)                                                                                \
    "{\"num_train_timesteps\": 1100, \"beta_start\": 0.0001, \"beta_end\": 0.02" more "}"
#define KARRAS ", \"use_karras_sigmas\": true"
#define ENDS_LOW(more) "{\"final_sigmas_type\": \"sigma_min\"" more "}"
#define DPM(more) ENDS_LOW(", \"lower_order_final\": false" more)
    const struct published cases[] = {
        { "unipc", ENDS_LOW(""), SCHEDULER_UNIPC, false, 10, 0, 0, 0.2464 },
        { "unipc karras", ENDS_LOW(KARRAS), SCHEDULER_UNIPC, false, 10, 0, 0, 0.2925 },
        { "unipc v", ENDS_LOW(""), SCHEDULER_UNIPC, true, 10, 0, 0, 0.1014 },
        { "unipc karras v", ENDS_LOW(KARRAS), SCHEDULER_UNIPC, true, 10, 0, 0, 0.1966 },
        { "deis", CLASS("x"), SCHEDULER_DEIS, false, 10, 0, 0, 0.23916 },
        { "deis v", CLASS("x"), SCHEDULER_DEIS, true, 10, 0, 0, 0.091 },
        { "dpm++ sde", T1100(""), SCHEDULER_DPMPP_SDE, false, 10, 0, 162.5238, 0.2116 },
        { "dpm++ sde v", T1100(""), SCHEDULER_DPMPP_SDE, true, 10, 0, 119.8488, 0.1561 },
        { "dpm++ sde karras", T1100(KARRAS), SCHEDULER_DPMPP_SDE, false, 10, 0, 170.3135, 0.2218 },
        { "dpm++ 2m", DPM(""), SCHEDULER_DPMPP_2M, false, 10, 0, 0, 0.3301 },
        { "dpm++ 2m v", DPM(""), SCHEDULER_DPMPP_2M, true, 10, 0, 0, 0.2251 },
        { "dpm++ 2m karras v", DPM(", \"use_karras_sigmas\": true"), SCHEDULER_DPMPP_2M, true, 10,
            0, 0, 0.2096 },
        { "dpm++ 2m lu v", DPM(", \"use_lu_lambdas\": true"), SCHEDULER_DPMPP_2M, true, 10, 0, 0,
            0.1554 },
        { "ddim", CLASS("x"), SCHEDULER_DDIM, false, 10, 0, 172.0067, 0.223967 },
        { "ddim v", CLASS("x"), SCHEDULER_DDIM, true, 10, 0, 52.5302, 0.0684 },
        { "ddim alpha to one", HIGH_BETA("true"), SCHEDULER_DDIM, false, 10, 0, 149.8295, 0.1951 },
        { "ddim no alpha to one", HIGH_BETA("false"), SCHEDULER_DDIM, false, 10, 0, 149.0784,
            0.1941 },
        { "ddim from noise", CLASS("x"), SCHEDULER_DDIM, false, 10, 8, 354.5418, 0.4616 },
        { "ddpm", CLASS("x"), SCHEDULER_DDPM, false, 1000, 0, 258.9606, 0.3372 },
        { "ddpm v", CLASS("x"), SCHEDULER_DDPM, true, 1000, 0, 202.0296, 0.2631 },
        { "ddpm from noise", CLASS("x"), SCHEDULER_DDPM, false, 1000, 998, 387.9466, 0.5051 },
        { "pndm prk", CLASS("x"), SCHEDULER_PNDM, false, 10, 0, 198.1318, 0.2580 },
        { "pndm prk v", CLASS("x"), SCHEDULER_PNDM, true, 10, 0, 67.3986, 0.0878 },
        { "pndm prk alpha to one", HIGH_BETA("true"), SCHEDULER_PNDM, false, 10, 0, 230.0399,
            0.2995 },
        { "pndm prk no alpha to one", HIGH_BETA("false"), SCHEDULER_PNDM, false, 10, 0, 186.9482,
            0.2434 },
        { "euler", T1100(""), SCHEDULER_EULER, false, 10, 0, 10.0807, 0.0131 },
        { "euler v", T1100(""), SCHEDULER_EULER, true, 10, 0, 0.0002, 2.2676e-06 },
        { "euler karras", T1100(KARRAS), SCHEDULER_EULER, false, 10, 0, 124.52299, 0.162139 },
        { "euler from noise", T1100(""), SCHEDULER_EULER, false, 10, 8, 57062.9297, 74.3007 },
        { "euler a", T1100(""), SCHEDULER_EULER_ANCESTRAL, false, 10, 0, 152.3192, 0.1983 },
        { "euler a v", T1100(""), SCHEDULER_EULER_ANCESTRAL, true, 10, 0, 108.4439, 0.1412 },
        { "euler a from noise", T1100(""), SCHEDULER_EULER_ANCESTRAL, false, 10, 8, 56163.0508,
            73.1290 },
        { "heun", T1100(""), SCHEDULER_HEUN, false, 10, 0, 0.1233, 0.0002 },
        { "heun v", T1100(""), SCHEDULER_HEUN, true, 10, 0, 4.6934e-07, 6.1112e-10 },
        { "heun karras", T1100(KARRAS), SCHEDULER_HEUN, false, 10, 0, 0.00015, 1.9870e-07 },
        { "heun from noise", T1100(""), SCHEDULER_HEUN, false, 10, 16, 75074.8906, 97.7538 },
        { "lms", T1100(""), SCHEDULER_LMS, false, 10, 0, 1006.388, 1.31 },
        { "lms v", T1100(""), SCHEDULER_LMS, true, 10, 0, 0.0017, 2.2676e-06 },
        { "lms karras", T1100(KARRAS), SCHEDULER_LMS, false, 10, 0, 3812.9927, 4.9648 },
        { "dpm2", T1100(""), SCHEDULER_DPM2, false, 10, 0, 20.4125, 0.0266 },
        { "dpm2 v", T1100(""), SCHEDULER_DPM2, true, 10, 0, 4.6934e-07, 6.1112e-10 },
        { "dpm2 from noise", T1100(""), SCHEDULER_DPM2, false, 10, 16, 70408.4062, 91.6776 },
        { "dpm2 a", T1100(""), SCHEDULER_DPM2_ANCESTRAL, false, 10, 0, 13979.9433, 18.2030 },
        { "dpm2 a v", T1100(""), SCHEDULER_DPM2_ANCESTRAL, true, 10, 0, 331.8133, 0.4320 },
        { "dpm2 a from noise", T1100(""), SCHEDULER_DPM2_ANCESTRAL, false, 10, 16, 93087.3437,
            121.2074 },
        { "lcm, 1 step", CLASS("LCMScheduler"), SCHEDULER_LCM, false, 1, 0, 18.7097, 0.0244 },
        { "lcm", CLASS("LCMScheduler"), SCHEDULER_LCM, false, 10, 0, 197.7616, 0.2575 },
        { "tcd, 1 step", CLASS("TCDScheduler"), SCHEDULER_TCD, false, 1, 0, 29.8715, 0.0389 },
        { "tcd", CLASS("TCDScheduler"), SCHEDULER_TCD, false, 10, 0, 181.2040, 0.2359 },

    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        sum_is_published(&cases[i]);
}

/* --- recorded runs --- */

/* Whether a recorded case keeps evaluation k: kept() of tests/reference/schedulers.py. */
static bool is_kept(int k, int count) {
    int stride = (count + 15) / 16 * 2;
    return count <= 41 || k % stride < RECORDED_IN_A_ROW || k >= count - RECORDED_IN_A_ROW;
}

/* Decodes into out[rows][RECORDED_VALUES]. Returns false unless the text holds exactly that many
 * values. */
static bool decode_samples(const char *text, int rows, float out[][RECORDED_VALUES]) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t size = (size_t)rows * sizeof(*out), done = 0;
    unsigned char *bytes = (unsigned char *)out;
    uint32_t bits = 0;
    int held = 0;
    for (; text && *text && *text != '='; text++) {
        const char *digit = strchr(digits, *text);
        if (!digit)
            return false;
        bits = bits << 6 | (uint32_t)(digit - digits);
        held += 6;
        if (held < 8)
            continue;
        held -= 8;
        if (done == size)
            return false;
        bytes[done++] = (unsigned char)(bits >> held);
    }
    return done == size;
}

/* A plan's distance from the reference, relative to the sample's mean size. run: over the whole
 * run. step: the largest of single steps, each started from the reference's sample. */
struct distance {
    double run, step, timestep;
};

/* Zero terminal SNR and cosine betas start with samples in the thousands, so the roundings of such
 * large numbers remain in the result. In sigma-space the reference rounds three times: the
 * difference from x0, the derivative, and its product with the step. Errors of that size are
 * ignored. */
static double distance_of(const float *x, const float *expected, double largest) {
    double mean = 0, error = 0;
    for (int i = 0; i < RECORDED_VALUES; i++) {
        double d = fabs((double)x[i] - (double)expected[i]);
        mean += fabs((double)expected[i]) / RECORDED_VALUES;
        error = isnan(d) ? INFINITY : fmax(error, d);
    }
    return fmax(error - 3 * largest * 0x1p-24, 0) / mean;
}

static double largest_of(const float *x) {
    double largest = 0;
    for (int i = 0; i < RECORDED_VALUES; i++)
        largest = fmax(largest, fabs((double)x[i]));
    return largest;
}

/* sin(factor x) / 10 + x (t + 1) / divisor */
static float output_of(float x, float timestep, float factor, double divisor) {
    return (float)sin((double)(factor * x)) / 10 + x * (float)(((double)timestep + 1) / divisor);
}

static void call_model(struct run *run, const struct scheduler_plan *plan,
    const struct scheduler_evaluation *evaluation) {
    for (int i = 0; i < run->count; i++) {
        float seen = run->terms[TERM_SAMPLE][i] / evaluation->input_divisor;
        float output = output_of(seen, evaluation->timestep, 3, 1100);
        float without = output_of(seen, evaluation->timestep, 2, 1200);
        run->terms[TERM_UNCONDITIONAL][i] = without;
        run->terms[TERM_OUTPUT][i] = plan->must_guide
                                         ? without + RECORDED_GUIDANCE * plan->guidance_factor *
                                                         (output - without)
                                         : output;
    }
}

/* The noise that every recorded case starts from. Our noise sometimes differs from torch's by one
 * rounding (noise.h), and with cosine betas a single step enlarges that 20,000 times. */
static float recorded_start[RECORDED_VALUES];

/* The reference's samples of one case, after each evaluation that was kept. UniPC's plans also keep
 * a corrected sample in slot 0. It was recorded after the first evaluation of each sequence of
 * consecutive kept evaluations, except for the first sequence. */
struct recorded {
    float samples[MAX_KEPT][RECORDED_VALUES];
    float last_samples[MAX_GAPS][RECORDED_VALUES];
    bool has_last_samples;
};

/* Runs the plan and returns the largest distance from the recorded samples. The run continues from
 * its own samples or, with `by_steps`, from the recorded sample before every evaluation. With
 * `by_steps`, only steps whose earlier samples were all recorded count. */
static double follow(
    const struct scheduler_plan *plan, const struct recorded *recorded, bool by_steps) {
    static struct run run;
    memset(&run, 0, sizeof(run));
    run.count = RECORDED_ELEMENTS;
    start_noise(&run, plan, RECORDED_SEED);
    float *x = run.terms[TERM_SAMPLE];
    noise_draw(&run.generator, x, RECORDED_ELEMENTS);
    memcpy(x, recorded_start, sizeof(recorded_start));
    for (int i = 0; i < RECORDED_ELEMENTS; i++)
        x[i] *= plan->init_noise_sigma;
    double worst = 0, largest = 0, last = 0;
    int row = 0, gap = 0,
        in_a_row = RECORDED_IN_A_ROW; /* known samples in a row, including this one */
    for (int k = 0; k < plan->count; k++) {
        if (by_steps && k > 0) {
            bool known = is_kept(k - 1, plan->count);
            in_a_row = known ? in_a_row + 1 : 0;
            if (known)
                memcpy(x, recorded->samples[row - 1], sizeof(*recorded->samples));
            if (in_a_row == 1 && recorded->has_last_samples)
                memcpy(run.terms[TERM_SLOT], recorded->last_samples[gap++],
                    sizeof(*recorded->last_samples));
        }
        /* A step of two evaluations starts from the sample before its first evaluation. */
        largest = fmax(by_steps ? last : largest, largest_of(x));
        last = largest_of(x);
        call_model(&run, plan, &plan->evaluations[k]);
        apply(&run, &plan->evaluations[k]);
        if (!is_kept(k, plan->count))
            continue;
        double distance = distance_of(x, recorded->samples[row++], largest);
        if (!by_steps || in_a_row >= RECORDED_IN_A_ROW - 1)
            worst = fmax(worst, distance);
    }
    brownian_destroy(run.brownian);
    return worst;
}

static struct distance compare_run(const json_t *item, const struct scheduler_plan *plan) {
    static struct recorded recorded;
    const json_t *timesteps = json_object_get(item, "timesteps");
    const char *samples = json_string_value(json_object_get(item, "samples"));
    const char *last_samples = json_string_value(json_object_get(item, "last_samples"));
    int rows = 0, gaps = 0;
    struct distance distance = { .run = INFINITY };
    for (int k = 0; k < plan->count; k++) {
        if (!is_kept(k, plan->count))
            continue;
        gaps += k > 0 && !is_kept(k - 1, plan->count);
        distance.timestep = fmax(
            distance.timestep, fabs((double)plan->evaluations[k].timestep -
                                    json_number_value(json_array_get(timesteps, (size_t)rows++))));
    }
    recorded.has_last_samples = last_samples;
    if (rows > MAX_KEPT || gaps > MAX_GAPS || !decode_samples(samples, rows, recorded.samples) ||
        (last_samples && !decode_samples(last_samples, gaps, recorded.last_samples)))
        return distance;
    distance.run = follow(plan, &recorded, false);
    distance.step = follow(plan, &recorded, true);
    return distance;
}

/* Returns the plan of a recorded case, or NULL and the error if it is refused. */
static struct scheduler_plan *plan_case(
    const char *name, const json_t *base, const json_t *item, struct error *err) {
    struct scheduler_choice choice;
    struct scheduler_config config;
    struct scheduler_plan *plan = NULL;
    json_t *request = json_copy(json_object_get(item, "options")),
           *file = json_copy((json_t *)(uintptr_t)base);
    json_object_set_new(request, "name", json_string(name));
    json_object_update(file, json_object_get(item, "changes"));
    int steps = (int)json_integer_value(json_object_get(item, "steps"));
    if (scheduler_choice_from_json(request, &choice, err) &&
        scheduler_config_resolve(file, &choice, &config, err) &&
        scheduler_plan_create(&config, steps, &plan, err))
        CHECK(plan->count >= steps || steps > 1000, "%d evaluations", plan->count);
    json_decref(request);
    json_decref(file);
    return plan;
}

/* The results of all cases of one scheduler class. */
struct tally {
    int followed, refused, shaky; /* shaky: beyond BAR, allowed by `moved` */
    double run, shaky_run, step, timestep;
};

static void compare_case(
    const char *name, const json_t *base, const json_t *item, struct tally *tally) {
    struct error err = { 0 };
    struct scheduler_plan *plan = plan_case(name, base, item, &err);
    char *text = json_dumps(item, JSON_COMPACT);
    text[strcspn(text, "[")] = 0;
    if (json_is_true(json_object_get(item, "refused"))) {
        /* If the noise schedule starts without noise, the mistake is in the checkpoint's file, so
         * the error need not name a field of the request. */
        bool named = err.param[0] ||
                     json_object_get(json_object_get(item, "changes"), "beta_start");
        CHECK(!plan && err.code == ERROR_INVALID && named, "%s: the reference refuses %s: %s", name,
            text, err.message);
        tally->refused++;
    } else if (!plan) {
        CHECK(false, "%s %s: %s", name, text, err.message);
    } else if (plan->count != json_integer_value(json_object_get(item, "count"))) {
        CHECK(false, "%s %s: %d evaluations", name, text, plan->count);
    } else {
        double moved = json_number_value(json_object_get(item, "moved"));
        struct distance distance = compare_run(item, plan);
        bool shaky = distance.run > BAR;
        CHECK(distance.step <= BAR, "%s %s: %.2g in one step", name, text, distance.step);
        CHECK(distance.run <= fmax(BAR, 10 * moved), "%s %s: %.2g, moved %.2g", name, text,
            distance.run, moved);
        CHECK(distance.timestep < 2e-4, "%s %s: timesteps %.2g", name, text, distance.timestep);
        if (shaky)
            printf("%s %.*s...: %.2g, in one step %.2g; the reference itself moves %.2g\n", name,
                120, text, distance.run, distance.step, moved);
        double *worst = shaky ? &tally->shaky_run : &tally->run;
        *worst = fmax(*worst, distance.run);
        tally->step = fmax(tally->step, distance.step);
        tally->timestep = fmax(tally->timestep, distance.timestep);
        tally->followed++;
        tally->shaky += shaky;
    }
    free(text);
    scheduler_plan_destroy(plan);
}

static struct tally compare_class(const char *folder, enum scheduler_kind kind) {
    const char *name = scheduler_kind_name(kind);
    char path[512];
    snprintf(path, sizeof(path), "%s/%s.json", folder, name);
    json_t *data = json_load_file(path, 0, NULL), *item;
    struct tally tally = { 0 };
    size_t index;
    const char *start = json_string_value(json_object_get(data, "start"));
    CHECK(decode_samples(start, 1, &recorded_start), "%s has no initial latents", path);
    json_array_foreach(json_object_get(data, "cases"), index, item)
        compare_case(name, json_object_get(data, "file"), item, &tally);
    CHECK(tally.followed > 30, "%s: %d cases", path, tally.followed);
    printf(
        "%-18s %3d runs, each step within %.2g, %3d whole within %.2g, %d that roundings move by "
        "more within %.2g, timesteps within %.2g; %d refused\n",
        name, tally.followed, tally.step, tally.followed - tally.shaky, tally.run, tally.shaky,
        tally.shaky_run, tally.timestep, tally.refused);
    json_decref(data);
    return tally;
}

/* --- docs/schedulers.md --- */

#define TABLE_BEGINS "<!-- written by scheduler_test --write -->\n"
#define TABLE_ENDS "<!-- end -->\n"

/* Returns a plan with the class's defaults; `noisy` sets eta to 1 if the class has it. */
static struct scheduler_plan *default_plan(enum scheduler_kind kind, int steps, bool noisy) {
    struct scheduler_choice choice = { .has_kind = true, .kind = kind };
    struct scheduler_config config;
    struct scheduler_plan *plan = NULL;
    struct error err = { 0 };
    json_t *file = json_loads("{\"skip_prk_steps\": true}", 0, NULL);
    if (noisy && scheduler_has_option(kind, OPTION_ETA))
        scheduler_choose(&choice, OPTION_ETA, 1);
    CHECK(scheduler_config_resolve(file, &choice, &config, &err) &&
              scheduler_plan_create(&config, steps, &plan, &err),
        "%s: %s", scheduler_kind_name(kind), err.message);
    json_decref(file);
    return plan;
}

static bool draws(enum scheduler_kind kind, bool noisy) {
    struct scheduler_plan *plan = default_plan(kind, 20, noisy); /* as many as restart needs */
    bool any = false;
    for (int k = 0; plan && k < plan->count; k++)
        any = any || plan->evaluations[k].draws_noise ||
              evaluation_is_brownian(&plan->evaluations[k]);
    scheduler_plan_destroy(plan);
    return any;
}

static int evaluations_of(enum scheduler_kind kind, int steps) {
    struct scheduler_plan *plan = default_plan(kind, steps, false);
    int count = plan ? plan->count : 0;
    scheduler_plan_destroy(plan);
    return count;
}

/* Writes a row such as "| `heun` | HeunDiscreteScheduler | 2n - 1 | no | ... |", without the column
 * of comparisons. */
static void describe_class(enum scheduler_kind kind, char *out, size_t size) {
    const struct scheduler_info *info = scheduler_get_info(kind);
    CHECK(!info->aliases[SCHEDULER_ALIASES], "%s: the list of aliases is not terminated by NULL",
        info->name);
    int slope = (evaluations_of(kind, 20) - evaluations_of(kind, 10)) / 10;
    int more = evaluations_of(kind, 10) - 10 * slope;
    char factor[16] = "", rest[16] = "";
    if (slope > 1)
        snprintf(factor, sizeof(factor), "%d", slope);
    if (more)
        snprintf(rest, sizeof(rest), " %c %d", more < 0 ? '-' : '+', abs(more));
    int used = snprintf(out, size, "| `%s` | %s | %sn%s | %s |", info->name, info->class_name,
        factor, rest,
        draws(kind, false)  ? "yes"
        : draws(kind, true) ? "with `eta`"
                            : "no");
    const char *separator = " ";
    for (int id = 0; id < SCHEDULER_OPTION_COUNT; id++) {
        const struct scheduler_option *option = &scheduler_options[id];
        if (option->from == FILE_ONLY || option->shared || !scheduler_has_option(kind, id))
            continue;
        used += snprintf(out + used, size - (size_t)used, "%s`%s`", separator, option->name);
        separator = ", ";
    }
    snprintf(out + used, size - (size_t)used, " |");
}

/* Checks that the page's table agrees with the registry; with `write`, writes the table. */
static void page_follows(
    const char *path, const struct tally tallies[SCHEDULER_COUNT], bool write) {
    static char text[1 << 16], table[1 << 15];
    FILE *file = fopen(path, "r");
    size_t bytes = file ? fread(text, 1, sizeof(text) - 1, file) : 0, used = 0;
    text[bytes] = 0;
    if (file)
        fclose(file);
    for (int kind = 0; kind < SCHEDULER_COUNT; kind++) {
        char row[512];
        describe_class((enum scheduler_kind)kind, row, sizeof(row));
        CHECK(write || strstr(text, row), "%s lacks %s", path, row);
        used += (size_t)snprintf(table + used, sizeof(table) - used, "%s %d runs: %.0e, %.0e", row,
            tallies[kind].followed, tallies[kind].step, tallies[kind].run);
        if (tallies[kind].shaky)
            used += (size_t)snprintf(table + used, sizeof(table) - used, " (%d of them: %.0e)",
                tallies[kind].shaky, tallies[kind].shaky_run);
        used += (size_t)snprintf(
            table + used, sizeof(table) - used, "; %d refused |\n", tallies[kind].refused);
    }
    char *begin = strstr(text, TABLE_BEGINS), *end = strstr(text, TABLE_ENDS);
    CHECK(begin && end && begin < end, "%s has no table", path);
    if (!write || !begin || !end || !(file = fopen(path, "w")))
        return;
    fprintf(file, "%.*s" TABLE_BEGINS "%s%s%s", (int)(begin - text), text,
        "| name | diffusers | evaluations of n steps | fresh noise | options of its own | compared "
        "|\n"
        "|---|---|---|---|---|---|\n",
        table, end);
    fclose(file);
}

static void spaced_timesteps_of_every_length(const json_t *checksums) {
    int compared = 0;
    for (int spacing = 0; spacing <= SPACING_LINSPACE; spacing++) {
        const char *word = scheduler_options[OPTION_TIMESTEP_SPACING].words[spacing];
        struct scheduler_config config = { .values = { .num_train_timesteps = 1000,
                                               .timestep_spacing = (unsigned)spacing } };
        const json_t *sums = json_object_get(checksums, word);
        for (int n = 1; n <= 1000; n++) {
            int timesteps[1000];
            json_int_t sum = 0;
            struct error err = { 0 };
            CHECK(noise_schedule_timesteps(&config, n, timesteps, &err), "%s", err.message);
            for (int i = 0; i < n; i++)
                sum += (json_int_t)(i + 1) * timesteps[i];
            CHECK(sum == json_integer_value(json_array_get(sums, (size_t)n - 1)), "%s %d", word, n);
            CHECK(timesteps[n - 1] >= 0, "%s %d ends at %d", word, n, timesteps[n - 1]);
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
    struct scheduler_config config = { .values = { .num_train_timesteps = 1000,
                                           .beta_start = 0.00085,
                                           .beta_end = 0.012,
                                           .beta_schedule = BETA_SCALED_LINEAR } };
    struct noise_schedule schedule;
    struct error err = { 0 };
    CHECK(noise_schedule_init(&config, &schedule, &err), "%s", err.message);
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(schedule.alphas_cumprod[known[i].t], known[i].value, 1e-8);
    noise_schedule_finish(&schedule);
    config.values.rescale_betas_zero_snr = true;
    CHECK(noise_schedule_init(&config, &schedule, &err), "%s", err.message);
    CHECK(schedule.alphas_cumprod[999] == 0, "%g", schedule.alphas_cumprod[999]);
    noise_schedule_finish(&schedule);
}

static void refused(const char *file, struct scheduler_choice choice, int steps,
    enum error_code code, const char *part) {
    struct error err = { 0 };
    struct scheduler_config config;
    struct scheduler_plan *plan = NULL;
    json_t *json = json_loads(file, JSON_DECODE_ANY, NULL);
    CHECK(!scheduler_config_resolve(json, &choice, &config, &err) ||
              !scheduler_plan_create(&config, steps, &plan, &err),
        "%s is accepted", file);
    CHECK(err.code == code, "%s: %s", error_code_name(err.code), err.message);
    CHECK_CONTAINS(err.message, part);
    scheduler_plan_destroy(plan);
    json_decref(json);
}

static struct scheduler_choice chosen(enum scheduler_option_id id, double value) {
    struct scheduler_choice choice = { 0 };
    scheduler_choose(&choice, id, value);
    return choice;
}

static void refusals_name_the_key(void) {
    const struct scheduler_choice none = { 0 };
#define DDIM "{\"_class_name\": \"DDIMScheduler\", "
#define PNDM "{\"_class_name\": \"PNDMScheduler\", "
    refused("[]", none, 5, ERROR_INVALID, "not a JSON object");
    refused("{}", none, 5, ERROR_UNSUPPORTED, "_class_name");
    refused(
        "{\"_class_name\": \"NoSuchScheduler\"}", none, 5, ERROR_UNSUPPORTED, "NoSuchScheduler");
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
        ERROR_INVALID, "scheduler.prediction_type: \"epsilon\" is not allowed; \"v_prediction\"");
    refused(DDIM "\"beta_start\": 0, \"timestep_spacing\": \"linspace\"}", none, 5, ERROR_INVALID,
        "timestep 0 divides by zero");
    refused(PNDM "\"steps_offset\": 1}", chosen(OPTION_ETA, 0), 5, ERROR_INVALID,
        "scheduler.eta: 0 is not allowed; pndm has no such option");
    refused(DDIM "\"steps_offset\": 1}", chosen(OPTION_ETA, 1.5), 5, ERROR_INVALID,
        "scheduler.eta: 1.5 is not allowed; a number from 0 to 1");
    refused(DDIM "\"num_train_timesteps\": 20}", chosen(OPTION_STEPS_OFFSET, 20), 5, ERROR_INVALID,
        "scheduler.steps_offset: 20 is not allowed; an integer from 0 to 19");
    refused(PNDM "\"steps_offset\": 1}", chosen(OPTION_PREDICTION_TYPE, PREDICTION_SAMPLE), 5,
        ERROR_INVALID, "scheduler.prediction_type: \"sample\" is not allowed; pndm knows");
    refused(DDIM "\"steps_offset\": 1}", chosen(OPTION_TIMESTEP_SPACING, SPACING_SGM_UNIFORM), 5,
        ERROR_INVALID, "scheduler.timestep_spacing: \"sgm_uniform\" is not allowed; ddim knows");
#define EULER "{\"_class_name\": \"EulerDiscreteScheduler\", "
#define LCM "{\"_class_name\": \"LCMScheduler\", "
    refused(EULER "\"use_karras_sigmas\": true, \"use_beta_sigmas\": true}", none, 5, ERROR_INVALID,
        "scheduler_config.json: use_beta_sigmas: true is not allowed; false, unless");
    refused(EULER "\"use_karras_sigmas\": true}", chosen(OPTION_USE_BETA_SIGMAS, 1), 5,
        ERROR_INVALID,
        "scheduler.use_beta_sigmas: true is not allowed; false, unless "
        "use_karras_sigmas is");
    refused(EULER "\"use_beta_sigmas\": true}", chosen(OPTION_USE_KARRAS_SIGMAS, 1), 5,
        ERROR_INVALID,
        "scheduler.use_karras_sigmas: true is not allowed; false, unless "
        "use_beta_sigmas is");
    refused(EULER "\"timestep_type\": \"continuous\"}", none, 5, ERROR_INVALID, "euler knows");
    refused(EULER "\"sigma_max\": 700}", none, 5, ERROR_INVALID, "sigma_max: 700");
    refused(EULER "\"num_train_timesteps\": 4, \"timestep_spacing\": \"leading\"}", none, 5,
        ERROR_INVALID, "num_inference_steps: 5 is not allowed; two of that many steps");
    refused(LCM "\"steps_offset\": 1}", none, 51, ERROR_INVALID,
        "num_inference_steps: 51 is not allowed; 1 to 50");
    refused(LCM "\"steps_offset\": 1}", chosen(OPTION_TIMESTEP_SPACING, SPACING_TRAILING), 5,
        ERROR_INVALID, "scheduler.timestep_spacing: \"trailing\" is not allowed; lcm has no such");
    refused(LCM "\"num_train_timesteps\": 40}", none, 5, ERROR_INVALID,
        "scheduler.original_inference_steps: 50 is not allowed; 1 to 40");
    refused(EULER "\"num_train_timesteps\": 1}",
        (struct scheduler_choice){ true, SCHEDULER_DPM_FAST }, 5, ERROR_INVALID,
        "num_inference_steps: 5 is not allowed; more, or a larger strength");
    refused("{\"_class_name\": \"LMSDiscreteScheduler\", \"timestep_spacing\": \"leading\"}", none,
        1000, ERROR_INVALID, "would not lower the noise");
}

/* The levels that the references' denoisers see if the run begins at level 8 of linspace's:
 * AUTOMATIC1111's restart_sampler with sigmas[8:] of 30 steps, and k-diffusion's sample_dpm_fast
 * with 12 of 20 steps from sigmas[8] and eta 1. */
static void runs_that_begin_later_see_their_levels(void) {
    static const struct {
        enum scheduler_kind kind;
        int steps, count;
        float levels[43];
    } rows[] = {
        { SCHEDULER_RESTART, 30, 43,
            { 3.66689f, 2.7243f, 2.7243f, 1.99751f, 1.99751f, 1.44368f, 1.44368f, 1.02705f,
                1.02705f, 0.71805f, 0.71805f, 0.49242f, 0.49242f, 0.33051f, 0.33051f, 0.21655f,
                0.21655f, 0.13809f, 0.13809f, 0.08537f, 1.99751f, 1.49785f, 1.49785f, 1.10939f,
                1.10939f, 0.81069f, 0.81069f, 0.58376f, 0.58376f, 0.41361f, 0.41361f, 0.28787f,
                0.28787f, 0.19643f, 0.19643f, 0.13111f, 0.13111f, 0.08537f, 0.08537f, 0.05094f,
                0.05094f, 0.02917f, 0.02917f } },
        { SCHEDULER_DPM_FAST, 20, 12,
            { 2.11566f, 1.19502f, 0.67499f, 0.89813f, 0.5073f, 0.28654f, 0.38127f, 0.21535f,
                0.12164f, 0.16185f, 0.06871f, 0.06871f } },
    };
    json_t *file = json_pack("{s:s, s:f, s:f, s:s}", "_class_name", "PNDMScheduler", "beta_start",
        0.00085, "beta_end", 0.012, "beta_schedule", "scaled_linear");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct scheduler_choice choice = { .has_kind = true, .kind = rows[i].kind };
        const char *name = scheduler_kind_name(rows[i].kind);
        struct scheduler_config config;
        struct scheduler_plan *plan = NULL;
        struct error err = { 0 };
        CHECK(scheduler_config_resolve(file, &choice, &config, &err) &&
                  scheduler_plan_create_from(&config, rows[i].steps, 8, &plan, &err),
            "%s: %s", name, err.message);
        const int count = plan ? plan->count : 0;
        double worst = 0;
        for (int k = 0; k < count && count == rows[i].count; k++)
            worst = fmax(worst, fabs((double)plan->evaluations[k].noise - rows[i].levels[k]));
        CHECK(count == rows[i].count && worst < 1e-5,
            "%s: %d evaluations, a noise level is wrong by %.2g", name, count, worst);
        printf("%s from step 8: %d levels within %.2g\n", name, count, worst);
        scheduler_plan_destroy(plan);
    }
    json_decref(file);
}

/* Scheduler classes that each break one promise of class.h and scheduler.h to the sampler. */
enum breakage {
    NOTHING_BROKEN,
    TOO_MANY_UPDATES,
    TOO_MANY_TERMS,
    UNDRAWN_NOISE,
    UNGUIDED,
    UNWRITTEN_SLOT,
    NO_TARGET,
    INPUT_DIVIDED_BY_ZERO,
    INFINITE_FIRST_NOISE,
    BREAKAGES
};

static enum breakage broken;

static bool fill_broken(const struct scheduler_config *config,
    const struct noise_schedule *schedule, int steps, struct scheduler_plan *plan,
    struct error *err) {
    (void)config, (void)schedule;
    if (!scheduler_plan_allocate(plan, steps, err))
        return false;
    struct scheduler_evaluation *first = plan->evaluations, *last = &plan->evaluations[steps - 1];
    first->timestep = 700.25f; /* need not be whole; must stay unchanged */
    scheduler_keep(first, 2, TERM_OUTPUT);
    scheduler_add_update(first, TERM_SAMPLE)->weights[TERM_SLOT + 2] = 0.5f;
    struct scheduler_update *update = scheduler_add_update(last, TERM_SAMPLE);
    update->weights[TERM_SAMPLE] = 1;
    for (int i = 0; broken == TOO_MANY_UPDATES && i < SCHEDULER_MAX_UPDATES; i++)
        scheduler_add_update(first, TERM_SAMPLE)->weights[TERM_SAMPLE] = 1;
    for (int slot = 0; broken == TOO_MANY_TERMS && slot < SCHEDULER_SLOTS; slot++) {
        scheduler_keep(&plan->evaluations[slot / SCHEDULER_MAX_UPDATES + 1], slot, TERM_OUTPUT);
        update->weights[TERM_SLOT + slot] = 1;
        update->weights[TERM_OUTPUT] = update->weights[TERM_NOISE] = 1;
        last->draws_noise = true;
    }
    if (broken == UNDRAWN_NOISE)
        update->weights[TERM_NOISE] = 1;
    if (broken == UNGUIDED)
        update->weights[TERM_UNCONDITIONAL] = 1;
    if (broken == UNWRITTEN_SLOT)
        update->weights[TERM_SLOT + 3] = 1;
    if (broken == NO_TARGET)
        update->target = TERM_NOISE;
    if (broken == INPUT_DIVIDED_BY_ZERO)
        last->input_divisor = (float)(steps - 5);
    if (broken == INFINITE_FIRST_NOISE)
        plan->init_noise_sigma = NAN;
    return true;
}

static void plans_that_cannot_be_followed_are_refused(void) {
    static const struct {
        enum error_code code;
        const char *words;
    } expected[BREAKAGES] = {
        [TOO_MANY_UPDATES] = { ERROR_INTERNAL, "broken's evaluation 0 of 5 has more updates" },
        [TOO_MANY_TERMS] = { ERROR_INTERNAL, "evaluation 4 of 5 has more terms" },
        [UNDRAWN_NOISE] = { ERROR_INTERNAL, "evaluation 4 of 5 weighs noise" },
        [UNGUIDED] = { ERROR_INTERNAL, "evaluation 4 of 5 reads the output without the prompt" },
        [UNWRITTEN_SLOT] = { ERROR_INTERNAL, "evaluation 4 of 5 reads a slot" },
        [NO_TARGET] = { ERROR_INTERNAL, "evaluation 4 of 5 writes neither" },
        [INPUT_DIVIDED_BY_ZERO] = { ERROR_INVALID, "divides by zero" },
        [INFINITE_FIRST_NOISE] = { ERROR_INVALID, "no finite size" },
    };
    const struct scheduler_class class = { .info = { .name = "broken" }, .fill = fill_broken };
    struct scheduler_config config;
    json_t *file = json_loads("{\"_class_name\": \"DDIMScheduler\"}", 0, NULL);
    bool resolved = scheduler_config_resolve(file, &(struct scheduler_choice){ 0 }, &config, NULL);
    CHECK(resolved, "an empty file is refused for DDIM");
    for (int i = 0; resolved && i < BREAKAGES; i++) {
        struct error err = { 0 };
        struct scheduler_plan *plan = NULL;
        broken = (enum breakage)i;
        bool ok = scheduler_class_plan(&class, &config, 5, 0, &plan, &err);
        CHECK(
            ok == (i == NOTHING_BROKEN) && err.code == expected[i].code, "%d: %s", i, err.message);
        if (ok) {
            CHECK(plan->slot_count == 3, "slots 0..2: %d", plan->slot_count);
            CHECK(plan->evaluations[0].timestep == 700.25f, "%g", plan->evaluations[0].timestep);
        } else if (expected[i].words) {
            CHECK_CONTAINS(err.message, expected[i].words);
        }
        scheduler_plan_destroy(plan);
    }
    json_decref(file);
}

static void pipeline_fixes_are_reported(void) {
    struct scheduler_config config;
    struct error err = { 0 };
    json_t *json = json_loads(
        DDIM "\"steps_offset\": 0, \"zeta\": 1, \"use_karras_sigmas\": true}", 0, NULL);
    CHECK(scheduler_config_resolve(json, &(struct scheduler_choice){ 0 }, &config, &err), "%s",
        err.message);
    CHECK(config.values.steps_offset == 1 && config.replaced_steps_offset, "%d",
        config.values.steps_offset);
    CHECK(config.replaced_clip_sample, "DDIM's default clip_sample, true, is not replaced");
    CHECK_STRING(config.ignored_keys, "zeta");
    CHECK(config.values.set_alpha_to_one, "DDIM's set_alpha_to_one is not true by default");
    json_decref(json);
}

/* usage: scheduler_test RECORDED docs/schedulers.md [--write] */
int main(int argc, char **argv) {
    struct tally tallies[SCHEDULER_COUNT];
    char path[512];
    snprintf(path, sizeof(path), "%s/spacing.json", argc >= 3 ? argv[1] : "");
    json_t *spacing = json_load_file(path, 0, NULL);
    if (!spacing)
        return 2;
    published_sums();
    alphas_of_stable_diffusion();
    for (int kind = 0; kind < SCHEDULER_COUNT; kind++)
        tallies[kind] = compare_class(argv[1], (enum scheduler_kind)kind);
    page_follows(argv[2], tallies, argc == 4 && strcmp(argv[3], "--write") == 0);
    spaced_timesteps_of_every_length(spacing);
    refusals_name_the_key();
    runs_that_begin_later_see_their_levels();
    plans_that_cannot_be_followed_are_refused();
    pipeline_fixes_are_reported();
    json_decref(spacing);
    return check_done();
}
