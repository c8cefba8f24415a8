/* Lists of words for messages. */
#ifndef BASE_TEXT_WORDS_H
#define BASE_TEXT_WORDS_H

#include <stddef.h>

/* Writes "a, b or c", for the conjunction " or ", with each word in `quote` ("": no quotes). Writes
 * "a, b, ..." if the list does not fit. Returns `out`. */
const char *words_list(char *out, size_t size, const char *const *words, size_t count,
    const char *quote, const char *conjunction);

#endif
