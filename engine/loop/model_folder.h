/* Finds the checkpoints below a folder by name. Clients give names, never paths. A diffusers folder
 * is named by its path below the root. A .safetensors file is named by its path without the ending,
 * or with it if a folder has the same name. A name is looked up among the checkpoints found, never
 * appended to a path. */
#ifndef ENGINE_LOOP_MODEL_FOLDER_H
#define ENGINE_LOOP_MODEL_FOLDER_H

#include "base/error.h"
#include "base/limits.h"

#include <stddef.h>
#include <stdint.h>

struct model_file {
    char *name; /* owned, UTF-8 */
    char *path; /* owned, UTF-8, relative to the root */
    bool is_folder;
    uint64_t bytes; /* size of its weight files */
    bool leads_out; /* contains a link out of the root, and is never opened */
};

struct model_files {
    struct model_file *items; /* owned; sorted by name */
    size_t count;
};

/* Lists the checkpoints below the root. Follows a link to a folder only if that folder is a
 * checkpoint. ERROR_TOO_LARGE above MODEL_FILES_MAX or MODEL_ENTRIES_MAX. The caller finishes *out
 * on success. */
bool model_files_list(const char *root, struct model_files *out, struct error *err)
    __attribute__((warn_unused_result));
void model_files_finish(struct model_files *files);
/* Returns NULL if there is no such name. The result is borrowed. */
const struct model_file *model_files_find(const struct model_files *files, const char *name);

/* Writes the path of the checkpoint called `name` to *path, malloc'd. ERROR_NOT_FOUND if there is
 * none. ERROR_INVALID if a link in it leads out of the root. */
bool model_folder_find(const char *root, const char *name, char **path, struct error *err)
    __attribute__((warn_unused_result));
/* Tells whether the checkpoint at `path` is a folder, and the size of its weight files. */
void model_folder_measure(const char *path, bool *is_folder, uint64_t *bytes);
/* Returns the name of the checkpoint at `path`, malloc'd; NULL if `path` is not a checkpoint below
 * the root. */
char *model_folder_name_of(const char *root, const char *path);

#endif
