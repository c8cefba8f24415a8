/* The path that a gradient test runs on: the reference, the CPU at the level that LATENTD_CPU asks
 * for, or the CUDA device. A test keeps all numbers of its tensors in one block. A device has a
 * copy of the block: each operation of `path` copies the block to the device, runs there, and
 * copies it back. */
#ifndef TESTS_KERNELS_BACKWARD_PATH_H
#define TESTS_KERNELS_BACKWARD_PATH_H

#include "kernels/compute/compute.h"
#include "kernels/devices.h"
#include "tests/check.h"
#include "tests/kernels/cpu/level.h"

static const struct kernels *path_device;
static struct kernels path;   /* the table under test */
static uint64_t path_entered; /* OPERATION_BITs of the operations that were called */

/* The block, and the device's copy of it; on the CPU both are the block itself. */
static char *path_numbers, *path_copy;
static size_t path_bytes;

/* Returns the path's address for `number`, which lies in the block. */
static float *path_address(const float *number) {
    return (float *)(void *)(path_copy + ((const char *)number - path_numbers));
}

/* Returns a tensor of the block with the path's address and device. */
static inline struct tensor on_path(struct tensor t) {
    t.data = path_address(t.data);
    t.device = path.device;
    return t;
}

static bool path_send(struct error *err) {
    return path_copy == path_numbers ||
           path_device->memory->upload(path_copy, path_numbers, path_bytes, err);
}

static bool path_fetch(struct error *err) {
    if (path_copy == path_numbers)
        return true;
    const void *seen = path_device->memory->view(path_copy, path_bytes, err);
    if (seen)
        memcpy(path_numbers, seen, path_bytes);
    return seen != NULL;
}

#define ENTRY(name)                                                                                \
    static bool path_##name(const struct name##_args *args, struct error *err) {                   \
        path_entered |= OPERATION_BIT(name);                                                       \
        return path_send(err) && path_device->name(args, err) && path_fetch(err);                  \
    }
ALL_OPERATIONS(ENTRY)
#undef ENTRY

/* Opens the path: the reference without an argument, or "cpu" or "cuda". Returns 0, or the exit
 * status for main after printing the reason. */
static int path_open(int argc, char **argv, void *numbers, size_t bytes) {
    struct device_choice choice = { .kind = DEVICE_CPU };
    struct error err = { 0 };
    void *copy = numbers;
    if (level_is_missing())
        return 77;
    if (argc > 1 && !device_choice_parse(argv[1], &choice)) {
        printf("usage: %s [cpu|cuda]\n", argv[0]);
        return 2;
    }
    path_device = argc > 1 ? devices_open(&choice, &err) : kernels_reference();
    if (!path_device)
        return check_no_device(err.message);
    path = *path_device;
#define ENTRY(name) path.name = path_##name;
    ALL_OPERATIONS(ENTRY)
#undef ENTRY
    if (path.device != DEVICE_CPU &&
        !path_device->memory->alloc(MEMORY_ACTIVATIONS, bytes, &copy, &err)) {
        printf("%s\n", err.message);
        return 1;
    }
    path_numbers = numbers;
    path_copy = copy;
    path_bytes = bytes;
    printf("on %s, level %s\n", path.name, cpu_level()->name);
    return 0;
}

static void path_close(void) {
    if (path_copy != path_numbers)
        path_device->memory->release(MEMORY_ACTIVATIONS, path_copy, path_bytes);
}

#endif
