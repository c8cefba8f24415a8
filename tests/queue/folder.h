/* A temporary folder for a test, and the paths of a queue's files in it. */
#ifndef TESTS_QUEUE_FOLDER_H
#define TESTS_QUEUE_FOLDER_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FOLDER_BYTES 64

/* Uses a file system in memory if there is one: syncing to a disk is not tested. */
static inline void folder_make(char folder[FOLDER_BYTES]) {
    const bool memory = access("/dev/shm", W_OK) == 0;
    snprintf(folder, FOLDER_BYTES, "%s/queue-test-XXXXXX", memory ? "/dev/shm" : "/tmp");
    if (!mkdtemp(folder))
        perror(folder);
}

static inline const char *folder_path(const char *folder, const char *name) {
    static char path[FOLDER_BYTES + 64];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static inline void folder_remove(const char *folder) {
    static const char *const names[] = { "jobs.sqlite", "jobs.sqlite-journal", "lock" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unlink(folder_path(folder, names[i]));
    if (rmdir(folder) != 0)
        perror(folder);
}

#endif
