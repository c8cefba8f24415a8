/* Threads that decode pictures before they are wanted. The reader announces the next pictures, and
 * reads all of its pictures through this interface. Announcements only affect when a picture is
 * decoded, never the result. If the reader asks for a picture that was not announced, it is decoded
 * at once, and all earlier announcements are forgotten.
 *
 * One thread announces and reads. Memory is bounded by two pictures per thread, and by
 * READ_AHEAD_BYTES (a single picture may exceed it). */
#ifndef TRAIN_DATA_READ_AHEAD_H
#define TRAIN_DATA_READ_AHEAD_H

#include "train/data/dataset.h"

struct read_ahead;

/* `threads` is at least 1; they start with the first announced picture. */
bool read_ahead_create(int threads, struct read_ahead **out, struct error *err)
    __attribute__((warn_unused_result));
/* Waits for the pictures that are being decoded. NULL is fine. */
void read_ahead_destroy(struct read_ahead *reader);

/* Returns the most memory that `threads` threads hold for pictures of up to `largest` bytes
 * each. */
size_t read_ahead_bytes(int threads, size_t largest);

/* Announces a picture, which will be read after the pictures announced before. Returns false if
 * there is no room for it now. The data set is borrowed until the picture is read or the reader
 * destroyed. */
bool read_ahead_expect(struct read_ahead *reader, const struct dataset *dataset, size_t index,
    const struct crop *crop, bool with_mask);
/* Returns whether there are announced pictures that were not read yet. */
bool read_ahead_expects(const struct read_ahead *reader);

/* Does what dataset_read does, with the picture decoded ahead if it was announced. */
bool read_ahead_read(struct read_ahead *reader, const struct dataset *dataset, size_t index,
    const struct crop *crop, float *pixels, float *mask, struct error *err)
    __attribute__((warn_unused_result));

#endif
