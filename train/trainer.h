/* One fine-tuning job, from its pictures to its factors, in pieces so short that requests can be
 * served between any two of them.
 *
 *   trainer_create     plans: computes and takes all device memory of the job
 *   trainer_advance    encodes pictures and captions, then steps:
 *                        draw the batch's noise and timesteps (train/examples/draws.h)
 *                        a pass (train/pass.h): loss and gradients, block by block
 *                        after every gradient_accumulation_steps batches, and at an epoch's end:
 *                          the optimizer, the schedule, the average of the weights
 *   until TRAINER_DONE
 *
 * The random numbers of the factors, and after them those of each batch, come from one torch
 * generator that is seeded with the job's seed. Random masks come from Python's generator, and the
 * order of the pictures from a generator per epoch (train/examples/order.h). The same loop in
 * Python draws the same numbers.
 *
 * Several processes may work on one job (train/ranks/). Each has a trainer with the same options
 * and makes the same calls. They share the micro-batches, and compute the bits that one process
 * computes.
 *
 * Only the thread that computes may call these functions. */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include "models/unet.h"
#include "train/config.h"
#include "train/examples/encoded.h"
#include "train/optimizer/parameters.h"
#include "train/ranks/agreement.h"
#include "train/report/records.h"
#include "train/save_adapter.h"

/* The models that are trained, and those that are used for it; all borrowed. A full fine-tune
 * writes to the packed weights of the models that it trains. */
struct trainer_models {
    const struct kernels *kernels;
    const struct unet *unet;
    const struct text_encoder *text_encoder;
    const struct vae *vae; /* must have its encoder */
    const struct tokenizer *tokenizer;
    /* Digests of the weights' bytes and their dtype, for names in the cache. */
    struct digest vae_weights, text_encoder_weights;
    const float *alphas_cumprod; /* [num_train_timesteps] */
    int num_train_timesteps;
    bool v_prediction; /* what the checkpoint predicts; false: epsilon */
    /* For a full fine-tune: the files of the models. Used until trainer_create returns. */
    const struct weights *unet_source, *text_encoder_source;
};

struct trainer_options {
    const struct train_config *config; /* borrowed */
    const struct train_source *source; /* borrowed */
    struct trainer_models models;
    struct agreement *ranks; /* borrowed; NULL: this process is the only one */
    /* The factor of the job's own gradient_accumulation_steps that is in the config: the number of
     * ranks at the job's first start, with data_parallel "multiply". It is saved with the job. 0
     * stands for 1. */
    int64_t multiplied_by;
    /* Borrowed for trainer_create: the device's memory that the job may take, of which ranks have
     * their share. NULL: what the device has left. */
    const struct available *room;
    const char
        *cache; /* borrowed: folder for encoded pictures and captions (train/examples/cache.h) */
    /* Loads dropped weights again, within a piece. Called if the cache loses an entry that is
     * needed after trainer_uses_vae or trainer_uses_text_encoder returned false. NULL: no weights
     * are dropped. */
    bool (*load_encoders)(void *user, struct error *err);
    /* Called while trainer_create draws the initial values. If it returns false, trainer_create
     * ends with ERROR_CANCELLED. May be NULL. */
    bool (*is_wanted)(void *user);
    /* Called after every optimizer step; may be NULL. */
    void (*stepped)(void *user, const struct train_record *record);
    void *user;
};

struct trainer;

/* ERROR_NO_MEMORY says how much memory the job takes and how much is available. */
bool trainer_create(const struct trainer_options *options, struct trainer **out, struct error *err)
    __attribute__((warn_unused_result));
void trainer_destroy(struct trainer *trainer); /* NULL is fine */

enum trainer_phase { TRAINER_ENCODING, TRAINER_STEPPING, TRAINER_DONE };

/* Does one piece of work. After a failure the trainer can only be destroyed. */
bool trainer_advance(struct trainer *trainer, struct error *err)
    __attribute__((warn_unused_result));
enum trainer_phase trainer_get_phase(const struct trainer *trainer);

/* Return whether the VAE, and a text encoder that is not trained, are still needed. */
bool trainer_uses_vae(const struct trainer *trainer);
bool trainer_uses_text_encoder(const struct trainer *trainer);

/* Returns whether no work on the next step has been done. */
bool trainer_is_between_steps(const struct trainer *trainer);
/* Compares the values of all ranks. ERROR_CONFLICT if they have drifted apart. Call it between two
 * steps. */
bool trainer_values_agree(struct trainer *trainer, struct error *err)
    __attribute__((warn_unused_result));

/* Return the optimizer steps: those done, and their total. */
int64_t trainer_step(const struct trainer *trainer);
int64_t trainer_steps(const struct trainer *trainer);

/* The device memory that the job takes. `copies`: host memory for the average and for copies of
 * weights. For encoding also the host memory and disk space. */
struct trainer_memory {
    size_t parameters, optimizer, pass, copies;
    size_t exchange; /* host memory for the exchange between ranks */
    struct encoded_memory encoded;
};
struct trainer_memory trainer_get_memory(const struct trainer *trainer);

/* Saves the adapter in its current state to a file for other programs. */
bool trainer_save(struct trainer *trainer, const char *path, enum train_save_format format,
    const struct adapter_facts *facts, struct error *err) __attribute__((warn_unused_result));

/* Saves the model of a full fine-tune (train/save_model.h): writes `checkpoint`, which was opened
 * as `path`, to `out`, with the trained weights. */
bool trainer_save_model(struct trainer *trainer, struct checkpoint *checkpoint, const char *path,
    const char *out, struct error *err) __attribute__((warn_unused_result));

/* Writes FOLDER/checkpoint-STEP (train/checkpoint.h). May be called at any time; work done since
 * the last optimizer step is not part of it. `facts` are for the adapter that is saved beside
 * it. */
bool trainer_checkpoint(struct trainer *trainer, const char *folder,
    const struct adapter_facts *facts, struct error *err) __attribute__((warn_unused_result));
/* Resumes from the checkpoint in `folder` that resume_from_checkpoint names, or from the last good
 * one, if there is one. Call it before the first piece. The following steps are bit for bit those
 * of an uninterrupted job. After a failure the trainer can only be destroyed. */
bool trainer_resume(struct trainer *trainer, const char *folder, bool *resumed, struct error *err)
    __attribute__((warn_unused_result));
/* Reads the multiplied_by of the checkpoint from which a job with this configuration would resume;
 * 0 if there is none. Only the checkpoint's numbers are read. */
bool trainer_multiplied_by(const char *folder, const struct train_config *config, int64_t *out,
    struct error *err) __attribute__((warn_unused_result));

/* The trained parameters, and the values to save: the average if there is one. The values are in
 * host memory in the layout of the buffers (train/optimizer/parameters.h), borrowed until the next
 * piece. In a full fine-tune, trainer_values and trainer_checkpoint make a step in progress start
 * again. */
const struct parameters *trainer_parameters(const struct trainer *trainer);
const float *trainer_values(struct trainer *trainer, struct error *err);

/* Exchanges the values with their average, so that the models compute with the values that would be
 * saved. A second call restores everything, bit for bit. The second call must come before the next
 * piece and before anything is saved. Does nothing if there is no average. */
bool trainer_swap_average(struct trainer *trainer, struct error *err)
    __attribute__((warn_unused_result));

/* trainer_holds_out returns whether pictures are held out. trainer_measure computes their loss
 * (held_out.h) in short pieces: call it between two steps until *done. It does not change the
 * training. */
bool trainer_holds_out(const struct trainer *trainer);
bool trainer_measure(struct trainer *trainer, bool *done, double *loss, struct error *err)
    __attribute__((warn_unused_result));

/* Excludes the time since the last step from the reported rates, because it was not spent on
 * training. */
void trainer_restart_clock(struct trainer *trainer);

/* Returns the optimizer steps per epoch. */
int64_t trainer_epoch_steps(const struct trainer *trainer);

#endif
