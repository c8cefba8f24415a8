/* Hexadecimal digits. */
#ifndef BASE_TEXT_HEX_H
#define BASE_TEXT_HEX_H

#include <stddef.h>

/* Writes 2 * count lower-case digits and a NUL. */
static inline void hex_write(char *out, const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        *out++ = "0123456789abcdef"[bytes[i] >> 4];
        *out++ = "0123456789abcdef"[bytes[i] & 15];
    }
    *out = '\0';
}

#endif
