/* Lets long work ask from time to time whether its result is still wanted. The result is unwanted
 * once the client has disconnected or the daemon is stopping. */
#ifndef BASE_CANCEL_H
#define BASE_CANCEL_H

#include <stdbool.h>

struct cancel {                /* zeroed: never cancelled */
    bool (*asked)(void *user); /* called often, from any thread */
    void *user;
};

static inline bool cancel_is_asked(struct cancel cancel) {
    return cancel.asked && cancel.asked(cancel.user);
}

#endif
