/* Adapters change while requests run. One thread keeps uploading new files for two names, another
 * unloads, rescans, lists and changes settings, and two threads draw with the current version of
 * each name. Each result is compared bit for bit with the result of the same file used alone.
 * Memory must not grow, and the base weights must not change.
 *
 * usage: adapters_threads_test CYCLES */
#include "tests/check.h"
#include "tests/engine/adapters/adapter_rig.h"
#include "tests/engine/base_checksum.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define CONTENTS 3 /* different files */
#define DRAWERS 2
#define VERSIONS_MAX 100000

static struct rig rig;
static struct {
    char *bytes;
    size_t size;
    float *alone; /* its output at weight 0.5: [rig.outputs] */
} contents[CONTENTS];
static const char *const names[2] = { "left", "right" };
static atomic_int content_of[VERSIONS_MAX]; /* 1 + index; 0: no such version */
static atomic_bool stop;
static atomic_int wrong, unknown, drawn, refused, churned;
static int cycles;

static void must(bool ok, const char *what) {
    if (!ok) {
        printf("the test cannot run: %s\n", what);
        exit(1);
    }
}

static long resident_kib(void) {
    long pages = 0, ignored;
    FILE *f = fopen("/proc/self/statm", "r");
    must(f && fscanf(f, "%ld %ld", &ignored, &pages) == 2, "no /proc");
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) >> 10);
}

/* Only this thread makes versions, so it knows the next version's number before another thread can
 * see that version. */
static void send(const char *name, int content, uint64_t *version) {
    struct error err = { 0 };
    struct adapter_upload *upload;
    struct adapter_info info = { 0 };
    atomic_store(&content_of[*version + 1], content + 1);
    must(adapter_upload_begin(rig.adapters, name, contents[content].size, &upload, &err) &&
             adapter_upload_write(upload, contents[content].bytes, contents[content].size, &err) &&
             adapter_upload_end(upload, &info, &err),
        err.message);
    must(info.version == *version + 1, "another number than the next");
    *version = info.version;
    adapter_info_finish(&info);
}

static void *draw(void *user) {
    unsigned turn = *(unsigned *)user;
    while (!atomic_load(&stop)) {
        const char *name = names[turn++ % 2];
        struct lora_choice choice = { .weight = 0.5, .text_encoder_weight = 0.5 };
        struct adapter_set *set;
        struct error err = { 0 };
        const struct adapter_use *uses;
        snprintf(choice.name, sizeof(choice.name), "%s", name);
        if (!adapters_resolve(rig.adapters, &choice, 1, true, &set, &err)) {
            atomic_fetch_add(&refused, 1);
            printf("refused: %s\n", err.message);
            continue;
        }
        adapter_set_uses(set, &uses);
        const int content = atomic_load(&content_of[uses[0].version]) - 1;
        float *rows = rig_run(&rig, set);
        if (content < 0)
            atomic_fetch_add(&unknown, 1);
        else if (memcmp(rows + rig.outputs, contents[content].alone,
                     (size_t)rig.outputs * sizeof(float)) != 0)
            atomic_fetch_add(&wrong, 1);
        atomic_fetch_add(&drawn, 1);
        adapter_set_release(set);
        free(rows);
    }
    return NULL;
}

static void *churn(void *user) {
    struct error err = { 0 };
    (void)user;
    for (unsigned turn = 0; !atomic_load(&stop); turn++) {
        const char *name = names[turn % 2];
        struct adapters_listing listing;
        struct adapters_scan scan;
        struct adapter_info info;
        const struct adapter_settings settings = { .has_default = true,
            .is_default = turn % 3 == 0,
            .weight = 0.25,
            .text_encoder_weight = 0.25 };
        struct adapter_set *set = NULL;
        must(adapters_rescan(rig.adapters, &scan, &err), err.message);
        must(adapters_list(rig.adapters, &listing, &err) && listing.count == 2, err.message);
        adapters_listing_finish(&listing);
        must(adapters_set(rig.adapters, name, &settings, &info, &err), err.message);
        adapter_info_finish(&info);
        must(adapters_resolve(rig.adapters, NULL, 0, false, &set, &err), err.message);
        adapter_set_release(set);
        if (!adapters_unload(rig.adapters, name, &err))
            must(err.code == ERROR_CONFLICT, err.message); /* the adapter has become a default */
        must(adapters_load(rig.adapters, name, NULL, &err), err.message);
        atomic_fetch_add(&churned, 1);
        usleep(1000);
    }
    return NULL;
}

static void make_contents(void) {
    static const enum rig_kind kinds[CONTENTS] = { RIG_LORA, RIG_LOCON, RIG_LOHA };
    rig_open(&rig, 0, false);
    for (int i = 0; i < CONTENTS; i++) {
        rig_put(&rig, "content", kinds[i], 4, i == 1 ? "" : "to_", 50 + i);
        FILE *f = fopen(rig_path(&rig, "content"), "rb");
        contents[i].bytes = malloc(1 << 24);
        must(f && contents[i].bytes, "no memory");
        contents[i].size = fread(contents[i].bytes, 1, 1 << 24, f);
        fclose(f);
        rig_open(&rig, 0, false);
        struct adapter_set *set = rig_set(&rig, "content", 0.5, NULL, 0);
        float *rows = rig_run(&rig, set);
        memmove(rows, rows + rig.outputs, (size_t)rig.outputs * sizeof(float));
        contents[i].alone = rows;
        adapter_set_release(set);
        unlink(rig_path(&rig, "content"));
    }
    rig_open(&rig, 0, false);
}

int main(int argc, char **argv) {
    cycles = argc == 2 ? atoi(argv[1]) : 0;
    if (cycles < 10 || cycles > VERSIONS_MAX / 2) {
        fprintf(stderr, "usage: %s CYCLES\n", argv[0]);
        return 2;
    }
    rig_make(&rig, kernels_cpu(), DTYPE_F32);
    make_contents();
    struct error err = { 0 };
    uint64_t version = 0, before = 0, after = 1;
    CHECK(adapters_base_checksum(rig.adapters, &before, &err), "%s", err.message);
    for (int i = 0; i < 2; i++)
        send(names[i], i, &version);
    pthread_t threads[DRAWERS + 1];
    unsigned turns[DRAWERS];
    for (unsigned i = 0; i < DRAWERS; i++) {
        turns[i] = i;
        pthread_create(&threads[i], NULL, draw, &turns[i]);
    }
    pthread_create(&threads[DRAWERS], NULL, churn, NULL);
    long resident[2] = { 0, 0 };
    for (int i = 0; i < cycles; i++) {
        send(names[i % 2], i % CONTENTS, &version);
        if (i == cycles / 5)
            resident[0] = resident_kib();
    }
    resident[1] = resident_kib();
    atomic_store(&stop, true);
    for (int i = 0; i < DRAWERS + 1; i++)
        pthread_join(threads[i], NULL);
    CHECK(adapters_base_checksum(rig.adapters, &after, &err), "%s", err.message);
    printf(
        "%d replacements, %d turns of unloading and loading, %d drawn: %d wrong, %d of unknown "
        "versions, %d refused; resident %ld KiB after a fifth, %ld KiB at the end; base checksum "
        "%016llx, then %016llx\n",
        cycles, (int)churned, (int)drawn, (int)wrong, (int)unknown, (int)refused, resident[0],
        resident[1], (unsigned long long)before, (unsigned long long)after);
    CHECK(wrong == 0 && unknown == 0 && refused == 0 && drawn > 0 && churned > 0,
        "wrong pictures, unknown versions or refusals: see the counts above");
    CHECK(before == after, "the base changed");
    struct adapters_listing listing;
    CHECK(adapters_list(rig.adapters, &listing, &err), "%s", err.message);
    for (size_t i = 0; i < listing.count; i++)
        CHECK(listing.items[i].users == 0, "%s has %d users", listing.items[i].name,
            listing.items[i].users);
    adapters_listing_finish(&listing);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* they delay freeing memory   \
                                                                     */
    /* The first measurement is taken once every file was in use. Allocators may keep a tenth
     * more. */
    CHECK(cycles < 500 || resident[1] <= resident[0] + resident[0] / 10 + 1024, "memory grows");
#endif
    rig_remove(&rig);
    for (int i = 0; i < CONTENTS; i++) {
        free(contents[i].bytes);
        free(contents[i].alone);
    }
    return check_done();
}
