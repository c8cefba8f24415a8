/* Files as wholes: reading a small one, writing one safely. (Mapping: base/file_map.h). */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

/* Reads a regular file of at most `max_bytes`. *out is malloc'd with a NUL after its last byte (not
 * counted in *size). ERROR_NOT_FOUND, ERROR_TOO_LARGE or ERROR_IO names the path. */
bool file_read(const char *path, size_t max_bytes, char **out, size_t *size, struct error *err)
    __attribute__((warn_unused_result));

/* As file_read for what has no size before its end, a FIFO for one; "-" is standard input. */
bool file_read_stream(const char *path, size_t max_bytes, char **out, size_t *size,
    struct error *err) __attribute__((warn_unused_result));

/* Opens a regular file for reading; its descriptor, or -1. */
int file_open_regular(const char *path, uint64_t *size, struct error *err)
    __attribute__((warn_unused_result));
/* Whether `fd` is a regular file's, and how long it is. `path` is for the message. */
bool file_is_regular(int fd, const char *path, uint64_t *size, struct error *err)
    __attribute__((warn_unused_result));

struct file_part {
    const void *bytes;
    size_t size;
};
/* Writes the parts one after the other to `path`.
 *
 * A file, or what a symbolic link leads to, is replaced as a whole: the parts go to a new file
 * beside it, which is synced and renamed over it, so that a reader sees the old file or the new
 * one. It keeps its mode and, where that is allowed, its owner; a new one gets the mode that the
 * umask leaves. A device, a FIFO, or a file in a folder that takes no new ones, is written through,
 * which waits for a FIFO's reader. "-" and "/dev/stdout" are standard output. */
bool file_write(const char *path, const struct file_part *parts, size_t count, struct error *err)
    __attribute__((warn_unused_result));

/* Has the disk keep the name of a file or folder that has just been made, in the folder that it is
 * in; file_write does so by itself. */
void file_sync_folder_of(const char *path);

/* Whether file_write has a chance, found out now: ERROR_IO says why not. Leaves everything as it
 * is. */
bool file_check_writable(const char *path, struct error *err) __attribute__((warn_unused_result));

bool file_is_standard_output(const char *path);

/* Whether a regular file, or a folder, is there. */
bool file_exists(const char *path);
bool file_is_folder(const char *path);

/* That may still be written to the file system on which the folder lies. */
bool file_free_bytes(const char *folder, uint64_t *out, struct error *err)
    __attribute__((warn_unused_result));

/* Removes the folder `name` of the open folder `at` (AT_FDCWD is one), and all in it, following no
 * link. What cannot be removed is left. */
void file_remove_tree(int at, const char *name);

/* "FOLDER/NAME", malloc'd; NULL when memory ran out. */
char *file_join(const char *folder, const char *name);

#endif
