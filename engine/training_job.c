#include "engine/training_job.h"

#include "base/file.h"
#include "base/log.h"
#include "engine/scheduler/noise_schedule.h"
#include "models/checkpoint/checkpoint.h"
#include "train/data/dataset.h"
#include "train/report/events.h"
#include "train/trainer.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

struct training_job {
    struct training_job_options options; /* strings owned, but for config's */
    struct dataset *dataset;
    const int32_t *samples; /* borrowed from it */
    struct train_source source;
    char *result; /* the adapter's path */

    /* Once they are loaded. */
    struct tokenizer *tokenizer;
    struct text_encoder *text_encoder;
    struct unet *unet;
    struct vae *vae;
    struct noise_schedule noise;
    struct trainer *trainer;
    struct records *records;
    struct events *events;
    struct adapter_facts facts;
    int64_t kept_step; /* of the last checkpoint; -1: none */
    bool done;
    struct error report_failed; /* the first line that could not be written */
};

/* --- the data set as a source --- */

static const struct dataset_item *item_of(const struct training_job *t, int64_t item) {
    return dataset_item(t->dataset, (size_t)t->samples[item]);
}

static void source_size(void *user, int64_t item, int *height, int *width) {
    const struct training_job *t = user;
    const struct bucket bucket = dataset_bucket(t->dataset, item_of(t, item)->bucket);
    *height = bucket.height;
    *width = bucket.width;
}

static int source_captions(void *user, int64_t item) {
    return item_of(user, item)->caption_count;
}

static const char *source_caption(void *user, int64_t item, int which) {
    return item_of(user, item)->captions[which];
}

static bool source_pixels(
    void *user, int64_t item, float crop_y, float crop_x, float *out, struct error *err) {
    const struct training_job *t = user;
    const struct placement *placement = &item_of(t, item)->placement;
    struct crop crop = placement_centre(placement);
    if (!t->options.config->center_crop) {
        crop.top = (int)(crop_y * (float)placement_tops(placement));
        crop.left = (int)(crop_x * (float)placement_lefts(placement));
    }
    return dataset_read(t->dataset, (size_t)t->samples[item], &crop, out, NULL, err);
}

/* --- the folder --- */

static bool make_folder(const char *path, struct error *err) {
    return mkdir(path, 0755) == 0 || errno == EEXIST ||
           error_set(err, ERROR_IO, "%s: %s", path, strerror(errno));
}

/* Takes the reference. */
static bool write_json(const char *folder, const char *name, json_t *json, struct error *err) {
    char *path = file_join(folder, name);
    char *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
    json_decref(json);
    const struct file_part parts[] = { { text, text ? strlen(text) : 0 }, { "\n", 1 } };
    const bool ok = path && text ? file_write(path, parts, 2, err)
                                 : error_set(err, ERROR_NO_MEMORY, "no memory for %s", name);
    free(path);
    free(text);
    return ok;
}

static bool name_result(struct training_job *t, struct error *err) {
    char name[512];
    snprintf(name, sizeof(name), "%.400s.safetensors", t->options.config->name);
    t->result = file_join(t->options.folder, name);
    return t->result || error_set(err, ERROR_NO_MEMORY, "no memory for a path");
}

/* --- opening --- */

bool training_job_is_possible(const struct train_config *c, struct error *err) {
    if (c->method == TRAIN_FULL)
        return error_set(err, ERROR_UNSUPPORTED, "method \"full\" is not there yet; \"lora\" is");
    if (c->with_prior_preservation)
        return error_set(err, ERROR_UNSUPPORTED, "with_prior_preservation is not there yet");
    if (c->validation_prompts.count || c->validation_share > 0)
        return error_set(
            err, ERROR_UNSUPPORTED, "validation_prompts and validation_share are not there yet");
    if (c->masks != TRAIN_MASKS_RANDOM)
        return error_set(err, ERROR_UNSUPPORTED, "masks of files are not there yet");
    if (c->resume_from_checkpoint && strcmp(c->resume_from_checkpoint, "latest") != 0)
        return error_set(err, ERROR_UNSUPPORTED,
            "resume_from_checkpoint: a job goes on from the last checkpoint of its folder, no "
            "other");
    return true;
}

static bool open_dataset(struct training_job *t, struct error *err) {
    const struct train_config *c = t->options.config;
    static const enum resize_filter filters[] = {
        [TRAIN_LANCZOS] = RESIZE_LANCZOS,
        [TRAIN_BILINEAR] = RESIZE_BILINEAR,
        [TRAIN_BICUBIC] = RESIZE_BICUBIC,
    };
    const struct dataset_options options = {
        .root = t->options.dataset_root,
        .prompt = c->instance_prompt,
        .buckets = { .resolution = (int)c->resolution,
            .enabled = c->enable_bucket,
            .min_px = (int)c->min_bucket_reso,
            .max_px = (int)c->max_bucket_reso,
            .step_px = (int)c->bucket_reso_steps,
            .no_upscale = c->bucket_no_upscale },
        .filter = filters[c->image_interpolation_mode],
        .skip_broken = c->skip_broken_images,
        .seed = (uint64_t)c->seed,
        .max_pictures = c->max_train_samples,
        .threads = (int)c->dataloader_num_workers,
    };
    if (!dataset_open(t->options.dataset, &options, &t->dataset, err))
        return false;
    size_t count;
    t->samples = dataset_samples(t->dataset, &count);
    t->source = (struct train_source){
        .user = t,
        .count = (int64_t)count,
        .size = source_size,
        .captions = source_captions,
        .caption = source_caption,
        .pixels = source_pixels,
    };
    return true;
}

bool training_job_open(
    const struct training_job_options *options, struct training_job **out, struct error *err) {
    *out = NULL;
    struct training_job *t = calloc(1, sizeof(*t));
    if (!t)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a training job");
    const char *root = options->dataset_root, *tokenizer = options->tokenizer_dir;
    t->options = *options;
    t->options.model_path = strdup(options->model_path);
    t->options.dataset = strdup(options->dataset);
    t->options.folder = strdup(options->folder);
    t->options.dataset_root = root ? strdup(root) : NULL;
    t->options.tokenizer_dir = tokenizer ? strdup(tokenizer) : NULL;
    t->kept_step = -1;
    const bool copied = t->options.model_path && t->options.dataset && t->options.folder &&
                        !t->options.dataset_root == !root &&
                        !t->options.tokenizer_dir == !tokenizer;
    if (!copied)
        error_set(err, ERROR_NO_MEMORY, "no memory for a training job");
    if (copied && training_job_is_possible(options->config, err) && open_dataset(t, err) &&
        make_folder(options->folder, err) && name_result(t, err) &&
        write_json(options->folder, "config.json", train_config_to_json(options->config), err) &&
        write_json(options->folder, "dataset.json", dataset_report(t->dataset), err)) {
        *out = t;
        return true;
    }
    training_job_close(t);
    return false;
}

void training_job_close(struct training_job *t) {
    if (!t)
        return;
    trainer_destroy(t->trainer);
    noise_schedule_finish(&t->noise);
    vae_destroy(t->vae);
    unet_destroy(t->unet);
    text_encoder_destroy(t->text_encoder);
    tokenizer_destroy(t->tokenizer);
    records_close(t->records);
    events_destroy(t->events);
    dataset_destroy(t->dataset);
    free((char *)t->options.model_path);
    free((char *)t->options.tokenizer_dir);
    free((char *)t->options.dataset);
    free((char *)t->options.dataset_root);
    free((char *)t->options.folder);
    free(t->result);
    free(t);
}

/* --- the models --- */

static enum dtype dtype_of(const struct train_config *c) {
    return c->mixed_precision == TRAIN_PRECISION_BF16   ? DTYPE_BF16
           : c->mixed_precision == TRAIN_PRECISION_FP16 ? DTYPE_F16
                                                        : DTYPE_F32;
}

static bool load_from(struct training_job *t, struct checkpoint *c, struct error *err) {
    const struct kernels *k = t->options.kernels;
    const enum dtype dtype = dtype_of(t->options.config);
    const struct weights text = weights_from_checkpoint(c, COMPONENT_TEXT_ENCODER, k, dtype);
    const struct weights unet = weights_from_checkpoint(c, COMPONENT_UNET, k, dtype);
    /* Latents are computed once, and as well as they can be. */
    const struct weights vae = weights_from_checkpoint(c, COMPONENT_VAE, k, DTYPE_F32);
    const struct scheduler_choice ddpm = { .has_kind = true, .kind = SCHEDULER_DDPM };
    struct scheduler_config config;
    if (!tokenizer_from_checkpoint(c, &t->tokenizer, err) ||
        !text_encoder_create(checkpoint_text_encoder_config(c), &text, &t->text_encoder, err) ||
        !unet_create(checkpoint_unet_config(c), &unet, &t->unet, err) ||
        !vae_create(checkpoint_vae_config(c), &vae, VAE_ENCODER, &t->vae, err) ||
        !scheduler_config_resolve(checkpoint_scheduler_json(c), &ddpm, &config, err) ||
        !noise_schedule_init(&config, &t->noise, err))
        return false;
    t->facts = (struct adapter_facts){
        .model = t->options.model_path,
        .pictures = t->source.count,
        .is_sd2 = text_encoder_get_config(t->text_encoder)->hidden_size == 1024,
        .v_prediction = config.values.prediction_type == PREDICTION_V,
        .linear_projection = unet_get_config(t->unet)->use_linear_projection,
    };
    const int unet_in = unet_get_config(t->unet)->in_channels;
    const int latent = vae_get_config(t->vae)->latent_channels;
    return unet_in == latent || error_set(err, ERROR_UNSUPPORTED,
                                    "the UNet takes %d channels, latents have %d: inpainting "
                                    "models cannot be trained yet",
                                    unet_in, latent);
}

static void on_stepped(void *user, const struct train_record *record) {
    struct training_job *t = user;
    struct error err = { 0 };
    const double now_s = (double)time(NULL);
    const struct events_scalar scalars[] = {
        { "loss", (float)record->loss },
        { "learning_rate", (float)record->learning_rate },
        { "grad_norm", (float)record->grad_norm },
        { "images_per_s", (float)record->images_per_s },
    };
    /* A job goes on without them: the disk may have room again later. */
    const bool ok = records_add(t->records, record, &err) &&
                    (!t->events ||
                        events_add_scalars(t->events, now_s, record->step, scalars, 4, &err));
    if (!ok && t->report_failed.code == ERROR_NONE) {
        t->report_failed = err;
        log_warning("step %lld: %s", (long long)record->step, err.message);
    }
    if (t->options.stepped)
        t->options.stepped(t->options.user, record, trainer_steps(t->trainer));
}

static bool open_reports(struct training_job *t, struct error *err) {
    const int64_t step = trainer_step(t->trainer);
    return records_open(t->options.folder, step, &t->records, err) &&
           (t->options.config->report_to != 0 ||
               events_create(t->options.folder, (double)time(NULL), step, &t->events, err));
}

static bool load(struct training_job *t, struct error *err) {
    struct checkpoint *checkpoint;
    if (!checkpoint_open(t->options.model_path, t->options.tokenizer_dir, &checkpoint, err))
        return false;
    bool ok = load_from(t, checkpoint, err) && t->options.kernels->memory->synchronize(err);
    checkpoint_close(checkpoint);
    const struct trainer_options options = {
        .config = t->options.config,
        .source = &t->source,
        .models = { t->options.kernels, t->unet, t->text_encoder, t->vae, t->tokenizer,
            t->noise.alphas_cumprod, t->noise.num_train_timesteps, t->facts.v_prediction },
        .stepped = on_stepped,
        .user = t,
    };
    bool resumed;
    ok = ok && trainer_create(&options, &t->trainer, err) &&
         trainer_resume(t->trainer, t->options.folder, &resumed, err) && open_reports(t, err);
    if (!ok)
        return false;
    const struct trainer_memory m = trainer_get_memory(t->trainer);
    log_info("%s: %lld pictures, %lld steps%s; factors %zu MiB, optimizer %zu MiB, a pass %zu MiB, "
             "encoded pictures and captions %zu MiB",
        t->options.config->name, (long long)t->source.count, (long long)trainer_steps(t->trainer),
        resumed ? ", going on" : "", m.factors >> 20, m.optimizer >> 20, m.pass >> 20,
        m.encoded >> 20);
    t->kept_step = resumed ? trainer_step(t->trainer) : -1;
    return true;
}

/* --- pieces --- */

bool training_job_keep(struct training_job *t, struct error *err) {
    const int64_t step = t->trainer ? trainer_step(t->trainer) : 0;
    if (!step || step == t->kept_step)
        return true;
    t->facts.steps = step;
    if (!trainer_checkpoint(t->trainer, t->options.folder, &t->facts, err))
        return false;
    t->kept_step = step;
    return true;
}

static bool save(struct training_job *t, struct error *err) {
    const int format = t->options.config->save_format;
    t->facts.steps = trainer_step(t->trainer);
    char kohya[4096];
    snprintf(kohya, sizeof(kohya), "%.*s.kohya.safetensors",
        (int)(strlen(t->result) - strlen(".safetensors")), t->result);
    return (format == TRAIN_SAVE_KOHYA ||
               trainer_save(t->trainer, t->result, TRAIN_SAVE_DIFFUSERS, &t->facts, err)) &&
           (format == TRAIN_SAVE_DIFFUSERS ||
               trainer_save(t->trainer, format == TRAIN_SAVE_KOHYA ? t->result : kohya,
                   TRAIN_SAVE_KOHYA, &t->facts, err));
}

bool training_job_advance(struct training_job *t, bool *done, struct error *err) {
    *done = t->done;
    if (t->done)
        return true;
    if (!t->trainer)
        return load(t, err);
    const int64_t before = trainer_step(t->trainer), every = t->options.config->checkpointing_steps;
    if (trainer_get_phase(t->trainer) != TRAINER_DONE && !trainer_advance(t->trainer, err))
        return false;
    const int64_t step = trainer_step(t->trainer);
    const bool ends = trainer_get_phase(t->trainer) == TRAINER_DONE;
    if ((ends || (step != before && every && step % every == 0)) && !training_job_keep(t, err))
        return false;
    if (ends && !save(t, err))
        return false;
    *done = t->done = ends;
    return true;
}

const char *training_job_phase(const struct training_job *t) {
    if (!t->trainer)
        return "loading";
    return t->done                                             ? "done"
           : trainer_get_phase(t->trainer) == TRAINER_ENCODING ? "encoding"
                                                               : "training";
}

void training_job_steps(const struct training_job *t, int64_t *step, int64_t *steps) {
    *step = t->trainer ? trainer_step(t->trainer) : 0;
    *steps = t->trainer ? trainer_steps(t->trainer) : 0;
}

const char *training_job_result(const struct training_job *t) {
    return t->done ? t->result : NULL;
}
