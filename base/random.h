/* Random bytes from the system, for ids, seeds and secrets. Any thread. */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H

#include "base/error.h"
#include "base/text/hex.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>

static inline bool random_fill(void *out, size_t bytes, struct error *err) {
    return getrandom(out, bytes, 0) == (ssize_t)bytes ||
           error_set(err, ERROR_IO, "the system gives no random numbers: %s", strerror(errno));
}

/* Writes 2 * bytes hexadecimal digits and a NUL. `bytes` is at most 32. */
static inline bool random_text(char *out, size_t bytes, struct error *err) {
    unsigned char random[32];
    if (!random_fill(random, bytes, err))
        return false;
    hex_write(out, random, bytes);
    explicit_bzero(random, sizeof(random));
    return true;
}

/* 32 random bits: all that torch's CPU generator uses of a seed. */
static inline bool random_seed(uint32_t *out, struct error *err) {
    return random_fill(out, sizeof(*out), err);
}

#endif
