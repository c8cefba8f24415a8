/* Makes a job's data sets a source of samples (train/examples/source.h). */
#include "base/file.h"
#include "base/limits.h"
#include "engine/training_job/internal.h"

#include <stdlib.h>
#include <string.h>

/* A picture of one of the data sets. */
struct place {
    const struct dataset *dataset;
    size_t index;
};

static struct place place_of(const struct training_job *t, int64_t item) {
    const struct train_source *s = &t->source;
    if (item < s->count)
        return (struct place){ t->dataset, (size_t)t->samples[item] };
    item -= s->count;
    if (item < s->held_out)
        return (struct place){ t->dataset, (size_t)t->held_out[item] };
    return (struct place){ t->class_dataset, (size_t)(item - s->held_out) };
}

static const struct dataset_item *item_of(const struct training_job *t, int64_t item) {
    const struct place place = place_of(t, item);
    return dataset_item(place.dataset, place.index);
}

static bool is_class(const struct training_job *t, int64_t item) {
    return item >= t->source.count + t->source.held_out;
}

static const struct placement *source_placement(void *user, int64_t item) {
    return &item_of(user, item)->placement;
}

static void source_name(void *user, int64_t item, struct sha256 *to) {
    const struct training_job *t = user;
    const int32_t filter = t->options.config->image_interpolation_mode;
    sha256_add(to, &item_of(t, item)->content, sizeof(struct digest));
    sha256_add(to, &filter, sizeof(filter));
}

static int source_captions(void *user, int64_t item) {
    return is_class(user, item) ? 1 : item_of(user, item)->caption_count;
}

static const char *source_caption(void *user, int64_t item, int which) {
    const struct training_job *t = user;
    return is_class(t, item) ? t->options.config->class_prompt : item_of(t, item)->captions[which];
}

static bool source_pixels(void *user, int64_t item, const struct crop *crop, float *pixels,
    float *mask, struct error *err) {
    const struct training_job *t = user;
    const struct place place = place_of(t, item);
    return read_ahead_read(t->reader, place.dataset, place.index, crop, pixels, mask, err);
}

static bool source_expect(void *user, int64_t item, const struct crop *crop, bool with_mask) {
    const struct training_job *t = user;
    const struct place place = place_of(t, item);
    return read_ahead_expect(t->reader, place.dataset, place.index, crop, with_mask);
}

static bool source_expects(void *user) {
    const struct training_job *t = user;
    return read_ahead_expects(t->reader);
}

static struct dataset_options dataset_options_of(const struct train_config *c, const char *root) {
    static const enum resize_filter filters[] = {
        [TRAIN_LANCZOS] = RESIZE_LANCZOS,
        [TRAIN_BILINEAR] = RESIZE_BILINEAR,
        [TRAIN_BICUBIC] = RESIZE_BICUBIC,
    };
    return (struct dataset_options){
        .root = root,
        .masks = c->masks == TRAIN_MASKS_FILES ? DATASET_MASKS_FILES : DATASET_MASKS_NONE,
        .buckets = { .resolution = (int)c->resolution,
            .enabled = c->enable_bucket,
            .min_px = (int)c->min_bucket_reso,
            .max_px = (int)c->max_bucket_reso,
            .step_px = (int)c->bucket_reso_steps,
            .no_upscale = c->bucket_no_upscale },
        .filter = filters[c->image_interpolation_mode],
        .skip_broken = c->skip_broken_images,
        .seed = (uint64_t)c->seed,
        .threads = (int)c->dataloader_num_workers,
    };
}

static struct dataset_options class_options(const struct train_config *c, const char *root) {
    struct dataset_options options = dataset_options_of(c, root);
    options.prompt = c->class_prompt;
    return options;
}

/* Uses the first num_class_images pictures by name. A folder of the job's own is not below the
 * dataset root, so it is opened without that restriction. */
bool training_job_open_class(struct training_job *t, struct error *err) {
    const struct train_config *c = t->options.config;
    const char *root = t->options.class_dataset ? t->options.dataset_root : NULL;
    const struct dataset_options options = class_options(c, root);
    if (!dataset_open(t->class_folder, &options, &t->class_dataset, err))
        return error_prefix(err, "class_data_dir");
    const int64_t count = (int64_t)dataset_count(t->class_dataset);
    t->source.class_count = count < c->num_class_images ? count : c->num_class_images;
    return true;
}

static bool find_class(struct training_job *t, struct error *err) {
    const char *given = t->options.class_dataset;
    int64_t missing;
    if (!t->options.config->with_prior_preservation)
        return true;
    t->class_folder = given ? strdup(given) : file_join(t->options.folder, "class");
    if (!t->class_folder)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    return class_pictures_missing(t->class_folder, t->options.config, &missing, err) &&
           (missing || training_job_open_class(t, err));
}

static struct dataset_options instance_options(const struct train_config *c, const char *root) {
    struct dataset_options options = dataset_options_of(c, root);
    options.image_column = c->image_column;
    options.caption_column = c->caption_column;
    options.prompt = c->instance_prompt;
    options.held_out_share = c->validation_share;
    options.max_pictures = c->max_train_samples;
    return options;
}

/* Opens the data set and closes it again. *pixels (may be NULL): number of pixels to decode. */
static bool can_open(
    const char *path, const struct dataset_options *options, uint64_t *pixels, struct error *err) {
    struct dataset *dataset;
    if (!dataset_open(path, options, &dataset, err))
        return false;
    if (pixels)
        *pixels = dataset_pixels(dataset);
    dataset_destroy(dataset);
    return true;
}

static bool look_at(const char *path, struct dataset_options *options, struct error *err) {
    uint64_t pixels;
    options->heads_only = true;
    if (!can_open(path, options, &pixels, err))
        return false;
    options->heads_only = false;
    return pixels > DATASET_DECODED_AT_ONCE_PX || can_open(path, options, NULL, err);
}

/* Checks the class pictures that exist. The missing ones will be drawn. */
static bool look_at_class(
    const struct train_config *c, const char *path, const char *root, struct error *err) {
    struct dataset_options options = class_options(c, root);
    int64_t missing;
    return class_pictures_missing(path, c, &missing, err) &&
           (missing == c->num_class_images || look_at(path, &options, err) ||
               error_prefix(err, "class_data_dir"));
}

bool training_job_look_at_datasets(const struct train_config *config, const char *path,
    const char *class_folder, const char *root, struct error *err) {
    struct dataset_options options = instance_options(config, root);
    return look_at(path, &options, err) &&
           (!class_folder || look_at_class(config, class_folder, root, err));
}

bool training_job_open_dataset(struct training_job *t, struct error *err) {
    const struct dataset_options options = instance_options(
        t->options.config, t->options.dataset_root);
    if (!dataset_open(t->options.dataset, &options, &t->dataset, err))
        return false;
    size_t count, held_out;
    t->samples = dataset_samples(t->dataset, &count);
    t->held_out = dataset_held_out(t->dataset, &held_out);
    t->source = (struct train_source){
        .user = t,
        .count = (int64_t)count,
        .held_out = (int64_t)held_out,
        .placement = source_placement,
        .name = source_name,
        .captions = source_captions,
        .caption = source_caption,
        .pixels = source_pixels,
        .expect = source_expect,
        .expects = source_expects,
    };
    return read_ahead_create(options.threads, &t->reader, err) && find_class(t, err);
}
