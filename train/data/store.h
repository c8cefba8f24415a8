/* The folder of uploaded data sets (--dataset-root), each in a folder of its own. Any thread may
 * call any function.
 *
 * A data set appears whole or not at all: an archive is unpacked in a hidden folder beside the
 * others, examined, and renamed. If a crash leaves a hidden folder behind, it is removed when the
 * store is opened again. */
#ifndef TRAIN_DATA_STORE_H
#define TRAIN_DATA_STORE_H

#include "base/cancel.h"
#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dataset_store;
struct dataset_upload;

/* Opens the store. max_bytes limits an archive, and all files in it together. */
bool dataset_store_open(const char *folder, uint64_t max_bytes, struct dataset_store **out,
    struct error *err) __attribute__((warn_unused_result));
void dataset_store_close(struct dataset_store *store); /* NULL is fine; all uploads have ended */

/* Checks a name: 1 to DATASET_NAME_MAX_BYTES letters, digits, '.', '_' and '-', beginning with a
 * letter or a digit. */
bool dataset_name_check(const char *param, const char *name, struct error *err)
    __attribute__((warn_unused_result));

/* Sets *out to a new reference to a sorted list of names. */
bool dataset_store_list(struct dataset_store *store, json_t **out, struct error *err)
    __attribute__((warn_unused_result));
/* Returns dataset_report with the data set's name, from the files' headers only. ERROR_NOT_FOUND if
 * there is none. */
bool dataset_store_describe(struct dataset_store *store, const char *name, json_t **out,
    struct error *err) __attribute__((warn_unused_result));
/* Returns the time of the upload, in seconds since 1970, and the size of all files in bytes.
 * ERROR_NOT_FOUND if there is no such data set. */
bool dataset_store_measure(struct dataset_store *store, const char *name, int64_t *created_s,
    uint64_t *bytes, struct error *err) __attribute__((warn_unused_result));
/* Deletes a data set; a job that is reading it gets errors. ERROR_NOT_FOUND if there is none. */
bool dataset_store_delete(struct dataset_store *store, const char *name, struct error *err)
    __attribute__((warn_unused_result));

/* Begins the upload of a tar archive of `bytes` bytes (0: unknown). ERROR_CONFLICT if the name is
 * taken. */
bool dataset_upload_begin(struct dataset_store *store, const char *name, uint64_t bytes,
    struct dataset_upload **out, struct error *err) __attribute__((warn_unused_result));
bool dataset_upload_write(struct dataset_upload *upload, const void *bytes, size_t size,
    struct error *err) __attribute__((warn_unused_result));
/* Unpacks the archive and makes it the data set; *report is that of dataset_store_describe. Ends
 * the upload, also after an error, which leaves nothing behind. If the archive contains a single
 * folder, that folder becomes the data set, unless the layout gives its name a meaning (train,
 * REPEATS_NAME). ERROR_CANCELLED if `cancel` asks for it. */
bool dataset_upload_end(struct dataset_upload *upload, struct cancel cancel, json_t **report,
    struct error *err) __attribute__((warn_unused_result));
void dataset_upload_abort(struct dataset_upload *upload); /* NULL is fine */

#endif
