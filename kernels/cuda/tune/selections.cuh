/* Inside kernels/cuda/: which candidate was selected for a shape, for one kind of operation.
 *
 * same_shape compares shapes. By default it compares bytes, so a shape must be cleared before it is
 * filled in; a kind of operation may overload it.
 */
#ifndef KERNELS_CUDA_TUNE_SELECTIONS_CUH
#define KERNELS_CUDA_TUNE_SELECTIONS_CUH

#include "base/limits.h"
#include "kernels/cuda/tune/tuner.h"

extern "C" {
#include "base/list.h"
}

#include <string.h>

template <class SHAPE> static bool same_shape(const SHAPE *a, const SHAPE *b) {
    return memcmp(a, b, sizeof(*a)) == 0;
}

template <class SHAPE, class CANDIDATE> struct selections {
    struct entry {
        SHAPE shape;
        CANDIDATE candidate;
    } * entries; /* owned, never freed */
    int count;

    int index_of(const SHAPE *shape) const {
        int i = 0;
        while (i < count && !same_shape(&entries[i].shape, shape))
            i++;
        return i;
    }

    /* Selects `candidate` for the shape. Returns false if there is no room. */
    bool put(const SHAPE *shape, const CANDIDATE *candidate) {
        const int i = index_of(shape);
        if (i == count && (i == TUNER_SHAPES_MAX || !LIST_ROOM(entries, i, "a choice", NULL)))
            return false;
        entries[i].shape = *shape;
        entries[i].candidate = *candidate;
        count += i == count;
        return true;
    }

    void clear() {
        count = 0;
    }

    /* Returns the selected candidate, or NULL. Registers a new shape with the tuner, which may
     * select a candidate at once. */
    const CANDIDATE *find(const SHAPE *shape, const struct tunable *tunable) {
        int i = index_of(shape);
        if (i == count && tuner_note(tunable, shape))
            i = index_of(shape);
        return i < count ? &entries[i].candidate : NULL;
    }
};

#endif
