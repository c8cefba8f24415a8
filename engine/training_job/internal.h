/* The parts of a training job. Only the files of this folder include this header. */
#ifndef ENGINE_TRAINING_JOB_INTERNAL_H
#define ENGINE_TRAINING_JOB_INTERNAL_H

#include "engine/scheduler/noise_schedule.h"
#include "engine/training_job/class_pictures.h"
#include "engine/training_job/training_job.h"
#include "engine/training_job/validation.h"
#include "models/checkpoint/checkpoint.h"
#include "train/data/read_ahead.h"
#include "train/report/events.h"
#include "train/trainer.h"

struct training_disk { /* sizes of a full fine-tune's files */
    uint64_t checkpoint_bytes, model_bytes;
};

struct training_job {
    struct training_job_options options; /* strings are owned; config is borrowed */
    struct dataset *dataset;
    const int32_t *samples, *held_out; /* borrowed from `dataset` */
    char *class_folder;                /* owned; NULL: no prior preservation */
    struct dataset *class_dataset;     /* NULL while class pictures are missing */
    struct read_ahead *reader;         /* decodes the pictures of both data sets */
    struct train_source source;
    char *result; /* path of the adapter or model */

    /* The members from here on are set when the models are loaded, or later. */
    bool borrows_unet;                  /* `unet` is options.unet, not owned */
    bool class_has_begun, awaits_class; /* awaits_class: rank 0 draws class pictures */
    struct tokenizer *tokenizer;
    struct text_encoder *text_encoder;
    struct unet *unet;
    struct vae *vae;     /* its encoder */
    struct vae *decoder; /* in the job's precision; NULL: the job draws no pictures */
    /* Defaults of the pictures that the job draws, and the checkpoint's scheduler_config.json with
     * their scheduler. `own`: the checkpoint's alone, for class pictures. They are training data,
     * so options of the daemon must not change them. */
    struct generate_request defaults, own_defaults;
    json_t *scheduler_json, *own_scheduler_json;
    struct weights unet_source, text_encoder_source; /* valid until the trainer exists */
    struct digest text_encoder_weights, vae_weights;
    bool vae_dropped, text_encoder_dropped; /* the encoders' weights are freed */
    struct digest unet_weights;             /* only with ranks, which compare it */
    struct noise_schedule noise;
    struct class_pictures *class_pictures; /* NULL unless class pictures are being drawn */
    bool loaded;                           /* all models are loaded */
    struct checkpoint *checkpoint;         /* open until the trainer exists */
    struct training_disk disk;
    struct trainer *trainer;
    struct records *records;
    struct events *events;
    struct validation *validation;
    bool measures;          /* measuring the held-out loss, the first part of a validation */
    bool shows_average;     /* the average is swapped in (trainer_swap_average) */
    bool awaits_validation; /* rank 0 validates */
    struct adapter_facts facts;
    int64_t kept_step; /* step of the last checkpoint; -1: none */
    bool done;
    struct error report_failed; /* the first error while writing reports */
};

/* Returns whether this process writes the job's files and draws its pictures. */
static inline bool training_job_is_first(const struct training_job *t) {
    return agreement_is_first(t->options.ranks);
}

/* alike.c: compares what the ranks train, and on what. ERROR_CONFLICT names what differs. Call it
 * on all ranks, once everything is loaded. */
bool training_job_ranks_are_alike(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* admission.c: does what training_job_is_possible does, for a checkpoint that is already open; does
 * not check layers or disk space. `defaults` has the checkpoint's own too. */
bool training_job_suits(const struct train_config *config, const struct generate_request *defaults,
    const struct checkpoint *checkpoint, const char *class_folder, struct error *err)
    __attribute__((warn_unused_result));

/* source.c: opens the data set, and fills in `dataset`, `samples` and `source`. */
bool training_job_open_dataset(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* Opens the data set of class pictures. Call once all class pictures exist. */
bool training_job_open_class(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* Call between the pieces of loading, so that others can use the device. ERROR_CANCELLED if the job
 * must stop. */
bool training_job_between(const struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* models.c: loads everything except the trainer. */
bool training_job_load_models(struct training_job *t, struct checkpoint *c, struct error *err)
    __attribute__((warn_unused_result));

/* Returns the models for drawing, in their current state. */
struct drawing_models training_job_drawing_models(const struct training_job *t);

/* Frees the weights of the encoders that the trainer no longer needs, if they are not freed yet. */
void training_job_drop_encoders(struct training_job *t);
/* Implements `load_encoders` of struct trainer_options; `user` is the job. The encoders then stay
 * until the job ends. */
bool training_job_load_encoders(void *user, struct error *err) __attribute__((warn_unused_result));
/* Writes the checkpoint of a full fine-tune to the path `result`. */
bool training_job_save_model(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* memory.c: checks the memory for the models before they are loaded; call it on all ranks. Checks
 * the memory for training once the trainer has planned it, before the trainer uses most of it.
 * ERROR_NO_MEMORY says how much is needed and how much is available. */
bool training_job_models_fit(const struct training_job *t, const struct checkpoint *c,
    enum dtype dtype, struct error *err) __attribute__((warn_unused_result));
struct training_room { /* memory for this process before the trainer is made */
    struct available device, host;
};
/* Call it on all ranks. */
bool training_room_read(const struct training_job *t, struct training_room *out, struct error *err)
    __attribute__((warn_unused_result));
bool training_job_training_fits(const struct training_job *t, const struct training_room *room,
    struct error *err) __attribute__((warn_unused_result));

/* disk.c: training_disk_of computes the sizes for a checkpoint. training_job_disk_fits checks,
 * after the trainer has resumed, whether the disk has room for the files still to be written.
 * ERROR_NO_SPACE says how much is needed and how much is free. */
struct training_disk training_disk_of(
    const struct train_config *config, const struct checkpoint *checkpoint);
/* Makes the same check before there is a trainer, as far as max_train_steps allows it. */
bool training_disk_would_fit(const struct train_config *config, const struct checkpoint *checkpoint,
    const char *folder, struct error *err) __attribute__((warn_unused_result));
bool training_job_disk_fits(const struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* watch.c: prepares validation. Call after the trainer has resumed. If the validation of the
 * current step was interrupted, begins it again. */
bool training_job_open_validation(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));
/* Whether a validation is in progress, and whether one is due at the trainer's current step. */
bool training_job_is_validating(const struct training_job *t);
bool training_job_validation_is_due(const struct training_job *t);
/* Whether rank 0 may validate now: after it has opened the validation, and after a step. All ranks
 * find the same. */
bool training_job_validates(const struct training_job *t);
bool training_job_begin_validation(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));
/* Does one piece of the validation in progress. */
bool training_job_advance_validation(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));
/* Puts the trainer's own values back in place of the average. Call after a validation, or when one
 * is interrupted. */
bool training_job_leave_validation(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* reports.c: opens the reports. Call after the trainer has resumed. */
bool training_job_open_reports(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));
/* Implements `stepped` of struct trainer_options; `user` is the job. */
void training_job_stepped(void *user, const struct train_record *record);
/* Reports the held-out loss at the trainer's current step. */
void training_job_measured(struct training_job *t, double loss);

#endif
