/* A fine-tuning job from its description to its files. It consists of the data set, the models in
 * the requested precision, the trainer (train/trainer.h), and a folder of its own:
 *
 *   config.json          the description, with everything decided
 *   dataset.json         what was found in the data set
 *   metrics.jsonl, events.out.tfevents.*   a line for each step (train/report/)
 *   checkpoint-STEP/     to resume from, each with its adapter
 *   validation/          validation pictures (validation.h), and grid.png of all of them
 *   class/               class pictures that the job has drawn (class_pictures.h)
 *   NAME.safetensors     the adapter, once the job is done (NAME.kohya.safetensors in that format)
 *   model/               a full fine-tune's checkpoint instead; model.safetensors if the base
 *                        checkpoint was a single file
 *
 * A job whose folder has checkpoints resumes from the last one. */
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
    const char *dataset;                    /* path of its folder */
    const char *class_dataset;              /* for prior preservation; NULL: FOLDER/class */
    const char *dataset_root; /* data sets must not lead out of it; NULL: no restriction */
    const char *folder;       /* the job's own; made if missing */
    const char *cache; /* folder for encoded pictures and captions (train/examples/cache.h) */
    uint64_t cache_max_bytes; /* limit on what earlier jobs left there */
    /* A loaded UNet with weights of `dtype`. A job that does not write to it and wants this
     * precision borrows it until training_job_close. NULL: there is none. */
    struct unet *unet;
    enum dtype dtype;
    /* After each step; may be NULL. */
    void (*stepped)(void *user, const struct train_record *record, int64_t steps);
    /* Called when a checkpoint was written; older ones may have been removed. May be NULL. */
    void (*kept)(void *user, int64_t step);
    /* Called before the first step for everything the job does without; it is logged too. May be
     * NULL. */
    void (*warned)(void *user, const char *text);
    /* Called between the pieces of loading, each as long as packing one weight. Return false to
     * stop with ERROR_CANCELLED. May be NULL. */
    bool (*between)(void *user);
    /* Whether the job should still run. Asked by training_job_advance within its longest piece;
     * false ends the piece with ERROR_CANCELLED. May be NULL. */
    bool (*is_wanted)(void *user);
    /* Called when a step's validation pictures are in the folder (folder.h). The caller then draws
     * the grid (validation_draw_grid). May be NULL. */
    void (*validated)(void *user, int64_t step);
    void *user;
};

/* Whether a job is possible with this checkpoint, as far as the headers of its files tell. Any
 * thread. The error names the field that asks for something unsupported, here or with this
 * checkpoint, and the layer that the model lacks. ERROR_NO_SPACE: how much a full fine-tune would
 * write below `folder`, and how much is free. class_folder: folder of class pictures; NULL: there
 * are none yet. */
bool training_job_is_possible(const struct train_config *config, const char *model_path,
    const char *tokenizer_dir, const char *class_folder, const char *folder, struct error *err)
    __attribute__((warn_unused_result));

/* Whether a job could open these data sets. Any thread. A data set of up to
 * DATASET_DECODED_AT_ONCE_PX is examined in full, as the job will do it; of a larger one only the
 * files' headers are read, which is quick. class_folder: what is there already; may be NULL. */
bool training_job_look_at_datasets(const struct train_config *config, const char *path,
    const char *class_folder, const char *root, struct error *err)
    __attribute__((warn_unused_result));

/* Opens a job and examines its data set, which takes time for every picture. Any thread, without
 * the device. Strings are copied. */
bool training_job_open(const struct training_job_options *options, struct training_job **out,
    struct error *err) __attribute__((warn_unused_result));
/* The calling thread must be allowed to use the device. NULL is fine. */
void training_job_close(struct training_job *training);

/* Loads the models, on any thread that may use the device; the device is free for others during
 * each call of `between`. ERROR_NO_MEMORY if there is too little, before any of it is used. After a
 * failure the job can only be closed. */
bool training_job_load(struct training_job *training, struct error *err)
    __attribute__((warn_unused_result));

/* Does one piece, on the thread that computes: loads the models if that is still to be done, plans
 * the training (ERROR_NO_MEMORY: how much it takes and how much there is), then the trainer's
 * pieces, then writes the adapter. After a failure the job can only be closed. */
bool training_job_advance(struct training_job *training, bool *done, struct error *err)
    __attribute__((warn_unused_result));

/* Writes a checkpoint if there is progress to save, before the job is left for a while. */
bool training_job_keep(struct training_job *training, struct error *err)
    __attribute__((warn_unused_result));

/* Optimizer steps: done, and in all (0 until the models are loaded). */
void training_job_steps(const struct training_job *training, int64_t *step, int64_t *steps);
/* Path of the finished adapter or model; borrowed. */
const char *training_job_result(const struct training_job *training);

#endif
