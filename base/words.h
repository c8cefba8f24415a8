/* Words in messages, and names that people give to things. */
#ifndef BASE_WORDS_H
#define BASE_WORDS_H

#include "base/error.h"

#include <stddef.h>

/* "a, b or c" for the conjunction " or ", every word in `quote` ("" for none); "a, b, ..." where
 * that does not fit. Returns `out`. */
const char *words_list(char *out, size_t size, const char *const *words, size_t count,
    const char *quote, const char *conjunction);

/* Whether it is at most ADAPTER_NAME_MAX_BYTES letters, digits, '.', '_' and '-', the first a
 * letter or digit: a name that is also a file's, and never leads out of its folder. */
bool words_are_name(const char *text, size_t length);
/* The same as a check: ERROR_INVALID names `param`. */
bool words_check_name(const char *param, const char *name, struct error *err)
    __attribute__((warn_unused_result));

#endif
