/* Pictures with captions to train on: a folder (scan.h says of which layouts), looked at in full
 * before training, then read picture by picture.
 *
 * dataset_open reads and decodes every picture once, in several threads, so that what is broken,
 * too small or without a caption is known before a job starts. After that a data set does not
 * change: all functions that take it as const may be called from any thread, and a file that was
 * changed since is an error. The order of pictures is that of their paths; nothing depends on the
 * order in which the system lists them, nor on threads.
 */
#ifndef TRAIN_DATA_DATASET_H
#define TRAIN_DATA_DATASET_H

#include "base/sha256.h"
#include "train/data/bucket.h"
#include "pictures/resize.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct dataset;

enum dataset_masks { DATASET_MASKS_NONE, DATASET_MASKS_FILES };

/* What the texts point to is borrowed for the call. */
struct dataset_options {
    const char *root;           /* links may not lead out of this folder; NULL: anywhere */
    const char *image_column;   /* of metadata; NULL: file_name */
    const char *caption_column; /* NULL: text or caption */
    const char *prompt;         /* the caption of pictures without; NULL: each must have its own */
    enum dataset_masks masks;   /* FILES: NAME.mask.png, or the metadata's mask_file_name */
    struct bucket_options buckets;
    enum resize_filter filter;
    bool skip_broken;      /* leave broken pictures out; else they are an error */
    double held_out_share; /* of the pictures, from 0 to below 1: kept for a validation loss */
    uint64_t seed;         /* of which are held out, and which stay of max_pictures */
    int64_t max_pictures;  /* 0: all */
    int threads;           /* to look at them with; 0: one */
    /* Only the files' heads are read: what is quickly seen. Such a data set cannot be read from. */
    bool heads_only;
    /* The same for a report alone: nothing that is wrong with single pictures is an error. */
    bool report_only;
};

struct dataset_item {
    const char *path;            /* relative to the data set's folder */
    const char *const *captions; /* [caption_count], at least one */
    int caption_count;
    int width, height; /* px, the right way up */
    int bucket;        /* an index for dataset_bucket */
    int repeats;       /* an epoch */
    bool has_mask;
    struct digest content; /* of its file's bytes, and its mask's: equal files, equal pixels */
    struct placement placement;
};

/* ERROR_INVALID and the like name the file. */
bool dataset_open(const char *path, const struct dataset_options *options, struct dataset **out,
    struct error *err) __attribute__((warn_unused_result));
void dataset_destroy(struct dataset *dataset); /* NULL is fine */

/* The pictures, held out or not. */
size_t dataset_count(const struct dataset *dataset);
const struct dataset_item *dataset_item(const struct dataset *dataset, size_t index);

/* Sizes that the pictures come to, by width, then height; without buckets there is one. */
int dataset_bucket_count(const struct dataset *dataset);
struct bucket dataset_bucket(const struct dataset *dataset, int index);

/* Of all that were looked at, used or not, masks included: what decoding them comes to. */
uint64_t dataset_pixels(const struct dataset *dataset);

/* The indices of an epoch's pictures, each as often as it is repeated, and of those that are held
 * out, once each. At least one is never held out. */
const int32_t *dataset_samples(const struct dataset *dataset, size_t *count);
const int32_t *dataset_held_out(const struct dataset *dataset, size_t *count);

/* What was found: counts, bytes, sizes, buckets, captions, broken pictures by name, what was passed
 * over. A new reference; NULL when memory is short. */
json_t *dataset_report(const struct dataset *dataset);

/* One picture, resized, cut and turned: pixels [height][width][3] of its bucket's size from -1 to
 * 1, as torchvision's ToTensor and Normalize(0.5, 0.5) give them. mask: [height][width] of 0 and 1,
 * NULL if it is not wanted. */
bool dataset_read(const struct dataset *dataset, size_t index, const struct crop *crop,
    float *pixels, float *mask, struct error *err) __attribute__((warn_unused_result));

#endif
