#include "models/weights.h"

#include <stdlib.h>
#include <string.h>

bool weight_list_add(
    struct weight_list *list, const struct named_weight *weight, struct error *err) {
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity ? 2 * list->capacity : 64;
        struct named_weight *items = reallocarray(list->items, capacity, sizeof(*items));
        if (!items)
            return error_set(
                err, ERROR_NO_MEMORY, "no memory for the names of %zu weights", capacity);
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = *weight;
    return true;
}

const struct named_weight *weight_list_find(const struct weight_list *list, const char *name) {
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].name, name) == 0)
            return &list->items[i];
    return NULL;
}

void weight_list_finish(struct weight_list *list) {
    free(list->items);
    *list = (struct weight_list){ 0 };
}
