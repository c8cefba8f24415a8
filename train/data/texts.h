/* Memory for captions and names that are freed together, and the checks for captions. A zeroed
 * struct texts is empty. */
#ifndef TRAIN_DATA_TEXTS_H
#define TRAIN_DATA_TEXTS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct texts {
    struct texts_chunk *chunks; /* owned */
};

/* Adds a copy of a text, with a NUL at its end. It lives until texts_finish. Returns NULL with
 * ERROR_NO_MEMORY. */
const char *texts_add(struct texts *texts, const char *text, size_t length, struct error *err)
    __attribute__((warn_unused_result));
void texts_finish(struct texts *texts);

/* Checks that a caption is UTF-8, has no NUL, and has at most PROMPT_MAX_BYTES. ERROR_INVALID says
 * what is wrong. */
bool caption_check(const char *text, size_t length, struct error *err)
    __attribute__((warn_unused_result));

/* Parses the captions in a text file beside a picture: one per line that is not blank, without
 * surrounding spaces. Skips a byte order mark. Fills in at most `max` captions. */
bool captions_parse(const char *file, size_t size, struct texts *texts, const char **captions,
    int max, int *count, struct error *err) __attribute__((warn_unused_result));

/* Returns the length of the byte order mark at the beginning of a file: 0 or 3. */
size_t utf8_mark_bytes(const char *file, size_t size);

#endif
