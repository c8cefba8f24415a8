/* The first 20 losses of LoRA jobs on the bundled checkpoint against diffusers + peft
 * (tests/reference/train_losses.py): weights, order of pictures, noise, timesteps, dropped
 * captions, accumulation, schedule, clipping, min-SNR, the text encoder. Then the same bits again,
 * with gradient checkpointing too.
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
    struct unet *unet;
    struct text_encoder *text_encoder;
    struct vae *vae;
    struct tokenizer *tokenizer;
    struct noise_schedule noise;
} models;

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
}

static void drop_models(void) {
    noise_schedule_finish(&models.noise);
    tokenizer_destroy(models.tokenizer);
    text_encoder_destroy(models.text_encoder);
    vae_destroy(models.vae);
    unet_destroy(models.unet);
    checkpoint_close(models.checkpoint);
}

/* --- pictures by the rule --- */

struct pictures {
    const json_t *captions;
    int size, block;
};

static void picture_size(void *user, int64_t item, int *height, int *width) {
    (void)item;
    *height = *width = ((const struct pictures *)user)->size;
}

static int caption_count(void *user, int64_t item) {
    (void)user, (void)item;
    return 1;
}

static const char *caption(void *user, int64_t item, int which) {
    (void)which;
    const struct pictures *p = user;
    return json_string_value(json_array_get(p->captions, (size_t)item));
}

static bool pixels(
    void *user, int64_t item, float crop_y, float crop_x, float *out, struct error *err) {
    (void)crop_y, (void)crop_x, (void)err;
    const struct pictures *p = user;
    const int blocks = p->size / p->block;
    char name[32];
    double *rough = malloc(sizeof(double) * 3 * (size_t)(blocks * blocks));
    snprintf(name, sizeof(name), "picture.%lld", (long long)item);
    rule_numbers(name, 3 * blocks * blocks, rough);
    for (int y = 0; y < p->size; y++)
        for (int x = 0; x < p->size; x++)
            for (int c = 0; c < 3; c++)
                *out++ = (float)rough[(y / p->block * blocks + x / p->block) * 3 + c];
    free(rough);
    return true;
}

/* --- jobs --- */

struct run {
    double losses[STEPS], norms[STEPS];
    int steps, pieces;
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
static char save_path[] = "/tmp/latentd-trainer-XXXXXX";

/* With a folder, the job is left in the middle of a step, written there, and gone on with by
 * another trainer. */
static struct run run_job(
    const json_t *file, const json_t *fields, bool checkpointing, const char *folder) {
    struct error err = { 0 };
    struct train_config config = config_of(file, fields, checkpointing);
    struct pictures pictures = {
        .captions = json_object_get(file, "captions"),
        .size = (int)recorded_integer(file, "size"),
        .block = (int)recorded_integer(file, "block"),
    };
    const struct train_source source = {
        .user = &pictures,
        .count = (int64_t)json_array_size(pictures.captions),
        .size = picture_size,
        .captions = caption_count,
        .caption = caption,
        .pixels = pixels,
    };
    struct run run = { 0 };
    const struct trainer_options options = {
        .config = &config,
        .source = &source,
        .models = { kernels_cpu(), models.unet, models.text_encoder, models.vae, models.tokenizer,
            models.noise.alphas_cumprod, models.noise.num_train_timesteps, false },
        .stepped = stepped,
        .user = &run,
    };
    struct trainer *trainer;
    must(trainer_create(&options, &trainer, &err), &err);
    CHECK(trainer_steps(trainer) == STEPS, "%lld steps", (long long)trainer_steps(trainer));
    if (folder) {
        bool resumed;
        while (trainer_step(trainer) < 11)
            must(trainer_advance(trainer, &err), &err);
        for (int i = 0; i < 7; i++)
            must(trainer_advance(trainer, &err), &err);
        must(trainer_checkpoint(trainer, folder, &facts, &err), &err);
        trainer_destroy(trainer);
        must(trainer_create(&options, &trainer, &err) &&
                 trainer_resume(trainer, folder, &resumed, &err),
            &err);
        CHECK(
            resumed && trainer_step(trainer) == 11, "step %lld", (long long)trainer_step(trainer));
        must(trainer_save(trainer, save_path, TRAIN_SAVE_DIFFUSERS, &facts, &err), &err);
    }
    for (; trainer_get_phase(trainer) != TRAINER_DONE; run.pieces++)
        must(trainer_advance(trainer, &err), &err);
    run.floats = trainer_parameters(trainer)->floats;
    run.values = malloc(sizeof(float) * (size_t)run.floats);
    const float *values = trainer_values(trainer, &err);
    must(values, &err);
    memcpy(run.values, values, sizeof(float) * (size_t)run.floats);
    trainer_destroy(trainer);
    train_config_finish(&config);
    return run;
}

static void agrees(const char *name, const json_t *file, const json_t *record) {
    const json_t *fields = json_object_get(record, "config");
    struct run run = run_job(file, fields, false, NULL);
    const json_t *losses = json_object_get(record, "losses");
    const json_t *norms = json_object_get(record, "grad_norms");
    double worst_loss = 0, worst_norm = 0;
    CHECK(run.steps == STEPS, "%d steps", run.steps);
    for (size_t i = 0; i < STEPS; i++) {
        worst_loss = fmax(worst_loss, fabs(run.losses[i] / recorded_at(losses, i) - 1));
        worst_norm = fmax(worst_norm, fabs(run.norms[i] / recorded_at(norms, i) - 1));
    }
    printf("%-6s losses differ by %.2g at most (a rounding moves them by %.2g), norms by %.2g; "
           "%d pieces\n",
        name, worst_loss, recorded_number(record, "moved"), worst_norm, run.pieces);
    CHECK(worst_loss <= 1e-4, "losses of %s: %g", name, worst_loss);
    CHECK(worst_norm <= 1e-3, "norms of %s: %g", name, worst_norm);
    struct run again = run_job(file, fields, true, NULL);
    CHECK(memcmp(run.losses, again.losses, sizeof(run.losses)) == 0 && run.floats == again.floats &&
              memcmp(run.values, again.values, sizeof(float) * (size_t)run.floats) == 0,
        "%s: gradient checkpointing changes bits", name);
    free(again.values);
    char folder[] = "/tmp/latentd-job-XXXXXX";
    char command[64];
    must(mkdtemp(folder), &(struct error){ .message = "no temporary folder" });
    again = run_job(file, fields, false, folder);
    CHECK(memcmp(run.losses, again.losses, sizeof(run.losses)) == 0 &&
              memcmp(run.values, again.values, sizeof(float) * (size_t)run.floats) == 0,
        "%s: a job that was stopped and resumed has other bits", name);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    CHECK(system(command) == 0, "%s is left", folder);
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
    const char *name;
    json_t *record;
    json_object_foreach(json_object_get(file, "cases"), name, record) agrees(name, file, record);
    drop_models();
    unlink(save_path);
    json_decref(file);
    return check_done();
}
