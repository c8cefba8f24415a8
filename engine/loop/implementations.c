#include "engine/loop/implementations.h"

const struct implementation *implementations_of(
    const struct kernels *kernels, enum dtype weight_dtype) {
    return kernels->implementations ? kernels->implementations(weight_dtype) : NULL;
}

json_t *implementations_json(const struct implementation *list) {
    json_t *object = list ? json_object() : json_null();
    for (; list && list->layer; list++)
        json_object_set_new(object, list->layer, json_string(list->code));
    return object;
}

void implementations_print(const struct implementation *list, FILE *to) {
    for (; list && list->layer; list++)
        fprintf(to, "  %-36s %s\n", list->layer, list->code);
}
