/* Twelve steps of each optimizer on two parameter groups with a schedule, compared with torch,
 * lion-pytorch, transformers and prodigyopt: clipping by norm and by value.
 *
 * usage: optimizer_test optimizer.json [cuda] */
#include "train/optimizer/optimizer.h"

#include "kernels/devices.h"
#include "tests/train/recorded.h"

#include <stdlib.h>

/* Match COUNTS and gradient() of training.py. */
#define FIRST 400
#define SECOND 208
#define COUNT (FIRST + SECOND)
#define STEPS 12

static void set_gradients(float *out, int step, double scale) {
    for (int i = 0; i < COUNT; i++)
        out[i] = (float)(sin(0.37 * i + 1.7 * step) * (0.02 + 0.03 * (step % 4))) * (float)scale;
}

static const struct kernels *table; /* the device under test */

static void put(float *to, const float *from) {
    struct error err = { 0 };
    CHECK(table->memory->upload(to, from, COUNT * sizeof(float), &err), "%s", err.message);
}

/* Returns a view on the host, valid until the device is used again. */
static const float *get(const float *from) {
    struct error err = { 0 };
    const float *host = table->memory->view(from, COUNT * sizeof(float), &err);
    CHECK(host, "%s", err.message);
    return host;
}

struct rig {
    struct parameters parameters;
    struct parameter_range ranges[2];
    struct trained_tensor tensors[2]; /* matrices of 25x16 and 16x13 */
    struct optimizer optimizer;
};

static void rig_init(struct rig *rig, const struct train_config *config) {
    const struct kernels *kernels = table;
    struct error err = { 0 };
    float values[COUNT];
    *rig = (struct rig){ .ranges = { { 0, FIRST, 1e-2, 0.1 }, { FIRST, SECOND, 3e-3, 0 } } };
    rig->tensors[0] = (struct trained_tensor){ .at = 0, .n = 25, .taps = 1, .k = 16, .rank = 2 };
    rig->tensors[1] =
        (struct trained_tensor){ .at = FIRST, .n = 16, .taps = 1, .k = 13, .rank = 2 };
    if (config->optimizer == TRAIN_PRODIGY)
        rig->ranges[0].learning_rate = rig->ranges[1].learning_rate = 1;
    rig->parameters = (struct parameters){ .kernels = kernels,
        .ranges = rig->ranges,
        .range_count = 2,
        .tensors = rig->tensors,
        .tensor_count = 2,
        .floats = COUNT };
    const size_t bytes = COUNT * sizeof(float);
    CHECK(kernels->memory->alloc(MEMORY_WEIGHTS, bytes, (void **)&rig->parameters.values, &err) &&
              kernels->memory->alloc(
                  MEMORY_WEIGHTS, bytes, (void **)&rig->parameters.gradients, &err),
        "%s", err.message);
    for (int i = 0; i < COUNT; i++)
        values[i] = (float)cos(0.1 * (i < FIRST ? i : i - FIRST));
    put(rig->parameters.values, values);
    CHECK(optimizer_init(&rig->optimizer, config, &rig->parameters, &err), "%s", err.message);
}

static void rig_finish(struct rig *rig) {
    const struct device_memory *memory = rig->parameters.kernels->memory;
    optimizer_finish(&rig->optimizer);
    memory->release(MEMORY_WEIGHTS, rig->parameters.values, COUNT * sizeof(float));
    memory->release(MEMORY_WEIGHTS, rig->parameters.gradients, COUNT * sizeof(float));
}

static const struct learning_rate cosine = {
    .kind = LEARNING_RATE_COSINE, .warmup_steps = 2, .total_steps = STEPS, .num_cycles = 0.5
};

static struct train_config config_of(double max_norm, double max_value, bool eight_bit) {
    return (struct train_config){ .adam_beta1 = 0.9,
        .adam_beta2 = 0.99,
        .adam_epsilon = 1e-8,
        .max_grad_norm = max_norm,
        .max_grad_value = max_value,
        .use_8bit_adam = eight_bit };
}

/* Sets the optimizer of a recorded case, as in training.py. */
static void set_optimizer(const char *name, struct train_config *config) {
    if (strcmp(name, "lion") == 0)
        config->optimizer = TRAIN_LION;
    if (strcmp(name, "adafactor") == 0)
        config->optimizer = TRAIN_ADAFACTOR;
    if (strcmp(name, "prodigy") == 0)
        config->optimizer = TRAIN_PRODIGY;
    config->lion_beta1 = 0.9;
    config->lion_beta2 = 0.99;
    config->adafactor_scale_parameter = true;
    config->adafactor_clip_threshold = 1;
    config->adafactor_decay_rate = -0.8;
    config->prodigy_d0 = 1e-3;
    config->prodigy_d_coef = 3;
    config->prodigy_decouple = true;
    config->prodigy_use_bias_correction = config->prodigy_safeguard_warmup = true;
}

static double run(struct rig *rig, const json_t *norms, double loss_scale) {
    double worst = 0;
    for (int step = 0; step < STEPS; step++) {
        struct optimizer_report report;
        struct error err = { 0 };
        float gradients[COUNT];
        /* Prodigy gets the same gradient again and again, so that d grows. */
        const bool again = rig->optimizer.config->optimizer == TRAIN_PRODIGY;
        set_gradients(gradients, again ? 1 : step, loss_scale);
        put(rig->parameters.gradients, gradients);
        CHECK(optimizer_step(&rig->optimizer, &cosine, step, loss_scale, &report, &err), "%s",
            err.message);
        worst = fmax(worst, fabs(report.grad_norm / recorded_at(norms, (size_t)step) - 1));
        CHECK(report.stepped && report.broken == 0, "%lld broken gradients",
            (long long)report.broken);
        const float *left = get(rig->parameters.gradients);
        for (int i = 0; i < COUNT; i++)
            CHECK(left[i] == 0, "gradient %d was not cleared", i);
    }
    CHECK(worst <= 1e-6, "norms differ by %.3g", worst);
    return worst;
}

static void compare(const json_t *item, double loss_scale) {
    struct train_config config = config_of(
        recorded_number(item, "max_grad_norm"), recorded_number(item, "max_grad_value"), false);
    set_optimizer(json_string_value(json_object_get(item, "name")), &config);
    struct rig rig;
    rig_init(&rig, &config);
    const double norms = run(&rig, json_object_get(item, "norms"), loss_scale);
    const json_t *values = json_object_get(item, "values");
    const float *got = get(rig.parameters.values);
    double worst = 0;
    for (size_t i = 0; i < COUNT; i++)
        worst = fmax(worst, fabs(got[i] - recorded_at(values, i)));
    printf("%s, loss times %g: values within %.2g, norms within %.2g\n",
        json_string_value(json_object_get(item, "name")), loss_scale, worst, norms);
    CHECK(worst <= 1e-6, "%.3g", worst); /* a rounding of each of the twelve steps */
    rig_finish(&rig);
}

/* With gradient norms near torch's 1e-6: clip_grad_norm_ multiplies by min(1, max_norm / (norm +
 * 1e-6)). Gradients multiplied by this factor here must take the same steps. */
static void tiny_gradients_are_clipped_as_torch_does(void) {
    const double max_norm = 2e-7;
    struct train_config config = config_of(max_norm, 0, false), plain = config_of(0, 0, false);
    struct rig clipped, multiplied;
    config.adam_epsilon = plain.adam_epsilon = 1e-15;
    rig_init(&clipped, &config);
    rig_init(&multiplied, &plain);
    for (int step = 0; step < STEPS; step++) {
        struct optimizer_report report;
        struct error err = { 0 };
        float gradients[COUNT];
        double squares = 0;
        set_gradients(gradients, step, 1e-6);
        for (int i = 0; i < COUNT; i++)
            squares += (double)gradients[i] * (double)gradients[i];
        const double norm = sqrt(squares), factor = fmin(max_norm / (norm + 1e-6), 1);
        put(clipped.parameters.gradients, gradients);
        for (int i = 0; i < COUNT; i++)
            gradients[i] = (float)(factor * (double)gradients[i]);
        put(multiplied.parameters.gradients, gradients);
        CHECK(optimizer_step(&clipped.optimizer, &cosine, step, 1, &report, &err) &&
                  optimizer_step(&multiplied.optimizer, &cosine, step, 1, &report, &err),
            "%s", err.message);
    }
    float expected[COUNT];
    double worst = 0;
    memcpy(expected, get(multiplied.parameters.values), sizeof(expected));
    const float *got = get(clipped.parameters.values);
    for (int i = 0; i < COUNT; i++)
        worst = fmax(worst, fabs((double)got[i] - (double)expected[i]));
    printf("norms of about 1e-6, clipped to %g: values within %.2g\n", max_norm, worst);
    CHECK(worst <= 5e-7, "%.3g", worst);
    rig_finish(&clipped);
    rig_finish(&multiplied);
}

static void refuses(const char *what, float first, float second, int64_t broken) {
    const struct train_config config = config_of(1, 0, false);
    struct rig rig;
    rig_init(&rig, &config);
    float before[COUNT], gradients[COUNT];
    memcpy(before, get(rig.parameters.values), sizeof(before));
    struct optimizer_report report;
    struct error err = { 0 };
    set_gradients(gradients, 1, 1);
    gradients[17] = first;
    gradients[500] = second;
    put(rig.parameters.gradients, gradients);
    CHECK(optimizer_step(&rig.optimizer, &cosine, 5, 1, &report, &err), "%s", err.message);
    CHECK(!report.stepped && report.broken == broken && rig.optimizer.steps == 0,
        "%s: %lld broken, %lld steps", what, (long long)report.broken,
        (long long)rig.optimizer.steps);
    CHECK(memcmp(before, get(rig.parameters.values), sizeof(before)) == 0, "%s: values changed",
        what);
    const float *left = get(rig.parameters.gradients);
    CHECK(left[17] == 0 && left[500] == 0, "%s: broken gradients stay", what);
    rig_finish(&rig);
}

static void a_broken_gradient_changes_nothing(void) {
    refuses("infinity and NaN", INFINITY, NAN, 2);
    refuses("a norm beyond f32", 1e30f, -1e25f, 0);
}

/* Measures the difference to 32-bit states, relative to how far the values moved. */
static void eight_bits_come_close(const json_t *item) {
    const struct train_config config = config_of(1, 0, true);
    struct rig rig;
    rig_init(&rig, &config);
    run(&rig, json_object_get(item, "norms"), 1);
    double gap = 0, moved = 0;
    for (int i = 0; i < COUNT; i++) {
        const double exact = recorded_at(json_object_get(item, "values"), (size_t)i);
        const double start = cos(0.1 * (i < FIRST ? i : i - FIRST));
        gap += pow(rig.parameters.values[i] - exact, 2);
        moved += pow(exact - start, 2);
    }
    printf("8 bits: %.3g of the way away from 32 bits\n", sqrt(gap / moved));
    CHECK(sqrt(gap / moved) < 0.05 && gap > 0, "%.3g", sqrt(gap / moved));
    rig_finish(&rig);
}

/* 8-bit states exist only on the CPU: a device must refuse them. */
static void eight_bits_are_refused(void) {
    const struct train_config config = config_of(1, 0, true);
    struct parameters parameters = { .kernels = table, .floats = COUNT };
    struct optimizer optimizer;
    struct error err = { 0 };
    CHECK(!optimizer_init(&optimizer, &config, &parameters, &err) &&
              err.code == ERROR_UNSUPPORTED && strstr(err.message, "use_8bit_adam"),
        "%s", err.message);
}

int main(int argc, char **argv) {
    struct error err = { 0 };
    const bool is_cuda = argc == 3;
    table = is_cuda ? devices_open(&(struct device_choice){ .kind = DEVICE_CUDA }, &err)
                    : kernels_cpu();
    if (!table)
        return check_no_device(err.message);
    json_t *cases = recorded_load(argc, argv), *item;
    size_t i;
    json_array_foreach(cases, i, item) {
        compare(item, 1);
        compare(item, 1024);
    }
    CHECK(i == 7, "%zu cases", i);
    tiny_gradients_are_clipped_as_torch_does();
    a_broken_gradient_changes_nothing();
    if (is_cuda)
        eight_bits_are_refused();
    else
        eight_bits_come_close(json_array_get(cases, 1));
    json_decref(cases);
    return check_done();
}
