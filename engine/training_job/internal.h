/* The parts of a training job, for the files of this folder. */
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

struct training_disk { /* what a full fine-tune writes */
    uint64_t checkpoint_bytes, model_bytes;
};

struct training_job {
    struct training_job_options options; /* strings owned, but for config's */
    struct dataset *dataset;
    const int32_t *samples, *held_out; /* borrowed from it */
    char *class_folder;                /* of prior preservation, or NULL */
    struct dataset *class_dataset;     /* once none of its pictures is missing */
    struct read_ahead *reader;         /* of the pictures of both */
    struct train_source source;
    char *result; /* the adapter's path, or the model's */

    /* Once they are loaded. */
    bool borrows_unet; /* the options' */
    bool class_has_begun;
    struct tokenizer *tokenizer;
    struct text_encoder *text_encoder;
    struct unet *unet;
    struct vae *vae;        /* its encoder */
    struct vae *decoder;    /* for what is drawn, in the job's precision; NULL: nothing is */
    json_t *scheduler_json; /* the checkpoint's */
    struct weights unet_source, text_encoder_source; /* until the trainer is made */
    struct digest text_encoder_weights, vae_weights;
    bool encoded; /* and what encoded was given back */
    struct noise_schedule noise;
    struct class_pictures *class_pictures; /* while some are missing */
    bool loaded;                           /* all models */
    struct checkpoint *checkpoint;         /* until the trainer is made */
    struct training_disk disk;
    struct trainer *trainer;
    struct records *records;
    struct events *events;
    struct validation *validation;
    bool measures;      /* the held-out pictures' loss, before any is drawn */
    bool shows_average; /* trainer_swap_average */
    struct adapter_facts facts;
    int64_t kept_step; /* of the last checkpoint; -1: none */
    bool done;
    struct error report_failed; /* the first line that could not be written */
};

/* admission.c: as training_job_is_possible, of what is open. */
bool training_job_suits(const struct train_config *config, const struct checkpoint *checkpoint,
    const char *class_folder, struct error *err) __attribute__((warn_unused_result));

/* source.c: `dataset`, `samples` and `source`. */
bool training_job_open_dataset(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* Once its pictures are all there. */
bool training_job_open_class(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* Between the pieces of loading: lets others have the device. ERROR_CANCELLED if the job is wanted
 * back. */
bool training_job_between(const struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* models.c: everything that is loaded, but for the trainer. */
bool training_job_load_models(struct training_job *t, struct checkpoint *c, struct error *err)
    __attribute__((warn_unused_result));

/* What draws, as the models are now. */
struct drawing_models training_job_drawing_models(const struct training_job *t);

/* Gives the memory back of what is not needed any more. */
void training_job_drop_encoders(struct training_job *t);
/* struct trainer_options' `load_encoders`; `user` is the job. They stay until its end. */
bool training_job_load_encoders(void *user, struct error *err) __attribute__((warn_unused_result));
/* Writes `result`. */
bool training_job_save_model(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* memory.c: before the models are loaded, and once the trainer has planned and touched little of
 * what it takes. ERROR_NO_MEMORY says how much it is, and how much there is. */
bool training_job_models_fit(const struct training_job *t, const struct checkpoint *c,
    enum dtype dtype, struct error *err) __attribute__((warn_unused_result));
struct training_room { /* what was available before the trainer was made */
    struct available device, host;
};
void training_room_read(const struct kernels *kernels, struct training_room *out);
bool training_job_training_fits(const struct training_job *t, const struct training_room *room,
    struct error *err) __attribute__((warn_unused_result));

/* disk.c: of the checkpoint's; and, once the trainer is where it goes on from, whether there is
 * room for what is still to come. ERROR_NO_SPACE says how much it is, and how much is free. */
struct training_disk training_disk_of(
    const struct train_config *config, const struct checkpoint *checkpoint);
/* Before there is a trainer: as far as max_train_steps tells. */
bool training_disk_would_fit(const struct train_config *config, const struct checkpoint *checkpoint,
    const char *folder, struct error *err) __attribute__((warn_unused_result));
bool training_job_disk_fits(const struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* watch.c: pictures on the way. Once the trainer is where it goes on from, which may be a step
 * whose validation was cut short. */
bool training_job_open_validation(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));
/* Whether one is under way, and whether there is one at the step at which the trainer is now. */
bool training_job_is_validating(const struct training_job *t);
bool training_job_validation_is_due(const struct training_job *t);
bool training_job_begin_validation(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));
/* A piece of what was begun. */
bool training_job_advance_validation(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));
/* Ends it where it is, so that the trainer's values are its own again. */
bool training_job_leave_validation(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));

/* reports.c: once the trainer is where it goes on from. */
bool training_job_open_reports(struct training_job *t, struct error *err)
    __attribute__((warn_unused_result));
/* struct trainer_options' `stepped`; `user` is the job. */
void training_job_stepped(void *user, const struct train_record *record);
/* The held-out pictures' loss at the trainer's step. */
void training_job_measured(struct training_job *t, double loss);

#endif
