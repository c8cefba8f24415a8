/* A question that long work asks now and then: whether it has become pointless, because its client
 * has left or the daemon stops. */
#ifndef BASE_CANCEL_H
#define BASE_CANCEL_H

#include <stdbool.h>

struct cancel {                /* zeroed: never */
    bool (*asked)(void *user); /* called often, from any thread */
    void *user;
};

static inline bool cancel_is_asked(struct cancel cancel) {
    return cancel.asked && cancel.asked(cancel.user);
}

#endif
