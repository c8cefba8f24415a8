/* Inside kernels/cuda/: tables with an entry for each shape seen so far. */
#ifndef KERNELS_CUDA_ROOM_CUH
#define KERNELS_CUDA_ROOM_CUH

#include "base/limits.h"

#include <stdlib.h>

/* Makes room for one more entry after `count`, up to TUNER_SHAPES_MAX. Returns false if there is
 * none. */
template <class T> static bool make_room(T **entries, int count, int *room) {
    if (count < *room)
        return true;
    const int wanted = *room ? 2 * *room : 256;
    T *grown = wanted <= TUNER_SHAPES_MAX ? (T *)realloc(*entries, (size_t)wanted * sizeof(T))
                                          : NULL;
    if (!grown)
        return false;
    *entries = grown;
    *room = wanted;
    return true;
}

#endif
