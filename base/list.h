/* Lists that grow by one item at a time: an array, NULL at first, and the number of its items. The
 * capacity is not stored, because it is always the next power of two. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* Makes room for one item after `count` items. `items` is the address of the array's pointer.
 * ERROR_NO_MEMORY: "no memory for WHAT". */
static inline bool list_room(
    void *items, size_t count, size_t size, const char *what, struct error *err) {
    void *old, *grown;
    if (count & (count - 1))
        return true;
    memcpy(&old, items, sizeof(old));
    grown = reallocarray(old, count ? 2 * count : 1, size);
    if (!grown)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %s", what);
    memcpy(items, &grown, sizeof(grown));
    return true;
}

#define LIST_ROOM(items, count, what, err)                                                         \
    list_room(&(items), (size_t)(count), sizeof(*(items)), what, err)

#endif
