#include "models/weights.h"

#include "base/list.h"

#include <stdlib.h>
#include <string.h>

bool weight_list_add(
    struct weight_list *list, const struct named_weight *weight, struct error *err) {
    if (!LIST_ROOM(list->items, list->count, "the names of weights", err))
        return false;
    list->items[list->count++] = *weight;
    return true;
}

bool weight_list_add_resident(
    struct weight_list *list, const struct named_resident *resident, struct error *err) {
    if (!LIST_ROOM(list->residents, list->resident_count, "the names of norms", err))
        return false;
    list->residents[list->resident_count++] = *resident;
    return true;
}

void weight_list_finish(struct weight_list *list) {
    free(list->items);
    free(list->residents);
    *list = (struct weight_list){ 0 };
}
