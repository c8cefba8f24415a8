/* A generation: a request for pictures on its way, whoever asked for it and in which dialect. It is
 * resolved, waits, is drawn, is encoded, and ends once.
 *
 * A dialect's handler parses its body into a struct generate_request and calls generation_start,
 * with a struct generation_kind that says how its answers look; all else is done here: waiting for
 * adapters, the engine, errors, cancelling when the client leaves, streaming. What is under way can
 * be listed, looked at and cancelled (server/generation/generations.h). Errors are answered by
 * respond_error, so a dialect's route decides how they look; on a stream, once it has begun, by its
 * kind's `event`.
 *
 *     static const struct generation_kind kind = {
 *         .dialect = "native", .check = check, .answer = answer, .event = event, .finish = free
 *     };
 *     ...
 *     return generation_start(exchange, &request, &kind, own, &(struct generation_options){ 0 });
 *
 * Its threads work one after the other: the libmicrohttpd thread resolves and submits it, or a
 * loader's does where an adapter has to be read first; the engine's thread says how far it is and
 * brings the result, without ever waiting; an encoder's thread makes the answer. */
#ifndef SERVER_GENERATION_GENERATION_H
#define SERVER_GENERATION_GENERATION_H

#include "engine/request.h"
#include "engine/resolve.h"
#include "server/generation/preview.h"
#include "server/http/exchange.h"
#include "server/workers.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

struct generation;

#define GENERATION_HEADERS_MAX 4
#define GENERATION_TASK_ID_MAX_BYTES 128

struct generation_body {
    const char *content_type; /* a constant */
    void *bytes;              /* malloc'd */
    size_t size;
    /* More headers; the first without a name ends them. */
    struct {
        const char *name; /* a constant; NULL: none */
        char value[64];
    } headers[GENERATION_HEADERS_MAX];
};

enum generation_event_type {
    GENERATION_EVENT_QUEUED,   /* once, the first */
    GENERATION_EVENT_PROGRESS, /* some may be passed over, for clients that read slowly */
    GENERATION_EVENT_PREVIEW,  /* the same */
    GENERATION_EVENT_RESULT,   /* the last: g->result is there */
    GENERATION_EVENT_ERROR,    /* the last */
};

/* What is said of a generation at some moment. */
struct generation_progress {
    bool running;     /* something was done for it */
    int position;     /* in a look and in GENERATION_EVENT_QUEUED: among all that wait; 1 is next */
    int step, steps;  /* evaluations of all its images, done and in all */
    double elapsed_s; /* since it came */
    double eta_s;     /* below 0: not known yet */
};

struct generation_event {
    enum generation_event_type type;
    struct generation_progress progress; /* as it is now */
    const struct preview *preview;       /* GENERATION_EVENT_PREVIEW */
    const struct error *error;           /* GENERATION_EVENT_ERROR */
};

/* How a dialect answers. `g` is borrowed for each call; of its members those below may be read. */
struct generation_kind {
    const char *dialect; /* "native", "a1111", "openai": for lists and logs */
    /* Before it is resolved, on a thread that may wait: changes what is asked. NULL: nothing. */
    bool (*prepare)(struct generation *g, struct generate_request *asked, struct error *err);
    /* Once it is resolved and before it waits: refuses what its answer cannot hold. NULL: nothing.
     */
    bool (*check)(const struct generation *g, struct error *err);
    /* On an encoder's thread, once, unless it is streamed: makes the body, of which the bytes are
     * taken over, from g->request and g->result. After an error that is the answer. */
    bool (*answer)(const struct generation *g, struct generation_body *out, struct error *err);
    /* Writes one event of a stream as it is sent, "event: ...\ndata: ...\n\n", or nothing where the
     * dialect has none for it. The result's on an encoder's thread; the others on the
     * connection's, where nothing may wait; maybe both at once. False only for the result and after
     * filling err: then the error comes. NULL: it does not stream. */
    bool (*event)(const struct generation *g, const struct generation_event *event, FILE *out,
        struct error *err);
    /* Frees `user`: the last that is heard of the generation, also where it never began. NULL:
     * nothing is to be freed. */
    void (*finish)(void *user);
};

struct generation_options {
    bool stream;               /* answer with events */
    int preview_every;         /* evaluations of an image from one preview to the next; 0: none */
    enum preview_kind preview; /* what they are made by */
    /* What others wait for too (server/generation/repeats.h); taken over. NULL: nobody does. */
    struct repeat *repeat;
    const char *task_id; /* that the client gave it, beside its X-Request-Id; NULL: none */
};

/* Whether the client has left, somebody cancelled it, or the daemon stops: what is done for it is
 * for nobody. Any thread; `g` is a struct generation. */
bool generation_is_cancelled(void *g);

/* Answers with a body, whose bytes are taken over. */
enum MHD_Result generation_respond(struct exchange *exchange, struct generation_body *body);

/* Takes over what is in `asked`, and `user`, also on failure; answers when it is drawn or refused.
 * As a route's handler. */
enum MHD_Result generation_start(struct exchange *exchange, struct generate_request *asked,
    const struct generation_kind *kind, void *user, const struct generation_options *options);

/* Of a route whose pictures nobody can ask for again: refuses an Idempotency-Key, and all while the
 * server takes nothing. */
bool generation_takes(const struct exchange *exchange, struct error *err)
    __attribute__((warn_unused_result));
/* The same as a route's `may_come`, which refuses a query too. */
bool generation_may_come(const struct exchange *exchange, struct error *err)
    __attribute__((warn_unused_result));

struct generation_owner;
struct repeat;
struct engine_ticket;

/* A dialect reads the first half. */
struct generation {
    char id[REQUEST_ID_MAX_BYTES + 1];              /* the X-Request-Id, or a job's id */
    char caller[KEY_NAME_MAX_BYTES + 1];            /* whose it is; "" without keys */
    char task_id[GENERATION_TASK_ID_MAX_BYTES + 1]; /* "": none */
    const struct generation_kind *kind;
    void *user; /* the dialect's */
    struct http_server *server;
    time_t created;
    struct resolved_request request; /* from `check` on */
    struct generate_result result;   /* in `answer`, and with GENERATION_EVENT_RESULT */

    /* The rest is server/generation's (internal.h). */
    const struct generation_owner *owner;
    void *owned_by;                /* the owner's */
    uint64_t account;              /* caller_number: whose turns it takes */
    bool may_prioritize;           /* its priority may be above 0 */
    struct generate_request asked; /* until it is resolved */
    struct error error;            /* why it ended; ERROR_NONE: with a result */
    int preview_every;
    enum preview_kind preview_kind;
    bool admitted;
    double created_s; /* monotonic */
    struct work work;
    struct generation *next; /* the list's (generations.c) */

    pthread_mutex_t mutex; /* guards what follows */
    int references;
    struct engine_ticket *ticket; /* owned */
    bool cancelled;
    int busy;       /* the engine, and encoders with its previews: when all are done it ends */
    double begun_s; /* 0: it waits */
    double pace_s, stepped_s; /* seconds from one evaluation to the next; when the last one was */
    int images, step, steps;
    uint64_t previews_made;
    struct preview *previews[IMAGES_PER_REQUEST_MAX]; /* references, the latest of each image */
    struct preview *latest;                           /* one of these */
};

#endif
