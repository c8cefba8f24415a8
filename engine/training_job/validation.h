/* Validation pictures: each of the job's validation_prompts is drawn during training, with the same
 * seeds every time, by the job's own models with what they have learned so far. The pixels are
 * those of POST /generate with that adapter and the same values. Drawing does not change the
 * training.
 *
 * The pictures become FOLDER/validation/step-STEP/PROMPT-IMAGE.png (counted from 0; a text chunk
 * "latentd" holds the request that reproduces the picture) and pictures in TensorBoard's files.
 * Once all are there, VALIDATION_LIST (folder.h) is written into the step's folder. A picture that
 * cannot be drawn or written is missing, with a warning in the log.
 *
 * One thread at a time, the one that computes. */
#ifndef ENGINE_TRAINING_JOB_VALIDATION_H
#define ENGINE_TRAINING_JOB_VALIDATION_H

#include "engine/training_job/drawing.h"
#include "train/config.h"
#include "train/report/events.h"

/* How the pictures are drawn: with the job's scheduler, or the checkpoint's, and the prediction
 * type that the job trains. */
struct scheduler_choice validation_scheduler(const struct train_config *config);

struct validation;

struct validation_options { /* all borrowed */
    const struct train_config *config;
    struct drawing_models models; /* vae may be NULL if there are no prompts */
    const char *folder;           /* the job's */
    struct events *events;        /* NULL: none are written */
};

/* Takes the memory for drawing. ERROR_INVALID names a field that the models do not accept. */
bool validation_create(const struct validation_options *options, struct validation **out,
    struct error *err) __attribute__((warn_unused_result));
void validation_destroy(struct validation *validation); /* NULL is fine, and so is a busy one */

/* Begins the pictures of a step and replaces earlier ones of that step. `overlay`: the factors
 * being trained, borrowed until the validation is no longer busy; NULL if the models hold the
 * changes. loss: NAN for none. */
bool validation_begin(struct validation *validation, int64_t step, double loss,
    const struct row_overlay *overlay, struct error *err) __attribute__((warn_unused_result));
bool validation_is_busy(const struct validation *validation);
/* One piece: a UNet call of one picture, a decode, or a file. Fails only if the device was lost. */
bool validation_advance(struct validation *validation, struct error *err)
    __attribute__((warn_unused_result));

/* Draws FOLDER/validation/grid.png: a row per step with its number, a column per picture; scaled
 * down if there are many. Any thread, but one at a time per folder. Without pictures there is no
 * grid. */
bool validation_draw_grid(const char *folder, struct error *err)
    __attribute__((warn_unused_result));

#endif
