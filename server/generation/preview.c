#include "server/generation/preview.h"

#include <stdlib.h>

void preview_ref(struct preview *preview) {
    __atomic_add_fetch(&preview->references, 1, __ATOMIC_RELAXED);
}

void preview_unref(struct preview *preview) {
    if (preview && __atomic_sub_fetch(&preview->references, 1, __ATOMIC_ACQ_REL) == 0)
        free(preview);
}
