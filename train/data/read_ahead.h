/* Threads that read pictures of a data set before they are needed. One thread asks for pictures and
 * takes them in the order in which it asked, whatever the threads do when; at most `ahead` are
 * asked for and not yet taken, which bounds the memory. */
#ifndef TRAIN_DATA_READ_AHEAD_H
#define TRAIN_DATA_READ_AHEAD_H

#include "train/data/dataset.h"

struct read_ahead;

/* `dataset` is borrowed and outlives it. threads and ahead are at least 1. */
bool read_ahead_create(const struct dataset *dataset, int threads, int ahead,
    struct read_ahead **out, struct error *err) __attribute__((warn_unused_result));
/* Waits for pictures that are being read. NULL is fine. */
void read_ahead_destroy(struct read_ahead *reader);

/* How many more can be asked for now. */
int read_ahead_room(const struct read_ahead *reader);
/* Asks for a picture; only where there is room. */
void read_ahead_ask(
    struct read_ahead *reader, size_t index, const struct crop *crop, bool with_mask);

/* Whether the next one to take is there. */
bool read_ahead_ready(struct read_ahead *reader);
/* The picture that was asked for first: waits for it, and copies it (dataset_read says what). mask:
 * NULL if it was not asked for. False with what was wrong; it is taken all the same. Only where one
 * was asked for. */
bool read_ahead_take(struct read_ahead *reader, float *pixels, float *mask, struct error *err)
    __attribute__((warn_unused_result));

#endif
