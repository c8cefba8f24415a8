/* What all requests of the daemon share, for the files that handle them: the engine, what is under
 * way, and whether the daemon is about to stop. server/http/http.h makes one. */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include "base/log.h"
#include "engine/engine.h"
#include "server/sdapi/settings.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct access_log;
struct acceptor;
struct api_keys;
struct bodies;
struct connections;
struct dataset_store;
struct dispatcher;
struct gate;
struct generation_jobs;
struct generations;
struct http_threads;
struct job_watch;
struct queue;
struct repeats;
struct workers;

struct http_options {
    int listen_fd;            /* bound, listening, non-blocking; stays the caller's */
    bool listen_is_inherited; /* others hold it too: it goes on listening when the server stops */
    const char *own_host; /* allowed in Host besides the loopback names; borrowed; may be NULL */
    const char *const *hosts;      /* further names; ends with NULL, may be NULL; borrowed */
    const char *const *origins;    /* whose pages may call; in the same way */
    struct access_log *access_log; /* borrowed; may be NULL */
    const struct api_keys *keys; /* who may call, NULL: everybody; borrowed, outlives the server */
    struct engine *engine;       /* borrowed, outlives the server */
    int queue_max;               /* what the engine was made with, for GET /info */
    int connections_max;
    const char *lora_dir;           /* of the engine's adapters, NULL: there is none; borrowed */
    uint64_t lora_max_bytes;        /* of a file that is sent */
    struct dataset_store *datasets; /* NULL: there is no folder of them; borrowed, outlives it */
    uint64_t dataset_max_bytes;     /* of an archive that is sent */
    struct queue *queue;       /* of jobs; NULL: there is none, and `no_queue` says why; borrowed */
    const char *state_folder;  /* of that queue, and of the jobs' own folders; borrowed */
    int64_t results_max_age_s; /* of pictures that jobs have drawn */
    uint64_t results_max_bytes;    /* of all of them */
    struct dispatcher *dispatcher; /* of that queue; borrowed */
    struct error no_queue;
    int heartbeat_s;     /* between two signs of life on a stream of events */
    int drain_timeout_s; /* for all that is accepted when it stops; 0: until the last is drawn */
};

struct http_server {
    struct http_options options;
    struct http_threads *threads;
    struct acceptor *acceptor;
    struct connections *connections;
    struct gate *gate;
    struct bodies *bodies;           /* of requests */
    struct workers *encoders;        /* of finished pictures */
    struct workers *loaders;         /* of adapters */
    struct workers *readers;         /* of large bodies, and of pictures to draw from */
    struct workers *unpackers;       /* of archives */
    struct workers *walkers;         /* of whole data sets */
    struct workers *clerks;          /* who ask the queue and write into it; NULL without a queue */
    struct job_watch *job_watch;     /* of jobs, and of streams */
    struct generations *generations; /* that are under way */
    struct repeats *repeats;         /* requests with an Idempotency-Key */
    struct generation_jobs *generation_jobs; /* NULL: there is no queue */
    pthread_mutex_t mutex;
    pthread_cond_t idle; /* signalled when pending or owed fall to 0 */
    time_t started;
    bool stopping;
    int pending; /* answers that somebody works on (server/deferred.h) */
    int owed;    /* requests that are here in full and not yet answered in full */
    struct log_limit refusals;
    struct sdapi_settings sdapi; /* of the requests of that dialect */
    size_t canvas_bytes;         /* of all their canvases (server/sdapi/inpaint.h) */
};

/* ENGINE_STOPPING once the server drains, otherwise the engine's. */
enum engine_state server_state(struct http_server *server);
/* True in ENGINE_READY; else ERROR_UNAVAILABLE with why nothing is taken now. */
bool server_takes(struct http_server *server, struct error *err)
    __attribute__((warn_unused_result));

/* Whole seconds that a client should wait before it tries again: until what the caller (struct
 * caller's text) has asked for is done, 1 to RETRY_AFTER_MAX_S. */
int server_retry_after_s(struct http_server *server, const char *caller);

/* One line for a request that was refused, at a bounded rate; what the client sent is made
 * printable. */
void server_log_refusal(struct http_server *server, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
