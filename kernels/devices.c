#include "kernels/devices.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

#define INDEX_MAX 999

bool device_choice_parse(const char *text, struct device_choice *out) {
    struct device_choice choice = { 0 };
    if (strcmp(text, "auto") == 0) {
        choice.automatic = true;
    } else if (strcmp(text, "cpu") == 0) {
        choice.kind = DEVICE_CPU;
    } else if (strcmp(text, "cuda") == 0) {
        choice.kind = DEVICE_CUDA;
    } else if (strncmp(text, "cuda:", 5) == 0 && text[5] >= '0' && text[5] <= '9') {
        char *end;
        long index = strtol(text + 5, &end, 10);
        if (*end || index > INDEX_MAX)
            return false;
        choice.kind = DEVICE_CUDA;
        choice.index = (int)index;
    } else {
        return false;
    }
    *out = choice;
    return true;
}

const struct kernels *devices_open(const struct device_choice *choice, struct error *err) {
    if (!choice->automatic && choice->kind == DEVICE_CPU)
        return kernels_cpu();
    struct error why = { 0 };
    const struct kernels *kernels = kernels_cuda(choice->automatic ? 0 : choice->index, &why);
    if (kernels)
        return kernels;
    if (!choice->automatic) {
        if (err)
            *err = why;
        return NULL;
    }
    log_info("computing on the CPU: %s", why.message);
    return kernels_cpu();
}
