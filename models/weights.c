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

bool weight_list_add_resident(
    struct weight_list *list, const struct named_resident *resident, struct error *err) {
    if (list->resident_count == list->resident_capacity) {
        const size_t capacity = list->resident_capacity ? 2 * list->resident_capacity : 64;
        struct named_resident *residents = reallocarray(
            list->residents, capacity, sizeof(*residents));
        if (!residents)
            return error_set(
                err, ERROR_NO_MEMORY, "no memory for the names of %zu norms", capacity);
        list->residents = residents;
        list->resident_capacity = capacity;
    }
    list->residents[list->resident_count++] = *resident;
    return true;
}

void weight_list_finish(struct weight_list *list) {
    free(list->items);
    free(list->residents);
    *list = (struct weight_list){ 0 };
}
