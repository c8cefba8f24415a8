/* Draws the class pictures that prior preservation lacks. The job's models draw these pictures
 * before training changes the models, as POST /generate would draw class_prompt at the job's
 * resolution with the checkpoint's own defaults. The pictures are written to FOLDER/drawn-K.png, K
 * from 0. Picture K has the seed seed + K, so that a resumed job draws only those that are missing.
 *
 * Only the thread that computes may use a struct class_pictures. */
#ifndef ENGINE_TRAINING_JOB_CLASS_PICTURES_H
#define ENGINE_TRAINING_JOB_CLASS_PICTURES_H

#include "engine/training_job/drawing.h"
#include "train/config.h"

/* Counts how many of num_class_images are missing in the folder. A missing folder counts as an
 * empty one. Any thread. */
bool class_pictures_missing(const char *folder, const struct train_config *config, int64_t *missing,
    struct error *err) __attribute__((warn_unused_result));

struct class_pictures;

/* Makes the folder and reserves the memory for drawing. Config, folder and models are borrowed
 * until class_pictures_destroy. */
bool class_pictures_create(const char *folder, const struct train_config *config,
    const struct drawing_models *models, struct class_pictures **out, struct error *err)
    __attribute__((warn_unused_result));
void class_pictures_destroy(
    struct class_pictures *pictures); /* NULL is fine; works between any two pieces */
/* Does one piece: a UNet call, a decode, or writing a file. *done: no picture is missing any
 * more. */
bool class_pictures_advance(struct class_pictures *pictures, bool *done, struct error *err)
    __attribute__((warn_unused_result));

#endif
