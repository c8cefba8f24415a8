/* Finds a layer in a list of weights by its name. */
#ifndef TESTS_MODELS_FIND_WEIGHT_H
#define TESTS_MODELS_FIND_WEIGHT_H

#include "models/weights.h"

#include <string.h>

/* Returns NULL if no layer has this name. */
static inline const struct named_weight *weight_list_find(
    const struct weight_list *list, const char *name) {
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].name, name) == 0)
            return &list->items[i];
    return NULL;
}

#endif
