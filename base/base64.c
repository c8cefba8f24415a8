#include "base/base64.h"

#include <stdint.h>
#include <stdlib.h>

char *base64_encode(const void *data, size_t size, size_t *out_length) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *bytes = data;
    if (size > SIZE_MAX / 4 * 3 - 6)
        return NULL;
    size_t length = (size + 2) / 3 * 4;
    char *text = malloc(length + 1), *out = text;
    if (!text)
        return NULL;
    size_t i = 0;
    for (; i + 3 <= size; i += 3) {
        uint32_t group = (uint32_t)bytes[i] << 16 | (uint32_t)bytes[i + 1] << 8 | bytes[i + 2];
        *out++ = digits[group >> 18];
        *out++ = digits[group >> 12 & 63];
        *out++ = digits[group >> 6 & 63];
        *out++ = digits[group & 63];
    }
    if (i < size) {
        uint32_t group = (uint32_t)bytes[i] << 16;
        if (i + 1 < size)
            group |= (uint32_t)bytes[i + 1] << 8;
        *out++ = digits[group >> 18];
        *out++ = digits[group >> 12 & 63];
        *out++ = i + 1 < size ? digits[group >> 6 & 63] : '=';
        *out++ = '=';
    }
    *out = 0;
    if (out_length)
        *out_length = length;
    return text;
}
