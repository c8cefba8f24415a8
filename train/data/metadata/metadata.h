/* metadata.jsonl and metadata.csv: the pictures of a data set and their captions, as in Hugging
 * Face's imagefolder. A row has `file_name` (relative to the metadata's folder), and its caption in
 * `text` or `caption`. Both columns may be given other names. For inpainting a row may have
 * `mask_file_name`. In metadata.jsonl a caption may be a list of texts. A repeated file_name adds
 * captions. Other columns are ignored. */
#ifndef TRAIN_DATA_METADATA_METADATA_H
#define TRAIN_DATA_METADATA_METADATA_H

#include "train/data/texts.h"

struct metadata_row {
    const char *file_name, *mask_file_name; /* the second may be NULL */
    const char *const *captions;            /* [count]; "" is a caption, null is none */
    int count;
    size_t line; /* first line with this file_name, from 1 */
};

struct metadata {
    struct metadata_row *rows; /* owned; sorted by file_name's bytes, no repeats */
    size_t count;
    const char **captions; /* owned; the texts of all rows */
    struct texts texts;
};

/* The columns' names; NULL: the defaults. */
struct metadata_columns {
    const char *image, *caption;
};

/* Both functions fill in *out. After an error *out is zeroed, and the error names the line. File
 * names are only checked for their form: relative, below the folder. */
bool metadata_parse_jsonl(const char *file, size_t size, const struct metadata_columns *columns,
    struct metadata *out, struct error *err) __attribute__((warn_unused_result));
/* Reads CSV as in RFC 4180, with a header; lines end with CR LF or LF. An empty field without
 * quotes is no caption; "" is an empty caption. */
bool metadata_parse_csv(const char *file, size_t size, const struct metadata_columns *columns,
    struct metadata *out, struct error *err) __attribute__((warn_unused_result));
void metadata_finish(struct metadata *metadata);

/* Checks by its form that a path from a file or an archive stays below its base folder. The path
 * must be relative, with no "..", no empty or "." part, no NUL (in `length` bytes) and no control
 * characters. It must be UTF-8 of at most DATASET_PATH_MAX_BYTES. */
bool data_path_check(const char *path, size_t length, struct error *err)
    __attribute__((warn_unused_result));

#endif
