/* What all requests share, for the files that handle them: the engine, the work under way, and
 * whether the daemon is stopping. server/daemon.h creates a server. */
#ifndef SERVER_HTTP_SERVER_H
#define SERVER_HTTP_SERVER_H

#include "base/log.h"
#include "engine/loop/engine.h"

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
struct sdapi_settings;
struct workers;

struct http_options {
    int listen_fd;            /* bound, listening, non-blocking; stays the caller's */
    bool listen_is_inherited; /* other processes hold it too: it keeps listening when the server
                                 stops */
    const char *own_host; /* allowed in Host besides the loopback names; borrowed; may be NULL */
    const char *const *hosts;   /* further names; ends with NULL, may be NULL; borrowed */
    const char *const *origins; /* of pages that may call; ends with NULL, may be NULL; borrowed */
    struct access_log *access_log; /* borrowed; may be NULL */
    const struct api_keys *keys; /* who may call; NULL: everybody; borrowed, outlives the server */
    struct engine *engine;       /* borrowed, outlives the server */
    int queue_max;               /* the engine's, for GET /info */
    int connections_max;
    const char *lora_dir;           /* of the engine's adapters; NULL: none; borrowed */
    uint64_t lora_max_bytes;        /* of an uploaded file */
    struct dataset_store *datasets; /* NULL: no data set folder; borrowed, outlives the server */
    uint64_t dataset_max_bytes;     /* of an uploaded archive */
    struct queue *queue;            /* of jobs; borrowed. NULL: none, and `no_queue` says why */
    const char *state_folder;       /* holds that queue and the jobs' own folders; borrowed */
    int64_t results_max_age_s;      /* of a job's pictures */
    uint64_t results_max_bytes;     /* of all jobs' pictures */
    struct dispatcher *dispatcher;  /* of that queue; borrowed */
    struct error no_queue;
    int heartbeat_s;     /* between two heartbeats on an event stream */
    int drain_timeout_s; /* for all accepted work when the server stops; 0: no limit */
};

struct http_server {
    struct http_options options;
    struct http_threads *threads;
    struct acceptor *acceptor;
    struct connections *connections;
    struct gate *gate;
    struct bodies *bodies;                   /* request bodies held in memory */
    struct workers *encoders;                /* encode finished pictures */
    struct workers *loaders;                 /* read adapters */
    struct workers *readers;                 /* parse large bodies, decode a request's pictures */
    struct workers *unpackers;               /* unpack archives */
    struct workers *walkers;                 /* look through whole data sets */
    struct workers *clerks;                  /* read and write the queue; NULL without a queue */
    struct job_watch *job_watch;             /* watches jobs and streams */
    struct generations *generations;         /* under way */
    struct repeats *repeats;                 /* of requests with an Idempotency-Key */
    struct generation_jobs *generation_jobs; /* NULL without a queue */
    pthread_mutex_t mutex;
    pthread_cond_t idle; /* signalled when `pending` or `owed` reaches 0 */
    time_t started;
    bool stopping;
    int pending; /* deferred answers not done yet (server/later/deferred.h) */
    int owed;    /* requests received in full and not yet answered in full */
    struct log_limit refusals;
    struct sdapi_settings *sdapi; /* owned: defaults for all requests of that dialect */
    size_t canvas_bytes;          /* of all its canvases under way (server/sdapi/inpaint.h) */
};

/* Returns ENGINE_STOPPING once the server drains, otherwise the engine's state. */
enum engine_state server_state(struct http_server *server);
/* Returns true in ENGINE_READY; otherwise ERROR_UNAVAILABLE with the reason. */
bool server_takes(struct http_server *server, struct error *err)
    __attribute__((warn_unused_result));

/* Returns the Retry-After for a client, in whole seconds, 1 to RETRY_AFTER_MAX_S: the time until
 * the caller's requests under way are done. `caller` is a caller_number. */
int server_retry_after_s(struct http_server *server, uint64_t caller);

/* Logs one line for a refused request, at a bounded rate. Makes the client's text printable. */
void server_log_refusal(struct http_server *server, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
