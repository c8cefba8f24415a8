/* What the files that handle requests share: the engine, the work in progress, and whether the
 * daemon is stopping. server/daemon.h creates a server. */
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
struct picture_urls;
struct queue;
struct repeats;
struct sdapi_settings;
struct sdapi_styles;
struct workers;

struct http_options {
    int listen_fd;            /* bound, listening, non-blocking; not closed here */
    bool listen_is_inherited; /* other processes hold it too: it outlives the server */
    const char *own_host; /* a Host that is allowed like the loopback names; borrowed; or NULL */
    /* Where clients reach the daemon, before a path; NULL: http:// and the request's Host */
    const char *public_url;
    const char *const *hosts;      /* further Hosts; ends with NULL, may be NULL; borrowed */
    const char *const *origins;    /* allowed for CORS; ends with NULL, may be NULL; borrowed */
    struct access_log *access_log; /* borrowed; may be NULL */
    const struct api_keys *keys;   /* NULL: no key is needed; borrowed, outlives the server */
    struct engine *engine;         /* borrowed, outlives the server */
    int queue_max;                 /* the engine's limit, for GET /info */
    int connections_max;
    const char *const *served_names; /* further names of the loaded model in OpenAI's routes; ends
                                        with NULL, may be NULL; borrowed */
    const char *lora_dir;            /* folder of the adapters; NULL: none; borrowed */
    uint64_t lora_max_bytes;         /* limit for an uploaded file */
    struct dataset_store *datasets;  /* NULL: no data set folder; borrowed, outlives the server */
    uint64_t dataset_max_bytes;      /* limit for an uploaded archive */
    struct queue *queue;             /* borrowed; NULL: no jobs, and `no_queue` is why */
    const char *state_folder;        /* the queue and the jobs' folders; borrowed */
    int64_t results_max_age_s;       /* limit for the age of a job's pictures */
    uint64_t results_max_bytes;      /* limit for the pictures of all jobs */
    struct dispatcher *dispatcher;   /* runs the queue's jobs; borrowed */
    struct error no_queue;
    const struct sdapi_styles *styles; /* of AUTOMATIC1111's API; borrowed; NULL: none */
    int heartbeat_s;                   /* between two heartbeats on an event stream */
    int drain_timeout_s;               /* to finish accepted work when stopping; 0: no limit */
};

struct http_server {
    struct http_options options;
    struct http_threads *threads;
    struct acceptor *acceptor;
    struct connections *connections;
    struct gate *gate;
    struct bodies *bodies;                   /* the request bodies held in memory */
    struct workers *encoders;                /* encode finished pictures */
    struct workers *loaders;                 /* read adapters */
    struct workers *readers;                 /* parse large bodies, decode pictures */
    struct workers *unpackers;               /* unpack archives */
    struct workers *walkers;                 /* look through whole data sets */
    struct workers *clerks;                  /* read and write the queue; NULL without a queue */
    struct job_watch *job_watch;             /* watches jobs and streams */
    struct generations *generations;         /* under way */
    struct repeats *repeats;                 /* answers to be shared (Idempotency-Key) */
    struct picture_urls *picture_urls;       /* pictures that clients fetch by address */
    struct generation_jobs *generation_jobs; /* NULL without a queue */
    pthread_mutex_t mutex;
    pthread_cond_t idle; /* signalled when `pending` or `owed` reaches 0 */
    time_t started;
    bool stopping;
    int pending; /* deferred answers not yet done (server/later/deferred.h) */
    int owed;    /* complete requests whose answer is not completely sent */
    struct log_limit refusals;
    struct sdapi_settings *sdapi; /* owned: defaults of AUTOMATIC1111's API */
    size_t canvas_bytes;          /* all canvases in progress (server/sdapi/inpaint.h) */
    int extras;                   /* requests of AUTOMATIC1111's upscaling without an answer yet */
};

/* Returns ENGINE_STOPPING if the server is draining, otherwise the engine's state. */
enum engine_state server_state(struct http_server *server);
/* Returns true in ENGINE_READY. In other states returns false: ERROR_UNAVAILABLE with the
 * reason. */
bool server_takes(struct http_server *server, struct error *err)
    __attribute__((warn_unused_result));

/* Returns the Retry-After for a client, in whole seconds, 1 to RETRY_AFTER_MAX_S: the time until
 * the caller's requests under way are done. `caller` is a caller_number. */
int server_retry_after_s(struct http_server *server, uint64_t caller);

/* Logs one line for a refused request, at a limited rate. Replaces unprintable characters, since
 * the text may come from the client. */
void server_log_refusal(struct http_server *server, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
