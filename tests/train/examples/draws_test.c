/* The random numbers of a training step, each compared with torch's in diffusers' loop with a CPU
 * generator; also after steps that were skipped instead of drawn. */
#include "train/examples/draws.h"

#include "tests/train/recorded.h"

#include <stdlib.h>

#define MAX_ELEMENTS 128
#define MAX_ROWS 8

/* Returns the largest difference. `expected` is in torch's order,
 * [rows][channels][height][width]. */
static double compare(const json_t *expected, const float *got, const struct draws_batch *b) {
    double worst = 0;
    const int64_t pixels = b->shape.height * b->shape.width;
    for (int64_t row = 0, i = 0; row < b->shape.rows; row++)
        for (int64_t c = 0; c < b->shape.channels; c++)
            for (int64_t p = 0; p < pixels; p++, i++) {
                const double difference = fabs(got[(row * pixels + p) * b->shape.channels + c] -
                                               recorded_at(expected, (size_t)i));
                worst = fmax(worst, difference);
            }
    return worst;
}

/* Makes the same posterior as draw_steps of training.py. */
static void posterior(const struct draws_batch *b, float *mean, float *log_variance) {
    const int64_t pixels = b->shape.height * b->shape.width,
                  count = b->shape.rows * b->shape.channels * pixels;
    for (int64_t row = 0, i = 0; row < b->shape.rows; row++)
        for (int64_t c = 0; c < b->shape.channels; c++)
            for (int64_t p = 0; p < pixels; p++, i++) {
                const int64_t to = (row * pixels + p) * b->shape.channels + c;
                mean[to] = (float)(-2 + 4.0 * (double)i / (double)(count - 1));
                log_variance[to] = (float)(-40 +
                                           43.0 * (double)(count - 1 - i) / (double)(count - 1));
            }
}

/* Draws the recorded steps from `first` on; those before it are skipped. */
static double run(const json_t *item, const float *alphas_cumprod, size_t first, size_t *values) {
    const json_t *shape = json_object_get(item, "shape"), *steps = json_object_get(item, "steps");
    float mean[MAX_ELEMENTS], log_variance[MAX_ELEMENTS], noisy[MAX_ELEMENTS];
    float target[MAX_ELEMENTS], work[MAX_ELEMENTS];
    int32_t timesteps[MAX_ROWS];
    bool dropped[MAX_ROWS];
    const struct draws_batch batch = {
        { (int64_t)recorded_at(shape, 0), (int64_t)recorded_at(shape, 2),
            (int64_t)recorded_at(shape, 3), (int64_t)recorded_at(shape, 1) },
        mean, log_variance, .noisy = noisy, .target = target, .timesteps = timesteps,
        .dropped = dropped, .work = work
    };
    const struct draws_options options = { .noise_offset = (float)recorded_number(
                                               item, "noise_offset"),
        .input_perturbation = (float)recorded_number(item, "input_perturbation"),
        .caption_dropout = (float)recorded_number(item, "caption_dropout"),
        .v_prediction = json_is_true(json_object_get(item, "v_prediction")),
        .num_train_timesteps = 1000,
        .alphas_cumprod = alphas_cumprod,
        .scaling_factor = 0.18215f };
    posterior(&batch, mean, log_variance);
    struct noise_generator generator;
    noise_init(&generator, RNG_CPU, (uint64_t)recorded_integer(item, "seed"));
    double worst = 0;
    for (size_t s = 0; s < json_array_size(steps); s++) {
        const json_t *step = json_array_get(steps, s);
        if (s < first) {
            draws_skip(&generator, &options, &batch.shape, false);
            continue;
        }
        draws_take(&generator, &options, &batch);
        for (size_t i = 0; i < (size_t)batch.shape.rows; i++) {
            CHECK(timesteps[i] == (int32_t)recorded_at(json_object_get(step, "timesteps"), i),
                "step %zu row %zu: timestep %d", s, i, timesteps[i]);
            CHECK(dropped[i] == (recorded_at(json_object_get(step, "dropped"), i) != 0),
                "step %zu row %zu: dropped %d", s, i, dropped[i]);
        }
        worst = fmax(worst, compare(json_object_get(step, "noisy"), noisy, &batch));
        worst = fmax(worst, compare(json_object_get(step, "target"), target, &batch));
        *values += 2 * json_array_size(json_object_get(step, "noisy"));
    }
    return worst;
}

int main(int argc, char **argv) {
    json_t *file = recorded_load(argc, argv), *item;
    const json_t *content = json_array_get(file, 0);
    const json_t *alphas = json_object_get(content, "alphas_cumprod");
    static float alphas_cumprod[1000];
    for (size_t i = 0; i < 1000; i++)
        alphas_cumprod[i] = (float)recorded_at(alphas, i);
    size_t i, values = 0;
    json_array_foreach(json_object_get(content, "cases"), i, item) {
        const size_t steps = json_array_size(json_object_get(item, "steps"));
        for (size_t first = 0; first < steps; first++) {
            const double worst = run(item, alphas_cumprod, first, &values);
            printf("case %zu, %zu steps skipped: worst difference %.2g\n", i, first, worst);
            CHECK(worst <= 3e-6, "case %zu, %zu skipped: %.3g", i, first, worst);
        }
    }
    CHECK(values > 600, "%zu values", values);
    json_decref(file);
    return check_done();
}
