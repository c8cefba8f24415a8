/* Texts from outside, which may be no UTF-8, and buffers that cut them. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stddef.h>

/* How many bytes the character at `text` takes, at most `left`, which is above 0; 0 if it is not
 * UTF-8 (overlong forms and surrogates are not), -1 if it is the beginning of a character that goes
 * on past `left`. */
int utf8_character_bytes(const char *text, size_t left);

/* The number of bytes before the first that is not UTF-8; `size` if all is well. */
size_t utf8_valid_bytes(const char *text, size_t size);

/* Takes the beginning of a character from the end of a text that was cut inside of it. */
void utf8_drop_cut_character(char *text);

#endif
