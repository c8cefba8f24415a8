/* An adapter's initial factors, compared with those that peft draws for the same models and
 * seed. */
#include "train/optimizer/parameters.h"

#include "tests/train/recorded.h"
#include "tests/train/small_job.h"

#include <stdlib.h>

static struct small_job job;

static double compare_factor(
    const struct trained_module *m, const json_t *expected, const float *down, int64_t count) {
    const json_t *first = json_object_get(expected, "first");
    double worst = fabs(down[count - 1] - recorded_number(expected, "last")), norm = 0;
    for (size_t i = 0; i < 3; i++)
        worst = fmax(worst, fabs(down[i] - recorded_at(first, i)));
    for (int64_t i = 0; i < count; i++)
        norm += (double)down[i] * down[i];
    worst = fmax(worst, fabs(sqrt(norm) - recorded_number(expected, "norm")));
    CHECK(worst <= 2e-6, "%s: %.3g away", m->target->name, worst);
    return worst;
}

static void compare(const json_t *item) {
    char more[100];
    const char *init = json_string_value(json_object_get(item, "init"));
    const json_t *factors = json_object_get(item, "factors");
    snprintf(more, sizeof(more), ", \"rank\": %lld, \"init_lora_weights\": \"%s\"",
        (long long)recorded_integer(item, "rank"), init);
    job.config = small_job_config(more);
    small_job_parameters(&job, (uint64_t)recorded_integer(item, "seed"));
    const struct parameters *p = job.parameters;
    CHECK(p->count == json_array_size(factors), "%zu layers, not %zu", p->count,
        json_array_size(factors));
    double worst = 0;
    for (size_t i = 0; i < p->count; i++) {
        const struct trained_module *m = &p->modules[i];
        const json_t *expected = json_array_get(factors, i);
        CHECK_STRING(m->target->name, json_string_value(json_object_get(expected, "name")));
        const int64_t taps = m->target->is_conv && m->target->kind != CONV_1X1 ? 9 : 1;
        const int64_t count = job.config.rank * m->target->k * taps;
        float *down = malloc((size_t)count * sizeof(float));
        float *up = malloc((size_t)(m->target->n * job.config.rank) * sizeof(float));
        parameters_plain(m, job.config.rank, p->values, down, up);
        worst = fmax(worst, compare_factor(m, expected, down, count));
        for (int64_t k = 0; k < m->target->n * job.config.rank; k++)
            CHECK(up[k] == 0, "%s: up is not zero", m->target->name);
        free(down);
        free(up);
    }
    float after[4];
    noise_draw(&job.generator, after, 4);
    for (size_t i = 0; i < 4; i++)
        CHECK_NEAR(after[i], recorded_at(json_object_get(item, "after"), i), 1e-6);
    printf("%s: %zu layers, %lld numbers, worst difference %.2g\n", init, p->count,
        (long long)p->trained, worst);
    CHECK(parameters_bytes(p) == 2 * sizeof(float) * (size_t)p->floats, "%zu bytes",
        parameters_bytes(p));
    small_job_parameters_finish(&job);
}

static void groups_have_their_rates(void) {
    job.config = small_job_config(
        ", \"rank\": 4, \"learning_rate\": 1e-3, \"text_encoder_learning_rate\": 1e-5, "
        "\"train_batch_size\": 2, \"scale_lr\": true, \"parameter_groups\": [{\"pattern\": "
        "\"down_blocks.*.attn1\", \"learning_rate\": 4e-4}, {\"pattern\": \"attn\", "
        "\"weight_decay\": 0}]");
    small_job_parameters(&job, 0);
    const struct parameters *p = job.parameters;
    int64_t covered = 0;
    for (size_t i = 0; i < p->range_count; i++) {
        CHECK(
            p->ranges[i].at == covered, "range %zu begins at %lld", i, (long long)p->ranges[i].at);
        covered += p->ranges[i].count;
    }
    CHECK(covered == p->floats, "%lld of %lld floats", (long long)covered, (long long)p->floats);
    for (size_t i = 0; i < p->count; i++) {
        const struct trained_module *m = &p->modules[i];
        const char *name = m->target->name;
        const bool is_first = strncmp(name, "down_blocks", 11) == 0 && strstr(name, "attn1");
        const double rate = m->component == COMPONENT_TEXT_ENCODER ? 2e-5 : is_first ? 8e-4 : 2e-3;
        const double decay = !is_first && strstr(name, "attn") && m->component == COMPONENT_UNET &&
                                     !strstr(name, "self")
                                 ? 0
                                 : 1e-2;
        CHECK_NEAR(m->learning_rate, rate, 1e-12);
        if (m->component == COMPONENT_UNET)
            CHECK(m->weight_decay == decay, "%s decays by %g", name, m->weight_decay);
    }
    small_job_parameters_finish(&job);
}

static void names_fit_patterns(void) {
    CHECK(parameters_name_fits("a.b.c", "b") && parameters_name_fits("a.b.c", "a.*c") &&
              parameters_name_fits("a.b.c", "") && parameters_name_fits("x.a.y.b", "*b") &&
              !parameters_name_fits("a.b.c", "d") && !parameters_name_fits("a.b.c", "c*a") &&
              !parameters_name_fits("a.b.c", "*d") && !parameters_name_fits("", "*a") &&
              !parameters_name_fits("", "a"),
        "patterns");
    /* There are 10^16 ways to match so many letters; the matcher must not try them all. */
    char name[61] = "", pattern[63] = "";
    memset(name, 'a', 60);
    for (int i = 0; i < 30; i++)
        memcpy(pattern + 2 * i, "a*", 2);
    CHECK(parameters_name_fits(name, pattern), "30 letters of 60");
    pattern[60] = 'b';
    CHECK(!parameters_name_fits(name, pattern), "and another");
}

/* Target modules `first` and two names from diffusers' scripts that this model does not have. */
static struct train_config config_of_targets(const char *first) {
    struct train_config config = small_job_config(", \"rank\": 4");
    const char *const names[] = { first, "add_k_proj", "o_out.0" };
    for (size_t i = 0; i < config.target_modules.count; i++)
        free(config.target_modules.items[i]);
    config.target_modules.count = sizeof(names) / sizeof(names[0]);
    for (size_t i = 0; i < config.target_modules.count; i++)
        config.target_modules.items[i] = strdup(names[i]);
    return config;
}

/* Some targets match no layer: as in peft, the layers of the other targets are trained. */
static void some_targets_may_be_nowhere(void) {
    const struct weight_list *list = unet_weights(job.unet);
    struct train_config config = config_of_targets("to_q");
    struct noise_generator generator;
    noise_init(&generator, RNG_CPU, 0);
    struct parameters *p;
    struct error err = { 0 };
    CHECK(parameters_create(
              kernels_reference(), &config, list, NULL, &generator, NULL, NULL, &p, &err),
        "%s", err.message);
    for (size_t i = 0; p && i < p->count; i++)
        CHECK(strstr(p->modules[i].target->name, "to_q"), "%s", p->modules[i].target->name);
    CHECK(p && p->count == 8, "%zu layers", p ? p->count : 0);
    const struct train_texts *targets = &config.target_modules;
    CHECK_STRING(parameters_unused_target(list, targets, 0), "add_k_proj");
    CHECK_STRING(parameters_unused_target(list, targets, 1), "o_out.0");
    CHECK(!parameters_unused_target(list, targets, 2), "a third one");
    printf("%zu layers are trained, %s and %s are no layer's name\n", p ? p->count : 0,
        targets->items[1], targets->items[2]);
    parameters_destroy(p);
    train_config_finish(&config);
}

static void targets_that_are_all_nowhere_are_named(void) {
    struct train_config config = config_of_targets("o_q");
    struct noise_generator generator;
    noise_init(&generator, RNG_CPU, 0);
    struct parameters *p;
    struct error err = { 0 };
    CHECK(!parameters_create(kernels_reference(), &config, unet_weights(job.unet), NULL, &generator,
              NULL, NULL, &p, &err) &&
              !p,
        "it was taken");
    CHECK(strcmp(err.param, "target_modules") == 0 &&
              strcmp(err.value, "o_q, add_k_proj, o_out.0") == 0 && strstr(err.allowed, "to_q"),
        "%s", err.message);
    train_config_finish(&config);
}

static bool twice(void *user) {
    return ++*(int *)user <= 2;
}

/* The callback is asked before each layer. It refuses the third time, which cancels the work. */
static void it_can_be_called_back_between_layers(void) {
    struct train_config config = small_job_config(", \"rank\": 4");
    struct noise_generator generator;
    noise_init(&generator, RNG_CPU, 0);
    struct parameters *p;
    struct error err = { 0 };
    int asked = 0;
    CHECK(!parameters_create(kernels_reference(), &config, unet_weights(job.unet), NULL, &generator,
              twice, &asked, &p, &err) &&
              !p && err.code == ERROR_CANCELLED && asked == 3,
        "asked %d times: %s", asked, err.message);
    printf("called back: asked %d times, %s\n", asked, err.message);
    train_config_finish(&config);
}

int main(int argc, char **argv) {
    small_job_models(&job, kernels_reference());
    json_t *cases = recorded_load(argc, argv), *item;
    size_t i;
    json_array_foreach(cases, i, item) compare(item);
    CHECK(i == 2, "%zu cases", i);
    json_decref(cases);
    groups_have_their_rates();
    names_fit_patterns();
    some_targets_may_be_nowhere();
    targets_that_are_all_nowhere_are_named();
    it_can_be_called_back_between_layers();
    small_job_finish(&job);
    return check_done();
}
