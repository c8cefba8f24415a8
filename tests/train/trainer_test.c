/* The first 20 losses of LoRA jobs on the bundled checkpoint, compared with diffusers + peft
 * (tests/reference/train_losses.py): weights, order of pictures, noise, timesteps, dropped
 * captions, accumulation, schedule, clipping, min-SNR, the text encoder. A second run, with
 * gradient checkpointing, must have the same bits. Jobs with non-finite numbers must fail. On a
 * CUDA device checks only the first few losses of two jobs, one of which changes the weights.
 *
 * usage: trainer_test train_losses.json CHECKPOINT [cuda] */
#include "kernels/devices.h"
#include "tests/train/rule_job.h"

#include <unistd.h>

#define CUDA_STEPS 3 /* few: the emulator is slow */

static struct {
    struct rule_checkpoint rest;
    struct unet *unet, *inpainting; /* inpainting: a first layer of 9 channels */
    struct text_encoder *text_encoder;
} models;

/* Weights of the checkpoint, with a first layer of 9 channels made by the rule. */
static struct weights plain_weights;
static float *wide;

static bool get_inpainting(void *user, const char *name, int rank, const int64_t *shape,
    struct tensor *out, struct error *err) {
    if (strcmp(name, "conv_in.weight") != 0)
        return plain_weights.get(user, name, rank, shape, out, err);
    const int64_t count = shape[0] * shape[1] * shape[2] * shape[3];
    double *rule = malloc((size_t)count * sizeof(*rule));
    wide = malloc((size_t)count * sizeof(*wide));
    rule_numbers("inpainting.conv_in", count, rule);
    for (int64_t i = 0; i < count; i++)
        wide[i] = (float)(0.2 * rule[i]);
    free(rule);
    *out = tensor_4d(wide, DTYPE_F32, shape[0], shape[1], shape[2], shape[3]);
    return true;
}

static void load_inpainting(struct error *err) {
    struct checkpoint *c = models.rest.checkpoint;
    struct unet_config config = *checkpoint_unet_config(c);
    plain_weights = weights_from_checkpoint(c, COMPONENT_UNET, models.rest.kernels, DTYPE_F32);
    struct weights weights = plain_weights;
    weights.get = get_inpainting;
    weights.end = NULL;
    config.in_channels = 9;
    must(unet_create(&config, &weights, &models.inpainting, err), err);
    free(wide);
}

static void load_models(const char *path, const struct kernels *k) {
    struct error err = { 0 };
    rule_checkpoint_open(&models.rest, path, k);
    struct checkpoint *c = models.rest.checkpoint;
    const struct weights unet = weights_from_checkpoint(c, COMPONENT_UNET, k, DTYPE_F32);
    const struct weights text = weights_from_checkpoint(c, COMPONENT_TEXT_ENCODER, k, DTYPE_F32);
    must(unet_create(checkpoint_unet_config(c), &unet, &models.unet, &err) &&
             text_encoder_create(
                 checkpoint_text_encoder_config(c), &text, &models.text_encoder, &err),
        &err);
    load_inpainting(&err);
}

static void drop_models(void) {
    text_encoder_destroy(models.text_encoder);
    unet_destroy(models.unet);
    unet_destroy(models.inpainting);
    rule_checkpoint_close(&models.rest);
}

/* --- jobs --- */

struct run {
    struct rule_steps steps;
    int reads, foretold, left; /* left: expected pictures never read */
    float *values;             /* owned */
    int64_t floats;
};

/* Returns the job of a recorded case, with the fields that all cases share. */
static struct train_config config_of(const json_t *file, const json_t *fields, bool checkpointing) {
    json_t *json = json_deep_copy(fields);
    struct train_config config;
    struct error err = { 0 };
    json_object_set_new(json, "name", json_string("test"));
    json_object_set_new(json, "dataset", json_string("test"));
    json_object_set(json, "seed", json_object_get(file, "seed"));
    if (!json_object_get(json, "learning_rate"))
        json_object_set(json, "learning_rate", json_object_get(file, "learning_rate"));
    json_object_set_new(json, "max_train_steps", json_integer(STEPS));
    if (checkpointing)
        json_object_set_new(json, "gradient_checkpointing", json_true());
    must(train_config_parse(json, &config, &err), &err);
    json_decref(json);
    return config;
}

static const struct adapter_facts facts = { .model = "tiny-sd", .pictures = 5 };
static char cache_path[] = "/tmp/latentd-cache-XXXXXX";
static char save_path[] = "/tmp/latentd-trainer-XXXXXX";

struct job {
    struct train_config config;
    struct rule_pictures pictures;
    int first_reads; /* of pictures, to fill the cache */
    struct train_source source;
    struct run run;
    struct trainer_options options; /* points into the other members */
    /* Models of its own, if the job changes their weights. */
    struct weights unet_weights, text_weights;
    struct unet *unet;
    struct text_encoder *text_encoder;
};

static void drop_own_models(struct job *job) {
    unet_destroy(job->unet);
    text_encoder_destroy(job->text_encoder);
    job->unet = NULL;
    job->text_encoder = NULL;
}

/* Loads the job's own models, untouched, if it changes their weights. */
static void load_own_models(struct job *job) {
    struct error err = { 0 };
    struct checkpoint *c = models.rest.checkpoint;
    const struct kernels *k = models.rest.kernels;
    if (!train_config_changes_weights(&job->config))
        return;
    drop_own_models(job);
    job->unet_weights = weights_from_checkpoint(c, COMPONENT_UNET, k, DTYPE_F32);
    job->text_weights = weights_from_checkpoint(c, COMPONENT_TEXT_ENCODER, k, DTYPE_F32);
    must(unet_create(checkpoint_unet_config(c), &job->unet_weights, &job->unet, &err) &&
             text_encoder_create(
                 checkpoint_text_encoder_config(c), &job->text_weights, &job->text_encoder, &err),
        &err);
    job->options.models.unet = job->unet;
    job->options.models.text_encoder = job->text_encoder;
    job->options.models.unet_source = &job->unet_weights;
    job->options.models.text_encoder_source = &job->text_weights;
}

static void job_init(
    struct job *job, const json_t *file, const json_t *record, bool checkpointing) {
    const json_t *shape = json_object_get(record, "shape");
    *job = (struct job){ .config = config_of(
                             file, json_object_get(record, "config"), checkpointing) };
    job->pictures = rule_pictures_of(file, (int)recorded_at(shape, 0), (int)recorded_at(shape, 1));
    job->pictures.class_prompt = job->config.class_prompt;
    job->source = rule_source_of(&job->pictures);
    if (job->config.with_prior_preservation)
        job->source.class_count = recorded_integer(file, "class_count");
    const bool inpaints = json_is_true(json_object_get(record, "inpainting"));
    job->options = (struct trainer_options){
        .config = &job->config,
        .source = &job->source,
        .models = rule_checkpoint_models(
            &models.rest, inpaints ? models.inpainting : models.unet, models.text_encoder),
        .cache = cache_path,
        .stepped = rule_stepped,
        .user = &job->run.steps,
    };
}

/* Once all that is kept is encoded, the VAE serves only pictures that are cropped or masked anew in
 * each use, and the text encoder only shuffled captions. */
static void check_models_in_use(const struct job *job, const struct trainer *trainer) {
    const bool shuffles = job->config.shuffle_caption && !job->config.train_text_encoder;
    const int anew = job->pictures.reads - job->first_reads;
    CHECK(trainer_uses_vae(trainer) == (anew > 0), "%d pictures are encoded anew, the VAE is %s",
        anew, trainer_uses_vae(trainer) ? "kept" : "let go");
    CHECK(trainer_uses_text_encoder(trainer) == shuffles, "the text encoder is %s",
        trainer_uses_text_encoder(trainer) ? "kept" : "let go");
}

static void advance(struct job *job, struct trainer *trainer) {
    const bool encodes = trainer_get_phase(trainer) == TRAINER_ENCODING;
    struct error err = { 0 };
    must(trainer_advance(trainer, &err), &err);
    if (encodes)
        job->first_reads = job->pictures.reads;
}

/* Runs a job. With a folder, writes a checkpoint in the middle of a step and resumes in another
 * trainer. */
static struct run run_job(
    const json_t *file, const json_t *record, bool checkpointing, int ahead, const char *folder) {
    struct error err = { 0 };
    struct job job;
    job_init(&job, file, record, checkpointing);
    job.pictures.expected_max = ahead;
    struct trainer *trainer;
    load_own_models(&job);
    must(trainer_create(&job.options, &trainer, &err), &err);
    CHECK(trainer_steps(trainer) == STEPS, "%lld steps", (long long)trainer_steps(trainer));
    if (folder) {
        bool resumed;
        while (trainer_step(trainer) < 11)
            advance(&job, trainer);
        for (int i = 0; i < 7; i++)
            advance(&job, trainer);
        must(trainer_checkpoint(trainer, folder, &facts, &err), &err);
        trainer_destroy(trainer);
        load_own_models(&job);
        must(trainer_create(&job.options, &trainer, &err) &&
                 trainer_resume(trainer, folder, &resumed, &err),
            &err);
        CHECK(
            resumed && trainer_step(trainer) == 11, "step %lld", (long long)trainer_step(trainer));
        must(trainer_save(trainer, save_path, TRAIN_SAVE_DIFFUSERS, &facts, &err), &err);
    }
    while (trainer_get_phase(trainer) != TRAINER_DONE)
        advance(&job, trainer);
    check_models_in_use(&job, trainer);
    struct run run = job.run;
    run.floats = trainer_parameters(trainer)->floats;
    run.values = malloc(sizeof(float) * (size_t)run.floats);
    const float *values = trainer_values(trainer, &err);
    must(values, &err);
    memcpy(run.values, values, sizeof(float) * (size_t)run.floats);
    run.reads = job.pictures.reads;
    run.foretold = job.pictures.foretold;
    run.left = job.pictures.expected_count;
    trainer_destroy(trainer);
    drop_own_models(&job);
    train_config_finish(&job.config);
    return run;
}

static bool same_losses(const struct run *a, const struct run *b) {
    return memcmp(a->steps.losses, b->steps.losses, sizeof(a->steps.losses)) == 0;
}

/* Overwrites 16 bytes in every file of the cache. */
static void damage_cache(void) {
    char command[300];
    snprintf(command, sizeof(command),
        "find %s -type f -exec dd if=/dev/urandom of={} bs=1 seek=600 count=16 conv=notrunc "
        "status=none ';'",
        cache_path);
    CHECK(system(command) == 0, "the cache cannot be damaged");
}

/* A job uses what another job has encoded, and encodes damaged entries again. */
static void what_is_encoded_serves_the_next_job(const json_t *file, const json_t *record) {
    struct run first = run_job(file, record, false, EXPECTED_MAX, NULL);
    CHECK(first.reads == 0, "%d pictures are read again", first.reads);
    damage_cache();
    struct run second = run_job(file, record, false, EXPECTED_MAX, NULL);
    printf(
        "pictures read: %d with a full cache, %d with a damaged one\n", first.reads, second.reads);
    CHECK(second.reads == 5, "%d pictures are encoded again, not 5", second.reads);
    CHECK(same_losses(&first, &second), "other bits");
    free(first.values);
    free(second.values);
}

/* Checks that the job fails at the first step with non-finite numbers. `words`: part of its
 * error. */
static void ends(const char *what, struct job *job, const char *words) {
    struct error err = { 0 };
    struct trainer *trainer;
    const struct rule_steps *steps = &job->run.steps;
    must(trainer_create(&job->options, &trainer, &err), &err);
    bool ok = true;
    while (ok && trainer_get_phase(trainer) != TRAINER_DONE)
        ok = trainer_advance(trainer, &err);
    const long long step = trainer_step(trainer);
    char begin[40];
    snprintf(begin, sizeof(begin), "step %lld: ", step + 1);
    printf("%s: %s\n", what, ok ? "the job ends as if it were right" : err.message);
    CHECK(!ok && err.code == ERROR_INVALID && strncmp(err.message, begin, strlen(begin)) == 0 &&
              strstr(err.message, words) && strstr(err.message, "finite") && steps->count == step,
        "%s: %s, %d steps of %lld", what, err.message, steps->count, step);
    for (int i = 0; i < steps->count; i++)
        CHECK(isfinite(steps->losses[i]) && isfinite(steps->norms[i]), "%s: step %d", what, i);
    trainer_destroy(trainer);
    train_config_finish(&job->config);
}

static void numbers_that_are_not_finite_end_a_job(const json_t *file, const json_t *record) {
    char cache[] = "/tmp/latentd-cache-XXXXXX";
    must_make(cache);
    struct job job;
    job_init(&job, file, record, false);
    job.config.alpha = 1e6;
    job.config.learning_rate = 1e8;
    job.config.max_grad_norm = 0;
    ends("a learning rate of 1e8", &job, "below 1e+08");
    job_init(&job, file, record, false);
    job.options.cache = cache;
    job.pictures.is_broken = true;
    ends("a pixel that is no number", &job, "the loss");
    remove_folder(cache);
}

/* Checks the first losses and gradient norms against the reference. */
static void check_losses(
    const char *name, const struct rule_steps *steps, int count, const json_t *record) {
    double loss, norm;
    rule_steps_compare(steps, record, count, &loss, &norm);
    printf("%-7s %d losses differ by %.2g at most (a rounding moves them by %.2g), norms by %.2g\n",
        name, count, loss, recorded_number(record, "moved"), norm);
    CHECK(loss <= 1e-5, "losses of %s: %g", name, loss);
    CHECK(norm <= 1e-3, "norms of %s: %g", name, norm);
}

/* Checks the rate of each step against the reference optimizer's, if recorded. Prodigy's follow
 * from sums in f32, so they are compared with a tolerance. */
static void check_rates(
    const char *name, const struct rule_steps *steps, const json_t *rates, bool are_sums) {
    double worst = 0;
    for (size_t i = 0; i < json_array_size(rates); i++)
        worst = fmax(worst,
            fabs(steps->rates[i] - recorded_at(rates, i)) / fmax(recorded_at(rates, i), 1e-9));
    if (rates)
        printf("%-7s %zu rates from %g to %g differ by %.2g at most\n", name,
            json_array_size(rates), steps->rates[0], steps->rates[STEPS - 1], worst);
    CHECK(worst <= (are_sums ? 1e-4 : 1e-12), "rates of %s: %g", name, worst);
}

static void agrees(const char *name, const json_t *file, const json_t *record) {
    struct run run = run_job(file, record, false, 0, NULL);
    check_losses(name, &run.steps, STEPS, record);
    const char *optimizer = json_string_value(
        json_object_get(json_object_get(record, "config"), "optimizer"));
    check_rates(name, &run.steps, json_object_get(record, "rates"),
        optimizer && strcmp(optimizer, "prodigy") == 0);
    struct run again = run_job(file, record, true, EXPECTED_MAX, NULL);
    if (again.reads)
        printf("%-7s %d of %d pictures are expected before they are read\n", name, again.foretold,
            again.reads);
    CHECK(again.foretold == again.reads && !again.left, "%s: %d of %d reads are foretold, %d left",
        name, again.foretold, again.reads, again.left);
    CHECK(same_losses(&run, &again) && run.floats == again.floats &&
              memcmp(run.values, again.values, sizeof(float) * (size_t)run.floats) == 0,
        "%s: gradient checkpointing changes bits", name);
    free(again.values);
    char folder[] = "/tmp/latentd-job-XXXXXX";
    must_make(folder);
    again = run_job(file, record, false, 3, folder);
    CHECK(same_losses(&run, &again) &&
              memcmp(run.values, again.values, sizeof(float) * (size_t)run.floats) == 0,
        "%s: a job that was stopped and resumed has other bits", name);
    remove_folder(folder);
    free(run.values);
    free(again.values);
}

/* Runs the first steps of a job on the device. */
static void begins_on_cuda(const char *name, const json_t *file) {
    struct error err = { 0 };
    struct job job;
    struct trainer *trainer;
    const json_t *record = json_object_get(json_object_get(file, "cases"), name);
    job_init(&job, file, record, false);
    load_own_models(&job);
    must(trainer_create(&job.options, &trainer, &err), &err);
    while (trainer_step(trainer) < CUDA_STEPS)
        must(trainer_advance(trainer, &err), &err);
    check_losses(name, &job.run.steps, CUDA_STEPS, record);
    trainer_destroy(trainer);
    drop_own_models(&job);
    train_config_finish(&job.config);
}

int main(int argc, char **argv) {
    json_error_t why = { .text = "usage: trainer_test train_losses.json CHECKPOINT [cuda]" };
    json_t *file = argc == 3 || argc == 4 ? json_load_file(argv[1], 0, &why) : NULL;
    must(file, &(struct error){ .message = "no recorded losses" });
    must_make(cache_path);
    const struct kernels *cuda = NULL;
    struct error err = { 0 };
    if (argc == 4) {
        cuda = devices_open(&(struct device_choice){ .kind = DEVICE_CUDA }, &err);
        if (cuda) {
            load_models(argv[2], cuda);
            begins_on_cuda("plain", file);
            begins_on_cuda("dora_text", file);
            drop_models();
        }
        remove_folder(cache_path);
        json_decref(file);
        return cuda ? check_done() : check_no_device(err.message);
    }
    load_models(argv[2], kernels_cpu());
    const int fd = mkstemp(save_path);
    close(fd);
    const char *name;
    json_t *record;
    json_object_foreach(json_object_get(file, "cases"), name, record) agrees(name, file, record);
    record = json_object_get(json_object_get(file, "cases"), "plain");
    what_is_encoded_serves_the_next_job(file, record);
    numbers_that_are_not_finite_end_a_job(file, record);
    drop_models();
    unlink(save_path);
    remove_folder(cache_path);
    json_decref(file);
    return check_done();
}
