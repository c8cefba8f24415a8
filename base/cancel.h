/* A question that long work asks now and then: whether it has become pointless, because its client
 * has left or the daemon stops. */
#ifndef BASE_CANCEL_H
#define BASE_CANCEL_H

#include <stdbool.h>
#include <stddef.h>

struct cancel {
    bool (*asked)(void *user); /* any thread, often; NULL: never */
    void *user;
};

#define CANCEL_NEVER ((struct cancel){ NULL, NULL })

static inline bool is_cancelled_by(struct cancel cancel) {
    return cancel.asked && cancel.asked(cancel.user);
}

#endif
