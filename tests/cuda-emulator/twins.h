/* What PTX does, for the host branch of kernels/cuda/ptx.cuh. The arguments are the wrappers':
 * register fragments, and plain pointers where PTX takes shared addresses. */
#ifndef TESTS_CUDA_EMULATOR_TWINS_H
#define TESTS_CUDA_EMULATOR_TWINS_H

#include "tests/cuda-emulator/scheduler.h"

#include <stdint.h>

enum emulator_element { EMULATOR_F16, EMULATOR_BF16 };

/* Dies unless the device that is played has this instruction. */
void emulator_need(int capability, const char *what);
bool emulator_has(int capability);

/* Where a block's dynamic shared memory begins in the shared window: the first kilobyte is the
 * driver's, as on sm_90. */
#define EMULATOR_SHARED_WINDOW 1024u
uint32_t emulator_shared_address(const void *shared);

/* c[16][8] += a[16][k] b[k][8]; all lanes. */
void emulator_mma_m16n8k16(
    float *c, const uint32_t *a, const uint32_t *b, enum emulator_element element);
void emulator_mma_m16n8k8(float *c, const uint32_t *a, uint32_t b);

/* `count` 8x8 matrices of 16-bit elements; lane 8 i + r gives the address of row r of matrix i. */
void emulator_ldmatrix(uint32_t *r, const void *row, int count, bool transpose);

/* cp.async: the bytes arrive when the thread waits for their group, not before. */
void emulator_cp_async_16(void *shared, const void *global, int bytes);
void emulator_cp_async_commit(void);
void emulator_cp_async_wait(int pending);
struct emulator_copies *emulator_copies_create(void);
void emulator_copies_exit(struct emulator_thread *t);

void emulator_griddepcontrol_wait(void);
void emulator_griddepcontrol_launch(void);

/* hopper.cpp, wgmma.cpp: what a thread has, and a block; they die if it leaves wgmma that nobody
 * waited for, or if warps of a group did not do the same. */
void emulator_mbarriers_exit(const struct emulator_thread *t);
struct emulator_products *emulator_products_create(void);
void emulator_products_exit(struct emulator_thread *t);
void emulator_products_begin(unsigned rank);
void emulator_products_end(unsigned rank);

/* Dies unless [pointer, pointer + bytes) is dynamic shared memory of the thread's block and
 * aligned. */
void emulator_need_shared(const void *pointer, size_t bytes, size_t alignment, const char *what);

#endif
