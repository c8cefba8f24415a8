#include "train/data/read_ahead.h"

#include "base/limits.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A picture on its way. */
struct slot {
    size_t index;
    struct crop crop;
    bool with_mask;
    bool done, ok;
    float *pixels, *mask; /* owned; NULL until it is read */
    struct error error;
};

struct read_ahead {
    const struct dataset *dataset; /* borrowed */
    struct slot *slots;            /* owned: picture n is in slot n % ahead */
    int ahead;
    pthread_t threads[DATASET_THREADS_MAX];
    int thread_count;
    pthread_mutex_t mutex; /* guards what follows, and the slots' `done` */
    pthread_cond_t asked_more, done_more;
    uint64_t asked, begun, taken; /* counts of pictures */
    bool stopping;
};

static size_t pixels_of(const struct read_ahead *r, const struct slot *slot) {
    const struct bucket size = dataset_item(r->dataset, slot->index)->placement.bucket;
    return (size_t)size.width * (size_t)size.height;
}

static void read_slot(const struct read_ahead *r, struct slot *slot) {
    const size_t count = pixels_of(r, slot);
    slot->pixels = malloc(count * 3 * sizeof(float));
    slot->mask = slot->with_mask ? malloc(count * sizeof(float)) : NULL;
    if (!slot->pixels || (slot->with_mask && !slot->mask))
        slot->ok = error_set(
            &slot->error, ERROR_NO_MEMORY, "no memory for a picture of %zu pixels", count);
    else
        slot->ok = dataset_read(
            r->dataset, slot->index, &slot->crop, slot->pixels, slot->mask, &slot->error);
}

static void *work(void *argument) {
    struct read_ahead *r = argument;
    pthread_mutex_lock(&r->mutex);
    for (;;) {
        while (!r->stopping && r->begun == r->asked)
            pthread_cond_wait(&r->asked_more, &r->mutex);
        if (r->stopping)
            break;
        struct slot *slot = &r->slots[r->begun++ % (uint64_t)r->ahead];
        pthread_mutex_unlock(&r->mutex);
        read_slot(r, slot);
        pthread_mutex_lock(&r->mutex);
        slot->done = true;
        pthread_cond_signal(&r->done_more);
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

bool read_ahead_create(const struct dataset *dataset, int threads, int ahead,
    struct read_ahead **out, struct error *err) {
    struct read_ahead *r = calloc(1, sizeof(*r));
    *out = NULL;
    if (!r || !(r->slots = calloc((size_t)ahead, sizeof(*r->slots)))) {
        free(r);
        return error_set(err, ERROR_NO_MEMORY, "no memory to read pictures ahead");
    }
    r->dataset = dataset;
    r->ahead = ahead;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->asked_more, NULL);
    pthread_cond_init(&r->done_more, NULL);
    while (r->thread_count < threads && r->thread_count < DATASET_THREADS_MAX &&
           pthread_create(&r->threads[r->thread_count], NULL, work, r) == 0)
        r->thread_count++;
    if (r->thread_count == 0) {
        read_ahead_destroy(r);
        return error_set(err, ERROR_NO_MEMORY, "cannot start a thread that reads pictures");
    }
    *out = r;
    return true;
}

static void slot_empty(struct slot *slot) {
    free(slot->pixels);
    free(slot->mask);
    *slot = (struct slot){ 0 };
}

void read_ahead_destroy(struct read_ahead *r) {
    if (!r)
        return;
    pthread_mutex_lock(&r->mutex);
    r->stopping = true;
    pthread_cond_broadcast(&r->asked_more);
    pthread_mutex_unlock(&r->mutex);
    for (int i = 0; i < r->thread_count; i++)
        pthread_join(r->threads[i], NULL);
    for (int i = 0; i < r->ahead; i++)
        slot_empty(&r->slots[i]);
    pthread_cond_destroy(&r->done_more);
    pthread_cond_destroy(&r->asked_more);
    pthread_mutex_destroy(&r->mutex);
    free(r->slots);
    free(r);
}

/* Both counts are the caller's own thread's. */
int read_ahead_room(const struct read_ahead *r) {
    return r->ahead - (int)(r->asked - r->taken);
}

void read_ahead_ask(struct read_ahead *r, size_t index, const struct crop *crop, bool with_mask) {
    pthread_mutex_lock(&r->mutex);
    struct slot *slot = &r->slots[r->asked % (uint64_t)r->ahead];
    *slot = (struct slot){ .index = index, .crop = *crop, .with_mask = with_mask };
    r->asked++;
    pthread_cond_signal(&r->asked_more);
    pthread_mutex_unlock(&r->mutex);
}

bool read_ahead_ready(struct read_ahead *r) {
    pthread_mutex_lock(&r->mutex);
    const bool ready = r->taken < r->asked && r->slots[r->taken % (uint64_t)r->ahead].done;
    pthread_mutex_unlock(&r->mutex);
    return ready;
}

bool read_ahead_take(struct read_ahead *r, float *pixels, float *mask, struct error *err) {
    struct slot *slot = &r->slots[r->taken % (uint64_t)r->ahead];
    pthread_mutex_lock(&r->mutex);
    while (!slot->done)
        pthread_cond_wait(&r->done_more, &r->mutex);
    pthread_mutex_unlock(&r->mutex);
    const bool ok = slot->ok;
    const size_t count = pixels_of(r, slot);
    if (ok)
        memcpy(pixels, slot->pixels, count * 3 * sizeof(float));
    if (ok && mask)
        memcpy(mask, slot->mask, count * sizeof(float));
    if (!ok && err)
        *err = slot->error;
    slot_empty(slot);
    r->taken++;
    return ok;
}
