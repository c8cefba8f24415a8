/* An adapter's first factors against those that peft draws for the same models and seed. */
#include "train/parameters.h"

#include "models/text_encoder.h"
#include "models/unet.h"
#include "tests/models/small_models.h"
#include "tests/train/recorded.h"

#include <stdlib.h>

static const struct unet_config unet_config = { .sample_size = 8,
    .in_channels = 4,
    .out_channels = 4,
    .block_count = 2,
    .block_out_channels = { 16, 32 },
    .down_has_attention = { true, false },
    .up_has_attention = { false, true },
    .layers_per_block = 1,
    .heads = { 4, 4 },
    .cross_attention_dim = 24,
    .norm_num_groups = 8,
    .norm_eps = 1e-5f,
    .flip_sin_to_cos = true };
static const struct text_encoder_config text_config = { 50, 32, 96, 2, 4, 11, ACTIVATION_QUICK_GELU,
    1e-5f, 1 };

static struct unet *unet;
static struct text_encoder *text_encoder;

static struct train_config config_of(const char *more) {
    char text[1024];
    snprintf(text, sizeof(text),
        "{\"name\": \"n\", \"dataset\": \"d\", \"max_train_steps\": 1, \"alpha\": 8, "
        "\"train_text_encoder\": true, \"text_encoder_target_modules\": [\"q_proj\", \"v_proj\", "
        "\"fc1\"], \"target_modules\": [\"to_k\", \"to_q\", \"to_v\", \"to_out.0\", \"conv1\", "
        "\"proj_in\", \"ff.net.2\", \"conv\"]%s}",
        more);
    json_t *json = json_loads(text, 0, NULL);
    struct train_config config;
    struct error err = { 0 };
    CHECK(train_config_parse(json, &config, &err), "%s", err.message);
    json_decref(json);
    return config;
}

static struct parameters *create(
    const struct train_config *config, struct noise_generator *generator) {
    struct parameters *p = NULL;
    struct error err = { 0 };
    CHECK(parameters_create(kernels_reference(), config, unet_weights(unet),
              text_encoder_weights(text_encoder), generator, &p, &err),
        "%s", err.message);
    return p;
}

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
    struct train_config config = config_of(more);
    struct noise_generator generator;
    noise_init(&generator, RNG_CPU, (uint64_t)recorded_integer(item, "seed"));
    struct parameters *p = create(&config, &generator);
    CHECK(p->count == json_array_size(factors), "%zu layers, not %zu", p->count,
        json_array_size(factors));
    double worst = 0;
    for (size_t i = 0; i < p->count; i++) {
        const struct trained_module *m = &p->modules[i];
        const json_t *expected = json_array_get(factors, i);
        CHECK_STRING(m->target->name, json_string_value(json_object_get(expected, "name")));
        const int64_t taps = m->target->is_conv && m->target->kind != CONV_1X1 ? 9 : 1;
        const int64_t count = config.rank * m->target->k * taps;
        float *down = malloc((size_t)count * sizeof(float));
        float *up = malloc((size_t)(m->target->n * config.rank) * sizeof(float));
        parameters_plain(m, config.rank, p->values, down, up);
        worst = fmax(worst, compare_factor(m, expected, down, count));
        for (int64_t k = 0; k < m->target->n * config.rank; k++)
            CHECK(up[k] == 0, "%s: up is not zero", m->target->name);
        free(down);
        free(up);
    }
    float after[4];
    noise_draw(&generator, after, 4);
    for (size_t i = 0; i < 4; i++)
        CHECK_NEAR(after[i], recorded_at(json_object_get(item, "after"), i), 1e-6);
    printf("%s: %zu layers, %lld numbers, worst difference %.2g\n", init, p->count,
        (long long)p->trained, worst);
    size_t bytes;
    struct error err = { 0 };
    CHECK(parameters_measure(
              &config, unet_weights(unet), text_encoder_weights(text_encoder), &bytes, &err) &&
              bytes == 2 * sizeof(float) * (size_t)p->floats,
        "%zu bytes", bytes);
    parameters_destroy(p);
    train_config_finish(&config);
}

static void groups_have_their_rates(void) {
    struct train_config config = config_of(
        ", \"rank\": 4, \"learning_rate\": 1e-3, \"text_encoder_learning_rate\": 1e-5, "
        "\"train_batch_size\": 2, \"scale_lr\": true, \"parameter_groups\": [{\"pattern\": "
        "\"down_blocks.*.attn1\", \"learning_rate\": 4e-4}, {\"pattern\": \"attn\", "
        "\"weight_decay\": 0}]");
    struct noise_generator generator;
    noise_init(&generator, RNG_CPU, 0);
    struct parameters *p = create(&config, &generator);
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
    parameters_destroy(p);
    train_config_finish(&config);
}

static void names_fit_patterns(void) {
    CHECK(parameters_name_fits("a.b.c", "b") && parameters_name_fits("a.b.c", "a.*c") &&
              parameters_name_fits("a.b.c", "") && parameters_name_fits("x.a.y.b", "*b") &&
              !parameters_name_fits("a.b.c", "d") && !parameters_name_fits("a.b.c", "c*a") &&
              !parameters_name_fits("", "a"),
        "patterns");
}

static void a_target_that_is_nowhere_is_named(void) {
    struct train_config config = config_of(", \"rank\": 4");
    free(config.target_modules.items[3]);
    config.target_modules.items[3] = strdup("o_out.0");
    struct noise_generator generator;
    noise_init(&generator, RNG_CPU, 0);
    struct parameters *p;
    struct error err = { 0 };
    CHECK(!parameters_create(
              kernels_reference(), &config, unet_weights(unet), NULL, &generator, &p, &err) &&
              !p,
        "it was taken");
    CHECK(strcmp(err.param, "target_modules") == 0 && strcmp(err.value, "o_out.0") == 0 &&
              strstr(err.allowed, "to_q"),
        "%s", err.message);
    train_config_finish(&config);
}

int main(int argc, char **argv) {
    struct rule_source source = { .gain = 0.5 };
    const struct weights weights = rule_weights(&source, kernels_reference(), DTYPE_F32);
    struct error err = { 0 };
    CHECK(unet_create(&unet_config, &weights, &unet, &err) &&
              text_encoder_create(&text_config, &weights, &text_encoder, &err),
        "%s", err.message);
    json_t *cases = recorded_load(argc, argv), *item;
    size_t i;
    json_array_foreach(cases, i, item) compare(item);
    CHECK(i == 2, "%zu cases", i);
    json_decref(cases);
    groups_have_their_rates();
    names_fit_patterns();
    a_target_that_is_nowhere_is_named();
    unet_destroy(unet);
    text_encoder_destroy(text_encoder);
    rule_source_finish(&source);
    return check_done();
}
