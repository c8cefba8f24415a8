#include "kernels/compute/arena.h"
#include "tests/check.h"

#include <stdint.h>

static void stack_of_aligned_blocks(void) {
    struct error err = { 0 };
    struct arena *arena;
    CHECK(arena_create(&host_memory, &arena, &err), "%s", err.message);
    CHECK(!arena_alloc(arena, 1), "nothing is reserved yet");
    unsigned generation = arena_generation(arena);
    CHECK(arena_reserve(arena, 1000, &err), "%s", err.message);
    CHECK(arena_generation(arena) != generation, "new memory");
    generation = arena_generation(arena);
    CHECK(arena_reserve(arena, 900, &err), "%s", err.message);
    CHECK(arena_generation(arena) == generation, "the same memory");
    size_t reserved = arena_reserved_bytes(arena);
    CHECK(reserved >= 1000, "%zu bytes", reserved);
    char *a = arena_alloc(arena, 1), *b = arena_alloc(arena, 100);
    CHECK(a && b && (uintptr_t)a % 256 == 0 && (uintptr_t)b % 256 == 0 && b >= a + 256, "aligned");
    memset(b, 7, 100);
    CHECK(!arena_reserve(arena, 2 * reserved, &err), "no growth while in use");
    CHECK_CONTAINS(err.message, "in use");
    size_t mark = arena_mark(arena);
    char *d = arena_alloc(arena, reserved / 2);
    CHECK(d && !arena_alloc(arena, reserved), "too much is refused");
    arena_release(arena, mark);
    CHECK(arena_alloc(arena, reserved / 2) == d, "given back and taken again");
    arena_release(arena, 0);
    CHECK(arena_reserve(arena, 2 * reserved, &err), "an empty arena grows");
    CHECK(!arena_alloc(arena, SIZE_MAX), "SIZE_MAX");
    CHECK(!arena_reserve(arena, SIZE_MAX, &err) && err.code == ERROR_NO_MEMORY, "SIZE_MAX");
    CHECK(!arena_reserve(arena, (size_t)1 << 60, &err) && err.code == ERROR_NO_MEMORY, "2^60");
    arena_destroy(arena);
    arena_destroy(NULL);
}

static void a_plan_counts_the_peak(void) {
    struct error err = { 0 };
    struct arena *arena;
    CHECK(arena_create(&host_memory, &arena, &err), "%s", err.message);
    arena_plan_begin(arena);
    void *a = arena_alloc(arena, 100); /* takes 256 bytes, because of the alignment */
    size_t mark = arena_mark(arena);
    void *b = arena_alloc(arena, 1000); /* 1024 */
    CHECK(a && b && a != b, "distinct addresses");
    CHECK(arena_alloc(arena, 0) != arena_alloc(arena, 0), "even of nothing");
    arena_release(arena, mark);
    CHECK(arena_alloc(arena, 500) != a, "distinct addresses"); /* 512 */
    CHECK(!arena_alloc(arena, SIZE_MAX / 2), "absurd sizes are refused in a plan, too");
    size_t peak = arena_plan_end(arena);
    CHECK(peak == 256 + 1024 + 2 * 256, "the peak is %zu, not %d", peak, 256 + 1024 + 512);
    CHECK(!arena_alloc(arena, 1), "planning reserves nothing");
    arena_destroy(arena);
}

int main(void) {
    stack_of_aligned_blocks();
    a_plan_counts_the_peak();
    return check_done();
}
