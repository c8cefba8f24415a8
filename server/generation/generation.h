/* A generation: one request for pictures under way, whatever client or dialect it came from. It is
 * resolved, waits, is drawn, is encoded, and ends once.
 *
 * For a client it is started by a dialect (server/generation/client.h), for a job by jobs.c. Both
 * use run.c, which resolves it, submits it to the engine and encodes the result. Generations under
 * way can be listed, looked at and cancelled (server/generation/generations.h).
 *
 * Threads work on it one after the other. The libmicrohttpd thread resolves and submits it; a
 * loader thread does so if an adapter must be read first, and a reader thread if it brings
 * pictures. The engine thread reports progress and delivers the result, and never waits. An encoder
 * thread makes the answer. */
#ifndef SERVER_GENERATION_GENERATION_H
#define SERVER_GENERATION_GENERATION_H

#include "engine/request/request.h"
#include "engine/resolve/resolve.h"
#include "server/generation/generate_answer.h"
#include "server/generation/preview.h"
#include "server/http/exchange.h"
#include "server/later/workers.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

struct engine_ticket;
struct generation;
struct repeat;

#define GENERATION_HEADERS_MAX 4
#define GENERATION_TASK_ID_MAX_BYTES 128

struct generation_body {
    const char *content_type; /* static */
    void *bytes;              /* malloc'd */
    size_t size;
    /* Additional headers; the list ends at the first entry without a name. */
    struct {
        const char *name; /* static; NULL: none */
        char value[64];
    } headers[GENERATION_HEADERS_MAX];
};

enum generation_event_type {
    GENERATION_EVENT_QUEUED,   /* the first event, once */
    GENERATION_EVENT_PROGRESS, /* a client that reads slowly misses some */
    GENERATION_EVENT_PREVIEW,  /* likewise */
    GENERATION_EVENT_RESULT,   /* the last event: g->result is filled in */
    GENERATION_EVENT_ERROR,    /* the last event */
};

/* The state of a generation at one moment. */
struct generation_progress {
    bool running;     /* work on it has begun */
    int position;     /* from 1; only in generation_look, GENERATION_EVENT_QUEUED */
    int step, steps;  /* UNet evaluations of all images: done, and in total */
    double elapsed_s; /* since the request arrived */
    double eta_s;     /* negative: not known yet */
};

struct generation_event {
    enum generation_event_type type;
    struct generation_progress progress; /* when the event is written */
    const struct preview *preview;       /* only with GENERATION_EVENT_PREVIEW */
    const struct error *error;           /* only with GENERATION_EVENT_ERROR */
};

/* How a dialect answers. `g` is borrowed for each call; a callback may read only the first half of
 * its members. */
struct generation_kind {
    const char *dialect; /* "native", "a1111", "openai": for lists and logs */
    /* Changes the request before it is resolved. Called on a thread that may wait if the request
     * brings pictures. NULL: changes nothing. */
    bool (*prepare)(struct generation *g, struct generate_request *asked, struct error *err);
    /* Changes the error of a request that is refused before it waits, so that it names what the
     * client sent. NULL: changes nothing. */
    void (*explain)(struct error *err);
    /* Refuses a resolved request, before it waits, if the answer could not hold its result. NULL:
     * refuses nothing. */
    bool (*check)(const struct generation *g, struct error *err);
    /* Makes the answer's body from g->request and g->result. Called once, on an encoder thread;
     * not called for a stream. The caller takes over out->bytes. If it fails, the error is the
     * answer. */
    bool (*answer)(const struct generation *g, struct generation_body *out, struct error *err);
    /* Writes one event of a stream as it is sent, "event: ...\ndata: ...\n\n", or nothing if the
     * dialect has no such event. The result's event is written on an encoder thread. The others are
     * written on the connection's thread, which must not wait. Both threads may call it at once.
     * Only the result's event may fail: fill err and return false, and the error event follows.
     * NULL: the dialect does not stream. */
    bool (*event)(const struct generation *g, const struct generation_event *event, FILE *out,
        struct error *err);
    /* Frees `user`. The last call, also made for a generation that never began. NULL: nothing to
     * free. */
    void (*finish)(void *user);
};

struct generation_options {
    bool stream;               /* the answer is a stream of events */
    int preview_every;         /* evaluations of an image between two previews; 0: none */
    enum preview_kind preview; /* how previews are made */
    /* The shared answer that other requests may wait for (server/generation/repeats.h). Taken over.
     * NULL: not shared. */
    struct repeat *repeat;
    const char *task_id; /* an id from the client besides its X-Request-Id; NULL: none */
};

/* What a generation is drawn for: a client (client.h) or a job (jobs.c). */
struct generation_owner {
    /* Encodes the drawn result, on an encoder thread. */
    bool (*encode)(struct generation *g, struct error *err);
    /* Called when `encode` ran out of disk space. Returns true if the owner will call
     * generation_encode_again later, from any thread. NULL: the generation fails. */
    bool (*put_off)(struct generation *g);
    /* Called when it has begun, has advanced, or has a new preview; on the engine thread or an
     * encoder thread. Must not wait. NULL: not called. */
    void (*news)(struct generation *g);
    /* Called once at the end, on an encoder thread, with g->error set; not called if
     * generation_admit failed. */
    void (*ended)(struct generation *g);
    /* Returns whether it will begin again under its id, so that its end is none: a job that was
     * paused. Called with g->error set. NULL: it will not. */
    bool (*goes_on)(const struct generation *g);
    /* Replaces generation_cancel when the generation is cancelled by its id. NULL:
     * generation_cancel. */
    void (*cancel)(struct generation *g);
    bool has_queue; /* as in struct engine_callbacks */
};

/* A dialect may read only the first half of the members. */
struct generation {
    char id[REQUEST_ID_MAX_BYTES + 1];              /* the X-Request-Id, or a job's id */
    char caller[KEY_NAME_MAX_BYTES + 1];            /* the name of its API key; "" without keys */
    char task_id[GENERATION_TASK_ID_MAX_BYTES + 1]; /* "": none */
    const struct generation_kind *kind;
    void *user; /* owned by the dialect */
    struct http_server *server;
    time_t created;
    struct resolved_request request; /* valid from `check` on */
    struct generate_result result;   /* valid in `answer` and with GENERATION_EVENT_RESULT */

    /* The rest belongs to server/generation. */
    const struct generation_owner *owner;
    void *owned_by;                /* the owner's */
    uint64_t account;              /* caller_number of the caller, for turns */
    bool may_prioritize;           /* a priority above 0 is allowed */
    struct generate_request asked; /* the request until it is resolved */
    struct error error;            /* ERROR_NONE: it has a result */
    int preview_every;
    enum preview_kind preview_kind;
    bool admitted;
    double created_s; /* monotonic */
    struct work work;
    struct generation *next; /* in the list of generations.c */

    pthread_mutex_t mutex; /* guards what follows */
    int references;
    struct engine_ticket *ticket; /* owned */
    bool cancelled;
    int busy;                 /* how many work on it: the engine, preview encoders; ends at 0 */
    double begun_s;           /* 0: still waiting */
    double pace_s, stepped_s; /* mean seconds per evaluation; end of the last one */
    int images, step, steps;
    uint64_t previews_made;
    struct preview *previews[IMAGES_PER_REQUEST_MAX]; /* references; the latest of each image */
    struct preview *latest;                           /* borrowed: one of previews[] */
};

void generation_ref(struct generation *g);
void generation_unref(struct generation *g); /* NULL is fine */

/* Returns whether further work on the generation is wasted: the client has left, the generation was
 * cancelled, or the daemon stops. Any thread; `g` is a struct generation. */
bool generation_is_cancelled(void *g);

/* Any thread, at any time. */
void generation_cancel(struct generation *g);

void generation_get_progress(struct generation *g, struct generation_progress *out);
/* Returns a reference to the first preview with a number above `after`; NULL if there is none. */
struct preview *generation_get_preview(struct generation *g, uint64_t after);

/* Returns the generation's result, which borrows from `g`. model_name is "" if the checkpoint has
 * no name. */
struct generate_answer generation_answer_of(const struct generation *g);

/* Encodes the generation's only image as a file. Sets X-Seed, and X-NSFW if the safety checker
 * ran. */
bool generation_answer_picture(const struct generation *g, struct generation_body *out,
    struct error *err) __attribute__((warn_unused_result));
/* Answers with status 200 and `body`; takes over its bytes. */
enum MHD_Result generation_respond(struct exchange *exchange, struct generation_body *body);

#endif
