#include "base/text/utf8.h"

#include <string.h>

int utf8_character_bytes(const char *text, size_t left) {
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0x80)
        return 1;
    const int length = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 0;
    for (int i = 1; i < length; i++) {
        if ((size_t)i == left)
            return -1;
        unsigned char low = 0x80, high = 0xbf;
        if (i == 1 && p[0] == 0xe0)
            low = 0xa0;
        else if (i == 1 && p[0] == 0xed)
            high = 0x9f;
        else if (i == 1 && p[0] == 0xf0)
            low = 0x90;
        else if (i == 1 && p[0] == 0xf4)
            high = 0x8f;
        if (p[i] < low || p[i] > high)
            return 0;
    }
    return length;
}

size_t utf8_valid_bytes(const char *text, size_t size) {
    size_t at = 0;
    while (at < size) {
        int bytes = utf8_character_bytes(text + at, size - at);
        if (bytes < 1)
            break;
        at += (size_t)bytes;
    }
    return at;
}

void utf8_drop_cut_character(char *text) {
    size_t size = strlen(text);
    for (size_t back = 1; back <= 3 && back <= size; back++) {
        if (utf8_character_bytes(text + size - back, back) < 0) {
            text[size - back] = 0;
            return;
        }
    }
}
