/* A data set's folder: which layout it has, its pictures with their captions and masks, by name
 * alone. Four layouts are told apart, in this order:
 *
 *   metadata.jsonl or metadata.csv   their rows (metadata.h)
 *   REPEATS_NAME/ folders            kohya's: the pictures in them, so often an epoch; NAME is the
 *                                    caption of those without a text file
 *   pictures                         a flat folder, each with NAME.txt or NAME.caption, or without
 *   train/                           any of these in there
 */
#ifndef TRAIN_DATA_SCAN_H
#define TRAIN_DATA_SCAN_H

#include "train/data/metadata.h"

#include <stdint.h>

/* By its name: not a folder's, and no mask's. */
bool scan_is_picture(const char *name);

#define SCAN_NAMES_MAX 16 /* that a report lists of what was passed over */

enum scan_layout { SCAN_METADATA_JSONL, SCAN_METADATA_CSV, SCAN_REPEATS, SCAN_FLAT };

/* A folder, and the one that nothing read may lie outside of. */
struct scan_folder {
    char *path; /* owned */
    char *root; /* owned, resolved; NULL: links may lead anywhere */
};

struct scan_entry {
    const char *path, *mask;     /* relative to the folder; mask: NULL if there is none */
    const char *const *captions; /* [count] */
    int count, repeats;
};

struct scan {
    enum scan_layout layout;
    struct scan_entry *entries; /* owned; sorted by path */
    size_t count;
    const char *passed_over[SCAN_NAMES_MAX]; /* what is there and not read */
    size_t passed_over_count;                /* all of them */
    /* owned: what the above points to */
    struct texts texts;
    struct metadata metadata;
    const char ***captions;
    size_t captions_count;
};

/* `root` may be NULL. ERROR_NOT_FOUND where there is no such folder, ERROR_INVALID where it lies
 * outside of the root. scan_folder_finish also after an error. */
bool scan_folder_init(struct scan_folder *folder, const char *path, const char *root,
    struct error *err) __attribute__((warn_unused_result));
void scan_folder_finish(struct scan_folder *folder);

/* A regular file of the folder, by its relative path: the descriptor, or -1. A link that leads out
 * of the root is ERROR_INVALID, as is what is no file. Thread-safe. */
int scan_open(const struct scan_folder *folder, const char *path, uint64_t *size, struct error *err)
    __attribute__((warn_unused_result));

struct scan_options {
    struct metadata_columns columns;
    const char *prompt; /* of pictures without a caption; may be NULL */
    bool masks;         /* read NAME.mask.png; else they are passed over */
};

/* Fills *out; scan_finish also after an error. May move folder->path to train/. */
bool scan_read(struct scan_folder *folder, const struct scan_options *options, struct scan *out,
    struct error *err) __attribute__((warn_unused_result));
void scan_finish(struct scan *scan);

#endif
