#include "kernels/available.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define PATH_BYTES 4096

/* Lowers the result to `bytes` if that is the smallest limit so far. The text made from `format`
 * then becomes a->why. */
static void consider(struct available *a, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void consider(struct available *a, size_t bytes, const char *format, ...) {
    if (bytes >= a->bytes)
        return;
    a->bytes = bytes;
    va_list args;
    va_start(args, format);
    vsnprintf(a->why, sizeof(a->why), format, args);
    va_end(args);
}

/* Considers what is left of `limit` when `used` bytes of it are in use. `idle` of the used bytes
 * can be reclaimed and count as unused. */
static void consider_limit(
    struct available *a, const char *name, uint64_t limit, uint64_t used, uint64_t idle) {
    used = idle < used ? used - idle : 0;
    consider(a, used < limit ? (size_t)(limit - used) : 0, "%s is %llu MiB, %llu MiB are in use",
        name, (unsigned long long)limit >> 20, (unsigned long long)used >> 20);
}

/* Reads the number behind `key`, in bytes, from a file of lines "key number" or "key: number kB".
 * If key is NULL, the file holds only the number. Returns false if the file or the line is missing,
 * or if the value is "max". */
static bool read_number(const char *path, const char *key, uint64_t *out) {
    char line[256], unit[4] = "";
    unsigned long long number;
    const size_t key_bytes = key ? strlen(key) : 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool found = false;
    while (!found && fgets(line, sizeof(line), file)) {
        const char *at = line + key_bytes;
        if (key && (strncmp(line, key, key_bytes) != 0 || !strchr(": \t", *at) || !*at))
            continue;
        found = sscanf(at + (*at == ':'), "%llu %3s", &number, unit) >= 1;
        if (!key)
            break;
    }
    fclose(file);
    if (found)
        *out = (uint64_t)number << (strcmp(unit, "kB") == 0 ? 10 : 0);
    return found;
}

/* The files in which one version of control groups reports memory. */
struct cgroup_files {
    const char *mount, *limit, *used;
    const char *idle[2]; /* keys in memory.stat: file cache, which can be reclaimed */
};

/* Considers the limit of one group, if it has one. `folder` does not end with a slash. */
static void consider_group(
    struct available *a, const struct cgroup_files *files, const char *folder, const char *group) {
    char path[PATH_BYTES + 64], name[96];
    uint64_t limit, used, idle = 0, part;
    snprintf(path, sizeof(path), "%s/%s", folder, files->limit);
    if (!read_number(path, NULL, &limit) || limit > (uint64_t)INT64_MAX / 2)
        return; /* in version 1, a huge number means no limit */
    snprintf(path, sizeof(path), "%s/%s", folder, files->used);
    if (!read_number(path, NULL, &used))
        return;
    snprintf(path, sizeof(path), "%s/memory.stat", folder);
    for (int i = 0; i < 2; i++)
        if (read_number(path, files->idle[i], &part))
            idle += part;
    snprintf(
        name, sizeof(name), "%s of the control group %.48s", files->limit, *group ? group : "/");
    consider_limit(a, name, limit, used, idle);
}

/* Considers the group `of` and all groups above it. In a container, neither the path that the
 * kernel names nor the groups above it need exist. The folder of the mount itself, which is
 * considered last, is then the process's group. */
static void consider_groups(
    struct available *a, const char *root, const struct cgroup_files *files, const char *of) {
    char folder[PATH_BYTES], group[PATH_BYTES];
    snprintf(group, sizeof(group), "%s", of);
    for (;;) {
        size_t length = strlen(group);
        while (length && group[length - 1] == '/')
            group[--length] = 0;
        if ((size_t)snprintf(folder, sizeof(folder), "%s%s%s", root, files->mount, group) <
            sizeof(folder))
            consider_group(a, files, folder, group);
        char *slash = strrchr(group, '/');
        if (!slash)
            return;
        *slash = 0;
    }
}

/* Lines of /proc/self/cgroup: "0::/group" in version 2, "4:cpu,memory:/group" in version 1. */
static void consider_cgroups(struct available *a, const char *root) {
    static const struct cgroup_files v2 = { "/sys/fs/cgroup", "memory.max", "memory.current",
        { "inactive_file", "active_file" } },
                                     hybrid = { "/sys/fs/cgroup/unified", "memory.max",
                                         "memory.current", { "inactive_file", "active_file" } },
                                     v1 = { "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                         "memory.usage_in_bytes",
                                         { "total_inactive_file", "total_active_file" } };
    char line[PATH_BYTES];
    snprintf(line, sizeof(line), "%s/proc/self/cgroup", root);
    FILE *file = fopen(line, "re");
    if (!file)
        return;
    while (fgets(line, sizeof(line), file)) {
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        bool is_memory = false;
        for (char *save, *n = strtok_r(names + 1, ",", &save); n; n = strtok_r(NULL, ",", &save))
            is_memory = is_memory || strcmp(n, "memory") == 0;
        if (is_memory) {
            consider_groups(a, root, &v1, group);
        } else if (strncmp(line, "0:", 2) == 0) {
            consider_groups(a, root, &v2, group);
            consider_groups(a, root, &hybrid, group);
        }
    }
    fclose(file);
}

static void consider_rlimit(
    struct available *a, const char *root, int resource, const char *name, const char *used_key) {
    struct rlimit limit;
    char path[PATH_BYTES];
    uint64_t used;
    snprintf(path, sizeof(path), "%s/proc/self/status", root);
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        read_number(path, used_key, &used))
        consider_limit(a, name, limit.rlim_cur, used, 0);
}

void available_read(const char *root, struct available *out) {
    char path[PATH_BYTES];
    uint64_t bytes;
    *out = (struct available){ .bytes = SIZE_MAX };
    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    if (read_number(path, "MemAvailable", &bytes))
        consider(out, (size_t)bytes, "MemAvailable is %llu MiB", (unsigned long long)bytes >> 20);
    consider_cgroups(out, root);
    consider_rlimit(out, root, RLIMIT_AS, "RLIMIT_AS", "VmSize");
    consider_rlimit(out, root, RLIMIT_DATA, "RLIMIT_DATA", "VmData");
}

void available_share(struct available *a, int ranks) {
    char why[AVAILABLE_WHY_BYTES];
    if (ranks <= 1 || a->bytes == SIZE_MAX)
        return;
    snprintf(why, sizeof(why), "of %zu MiB shared by %d ranks%s%.130s", a->bytes >> 20, ranks,
        *a->why ? "; " : "", a->why);
    memcpy(a->why, why, sizeof(why));
    a->bytes /= (size_t)ranks;
}

bool available_headroom(size_t bytes, const char *what, struct error *err) {
    void *tried = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (tried != MAP_FAILED) {
        munmap(tried, bytes);
        return true;
    }
    const char *refusal = strerror(errno);
    struct available left;
    available_read("", &left);
    return error_set(err, ERROR_NO_MEMORY, "%s may take %zu MiB, which the system refuses: %s%s%s",
        what, bytes >> 20, refusal, *left.why ? "; " : "", left.why);
}
