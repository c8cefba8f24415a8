/* PTX instructions in C++, for the host branch of kernels/cuda/ptx.cuh. The arguments are those of
 * the wrappers there: register fragments, and plain pointers where PTX takes shared addresses. */
#ifndef TESTS_CUDA_EMULATOR_TWINS_H
#define TESTS_CUDA_EMULATOR_TWINS_H

#include "tests/cuda-emulator/scheduler.h"

#include <stdint.h>

enum emulator_element { EMULATOR_F16, EMULATOR_BF16 };

/* Dies unless the emulated device has this instruction. */
void emulator_need(int capability, const char *what);
bool emulator_has(int capability);

/* The offset of a block's dynamic shared memory in the shared window. The driver uses the first
 * kilobyte, as on sm_90. */
#define EMULATOR_SHARED_WINDOW 1024u
uint32_t emulator_shared_address(const void *shared);

/* c[16][8] += a[16][k] b[k][8]. All lanes of the warp must call it. */
void emulator_mma_m16n8k16(
    float *c, const uint32_t *a, const uint32_t *b, enum emulator_element element);
void emulator_mma_m16n8k8(float *c, const uint32_t *a, uint32_t b);

/* Loads `count` 8x8 matrices of 16-bit elements. Lane 8 i + r gives the address of row r of matrix
 * i. */
void emulator_ldmatrix(uint32_t *r, const void *row, int count, bool transpose);

/* cp.async: the bytes arrive when the thread waits for their group, not before. */
void emulator_cp_async_16(void *shared, const void *global, int bytes);
void emulator_cp_async_commit(void);
void emulator_cp_async_wait(int pending);
struct emulator_copies *emulator_copies_create(void);
void emulator_copies_exit(struct emulator_thread *t);

void emulator_griddepcontrol_wait(void);
void emulator_griddepcontrol_launch(void);

/* The state that hopper.cpp and wgmma.cpp keep for each thread and each block. The _exit functions
 * die if a thread ends with wgmma that it has not waited for, or if the warps of a group made
 * different calls. */
void emulator_mbarriers_exit(const struct emulator_thread *t);
struct emulator_products *emulator_products_create(void);
void emulator_products_exit(struct emulator_thread *t);
void emulator_products_begin(unsigned rank);
void emulator_products_end(unsigned rank);

/* Dies unless [pointer, pointer + bytes) is aligned and lies in the dynamic shared memory of the
 * thread's block. */
void emulator_need_shared(const void *pointer, size_t bytes, size_t alignment, const char *what);

#endif
