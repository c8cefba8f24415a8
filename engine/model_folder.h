/* The checkpoints below a folder, by name: what a client may ask for instead of a path. A diffusers
 * folder goes by its path below the root, a .safetensors file by that without its ending (with it,
 * where a folder has the name). Names are looked up among those that are there, never put together
 * with a path. */
#ifndef ENGINE_MODEL_FOLDER_H
#define ENGINE_MODEL_FOLDER_H

#include "base/error.h"
#include "base/limits.h"

#include <stddef.h>
#include <stdint.h>

struct model_file {
    char *name; /* owned, UTF-8, as the next */
    char *path; /* below the root */
    bool is_folder;
    uint64_t bytes; /* of its weight files */
    bool leads_out; /* a link in it leads out of the root: it is not opened */
};

struct model_files {
    struct model_file *items; /* owned; by name */
    size_t count, capacity;
};

/* Reads the root. Links to folders are followed to a checkpoint only. ERROR_TOO_LARGE past
 * MODEL_FILES_MAX or MODEL_ENTRIES_MAX. Finished by the caller on success. */
bool model_files_list(const char *root, struct model_files *out, struct error *err)
    __attribute__((warn_unused_result));
void model_files_finish(struct model_files *files);
/* NULL if there is no such name; borrowed. */
const struct model_file *model_files_find(const struct model_files *files, const char *name);

/* The path of the one called `name`, malloc'd. ERROR_NOT_FOUND if there is none, ERROR_INVALID if
 * it leads out of the root. */
bool model_folder_find(const char *root, const char *name, char **path, struct error *err)
    __attribute__((warn_unused_result));
/* Whether the checkpoint at `path` is a folder, and the bytes of its weight files. */
void model_folder_measure(const char *path, bool *is_folder, uint64_t *bytes);
/* The name of the checkpoint at `path`, malloc'd; NULL if it is not below the root. */
char *model_folder_name_of(const char *root, const char *path);

#endif
