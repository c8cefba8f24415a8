/* Files as wholes: reading a small one, replacing one safely. (Mapping: base/file_map.h). */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

/* Reads a regular file of at most `max_bytes`. *out is malloc'd with a NUL after its last byte (not
 * counted in *size). ERROR_NOT_FOUND, ERROR_TOO_LARGE or ERROR_IO names the path. */
bool file_read(const char *path, size_t max_bytes, char **out, size_t *size, struct error *err)
    __attribute__((warn_unused_result));

/* Opens a regular file for reading; its descriptor, or -1. */
int file_open_regular(const char *path, uint64_t *size, struct error *err)
    __attribute__((warn_unused_result));

struct file_part {
    const void *bytes;
    size_t size;
};
/* Writes the parts one after the other to a new file beside `path`, syncs it and renames it over
 * `path`: a reader sees the old file or the new one, whole. */
bool file_write(const char *path, const struct file_part *parts, size_t count, struct error *err)
    __attribute__((warn_unused_result));

/* Whether a regular file, or a folder, is there. */
bool file_exists(const char *path);
bool file_is_folder(const char *path);

/* "FOLDER/NAME", malloc'd; NULL when memory ran out. */
char *file_join(const char *folder, const char *name);

#endif
