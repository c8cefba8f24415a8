/* Lists of sigmas and their timesteps, compared with diffusers 0.42.1 (EulerDiscreteScheduler and
 * DPMSolverMultistepScheduler, five steps of Stable Diffusion's noise schedule). sgm_uniform is
 * compared with k-diffusion 0.1.1 (DiscreteSchedule.t_to_sigma), Align Your Steps with the authors'
 * function, kl_optimal with AUTOMATIC1111's formula in double, and the quantiles of Beta(0.6, 0.6)
 * with scipy 1.17. */
#include "engine/scheduler/sigmas.h"
#include "tests/check.h"

#define STEPS 5

struct list {
    const char *what;
    enum sigma_family family;
    struct scheduler_values changes;
    double sigmas[STEPS + 1], timesteps[STEPS], init_noise;
};

static const struct scheduler_values stable_diffusion = { .num_train_timesteps = 1000,
    .beta_start = 0.00085,
    .beta_end = 0.012,
    .beta_schedule = BETA_SCALED_LINEAR,
    .timestep_spacing = SPACING_LINSPACE };

#define SPACED(...)                                                                                \
    SIGMAS_SPACED, {                                                                               \
        __VA_ARGS__                                                                                \
    }
#define WHOLE(...)                                                                                 \
    SIGMAS_WHOLE, {                                                                                \
        __VA_ARGS__                                                                                \
    }

static const struct list lists[] = {
    { "linspace", SPACED(.timestep_spacing = SPACING_LINSPACE),
        { 14.614646911621094, 4.086089611053467, 1.6155834197998047, 0.6951509714126587,
            0.02916753478348255, 0 },
        { 999, 749.25, 499.5, 249.75, 0 }, 14.614646911621094 },
    { "leading", SPACED(.timestep_spacing = SPACING_LEADING, .steps_offset = 1),
        { 5.134433269500732, 2.2928547859191895, 1.1682164669036865, 0.574050784111023,
            0.04131447896361351, 0 },
        { 801, 601, 401, 201, 1 }, 5.2309088706970215 },
    { "sgm_uniform", SPACED(.timestep_spacing = SPACING_SGM_UNIFORM),
        { 14.614646911621094, 5.092410087585449, 2.279731512069702, 1.1628650426864624,
            0.5711894035339355, 0 },
        { 999, 799.2, 599.4, 399.6, 199.8 }, 14.614646911621094 },
    { "karras", SPACED(.timestep_spacing = SPACING_LINSPACE, .use_karras_sigmas = true),
        { 14.614646911621094, 4.796544075012207, 1.2741053104400635, 0.2479517161846161,
            0.02916753478348255, 0 },
        { 999, 785.9539794921875, 427.4897766113281, 58.891502380371094, 0 }, 14.614646911621094 },
    { "karras, trailing, to sigma_min",
        SPACED(.timestep_spacing = SPACING_TRAILING, .use_karras_sigmas = true,
            .final_sigmas_type = FINAL_SIGMA_MIN),
        { 14.614646911621094, 7.393923282623291, 3.475529670715332, 1.491033911705017,
            0.5692853927612305, 0.02916753478348255 },
        { 999, 876.5875854492188, 710.2963256835938, 475.33978271484375, 199 },
        14.614646911621094 },
    { "exponential", SPACED(.timestep_spacing = SPACING_LINSPACE, .use_exponential_sigmas = true),
        { 14.614646911621094, 3.0889875888824463, 0.6528960466384888, 0.13799770176410675,
            0.02916753478348255, 0 },
        { 999, 680.6669921875, 233.20973205566406, 20.001972198486328, 0 }, 14.614646911621094 },
    { "beta", SPACED(.timestep_spacing = SPACING_LINSPACE, .use_beta_sigmas = true),
        { 14.614646911621094, 12.052264213562012, 7.321907043457031, 2.59155011177063,
            0.02916753478348255, 0 },
        { 999, 966.4949951171875, 874.6619262695312, 634.552001953125, 0 }, 14.614646911621094 },
    { "align your steps", SPACED(.timestep_spacing = SPACING_LINSPACE, .use_ays_sigmas = true),
        { 14.614999771118164, 3.8610000610351562, 1.8860000371932983, 0.9629999995231628,
            0.39899998903274536, 0 },
        { 999, 735.8344116210938, 545.2794799804688, 342.61053466796875, 124.56136322021484 },
        14.614999771118164 },
    { "KL-optimal, to sigma_min",
        SPACED(.timestep_spacing = SPACING_LINSPACE, .use_kl_optimal_sigmas = true,
            .final_sigmas_type = FINAL_SIGMA_MIN),
        { 14.614646911621094, 2.6328885555267334, 1.2947677373886108, 0.711627185344696,
            0.3356377184391022, 0.02916753478348255 },
        { 999, 638.8056640625, 432.40203857421875, 256.05902099609375, 96.3311996459961 },
        14.614646911621094 },
    { "log_linear",
        SPACED(.timestep_spacing = SPACING_LINSPACE,
            .interpolation_type = INTERPOLATION_LOG_LINEAR),
        { 14.614646911621094, 4.2151265144348145, 1.2157180309295654, 0.35063493251800537,
            0.10112942010164261, 0.0291675366461277 },
        { 999, 749.25, 499.5, 249.75, 0 }, 14.614646911621094 },
    { "zero terminal SNR",
        SPACED(.timestep_spacing = SPACING_LINSPACE, .rescale_betas_zero_snr = true),
        { 4096, 5.406641960144043, 1.7713196277618408, 0.7291451096534729, 0.02916753478348255, 0 },
        { 999, 749.25, 499.5, 249.75, 0 }, 4096 },
    { "whole, leading", WHOLE(.timestep_spacing = SPACING_LEADING, .steps_offset = 1),
        { 5.906451225280762, 2.907122850418091, 1.6128870248794556, 0.9323583841323853,
            0.49469730257987976, 0 },
        { 831, 665, 499, 333, 167 }, 0 },
    { "whole, karras", WHOLE(.timestep_spacing = SPACING_LINSPACE, .use_karras_sigmas = true),
        { 14.614646911621094, 4.796544075012207, 1.2741053104400635, 0.2479517161846161,
            0.02916753478348255, 0 },
        { 999, 786, 427, 59, 0 }, 0 },
};

static struct scheduler_config config_of(const struct scheduler_values *changes) {
    struct scheduler_config config = { .values = *changes };
    config.values.num_train_timesteps = stable_diffusion.num_train_timesteps;
    config.values.beta_start = stable_diffusion.beta_start;
    config.values.beta_end = stable_diffusion.beta_end;
    config.values.beta_schedule = stable_diffusion.beta_schedule;
    return config;
}

static double relative(double got, double expected) {
    return fabs(got - expected) / fmax(fabs(expected), 1e-30);
}

static void lists_are_the_references(void) {
    static struct sigma_run run;
    double worst = 0, worst_timestep = 0;
    for (size_t l = 0; l < sizeof(lists) / sizeof(lists[0]); l++) {
        const struct list *list = &lists[l];
        struct scheduler_config config = config_of(&list->changes);
        struct noise_schedule schedule;
        struct error err = { 0 };
        bool ok = noise_schedule_init(&config, &schedule, &err) &&
                  sigma_run_init(&run, &config, &schedule, list->family, STEPS, &err);
        CHECK(ok, "%s: %s", list->what, err.message);
        double difference = 0, late = 0;
        for (int i = 0; ok && i <= STEPS; i++) {
            difference = fmax(difference, relative(run.sigmas[i], list->sigmas[i]));
            if (i < STEPS)
                late = fmax(late, fabs(run.timesteps[i] - list->timesteps[i]));
        }
        if (list->init_noise > 0)
            difference = fmax(
                difference, relative(sigma_run_init_noise(&run, &config), list->init_noise));
        CHECK(difference < 3e-7 && late < 2e-4, "%s: sigmas %.2g, timesteps %.2g", list->what,
            difference, late);
        worst = fmax(worst, difference);
        worst_timestep = fmax(worst_timestep, late);
        noise_schedule_finish(&schedule);
    }
    printf("%zu lists: sigmas within %.2g, timesteps within %.2g\n",
        sizeof(lists) / sizeof(lists[0]), worst, worst_timestep);
}

static void quantiles_are_scipys(void) {
    static const struct {
        double p, x;
    } known[] = {
        { 0, 0 },
        { 1e-12, 1.8558824624914097e-20 },
        { 1e-06, 1.8558824624053043e-10 },
        { 0.001, 1.855873851745199e-05 },
        { 0.05263157894736842, 0.013671081564469266 },
        { 0.1, 0.03958440558878085 },
        { 0.25, 0.17568037865269498 },
        { 0.4999, 0.49986127490549975 },
        { 0.5, 0.5 },
        { 0.6, 0.6372990092467856 },
        { 0.9, 0.9604155944112192 },
        { 0.9473684210526315, 0.9863289184355307 },
        { 0.999, 0.9999814412614826 },
        { 0.999999999, 0.9999999999999981 },
        { 1, 1 },
    };
    double worst = 0;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        double error = relative(beta_quantile(known[i].p), known[i].x);
        CHECK(error < 1e-13, "%.17g: %.17g, %.17g", known[i].p, beta_quantile(known[i].p),
            known[i].x);
        worst = fmax(worst, error);
    }
    printf("%zu quantiles within %.2g\n", sizeof(known) / sizeof(known[0]), worst);
}

int main(void) {
    lists_are_the_references();
    quantiles_are_scipys();
    return check_done();
}
