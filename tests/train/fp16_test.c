/* A LoRA job in fp16 on a CUDA device whose first loss scale is too large. Checks the skipped
 * steps, the scales, the learning rates and the losses, and that a job stopped within a growth
 * interval resumes with the same bytes. The references:
 *   scales    torch's documentation of GradScaler: halved after an overflow, doubled after
 *   loss_scale_window steps in a row without one
 *   rates     a linear schedule computed here, which does not advance on skipped steps; and AdamW's
 *   first step, which equals the rate where the gradient is not tiny
 *   losses    the same job in f32 on the CPU (trainer_test.c compares it with diffusers); infinite
 *   gradients make it skip the same steps
 *
 * usage: fp16_test CHECKPOINT    (for its tokenizer and its text encoder) */
#include "kernels/devices.h"
#include "tests/train/rule_job.h"
#include "tests/train/small_job.h"

#include <unistd.h>

#define JOB_STEPS 10
#define WINDOW 3
#define SCALE_POWER 22 /* overflows in f16: gradients are about 2^-5 of the loss */
#define RATE 1e-3

static const char job_json[] =
    "{\"name\": \"test\", \"dataset\": \"test\", \"seed\": 7, \"learning_rate\": 1e-3,"
    " \"max_train_steps\": 10, \"lr_scheduler\": \"linear\", \"rank\": 4, \"train_batch_size\": 1,"
    " \"mixed_precision\": \"fp16\", \"initial_scale_power\": 22, \"loss_scale_window\": 3}";

static const struct vae_config small_vae_config = { .in_channels = 3,
    .out_channels = 3,
    .latent_channels = 4,
    .block_count = 2,
    .block_out_channels = { 8, 16 },
    .layers_per_block = 1,
    .norm_num_groups = 4,
    .scaling_factor = 0.5f };

struct models {
    struct rule_checkpoint rest; /* the VAE is a small one, not the checkpoint's */
    struct unet *unet;
    struct text_encoder *text_encoder;
};

static void models_load(
    struct models *m, const char *path, const struct kernels *k, enum dtype dtype) {
    struct error err = { 0 };
    rule_checkpoint_open(&m->rest, path, k);
    struct checkpoint *c = m->rest.checkpoint;
    struct rule_source source = { .gain = 0.5 };
    const struct weights text = weights_from_checkpoint(c, COMPONENT_TEXT_ENCODER, k, dtype);
    const struct weights unet = rule_weights(&source, k, dtype);
    const struct weights vae = rule_weights(&source, k, DTYPE_F32);
    struct unet_config config = small_unet_config;
    vae_destroy(m->rest.vae);
    m->rest.vae = NULL;
    config.cross_attention_dim = checkpoint_unet_config(c)->cross_attention_dim;
    must(
        unet_create(&config, &unet, &m->unet, &err) &&
            text_encoder_create(checkpoint_text_encoder_config(c), &text, &m->text_encoder, &err) &&
            vae_create(&small_vae_config, &vae, VAE_ENCODER, &m->rest.vae, &err),
        &err);
    rule_source_finish(&source);
}

static void models_drop(struct models *m) {
    text_encoder_destroy(m->text_encoder);
    unet_destroy(m->unet);
    rule_checkpoint_close(&m->rest);
}

/* --- a job --- */

struct seen {
    int count;
    double losses[JOB_STEPS], rates[JOB_STEPS], scales[JOB_STEPS]; /* scales: after each step */
    bool skipped[JOB_STEPS];
    double first_change; /* largest change of a value in the first step not skipped */
    float *values;       /* owned: the values at the end */
    int64_t floats;
};

struct job {
    struct train_config config;
    struct rule_pictures pictures;
    struct train_source source;
    struct seen seen;
    struct trainer *trainer;
    float *before; /* owned: the values before the current step */
};

static void stepped(void *user, const struct train_record *record) {
    struct seen *seen = user;
    seen->losses[seen->count] = record->loss;
    seen->rates[seen->count] = record->learning_rate;
    seen->scales[seen->count++] = record->loss_scale;
}

static const float *values_of(struct job *job) {
    struct error err = { 0 };
    const float *values = trainer_values(job->trainer, &err);
    must(values, &err);
    return values;
}

/* `cache`: a folder for encoded pictures and texts. */
static void job_begin(struct job *job, const struct models *models, const char *cache) {
    struct error err = { 0 };
    json_t *json = json_loads(job_json, 0, NULL);
    json_t *captions = json_pack("[s]", "a red house on green hills");
    *job = (struct job){ 0 };
    must(train_config_parse(json, &job->config, &err), &err);
    json_decref(json);
    job->pictures = (struct rule_pictures){ .captions = captions,
        .block = 4,
        .mask_block = 4,
        .instances = 1,
        .placement = { 8, 8, { 8, 8 }, false } };
    job->source = rule_source_of(&job->pictures);
    const struct trainer_options options = { .config = &job->config,
        .source = &job->source,
        .models = rule_checkpoint_models(&models->rest, models->unet, models->text_encoder),
        .cache = cache,
        .stepped = stepped,
        .user = &job->seen };
    must(trainer_create(&options, &job->trainer, &err), &err);
    job->seen.floats = trainer_parameters(job->trainer)->floats;
    job->before = malloc(sizeof(float) * (size_t)job->seen.floats);
}

/* Runs to the end of the next step. A step that leaves the values unchanged was skipped. */
static void job_step(struct job *job) {
    struct error err = { 0 };
    struct seen *seen = &job->seen;
    const int step = seen->count;
    const size_t bytes = sizeof(float) * (size_t)seen->floats;
    memcpy(job->before, values_of(job), bytes);
    while (seen->count == step)
        must(trainer_advance(job->trainer, &err), &err);
    const float *after = values_of(job);
    seen->skipped[step] = memcmp(job->before, after, bytes) == 0;
    const bool is_first = !seen->skipped[step] && seen->first_change == 0;
    for (int64_t i = 0; is_first && i < seen->floats; i++)
        seen->first_change = fmax(seen->first_change, fabs(after[i] - job->before[i]));
}

/* Ends the job. Returns its results with a copy of the values. */
static struct seen job_end(struct job *job) {
    struct seen seen = job->seen;
    seen.values = malloc(sizeof(float) * (size_t)seen.floats);
    memcpy(seen.values, values_of(job), sizeof(float) * (size_t)seen.floats);
    trainer_destroy(job->trainer);
    train_config_finish(&job->config);
    json_decref((json_t *)job->pictures.captions);
    free(job->before);
    return seen;
}

/* --- what is expected --- */

/* Returns GradScaler's scale after the first `count` steps. *good: steps since its last change that
 * were not skipped. */
static double scale_by_rule(const bool *skipped, int count, int *good) {
    double scale = ldexp(1, SCALE_POWER);
    *good = 0;
    for (int i = 0; i < count; i++) {
        if (skipped[i]) {
            scale /= 2;
            *good = 0;
        } else if (++*good == WINDOW) {
            scale *= 2;
            *good = 0;
        }
    }
    return scale;
}

static void scales_and_rates_follow_the_rules(const struct seen *seen) {
    int good, taken = 0, grown = 0;
    for (int i = 0; i < JOB_STEPS; i++) {
        const double scale = scale_by_rule(seen->skipped, i + 1, &good);
        const double rate = RATE * (1 - (double)taken / JOB_STEPS);
        printf("step %2d: %s, loss %.5f, scale 2^%g (by the rule 2^%g), rate %.6g (by hand %.6g)\n",
            i + 1, seen->skipped[i] ? "skipped" : "taken", seen->losses[i], log2(seen->scales[i]),
            log2(scale), seen->rates[i], rate);
        CHECK(seen->scales[i] == scale, "step %d: scale %g", i + 1, seen->scales[i]);
        CHECK(fabs(seen->rates[i] - rate) < 1e-12, "step %d: rate %g", i + 1, seen->rates[i]);
        grown += i > 0 && seen->scales[i] > seen->scales[i - 1];
        taken += !seen->skipped[i];
    }
    CHECK(seen->skipped[0] && taken < JOB_STEPS - 1, "%d of %d taken", taken, JOB_STEPS);
    CHECK(taken >= WINDOW && grown, "%d taken, the scale grew %d times", taken, grown);
    printf("the first step that is taken moves a number by %.6g at most; its rate is %.6g\n",
        seen->first_change, RATE);
    CHECK(fabs(seen->first_change / RATE - 1) < 0.01, "a first change of %g", seen->first_change);
}

/* Runs the job in f32, skipping the same steps, and compares the losses and values. */
static void losses_are_those_of_f32(const struct seen *seen, const char *path) {
    char cache[] = "/tmp/latentd-cache-XXXXXX"; /* separate: texts encoded in f32 */
    struct models models = { 0 };
    struct job job;
    double worst = 0, moved = 0;
    must_make(cache);
    models_load(&models, path, kernels_cpu(), DTYPE_F32);
    job_begin(&job, &models, cache);
    for (int i = 0; i < JOB_STEPS; i++) {
        if (seen->skipped[i])
            trainer_parameters(job.trainer)->gradients[0] = INFINITY;
        job_step(&job);
        CHECK(job.seen.skipped[i] == seen->skipped[i], "step %d is skipped in one only", i + 1);
        worst = fmax(worst, fabs(seen->losses[i] / job.seen.losses[i] - 1));
    }
    struct seen exact = job_end(&job);
    CHECK(exact.floats == seen->floats, "%lld floats", (long long)exact.floats);
    moved = relative_error(seen->values, exact.values, exact.floats);
    printf("losses are up to %.2g off those of f32, the trained numbers %.2g\n", worst, moved);
    CHECK(worst < 1e-2, "losses: %g", worst);
    CHECK(moved < 5e-2, "trained numbers: %g", moved);
    free(exact.values);
    models_drop(&models);
    remove_folder(cache);
}

static void same_from(int first, const struct seen *whole, const struct seen *resumed) {
    CHECK(resumed->count == JOB_STEPS - first, "%d steps", resumed->count);
    for (int i = first; i < JOB_STEPS; i++) {
        const int k = i - first;
        CHECK(resumed->scales[k] == whole->scales[i] && resumed->rates[k] == whole->rates[i] &&
                  resumed->losses[k] == whole->losses[i],
            "step %d of the resumed job: scale %g, rate %g, loss %.9g", i + 1, resumed->scales[k],
            resumed->rates[k], resumed->losses[k]);
    }
    CHECK(memcmp(resumed->values, whole->values, sizeof(float) * (size_t)whole->floats) == 0,
        "the resumed job has other bytes");
}

/* Trains on the device and writes a checkpoint just before the scale grows. Then resumes from it
 * and compares. */
static struct seen run_on_device(const struct models *models, const char *cache) {
    char folder[] = "/tmp/latentd-job-XXXXXX";
    const struct adapter_facts facts = { .model = "tiny-sd", .pictures = 1 };
    struct error err = { 0 };
    struct job job;
    int kept = -1, good = 0;
    must_make(folder);
    job_begin(&job, models, cache);
    while (job.seen.count < JOB_STEPS) {
        job_step(&job);
        (void)scale_by_rule(job.seen.skipped, job.seen.count, &good);
        if (kept >= 0 || good != WINDOW - 1 || job.seen.count == JOB_STEPS)
            continue;
        kept = job.seen.count;
        must(trainer_advance(job.trainer, &err) &&
                 trainer_checkpoint(job.trainer, folder, &facts, &err),
            &err);
    }
    struct seen whole = job_end(&job);
    CHECK(kept > 0, "the scale is never about to grow");
    bool resumed;
    job_begin(&job, models, cache);
    must(trainer_resume(job.trainer, folder, &resumed, &err), &err);
    CHECK(resumed && trainer_step(job.trainer) == kept, "step %lld",
        (long long)trainer_step(job.trainer));
    while (trainer_get_phase(job.trainer) != TRAINER_DONE)
        job_step(&job);
    struct seen rest = job_end(&job);
    printf("stopped after step %d of %d and resumed\n", kept, JOB_STEPS);
    same_from(kept, &whole, &rest);
    free(rest.values);
    remove_folder(folder);
    return whole;
}

int main(int argc, char **argv) {
    char cache[] = "/tmp/latentd-cache-XXXXXX";
    struct error err = { 0 };
    struct models models = { 0 };
    must(argc == 2, &(struct error){ .message = "usage: fp16_test CHECKPOINT" });
    const struct kernels *cuda = devices_open(&(struct device_choice){ .kind = DEVICE_CUDA }, &err);
    if (!cuda)
        return check_no_device(err.message);
    setvbuf(stdout, NULL, _IOLBF, 0);
    must_make(cache);
    models_load(&models, argv[1], cuda, DTYPE_F16);
    struct seen seen = run_on_device(&models, cache);
    models_drop(&models);
    scales_and_rates_follow_the_rules(&seen);
    losses_are_those_of_f32(&seen, argv[1]);
    free(seen.values);
    remove_folder(cache);
    return check_done();
}
