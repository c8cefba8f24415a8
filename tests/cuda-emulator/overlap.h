/* Inside the emulator: what a kernel wrote, kept from the one that is launched to overlap it.
 *
 * While a kernel is watched, the pages that it writes are kept as they were. A block of the kernel
 * behind then runs as far as it gets without the kernel ahead: what that one changed is poison, and
 * no device memory may be written at all. When every thread waits, or can do nothing else, all is
 * shown. */
#ifndef TESTS_CUDA_EMULATOR_OVERLAP_H
#define TESTS_CUDA_EMULATOR_OVERLAP_H

void emulator_writes_watch(void);
/* Ends the watch; what was seen stays, until it is forgotten. */
void emulator_writes_end(void);
void emulator_writes_forget(void);
void emulator_writes_hide(void);
void emulator_writes_show(void);

#endif
