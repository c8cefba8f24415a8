#include "engine/training_job/training_job.h"

#include "base/file.h"
#include "base/log.h"
#include "base/random.h"
#include "base/text/json.h"
#include "engine/request/defaults.h"
#include "engine/training_job/folder.h"
#include "engine/training_job/internal.h"
#include "train/examples/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the folder --- */

/* Writes `json` to a file. Takes over the reference. */
static bool write_json(const char *folder, const char *name, json_t *json, struct error *err) {
    const bool ok = json_write_file(folder, name, json, err);
    json_decref(json);
    return ok;
}

/* Makes the folder and writes what the job is. */
static bool write_heads(struct training_job *t, struct error *err) {
    const struct training_job_options *o = &t->options;
    return !training_job_is_first(t) ||
           (job_folder_make(o->folder, err) &&
               write_json(o->folder, "config.json", train_config_to_json(o->config), err) &&
               write_json(o->folder, "dataset.json", dataset_report(t->dataset), err));
}

/* Checks that all ranks see the same folder: each looks for an empty file with a random name, which
 * rank 0 makes. Otherwise only a later start would notice that some have no checkpoints. */
static bool folder_is_shared(struct training_job *t, struct error *err) {
    struct agreement *ranks = t->options.ranks;
    char name[48] = ".ranks-";
    const size_t stem = strlen(name);
    if (!ranks)
        return true;
    char *path = NULL;
    bool ok = !training_job_is_first(t) || random_text(name + stem, 16, err);
    if (!agreement_meet(ranks, ok, err) || !agreement_take_first(ranks, name, sizeof(name), err))
        return false;
    path = file_join(t->options.folder, name);
    ok = path || error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    if (ok && training_job_is_first(t))
        ok = file_write(path, NULL, 0, err);
    if (agreement_meet(ranks, ok, err)) {
        ok = file_exists(path) ||
             error_set(err, ERROR_CONFLICT,
                 "%s is not the folder that rank 0 writes to; all ranks must share it",
                 t->options.folder);
        ok = agreement_meet(ranks, ok, err);
    } else {
        ok = false;
    }
    if (path && training_job_is_first(t))
        (void)unlink(path);
    free(path);
    return ok;
}

/* Chooses the path of the result. A full fine-tune is saved as a folder or a single file, like its
 * base checkpoint. */
static bool name_result(struct training_job *t, struct error *err) {
    const struct train_config *c = t->options.config;
    const bool is_folder = file_is_folder(t->options.model_path);
    char name[512];
    snprintf(name, sizeof(name), "%.400s.safetensors",
        c->method == TRAIN_FULL ? "model" : adapter_name_stem(c->name));
    t->result = file_join(t->options.folder, c->method == TRAIN_FULL && is_folder ? "model" : name);
    return t->result || error_set(err, ERROR_NO_MEMORY, "no memory for a path");
}

/* --- opening --- */

bool training_job_open(
    const struct training_job_options *options, struct training_job **out, struct error *err) {
    *out = NULL;
    struct training_job *t = calloc(1, sizeof(*t));
    if (!t)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a training job");
    const char *root = options->dataset_root, *tokenizer = options->tokenizer_dir;
    const char *class_dataset = options->class_dataset;
    t->options = *options;
    t->options.model_path = strdup(options->model_path);
    t->options.dataset = strdup(options->dataset);
    t->options.folder = strdup(options->folder);
    t->options.cache = strdup(options->cache);
    t->options.class_dataset = class_dataset ? strdup(class_dataset) : NULL;
    t->options.dataset_root = root ? strdup(root) : NULL;
    t->options.tokenizer_dir = tokenizer ? strdup(tokenizer) : NULL;
    t->kept_step = -1;
    const bool copied = t->options.model_path && t->options.dataset && t->options.folder &&
                        t->options.cache && !t->options.class_dataset == !class_dataset &&
                        !t->options.dataset_root == !root &&
                        !t->options.tokenizer_dir == !tokenizer;
    if (!copied)
        error_set(err, ERROR_NO_MEMORY, "no memory for a training job");
    const bool first = training_job_is_first(t);
    if (copied && (!first || cache_trim(options->cache, options->cache_max_bytes, err)) &&
        training_job_open_dataset(t, err) && name_result(t, err) && write_heads(t, err) &&
        folder_is_shared(t, err)) {
        *out = t;
        return true;
    }
    training_job_close(t);
    agreement_fail(options->ranks, err);
    return false;
}

void training_job_close(struct training_job *t) {
    if (!t)
        return;
    validation_destroy(t->validation);
    trainer_destroy(t->trainer);
    class_pictures_destroy(t->class_pictures);
    vae_destroy(t->decoder);
    json_decref(t->scheduler_json);
    json_decref(t->own_scheduler_json);
    generate_request_finish(&t->defaults);
    generate_request_finish(&t->own_defaults);
    checkpoint_close(t->checkpoint);
    noise_schedule_finish(&t->noise);
    vae_destroy(t->vae);
    if (!t->borrows_unet)
        unet_destroy(t->unet);
    text_encoder_destroy(t->text_encoder);
    tokenizer_destroy(t->tokenizer);
    records_close(t->records);
    events_destroy(t->events);
    read_ahead_destroy(t->reader);
    dataset_destroy(t->dataset);
    dataset_destroy(t->class_dataset);
    free(t->class_folder);
    free((char *)t->options.class_dataset);
    free((char *)t->options.model_path);
    free((char *)t->options.tokenizer_dir);
    free((char *)t->options.dataset);
    free((char *)t->options.dataset_root);
    free((char *)t->options.folder);
    free((char *)t->options.cache);
    free(t->result);
    free(t);
}

/* --- loading --- */

bool training_job_between(const struct training_job *t, struct error *err) {
    return !t->options.between || t->options.between(t->options.user) ||
           error_set(err, ERROR_CANCELLED, "the job was stopped");
}

/* Ranks cannot tell which class pictures are missing while rank 0 draws them. So they wait for it
 * in each job that has a class. */
static bool begin_class_pictures(struct training_job *t, struct error *err) {
    t->awaits_class = t->class_folder && (t->options.ranks || !t->class_dataset);
    if (!t->class_folder || t->class_dataset || !training_job_is_first(t))
        return true;
    struct drawing_models models = training_job_drawing_models(t);
    models.defaults = &t->own_defaults;
    models.scheduler_json = t->own_scheduler_json;
    return class_pictures_create(
        t->class_folder, t->options.config, &models, &t->class_pictures, err);
}

/* Does one piece of drawing the missing class pictures. When they are complete, frees the models
 * that only drawing needed. */
static bool draw_class(struct training_job *t, struct error *err) {
    bool done = true, over;
    if ((t->class_pictures && !class_pictures_advance(t->class_pictures, &done, err)) ||
        !agreement_wait(t->options.ranks, !done, &over, err))
        return false;
    if (!over)
        return true;
    t->awaits_class = false;
    class_pictures_destroy(t->class_pictures);
    t->class_pictures = NULL;
    if (!t->options.config->validation_prompts.count) {
        vae_destroy(t->decoder);
        t->decoder = NULL;
    }
    return t->class_dataset || training_job_open_class(t, err);
}

bool training_job_load(struct training_job *t, struct error *err) {
    t->loaded =
        checkpoint_open(t->options.model_path, t->options.tokenizer_dir, &t->checkpoint, err) &&
        generate_defaults_load(t->options.model_path, &t->own_defaults, err) &&
        generate_defaults_join(t->options.defaults, t->options.model_path, &t->defaults, err) &&
        training_job_suits(t->options.config, &t->defaults, t->checkpoint, t->class_folder, err) &&
        training_job_load_models(t, t->checkpoint, err) &&
        t->options.kernels->memory->synchronize(err);
    if (t->loaded)
        t->disk = training_disk_of(t->options.config, t->checkpoint);
    return t->loaded;
}

static bool is_wanted(void *user) {
    const struct training_job *t = user;
    return !t->options.is_wanted || t->options.is_wanted(t->options.user);
}

static bool create_trainer(struct training_job *t, struct error *err) {
    struct training_room room;
    if (!training_room_read(t, &room, err))
        return false;
    const struct trainer_options options = {
        .config = t->options.config,
        .source = &t->source,
        .models = { t->options.kernels, t->unet, t->text_encoder, t->vae, t->tokenizer,
            t->vae_weights, t->text_encoder_weights, t->noise.alphas_cumprod,
            t->noise.num_train_timesteps, t->facts.v_prediction, &t->unet_source,
            &t->text_encoder_source },
        .ranks = t->options.ranks,
        .multiplied_by = t->options.multiplied_by,
        .room = &room.device,
        .cache = t->options.cache,
        .load_encoders = training_job_load_encoders,
        .is_wanted = is_wanted,
        .stepped = training_job_stepped,
        .user = t,
    };
    return trainer_create(&options, &t->trainer, err) && training_job_training_fits(t, &room, err);
}

/* Warns of target layers that the model does not have. peft also trains without them. */
static void warn_of_targets(struct training_job *t, const char *model, const char *field,
    const struct weight_list *list, const struct train_texts *targets) {
    const char *target;
    for (size_t i = 0; (target = parameters_unused_target(list, targets, i)); i++) {
        char text[300];
        snprintf(text, sizeof(text), "%s: the %s has no layer %.100s; nothing is trained for it",
            field, model, target);
        log_warning("%s: %s", t->options.config->name, text);
        if (t->options.warned)
            t->options.warned(t->options.user, text);
    }
}

static void warn_of_all_targets(struct training_job *t) {
    const struct train_config *c = t->options.config;
    if (c->method != TRAIN_LORA || !training_job_is_first(t))
        return;
    warn_of_targets(t, "UNet", "target_modules", unet_weights(t->unet), &c->target_modules);
    if (c->train_text_encoder)
        warn_of_targets(t, "text encoder", "text_encoder_target_modules",
            text_encoder_weights(t->text_encoder), &c->text_encoder_target_modules);
}

/* Compares the steps that the ranks resume at. */
static bool resumed_alike(struct training_job *t, struct error *err) {
    char text[32];
    snprintf(text, sizeof(text), "%lld", (long long)trainer_step(t->trainer));
    return agreement_compare(t->options.ranks, "the step to resume at", text, err);
}

/* Creates the trainer, which plans its memory, and resumes from a checkpoint if there is one. */
static bool make_trainer(struct training_job *t, struct error *err) {
    bool resumed, ok = training_job_ranks_are_alike(t, err) && create_trainer(t, err);
    checkpoint_close(t->checkpoint);
    t->checkpoint = NULL;
    if (!ok || !trainer_resume(t->trainer, t->options.folder, &resumed, err) ||
        !resumed_alike(t, err) || !training_job_disk_fits(t, err) ||
        !training_job_open_reports(t, err) || !training_job_open_validation(t, err))
        return false;
    const struct trainer_memory m = trainer_get_memory(t->trainer);
    log_info(
        "%s: %lld pictures, %lld steps%s; parameters %zu MiB, optimizer %zu MiB, a pass %zu MiB, "
        "encoding at each step %zu MiB, on disk %llu MiB",
        t->options.config->name, (long long)t->source.count, (long long)trainer_steps(t->trainer),
        resumed ? ", going on" : "", m.parameters >> 20, m.optimizer >> 20, m.pass >> 20,
        m.encoded.device >> 20, (unsigned long long)(m.encoded.disk >> 20));
    t->kept_step = resumed ? trainer_step(t->trainer) : -1;
    t->awaits_validation = t->options.ranks && training_job_validates(t);
    warn_of_all_targets(t);
    return true;
}

/* --- pieces --- */

bool training_job_keep(struct training_job *t, struct error *err) {
    if (!training_job_leave_validation(t, err))
        return false;
    const int64_t step = t->trainer ? trainer_step(t->trainer) : 0;
    if (!step || step == t->kept_step)
        return true;
    t->facts.steps = step;
    if (!trainer_values_agree(t->trainer, err))
        return false;
    if (!training_job_is_first(t)) {
        t->kept_step = step;
        return true;
    }
    agreement_begin_alone(t->options.ranks);
    const bool ok = trainer_checkpoint(t->trainer, t->options.folder, &t->facts, err);
    agreement_end_alone(t->options.ranks);
    if (!ok)
        return false;
    t->kept_step = step;
    if (t->options.kept)
        t->options.kept(t->options.user, step);
    return true;
}

static bool save(struct training_job *t, struct error *err) {
    const int format = t->options.config->save_format;
    if (t->options.config->method == TRAIN_FULL)
        return training_job_save_model(t, err);
    t->facts.steps = trainer_step(t->trainer);
    if (format == TRAIN_SAVE_KOHYA)
        return trainer_save(t->trainer, t->result, TRAIN_SAVE_KOHYA, &t->facts, err);
    if (!trainer_save(t->trainer, t->result, TRAIN_SAVE_DIFFUSERS, &t->facts, err))
        return false;
    if (format == TRAIN_SAVE_DIFFUSERS)
        return true;
    char *second = job_folder_adapter(t->options.folder, t->options.config->name, true);
    const bool ok = second ? trainer_save(t->trainer, second, TRAIN_SAVE_KOHYA, &t->facts, err)
                           : error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    free(second);
    return ok;
}

static bool checkpoint_is_due(const struct training_job *t) {
    const struct train_config *c = t->options.config;
    const int64_t step = trainer_step(t->trainer), epoch = trainer_epoch_steps(t->trainer);
    return (c->checkpointing_steps && step % c->checkpointing_steps == 0) ||
           (c->checkpointing_epochs && step % (c->checkpointing_epochs * epoch) == 0);
}

/* Called after each optimizer step; `ends` is true after the last one. Writes a checkpoint and
 * begins a validation if they are due. */
static bool end_step(struct training_job *t, bool ends, struct error *err) {
    if ((ends || checkpoint_is_due(t)) && !training_job_keep(t, err))
        return false;
    if (!training_job_validation_is_due(t))
        return true;
    t->awaits_validation = t->options.ranks;
    return !training_job_is_first(t) || training_job_begin_validation(t, err);
}

static bool advance_validation(struct training_job *t, struct error *err) {
    bool over;
    if ((training_job_is_validating(t) && !training_job_advance_validation(t, err)) ||
        !agreement_wait(t->options.ranks, training_job_is_validating(t), &over, err))
        return false;
    t->awaits_validation = t->options.ranks && !over;
    return true;
}

/* Writes the last checkpoint and the result, for which all ranks wait. */
static bool finish(struct training_job *t, struct error *err) {
    bool ok = training_job_keep(t, err);
    if (ok && training_job_is_first(t)) {
        agreement_begin_alone(t->options.ranks);
        ok = save(t, err);
        agreement_end_alone(t->options.ranks);
    }
    return agreement_meet(t->options.ranks, ok, err);
}

static bool advance(struct training_job *t, bool *done, struct error *err) {
    *done = t->done;
    if (t->done)
        return true;
    if (!t->loaded)
        return training_job_load(t, err);
    if (!t->class_has_begun) {
        t->class_has_begun = true;
        if (!begin_class_pictures(t, err))
            return false;
    }
    if (t->awaits_class)
        return draw_class(t, err);
    if (!t->trainer)
        return make_trainer(t, err);
    if (t->awaits_validation || training_job_is_validating(t))
        return advance_validation(t, err);
    if (trainer_get_phase(t->trainer) == TRAINER_DONE) {
        *done = t->done = finish(t, err);
        return t->done;
    }
    const int64_t before = trainer_step(t->trainer);
    if (!trainer_advance(t->trainer, err))
        return false;
    training_job_drop_encoders(t);
    return trainer_step(t->trainer) == before ||
           end_step(t, trainer_get_phase(t->trainer) == TRAINER_DONE, err);
}

bool training_job_advance(struct training_job *t, bool *done, struct error *err) {
    const bool ok = advance(t, done, err);
    if (!ok)
        agreement_fail(t->options.ranks, err);
    return ok;
}

bool training_job_may_stop(const struct training_job *t) {
    return agreement_stops(t->options.ranks) &&
           (!t->trainer || trainer_is_between_steps(t->trainer));
}

void training_job_steps(const struct training_job *t, int64_t *step, int64_t *steps) {
    *step = t->trainer ? trainer_step(t->trainer) : 0;
    *steps = t->trainer ? trainer_steps(t->trainer) : 0;
}

const char *training_job_result(const struct training_job *t) {
    return t->done ? t->result : NULL;
}
