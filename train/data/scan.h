/* A data set's folder: its layout, and its pictures with their captions and masks, found by name
 * alone. Four layouts are recognised, in this order:
 *
 *   metadata.jsonl or metadata.csv   their rows (metadata.h)
 *   REPEATS_NAME/ folders            kohya's: each picture REPEATS times per epoch; NAME is the
 *                                    caption of those without a text file
 *   pictures                         a flat folder; a picture may have its caption in NAME.txt or
 *                                    NAME.caption
 *   train/                           one of the layouts above, inside train/ */
#ifndef TRAIN_DATA_SCAN_H
#define TRAIN_DATA_SCAN_H

#include "train/data/metadata/metadata.h"

#include <stdint.h>

/* Returns whether a file is a picture, judging by its name; false for masks. */
bool scan_is_picture(const char *name);

#define SCAN_NAMES_MAX 16 /* limit of the names in a report */

enum scan_layout { SCAN_METADATA_JSONL, SCAN_METADATA_CSV, SCAN_REPEATS, SCAN_FLAT };

/* A folder, and the root that must contain all files that are read. */
struct scan_folder {
    char *path; /* owned */
    char *root; /* owned, resolved; NULL: links may lead anywhere */
};

struct scan_entry {
    const char *path, *mask;     /* relative to the folder; mask NULL: none */
    const char *const *captions; /* [count] */
    int count, repeats;
};

struct scan {
    enum scan_layout layout;
    struct scan_entry *entries; /* owned; sorted by path */
    size_t count;
    const char *passed_over[SCAN_NAMES_MAX]; /* names of skipped files */
    size_t passed_over_count;                /* number of all skipped files */
    /* owned: the memory behind the members above */
    struct texts texts;
    struct metadata metadata;
    const char ***captions;
    size_t captions_count;
};

/* Opens a folder. `root` may be NULL. ERROR_NOT_FOUND if the folder does not exist, ERROR_INVALID
 * if it lies outside the root. Call scan_folder_finish also after an error. */
bool scan_folder_init(struct scan_folder *folder, const char *path, const char *root,
    struct error *err) __attribute__((warn_unused_result));
void scan_folder_finish(struct scan_folder *folder);

/* Opens a regular file of the folder by its relative path. Returns its descriptor, or -1.
 * ERROR_INVALID if a link leads out of the root, or if it is not a regular file. Thread-safe. */
int scan_open(const struct scan_folder *folder, const char *path, uint64_t *size, struct error *err)
    __attribute__((warn_unused_result));

struct scan_options {
    struct metadata_columns columns;
    const char *prompt; /* caption of pictures that have none; may be NULL */
    bool masks;         /* read NAME.mask.png; false: skip these files */
};

/* Fills in *out; call scan_finish also after an error. May change folder->path to train/. */
bool scan_read(struct scan_folder *folder, const struct scan_options *options, struct scan *out,
    struct error *err) __attribute__((warn_unused_result));
void scan_finish(struct scan *scan);

#endif
