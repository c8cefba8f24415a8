/* Captions and names that belong together and are freed together, and the checks that every caption
 * must pass. Zeroed to begin with. */
#ifndef TRAIN_DATA_TEXTS_H
#define TRAIN_DATA_TEXTS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct texts {
    struct texts_chunk *chunks; /* owned */
};

/* A copy with a NUL behind it, which stays until texts_finish; NULL with ERROR_NO_MEMORY. */
const char *texts_add(struct texts *texts, const char *text, size_t length, struct error *err)
    __attribute__((warn_unused_result));
void texts_finish(struct texts *texts);

/* UTF-8 without a NUL, at most PROMPT_MAX_BYTES: ERROR_INVALID says what is wrong with it. */
bool caption_check(const char *text, size_t length, struct error *err)
    __attribute__((warn_unused_result));

/* The captions of a file beside a picture: each line that is not blank is one, without the space
 * around it. A byte order mark is passed over. Fills at most `max` of them. */
bool captions_parse(const char *file, size_t size, struct texts *texts, const char **captions,
    int max, int *count, struct error *err) __attribute__((warn_unused_result));

/* How many bytes of a byte order mark a file begins with: 0 or 3. */
size_t utf8_mark_bytes(const char *file, size_t size);

#endif
