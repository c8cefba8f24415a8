#include "train/examples/cache.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/list.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct head {
    char magic[8];
    struct digest name;
    uint64_t size, sum;
};

static const char magic[8] = { 'l', 'a', 't', 'e', 'n', 't', 'c', '1' };

/* --- paths --- */

static bool path_of(const char *folder, const struct digest *name, char out[PATH_MAX]) {
    char text[DIGEST_TEXT_BYTES];
    digest_to_text(name, text);
    const int length = snprintf(out, PATH_MAX, "%s/%.2s/%s", folder, text, text);
    return length > 0 && length < PATH_MAX;
}

/* Makes the folders that contain `path`. */
static bool make_folders(const char *folder, const char *path, struct error *err) {
    char inner[PATH_MAX];
    snprintf(inner, sizeof(inner), "%.*s", (int)(strrchr(path, '/') - path), path);
    if ((mkdir(folder, 0755) != 0 && errno != EEXIST) ||
        (mkdir(inner, 0755) != 0 && errno != EEXIST))
        return error_set(
            err, error_code_of_write(errno), "the cache %s: %s", folder, strerror(errno));
    return true;
}

/* --- one file --- */

static bool read_exactly(int fd, void *out, size_t size) {
    for (size_t at = 0; at < size;) {
        const ssize_t n = read(fd, (char *)out + at, size - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return true;
}

static bool is_right(int fd, const struct digest *name, void *out, size_t size) {
    struct head head;
    char more;
    return read_exactly(fd, &head, sizeof(head)) && memcmp(head.magic, magic, sizeof(magic)) == 0 &&
           memcmp(&head.name, name, sizeof(*name)) == 0 && head.size == size &&
           read_exactly(fd, out, size) && hash_fnv1a(out, size) == head.sum &&
           read(fd, &more, 1) == 0;
}

bool cache_read(const char *folder, const struct digest *name, void *out, size_t size) {
    char path[PATH_MAX];
    errno = ENAMETOOLONG;
    const int fd = path_of(folder, name, path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return false;
    void *own = out ? NULL : malloc(size);
    const bool tried = out || own;
    const bool right = tried && is_right(fd, name, out ? out : own, size);
    free(own);
    close(fd);
    if (tried && !right) {
        log_warning("%s is damaged; what it held is computed again", path);
        unlink(path);
        errno = EBADMSG;
    }
    return right;
}

bool cache_has(const char *folder, const struct digest *name) {
    char path[PATH_MAX];
    return path_of(folder, name, path) && file_exists(path);
}

void cache_touch(const char *folder, const struct digest *name) {
    char path[PATH_MAX];
    if (path_of(folder, name, path))
        (void)utimensat(AT_FDCWD, path, NULL, 0);
}

bool cache_write(const char *folder, const struct digest *name, const void *bytes, size_t size,
    struct error *err) {
    char path[PATH_MAX];
    struct head head = { .name = *name, .size = size, .sum = hash_fnv1a(bytes, size) };
    memcpy(head.magic, magic, sizeof(magic));
    const struct file_part parts[] = { { &head, sizeof(head) }, { bytes, size } };
    if (!path_of(folder, name, path))
        return error_set(err, ERROR_INVALID, "the cache %.200s...: the path is too long", folder);
    return make_folders(folder, path, err) && file_write(path, parts, 2, err);
}

/* --- the whole cache --- */

struct kept {
    char *path; /* owned */
    int64_t used_s;
    uint64_t bytes;
};

struct listing {
    struct kept *items; /* owned */
    size_t count;
    uint64_t bytes;
};

static bool add(struct listing *l, const char *path, const struct stat *status, struct error *err) {
    if (!LIST_ROOM(l->items, l->count, "the list of a cache", err))
        return false;
    const uint64_t bytes = (uint64_t)status->st_blocks * 512;
    char *copy = strdup(path);
    if (!copy)
        return error_set(err, ERROR_NO_MEMORY, "no memory to list a cache");
    l->items[l->count++] = (struct kept){ copy, status->st_mtime, bytes };
    l->bytes += bytes;
    return true;
}

/* Lists regular files; with `depth` 1 those in its folders instead. Skips files that vanish
 * meanwhile. */
static bool list(struct listing *l, const char *folder, int depth, struct error *err) {
    DIR *dir = opendir(folder);
    bool ok = true;
    for (struct dirent *e; ok && dir && (e = readdir(dir));) {
        char path[PATH_MAX];
        struct stat status;
        const int length = snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        if (e->d_name[0] == '.' || length >= PATH_MAX || lstat(path, &status) != 0)
            continue;
        if (S_ISDIR(status.st_mode) && depth)
            ok = list(l, path, depth - 1, err);
        else if (S_ISREG(status.st_mode) && !depth)
            ok = add(l, path, &status, err);
    }
    if (dir)
        closedir(dir);
    return ok;
}

static int by_use(const void *a, const void *b) {
    const struct kept *x = a, *y = b;
    return x->used_s != y->used_s ? (x->used_s < y->used_s ? -1 : 1) : strcmp(x->path, y->path);
}

bool cache_trim(const char *folder, uint64_t max_bytes, struct error *err) {
    struct listing l = { 0 };
    const bool ok = list(&l, folder, 1, err);
    if (ok && l.count)
        qsort(l.items, l.count, sizeof(*l.items), by_use);
    for (size_t i = 0; ok && i < l.count && l.bytes > max_bytes; i++)
        if (unlink(l.items[i].path) == 0)
            l.bytes -= l.items[i].bytes;
    for (size_t i = 0; i < l.count; i++)
        free(l.items[i].path);
    free(l.items);
    return ok;
}
