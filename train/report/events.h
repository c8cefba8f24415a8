/* TensorBoard's event files: the scalars and pictures of a run, for `tensorboard --logdir`.
 *
 * A file is a sequence of records: length (u64), its checksum, the bytes, their checksum (all
 * little-endian; the checksum is CRC-32C, rotated and shifted as in TFRecord). The bytes are a
 * tensorflow.Event in protobuf's wire format; only the fields written here are implemented. */
#ifndef TRAIN_REPORT_EVENTS_H
#define TRAIN_REPORT_EVENTS_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

struct events;

/* Creates a file "events.out.tfevents.SECONDS.latentd.PID.NUMBER" in the existing `folder`. It
 * makes TensorBoard hide the steps after `resumed_step` (0: a new run) in the folder's earlier
 * files. */
bool events_create(const char *folder, double wall_time_s, int64_t resumed_step,
    struct events **out, struct error *err) __attribute__((warn_unused_result));
void events_destroy(struct events *events); /* NULL is fine */

struct events_scalar {
    const char *tag;
    float value;
};
/* Writes the values of one step. After a failure the file ends after its last whole record. */
bool events_add_scalars(struct events *events, double wall_time_s, int64_t step,
    const struct events_scalar *scalars, size_t count, struct error *err)
    __attribute__((warn_unused_result));

/* An RGB picture as PNG bytes. */
struct events_picture {
    const char *tag;
    int height, width;
    const void *png;
    size_t size;
};
bool events_add_picture(struct events *events, double wall_time_s, int64_t step,
    const struct events_picture *picture, struct error *err) __attribute__((warn_unused_result));

#endif
