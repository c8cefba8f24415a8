/* Lists which implementation a device uses for each operation (struct kernels' implementations), as
 * JSON and as text. */
#ifndef ENGINE_LOOP_IMPLEMENTATIONS_H
#define ENGINE_LOOP_IMPLEMENTATIONS_H

#include "kernels/kernels.h"

#include <jansson.h>
#include <stdio.h>

/* Returns the device's list for weights of this dtype, or NULL if it has none. */
const struct implementation *implementations_of(
    const struct kernels *kernels, enum dtype weight_dtype);

/* Returns {"conv 3x3": "oneDNN, bf16", ...}, or JSON null if `list` is NULL. The caller owns it. */
json_t *implementations_json(const struct implementation *list);

/* Prints one line per operation. Prints nothing if `list` is NULL. */
void implementations_print(const struct implementation *list, FILE *to);

#endif
