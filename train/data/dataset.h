/* A data set: pictures with captions in a folder (scan.h lists the layouts). It is examined in full
 * before training, then read picture by picture.
 *
 * dataset_open reads and decodes every picture once, in several threads, so that broken or too
 * small pictures and missing captions are found before a job starts. After that a data set does not
 * change: the functions that take it as const may be called from any thread, and a file that has
 * changed since is an error. Pictures are ordered by path; nothing depends on the order in which
 * the system lists them, or on threads. */
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
    const char *root;           /* links must not lead out of this folder; NULL: anywhere */
    const char *image_column;   /* of the metadata; NULL: file_name */
    const char *caption_column; /* NULL: text or caption */
    const char *prompt; /* the caption of pictures without one; NULL: each must have its own */
    enum dataset_masks masks; /* FILES: NAME.mask.png, or the metadata's mask_file_name */
    struct bucket_options buckets;
    enum resize_filter filter;
    bool skip_broken;      /* leave broken pictures out; else they are an error */
    double held_out_share; /* share of the pictures, 0 to below 1, kept for a validation loss */
    uint64_t seed;         /* chooses which are held out, and which remain with max_pictures */
    int64_t max_pictures;  /* 0: all */
    int threads;           /* to examine the pictures with; 0: one */
    /* Only reads the headers of the files, which is quick. dataset_read then fails. */
    bool heads_only;
    /* The same, for a report only: nothing wrong with single pictures is an error. */
    bool report_only;
};

struct dataset_item {
    const char *path;            /* relative to the data set's folder */
    const char *const *captions; /* [caption_count], at least one */
    int caption_count;
    int width, height; /* px, in upright orientation */
    int bucket;        /* its index among the sizes, by width, then height */
    int repeats;       /* times per epoch */
    bool has_mask;
    struct digest content; /* of its file's bytes, and its mask's: equal files, equal pixels */
    struct placement placement;
};

/* Errors of a single file name it. */
bool dataset_open(const char *path, const struct dataset_options *options, struct dataset **out,
    struct error *err) __attribute__((warn_unused_result));
void dataset_destroy(struct dataset *dataset); /* NULL is fine */

/* All pictures, held out or not. */
size_t dataset_count(const struct dataset *dataset);
const struct dataset_item *dataset_item(const struct dataset *dataset, size_t index);

/* Pixels of all pictures examined, used or not, including masks: the cost of decoding them. */
uint64_t dataset_pixels(const struct dataset *dataset);

/* Indices of an epoch's pictures, with repeats; and of the pictures held out, once each. At least
 * one picture is never held out. */
const int32_t *dataset_samples(const struct dataset *dataset, size_t *count);
const int32_t *dataset_held_out(const struct dataset *dataset, size_t *count);

/* What was found: counts, bytes, sizes, buckets, captions, names of broken pictures, what was
 * skipped. A new reference; NULL when memory is short. */
json_t *dataset_report(const struct dataset *dataset);

/* Reads one picture, resized, cropped and mirrored: pixels [height][width][3] of its bucket's size
 * from -1 to 1, as torchvision's ToTensor and Normalize(0.5, 0.5) give them. mask: [height][width]
 * of 0 and 1, NULL if it is not wanted. */
bool dataset_read(const struct dataset *dataset, size_t index, const struct crop *crop,
    float *pixels, float *mask, struct error *err) __attribute__((warn_unused_result));

#endif
