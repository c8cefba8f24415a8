/* Inside kernels/cuda/: which candidate was selected for a shape, for one kind of operation.
 *
 * Shapes are compared by same_shape: as bytes, so that whoever makes one clears it first, unless
 * the kind of operation has an overload. */
#ifndef KERNELS_CUDA_SELECTIONS_CUH
#define KERNELS_CUDA_SELECTIONS_CUH

#include "kernels/cuda/room.cuh"
#include "kernels/cuda/tuner.h"

#include <string.h>

template <class SHAPE> static bool same_shape(const SHAPE *a, const SHAPE *b) {
    return memcmp(a, b, sizeof(*a)) == 0;
}

template <class SHAPE, class CANDIDATE> struct selections {
    struct entry {
        SHAPE shape;
        CANDIDATE candidate;
    } * entries; /* owned, for good */
    int count, room;

    int index_of(const SHAPE *shape) const {
        int i = 0;
        while (i < count && !same_shape(&entries[i].shape, shape))
            i++;
        return i;
    }

    /* False if there is no room. */
    bool put(const SHAPE *shape, const CANDIDATE *candidate) {
        const int i = index_of(shape);
        if (!make_room(&entries, i, &room))
            return false;
        entries[i].shape = *shape;
        entries[i].candidate = *candidate;
        count += i == count;
        return true;
    }

    void clear() {
        count = 0;
    }

    /* NULL if nothing was selected. A shape that is new is made known to the tuner, which may
     * select something at once. */
    const CANDIDATE *find(const SHAPE *shape, const struct tunable *tunable) {
        int i = index_of(shape);
        if (i == count && tuner_note(tunable, shape))
            i = index_of(shape);
        return i < count ? &entries[i].candidate : NULL;
    }
};

#endif
