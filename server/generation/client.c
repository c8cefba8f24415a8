#include "server/generation/client.h"

#include "base/log.h"
#include "base/monotonic.h"
#include "server/generation/generations.h"
#include "server/generation/repeats.h"
#include "server/generation/run.h"
#include "server/http/caller.h"
#include "server/http/query.h"
#include "server/http/respond.h"
#include "server/keys/keys.h"
#include "server/later/deferred.h"
#include "server/later/job_watch.h"

#include <stdlib.h>
#include <string.h>

/* References: one for the exchange, and one for the worker until the generation has ended. A stream
 * has two more: one for the watch, and one for the answer while it exists. */
struct client {
    struct deferred deferred; /* the first member */
    struct generation *g;     /* a reference */
    struct error error;       /* why it was not admitted */
    bool streams;
    struct repeat *repeat; /* a reference, taken under the mutex; NULL: none */

    struct generation_body body; /* `bytes` is owned until it is sent */

    struct watcher watcher; /* sends heartbeats in a stream */

    /* Used by the connection's thread only. It writes events without holding the mutex, because the
     * engine thread takes the mutex and must not wait until they are written. */
    int shown_step;         /* -1: none */
    uint64_t shown_preview; /* number of the last preview written */
    char *text;             /* owned; `size` bytes, of which `sent` are sent */
    size_t size, sent;

    /* The deferred's mutex guards the rest. */
    bool begun;    /* the first event was written */
    bool has_news; /* news since events were last written */
    bool refused;  /* the answer is `error` */
    bool ended;    /* only `tail` is left to send */
    bool heartbeat_due;
    int64_t heartbeat_ms;
    char *tail; /* owned: the last event */
    size_t tail_size;
};

static struct client *client_of(struct deferred *deferred) {
    return (struct client *)deferred;
}

static void destroy(struct deferred *deferred) {
    struct client *client = client_of(deferred);
    generation_unref(client->g);
    free(client->body.bytes);
    free(client->text);
    free(client->tail);
    free(client);
}

static bool is_stopping(struct http_server *server) {
    return server_state(server) == ENGINE_STOPPING;
}

/* Called when the client has left, its stream has ended, or a drain is cut short. Cancels the
 * generation, unless it is done or other requests wait for its answer. */
static void cancel(struct deferred *deferred) {
    struct client *client = client_of(deferred);
    if (client->repeat && !is_stopping(deferred->server) && !repeat_abandon(client->repeat))
        return; /* other requests wait for this answer */
    if (!deferred->done && client->g) {
        generation_cancel(client->g);
        log_info("%s: cancelling, since %s", client->g->id,
            is_stopping(deferred->server) ? "the server is stopping" : "the client went away");
    }
}

/* Replaces an ERROR_CANCELLED by an error that names the cause: the daemon stops, or the client has
 * closed its side of the connection. Such a client may still read the answer. */
static void explain(struct client *client, struct error *err) {
    if (err->code != ERROR_CANCELLED)
        return;
    const bool left = deferred_is_cancelled(&client->deferred);
    if (is_stopping(client->deferred.server))
        error_set(err, ERROR_UNAVAILABLE, "the server stopped before it was done");
    else if (left)
        error_set(err, ERROR_CANCELLED,
            "the client closed its side of the connection, which counts as disconnecting");
}

/* --- One answer --- */

static bool make_body(struct generation *g, struct error *err) {
    struct client *client = g->owned_by;
    return g->kind->answer(g, &client->body, err);
}

/* Passes the answer on to the other requests that wait for it. */
static void settle(struct client *client, const struct error *err) {
    pthread_mutex_lock(&client->deferred.mutex);
    struct repeat *repeat = client->repeat;
    client->repeat = NULL;
    pthread_mutex_unlock(&client->deferred.mutex);
    if (!repeat)
        return;
    repeat_end(repeat, err->code == ERROR_NONE ? &client->body : NULL, err);
    repeat_unref(repeat);
}

static void end_body(struct generation *g) {
    struct client *client = g->owned_by;
    settle(client, &g->error);
    deferred_done(&client->deferred);
}

static const struct generation_owner waits = { .encode = make_body, .ended = end_body };

/* --- A stream --- */

static bool write_event(struct client *client, enum generation_event_type type,
    const struct preview *preview, const struct error *error, FILE *out, struct error *err) {
    struct generation_event event = { .type = type, .preview = preview, .error = error };
    generation_get_progress(client->g, &event.progress);
    if (type == GENERATION_EVENT_QUEUED)
        event.progress.position = generations_position(client->g->server->generations, client->g);
    return client->g->kind->event(client->g, &event, out, err);
}

/* Writes events for what has changed since the last call. Writes nothing if memory is short. */
static void write_news(struct client *client, bool is_first, FILE *out) {
    struct error ignored;
    struct generation_progress now;
    struct preview *preview;
    if (is_first)
        (void)write_event(client, GENERATION_EVENT_QUEUED, NULL, NULL, out, &ignored);
    generation_get_progress(client->g, &now);
    if (now.running && now.step != client->shown_step)
        (void)write_event(client, GENERATION_EVENT_PROGRESS, NULL, NULL, out, &ignored);
    if (now.running)
        client->shown_step = now.step;
    while ((preview = generation_get_preview(client->g, client->shown_preview))) {
        (void)write_event(client, GENERATION_EVENT_PREVIEW, preview, NULL, out, &ignored);
        client->shown_preview = preview->number;
        preview_unref(preview);
    }
}

/* Call it when everything written has been sent. Returns false if memory is short. */
static bool refill(struct client *client) {
    free(client->text);
    client->text = NULL;
    client->size = client->sent = 0;
    pthread_mutex_lock(&client->deferred.mutex);
    const bool is_first = !client->begun, is_last = client->begun && client->ended;
    const bool heartbeat = client->heartbeat_due;
    client->begun = true;
    client->has_news = client->heartbeat_due = false;
    if (is_last) {
        client->text = client->tail;
        client->size = client->tail_size;
        client->tail = NULL;
        client->tail_size = 0;
    }
    pthread_mutex_unlock(&client->deferred.mutex);
    if (is_last)
        return true;
    FILE *out = open_memstream(&client->text, &client->size);
    if (!out)
        return false;
    write_news(client, is_first, out);
    if (heartbeat)
        fputs(":\n\n", out);
    return fclose(out) == 0;
}

static ssize_t send_some(struct client *client, char *out, size_t max) {
    const size_t left = client->size - client->sent, got = left < max ? left : max;
    memcpy(out, client->text + client->sent, got);
    client->sent += got;
    pthread_mutex_lock(&client->deferred.mutex);
    client->heartbeat_ms = monotonic_ms(); /* set here, because a step may write no bytes */
    pthread_mutex_unlock(&client->deferred.mutex);
    return (ssize_t)got;
}

/* Suspends the connection if there is nothing to send. Returns false if there is something to send
 * after all. *got is the result for libmicrohttpd. */
static bool rest(struct client *client, ssize_t *got) {
    pthread_mutex_lock(&client->deferred.mutex);
    const bool over = client->ended && !client->tail;
    const bool rests = !client->ended && !client->has_news && !client->heartbeat_due;
    if (rests) {
        deferred_rest(&client->deferred);
    }
    pthread_mutex_unlock(&client->deferred.mutex);
    *got = over ? MHD_CONTENT_READER_END_OF_STREAM : 0;
    return over || rests;
}

static ssize_t read_stream(void *user, uint64_t position, char *out, size_t max) {
    struct client *client = user;
    (void)position;
    ssize_t got;
    do {
        if (client->sent == client->size && !refill(client))
            return MHD_CONTENT_READER_END_WITH_ERROR;
        if (client->sent < client->size)
            return send_some(client, out, max);
    } while (!rest(client, &got));
    return got;
}

static bool make_tail(struct client *client, const struct error *error, struct error *err) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the answer");
    bool ok = write_event(
        client, error ? GENERATION_EVENT_ERROR : GENERATION_EVENT_RESULT, NULL, error, out, err);
    ok = fclose(out) == 0 && ok;
    if (!ok) {
        free(text);
        return false;
    }
    client->tail = text;
    client->tail_size = size;
    return true;
}

static bool make_result(struct generation *g, struct error *err) {
    return make_tail(g->owned_by, NULL, err);
}

static void tell_news(struct generation *g) {
    struct client *client = g->owned_by;
    pthread_mutex_lock(&client->deferred.mutex);
    client->has_news = true;
    if (client->begun)
        deferred_go_on(&client->deferred);
    pthread_mutex_unlock(&client->deferred.mutex);
}

/* Ends the heartbeats. read_stream sends the remaining events. */
static void end_events(struct generation *g) {
    struct client *client = g->owned_by;
    struct error err = { 0 };
    if (g->error.code != ERROR_NONE) {
        struct error why = g->error;
        explain(client, &why);
        (void)make_tail(client, &why, &err);
    }
    pthread_mutex_lock(&client->deferred.mutex);
    client->ended = true;
    pthread_mutex_unlock(&client->deferred.mutex);
    job_watch_poke(g->server->job_watch, &client->watcher);
    deferred_done(&client->deferred);
}

static const struct generation_owner listens = {
    .encode = make_result, .news = tell_news, .ended = end_events
};

static bool look(struct watcher *watcher, bool stopping, int64_t *due_ms) {
    struct client *client = client_of(watcher->deferred);
    const int64_t heartbeat_ms = client->deferred.server->options.heartbeat_s * INT64_C(1000);
    const int64_t now = monotonic_ms();
    pthread_mutex_lock(&client->deferred.mutex);
    const bool over = stopping || client->ended || client->refused || client->deferred.cancelled;
    if (!over && now >= client->heartbeat_ms + heartbeat_ms) {
        client->heartbeat_ms = now;
        client->heartbeat_due = true;
        if (client->begun)
            deferred_go_on(&client->deferred);
    }
    *due_ms = client->heartbeat_ms + heartbeat_ms;
    pthread_mutex_unlock(&client->deferred.mutex);
    return !over;
}

/* --- Both kinds of answer --- */

static enum MHD_Result answer(struct deferred *deferred, struct exchange *exchange) {
    struct client *client = client_of(deferred);
    const struct generation *g = client->g;
    struct error err = client->error;
    exchange->accepted = g && g->admitted;
    if (err.code == ERROR_NONE && client->streams)
        return deferred_stream(deferred, exchange, read_stream);
    if (err.code == ERROR_NONE)
        err = g->error;
    if (err.code == ERROR_NONE)
        return generation_respond(exchange, &client->body);
    explain(client, &err);
    return respond_error(exchange, &err);
}

/* Ends the heartbeats of a generation that never began. */
static void refuse(struct client *client) {
    pthread_mutex_lock(&client->deferred.mutex);
    client->refused = true;
    pthread_mutex_unlock(&client->deferred.mutex);
    if (client->streams)
        job_watch_poke(client->deferred.server->job_watch, &client->watcher);
}

/* Runs on a loader or reader thread, which holds the worker's reference. */
static void admit_later(struct deferred *deferred) {
    struct client *client = client_of(deferred);
    deferred_ref(deferred); /* the call may drop the worker's reference */
    if (!generation_admit(client->g, &client->error)) {
        refuse(client);
        settle(client, &client->error);
        deferred_done(deferred);
    } else if (client->streams) {
        pthread_mutex_lock(&deferred->mutex);
        deferred_go_on(&client->deferred); /* libmicrohttpd then calls `answer` */
        pthread_mutex_unlock(&deferred->mutex);
    }
    deferred_unref(deferred);
}

static struct client *client_create(
    struct exchange *exchange, const struct generation_options *options, struct error *err) {
    static const struct deferred_kind one = {
        .answer = answer, .cancel = cancel, .destroy = destroy
    };
    static const struct deferred_kind many = {
        .answer = answer, .cancel = cancel, .destroy = destroy, .streams = true
    };
    struct client *client = calloc(1, sizeof(*client));
    if (!client) {
        error_set(err, ERROR_NO_MEMORY, "no memory for the request");
        return NULL;
    }
    client->streams = options->stream;
    client->shown_step = -1;
    client->heartbeat_ms = monotonic_ms();
    client->watcher.look = look;
    if (!deferred_init(&client->deferred, options->stream ? &many : &one, exchange, err)) {
        deferred_unref(&client->deferred);
        return NULL;
    }
    if (!options->stream || deferred_watch(&client->deferred, &client->watcher, err))
        return client;
    deferred_unref(&client->deferred);
    return NULL;
}

/* Answers for a generation that never began. Runs on the exchange's thread. */
static enum MHD_Result give_up(
    struct client *client, struct exchange *exchange, const struct error *err) {
    refuse(client);
    settle(client, err);
    deferred_done(&client->deferred);
    deferred_unref(&client->deferred);
    return respond_error(exchange, err);
}

enum MHD_Result generation_start(struct exchange *exchange, struct generate_request *asked,
    const struct generation_kind *kind, void *user, const struct generation_options *options) {
    struct error err = { 0 };
    struct client *client = client_create(exchange, options, &err);
    if (!client) {
        if (options->repeat)
            repeat_end(options->repeat, NULL, &err);
        repeat_unref(options->repeat);
        generate_request_finish(asked);
        if (kind->finish)
            kind->finish(user);
        return respond_error(exchange, &err);
    }
    client->repeat = options->repeat;
    const struct caller caller = caller_of(exchange);
    const struct generation_order order = {
        .server = exchange->server,
        .id = exchange->id,
        .caller = exchange->caller,
        .account = caller.text,
        .may_prioritize = exchange->rights & KEY_MAY_PRIORITY,
        .asked = asked,
        .kind = kind,
        .user = user,
        .options = options,
        .owner = options->stream ? &listens : &waits,
        .owned_by = client,
    };
    client->g = generation_create(&order, &err);
    if (!client->g)
        return give_up(client, exchange, &err);
    if (generation_would_wait(client->g))
        return deferred_give(
            &client->deferred, exchange, generation_workers(client->g), admit_later);
    if (!generation_admit(client->g, &err))
        return give_up(client, exchange, &err);
    if (client->streams) {
        exchange->deferred = &client->deferred;
        return answer(&client->deferred, exchange);
    }
    return deferred_wait(&client->deferred, exchange);
}

bool generation_takes(const struct exchange *exchange, struct error *err) {
    const char *key = exchange_header(exchange, "Idempotency-Key");
    if (!server_takes(exchange->server, err))
        return false;
    return !key || error_field(err, "Idempotency-Key", key,
                       "no Idempotency-Key for pictures; X-Request-Id names a request");
}

bool generation_may_come(const struct exchange *exchange, struct error *err) {
    return generation_takes(exchange, err) && query_none(exchange->target, err);
}
