/* Shared by the readers of both metadata formats: collects rows and makes a struct metadata of
 * them. */
#ifndef TRAIN_DATA_METADATA_METADATA_ROWS_H
#define TRAIN_DATA_METADATA_METADATA_ROWS_H

#include "train/data/metadata/metadata.h"

/* One caption of a row, or a row without one. */
struct metadata_entry {
    const char *file_name, *mask_file_name, *caption; /* mask and caption may be NULL */
    size_t order, line;
};

struct metadata_rows {
    struct texts texts;
    struct metadata_entry *entries; /* owned */
    size_t count;
};

/* Adds a row: checks and copies its texts. `name_bytes` is 0 if the row has no name. */
bool metadata_rows_add(struct metadata_rows *rows, size_t line, const char *name, size_t name_bytes,
    const char *mask, size_t mask_bytes, const char *caption, size_t caption_bytes,
    struct error *err) __attribute__((warn_unused_result));
/* Moves all rows into *out. */
bool metadata_rows_end(struct metadata_rows *rows, struct metadata *out, struct error *err)
    __attribute__((warn_unused_result));
void metadata_rows_finish(struct metadata_rows *rows);

#endif
