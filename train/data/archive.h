/* A tar archive from outside (plain or gzip) into an empty folder, by libarchive. */
#ifndef TRAIN_DATA_ARCHIVE_H
#define TRAIN_DATA_ARCHIVE_H

#include "base/cancel.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Reads the archive from `fd`, a regular file, from where it stands, and writes its files and
 * folders below `folder`, a directory's descriptor. Nothing else is made: links, devices and what
 * would lie outside are refused by name, as are files that come twice, sparse ones, more than
 * DATASET_FILES_MAX of them and more than max_bytes in all. Hidden ones (.DS_Store, ._a.png) are
 * left out.
 *
 * The archive is compressed once at most, and may not inflate to more than DATASET_INFLATES_TIMES
 * its bytes and DATASET_INFLATES_BYTES, whatever becomes of what is in it. `cancel` is asked before
 * each block that is read: then ERROR_CANCELLED. ERROR_NO_SPACE when the disk has no room
 * (base/disk_room.h). After an error the folder holds a part. */
bool archive_extract(int fd, int folder, uint64_t max_bytes, struct cancel cancel,
    struct error *err) __attribute__((warn_unused_result));

#endif
