/* Threads that decode pictures before they are wanted. Whoever reads says which pictures come next,
 * and reads them all through this; what was said decides when a picture is decoded, never what is
 * read: one that nobody expected is decoded at once, and what was expected before it is forgotten.
 *
 * One thread says and reads. Memory is bounded: two pictures a thread, and READ_AHEAD_BYTES. */
#ifndef TRAIN_DATA_READ_AHEAD_H
#define TRAIN_DATA_READ_AHEAD_H

#include "train/data/dataset.h"

struct read_ahead;

/* At least one thread; they begin with the first picture that is expected. */
bool read_ahead_create(int threads, struct read_ahead **out, struct error *err)
    __attribute__((warn_unused_result));
/* Waits for pictures that are being read. NULL is fine. */
void read_ahead_destroy(struct read_ahead *reader);

/* What so many threads hold at most of pictures that take up to `largest` bytes each. */
size_t read_ahead_bytes(int threads, size_t largest);

/* A picture will be read after those that were said before. False: there is no room for it now.
 * The data set is borrowed until it is read, or the reader destroyed. */
bool read_ahead_expect(struct read_ahead *reader, const struct dataset *dataset, size_t index,
    const struct crop *crop, bool with_mask);
/* Whether any picture is expected and not yet read. */
bool read_ahead_expects(const struct read_ahead *reader);

/* As dataset_read. */
bool read_ahead_read(struct read_ahead *reader, const struct dataset *dataset, size_t index,
    const struct crop *crop, float *pixels, float *mask, struct error *err)
    __attribute__((warn_unused_result));

#endif
