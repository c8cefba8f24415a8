/* The pictures of a class that prior preservation wants beside those that are there already: drawn
 * by the job's models before they change, as POST /generate draws class_prompt with its defaults at
 * the job's resolution. They become FOLDER/drawn-K.png, K from 0; number K has the seed
 * seed + K, so that a job that was stopped meanwhile draws those that are missing.
 *
 * One thread at a time, the one that computes. */
#ifndef ENGINE_TRAINING_JOB_CLASS_PICTURES_H
#define ENGINE_TRAINING_JOB_CLASS_PICTURES_H

#include "engine/training_job/drawing.h"
#include "train/config.h"

/* How many of num_class_images are not in the folder, for any thread; a folder that is not there is
 * an empty one. */
bool class_pictures_missing(const char *folder, const struct train_config *config, int64_t *missing,
    struct error *err) __attribute__((warn_unused_result));

struct class_pictures;

/* Takes the memory that drawing needs, and makes the folder. Config, folder and models are borrowed
 * as long as it. */
bool class_pictures_create(const char *folder, const struct train_config *config,
    const struct drawing_models *models, struct class_pictures **out, struct error *err)
    __attribute__((warn_unused_result));
void class_pictures_destroy(struct class_pictures *pictures); /* NULL is fine, also in between */
/* One piece: a UNet call, a decode, or a file. *done: none is missing. */
bool class_pictures_advance(struct class_pictures *pictures, bool *done, struct error *err)
    __attribute__((warn_unused_result));

#endif
