/* The first 20 losses of LoRA jobs on the bundled checkpoint against diffusers + peft
 * (tests/reference/train_losses.py): weights, order of pictures, noise, timesteps, dropped
 * captions, accumulation, schedule, clipping, min-SNR, the text encoder. Then the same bits again,
 * with gradient checkpointing too; and jobs whose numbers are not finite.
 *
 * usage: trainer_test train_losses.json CHECKPOINT */
#include "train/trainer.h"

#include "engine/scheduler/noise_schedule.h"
#include "models/checkpoint/checkpoint.h"
#include "tests/models/small_models.h"
#include "tests/train/recorded.h"

#include <stdlib.h>
#include <unistd.h>

#define STEPS 20
#define PICTURES_MAX 16

static void must(bool ok, const struct error *err) {
    if (ok)
        return;
    printf("the test cannot run: %s\n", err->message);
    exit(1);
}

static struct {
    struct checkpoint *checkpoint;
    struct unet *unet, *inpainting; /* the second with another first layer, of 9 channels */
    struct text_encoder *text_encoder;
    struct vae *vae;
    struct tokenizer *tokenizer;
    struct noise_schedule noise;
} models;

/* The checkpoint's tensors, but for the first layer's weight. */
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
    struct unet_config config = *checkpoint_unet_config(models.checkpoint);
    plain_weights = weights_from_checkpoint(
        models.checkpoint, COMPONENT_UNET, kernels_cpu(), DTYPE_F32);
    struct weights weights = plain_weights;
    weights.get = get_inpainting;
    weights.end = NULL;
    config.in_channels = 9;
    must(unet_create(&config, &weights, &models.inpainting, err), err);
    free(wide);
}

static void load_models(const char *path) {
    struct error err = { 0 };
    must(checkpoint_open(path, NULL, &models.checkpoint, &err), &err);
    struct checkpoint *c = models.checkpoint;
    const struct kernels *k = kernels_cpu();
    const struct weights unet = weights_from_checkpoint(c, COMPONENT_UNET, k, DTYPE_F32);
    const struct weights vae = weights_from_checkpoint(c, COMPONENT_VAE, k, DTYPE_F32);
    const struct weights text = weights_from_checkpoint(c, COMPONENT_TEXT_ENCODER, k, DTYPE_F32);
    struct scheduler_config config;
    const struct scheduler_choice none = { 0 };
    must(unet_create(checkpoint_unet_config(c), &unet, &models.unet, &err) &&
             vae_create(checkpoint_vae_config(c), &vae, VAE_ENCODER, &models.vae, &err) &&
             text_encoder_create(
                 checkpoint_text_encoder_config(c), &text, &models.text_encoder, &err) &&
             tokenizer_from_checkpoint(c, &models.tokenizer, &err) &&
             scheduler_config_resolve(checkpoint_scheduler_json(c), &none, &config, &err) &&
             noise_schedule_init(&config, &models.noise, &err),
        &err);
    load_inpainting(&err);
}

static void drop_models(void) {
    noise_schedule_finish(&models.noise);
    tokenizer_destroy(models.tokenizer);
    text_encoder_destroy(models.text_encoder);
    vae_destroy(models.vae);
    unet_destroy(models.unet);
    unet_destroy(models.inpainting);
    checkpoint_close(models.checkpoint);
}

/* --- pictures by the rule --- */

struct pictures {
    const json_t *captions;
    const char *class_prompt;
    int block, mask_block, instances;
    int reads;      /* of pixels */
    bool is_broken; /* pixels are no numbers */
    struct placement placement;
};

static const struct placement *placement(void *user, int64_t item) {
    (void)item;
    return &((const struct pictures *)user)->placement;
}

static void name(void *user, int64_t item, struct sha256 *to) {
    (void)user;
    sha256_add(to, &item, sizeof(item));
}

static int caption_count(void *user, int64_t item) {
    (void)user, (void)item;
    return 1;
}

static const char *caption(void *user, int64_t item, int which) {
    (void)which;
    const struct pictures *p = user;
    return item < p->instances ? json_string_value(json_array_get(p->captions, (size_t)item))
                               : p->class_prompt;
}

/* What the crop leaves of [height / block][width / block][channels] numbers, each a block. */
static void blocks(const struct pictures *p, const char *kind, int64_t item, int block,
    int channels, const struct crop *crop, float *out) {
    const struct placement *place = &p->placement;
    const int across = place->resized_width / block, down = place->resized_height / block;
    char name[40];
    double *rough = malloc(sizeof(double) * (size_t)(down * across * channels));
    const bool is_class = item >= p->instances;
    snprintf(name, sizeof(name), "%s.%s%lld", kind, is_class ? "class." : "",
        (long long)(is_class ? item - p->instances : item));
    rule_numbers(name, down * across * channels, rough);
    for (int y = 0; y < place->bucket.height; y++)
        for (int x = 0; x < place->bucket.width; x++) {
            const int column = crop->left + (crop->flip ? place->bucket.width - 1 - x : x);
            const double *from = rough +
                                 ((y + crop->top) / block * across + column / block) * channels;
            for (int c = 0; c < channels; c++)
                *out++ = (float)from[c];
        }
    free(rough);
}

static bool pixels(
    void *user, int64_t item, const struct crop *crop, float *out, float *mask, struct error *err) {
    (void)err;
    struct pictures *p = user;
    p->reads++;
    blocks(p, "picture", item, p->block, 3, crop, out);
    if (p->is_broken)
        out[0] = NAN;
    if (!mask)
        return true;
    blocks(p, "mask", item, p->mask_block, 1, crop, mask);
    for (int i = 0; i < p->placement.bucket.width * p->placement.bucket.height; i++)
        mask[i] = mask[i] > 0 ? 1.0f : 0.0f;
    return true;
}

/* --- jobs --- */

struct run {
    double losses[STEPS], norms[STEPS];
    int steps, pieces, reads;
    float *values; /* owned */
    int64_t floats;
};

static void stepped(void *user, const struct train_record *record) {
    struct run *run = user;
    if (run->steps < STEPS) {
        run->losses[run->steps] = record->loss;
        run->norms[run->steps++] = record->grad_norm;
    }
}

/* The case's job, with more fields of its own. */
static struct train_config config_of(const json_t *file, const json_t *fields, bool checkpointing) {
    json_t *json = json_deep_copy(fields);
    struct train_config config;
    struct error err = { 0 };
    json_object_set_new(json, "name", json_string("test"));
    json_object_set_new(json, "dataset", json_string("test"));
    json_object_set(json, "seed", json_object_get(file, "seed"));
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
    struct pictures pictures;
    struct train_source source;
    struct run run;
    struct trainer_options options; /* points to the rest */
};

static void job_init(
    struct job *job, const json_t *file, const json_t *record, bool checkpointing) {
    const json_t *shape = json_object_get(record, "shape");
    const int size = (int)recorded_integer(file, "size");
    *job = (struct job){ .config = config_of(
                             file, json_object_get(record, "config"), checkpointing) };
    job->pictures = (struct pictures){
        .captions = json_object_get(file, "captions"),
        .class_prompt = job->config.class_prompt,
        .block = (int)recorded_integer(file, "block"),
        .mask_block = (int)recorded_integer(file, "mask_block"),
        .placement = { (int)recorded_at(shape, 1), (int)recorded_at(shape, 0), { size, size },
            false },
    };
    job->pictures.instances = (int)json_array_size(job->pictures.captions);
    job->source = (struct train_source){
        .user = &job->pictures,
        .count = job->pictures.instances,
        .class_count = job->config.with_prior_preservation ? recorded_integer(file, "class_count")
                                                           : 0,
        .placement = placement,
        .name = name,
        .captions = caption_count,
        .caption = caption,
        .pixels = pixels,
    };
    job->options = (struct trainer_options){
        .config = &job->config,
        .source = &job->source,
        .models = { .kernels = kernels_cpu(),
            .unet = json_is_true(json_object_get(record, "inpainting")) ? models.inpainting
                                                                        : models.unet,
            .text_encoder = models.text_encoder,
            .vae = models.vae,
            .tokenizer = models.tokenizer,
            .alphas_cumprod = models.noise.alphas_cumprod,
            .num_train_timesteps = models.noise.num_train_timesteps },
        .cache = cache_path,
        .stepped = stepped,
        .user = &job->run,
    };
}

/* With a folder, the job is left in the middle of a step, written there, and gone on with by
 * another trainer. */
static struct run run_job(
    const json_t *file, const json_t *record, bool checkpointing, const char *folder) {
    struct error err = { 0 };
    struct job job;
    job_init(&job, file, record, checkpointing);
    struct trainer *trainer;
    must(trainer_create(&job.options, &trainer, &err), &err);
    CHECK(trainer_steps(trainer) == STEPS, "%lld steps", (long long)trainer_steps(trainer));
    if (folder) {
        bool resumed;
        while (trainer_step(trainer) < 11)
            must(trainer_advance(trainer, &err), &err);
        for (int i = 0; i < 7; i++)
            must(trainer_advance(trainer, &err), &err);
        must(trainer_checkpoint(trainer, folder, &facts, &err), &err);
        trainer_destroy(trainer);
        must(trainer_create(&job.options, &trainer, &err) &&
                 trainer_resume(trainer, folder, &resumed, &err),
            &err);
        CHECK(
            resumed && trainer_step(trainer) == 11, "step %lld", (long long)trainer_step(trainer));
        must(trainer_save(trainer, save_path, TRAIN_SAVE_DIFFUSERS, &facts, &err), &err);
    }
    for (; trainer_get_phase(trainer) != TRAINER_DONE; job.run.pieces++)
        must(trainer_advance(trainer, &err), &err);
    struct run run = job.run;
    run.floats = trainer_parameters(trainer)->floats;
    run.values = malloc(sizeof(float) * (size_t)run.floats);
    const float *values = trainer_values(trainer, &err);
    must(values, &err);
    memcpy(run.values, values, sizeof(float) * (size_t)run.floats);
    run.reads = job.pictures.reads;
    trainer_destroy(trainer);
    train_config_finish(&job.config);
    return run;
}

static void remove_folder(const char *path) {
    char command[64];
    snprintf(command, sizeof(command), "rm -r %s", path);
    CHECK(system(command) == 0, "%s is left", path);
}

/* One byte in the middle of every file of the cache. */
static void damage_cache(void) {
    char command[300];
    snprintf(command, sizeof(command),
        "find %s -type f -exec dd if=/dev/urandom of={} bs=1 seek=600 count=16 conv=notrunc "
        "status=none ';'",
        cache_path);
    CHECK(system(command) == 0, "the cache cannot be damaged");
}

/* What another job has encoded is not encoded again, and what was damaged meanwhile is. */
static void what_is_encoded_serves_the_next_job(const json_t *file, const json_t *record) {
    struct run first = run_job(file, record, false, NULL);
    CHECK(first.reads == 0, "%d pictures are read again", first.reads);
    damage_cache();
    struct run second = run_job(file, record, false, NULL);
    printf(
        "pictures read: %d with a full cache, %d with a damaged one\n", first.reads, second.reads);
    CHECK(second.reads == 5, "%d pictures are encoded again, not 5", second.reads);
    CHECK(memcmp(first.losses, second.losses, sizeof(first.losses)) == 0, "other bits");
    free(first.values);
    free(second.values);
}

/* At the first step whose numbers are not finite; `words` are of its error. */
static void ends(const char *what, struct job *job, const char *words) {
    struct error err = { 0 };
    struct trainer *trainer;
    must(trainer_create(&job->options, &trainer, &err), &err);
    bool ok = true;
    while (ok && trainer_get_phase(trainer) != TRAINER_DONE)
        ok = trainer_advance(trainer, &err);
    const long long step = trainer_step(trainer);
    char begin[40];
    snprintf(begin, sizeof(begin), "step %lld: ", step + 1);
    printf("%s: %s\n", what, ok ? "the job ends as if it were right" : err.message);
    CHECK(!ok && err.code == ERROR_INVALID && strncmp(err.message, begin, strlen(begin)) == 0 &&
              strstr(err.message, words) && strstr(err.message, "finite") && job->run.steps == step,
        "%s: %s, %d steps of %lld", what, err.message, job->run.steps, step);
    for (int i = 0; i < job->run.steps; i++)
        CHECK(isfinite(job->run.losses[i]) && isfinite(job->run.norms[i]), "%s: step %d", what, i);
    trainer_destroy(trainer);
    train_config_finish(&job->config);
}

static void numbers_that_are_not_finite_end_a_job(const json_t *file, const json_t *record) {
    char cache[] = "/tmp/latentd-cache-XXXXXX";
    must(mkdtemp(cache), &(struct error){ .message = "no temporary folder" });
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

static void agrees(const char *name, const json_t *file, const json_t *record) {
    struct run run = run_job(file, record, false, NULL);
    const json_t *losses = json_object_get(record, "losses");
    const json_t *norms = json_object_get(record, "grad_norms");
    double worst_loss = 0, worst_norm = 0;
    CHECK(run.steps == STEPS, "%d steps", run.steps);
    for (size_t i = 0; i < STEPS; i++) {
        worst_loss = fmax(worst_loss, fabs(run.losses[i] / recorded_at(losses, i) - 1));
        worst_norm = fmax(worst_norm, fabs(run.norms[i] / recorded_at(norms, i) - 1));
    }
    printf("%-7s losses differ by %.2g at most (a rounding moves them by %.2g), norms by %.2g; "
           "%d pieces\n",
        name, worst_loss, recorded_number(record, "moved"), worst_norm, run.pieces);
    CHECK(worst_loss <= 1e-4, "losses of %s: %g", name, worst_loss);
    CHECK(worst_norm <= 1e-3, "norms of %s: %g", name, worst_norm);
    struct run again = run_job(file, record, true, NULL);
    CHECK(memcmp(run.losses, again.losses, sizeof(run.losses)) == 0 && run.floats == again.floats &&
              memcmp(run.values, again.values, sizeof(float) * (size_t)run.floats) == 0,
        "%s: gradient checkpointing changes bits", name);
    free(again.values);
    char folder[] = "/tmp/latentd-job-XXXXXX";
    must(mkdtemp(folder), &(struct error){ .message = "no temporary folder" });
    again = run_job(file, record, false, folder);
    CHECK(memcmp(run.losses, again.losses, sizeof(run.losses)) == 0 &&
              memcmp(run.values, again.values, sizeof(float) * (size_t)run.floats) == 0,
        "%s: a job that was stopped and resumed has other bits", name);
    remove_folder(folder);
    free(run.values);
    free(again.values);
}

int main(int argc, char **argv) {
    json_error_t why = { .text = "usage: trainer_test train_losses.json CHECKPOINT" };
    json_t *file = argc == 3 ? json_load_file(argv[1], 0, &why) : NULL;
    must(file, &(struct error){ .message = "no recorded losses" });
    load_models(argv[2]);
    const int fd = mkstemp(save_path);
    close(fd);
    must(mkdtemp(cache_path), &(struct error){ .message = "no temporary folder" });
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
