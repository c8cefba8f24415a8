/* The loss of pictures that are held out of training: each of them with its first caption, in the
 * middle, with several noises and timesteps that are the same every time, so that numbers of
 * different steps compare. It is the mean squared error alone, without dropout and without weights
 * of any kind.
 *
 * One thread at a time, the one that computes. */
#ifndef TRAIN_HELD_OUT_H
#define TRAIN_HELD_OUT_H

#include "train/batch.h"

#define HELD_OUT_DRAWS 4 /* noises and timesteps of each picture */

struct held_out_options {
    struct batch_options batch;
    struct pass_options pass; /* its parameters, rows, height and width are not read */
    uint64_t seed;
};

struct held_out;

/* Takes the memory of the largest picture's pass. What the options point to is borrowed. */
bool held_out_create(const struct held_out_options *options, struct held_out **out,
    struct error *err) __attribute__((warn_unused_result));
void held_out_destroy(struct held_out *held_out);       /* NULL is fine */
size_t held_out_bytes(const struct held_out *held_out); /* of the device; NULL: 0 */

/* A short piece. *done: *loss is there, and the next piece begins anew. */
bool held_out_advance(struct held_out *held_out, bool *done, double *loss, struct error *err)
    __attribute__((warn_unused_result));

#endif
