/* Every learning rate schedule, compared step by step with diffusers', torch's and DeepSpeed's. */
#include "train/optimizer/learning_rate.h"

#include "tests/train/recorded.h"

static enum learning_rate_kind kind_of(const char *name) {
    int i = 0;
    while (learning_rate_names[i] && strcmp(learning_rate_names[i], name) != 0)
        i++;
    CHECK(learning_rate_names[i], "%s", name);
    return (enum learning_rate_kind)i;
}

static double compare(const json_t *item, size_t *count) {
    const char *name = json_string_value(json_object_get(item, "kind"));
    const json_t *bases = json_object_get(item, "bases"), *rates = json_object_get(item, "rates");
    struct learning_rate schedule = { .kind = kind_of(name),
        .warmup_steps = recorded_integer(item, "warmup_steps"),
        .total_steps = recorded_integer(item, "total_steps"),
        .lr = recorded_at(bases, 0),
        .num_cycles = recorded_number(item, "num_cycles"),
        .power = recorded_number(item, "power"),
        .end = recorded_number(item, "end"),
        .start_factor = recorded_number(item, "start_factor"),
        .eta_min = recorded_number(item, "eta_min") };
    const char *rules = json_string_value(json_object_get(item, "rules"));
    struct error err = { 0 };
    if (rules)
        CHECK(learning_rate_rules_parse(rules, &schedule, &err), "%s", err.message);
    double worst = 0;
    for (size_t step = 0; step < json_array_size(rates); step++)
        for (size_t group = 0; group < json_array_size(bases); group++, ++*count) {
            const double expected = recorded_at(json_array_get(rates, step), group);
            const double rate = learning_rate_at(
                &schedule, recorded_at(bases, group), (int64_t)step);
            worst = fmax(worst, recorded_difference(rate, expected));
            CHECK(recorded_difference(rate, expected) <= 1e-12,
                "%s, warm-up %lld of %lld, group %zu, step %zu: %.15g is not %.15g", name,
                (long long)schedule.warmup_steps, (long long)schedule.total_steps, group, step,
                rate, expected);
        }
    return worst;
}

static void wrong_rules_are_refused(void) {
    static const char *const wrong[] = { "", "1:", "1:10", "1:10,", "1:10,0.1:5,0.01", "1:2.5,1",
        "x", "-1", "1:10;2", "nan", "1:0,1" };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct learning_rate schedule = { 0 };
        struct error err = { 0 };
        CHECK(!learning_rate_rules_parse(wrong[i], &schedule, &err), "\"%s\" was taken", wrong[i]);
        CHECK_CONTAINS(err.message, "wanted");
    }
}

int main(int argc, char **argv) {
    json_t *cases = recorded_load(argc, argv), *item;
    size_t i, count = 0;
    double worst = 0;
    json_array_foreach(cases, i, item) worst = fmax(worst, compare(item, &count));
    CHECK(count > 500, "%zu rates", count);
    printf(
        "%zu schedules, %zu rates, worst difference %.2g\n", json_array_size(cases), count, worst);
    json_decref(cases);
    wrong_rules_are_refused();
    return check_done();
}
