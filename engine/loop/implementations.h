/* Which implementation a device uses for which operation (struct kernels' implementations), for
 * people and programs. */
#ifndef ENGINE_LOOP_IMPLEMENTATIONS_H
#define ENGINE_LOOP_IMPLEMENTATIONS_H

#include "kernels/kernels.h"

#include <jansson.h>
#include <stdio.h>

/* The device's list for weights of this dtype, or NULL if it has none. */
const struct implementation *implementations_of(
    const struct kernels *kernels, enum dtype weight_dtype);

/* {"conv 3x3": "oneDNN, bf16", ...}; null for NULL. Owned by the caller. */
json_t *implementations_json(const struct implementation *list);

/* Prints one line per operation; nothing for NULL. */
void implementations_print(const struct implementation *list, FILE *to);

#endif
