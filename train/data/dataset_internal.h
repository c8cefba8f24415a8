/* The internals of a data set, shared by the files that make, read and describe it. */
#ifndef TRAIN_DATA_DATASET_INTERNAL_H
#define TRAIN_DATA_DATASET_INTERNAL_H

#include "train/data/dataset.h"
#include "train/data/scan.h"

#include <pthread.h>

/* The memory budget that all decoders share. A decoder that needs more than is left waits until
 * others have finished. */
struct decode_budget {
    pthread_mutex_t mutex;
    pthread_cond_t freed;
    size_t used; /* of DATASET_DECODE_BYTES; a single picture may exceed it */
};

/* One picture of the folder, examined. */
struct dataset_picture {
    struct dataset_item item;
    const char *mask_path; /* NULL: no mask */
    uint64_t bytes;        /* of its file */
    char *broken;          /* owned: why it is broken; NULL: it is not */
};

struct dataset {
    struct scan_folder folder;
    struct scan scan;
    enum dataset_masks masks;
    enum resize_filter filter;
    struct bucket_options bucket_options;
    bool heads_only;
    struct dataset_picture *pictures; /* owned: [picture_count]; the used ones first */
    size_t picture_count, count;      /* count: pictures in use */
    struct bucket *buckets;           /* owned */
    int bucket_count;
    int32_t *samples, *held_out; /* owned */
    size_t sample_count, held_out_count;
    struct decode_budget *budget; /* owned; dataset_read changes it, even if const */
};

bool decode_budget_create(struct decode_budget **out, struct error *err)
    __attribute__((warn_unused_result));
void decode_budget_destroy(struct decode_budget *budget);

/* Sets the members that depend on a picture's files: size, bytes, content. Decodes the files unless
 * heads_only. */
bool dataset_examine(struct dataset *dataset, const struct scan_entry *entry,
    struct dataset_picture *picture, struct error *err) __attribute__((warn_unused_result));

#endif
