/* Before the system's: the libraries of NVIDIA that are played here (cublaslt.h) are found under
 * their real names, whether they are installed or not; all others are the system's business. */
#ifndef TESTS_CUDA_EMULATOR_DLFCN_H
#define TESTS_CUDA_EMULATOR_DLFCN_H

#include_next <dlfcn.h>

#ifdef __cplusplus
extern "C" {
#endif

void *emulator_dlopen(const char *name, int flags);
void *emulator_dlsym(void *library, const char *name);

#ifdef __cplusplus
}
#endif

#define dlopen emulator_dlopen
#define dlsym emulator_dlsym

#endif
