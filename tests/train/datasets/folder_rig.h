/* Temporary folders for tests, filled with recorded pictures and with texts. */
#ifndef TESTS_TRAIN_DATASETS_FOLDER_RIG_H
#define TESTS_TRAIN_DATASETS_FOLDER_RIG_H

#include <stdbool.h>
#include <stddef.h>

/* Makes a folder; rig_picture copies from `pictures`. Only one folder at a time. */
void rig_begin(const char *pictures);
/* Removes the folder with its contents. */
void rig_end(void);

/* All paths below are relative to the folder. Missing folders of a path are made. */
const char *rig_path(const char *path); /* absolute; valid for the next three calls */
void rig_write(const char *path, const void *bytes, size_t size);
void rig_text(const char *path, const char *text);
void rig_picture(const char *path, const char *picture); /* copies a recorded picture */
void rig_link(const char *path, const char *target);
void rig_fifo(const char *path);

#endif
