#include "base/file_map.h"

#include "base/file.h"
#include "base/limits.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The maps of this process, for the signal handler. They are written with the lock held and read
 * without it. A slot with size 0 is free. */
static struct {
    _Atomic uintptr_t begin;
    atomic_size_t size;
    atomic_bool damaged; /* a page was replaced by zeros */
} slots[FILE_MAPS_MAX];
static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;
static size_t page_bytes;
static struct sigaction action_before;

/* Maps a page of zeros where the file no longer has one. Calls only mmap, which as a plain system
 * call is safe in a signal handler. */
static void on_sigbus(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    const uintptr_t address = (uintptr_t)info->si_addr;
    for (int i = 0; i < FILE_MAPS_MAX; i++) {
        const uintptr_t begin = atomic_load(&slots[i].begin);
        const size_t size = atomic_load(&slots[i].size);
        if (size == 0 || address < begin || address - begin >= size)
            continue;
        void *page = (void *)(address / page_bytes * page_bytes);
        if (mmap(page, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
            MAP_FAILED)
            break;
        atomic_store(&slots[i].damaged, true);
        return;
    }
    /* The address is in none of our maps. Restores the previous handler, which gets the fault when
     * the access is repeated. */
    sigaction(SIGBUS, &action_before, NULL);
}

static bool take_slot(struct file_map *map, struct error *err) {
    bool found = false;
    pthread_mutex_lock(&slots_lock);
    if (page_bytes == 0) {
        page_bytes = (size_t)sysconf(_SC_PAGESIZE);
        struct sigaction action = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };
        sigaction(SIGBUS, &action, &action_before);
    }
    for (int i = 0; i < FILE_MAPS_MAX && !found; i++) {
        if (atomic_load(&slots[i].size) != 0)
            continue;
        atomic_store(&slots[i].damaged, false);
        atomic_store(&slots[i].begin, (uintptr_t)map->bytes);
        atomic_store(&slots[i].size, map->size);
        map->slot = i;
        found = true;
    }
    pthread_mutex_unlock(&slots_lock);
    return found || error_set(err, ERROR_TOO_LARGE, "%d files are mapped already", FILE_MAPS_MAX);
}

static void free_slot(const struct file_map *map) {
    pthread_mutex_lock(&slots_lock);
    atomic_store(&slots[map->slot].size, 0);
    pthread_mutex_unlock(&slots_lock);
}

static bool map_file(const char *path, uint64_t length, struct file_map *map, struct error *err) {
    struct stat st;
    if (fstat(map->fd, &st) != 0)
        return error_set(err, ERROR_IO, "cannot stat %s: %s", path, strerror(errno));
    map->modified = st.st_mtim;
    if (length > SIZE_MAX)
        return error_set(err, ERROR_TOO_LARGE, "%s does not fit into the address space", path);
    if (length == 0)
        return true;
    void *bytes = mmap(NULL, (size_t)length, PROT_READ, MAP_PRIVATE, map->fd, 0);
    if (bytes == MAP_FAILED)
        return error_set(err, ERROR_IO, "cannot map %s: %s", path, strerror(errno));
    map->bytes = bytes;
    map->size = (size_t)length;
    if (take_slot(map, err))
        return true;
    munmap(bytes, map->size);
    map->bytes = NULL;
    return false;
}

bool file_map_open(const char *path, struct file_map *out, struct error *err) {
    uint64_t length;
    const int fd = file_open_regular(path, &length, err);
    if (fd >= 0)
        return file_map_open_fd(fd, path, out, err);
    *out = (struct file_map){ .fd = -1 };
    return false;
}

bool file_map_open_fd(int fd, const char *path, struct file_map *out, struct error *err) {
    uint64_t length;
    *out = (struct file_map){ .fd = fd };
    if (file_is_regular(fd, path, &length, err) && map_file(path, length, out, err))
        return true;
    file_map_close(out);
    return false;
}

void file_map_close(struct file_map *map) {
    if (map->bytes) {
        /* The slot must be freed first. After munmap another map may get the same addresses, and
         * the handler must find only one slot for a fault there. */
        free_slot(map);
        munmap((void *)(uintptr_t)map->bytes, map->size);
    }
    if (map->fd >= 0)
        close(map->fd);
    *map = (struct file_map){ .fd = -1 };
}

bool file_map_intact(const struct file_map *map, struct error *err) {
    struct stat st;
    if (fstat(map->fd, &st) != 0)
        return error_set(err, ERROR_IO, "cannot stat the file again: %s", strerror(errno));
    const bool cut = map->bytes && atomic_load(&slots[map->slot].damaged);
    if (cut || (uint64_t)st.st_size != map->size)
        return error_set(err, ERROR_IO,
            "the file had %zu bytes and has %llu: it changed while it "
            "was read",
            map->size, (unsigned long long)st.st_size);
    if (st.st_mtim.tv_sec != map->modified.tv_sec || st.st_mtim.tv_nsec != map->modified.tv_nsec)
        return error_set(err, ERROR_IO, "the file was written to while it was read");
    return true;
}

void file_map_drop_pages(const struct file_map *map) {
    if (map->bytes) /* a hint: if refused, the pages stay */
        (void)madvise((void *)(uintptr_t)map->bytes, map->size, MADV_DONTNEED);
}
