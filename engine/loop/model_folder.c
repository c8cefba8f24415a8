#include "engine/loop/model_folder.h"

#include "base/file.h"
#include "base/list.h"
#include "base/text/utf8.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SUFFIX ".safetensors"
#define CHECKPOINT_DEPTH 2 /* of a diffusers folder: components, then their files */

/* One scan of the root. */
struct reading {
    const char *root;    /* as given */
    char real[PATH_MAX]; /* root with links resolved */
    size_t entries;
    struct model_files *files;
    struct error *err;
};

static bool no_memory(struct error *err) {
    return error_set(err, ERROR_NO_MEMORY, "no memory for the list of checkpoints");
}

static bool has_suffix(const char *name) {
    const size_t length = strlen(name), suffix = strlen(SUFFIX);
    return length > suffix && strcmp(name + length - suffix, SUFFIX) == 0;
}

/* Accepts printable names only, because names appear in listings and requests. */
static bool is_name(const char *name) {
    const size_t length = strlen(name);
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return false;
    return length <= MODEL_NAME_MAX_BYTES && utf8_valid_bytes(name, length) == length;
}

static bool is_inside(const char *real_root, const char *path) {
    char real[PATH_MAX];
    const size_t length = strlen(real_root);
    return realpath(path, real) && strncmp(real, real_root, length) == 0 &&
           (real[length] == '/' || real[length] == 0 ||
               (length > 0 && real_root[length - 1] == '/'));
}

/* Whether every link in the folder leads to a place below the root. *bytes: size of the weight
 * files. */
static bool stays_inside(struct reading *r, const char *folder, int depth, uint64_t *bytes) {
    DIR *stream = opendir(folder);
    bool inside = true;
    const struct dirent *entry;
    while (stream && inside && (entry = readdir(stream))) {
        struct stat own, st;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char *path = file_join(folder, entry->d_name);
        inside = path && ++r->entries <= MODEL_ENTRIES_MAX;
        if (inside && lstat(path, &own) == 0 && stat(path, &st) == 0) {
            inside = !S_ISLNK(own.st_mode) || is_inside(r->real, path);
            if (inside && S_ISDIR(st.st_mode) && depth > 1)
                inside = stays_inside(r, path, depth - 1, bytes);
            else if (S_ISREG(st.st_mode) && has_suffix(path))
                *bytes += (uint64_t)st.st_size;
        }
        free(path);
    }
    if (stream)
        closedir(stream);
    return inside && stream;
}

static bool is_checkpoint(const char *folder) {
    char *index = file_join(folder, "model_index.json"),
         *unet = file_join(folder, "unet/config.json");
    const bool is = index && unet && (file_exists(index) || file_exists(unet));
    free(index);
    free(unet);
    return is;
}

/* Adds a checkpoint. `path` is relative to the root. */
static bool add(struct reading *r, const char *path, const char *full, bool is_folder) {
    struct model_files *files = r->files;
    if (!is_name(path)) /* no request could name it */
        return true;
    if (files->count >= MODEL_FILES_MAX)
        return error_set(r->err, ERROR_TOO_LARGE, "%s: more than %d checkpoints are below it",
            r->root, MODEL_FILES_MAX);
    if (!LIST_ROOM(files->items, files->count, "a list of models", r->err))
        return false;
    struct model_file *file = &files->items[files->count];
    *file = (struct model_file){ .path = strdup(path), .is_folder = is_folder };
    file->name = strndup(path, strlen(path) - (is_folder ? 0 : strlen(SUFFIX)));
    files->count++;
    if (!file->name || !file->path)
        return no_memory(r->err);
    if (is_folder) {
        file->leads_out = !is_inside(r->real, full) ||
                          !stays_inside(r, full, CHECKPOINT_DEPTH, &file->bytes);
        return true;
    }
    struct stat st;
    file->leads_out = !is_inside(r->real, full);
    file->bytes = stat(full, &st) == 0 ? (uint64_t)st.st_size : 0;
    return true;
}

static bool read_folder(struct reading *r, const char *below, int depth);

/* Reads one entry of a folder. `below` is the entry's path relative to the root. */
static bool read_entry(struct reading *r, const char *below, int depth) {
    struct stat own, st;
    char *full = file_join(r->root, below);
    bool ok = full || no_memory(r->err);
    if (ok && lstat(full, &own) == 0 && stat(full, &st) == 0) {
        if (S_ISREG(st.st_mode) && has_suffix(below))
            ok = add(r, below, full, false);
        else if (S_ISDIR(st.st_mode) && is_checkpoint(full))
            ok = add(r, below, full, true);
        else if (S_ISDIR(st.st_mode) && !S_ISLNK(own.st_mode) && depth > 1)
            ok = read_folder(r, below, depth - 1);
    }
    free(full);
    return ok;
}

/* Reads a folder. `below` is its path relative to the root; "" is the root itself. */
static bool read_folder(struct reading *r, const char *below, int depth) {
    char *full = *below ? file_join(r->root, below) : strdup(r->root);
    DIR *stream = full ? opendir(full) : NULL;
    bool ok = full || no_memory(r->err);
    if (ok && !stream && !*below)
        ok = error_set(r->err, ERROR_NOT_FOUND, "%s: %s", r->root, strerror(errno));
    const struct dirent *entry;
    while (stream && ok && (entry = readdir(stream))) {
        if (entry->d_name[0] == '.')
            continue;
        if (++r->entries > MODEL_ENTRIES_MAX)
            ok = error_set(r->err, ERROR_TOO_LARGE, "%s: more than %d files are below it", r->root,
                MODEL_ENTRIES_MAX);
        char *path = *below ? file_join(below, entry->d_name) : strdup(entry->d_name);
        ok = ok && (path || no_memory(r->err)) && read_entry(r, path, depth);
        free(path);
    }
    if (stream)
        closedir(stream);
    free(full);
    return ok;
}

static int by_name(const void *a, const void *b) {
    const struct model_file *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    return order ? order : y->is_folder - x->is_folder;
}

/* If a file and a folder have the same name, the file is named by its whole path. */
static bool rename_twins(struct model_files *files, struct error *err) {
    for (size_t i = 1; i < files->count; i++) {
        struct model_file *file = &files->items[i];
        if (strcmp(file->name, files->items[i - 1].name) != 0)
            continue;
        free(file->name);
        file->name = strdup(file->path);
        if (!file->name)
            return no_memory(err);
    }
    return true;
}

static void sort(struct model_files *files) {
    if (files->count > 0)
        qsort(files->items, files->count, sizeof(*files->items), by_name);
}

bool model_files_list(const char *root, struct model_files *out, struct error *err) {
    struct reading r = { .root = root, .files = out, .err = err };
    *out = (struct model_files){ 0 };
    bool ok = realpath(root, r.real) ||
              error_set(err, ERROR_NOT_FOUND, "%s: %s", root, strerror(errno));
    ok = ok && read_folder(&r, "", MODEL_FOLDER_DEPTH);
    sort(out);
    ok = ok && rename_twins(out, err);
    if (ok)
        sort(out);
    else
        model_files_finish(out);
    return ok;
}

void model_files_finish(struct model_files *files) {
    for (size_t i = 0; i < files->count; i++) {
        free(files->items[i].name);
        free(files->items[i].path);
    }
    free(files->items);
    *files = (struct model_files){ 0 };
}

const struct model_file *model_files_find(const struct model_files *files, const char *name) {
    for (size_t i = 0; i < files->count; i++)
        if (strcmp(files->items[i].name, name) == 0)
            return &files->items[i];
    return NULL;
}

bool model_folder_find(const char *root, const char *name, char **path, struct error *err) {
    struct model_files files;
    if (!model_files_list(root, &files, err))
        return false;
    const struct model_file *file = model_files_find(&files, name);
    bool ok = file != NULL;
    if (!ok)
        error_set(err, ERROR_NOT_FOUND,
            "there is no model \"%.*s\": GET /models lists those there are", 200, name);
    else if (file->leads_out)
        ok = error_set(err, ERROR_INVALID,
            "the model \"%.*s\" is not opened: a link leads out of the --model-root", 200, name);
    else if (!(*path = file_join(root, file->path)))
        ok = no_memory(err);
    model_files_finish(&files);
    return ok;
}

char *model_folder_name_of(const char *root, const char *path) {
    struct model_files files;
    char real[PATH_MAX], *name = NULL;
    if (!realpath(path, real) || !model_files_list(root, &files, NULL))
        return NULL;
    for (size_t i = 0; i < files.count && !name; i++) {
        char other[PATH_MAX], *full = file_join(root, files.items[i].path);
        if (full && !files.items[i].leads_out && realpath(full, other) && strcmp(real, other) == 0)
            name = strdup(files.items[i].name);
        free(full);
    }
    model_files_finish(&files);
    return name;
}

void model_folder_measure(const char *path, bool *is_folder, uint64_t *bytes) {
    struct reading r = { .real = "/" }; /* links may lead anywhere */
    struct stat st;
    *is_folder = file_is_folder(path);
    *bytes = 0;
    if (*is_folder)
        (void)stays_inside(&r, path, CHECKPOINT_DEPTH, bytes);
    else if (stat(path, &st) == 0)
        *bytes = (uint64_t)st.st_size;
}
