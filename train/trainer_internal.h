/* Private to train/: the struct of a trainer, shared by trainer.c, which runs it, and
 * trainer_state.c, which saves it. */
#ifndef TRAIN_TRAINER_INTERNAL_H
#define TRAIN_TRAINER_INTERNAL_H

#include "train/examples/batch.h"
#include "train/examples/held_out.h"
#include "train/examples/order.h"
#include "train/optimizer/loss_scaler.h"
#include "train/optimizer/optimizer.h"
#include "train/pass.h"
#include "train/ranks/round.h"
#include "train/trainer.h"

/* The state that changes with every batch, as it was after the last optimizer step. A job resumes
 * from here; work done on the next step is lost. */
struct resume_point {
    struct noise_generator generator;
    struct mt19937 masks;
    int64_t epoch, batch;
    uint64_t passes;
};

struct trainer {
    struct trainer_options options;
    const struct train_config *config; /* the same as options.config */
    struct noise_generator generator;
    struct mt19937 masks; /* Python's generator */
    bool inpainting;
    struct parameters *parameters; /* owned */
    struct optimizer optimizer;    /* owned */
    struct learning_rate schedule;
    struct loss_scaler scaler;
    float *average;               /* owned: [parameters->floats]; NULL without EMA */
    struct tape_parameter *taped; /* owned: [parameters_taped_count] */
    bool gradients_lost;          /* parameters_gather overwrote them */
    struct shuffle_options shuffle;
    struct encoded *encoded;   /* owned */
    struct batch *pictures;    /* owned: the batch in progress */
    struct held_out *held_out; /* owned; NULL: no pictures are held out */
    int32_t *buckets;          /* owned: the bucket of each picture, from 0 */
    int bucket_count;

    enum trainer_phase phase;
    int64_t steps, step; /* optimizer steps: total, and done */
    /* options.multiplied_by, or if that says nothing, the number of the checkpoint that the job
     * went on from. */
    int64_t multiplied_by;
    int64_t epoch, batch, batches;
    struct order order; /* of this epoch */
    struct resume_point resume_point;

    struct pass *pass; /* owned; for `rows` pictures of height x width latents */
    int64_t rows, height, width;
    bool in_batch, in_pass; /* batch_begin, pass_begin were called */
    float weights[TRAIN_PASS_ROWS_MAX], losses[TRAIN_PASS_ROWS_MAX];
    struct round round; /* of the ranks; owned; zeroed if there is one process */
    double own_loss;    /* of this rank's micro-batch in the current round */
    int64_t own_rows;   /* 0: it has none */
    double loss;        /* sum over the batches since the last step */
    int64_t loss_batches, images;
    double step_began_s;
    uint64_t dropout_seed, passes; /* read by the tape; passes: begun so far */
};

/* Does what parameters_gather does. If that overwrites the gradients, a step in progress starts
 * again. */
float *trainer_gather(struct trainer *trainer, struct error *err);

#endif
