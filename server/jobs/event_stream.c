#include "server/jobs/event_stream.h"

#include "base/monotonic.h"
#include "base/text/json.h"
#include "queue/queue.h"
#include "server/http/respond.h"
#include "server/jobs/jobs.h"
#include "server/later/deferred.h"
#include "server/later/job_watch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_EVENTS 64
#define BATCH_BYTES (64u << 10)
#define RETRY_MS 2000 /* a client reconnects after this time */

/* References: one for the exchange, one for the watch, and one for the answer while it exists. The
 * deferred answer is done when it is known whether the job exists. The events that follow are its
 * body. */
struct stream {
    struct deferred deferred; /* the first member */
    struct watcher watcher;

    /* Used by the watch thread only. */
    int64_t last; /* number of the last event given to the buffer; -1: none yet */
    bool begun;
    bool resumes;       /* the client gave the last event it has seen */
    struct error error; /* why the stream cannot begin */
    int64_t heartbeat_ms;

    /* The deferred's mutex guards the rest. */
    char *text; /* owned; `size` bytes, of which `sent` are sent */
    size_t size, sent, capacity;
    bool more;  /* the queue may have more events */
    bool ended; /* the buffer's events are the last */
};

static struct queue *queue_of(const struct stream *s) {
    return s->deferred.server->options.queue;
}

static int64_t heartbeat_ms(const struct stream *s) {
    return s->deferred.server->options.heartbeat_s * INT64_C(1000);
}

static void destroy(struct deferred *deferred) {
    struct stream *s = (struct stream *)deferred;
    free(s->text);
    free(s);
}

/* --- Filling the buffer --- */

struct batch {
    struct stream *stream;
    const struct job *job; /* NULL: not filling */
    char *text;
    size_t size, capacity;
    int events;
    bool full;
};

static bool put(struct batch *b, const char *text, size_t size, struct error *err) {
    if (size > b->capacity - b->size) {
        const size_t capacity = 2 * (b->size + size) + 256;
        char *grown = realloc(b->text, capacity);
        if (!grown)
            return error_set(err, ERROR_NO_MEMORY, "no memory for events");
        b->text = grown;
        b->capacity = capacity;
    }
    memcpy(b->text + b->size, text, size);
    b->size += size;
    return true;
}

/* Adds one event to the batch. If number < 0, the event has no id, so no client can resume after
 * it. */
static bool put_event(
    struct batch *b, const char *type, int64_t number, const char *data, struct error *err) {
    char head[160];
    int size = 0;
    if (!b->stream->begun)
        size += snprintf(head, sizeof(head), "retry: %d\n", RETRY_MS);
    b->stream->begun = true;
    if (number >= 0)
        size += snprintf(head + size, sizeof(head) - (size_t)size, "id: %" PRId64 "\n", number);
    size += snprintf(head + size, sizeof(head) - (size_t)size, "event: %.64s\ndata: ", type);
    return put(b, head, (size_t)size, err) && put(b, data, strlen(data), err) &&
           put(b, "\n\n", 2, err);
}

/* Adds the event "job", with the whole current state of the job. */
static bool put_job(struct batch *b, const struct job *job, struct error *err) {
    struct job_standing standing;
    if (!jobs_get_standing(b->stream->deferred.server, job, &standing, err))
        return false;
    json_t *json = job_json(job, &standing);
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(json);
    const bool ok = text ? put_event(b, "job", job->events, text, err)
                         : error_set(err, ERROR_NO_MEMORY, "no memory for events");
    free(text);
    if (ok)
        b->stream->last = job->events;
    return ok;
}

/* Adds a validation event in the form of GET /jobs/{id}/validation: the pictures' URLs are added
 * here, because stored events do not contain them. */
static bool put_validation(struct batch *b, const struct job_event *event, struct error *err) {
    json_t *json = json_loads(event->data, 0, NULL);
    char *text = json && jobs_add_validation_urls(b->job, json)
                     ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9))
                     : NULL;
    json_decref(json);
    const bool ok = text ? put_event(b, event->type, event->number, text, err)
                         : error_set(err, ERROR_NO_MEMORY, "no memory for events");
    free(text);
    return ok;
}

static bool put_one(struct batch *b, const struct job_event *event, struct error *err) {
    if (strcmp(b->job->type, JOB_TYPE_TRAIN) == 0 && strcmp(event->type, "validation") == 0)
        return put_validation(b, event, err);
    return put_event(b, event->type, event->number, event->data, err);
}

static bool visit(void *user, const struct job_event *event, struct error *err) {
    struct batch *b = user;
    if (b->size > 0 && b->size + strlen(event->data) > BATCH_BYTES) {
        b->full = true;
        return false;
    }
    const int64_t missed = event->number - b->stream->last - 1;
    if (missed > 0) {
        char data[64];
        snprintf(data, sizeof(data), "{\"missed\":%" PRId64 "}", missed);
        if (!put_event(b, "gap", -1, data, err))
            return false;
    }
    if (!put_one(b, event, err))
        return false;
    b->stream->last = event->number;
    b->full = ++b->events == BATCH_EVENTS;
    return true;
}

/* Fills the batch with the job's events that the client has not seen. *ended: there will be no
 * further events. */
static bool fill(struct stream *s, struct batch *b, bool *ended, struct error *err) {
    struct job job;
    if (!jobs_get(queue_of(s), s->watcher.id, &s->watcher.viewer, &job, err))
        return false;
    bool ok = true;
    b->job = &job;
    if (s->last < 0 || s->last > job.events)
        ok = put_job(b, &job, err);
    if (ok && s->last < job.events)
        ok = queue_events(queue_of(s), &job, s->last, BATCH_EVENTS, visit, b, err) || b->full;
    *ended = ok && !b->full && job_state_is_end(job.state) && s->last >= job.events;
    b->job = NULL;
    job_finish(&job);
    return ok;
}

/* Gives the batch to the connection's thread. Call it only with an empty batch or when everything
 * in the buffer has been sent. */
static void hand_over(struct stream *s, struct batch *b, bool ended) {
    struct deferred *deferred = &s->deferred;
    pthread_mutex_lock(&deferred->mutex);
    if (b->size > 0) {
        free(s->text);
        s->text = b->text;
        s->size = b->size;
        s->sent = 0;
        b->text = NULL;
    }
    s->more = b->full;
    s->ended = ended;
    if (deferred->done && (s->sent < s->size || ended))
        deferred_go_on(deferred);
    pthread_mutex_unlock(&deferred->mutex);
    free(b->text);
}

static bool look(struct watcher *watcher, bool stopping, int64_t *due_ms) {
    struct stream *s = (struct stream *)watcher->deferred;
    struct error err = { 0 };
    struct batch b = { .stream = s };
    const int64_t now = monotonic_ms();
    const bool was_begun = s->begun;
    pthread_mutex_lock(&s->deferred.mutex);
    const bool gone = s->deferred.cancelled, busy = s->sent < s->size;
    s->more = s->more || busy;
    pthread_mutex_unlock(&s->deferred.mutex);
    if (gone)
        stopping = true;
    if (busy && !stopping) {
        *due_ms = s->heartbeat_ms = now + heartbeat_ms(s);
        return true; /* read_stream will ask for more */
    }
    bool ended = stopping;
    if (!stopping && !fill(s, &b, &ended, &err)) {
        ended = true;
        if (!was_begun)
            s->error = err; /* nothing was sent yet: e.g. a 404 */
        b.size = 0;
    }
    if (b.size == 0 && !ended && now >= s->heartbeat_ms && was_begun)
        ended = !put(&b, ":\n\n", 3, &err);
    if (b.size > 0 || !was_begun)
        s->heartbeat_ms = now + heartbeat_ms(s);
    *due_ms = s->heartbeat_ms;
    if (busy) /* stopping: still sends what is buffered */
        b.size = 0;
    hand_over(s, &b, ended);
    if (!was_begun) {
        s->begun = true;
        deferred_done(&s->deferred);
    }
    return !ended;
}

/* --- Sending it --- */

static ssize_t read_stream(void *user, uint64_t position, char *out, size_t max) {
    struct stream *s = user;
    (void)position;
    ssize_t got = 0;
    bool poke = false;
    pthread_mutex_lock(&s->deferred.mutex);
    if (s->deferred.cancelled) {
        got = MHD_CONTENT_READER_END_OF_STREAM;
    } else if (s->sent < s->size) {
        got = (ssize_t)(s->size - s->sent < max ? s->size - s->sent : max);
        memcpy(out, s->text + s->sent, (size_t)got);
        s->sent += (size_t)got;
    } else if (s->ended) {
        got = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        deferred_rest(&s->deferred);
    }
    /* Poking the watch is safe: a stream that has not ended is still watched, and the watch cannot
     * end the stream while this mutex is held. */
    if (got > 0 && s->sent == s->size && s->more && !s->ended) {
        s->more = false;
        poke = true;
    }
    if (poke)
        job_watch_poke(s->deferred.server->job_watch, &s->watcher);
    pthread_mutex_unlock(&s->deferred.mutex);
    return got;
}

/* Called with the mutex held. Resumes the connection so that it can end. The watch releases the
 * stream at its next look. */
static void cancel(struct deferred *deferred) {
    struct stream *s = (struct stream *)deferred;
    if (!s->ended)
        job_watch_poke(deferred->server->job_watch, &s->watcher);
    if (deferred->done)
        deferred_go_on(deferred);
}

static enum MHD_Result answer(struct deferred *deferred, struct exchange *exchange) {
    struct stream *s = (struct stream *)deferred;
    if (s->error.code != ERROR_NONE)
        return respond_error(exchange, &s->error);
    pthread_mutex_lock(&deferred->mutex);
    const bool nothing = s->ended && s->size == 0 && s->resumes;
    pthread_mutex_unlock(&deferred->mutex);
    if (nothing) /* 204: an EventSource does not reconnect */
        return respond_bytes(exchange, 204, NULL, NULL, 0, NULL, false);
    return deferred_stream(deferred, exchange, read_stream);
}

enum MHD_Result event_stream_start(struct exchange *exchange, const char *id, int64_t after) {
    static const struct deferred_kind kind = {
        .answer = answer, .cancel = cancel, .destroy = destroy, .streams = true
    };
    struct error err = { 0 };
    enum MHD_Result refused;
    struct stream *s = calloc(1, sizeof(*s));
    if (!deferred_begin((struct deferred *)s, &kind, exchange, &refused))
        return refused;
    snprintf(s->watcher.id, sizeof(s->watcher.id), "%s", id);
    s->watcher.caller = caller_of(exchange);
    s->watcher.viewer = viewer_of(exchange);
    s->watcher.look = look;
    s->last = after;
    s->resumes = after >= 0;
    if (deferred_watch(&s->deferred, &s->watcher, &err))
        return deferred_wait(&s->deferred, exchange);
    deferred_unref(&s->deferred);
    return respond_error(exchange, &err);
}
