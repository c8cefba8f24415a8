/* A step allocates nothing. While steps of a drawing run on the CPU, the test counts every call of
 * malloc and similar functions in this program and in every library. It also counts every mmap of
 * the arena.
 * oneDNN (and the C++ library that it uses) makes small allocations in every call; they are
 * printed, and must stay below a limit.
 *
 * usage: step_test MODEL_FOLDER */
#include "engine/loop/pipeline.h"
#include "tests/check.h"

#include <dlfcn.h>
#include <errno.h>
#include <omp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KEPT 100000

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

/* Visible to the libraries, so that they call these functions too. */
#define SEEN_BY_ALL __attribute__((visibility("default")))

static atomic_bool counting;
static atomic_int count;
static struct {
    void *caller;
    size_t bytes;
} kept[KEPT];

static void note(void *caller, size_t bytes) {
    if (!atomic_load(&counting))
        return;
    const int i = atomic_fetch_add(&count, 1);
    if (i < KEPT) {
        kept[i].caller = caller;
        kept[i].bytes = bytes;
    }
}

SEEN_BY_ALL void *malloc(size_t bytes) {
    note(__builtin_return_address(0), bytes);
    return __libc_malloc(bytes);
}

SEEN_BY_ALL void *calloc(size_t items, size_t bytes) {
    note(__builtin_return_address(0), items * bytes);
    return __libc_calloc(items, bytes);
}

SEEN_BY_ALL void *realloc(void *block, size_t bytes) {
    note(__builtin_return_address(0), bytes);
    return __libc_realloc(block, bytes);
}

SEEN_BY_ALL void *aligned_alloc(size_t alignment, size_t bytes) {
    note(__builtin_return_address(0), bytes);
    return __libc_memalign(alignment, bytes);
}

SEEN_BY_ALL int posix_memalign(void **out, size_t alignment, size_t bytes) {
    note(__builtin_return_address(0), bytes);
    *out = __libc_memalign(alignment, bytes);
    return *out ? 0 : ENOMEM;
}

SEEN_BY_ALL void *mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset) {
    note(__builtin_return_address(0), bytes);
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, file, offset);
}

#define FIRST 1 /* steps after this one are counted, up to LAST */
#define LAST 5

static bool progress(int step, int steps, void *user) {
    (void)steps;
    (void)user;
    if (step == FIRST)
        atomic_store(&counting, true);
    if (step == LAST)
        atomic_store(&counting, false);
    return true;
}

/* Whether the caller is oneDNN, the C++ library or OpenMP's runtime. *name is the caller's file. */
static bool is_library(void *caller, const char **name) {
    Dl_info info;
    *name = dladdr(caller, &info) && info.dli_fname ? info.dli_fname : "?";
    return strstr(*name, "libdnnl") || strstr(*name, "libstdc++") || strstr(*name, "libgomp");
}

static void draw(struct pipeline *pipeline, const char *what, int images) {
    struct error err = { 0 };
    struct generate_request request;
    struct resolved_request resolved;
    struct generate_result result;
    char prompt[] = "a red boat", *prompts[1] = { prompt };
    const struct generate_hooks hooks = { .progress = progress };
    generate_request_init(&request);
    request.prompts = prompts;
    request.prompt_count = 1;
    request.num_images = images;
    request.num_inference_steps = 7;
    request.scheduler.has_kind = true;
    request.scheduler.kind = SCHEDULER_DDIM;
    request.latent_output = true;
    atomic_store(&count, 0);
    bool ok = pipeline_resolve(pipeline, &request, &resolved, &err) &&
              pipeline_generate(pipeline, &resolved, &hooks, &result, &err);
    atomic_store(&counting, false);
    CHECK(ok, "%s: %s", what, err.message);
    if (ok)
        generate_result_finish(&result);
    const int all = atomic_load(&count);
    CHECK(all <= KEPT, "%d allocations are more than the test can store", all);
    int ours = 0, libraries = 0;
    size_t largest = 0;
    for (int i = 0; i < all && i < KEPT; i++) {
        const char *name;
        if (is_library(kept[i].caller, &name)) {
            libraries++;
            largest = kept[i].bytes > largest ? kept[i].bytes : largest;
        } else if (ours++ < 5) {
            printf("  %zu bytes for %s\n", kept[i].bytes, name);
        }
    }
    printf("%s, %d steps: %d allocations of ours; %d of oneDNN's, the largest of %zu bytes\n", what,
        LAST - FIRST, ours, libraries, largest);
    CHECK(ours == 0, "%s: %d allocations in %d steps", what, ours, LAST - FIRST);
    CHECK(largest <= 65536, "%s: a library allocated %zu bytes in a step", what, largest);
}

int main(int argc, char **argv) {
    static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_BF16 };
    if (argc != 2) {
        printf("usage: step_test MODEL_FOLDER\n");
        return 2;
    }
    for (int i = 0; i < 2; i++) {
        struct error err = { 0 };
        struct pipeline *pipeline;
        struct pipeline_options options = { .model_path = argv[1] };
        options.device.kind = DEVICE_CPU;
        options.dtype.dtype = dtypes[i];
        CHECK(pipeline_create(&options, &pipeline, &err), "%s", err.message);
        if (!pipeline)
            continue;
        draw(pipeline, i ? "bf16, one image" : "f32, one image", 1);
        draw(pipeline, i ? "bf16, three images" : "f32, three images", 3);
        pipeline_destroy(pipeline);
    }
    return check_done();
}
