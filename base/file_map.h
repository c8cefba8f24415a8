/* A large file as memory.
 *
 * Memory that maps a file has a trap: where somebody cuts the file short, reading behind its new
 * end raises SIGBUS. Here such a page reads as zeros instead, and file_map_intact tells afterwards;
 * so whoever has taken numbers out of a map asks it before trusting them.
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
    int fd;                   /* owned; of the mapped file, for file_map_intact */
    struct timespec modified; /* at opening */
    int slot;                 /* in the table that the SIGBUS handler reads */
};

/* Maps a regular file read-only and privately. Installs the SIGBUS handler at the first call; a
 * SIGBUS elsewhere still ends the process. Thread-safe. */
bool file_map_open(const char *path, struct file_map *out, struct error *err)
    __attribute__((warn_unused_result));
/* The same of a file that is open: `fd` is taken over, also on failure; `path` is for messages. */
bool file_map_open_fd(int fd, const char *path, struct file_map *out, struct error *err)
    __attribute__((warn_unused_result));
/* On what file_map_open filled, successfully or not. */
void file_map_close(struct file_map *map);

/* Whether the file is still as it was at opening, so that all that was read is what it held; else
 * ERROR_IO. */
bool file_map_intact(const struct file_map *map, struct error *err)
    __attribute__((warn_unused_result));

/* Gives the pages read so far back to the system. The map stays valid: reading them again fetches
 * them from the system's file cache, or from the disk. */
void file_map_drop_pages(const struct file_map *map);

#endif
