/* Inside the emulator: device memory and shared memory, poisoned and guarded. */
#ifndef TESTS_CUDA_EMULATOR_MEMORY_H
#define TESTS_CUDA_EMULATOR_MEMORY_H

#include <stddef.h>

/* Whether AddressSanitizer watches device memory and fibers. For sources that are compiled without
 * AddressSanitizer, the compiler's command line defines this macro. */
#if !defined(EMULATOR_ASAN) && defined(__SANITIZE_ADDRESS__)
#define EMULATOR_ASAN 1
#elif !defined(EMULATOR_ASAN)
#define EMULATOR_ASAN 0
#endif

/* NaN in f32, f16 and bf16, -1 as an integer. */
#define EMULATOR_POISON 0xff

/* Returns device memory filled with poison; NULL if the device is full. */
void *emulator_device_alloc(size_t bytes);
/* Returns false if the pointer is not an allocation of the emulator. */
bool emulator_device_free(void *pointer);
/* Whether [pointer, pointer + bytes) lies within one allocation. */
bool emulator_is_device(const void *pointer, size_t bytes);
/* Whether the pointer lies in the device's address range. */
bool emulator_in_device_space(const void *pointer);
/* Finds the pages of the allocation that contains `pointer`. They hold no other data, so they may
 * be protected. Returns false if no allocation contains it. */
bool emulator_device_pages(const void *pointer, unsigned char **first, size_t *bytes);
/* Sets the protection of all allocations: PROT_READ, with or without PROT_WRITE. */
void emulator_device_protect(int protection);
size_t emulator_device_free_bytes(void);
size_t emulator_device_total(void);
/* Dies if anything was written between the allocations; `after` names the work that ran last. */
void emulator_device_check(const char *after);
/* Frees everything, as cudaDeviceReset does. */
void emulator_device_reset(void);

/* emulator_shared_enter returns the dynamic shared memory of block `rank` of the running cluster:
 * exactly `bytes`, poisoned, 1024-byte aligned. It must not be touched after emulator_shared_leave.
 * emulator_shared_check returns NULL, or a description of the damage. */
unsigned char *emulator_shared_enter(unsigned rank, size_t bytes);
void emulator_shared_leave(unsigned rank);
const char *emulator_shared_check(unsigned rank);
size_t emulator_shared_bytes(void);

#endif
