/* Inside the emulator: hides a kernel's writes from the next kernel, which is launched to overlap
 * it.
 *
 * While a kernel is watched, the old contents of the pages it writes are saved. A block of the next
 * kernel then runs as far as it can without the first kernel's results: the bytes that the first
 * kernel changed are poison, and all device memory is write-protected. The results become visible
 * when no thread can continue without them. */
#ifndef TESTS_CUDA_EMULATOR_OVERLAP_H
#define TESTS_CUDA_EMULATOR_OVERLAP_H

void emulator_writes_watch(void);
/* Ends the watch. What was recorded is kept until emulator_writes_forget. */
void emulator_writes_end(void);
void emulator_writes_forget(void);
void emulator_writes_hide(void);
void emulator_writes_show(void);

#endif
