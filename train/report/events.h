/* TensorBoard's event files: a run's scalars and pictures, as its `tensorboard --logdir` reads
 * them.
 *
 * A file is a row of records: length (u64), its checksum, the bytes, theirs (all little-endian; the
 * checksum is CRC-32C, rotated and shifted as TFRecord says). The bytes are a tensorflow.Event in
 * protobuf's wire format; of it only what is written here is known here. */
#ifndef TRAIN_REPORT_EVENTS_H
#define TRAIN_REPORT_EVENTS_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

struct events;

/* A new file "events.out.tfevents.SECONDS.latentd.PID.NUMBER" in `folder`, which is there. What
 * earlier files of the folder say of steps after `resumed_step` is no longer shown (0: a new run).
 */
bool events_create(const char *folder, double wall_time_s, int64_t resumed_step,
    struct events **out, struct error *err) __attribute__((warn_unused_result));
void events_destroy(struct events *events); /* NULL is fine */

struct events_scalar {
    const char *tag;
    float value;
};
/* The values of one step. On failure the file ends behind its last whole record. */
bool events_add_scalars(struct events *events, double wall_time_s, int64_t step,
    const struct events_scalar *scalars, size_t count, struct error *err)
    __attribute__((warn_unused_result));

/* An RGB picture as the bytes of its PNG. */
struct events_picture {
    const char *tag;
    int height, width;
    const void *png;
    size_t size;
};
bool events_add_picture(struct events *events, double wall_time_s, int64_t step,
    const struct events_picture *picture, struct error *err) __attribute__((warn_unused_result));

#endif
