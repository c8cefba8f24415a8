/* Maps a large file into memory.
 *
 * Mapped memory has a trap: if somebody truncates the file, reading beyond its new end raises
 * SIGBUS. Here such a page reads as zeros instead, and file_map_intact reports it afterwards. So
 * check file_map_intact before trusting numbers read from a map.
 */
#ifndef BASE_FILE_MAP_H
#define BASE_FILE_MAP_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct file_map {
    const uint8_t *bytes; /* NULL if size is 0 */
    size_t size;
    int fd;                   /* owned; the mapped file, for file_map_intact */
    struct timespec modified; /* when it was opened */
    int slot;                 /* in the table that the SIGBUS handler reads */
};

/* Maps a regular file read-only and privately. Installs the SIGBUS handler at the first call; a
 * SIGBUS elsewhere still ends the process. Thread-safe. */
bool file_map_open(const char *path, struct file_map *out, struct error *err)
    __attribute__((warn_unused_result));
/* The same for an open file. Takes over `fd`, also on failure; `path` is for messages. */
bool file_map_open_fd(int fd, const char *path, struct file_map *out, struct error *err)
    __attribute__((warn_unused_result));
/* Call it on whatever file_map_open filled, after success or failure. */
void file_map_close(struct file_map *map);

/* Checks that the file is unchanged since it was opened, so that what was read is what it held;
 * ERROR_IO if not. */
bool file_map_intact(const struct file_map *map, struct error *err)
    __attribute__((warn_unused_result));

/* Returns the pages read so far to the system. The map stays valid: reading a page again fetches it
 * from the page cache or the disk. */
void file_map_drop_pages(const struct file_map *map);

#endif
