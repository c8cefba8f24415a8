/* A data set: pictures with captions in a folder (scan.h lists the layouts). It is examined in full
 * before training, then read picture by picture.
 *
 * dataset_open reads and decodes every picture once, in several threads, so that broken or too
 * small pictures and missing captions are found before a job starts. After that a data set does not
 * change. The functions that take it as const may be called from any thread. If a file has changed
 * after dataset_open, reading it is an error. Pictures are ordered by path; nothing depends on the
 * order in which the system lists them, or on threads. */
#ifndef TRAIN_DATA_DATASET_H
#define TRAIN_DATA_DATASET_H

#include "base/sha256.h"
#include "pictures/resize.h"
#include "train/data/bucket.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct dataset;

enum dataset_masks { DATASET_MASKS_NONE, DATASET_MASKS_FILES };

/* The strings are borrowed for the call. */
struct dataset_options {
    const char *root;           /* links must stay inside this folder; NULL: anywhere */
    const char *image_column;   /* column of the metadata; NULL: file_name */
    const char *caption_column; /* NULL: text or caption */
    const char *prompt;         /* the caption for pictures without one; NULL: each needs its own */
    enum dataset_masks masks;   /* FILES: NAME.mask.png, or the metadata's mask_file_name */
    struct bucket_options buckets;
    enum resize_filter filter;
    bool skip_broken;      /* leave broken pictures out; false: an error */
    double held_out_share; /* share of the pictures, 0 to below 1, for a validation loss */
    uint64_t seed;         /* chooses the held-out pictures, and those of max_pictures */
    int64_t max_pictures;  /* 0: all */
    int threads;           /* number that examine pictures; 0: one */
    /* Only reads the headers of files, which is fast. dataset_read fails then. */
    bool heads_only;
    /* Like heads_only, but for a report: a fault in a single picture is not an error. */
    bool report_only;
};

struct dataset_item {
    const char *path;            /* relative to the data set's folder */
    const char *const *captions; /* [caption_count], at least one */
    int caption_count;
    int width, height; /* px, in upright orientation */
    int bucket;        /* its index among the sizes, by width, then height */
    int repeats;       /* uses per epoch */
    bool has_mask;
    struct digest content; /* of the bytes of file and mask: equal means equal pixels */
    struct placement placement;
};

/* Opens and examines a data set. An error in one file names the file. */
bool dataset_open(const char *path, const struct dataset_options *options, struct dataset **out,
    struct error *err) __attribute__((warn_unused_result));
void dataset_destroy(struct dataset *dataset); /* NULL is fine */

/* Counts all pictures, held out or not. */
size_t dataset_count(const struct dataset *dataset);
const struct dataset_item *dataset_item(const struct dataset *dataset, size_t index);

/* Returns the number of pixels of all examined pictures and masks, used or not: a measure of the
 * work to decode them. */
uint64_t dataset_pixels(const struct dataset *dataset);

/* dataset_samples returns the indices of an epoch's pictures, with repeats. dataset_held_out
 * returns the indices of the held-out pictures, each once. At least one picture is not held out. */
const int32_t *dataset_samples(const struct dataset *dataset, size_t *count);
const int32_t *dataset_held_out(const struct dataset *dataset, size_t *count);

/* Reports the data set: counts, bytes, sizes, buckets, captions, the names of broken pictures, and
 * skipped files. A new reference; NULL when memory is short. */
json_t *dataset_report(const struct dataset *dataset);

/* Reads one picture, resized, cropped and mirrored. `pixels` is [height][width][3] of the bucket's
 * size, from -1 to 1, as torchvision's ToTensor and Normalize(0.5, 0.5) give them. `mask` is
 * [height][width] of 0 and 1; NULL: not wanted. */
bool dataset_read(const struct dataset *dataset, size_t index, const struct crop *crop,
    float *pixels, float *mask, struct error *err) __attribute__((warn_unused_result));

#endif
