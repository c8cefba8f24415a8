/* The parts of a training job. Only for the files of this folder. */
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

struct training_disk { /* sizes of what a full fine-tune writes */
    uint64_t checkpoint_bytes, model_bytes;
};

struct training_job {
    struct training_job_options options; /* strings owned, except config's */
    struct dataset *dataset;
    const int32_t *samples, *held_out; /* borrowed from `dataset` */
    char *class_folder;                /* owned; for prior preservation, or NULL */
    struct dataset *class_dataset;     /* NULL until all class pictures are there */
    struct read_ahead *reader;         /* decodes the pictures of both data sets */
    struct train_source source;
    char *result; /* the adapter's path, or the model's */

    /* Set once the models are loaded. */
    bool borrows_unet; /* `unet` is options.unet */
    bool class_has_begun;
    struct tokenizer *tokenizer;
    struct text_encoder *text_encoder;
    struct unet *unet;
    struct vae *vae;        /* its encoder */
    struct vae *decoder;    /* for drawing, in the job's precision; NULL: the job draws nothing */
    json_t *scheduler_json; /* the checkpoint's */
    struct weights unet_source, text_encoder_source; /* valid until the trainer is made */
    struct digest text_encoder_weights, vae_weights;
    bool encoded; /* and the encoders' memory was freed */
    struct noise_schedule noise;
    struct class_pictures *class_pictures; /* while class pictures are missing */
    bool loaded;                           /* all models are loaded */
    struct checkpoint *checkpoint;         /* open until the trainer is made */
    struct training_disk disk;
    struct trainer *trainer;
    struct records *records;
    struct events *events;
    struct validation *validation;
    bool measures;      /* the held-out loss is being measured, before pictures are drawn */
    bool shows_average; /* after trainer_swap_average */
    struct adapter_facts facts;
    int64_t kept_step; /* of the last checkpoint; -1: none */
    bool done;
    struct error report_failed; /* why the first line that failed could not be written */
};

/* admission.c: training_job_is_possible for an open checkpoint. */
bool training_job_suits(const struct train_config *config, const struct checkpoint *checkpoint,
    const char *class_folder, struct error *err) __attribute__((warn_unused_result));

/* source.c: fills in `dataset`, `samples` and `source`. */
bool training_job_open_dataset(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* Call once all class pictures are there. */
bool training_job_open_class(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* Call between the pieces of loading: lets others use the device. ERROR_CANCELLED if the job is
 * wanted back. */
bool training_job_between(const struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* models.c: loads everything except the trainer. */
bool training_job_load_models(struct training_job *t, struct checkpoint *c, struct error *err)
    __attribute__((warn_unused_result));

/* The models for drawing, in their current state. */
struct drawing_models training_job_drawing_models(const struct training_job *t);

/* Frees the encoders that are no longer needed. */
void training_job_drop_encoders(struct training_job *t);
/* The `load_encoders` of struct trainer_options; `user` is the job. The encoders then stay until
 * the job ends. */
bool training_job_load_encoders(void *user, struct error *err) __attribute__((warn_unused_result));
/* Writes the full fine-tune's checkpoint to `result`. */
bool training_job_save_model(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* memory.c: checked before the models are loaded, and again when the trainer has planned but used
 * little of its memory. ERROR_NO_MEMORY says how much is needed and how much there is. */
bool training_job_models_fit(const struct training_job *t, const struct checkpoint *c,
    enum dtype dtype, struct error *err) __attribute__((warn_unused_result));
struct training_room { /* what was available before the trainer was made */
    struct available device, host;
};
void training_room_read(const struct kernels *kernels, struct training_room *out);
bool training_job_training_fits(const struct training_job *t, const struct training_room *room,
    struct error *err) __attribute__((warn_unused_result));

/* disk.c: the sizes for this checkpoint; and, once the trainer is where it resumes from, whether
 * there is room for what is still to be written. ERROR_NO_SPACE says how much is needed and how
 * much is free. */
struct training_disk training_disk_of(
    const struct train_config *config, const struct checkpoint *checkpoint);
/* The same before there is a trainer, as far as max_train_steps tells. */
bool training_disk_would_fit(const struct train_config *config, const struct checkpoint *checkpoint,
    const char *folder, struct error *err) __attribute__((warn_unused_result));
bool training_job_disk_fits(const struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* watch.c: validation. Call once the trainer is where it resumes from; if the validation of that
 * step was interrupted, this begins it again. */
bool training_job_open_validation(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));
/* Whether a validation is under way, and whether one is due at the trainer's current step. */
bool training_job_is_validating(const struct training_job *t);
bool training_job_validation_is_due(const struct training_job *t);
bool training_job_begin_validation(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));
/* One piece of the validation under way. */
bool training_job_advance_validation(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));
/* Puts the trainer's own values back in place of the average, after a validation or where it is
 * broken off. */
bool training_job_leave_validation(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* reports.c: call once the trainer is where it resumes from. */
bool training_job_open_reports(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));
/* The `stepped` of struct trainer_options; `user` is the job. */
void training_job_stepped(void *user, const struct train_record *record);
/* Reports the held-out loss at the trainer's current step. */
void training_job_measured(struct training_job *t, double loss);

#endif
