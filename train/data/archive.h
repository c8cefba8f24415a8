/* Unpacks an uploaded tar archive (plain or gzip) into an empty folder, with libarchive. */
#ifndef TRAIN_DATA_ARCHIVE_H
#define TRAIN_DATA_ARCHIVE_H

#include "base/cancel.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Reads the archive from `fd`, a regular file, from its current offset, and writes its files and
 * folders below `folder`, the descriptor of a directory. Nothing else is created. Links, devices
 * and paths that lead outside are refused by name, as are duplicate files, sparse files, more than
 * DATASET_FILES_MAX files and more than max_bytes in all. Hidden files (.DS_Store, ._a.png) are
 * skipped.
 *
 * The archive may be compressed at most once, and may inflate to at most DATASET_INFLATES_TIMES its
 * size plus DATASET_INFLATES_BYTES, including what is skipped. `cancel` is checked before each
 * block that is read. If it asks for it, the call ends with ERROR_CANCELLED. ERROR_NO_SPACE if the
 * disk has no room (base/disk_room.h). After an error the folder may hold part of the files. */
bool archive_extract(int fd, int folder, uint64_t max_bytes, struct cancel cancel,
    struct error *err) __attribute__((warn_unused_result));

#endif
