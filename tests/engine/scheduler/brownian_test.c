/* Brownian noise compared with torchsde's, and its seeds with numpy's; both were recorded with
 * tests/reference/brownian.py. */
#include "engine/scheduler/brownian.h"
#include "engine/scheduler/seed_sequence.h"
#include "tests/check.h"

#include <jansson.h>
#include <stdlib.h>
#include <time.h>

#define COUNT_MAX 1024

static double number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

static uint64_t seed_of(const json_t *text) {
    return strtoull(json_string_value(text), NULL, 10);
}

static void seeds_are_numpys(const json_t *cases) {
    size_t index, i;
    json_t *item, *value;
    json_array_foreach(cases, index, item) {
        const json_t *key = json_object_get(item, "key"), *state = json_object_get(item, "state");
        uint64_t parts[4];
        uint32_t made[4];
        json_array_foreach(key, i, value) parts[i] = seed_of(value);
        seed_sequence(seed_of(json_object_get(item, "entropy")), parts, (int)json_array_size(key),
            (int)number(item, "pool"), made, 4);
        json_array_foreach(state, i, value) CHECK(
            made[i] == json_integer_value(value), "sequence %zu word %zu: %u", index, i, made[i]);
    }
}

/* Returns a plan that only draws noise between these sigmas. */
static struct scheduler_plan plan_of(const json_t *spans, double low, double high) {
    struct scheduler_plan plan = {
        .count = (int)json_array_size(spans),
        .brownian_low = (float)low,
        .brownian_high = (float)high,
    };
    plan.evaluations = calloc((size_t)plan.count, sizeof(*plan.evaluations));
    for (int i = 0; i < plan.count; i++) {
        const json_t *span = json_array_get(spans, (size_t)i);
        plan.evaluations[i].draws_noise = true;
        plan.evaluations[i].brownian_from = (float)json_number_value(json_array_get(span, 0));
        plan.evaluations[i].brownian_to = (float)json_number_value(json_array_get(span, 1));
    }
    return plan;
}

static struct brownian *tree_of(const json_t *item, bool ahead, enum rng_kind kind) {
    struct scheduler_plan plan = plan_of(
        json_object_get(item, "spans"), number(item, "low"), number(item, "high"));
    struct error err = { 0 };
    struct brownian *tree;
    CHECK(brownian_create(&plan, kind, seed_of(json_object_get(item, "seed")),
              (int64_t)number(item, "count"), ahead, &tree, &err),
        "%s", err.message);
    free(plan.evaluations);
    return tree;
}

static void draws_are_torchsdes(const json_t *cases) {
    size_t index, i, draw;
    json_t *item, *known, *value;
    double worst = 0, worst_sum = 0;
    int draws = 0;
    json_array_foreach(cases, index, item) {
        struct brownian *tree = tree_of(item, index % 2, RNG_CPU);
        int count = (int)number(item, "count");
        json_array_foreach(json_object_get(item, "draws"), draw, known) {
            float drawn[COUNT_MAX];
            double largest = 0, difference = 0, sum = 0;
            brownian_draw(tree, drawn);
            json_array_foreach(known, i, value) {
                largest = fmax(largest, fabs(json_number_value(value)));
                difference = fmax(difference, fabs(drawn[i] - json_number_value(value)));
                if (isnan(drawn[i]))
                    difference = INFINITY;
            }
            for (int k = 0; k < count; k++)
                sum += drawn[k];
            sum -= json_number_value(json_array_get(json_object_get(item, "sums"), draw));
            worst = fmax(worst, difference / largest);
            worst_sum = fmax(worst_sum, fabs(sum) / count);
            CHECK(difference <= 1e-6 * largest && fabs(sum) <= 1e-6 * count,
                "tree %zu draw %zu: relative error %.2g, of the mean %.2g", index, draw,
                difference / largest, fabs(sum) / count);
            draws++;
        }
        brownian_destroy(tree);
    }
    CHECK(draws > 100, "%d draws", draws);
    printf("%d draws of torchsde, worst relative error %.2g, of a mean %.2g\n", draws, worst,
        worst_sum);
}

/* Drawing at once, with pauses, or without a helper thread gives the same bits. */
static void timing_changes_no_bit(const json_t *cases) {
    static float drawn[3][COUNT_MAX];
    const struct timespec pause = { .tv_nsec = 3000000 };
    size_t index;
    json_t *item;
    json_array_foreach(cases, index, item) {
        for (int kind = RNG_CPU; kind <= RNG_CUDA; kind++) {
            struct brownian *trees[3];
            for (int i = 0; i < 3; i++)
                trees[i] = tree_of(item, i < 2, (enum rng_kind)kind);
            size_t bytes = sizeof(float) * (size_t)number(item, "count");
            bool same = true;
            for (size_t k = 0; k < json_array_size(json_object_get(item, "spans")); k++) {
                for (int i = 0; i < 3; i++) {
                    if (i == 1 && k % 5 == 0)
                        nanosleep(&pause, NULL);
                    brownian_draw(trees[i], drawn[i]);
                }
                same = same && memcmp(drawn[0], drawn[1], bytes) == 0 &&
                       memcmp(drawn[0], drawn[2], bytes) == 0;
            }
            CHECK(same, "tree %zu of %s", index, kind == RNG_CUDA ? "cuda" : "cpu");
            for (int i = 0; i < 3; i++)
                brownian_destroy(trees[i]);
        }
    }
}

/* A tree can be destroyed at any moment, whatever its thread is doing. */
static void trees_go_when_they_are_told(const json_t *item) {
    for (int taken = 0; taken < 8; taken++) {
        struct brownian *tree = tree_of(item, true, RNG_CPU);
        float drawn[COUNT_MAX];
        for (int i = 0; i < taken; i++)
            brownian_draw(tree, drawn);
        brownian_destroy(tree);
    }
    brownian_destroy(NULL);
}

static void spans_that_descend_not_are_refused(void) {
    const struct {
        float sigmas[3][2];
        const char *words;
    } wrong[] = {
        { { { 1, 2 }, { 2, 3 }, { 3, 4 } }, "span 1 of 3, sigma 3 to 2, is out of order" },
        { { { 4, 3 }, { 3, 2.9999998f }, { 2, 1 } }, "span 1 of 3, sigma 3 to 3" },
        { { { 4, 1 }, { 3, 2 }, { 2, 1 } }, "span 1 of 3, sigma 3 to 2" },
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct scheduler_evaluation evaluations[3] = { 0 };
        struct scheduler_plan plan = { 3, evaluations, 1, 0, 1, 4 };
        struct error err = { 0 };
        struct brownian *tree;
        for (int k = 0; k < 3; k++) {
            evaluations[k].draws_noise = true;
            evaluations[k].brownian_from = wrong[i].sigmas[k][0];
            evaluations[k].brownian_to = wrong[i].sigmas[k][1];
        }
        bool ok = brownian_create(&plan, RNG_CPU, 0, 16, false, &tree, &err);
        CHECK(!ok && err.code == ERROR_INTERNAL && !tree, "case %zu", i);
        CHECK_CONTAINS(err.message, wrong[i].words);
    }
    CHECK(brownian_resolves(0.1f, 10, 1, 1.00001f),
        "sigmas that differ by a hundred-thousandth are refused");
    CHECK(!brownian_resolves(0.1f, 10, 1, 1.0000001f),
        "sigmas that differ by less than a millionth are accepted");
    CHECK(!brownian_resolves(0.1f, 10, 11, 12), "outside");
    CHECK(!brownian_resolves(0.1f, 1e12f, 1, 2),
        "sigmas that differ by a millionth of the largest are accepted");
}

int main(int argc, char **argv) {
    json_error_t why;
    json_t *data = argc == 2 ? json_load_file(argv[1], 0, &why) : NULL;
    if (!data)
        return 2;
    json_t *trees = json_object_get(data, "trees");
    seeds_are_numpys(json_object_get(data, "seed_sequences"));
    draws_are_torchsdes(trees);
    timing_changes_no_bit(trees);
    trees_go_when_they_are_told(json_array_get(trees, 1));
    spans_that_descend_not_are_refused();
    json_decref(data);
    return check_done();
}
