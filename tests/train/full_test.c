/* Full fine-tunes, compared with diffusers (tests/reference/full_losses.py): the first 20 losses,
 * gradient norms and some of the saved weights, for the bundled checkpoint and a small UNet of
 * SD-2's kind, in f32 and bf16. A run with gradient checkpointing, a run whose values are read in
 * the middle of a step, and a run that is resumed from a checkpoint must each give the same bits.
 * The saved folder must hold the trained values.
 *
 * usage: full_test full_losses.json CHECKPOINT */
#include "tests/train/rule_job.h"

static const struct small_unet *const small_sd2 = &small_unets[1];

static const char *checkpoint_path;
static struct rule_checkpoint shared;
static struct rule_pictures pictures;

/* --- a job --- */

static char cache_path[] = "/tmp/latentd-cache-XXXXXX";

struct job {
    struct train_config config;
    struct train_source source;
    struct rule_source rule;
    struct weights unet_source, text_source;
    struct unet *unet;
    struct text_encoder *text_encoder;
    struct trainer *trainer;
    struct rule_steps steps;
};

static void load_models(struct job *job, bool is_sd2) {
    struct error err = { 0 };
    struct checkpoint *c = shared.checkpoint;
    const struct kernels *k = kernels_cpu();
    const enum dtype dtype = job->config.mixed_precision == TRAIN_PRECISION_BF16 ? DTYPE_BF16
                                                                                 : DTYPE_F32;
    job->rule = (struct rule_source){ .gain = small_sd2->gain };
    job->unet_source = is_sd2 ? rule_weights(&job->rule, k, dtype)
                              : weights_from_checkpoint(c, COMPONENT_UNET, k, dtype);
    job->text_source = weights_from_checkpoint(c, COMPONENT_TEXT_ENCODER, k, dtype);
    struct unet_config config = is_sd2 ? small_sd2->config : *checkpoint_unet_config(c);
    config.cross_attention_dim = checkpoint_unet_config(c)->cross_attention_dim;
    must(unet_create(&config, &job->unet_source, &job->unet, &err) &&
             text_encoder_create(
                 checkpoint_text_encoder_config(c), &job->text_source, &job->text_encoder, &err),
        &err);
}

static void start(struct job *job, const json_t *fields, bool checkpointing, bool is_sd2) {
    json_t *json = json_deep_copy(fields);
    struct error err = { 0 };
    json_object_update_new(
        json, json_pack("{s:s, s:s, s:s, s:i, s:i, s:b}", "name", "test", "dataset", "test",
                  "method", "full", "seed", 7, "max_train_steps", STEPS, "gradient_checkpointing",
                  (int)checkpointing));
    must(train_config_parse(json, &job->config, &err), &err);
    json_decref(json);
    job->source = rule_source_of(&pictures);
    load_models(job, is_sd2);
    struct trainer_options options = {
        .config = &job->config,
        .source = &job->source,
        .models = rule_checkpoint_models(&shared, job->unet, job->text_encoder),
        .cache = cache_path,
        .stepped = rule_stepped,
        .user = &job->steps,
    };
    options.models.unet_source = &job->unet_source;
    options.models.text_encoder_source = &job->text_source;
    must(trainer_create(&options, &job->trainer, &err), &err);
}

static void go_on(struct job *job, int64_t step, int pieces) {
    struct error err = { 0 };
    while (trainer_step(job->trainer) < step)
        must(trainer_advance(job->trainer, &err), &err);
    while (pieces--)
        must(trainer_advance(job->trainer, &err), &err);
}

static void finish(struct job *job) {
    trainer_destroy(job->trainer);
    unet_destroy(job->unet);
    text_encoder_destroy(job->text_encoder);
    rule_source_finish(&job->rule);
    train_config_finish(&job->config);
    *job = (struct job){ 0 };
}

/* --- comparisons --- */

/* Returns the largest difference of the first numbers of some saved tensors. */
static double compare_finals(const struct job *job, const float *values, const json_t *finals) {
    const struct parameters *p = trainer_parameters(job->trainer);
    const char *name;
    json_t *expected;
    double worst = 0;
    size_t found = 0;
    json_object_foreach((json_t *)finals, name, expected) {
        for (size_t i = 0; i < p->tensor_count; i++) {
            const struct trained_tensor *t = &p->tensors[i];
            if (t->component != COMPONENT_UNET || strcmp(t->name, name) != 0)
                continue;
            found++;
            for (int64_t k = 0; k < 4; k++)
                worst = fmax(worst, fabs(values[t->at + k] - recorded_at(expected, (size_t)k)));
        }
    }
    CHECK(found && found == json_object_size(finals), "%zu tensors of %zu", found,
        json_object_size(finals));
    return worst;
}

struct bounds {
    double loss, norm, final;
};

/* exact: for f32, whose results are as exact as the reference's. rough: for bf16, where the two
 * libraries round in different places. */
static const struct bounds exact = { 1e-4, 1e-3, 2e-5 }, rough = { 2e-2, 1e-1, 5e-4 };

static void compare(
    const char *name, const struct job *job, const float *values, const json_t *record) {
    const bool is_bf16 = job->config.mixed_precision == TRAIN_PRECISION_BF16;
    const struct bounds *bounds = is_bf16 ? &rough : &exact;
    double loss, norm;
    rule_steps_compare(&job->steps, record, STEPS, &loss, &norm);
    const double final = compare_finals(job, values, json_object_get(record, "finals"));
    printf("%-6s losses differ by %.2g at most (a rounding moves them by %.2g), norms by %.2g, "
           "saved numbers by %.2g\n",
        name, loss, recorded_number(record, "moved"), norm, final);
    CHECK(loss <= bounds->loss, "losses of %s: %g", name, loss);
    CHECK(norm <= bounds->norm, "norms of %s: %g", name, norm);
    CHECK(final <= bounds->final, "saved numbers of %s: %g", name, final);
}

/* Checks that another run of the job ends with the same values. */
static void check_same(const char *name, const char *what, struct job *job, const float *values) {
    struct error err = { 0 };
    const size_t bytes = (size_t)trainer_parameters(job->trainer)->floats * sizeof(float);
    go_on(job, STEPS, 0);
    const float *own = trainer_values(job->trainer, &err);
    must(own, &err);
    CHECK(memcmp(own, values, bytes) == 0, "%s: %s changes bits", name, what);
}

/* Checks the saved checkpoint: the trained tensors hold the values in the file's order, and all
 * else is unchanged. */
static void check_saved(const char *folder, struct job *job, const float *values) {
    struct error err = { 0 };
    char path[64];
    struct checkpoint *saved;
    snprintf(path, sizeof(path), "%s/model", folder);
    must(trainer_save_model(job->trainer, shared.checkpoint, checkpoint_path, path, &err) &&
             checkpoint_open(path, NULL, &saved, &err),
        &err);
    const struct parameters *p = trainer_parameters(job->trainer);
    float *turned = malloc((size_t)p->floats * sizeof(*turned));
    for (size_t i = 0; i < p->tensor_count; i++) {
        const struct trained_tensor *t = &p->tensors[i];
        const int64_t size = t->taps == 9 ? 3 : 1, count = t->n * t->taps * t->k;
        const int64_t shape[4] = { t->n, t->k, size, size };
        struct tensor tensor;
        must(checkpoint_tensor(saved, t->component, t->name, t->rank, shape, &tensor, &err), &err);
        trained_tensor_turn(t, values + t->at, true, turned);
        CHECK(tensor.dtype == DTYPE_F32 &&
                  memcmp(tensor.data, turned, (size_t)count * sizeof(*turned)) == 0,
            "%s is not what was trained", t->name);
    }
    free(turned);
    struct checkpoint_stats before, after;
    checkpoint_get_stats(shared.checkpoint, COMPONENT_VAE, &before);
    checkpoint_get_stats(saved, COMPONENT_VAE, &after);
    CHECK(before.bytes == after.bytes && before.tensors == after.tensors, "the VAE is another");
    const json_t *type = json_object_get(checkpoint_scheduler_json(saved), "prediction_type");
    if (job->config.prediction_type == TRAIN_PREDICTION_V)
        CHECK_STRING(json_string_value(type), "v_prediction");
    checkpoint_close(saved);
}

static void run_case(const char *name, const json_t *record) {
    struct error err = { 0 };
    const json_t *fields = json_object_get(record, "config");
    const bool is_sd2 = strcmp(name, "sd2") == 0;
    char folder[] = "/tmp/latentd-full-XXXXXX";
    must_make(folder);
    struct job job = { 0 };
    start(&job, fields, false, is_sd2);
    go_on(&job, STEPS, 0);
    const size_t floats = (size_t)trainer_parameters(job.trainer)->floats;
    float *values = malloc(floats * sizeof(*values));
    const float *own = trainer_values(job.trainer, &err);
    must(own, &err);
    memcpy(values, own, floats * sizeof(*values));
    compare(name, &job, values, record);
    if (!is_sd2)
        check_saved(folder, &job, values);
    finish(&job);

    start(&job, fields, true, is_sd2);
    check_same(name, "gradient checkpointing", &job, values);
    finish(&job);

    start(&job, fields, false, is_sd2);
    go_on(&job, 11, 7);
    must(trainer_checkpoint(job.trainer, folder, &(struct adapter_facts){ 0 }, &err), &err);
    check_same(name, "writing a checkpoint", &job, values);
    finish(&job);

    start(&job, fields, false, is_sd2);
    bool resumed;
    must(trainer_resume(job.trainer, folder, &resumed, &err), &err);
    CHECK(resumed && trainer_step(job.trainer) == 11, "step %lld",
        (long long)trainer_step(job.trainer));
    check_same(name, "stopping", &job, values);
    finish(&job);
    free(values);
    remove_folder(folder);
}

int main(int argc, char **argv) {
    json_error_t why = { .text = "usage: full_test full_losses.json CHECKPOINT" };
    json_t *file = argc == 3 ? json_load_file(argv[1], 0, &why) : NULL;
    must(file, &(struct error){ .message = "no recorded losses" });
    checkpoint_path = argv[2];
    rule_checkpoint_open(&shared, checkpoint_path, kernels_cpu());
    const int size = (int)recorded_integer(file, "size");
    pictures = rule_pictures_of(file, size, size);
    must_make(cache_path);
    const char *name;
    json_t *record;
    json_object_foreach(json_object_get(file, "cases"), name, record) run_case(name, record);
    remove_folder(cache_path);
    rule_checkpoint_close(&shared);
    json_decref(file);
    return check_done();
}
