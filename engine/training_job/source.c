/* The data set of a job as a source of samples (train/source.h). */
#include "engine/training_job/internal.h"

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

bool training_job_open_dataset(struct training_job *t, struct error *err) {
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
