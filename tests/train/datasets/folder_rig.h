/* Folders of a test's own, filled with recorded pictures and with texts. */
#ifndef TESTS_TRAIN_DATASETS_FOLDER_RIG_H
#define TESTS_TRAIN_DATASETS_FOLDER_RIG_H

#include <stdbool.h>
#include <stddef.h>

/* Makes a folder; pictures come from `pictures`. One at a time. */
void rig_begin(const char *pictures);
/* Removes it and all in it. */
void rig_end(void);

/* All paths below are relative to the folder; folders on the way are made. */
const char *rig_path(const char *path); /* absolute; valid until the fourth next call */
void rig_write(const char *path, const void *bytes, size_t size);
void rig_text(const char *path, const char *text);
void rig_picture(const char *path, const char *picture); /* a copy of a recorded one */
void rig_link(const char *path, const char *target);
void rig_fifo(const char *path);

#endif
