/* The folder of data sets (--dataset-root): what is sent to the daemon is kept here, each data set
 * a folder of its own. Any thread may call any function.
 *
 * A data set appears whole or not at all: an archive is unpacked in a hidden folder beside, looked
 * at, and renamed. What a crash leaves behind of that is removed when the folder is opened next. */
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

/* max_bytes: of an archive, and of the files in it. */
bool dataset_store_open(const char *folder, uint64_t max_bytes, struct dataset_store **out,
    struct error *err) __attribute__((warn_unused_result));
void dataset_store_close(struct dataset_store *store); /* NULL is fine; no upload is left */

/* 1 to DATASET_NAME_MAX_BYTES letters, digits, '.', '_' and '-', the first a letter or digit. */
bool dataset_name_check(const char *param, const char *name, struct error *err)
    __attribute__((warn_unused_result));

/* A new reference to a sorted list of names. */
bool dataset_store_list(struct dataset_store *store, json_t **out, struct error *err)
    __attribute__((warn_unused_result));
/* dataset_report with the name, of the files' heads alone. ERROR_NOT_FOUND. */
bool dataset_store_describe(struct dataset_store *store, const char *name, json_t **out,
    struct error *err) __attribute__((warn_unused_result));
/* When it came, in seconds since 1970, and the bytes of all its files. ERROR_NOT_FOUND. */
bool dataset_store_measure(struct dataset_store *store, const char *name, int64_t *created_s,
    uint64_t *bytes, struct error *err) __attribute__((warn_unused_result));
/* ERROR_NOT_FOUND where there is none. Who reads it just then gets errors. */
bool dataset_store_delete(struct dataset_store *store, const char *name, struct error *err)
    __attribute__((warn_unused_result));

/* A tar archive on its way, `bytes` long (0: nobody said). ERROR_CONFLICT where the name is taken.
 */
bool dataset_upload_begin(struct dataset_store *store, const char *name, uint64_t bytes,
    struct dataset_upload **out, struct error *err) __attribute__((warn_unused_result));
bool dataset_upload_write(struct dataset_upload *upload, const void *bytes, size_t size,
    struct error *err) __attribute__((warn_unused_result));
/* Unpacks it and gives it its name; *report as dataset_store_describe. Ends the upload, also after
 * an error: then nothing is left. An archive of one folder is that folder. ERROR_CANCELLED once
 * `cancel` says so. */
bool dataset_upload_end(struct dataset_upload *upload, struct cancel cancel, json_t **report,
    struct error *err) __attribute__((warn_unused_result));
void dataset_upload_abort(struct dataset_upload *upload); /* NULL is fine */

#endif
