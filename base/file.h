/* Files as wholes: reading a small one, mapping a large one, replacing one safely. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

/* Reads a regular file of at most `max_bytes`. *out is malloc'd with a NUL after its last byte (not
 * counted in *size). ERROR_NOT_FOUND, ERROR_TOO_LARGE or ERROR_IO names the path. */
bool file_read(const char *path, size_t max_bytes, char **out, size_t *size, struct error *err)
    __attribute__((warn_unused_result));

/* A regular file mapped read-only and privately. Somebody who truncates it while it is mapped takes
 * the process down (SIGBUS): map weights only while they are being copied. */
struct file_map {
    const uint8_t *bytes; /* NULL if size is 0 */
    size_t size;
};
bool file_map_open(const char *path, struct file_map *out, struct error *err)
    __attribute__((warn_unused_result));
void file_map_close(struct file_map *map); /* a zeroed one is fine */
/* Gives the pages read so far back to the system. The map stays valid: reading them again fetches
 * them from the system's file cache, or from the disk. */
void file_map_drop_pages(const struct file_map *map);

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
