/* Draws validation pictures. During training, the job's models, in their current state, draw each
 * of the validation_prompts, always with the same seeds. The pixels equal those of
 * POST /generate with the adapter of that step and the same values. Drawing does not change the
 * training.
 *
 * The pictures become FOLDER/validation/step-STEP/PROMPT-IMAGE.png (counted from 0; a text chunk
 * "latentd" holds the request that reproduces the picture) and pictures in TensorBoard's files.
 * Once all are there, VALIDATION_LIST (folder.h) is written into the step's folder. A picture that
 * cannot be drawn or written is missing, with a warning in the log.
 *
 * Only the thread that computes may use a struct validation. */
#ifndef ENGINE_TRAINING_JOB_VALIDATION_H
#define ENGINE_TRAINING_JOB_VALIDATION_H

#include "engine/training_job/drawing.h"
#include "train/config.h"
#include "train/report/events.h"

/* Returns the scheduler for validation pictures: the job's, or else the checkpoint's, with the
 * prediction type that the job trains. */
struct scheduler_choice validation_scheduler(const struct train_config *config);

/* Returns the steps of a validation picture: the job's, or else those of requests. */
int validation_steps(const struct train_config *config, const struct generate_request *defaults);

struct validation;

struct validation_options { /* all borrowed */
    const struct train_config *config;
    struct drawing_models models; /* vae may be NULL without validation_prompts */
    const char *folder;           /* the job's */
    struct events *events;        /* NULL: no events are written */
};

/* Reserves the memory for drawing. ERROR_INVALID names a field that the models do not accept. */
bool validation_create(const struct validation_options *options, struct validation **out,
    struct error *err) __attribute__((warn_unused_result));
void validation_destroy(struct validation *validation); /* NULL is fine; works while busy too */

/* Begins the pictures of a step and deletes earlier ones of that step. `overlay` holds the factors
 * being trained and is borrowed until the validation is no longer busy; NULL: the changes are in
 * the models' weights. loss: the held-out loss; NAN: not measured. */
bool validation_begin(struct validation *validation, int64_t step, double loss,
    const struct row_overlay *overlay, struct error *err) __attribute__((warn_unused_result));
bool validation_is_busy(const struct validation *validation);
/* Does one piece: a UNet call of one picture, a decode, or writing a file. Fails only if the device
 * was lost. */
bool validation_advance(struct validation *validation, struct error *err)
    __attribute__((warn_unused_result));

/* Draws FOLDER/validation/grid.png: one row per step, with its number, and one column per picture.
 * The pictures are scaled down if there are many. Draws nothing if there are no pictures. Any
 * thread, but only one at a time per folder. */
bool validation_draw_grid(const char *folder, struct error *err)
    __attribute__((warn_unused_result));

#endif
