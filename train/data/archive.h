/* A tar archive from outside (plain or gzip) into an empty folder, by libarchive. */
#ifndef TRAIN_DATA_ARCHIVE_H
#define TRAIN_DATA_ARCHIVE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Reads the archive from `fd`, where it stands, and writes its files and folders below `folder`, a
 * directory's descriptor. Nothing else is made: links, devices and what would lie outside are
 * refused by name, as are files that come twice, sparse ones, more than DATASET_FILES_MAX of them
 * and more than max_bytes in all. Hidden ones (.DS_Store, ._a.png) are left out. After an error the
 * folder holds a part. */
bool archive_extract(int fd, int folder, uint64_t max_bytes, struct error *err)
    __attribute__((warn_unused_result));

#endif
