/* Checks whether text from outside is UTF-8, and repairs text that was cut at a buffer's end. */
#ifndef BASE_TEXT_UTF8_H
#define BASE_TEXT_UTF8_H

#include <stddef.h>

/* Returns the length in bytes of the character at `text`, which has `left` bytes, at least 1.
 * Returns 0 if the bytes are not UTF-8; overlong forms and surrogates count as not UTF-8. Returns
 * -1 if the character is cut after `left` bytes. */
int utf8_character_bytes(const char *text, size_t left);

/* Returns the number of valid bytes before the first that is not UTF-8; `size` if all are valid. */
size_t utf8_valid_bytes(const char *text, size_t size);

/* Removes an incomplete character from the end of a text that was cut. */
void utf8_drop_cut_character(char *text);

#endif
