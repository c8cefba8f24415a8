/* The loss of pictures that are held out of training. Each picture is used with its first caption,
 * cropped to the middle, and with several noises and timesteps. These are the same every time, so
 * that the losses of different steps can be compared. The loss is the plain mean squared error,
 * without dropout and without any weights.
 *
 * Only the thread that computes may call these functions. */
#ifndef TRAIN_EXAMPLES_HELD_OUT_H
#define TRAIN_EXAMPLES_HELD_OUT_H

#include "train/examples/batch.h"

#define HELD_OUT_DRAWS 4 /* pairs of noise and timestep per picture */

struct held_out_options {
    struct batch_options batch;
    struct pass_options pass; /* parameters, rows, height and width are ignored */
    uint64_t seed;
};

struct held_out;

/* Takes the memory for the pass of the largest picture. Everything that the options point to is
 * borrowed. */
bool held_out_create(const struct held_out_options *options, struct held_out **out,
    struct error *err) __attribute__((warn_unused_result));
void held_out_destroy(struct held_out *held_out);       /* NULL is fine */
size_t held_out_bytes(const struct held_out *held_out); /* device memory; NULL: 0 */

/* Does a short piece of work. When all is done, sets *done and *loss; the next piece then starts
 * again. */
bool held_out_advance(struct held_out *held_out, bool *done, double *loss, struct error *err)
    __attribute__((warn_unused_result));

#endif
