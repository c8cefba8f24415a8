/* Inside the emulator: device memory and shared memory, poisoned and guarded. */
#ifndef TESTS_CUDA_EMULATOR_MEMORY_H
#define TESTS_CUDA_EMULATOR_MEMORY_H

#include <stddef.h>

/* Whether device memory and fibers are under AddressSanitizer's eyes; given on the command line to
 * sources that are not instrumented themselves. */
#if !defined(EMULATOR_ASAN) && defined(__SANITIZE_ADDRESS__)
#define EMULATOR_ASAN 1
#elif !defined(EMULATOR_ASAN)
#define EMULATOR_ASAN 0
#endif

/* NaN in f32, f16 and bf16, -1 as an integer. */
#define EMULATOR_POISON 0xff

/* Device memory; NULL if the device is full. Filled with poison. */
void *emulator_device_alloc(size_t bytes);
/* False if it is none of ours. */
bool emulator_device_free(void *pointer);
/* Whether [pointer, pointer + bytes) lies within one allocation. */
bool emulator_is_device(const void *pointer, size_t bytes);
/* Whether the pointer is into the space of the device at all. */
bool emulator_in_device_space(const void *pointer);
/* The pages of the allocation that holds this page, all of them ours to protect; false: none does.
 */
bool emulator_device_pages(const void *pointer, unsigned char **first, size_t *bytes);
/* Of all allocations: PROT_READ, with or without PROT_WRITE. */
void emulator_device_protect(int protection);
size_t emulator_device_free_bytes(void);
size_t emulator_device_total(void);
/* Dies if anything was written between the allocations; `after` says what ran. */
void emulator_device_check(const char *after);
/* Frees everything, as cudaDeviceReset does. */
void emulator_device_reset(void);

/* Dynamic shared memory of block `rank` of the cluster that runs: exactly `bytes`, poisoned,
 * 1024-byte aligned. After leave it may not be touched any more; check returns NULL or what
 * happened to it. */
unsigned char *emulator_shared_enter(unsigned rank, size_t bytes);
void emulator_shared_leave(unsigned rank);
const char *emulator_shared_check(unsigned rank);
size_t emulator_shared_bytes(void);

#endif
