/* A job that stops and goes on against one that does not: the same bits, also with 8-bit states, an
 * average and a loss scale; and a job that has changed does not go on. */
#include "train/job_state.h"

#include "tests/train/small_job.h"
#include "train/ema.h"

#include <stdlib.h>

#define STEPS 9
#define STOP 4

static char folder[64];

struct run {
    struct train_config config;
    struct noise_generator generator;
    struct parameters *parameters;
    struct optimizer optimizer;
    struct loss_scaler scaler;
    float *average;
    int64_t step, epoch, batch;
    uint64_t passes;
};

static struct small_job models;

static void run_init(struct run *r, const char *more) {
    struct error err = { 0 };
    *r = (struct run){ .config = small_job_config(more), .scaler = loss_scaler_torch() };
    r->scaler.growth_interval = 3;
    noise_init(&r->generator, RNG_CPU, 3);
    CHECK(parameters_create(kernels_cpu(), &r->config, unet_weights(models.unet), NULL,
              &r->generator, &r->parameters, &err) &&
              optimizer_init(&r->optimizer, &r->config, r->parameters, &err),
        "%s", err.message);
    r->average = calloc((size_t)r->parameters->floats, sizeof(float));
    memcpy(r->average, r->parameters->values, sizeof(float) * (size_t)r->parameters->floats);
}

static void run_finish(struct run *r) {
    optimizer_finish(&r->optimizer);
    parameters_destroy(r->parameters);
    train_config_finish(&r->config);
    free(r->average);
}

static struct job_state state_of(struct run *r) {
    return (struct job_state){ &r->config, &r->optimizer, r->average, &r->generator, &r->scaler,
        &r->step, &r->epoch, &r->batch, &r->passes };
}

/* A step with gradients from the generator, in draws of odd sizes, so that it keeps a number. */
static void step(struct run *r) {
    static const struct learning_rate constant = { .kind = LEARNING_RATE_CONSTANT };
    const struct ema_options ema = ema_defaults();
    struct optimizer_report report;
    struct error err = { 0 };
    float odd[3];
    noise_draw(&r->generator, odd, 3);
    noise_draw(&r->generator, r->parameters->gradients, r->parameters->floats);
    if (r->step == 2)
        r->parameters->gradients[0] = INFINITY;
    CHECK(
        optimizer_step(&r->optimizer, &constant, r->step, r->scaler.scale * odd[0], &report, &err),
        "%s", err.message);
    loss_scaler_update(&r->scaler, report.broken > 0);
    r->step++;
    r->batch += 2;
    r->epoch = r->batch / 5;
    r->passes += 2;
    ema_update(ema_decay(&ema, r->step), r->parameters->values, r->average, r->parameters->floats);
}

static bool same(const struct run *a, const struct run *b) {
    const size_t bytes = sizeof(float) * (size_t)a->parameters->floats;
    return memcmp(a->parameters->values, b->parameters->values, bytes) == 0 &&
           memcmp(a->average, b->average, bytes) == 0 && a->scaler.scale == b->scaler.scale &&
           a->scaler.good_steps == b->scaler.good_steps && a->step == b->step &&
           a->epoch == b->epoch && a->batch == b->batch && a->passes == b->passes &&
           memcmp(a->generator.mt.state, b->generator.mt.state, sizeof(a->generator.mt.state)) == 0;
}

static void goes_on_bit_for_bit(const char *more) {
    char resuming[300];
    struct run straight, first, second;
    struct error err = { 0 };
    bool resumed;
    snprintf(resuming, sizeof(resuming), "%s, \"resume_from_checkpoint\": \"latest\"", more);
    run_init(&straight, more);
    for (int i = 0; i < STEPS; i++)
        step(&straight);
    run_init(&first, resuming);
    struct job_state state = state_of(&first);
    CHECK(job_state_read(folder, &state, &resumed, &err) && !resumed, "%s", err.message);
    for (int i = 0; i < STOP; i++)
        step(&first);
    CHECK(job_state_write(folder, &state, NULL, NULL, &err), "%s", err.message);
    step(&first); /* lost */
    run_init(&second, resuming);
    state = state_of(&second);
    CHECK(job_state_read(folder, &state, &resumed, &err) && resumed, "%s", err.message);
    CHECK(second.step == STOP, "step %lld", (long long)second.step);
    while (second.step < STEPS)
        step(&second);
    CHECK(same(&straight, &second), "the job that stopped is another one");
    printf("%s%lld floats, %d + %d steps = %d steps\n",
        straight.optimizer.eight_bit ? "8 bits, " : "", (long long)straight.parameters->floats,
        STOP, STEPS - STOP, STEPS);
    run_finish(&straight);
    run_finish(&first);
    run_finish(&second);
}

static void a_changed_job_is_told(const char *more, const char *param, const char *value) {
    struct run run;
    struct error err = { 0 };
    bool resumed;
    run_init(&run, more);
    const struct job_state state = state_of(&run);
    CHECK(!job_state_read(folder, &state, &resumed, &err) && !resumed, "%s went on", more);
    CHECK(strcmp(err.param, param) == 0 && strstr(err.value, value), "%s: %s", more, err.message);
    printf("%s\n", err.message);
    run_finish(&run);
}

static void empty_folder(void) {
    char command[100];
    snprintf(command, sizeof(command), "rm -rf %s/*", folder);
    CHECK(system(command) == 0, "%s", command);
}

int main(void) {
    snprintf(folder, sizeof(folder), "/tmp/job_state_test_XXXXXX");
    CHECK(mkdtemp(folder), "no temporary folder");
    small_job_models(&models, kernels_cpu());
    goes_on_bit_for_bit(", \"rank\": 4, \"seed\": 3, \"learning_rate\": 0.01");
    empty_folder();
    goes_on_bit_for_bit(
        ", \"rank\": 4, \"seed\": 3, \"learning_rate\": 0.01, \"use_8bit_adam\": true");
    empty_folder();
    goes_on_bit_for_bit(", \"rank\": 4, \"seed\": 3, \"learning_rate\": 0.01");
#define SAME ", \"seed\": 3, \"resume_from_checkpoint\": \"latest\""
    a_changed_job_is_told(SAME ", \"rank\": 4, \"learning_rate\": 0.02", "learning_rate", "0.02");
    a_changed_job_is_told(
        SAME ", \"rank\": 4, \"learning_rate\": 0.01, \"snr_gamma\": 5", "snr_gamma", "5");
    a_changed_job_is_told(", \"seed\": 3, \"rank\": 4, \"resume_from_checkpoint\": \"../x\"",
        "resume_from_checkpoint", "../x");
    empty_folder();
    char command[100];
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    CHECK(system(command) == 0, "%s", command);
    models.parameters = NULL;
    unet_destroy(models.unet);
    text_encoder_destroy(models.text_encoder);
    rule_source_finish(&models.source);
    return check_done();
}
