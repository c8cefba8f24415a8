/* One fine-tuning job, from its pictures to its factors, in pieces so short that requests for
 * pictures can come between any two of them.
 *
 *   trainer_create     plans: everything that the job takes of the device is known, and taken
 *   trainer_advance    encodes pictures and captions, then steps:
 *                        draw the batch's noise and timesteps (train/draws.h)
 *                        a pass (train/pass.h): loss and gradients, block by block
 *                        after every gradient_accumulation_steps batches, and at an epoch's end:
 *                          the optimizer, the schedule, the average of the weights
 *   until TRAINER_DONE
 *
 * What is drawn at random comes from one generator of torch's, seeded with the job's seed: the
 * factors first, then what each batch needs, so that the same loop in Python draws the same.
 *
 * One thread at a time, the one that computes. */
#ifndef TRAIN_TRAINER_H
#define TRAIN_TRAINER_H

#include "models/unet.h"
#include "train/config.h"
#include "train/encoded.h"
#include "train/parameters.h"
#include "train/report/records.h"
#include "train/save_adapter.h"

/* What is trained, and what it is trained with; all borrowed. A full fine-tune writes to the
 * packed weights of what it trains. */
struct trainer_models {
    const struct kernels *kernels;
    const struct unet *unet;
    const struct text_encoder *text_encoder;
    const struct vae *vae; /* with its encoder */
    const struct tokenizer *tokenizer;
    /* Of the weights' bytes and what they are kept in, for names in the cache. */
    struct digest vae_weights, text_encoder_weights;
    const float *alphas_cumprod; /* [num_train_timesteps] */
    int num_train_timesteps;
    bool v_prediction; /* what the checkpoint predicts */
    /* What the models were made of, for a full fine-tune: until trainer_create returns. */
    const struct weights *unet_source, *text_encoder_source;
};

struct trainer_options {
    const struct train_config *config; /* borrowed */
    const struct train_source *source; /* borrowed */
    struct trainer_models models;
    const char *cache; /* a folder for what is encoded (train/cache.h); borrowed */
    /* Where the cache loses what is needed after trainer_encodes said no: brings the weights back
     * that were dropped since, in a piece. NULL: none are. */
    bool (*load_encoders)(void *user, struct error *err);
    /* Asked while trainer_create draws the first values: false ends it with ERROR_CANCELLED. May be
     * NULL. */
    bool (*is_wanted)(void *user);
    /* After every step of the optimizer; may be NULL. */
    void (*stepped)(void *user, const struct train_record *record);
    void *user;
};

struct trainer;

/* ERROR_NO_MEMORY says how much the job takes and how much there is. */
bool trainer_create(const struct trainer_options *options, struct trainer **out, struct error *err)
    __attribute__((warn_unused_result));
void trainer_destroy(struct trainer *trainer); /* NULL is fine */

enum trainer_phase { TRAINER_ENCODING, TRAINER_STEPPING, TRAINER_DONE };

/* One piece. After a failure the trainer can only be destroyed. */
bool trainer_advance(struct trainer *trainer, struct error *err)
    __attribute__((warn_unused_result));
enum trainer_phase trainer_get_phase(const struct trainer *trainer);

/* Whether the VAE, and a text encoder that is not trained, are still needed. */
bool trainer_encodes(const struct trainer *trainer);

/* Steps of the optimizer: done, and in all. */
int64_t trainer_step(const struct trainer *trainer);
int64_t trainer_steps(const struct trainer *trainer);

/* What it takes of the device, and for what is encoded of device, host and disk. */
struct trainer_memory {
    size_t parameters, optimizer, pass;
    struct encoded_memory encoded;
};
struct trainer_memory trainer_get_memory(const struct trainer *trainer);

/* Writes what is trained, as it is now, to a file that others load. */
bool trainer_save(struct trainer *trainer, const char *path, enum train_save_format format,
    const struct adapter_facts *facts, struct error *err) __attribute__((warn_unused_result));

/* The same of a full fine-tune (train/save_model.h): `checkpoint`, which was opened as `path`, with
 * what was trained, as `out`. */
bool trainer_save_model(struct trainer *trainer, struct checkpoint *checkpoint, const char *path,
    const char *out, struct error *err) __attribute__((warn_unused_result));

/* Writes FOLDER/checkpoint-STEP (train/checkpoint.h), at any time: what was done since the last
 * step of the optimizer is not in it. `facts` for the adapter beside it. */
bool trainer_checkpoint(struct trainer *trainer, const char *folder,
    const struct adapter_facts *facts, struct error *err) __attribute__((warn_unused_result));
/* Before the first piece: goes on from the checkpoint of the folder that resume_from_checkpoint
 * names, or from the last good one, if there is one. The steps to come are bit for bit those that
 * would have been. After a failure the trainer can only be
 * destroyed. */
bool trainer_resume(struct trainer *trainer, const char *folder, bool *resumed, struct error *err)
    __attribute__((warn_unused_result));

/* What is trained; the values that are to be saved: the average's where one is kept. In the
 * buffers' layout (train/parameters.h), host memory, borrowed until the next piece. A step that a
 * full fine-tune has begun begins anew after this, and after a checkpoint. */
const struct parameters *trainer_parameters(const struct trainer *trainer);
const float *trainer_values(struct trainer *trainer, struct error *err);

/* The average of the values in their place, and they in its: what is computed now is computed with
 * what would be saved. Once more, and everything is as it was, bit for bit; before the next piece,
 * and before anything is saved. Nothing happens where no average is kept. */
bool trainer_swap_average(struct trainer *trainer, struct error *err)
    __attribute__((warn_unused_result));

/* Whether pictures are held out, and a short piece of their loss (held_out.h): between two steps,
 * until it is done. Nothing of the training moves. */
bool trainer_holds_out(const struct trainer *trainer);
bool trainer_measure(struct trainer *trainer, bool *done, double *loss, struct error *err)
    __attribute__((warn_unused_result));

/* What has passed since the last step was not training's, and counts in no rate. */
void trainer_restart_clock(struct trainer *trainer);

/* Steps of the optimizer in an epoch. */
int64_t trainer_epoch_steps(const struct trainer *trainer);

#endif
