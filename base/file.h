/* Reads a whole small file, or writes one safely. (Mapping large files: base/file_map.h.) */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

/* Reads a regular file of at most `max_bytes`. *out is malloc'd and has a NUL after its last byte,
 * which *size does not count. ERROR_NOT_FOUND, ERROR_TOO_LARGE or ERROR_IO names the path. */
bool file_read(const char *path, size_t max_bytes, char **out, size_t *size, struct error *err)
    __attribute__((warn_unused_result));

/* Reads like file_read, but from a file of unknown size, such as a FIFO. "-" is standard input. */
bool file_read_stream(const char *path, size_t max_bytes, char **out, size_t *size,
    struct error *err) __attribute__((warn_unused_result));

/* Opens a regular file for reading. Returns its descriptor, or -1 and sets `err`. */
int file_open_regular(const char *path, uint64_t *size, struct error *err)
    __attribute__((warn_unused_result));
/* Checks that `fd` is a regular file, and sets *size. `path` is for the message. */
bool file_is_regular(int fd, const char *path, uint64_t *size, struct error *err)
    __attribute__((warn_unused_result));

struct file_part {
    const void *bytes;
    size_t size;
};
/* Writes the parts one after the other to `path`.
 *
 * A regular file, or the target of a symbolic link, is replaced as a whole: the parts go to a new
 * file beside it, which is synced and renamed over it, so that a reader sees either the old or the
 * new file. The mode is kept, and so is the owner if that is allowed. A new file gets the mode that
 * the umask allows. A device, a FIFO, or a file in a folder that accepts no new files is written in
 * place. Writing to a FIFO waits for a reader. "-" and "/dev/stdout" are standard output. */
bool file_write(const char *path, const struct file_part *parts, size_t count, struct error *err)
    __attribute__((warn_unused_result));

/* Syncs the folder that contains a new file or folder, so that the new name survives a power
 * failure. file_write calls this itself. */
void file_sync_folder_of(const char *path);

/* Checks that file_write may succeed; ERROR_IO says why not. Changes nothing. */
bool file_check_writable(const char *path, struct error *err) __attribute__((warn_unused_result));

bool file_is_standard_output(const char *path);

/* Return whether a regular file, or a folder, exists. */
bool file_exists(const char *path);
bool file_is_folder(const char *path);

/* Sets *out to the free bytes of the folder's file system. */
bool file_free_bytes(const char *folder, uint64_t *out, struct error *err)
    __attribute__((warn_unused_result));

/* Removes the folder `name` in the open folder `at` (or AT_FDCWD) and everything in it. Follows no
 * links. Files that cannot be removed stay. */
void file_remove_tree(int at, const char *name);

/* Returns "FOLDER/NAME", malloc'd; NULL if there is no memory. */
char *file_join(const char *folder, const char *name);

#endif
