/* metadata.jsonl and metadata.csv: which pictures a data set has, and their captions, as Hugging
 * Face's imagefolder has them. A row has `file_name` (relative to the metadata's folder) and its
 * caption in `text` or `caption`, or both in the columns that are asked for, and, for inpainting,
 * may have `mask_file_name`. A caption of metadata.jsonl may be a list of texts. A file_name that
 * comes again adds captions. Other columns are passed over.
 */
#ifndef TRAIN_DATA_METADATA_H
#define TRAIN_DATA_METADATA_H

#include "train/data/texts.h"

struct metadata_row {
    const char *file_name, *mask_file_name; /* the second may be NULL */
    const char *const *captions;            /* [count]; "" counts, null and no value do not */
    int count;
    size_t line; /* where the file_name came first; lines count from 1 */
};

struct metadata {
    struct metadata_row *rows; /* owned; by file_name's bytes, each once */
    size_t count;
    const char **captions; /* owned; of all rows */
    struct texts texts;
};

/* The columns' names; NULL: the usual ones. */
struct metadata_columns {
    const char *image, *caption;
};

/* Both fill *out, or leave it zeroed after an error, which names the line. File names are checked
 * by their look alone: relative, below the folder. */
bool metadata_parse_jsonl(const char *file, size_t size, const struct metadata_columns *columns,
    struct metadata *out, struct error *err) __attribute__((warn_unused_result));
/* RFC 4180 with a header, lines ending with CR LF or LF. An empty field without quotes is no
 * caption, "" is an empty one. */
bool metadata_parse_csv(const char *file, size_t size, const struct metadata_columns *columns,
    struct metadata *out, struct error *err) __attribute__((warn_unused_result));
void metadata_finish(struct metadata *metadata);

/* Whether a path from a file or an archive stays below the folder that it is relative to, by its
 * look: not absolute, no "..", no empty or "." part, no NUL (`length` bytes), UTF-8, no control
 * characters, at most DATASET_PATH_MAX_BYTES. */
bool data_path_check(const char *path, size_t length, struct error *err)
    __attribute__((warn_unused_result));

#endif
