/* Lists of words for messages, and names that users choose. */
#ifndef BASE_TEXT_WORDS_H
#define BASE_TEXT_WORDS_H

#include "base/error.h"

#include <stddef.h>

/* Writes "a, b or c", for the conjunction " or ", with each word in `quote` ("": no quotes). Writes
 * "a, b, ..." if the list does not fit. Returns `out`. */
const char *words_list(char *out, size_t size, const char *const *words, size_t count,
    const char *quote, const char *conjunction);

/* Returns whether the text is a valid name: at most ADAPTER_NAME_MAX_BYTES letters, digits, '.',
 * '_' and '-', beginning with a letter or digit. Such a name is safe as a file name in a folder. */
bool words_are_name(const char *text, size_t length);
/* Checks the name like words_are_name. ERROR_INVALID names `param`. */
bool words_check_name(const char *param, const char *name, struct error *err)
    __attribute__((warn_unused_result));

#endif
