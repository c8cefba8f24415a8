/* Emulates a disk that loses power, as a library for LD_PRELOAD: it copies everything that is
 * synced in one folder, so that a test can see what would be left if nothing else had reached the
 * disk.
 *
 *   POWER_CUT_ROOT the folder that is watched, with all folders below it
 *   POWER_CUT_KEPT    where the copies go: KEY, the bytes of a file as of its last fsync;
 * KEY.folder, the names in a folder as of its last fsync, each a line "f|d KEY NAME"; and "root",
 * the key of the folder itself
 *
 * A key is an inode number and its birth time, because a file system reuses the number of a deleted
 * file. fsync and fdatasync copy one file or folder; syncfs and sync copy everything. The real disk
 * is not synced: it keeps its power. Writes without a sync are not intercepted: they are in the
 * folder but in no copy. Links and names with a line break are not supported. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INTERPOSED __attribute__((visibility("default")))
#define KEY_BYTES 64

static char root[PATH_MAX];
static const char *kept;

/* Aborts: the test cannot go on after this error. */
static void broken(const char *what) {
    fprintf(stderr, "power cut disk: %s: %s\n", what, strerror(errno));
    abort();
}

static void key_of(int folder, const char *name, char key[KEY_BYTES], unsigned *mode) {
    struct statx st;
    const int flags = *name ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH;
    if (statx(folder, name, flags, STATX_INO | STATX_TYPE | STATX_BTIME, &st) != 0) {
        key[0] = 0; /* just deleted */
        return;
    }
    *mode = st.stx_mode;
    snprintf(key, KEY_BYTES, "%llu-%lld.%u", (unsigned long long)st.stx_ino,
        (long long)st.stx_btime.tv_sec, st.stx_btime.tv_nsec);
}

/* Opens a copy under a temporary name of this thread. put() renames it. */
static FILE *open_copy(char path[PATH_MAX], const char *key) {
    snprintf(path, PATH_MAX, "%s/%s.%d.fresh", kept, key, gettid());
    FILE *copy = fopen(path, "we");
    if (!copy)
        broken(path);
    return copy;
}

static void put(FILE *copy, const char *path, const char *key, const char *suffix) {
    char name[PATH_MAX];
    snprintf(name, sizeof(name), "%s/%s%s", kept, key, suffix);
    if (fclose(copy) != 0 || rename(path, name) != 0)
        broken(name);
}

static void keep_file(int fd, const char *key) {
    char path[PATH_MAX], own[64];
    static _Thread_local char bytes[1 << 16];
    const bool is_readable = (fcntl(fd, F_GETFL) & O_ACCMODE) != O_WRONLY;
    snprintf(own, sizeof(own), "/proc/self/fd/%d", fd);
    /* The file is opened again only if necessary, because closing it releases the process's locks
     * on the file. */
    const int from = is_readable ? fd : open(own, O_RDONLY | O_CLOEXEC);
    FILE *copy = open_copy(path, key);
    off_t at = 0;
    ssize_t n;
    while ((n = pread(from, bytes, sizeof(bytes), at)) > 0 &&
           fwrite(bytes, 1, (size_t)n, copy) == (size_t)n)
        at += n;
    if (n != 0)
        broken("a copy");
    put(copy, path, key, "");
    if (from != fd)
        close(from);
}

/* Copies a folder's names. `deep`: with all files and folders below it. */
static void keep_folder(int fd, const char *key, bool deep) {
    char path[PATH_MAX], inner[KEY_BYTES];
    const int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = own >= 0 ? fdopendir(own) : NULL;
    if (!folder)
        return; /* just deleted */
    FILE *copy = open_copy(path, key);
    for (const struct dirent *e; (e = readdir(folder));) {
        unsigned mode = 0;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        key_of(own, e->d_name, inner, &mode);
        if (!inner[0] || (!S_ISDIR(mode) && !S_ISREG(mode)))
            continue;
        fprintf(copy, "%c %s %s\n", S_ISDIR(mode) ? 'd' : 'f', inner, e->d_name);
        const int file = deep ? openat(own, e->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC) : -1;
        if (file >= 0 && S_ISDIR(mode))
            keep_folder(file, inner, true);
        else if (file >= 0)
            keep_file(file, inner);
        if (file >= 0)
            close(file);
    }
    closedir(folder);
    put(copy, path, key, ".folder");
}

/* Copies the file or folder of `fd`. Returns false if it is outside of the watched folder or
 * deleted, or if it is neither. */
static bool keep(int fd) {
    char own[64], path[PATH_MAX], key[KEY_BYTES];
    unsigned mode = 0;
    snprintf(own, sizeof(own), "/proc/self/fd/%d", fd);
    const ssize_t length = kept ? readlink(own, path, sizeof(path) - 1) : -1;
    const size_t start = strlen(root);
    if (length < (ssize_t)start || strncmp(path, root, start) != 0 ||
        ((size_t)length > start && path[start] != '/'))
        return false;
    key_of(fd, "", key, &mode);
    if (S_ISDIR(mode))
        keep_folder(fd, key, false);
    else if (S_ISREG(mode))
        keep_file(fd, key);
    return true;
}

static void keep_all(void) {
    char key[KEY_BYTES], path[PATH_MAX];
    unsigned mode;
    const int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        broken(root);
    key_of(fd, "", key, &mode);
    keep_folder(fd, key, true);
    close(fd);
    FILE *copy = open_copy(path, "root");
    fputs(key, copy);
    put(copy, path, "root", "");
}

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("POWER_CUT_ROOT");
    if (folder && realpath(folder, root))
        kept = getenv("POWER_CUT_KEPT");
}

/* Calls the C library's own function. */
static int really(const char *name, int fd) {
    int (*function)(int);
    *(void **)&function = dlsym(RTLD_NEXT, name);
    return function(fd);
}

INTERPOSED int fsync(int fd) {
    return keep(fd) ? 0 : really("fsync", fd);
}

INTERPOSED int fdatasync(int fd) {
    return keep(fd) ? 0 : really("fdatasync", fd);
}

INTERPOSED int syncfs(int fd) {
    struct stat here, there;
    if (!kept || fstat(fd, &here) != 0 || stat(root, &there) != 0 || here.st_dev != there.st_dev)
        return really("syncfs", fd);
    keep_all();
    return 0;
}

INTERPOSED void sync(void) {
    if (kept)
        keep_all();
}
