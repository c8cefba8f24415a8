/* AUTOMATIC1111's prompt styles: texts with a name that are added to a prompt. They stand in a file
 * that AUTOMATIC1111 writes as styles.csv, with the columns name, prompt (formerly text) and
 * negative_prompt. Reading and merging follow its modules/styles.py. */
#ifndef SERVER_SDAPI_STYLES_H
#define SERVER_SDAPI_STYLES_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct sdapi_style {
    char *name, *prompt, *negative_prompt; /* owned */
};

/* Immutable. Of several styles with one name, the last one of the file is there. */
struct sdapi_styles {
    struct sdapi_style *items; /* owned, [count] */
    size_t count;
};

/* Reads a CSV file as Python's csv module does, with spaces after commas left out. Leaves out rows
 * whose name begins with '#'. ERROR_INVALID names the line. */
bool sdapi_styles_load(const char *path, struct sdapi_styles **out, struct error *err)
    __attribute__((warn_unused_result));
/* Reads the `size` bytes of such a file. */
bool sdapi_styles_parse(const char *text, size_t size, struct sdapi_styles **out, struct error *err)
    __attribute__((warn_unused_result));
void sdapi_styles_destroy(struct sdapi_styles *styles); /* NULL is fine */

/* Returns NULL if there is no such style. `styles` may be NULL. */
const struct sdapi_style *sdapi_styles_find(const struct sdapi_styles *styles, const char *name);

/* Puts a prompt into a style's text: in place of each "{prompt}", or else before it, after a comma.
 * Replaces *prompt, which is malloc'd. ERROR_INVALID without a field if it would have more
 * than PROMPT_MAX_BYTES; ERROR_NO_MEMORY. */
bool sdapi_style_merge(const char *style, char **prompt, struct error *err)
    __attribute__((warn_unused_result));

/* Returns the answer of GET /sdapi/v1/prompt-styles; NULL when memory is short. `styles` may be
 * NULL. */
json_t *sdapi_styles_json(const struct sdapi_styles *styles);

#endif
