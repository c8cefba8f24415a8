#include "models/checkpoint/folder_copy.h"

#include "base/file.h"
#include "base/limits.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define COPY_MAX_BYTES CONFIG_MAX_BYTES /* limit of a file that is not weights */
#define FOLDER_MAX_DEPTH 8

struct walk {
    const struct folder_copy *copy;
    dev_t out_device; /* the target folder, which may be in the source */
    ino_t out_inode;
};

static bool is_weights(const char *name) {
    static const char *const endings[] = { ".safetensors", ".bin", ".ckpt", ".pt", ".msgpack",
        ".onnx", ".h5" };
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof(endings) / sizeof(endings[0]); i++)
        if (strcmp(dot, endings[i]) == 0)
            return true;
    return false;
}

static bool copy_file(const char *from, const char *to, struct error *err) {
    struct file_part part = { 0 };
    char *bytes;
    if (!file_read(from, COPY_MAX_BYTES, &bytes, &part.size, err))
        return false;
    part.bytes = bytes;
    const bool ok = file_write(to, &part, 1, err);
    free(bytes);
    return ok;
}

static bool is_out(const struct walk *w, const char *folder) {
    struct stat st;
    return stat(folder, &st) == 0 && st.st_dev == w->out_device && st.st_ino == w->out_inode;
}

static bool copy_folder(
    struct walk *w, const char *from, const char *to, int depth, struct error *err);

/* Copies one file or folder. */
static bool copy_part(struct walk *w, const char *folder, const char *to, const char *name,
    int depth, struct error *err) {
    char *source = file_join(folder, name), *target = file_join(to, name);
    bool ok = source && target, taken = false;
    if (!ok)
        error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    ok = ok && w->copy->take(w->copy->user, source, target, &taken, err);
    if (ok && !taken && file_is_folder(source))
        ok = depth == FOLDER_MAX_DEPTH || is_out(w, source) ||
             copy_folder(w, source, target, depth + 1, err);
    else if (ok && !taken && file_exists(source) && !is_weights(name))
        ok = copy_file(source, target, err);
    free(source);
    free(target);
    return ok;
}

static bool copy_folder(
    struct walk *w, const char *from, const char *to, int depth, struct error *err) {
    struct stat st;
    if (mkdir(to, 0777) != 0 || stat(to, &st) != 0)
        return error_set(err, ERROR_IO, "cannot make the folder %s: %s", to, strerror(errno));
    file_sync_folder_of(to);
    if (depth == 0) {
        w->out_device = st.st_dev;
        w->out_inode = st.st_ino;
    }
    DIR *dir = opendir(from);
    if (!dir)
        return error_set(err, ERROR_IO, "cannot read the folder %s: %s", from, strerror(errno));
    bool ok = true;
    for (struct dirent *e = readdir(dir); ok && e; e = readdir(dir))
        ok = e->d_name[0] == '.' || copy_part(w, from, to, e->d_name, depth, err);
    closedir(dir);
    return ok;
}

bool folder_copy(
    const struct folder_copy *copy, const char *from, const char *to, struct error *err) {
    struct walk walk = { .copy = copy };
    return copy_folder(&walk, from, to, 0, err);
}
