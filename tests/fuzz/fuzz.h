/* The entry point that libFuzzer calls. Without libFuzzer, replay.c calls it with the committed
 * corpus. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline void promise(bool kept) {
    if (!kept)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
