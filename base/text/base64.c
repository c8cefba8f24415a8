#include "base/text/base64.h"

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

/* Returns the value of a digit, 0..63; -1 if it is none. */
static int digit_value(char c) {
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

bool base64_decode(const char *text, size_t length, void **out, size_t *out_size, size_t *wrong) {
    size_t digits = length;
    while (digits > 0 && length - digits < 2 && text[digits - 1] == '=')
        digits--;
    const size_t padding = length - digits;
    uint8_t *bytes = malloc(length / 4 * 3 + 1);
    *out = NULL;
    *wrong = SIZE_MAX;
    if (!bytes)
        return false;
    uint32_t group = 0;
    size_t size = 0;
    for (size_t i = 0; i < digits; i++) {
        const int value = digit_value(text[i]);
        if (value < 0) {
            *wrong = i;
            break;
        }
        group = group << 6 | (uint32_t)value;
        if (i % 4 == 3) {
            bytes[size++] = (uint8_t)(group >> 16);
            bytes[size++] = (uint8_t)(group >> 8);
            bytes[size++] = (uint8_t)group;
            group = 0;
        }
    }
    if (*wrong == SIZE_MAX && length % 4 != 0)
        *wrong = length;
    /* The unused bits of the last digit must be 0. */
    if (*wrong == SIZE_MAX && padding > 0 && (group & (padding == 1 ? 3u : 15u)))
        *wrong = digits - 1;
    if (*wrong != SIZE_MAX) {
        free(bytes);
        return false;
    }
    if (padding > 0)
        bytes[size++] = (uint8_t)(padding == 1 ? group >> 10 : group >> 4);
    if (padding == 1)
        bytes[size++] = (uint8_t)(group >> 2);
    *out = bytes;
    *out_size = size;
    return true;
}
