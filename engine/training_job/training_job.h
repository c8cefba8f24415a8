/* A fine-tuning job from its description to its files. It consists of the data set, the models in
 * the requested precision, the trainer (train/trainer.h), and a folder of its own:
 *
 *   config.json          the description, with all defaults filled in
 *   dataset.json         what was found in the data set
 *   metrics.jsonl, events.out.tfevents.*   a line for each step (train/report/)
 *   checkpoint-STEP/     to resume from, each with its adapter
 *   validation/          validation pictures (validation.h), and grid.png of all of them
 *   class/               class pictures that the job has drawn (class_pictures.h)
 *   NAME.safetensors     the adapter, once the job is done (NAME.kohya.safetensors in that format)
 *   model/               a full fine-tune's checkpoint instead; model.safetensors if the base
 *                        checkpoint was a single file
 *
 * A job whose folder has checkpoints resumes from the last one.
 *
 * Several processes may work on one job (`ranks`): each opens it with the same options and makes
 * the same calls. Rank 0 writes all files and draws all pictures; the others only train. A failure
 * of one is the failure of all, in the same call. */
#ifndef ENGINE_TRAINING_JOB_TRAINING_JOB_H
#define ENGINE_TRAINING_JOB_TRAINING_JOB_H

#include "engine/request/request.h"
#include "kernels/kernels.h"
#include "train/config.h"
#include "train/ranks/agreement.h"
#include "train/report/records.h"

struct training_job;

struct training_job_options {
    const struct kernels *kernels;          /* borrowed */
    const char *model_path, *tokenizer_dir; /* see struct pipeline_options */
    const struct train_config *config;      /* borrowed */
    /* Defaults for validation pictures, before the checkpoint's own
     * (engine/request/defaults.h). Borrowed; NULL: none. */
    const struct generate_request *defaults;
    const char *dataset;       /* path of the data set's folder */
    const char *class_dataset; /* path of class pictures; NULL: FOLDER/class */
    const char *dataset_root;  /* data sets must not lead out of it; NULL: not checked */
    const char *folder;        /* of the job; created if missing */
    const char *cache; /* folder for encoded pictures and captions (train/examples/cache.h) */
    uint64_t cache_max_bytes; /* limit on the files of earlier jobs in `cache` */
    /* A loaded UNet with weights of `dtype`, or NULL. A LoRA job with this precision borrows it
     * until training_job_close; other jobs load their own. */
    struct unet *unet;
    enum dtype dtype;
    struct agreement *ranks; /* borrowed; NULL: one process works on the job */
    int64_t multiplied_by;   /* see struct trainer_options */
    int device_ranks;        /* how many of them share this one's device; 0 stands for 1 */
    /* Called after each step. May be NULL. */
    void (*stepped)(void *user, const struct train_record *record, int64_t steps);
    /* Called after a checkpoint was written. Older checkpoints may have been removed. May be
     * NULL. */
    void (*kept)(void *user, int64_t step);
    /* Called before the first step with each warning, such as a layer that cannot be trained. The
     * warning is also logged. May be NULL. */
    void (*warned)(void *user, const char *text);
    /* Called between the pieces of loading; a piece takes as long as packing one weight. Return
     * false to stop with ERROR_CANCELLED. May be NULL. */
    bool (*between)(void *user);
    /* Whether the job should continue. training_job_advance calls it during its longest pieces;
     * false ends the piece with ERROR_CANCELLED. May be NULL. */
    bool (*is_wanted)(void *user);
    /* Called when the validation pictures of a step are in the folder (folder.h). The caller then
     * draws the grid (validation_draw_grid). May be NULL. */
    void (*validated)(void *user, int64_t step);
    void *user;
};

/* Checks whether a job is possible with this checkpoint, from the headers of its files. The error
 * names the field that asks for something unsupported, or the layer that the model does not have.
 * ERROR_NO_SPACE: how much a full fine-tune would write below `folder`, and how much is free.
 * class_folder is the folder of class pictures; NULL: there are none yet. `defaults` as in the
 * options. Any thread. */
bool training_job_is_possible(const struct train_config *config,
    const struct generate_request *defaults, const char *model_path, const char *tokenizer_dir,
    const char *class_folder, const char *folder, struct error *err)
    __attribute__((warn_unused_result));

/* Checks whether a job could open these data sets. A data set of up to DATASET_DECODED_AT_ONCE_PX
 * is examined in full, as the job will do. For a larger one only the headers of the files are read,
 * which is quick. class_folder holds the class pictures that exist; may be NULL. Any thread. */
bool training_job_look_at_datasets(const struct train_config *config, const char *path,
    const char *class_folder, const char *root, struct error *err)
    __attribute__((warn_unused_result));

/* Opens a job and examines its data set, which takes time for every picture. Any thread; does not
 * use the device. Strings are copied. */
bool training_job_open(const struct training_job_options *options, struct training_job **out,
    struct error *err) __attribute__((warn_unused_result));
/* Call it on a thread that may use the device. NULL is fine. */
void training_job_close(struct training_job *training);

/* Loads the models. Call it on a thread that may use the device; others may use the device during
 * each call of `between`. ERROR_NO_MEMORY if memory is too short, before any of it is used. After a
 * failure the job can only be closed. */
bool training_job_load(struct training_job *training, struct error *err)
    __attribute__((warn_unused_result));

/* Does one piece of the job, on the engine thread. The pieces are, in order: loading the models if
 * they are not loaded, drawing class pictures, planning the training, training and validating, and
 * writing the result. ERROR_NO_MEMORY from planning says how much is needed and how much is
 * available. After a failure the job can only be closed. */
bool training_job_advance(struct training_job *training, bool *done, struct error *err)
    __attribute__((warn_unused_result));

/* Returns whether the ranks may end now because one was asked to stop: all of them know it, and are
 * between two steps. False without ranks. */
bool training_job_may_stop(const struct training_job *training);

/* Writes a checkpoint if there is progress to save. Call before the job is interrupted. */
bool training_job_keep(struct training_job *training, struct error *err)
    __attribute__((warn_unused_result));

/* Gives the number of optimizer steps: done, and in total (0 until the trainer exists). */
void training_job_steps(const struct training_job *training, int64_t *step, int64_t *steps);
/* Returns the path of the finished adapter or model, borrowed; NULL if the job is not done. */
const char *training_job_result(const struct training_job *training);

#endif
