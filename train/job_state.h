/* A running LoRA job as a checkpoint (train/checkpoint.h): all that a step changes, so that a job
 * goes on from it bit for bit.
 *
 * The factors, the optimizer's states and its count of steps, the average, the generator, the loss
 * scale, and where in which epoch it is. What follows from the job's configuration is not in it;
 * the configuration's JSON is, and a job that asks for something else does not go on from it. */
#ifndef TRAIN_JOB_STATE_H
#define TRAIN_JOB_STATE_H

#include "train/config.h"
#include "train/loss_scaler.h"
#include "train/optimizer.h"

/* All borrowed: written from, or read into. */
struct job_state {
    const struct train_config *config;
    struct optimizer *optimizer; /* and its parameters */
    float *average;              /* host memory, as many as the parameters; NULL without use_ema */
    struct noise_generator *generator;
    struct loss_scaler *scaler;
    int64_t *step, *epoch, *batch; /* of the optimizer; the next batch of which epoch */
    uint64_t *passes;              /* batches so far: what dropout draws by */
};

/* Between two optimizer steps, when all gradients are zero. `beside` as in checkpoint_write; the
 * configuration says how many checkpoints stay. */
bool job_state_write(const char *folder, const struct job_state *state,
    bool (*beside)(void *user, const char *folder, struct error *err), void *user,
    struct error *err) __attribute__((warn_unused_result));

/* Goes on as resume_from_checkpoint asks: "latest" is the last good checkpoint in `folder`, which
 * may have none; else the folder of one, a name in `folder`. *resumed: there was one. After a
 * failure the state is to be made anew. ERROR_INVALID names what about the job is not as it was. */
bool job_state_read(const char *folder, const struct job_state *state, bool *resumed,
    struct error *err) __attribute__((warn_unused_result));

#endif
