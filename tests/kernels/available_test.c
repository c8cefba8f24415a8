/* Tests how much memory may be taken, as read from files like those of real systems: a machine
 * without limits, a container under each version of control groups, nested groups, damaged files.
 * Also tests the process's own limits, and an arena's error when memory is short. Expected figures
 * were subtracted by hand. */
#include "kernels/available.h"
#include "kernels/compute/arena.h"
#include "tests/check.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static char root[] = "/tmp/latentd-available-XXXXXX";

/* Writes a file under `root` and makes its folders. */
static void put(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *slash = strchr(full + sizeof(root), '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(full, 0777);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    CHECK(file && fputs(text, file) >= 0, "%s", full);
    if (file)
        fclose(file);
}

/* Makes a fresh system with this /proc/meminfo and no control groups. */
static void fresh(const char *meminfo) {
    char command[sizeof(root) + 64];
    snprintf(command, sizeof(command), "rm -rf '%s' && mkdir '%s'", root, root);
    CHECK(system(command) == 0, "%s", command);
    put("/proc/meminfo", meminfo);
}

static const char *const meminfo_8_gib =
    "MemTotal:       24683456 kB\nMemFree:         1000000 kB\n"
    "MemAvailable:    8388608 kB\nBuffers:          100000 kB\n";

static void expect(size_t bytes, const char *why, const char *what) {
    struct available a;
    available_read(root, &a);
    printf("%s: %zu MiB (%s)\n", what, a.bytes >> 20, a.why);
    CHECK(a.bytes == bytes, "%s: %zu bytes, expected %zu", what, a.bytes, bytes);
    CHECK_CONTAINS(a.why, why);
}

static void the_machine(void) {
    fresh(meminfo_8_gib);
    expect(8192 * MIB, "MemAvailable is 8192 MiB", "no group at all");
    fresh("MemTotal: 1 kB\n");
    expect(SIZE_MAX, "", "a kernel that does not say");
}

static void version_2(void) {
    fresh(meminfo_8_gib);
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/memory.max", "2147483648\n");
    put("/sys/fs/cgroup/memory.current", "1610612736\n");
    put("/sys/fs/cgroup/memory.stat",
        "anon 1073741824\ninactive_file 268435456\nactive_file 134217728\n");
    expect(896 * MIB, "memory.max of the control group / is 2048 MiB, 1152 MiB are in use",
        "a container of 2 GiB, 1.5 used, 0.375 of it cached files");
    put("/sys/fs/cgroup/memory.max", "max\n");
    expect(8192 * MIB, "MemAvailable", "the same without a limit");
    put("/sys/fs/cgroup/memory.max", "1073741824\n");
    expect(0, "1024 MiB, 1152 MiB are in use", "a limit below what is used");
    put("/sys/fs/cgroup/memory.max", "");
    expect(8192 * MIB, "MemAvailable", "an empty file");
}

static void nested(void) {
    fresh(meminfo_8_gib);
    put("/proc/self/cgroup", "0::/system.slice/latentd.service\n");
    put("/sys/fs/cgroup/system.slice/memory.max", "1073741824\n");
    put("/sys/fs/cgroup/system.slice/memory.current", "524288000\n");
    put("/sys/fs/cgroup/system.slice/latentd.service/memory.max", "4294967296\n");
    put("/sys/fs/cgroup/system.slice/latentd.service/memory.current", "104857600\n");
    expect(524 * MIB, "group /system.slice is 1024 MiB, 500 MiB", "the group above is tighter");
    put("/sys/fs/cgroup/system.slice/latentd.service/memory.max", "209715200\n");
    expect(100 * MIB, "/system.slice/latentd.service is 200 MiB", "its own is tighter");
}

static void version_1(void) {
    fresh(meminfo_8_gib);
    put("/proc/self/cgroup", "9:name=systemd:/docker/0abc\n4:cpu,memory:/docker/0abc\n0::/\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "209715200\n");
    put("/sys/fs/cgroup/memory/memory.stat", "cache 1\ntotal_inactive_file 104857600\n");
    expect(412 * MIB, "memory.limit_in_bytes of the control group / is 512 MiB, 100 MiB are in use",
        "a container whose own group is the mount");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    expect(8192 * MIB, "MemAvailable", "version 1's word for no limit");
    put("/sys/fs/cgroup/memory/docker/0abc/memory.limit_in_bytes", "314572800\n");
    put("/sys/fs/cgroup/memory/docker/0abc/memory.usage_in_bytes", "0\n");
    expect(300 * MIB, "/docker/0abc is 300 MiB", "the host's view of a group");
}

/* The process's own address space limit, with a made-up usage. The limit is 64 TiB because the
 * sanitizers' shadow memory takes a third of that. */
static void own_limits(void) {
    const rlim_t most = (rlim_t)64 << 40;
    struct rlimit before, limit;
    fresh(meminfo_8_gib);
    put("/proc/self/status",
        "Name:\tx\nVmPeak:\t 1 kB\nVmSize:\t 68717379584 kB\nVmData:\t 1 kB\n");
    getrlimit(RLIMIT_AS, &before);
    limit = before;
    limit.rlim_cur = before.rlim_cur < most ? before.rlim_cur : most;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0, "limited");
    if (limit.rlim_cur == most)
        expect(2048 * MIB, "RLIMIT_AS is 67108864 MiB, 67106816 MiB are in use",
            "an address space of 64 TiB, 2 GiB less in use");
    setrlimit(RLIMIT_AS, &before);
    if (before.rlim_cur == RLIM_INFINITY)
        expect(8192 * MIB, "MemAvailable", "without the limit");
}

static void headroom(void) {
    struct error err = { 0 };
    CHECK(available_headroom(MIB, "a test", &err), "%s", err.message);
    CHECK(!available_headroom((size_t)1 << 60, "a test", &err), "no system has 2^60 bytes");
    CHECK(err.code == ERROR_NO_MEMORY, "code %d", (int)err.code);
    CHECK_CONTAINS(err.message, "a test may take 1099511627776 MiB, which the system refuses");
}

static void ten_mib(struct available *out) {
    *out = (struct available){ 10 * MIB, "as a test says" };
}

static void ranks_share(void) {
    struct available a;
    ten_mib(&a);
    available_share(&a, 1);
    available_share(&a, 0);
    CHECK(a.bytes == 10 * MIB && strcmp(a.why, "as a test says") == 0, "%zu: %s", a.bytes, a.why);
    available_share(&a, 4);
    CHECK(a.bytes == 10 * MIB / 4, "%zu bytes", a.bytes);
    CHECK_STRING(a.why, "of 10 MiB shared by 4 ranks; as a test says");
    a = (struct available){ .bytes = SIZE_MAX };
    available_share(&a, 2);
    CHECK(a.bytes == SIZE_MAX && !*a.why, "no limit: %zu, %s", a.bytes, a.why);
}

static void an_arena_asks_first(void) {
    struct error err = { 0 };
    struct device_memory memory = host_memory;
    struct arena *arena;
    memory.available = ten_mib;
    CHECK(arena_create(&memory, &arena, &err), "%s", err.message);
    CHECK(!arena_reserve(arena, 12 * MIB, &err) && err.code == ERROR_NO_MEMORY, "refused");
    CHECK_CONTAINS(
        err.message, "12 MiB of activations are needed and 10 MiB are available (as a test");
    CHECK(arena_reserve(arena, 8 * MIB, &err), "%s", err.message);
    CHECK(
        arena_reserve(arena, 18 * MIB, &err), "its old block counts as available: %s", err.message);
    CHECK(!arena_reserve(arena, 30 * MIB, &err), "and no more");
    CHECK_CONTAINS(err.message, "28 MiB are available");
    CHECK(arena_reserved_bytes(arena) == 18 * MIB, "a refusal takes nothing away");
    arena_destroy(arena);
}

int main(void) {
    if (!mkdtemp(root))
        return 1;
    the_machine();
    version_2();
    nested();
    version_1();
    own_limits();
    headroom();
    ranks_share();
    an_arena_asks_first();
    char command[sizeof(root) + 64];
    snprintf(command, sizeof(command), "rm -rf '%s'", root);
    CHECK(system(command) == 0, "%s", command);
    return check_done();
}
