/* Lets threads take turns with a device that only one thread at a time may use (kernels/memory.h).
 * The engine thread takes the device for one unit of work, a loading thread for one pair or one
 * weight. Turns are given in the order of asking, so neither thread waits for more than one piece
 * of the other's work. On the CPU nothing waits. */
#include "engine/adapters/internal.h"

bool device_is_shared(const struct adapters *adapters) {
    return !adapters || adapters->base.kernels->device == DEVICE_CPU;
}

void adapters_device_take(struct adapters *adapters) {
    if (device_is_shared(adapters))
        return;
    struct device_turn *turn = &adapters->turn;
    pthread_mutex_lock(&turn->lock);
    if (turn->depth > 0 && pthread_equal(turn->holder, pthread_self())) {
        turn->depth++;
    } else {
        const uint64_t ticket = turn->next++;
        while (turn->now != ticket)
            pthread_cond_wait(&turn->given, &turn->lock);
        turn->holder = pthread_self();
        turn->depth = 1;
    }
    pthread_mutex_unlock(&turn->lock);
}

void adapters_device_give(struct adapters *adapters) {
    if (device_is_shared(adapters))
        return;
    struct device_turn *turn = &adapters->turn;
    pthread_mutex_lock(&turn->lock);
    if (--turn->depth == 0) {
        turn->now++;
        pthread_cond_broadcast(&turn->given);
    }
    pthread_mutex_unlock(&turn->lock);
}
