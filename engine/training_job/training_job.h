/* A fine-tuning job from its description to its files: the data set, the models in the precision
 * that it asks for, the trainer (train/trainer.h), and a folder that is the job's own:
 *
 *   config.json          the description, with everything decided
 *   dataset.json         what was found in the data set
 *   metrics.jsonl, events.out.tfevents.*   a line for each step (train/report/)
 *   checkpoint-STEP/     to go on from, each with its adapter
 *   validation/          pictures on the way (validation.h), and grid.png of all of them
 *   class/               pictures of the class that the job has drawn (class_pictures.h)
 *   NAME.safetensors     the adapter, once the job is done (NAME.kohya.safetensors in that format)
 *   model/               the checkpoint that a full fine-tune made, instead; model.safetensors of
 *                        one that was a single file
 *
 * A job whose folder has checkpoints goes on from the last one. */
#ifndef ENGINE_TRAINING_JOB_TRAINING_JOB_H
#define ENGINE_TRAINING_JOB_TRAINING_JOB_H

#include "kernels/kernels.h"
#include "train/config.h"
#include "train/report/records.h"

struct training_job;

struct training_job_options {
    const struct kernels *kernels;          /* borrowed */
    const char *model_path, *tokenizer_dir; /* as in struct pipeline_options */
    const struct train_config *config;      /* borrowed */
    const char *dataset;                    /* its folder */
    const char *class_dataset;              /* of prior preservation; NULL: FOLDER/class */
    const char *dataset_root;               /* which they may not lead out of; NULL: anywhere */
    const char *folder;                     /* the job's own, made if it is not there */
    const char *cache;                      /* a folder for what is encoded (train/cache.h) */
    uint64_t cache_max_bytes;               /* that earlier jobs may have left there */
    /* One that is there already, with weights of `dtype`: a job that does not write to it and
     * wants that precision borrows it, as long as it is open. NULL: there is none. */
    struct unet *unet;
    enum dtype dtype;
    /* After each step; may be NULL. */
    void (*stepped)(void *user, const struct train_record *record, int64_t steps);
    /* A checkpoint has been written, and older ones may have been removed; may be NULL. */
    void (*kept)(void *user, int64_t step);
    /* Something that the job does without, said before its first step; it is in the log too. May be
     * NULL. */
    void (*warned)(void *user, const char *text);
    /* Between the pieces of loading, each as long as one weight is packed: false ends it with
     * ERROR_CANCELLED. May be NULL. */
    bool (*between)(void *user);
    /* Whether the job still is: asked by training_job_advance within its longest piece, which
     * false ends with ERROR_CANCELLED. May be NULL. */
    bool (*is_wanted)(void *user);
    /* What there is of the step's validation is in the folder (folder.h), but for the grid, which
     * is the caller's to draw (validation_draw_grid); may be NULL. */
    void (*validated)(void *user, int64_t step);
    void *user;
};

/* Whether a job can be done with that checkpoint, as far as the heads of its files tell: on any
 * thread. Names the field that asks for what is not done here, or not with this checkpoint, and the
 * layer that it has not; ERROR_NO_SPACE says how much a full fine-tune would write below `folder`,
 * and how much is free. class_folder: of pictures of the class; NULL: there are none yet. */
bool training_job_is_possible(const struct train_config *config, const char *model_path,
    const char *tokenizer_dir, const char *class_folder, const char *folder, struct error *err)
    __attribute__((warn_unused_result));

/* Whether a job could open these data sets: on any thread. Of one with up to
 * DATASET_DECODED_AT_ONCE_PX all is looked at as the job will; of a larger one the files' heads
 * only, which is quick. class_folder: may be NULL, and has what there is already. */
bool training_job_look_at_datasets(const struct train_config *config, const char *path,
    const char *class_folder, const char *root, struct error *err)
    __attribute__((warn_unused_result));

/* Looks at the data set, which takes as long as its pictures are many: on any thread, without the
 * device. Strings are copied. */
bool training_job_open(const struct training_job_options *options, struct training_job **out,
    struct error *err) __attribute__((warn_unused_result));
/* By who may use the device. NULL is fine. */
void training_job_close(struct training_job *training);

/* Loads the models: on any thread that may use the device, which it lets others have whenever it
 * calls `between`. ERROR_NO_MEMORY, before the memory is used, where there is too little of it.
 * After a failure the job can only be closed. */
bool training_job_load(struct training_job *training, struct error *err)
    __attribute__((warn_unused_result));

/* One piece, on the thread that computes: the models are loaded if they are not yet, training is
 * planned (ERROR_NO_MEMORY with how much it takes and how much there is), then come the trainer's
 * pieces, then the adapter is written. After a failure it can only be closed. */
bool training_job_advance(struct training_job *training, bool *done, struct error *err)
    __attribute__((warn_unused_result));

/* Writes a checkpoint, if there is anything to write: before a job is left for a while. */
bool training_job_keep(struct training_job *training, struct error *err)
    __attribute__((warn_unused_result));

/* "loading", "drawing" (of class pictures), "encoding", "training", "validating", "done". */
const char *training_job_phase(const struct training_job *training);
/* Steps of the optimizer: done, and in all (0 until the models are loaded). */
void training_job_steps(const struct training_job *training, int64_t *step, int64_t *steps);
/* The path of the adapter, or of the model, once it is done; borrowed. */
const char *training_job_result(const struct training_job *training);

#endif
