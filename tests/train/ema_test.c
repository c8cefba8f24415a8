/* Decays and averages, compared with diffusers' EMAModel. */
#include "train/optimizer/ema.h"

#include "tests/train/recorded.h"

#define VALUES 5

static double number_or(const json_t *options, const char *key, double standard) {
    const json_t *value = json_object_get(options, key);
    return value ? json_number_value(value) : standard;
}

static struct ema_options options_of(const json_t *item) {
    const json_t *options = json_object_get(item, "options");
    struct ema_options o = { .decay = 0.9999, .inv_gamma = 1, .power = 2.0 / 3 };
    o.decay = number_or(options, "decay", o.decay);
    o.min_decay = number_or(options, "min_decay", o.min_decay);
    o.update_after_step = (int64_t)number_or(options, "update_after_step", 0);
    o.use_ema_warmup = json_is_true(json_object_get(options, "use_ema_warmup"));
    o.inv_gamma = number_or(options, "inv_gamma", o.inv_gamma);
    o.power = number_or(options, "power", o.power);
    return o;
}

int main(int argc, char **argv) {
    static const int64_t at[] = { 1, 2, 3, 11, 101, 1000, 100000, 10000000 };
    json_t *cases = recorded_load(argc, argv), *item;
    size_t i, decays = 0, averages = 0;
    double worst = 0;
    json_array_foreach(cases, i, item) {
        const struct ema_options options = options_of(item);
        for (size_t k = 0; k < sizeof(at) / sizeof(at[0]); k++, decays++)
            CHECK_NEAR(
                ema_decay(&options, at[k]), recorded_at(json_object_get(item, "decays"), k), 1e-15);
        const json_t *steps = json_object_get(item, "steps");
        float average[VALUES], parameters[VALUES];
        for (size_t v = 0; v < VALUES; v++)
            average[v] = (float)recorded_at(json_object_get(item, "start"), v);
        for (size_t k = 0; k < 3; k++) {
            const json_t *step = json_array_get(steps, k);
            CHECK_NEAR(ema_decay(&options, (int64_t)k + 1), recorded_number(step, "decay"), 1e-15);
            for (size_t v = 0; v < VALUES; v++)
                parameters[v] = (float)recorded_at(json_object_get(step, "parameters"), v);
            ema_update(ema_decay(&options, (int64_t)k + 1), parameters, average, VALUES);
            for (size_t v = 0; v < VALUES; v++, averages++) {
                const double expected = recorded_at(json_object_get(step, "average"), v);
                worst = fmax(worst, fabs(average[v] - expected));
                CHECK_NEAR(average[v], expected, 0);
            }
        }
    }
    CHECK(decays >= 48 && averages >= 90, "%zu decays, %zu averages", decays, averages);
    printf("%zu decays, %zu averages, worst difference %.2g\n", decays, averages, worst);
    json_decref(cases);
    return check_done();
}
