/* Maps a large file into memory.
 *
 * If another process truncates a mapped file, reading beyond its new end raises SIGBUS. Here such a
 * page reads as zeros instead, and file_map_intact reports it afterwards. So check file_map_intact
 * before trusting numbers read from a map.
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
    int fd;                   /* owned: for file_map_intact */
    struct timespec modified; /* modification time at opening */
    int slot;                 /* index in the SIGBUS handler's table */
};

/* Maps a regular file, read-only and private. The first call installs the SIGBUS handler; a SIGBUS
 * outside of the maps still ends the process. Thread-safe. */
bool file_map_open(const char *path, struct file_map *out, struct error *err)
    __attribute__((warn_unused_result));
/* Maps a file that is already open. Takes over `fd`, even on failure. `path` is only used in
 * messages. */
bool file_map_open_fd(int fd, const char *path, struct file_map *out, struct error *err)
    __attribute__((warn_unused_result));
/* Call it after file_map_open, whether that succeeded or not. */
void file_map_close(struct file_map *map);

/* Checks that the file has not changed since it was opened. If it has, fails with ERROR_IO: numbers
 * read from the map may be wrong. */
bool file_map_intact(const struct file_map *map, struct error *err)
    __attribute__((warn_unused_result));

/* Gives the pages read so far back to the system. The map stays valid: reading such a page again
 * fetches it from the page cache or the disk. */
void file_map_drop_pages(const struct file_map *map);

#endif
