/* Pictures that a job draws of itself on the way: each of its validation_prompts, with the same
 * seeds every time, by the job's own models with what it has trained so far. The pixels are those
 * of POST /generate with that adapter and the same values; nothing of the training moves.
 *
 * They become FOLDER/validation/step-STEP/PROMPT-IMAGE.png (counted from 0; a text chunk "latentd"
 * says with what request each can be had again), pictures of TensorBoard's files, and, once all are
 * there, the step folder's VALIDATION_LIST (folder.h). A picture that cannot be drawn or written is
 * a warning in the log, and missing.
 *
 * One thread at a time, the one that computes. */
#ifndef ENGINE_TRAINING_JOB_VALIDATION_H
#define ENGINE_TRAINING_JOB_VALIDATION_H

#include "engine/training_job/drawing.h"
#include "train/config.h"
#include "train/report/events.h"

/* What the pictures are drawn by: the job's scheduler, or the checkpoint's, with the prediction
 * type that the job trains. */
struct scheduler_choice validation_scheduler(const struct train_config *config);

struct validation;

struct validation_options { /* all borrowed */
    const struct train_config *config;
    struct drawing_models models; /* its vae is NULL where there are no prompts */
    const char *folder;           /* the job's */
    struct events *events;        /* NULL: none are written */
};

/* Takes the memory that drawing needs. ERROR_INVALID names a field that the models do not take. */
bool validation_create(const struct validation_options *options, struct validation **out,
    struct error *err) __attribute__((warn_unused_result));
void validation_destroy(struct validation *validation); /* NULL is fine, and so is a busy one */

/* Begins the pictures of a step, in place of what there is of them. `overlay`: the changes that are
 * trained, borrowed until it is no longer busy; NULL where the models hold them. loss: NAN for
 * none. */
bool validation_begin(struct validation *validation, int64_t step, double loss,
    const struct row_overlay *overlay, struct error *err) __attribute__((warn_unused_result));
bool validation_is_busy(const struct validation *validation);
/* One piece: a UNet call of one picture, a decode, or a file. False only if the device was lost. */
bool validation_advance(struct validation *validation, struct error *err)
    __attribute__((warn_unused_result));

/* FOLDER/validation/grid.png: a row for each step that there is, with its number, a column for each
 * picture of it; smaller than they are where there are many. For any thread, one at a time for one
 * folder. No pictures: no grid. */
bool validation_draw_grid(const char *folder, struct error *err)
    __attribute__((warn_unused_result));

#endif
