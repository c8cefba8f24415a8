#include "train/data/read_ahead.h"

#include "base/limits.h"
#include "base/thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* An announced picture. */
struct slot {
    const struct dataset *dataset; /* borrowed */
    size_t index, bytes;
    struct crop crop;
    bool with_mask;
    bool done, ok;
    float *pixels; /* owned; the mask follows; NULL: not read yet */
};

struct read_ahead {
    struct slot *slots; /* owned: picture n is in slot n % ahead */
    int ahead, wanted;  /* number of pictures; number of threads */
    size_t bytes;       /* size of the announced pictures; reader's thread only */
    pthread_t threads[DATASET_THREADS_MAX];
    int thread_count;
    pthread_mutex_t mutex; /* guards the rest, and `done` of the slots */
    pthread_cond_t expected_more, done_more;
    uint64_t expected, begun, taken; /* counts; `taken` by the reader's thread only */
    bool stopping;
};

static size_t pixels_of(const struct dataset *dataset, size_t index) {
    const struct bucket size = dataset_item(dataset, index)->placement.bucket;
    return (size_t)size.width * (size_t)size.height;
}

/* Reads a slot's picture. If that fails, the reader reads the picture again and gets the error. */
static void read_slot(struct slot *slot) {
    const size_t count = pixels_of(slot->dataset, slot->index);
    struct error ignored;
    slot->pixels = malloc(slot->bytes);
    slot->ok = slot->pixels && dataset_read(slot->dataset, slot->index, &slot->crop, slot->pixels,
                                   slot->with_mask ? slot->pixels + 3 * count : NULL, &ignored);
}

static void *work(void *argument) {
    struct read_ahead *r = argument;
    pthread_mutex_lock(&r->mutex);
    for (;;) {
        while (!r->stopping && r->begun == r->expected)
            pthread_cond_wait(&r->expected_more, &r->mutex);
        if (r->stopping)
            break;
        struct slot *slot = &r->slots[r->begun++ % (uint64_t)r->ahead];
        pthread_mutex_unlock(&r->mutex);
        read_slot(slot);
        pthread_mutex_lock(&r->mutex);
        slot->done = true;
        pthread_cond_signal(&r->done_more);
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

static int pictures_ahead(int threads) {
    return 2 * threads;
}

bool read_ahead_create(int threads, struct read_ahead **out, struct error *err) {
    struct read_ahead *r = calloc(1, sizeof(*r));
    const int ahead = pictures_ahead(threads);
    *out = NULL;
    if (!r || !(r->slots = calloc((size_t)ahead, sizeof(*r->slots)))) {
        free(r);
        return error_set(err, ERROR_NO_MEMORY, "no memory to read pictures ahead");
    }
    r->ahead = ahead;
    r->wanted = threads < DATASET_THREADS_MAX ? threads : DATASET_THREADS_MAX;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->expected_more, NULL);
    pthread_cond_init(&r->done_more, NULL);
    *out = r;
    return true;
}

static void slot_empty(struct slot *slot) {
    free(slot->pixels);
    *slot = (struct slot){ 0 };
}

void read_ahead_destroy(struct read_ahead *r) {
    if (!r)
        return;
    pthread_mutex_lock(&r->mutex);
    r->stopping = true;
    pthread_cond_broadcast(&r->expected_more);
    pthread_mutex_unlock(&r->mutex);
    for (int i = 0; i < r->thread_count; i++)
        pthread_join(r->threads[i], NULL);
    for (int i = 0; i < r->ahead; i++)
        slot_empty(&r->slots[i]);
    pthread_cond_destroy(&r->done_more);
    pthread_cond_destroy(&r->expected_more);
    pthread_mutex_destroy(&r->mutex);
    free(r->slots);
    free(r);
}

size_t read_ahead_bytes(int threads, size_t largest) {
    const size_t all = (size_t)pictures_ahead(threads) * largest;
    return all < READ_AHEAD_BYTES ? all : largest < READ_AHEAD_BYTES ? READ_AHEAD_BYTES : largest;
}

/* Starts the threads. If none can be started, nothing is read ahead, and pictures are read when
 * they are wanted. */
static bool has_threads(struct read_ahead *r) {
    while (r->thread_count < r->wanted &&
           thread_start(&r->threads[r->thread_count], "picture readers", work, r) == 0)
        r->thread_count++;
    r->wanted = r->thread_count;
    return r->wanted > 0;
}

bool read_ahead_expect(struct read_ahead *r, const struct dataset *dataset, size_t index,
    const struct crop *crop, bool with_mask) {
    const size_t bytes = pixels_of(dataset, index) * (with_mask ? 4 : 3) * sizeof(float);
    if (r->expected - r->taken == (uint64_t)r->ahead ||
        (r->bytes && r->bytes + bytes > READ_AHEAD_BYTES) || !has_threads(r))
        return false;
    r->bytes += bytes;
    pthread_mutex_lock(&r->mutex);
    r->slots[r->expected++ % (uint64_t)r->ahead] = (struct slot){
        .dataset = dataset, .index = index, .bytes = bytes, .crop = *crop, .with_mask = with_mask
    };
    pthread_cond_signal(&r->expected_more);
    pthread_mutex_unlock(&r->mutex);
    return true;
}

bool read_ahead_expects(const struct read_ahead *r) {
    return r->taken < r->expected;
}

/* Waits until no thread uses the slot. If the picture is not wanted and no thread has begun to read
 * it, marks the slot as done, so that no thread will. */
static void wait_for(struct read_ahead *r, struct slot *slot, bool wanted) {
    pthread_mutex_lock(&r->mutex);
    if (!wanted && r->begun == r->taken) {
        r->begun++;
        slot->done = true;
    }
    while (!slot->done)
        pthread_cond_wait(&r->done_more, &r->mutex);
    pthread_mutex_unlock(&r->mutex);
}

static bool is_same(const struct crop *a, const struct crop *b) {
    return a->top == b->top && a->left == b->left && a->flip == b->flip;
}

bool read_ahead_read(struct read_ahead *r, const struct dataset *dataset, size_t index,
    const struct crop *crop, float *pixels, float *mask, struct error *err) {
    bool found = false, ok = false;
    while (!found && read_ahead_expects(r)) {
        struct slot *slot = &r->slots[r->taken % (uint64_t)r->ahead];
        found = slot->dataset == dataset && slot->index == index && is_same(&slot->crop, crop) &&
                slot->with_mask == !!mask;
        wait_for(r, slot, found);
        ok = found && slot->ok;
        if (ok) {
            const size_t count = 3 * pixels_of(dataset, index);
            memcpy(pixels, slot->pixels, count * sizeof(*pixels));
            if (mask)
                memcpy(mask, slot->pixels + count, count / 3 * sizeof(*mask));
        }
        r->bytes -= slot->bytes;
        slot_empty(slot);
        r->taken++;
    }
    return ok || dataset_read(dataset, index, crop, pixels, mask, err);
}
