/* Inside train/: a trainer, for who runs it (trainer.c) and who writes it down (trainer_state.c).
 */
#ifndef TRAIN_TRAINER_INTERNAL_H
#define TRAIN_TRAINER_INTERNAL_H

#include "train/batch.h"
#include "train/held_out.h"
#include "train/loss_scaler.h"
#include "train/optimizer.h"
#include "train/order.h"
#include "train/pass.h"
#include "train/trainer.h"

/* What moves on with every batch, as it was after the last step of the optimizer: a job goes on
 * from there, whatever was done of the next step. */
struct resume_point {
    struct noise_generator generator;
    struct mt19937 masks;
    int64_t epoch, batch;
    uint64_t passes;
};

struct trainer {
    struct trainer_options options;
    const struct train_config *config; /* options.config */
    struct noise_generator generator;
    struct mt19937 masks; /* Python's generator */
    bool inpainting;
    struct parameters *parameters; /* owned */
    struct optimizer optimizer;    /* owned */
    struct learning_rate schedule;
    struct loss_scaler scaler;
    float *average;               /* owned: [parameters->floats]; NULL without EMA */
    struct tape_parameter *taped; /* owned: [parameters_taped_count] */
    bool gradients_lost;          /* parameters_gather took their place */
    struct encoded *encoded;      /* owned */
    struct batch *pictures;       /* owned: the batch under way */
    struct held_out *held_out;    /* owned; NULL: no picture is */
    int32_t *buckets;             /* owned: of each picture, from 0 */
    int bucket_count;

    enum trainer_phase phase;
    int64_t steps, step; /* of the optimizer */
    int64_t epoch, batch, batches;
    struct order order; /* of this epoch */
    struct resume_point resume_point;

    struct pass *pass; /* owned; for `rows` pictures of height x width latents */
    int64_t rows, height, width;
    bool in_batch, in_pass; /* the second while the pass runs */
    float weights[TRAIN_PASS_ROWS_MAX], losses[TRAIN_PASS_ROWS_MAX];
    double loss; /* of the batches since the last step: their sum */
    int64_t loss_batches, images;
    double step_began_s;
    uint64_t dropout_seed, passes; /* begun so far; both read by the tape */
};

/* parameters_gather, after which the step that was begun begins anew. */
float *trainer_gather(struct trainer *trainer, struct error *err);

#endif
