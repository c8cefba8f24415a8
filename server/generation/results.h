/* The results of "generate" jobs: pictures in STATE/jobs/ID/images, kept for a while. */
#ifndef SERVER_GENERATION_RESULTS_H
#define SERVER_GENERATION_RESULTS_H

#include "queue/queue.h"
#include "server/generation/generate_answer.h"
#include "server/http/server.h"

/* Writes and syncs each picture, as a whole file or not at all. *out is a new reference to the
 * job's result, with the pictures' URLs. */
bool results_write(const char *folder, const char *id, const struct generate_answer *answer,
    json_t **out, struct error *err) __attribute__((warn_unused_result));

/* Returns the path of a picture, malloc'd, and its media type. Returns NULL if `name` is not the
 * name of a picture, or memory is short. */
char *results_picture(const char *folder, const char *name, const char **media_type);

/* The ages of pictures. They are measured by elapsed time: the system clock is only read when a
 * picture is first seen, so setting the clock later has no effect. Zero-initialise. */
struct results_ages {
    struct results_born *items; /* owned, sorted by id */
    int count;
    int64_t last_ms; /* of the last sweep, since the machine started; 0: none yet */
};
void results_ages_finish(struct results_ages *ages);

/* Removes pictures older than the maximum age, and the oldest pictures while the total size is too
 * large. Removes the pictures of cancelled jobs. Removes the order of each job that has succeeded
 * or was cancelled, because such a job cannot begin again. Call it from one thread, which keeps
 * `ages` between calls. */
void results_sweep(
    struct queue *queue, const struct http_options *options, struct results_ages *ages);
/* Removes the folders of jobs that were never accepted because the daemon ended before. */
void results_remove_orphans(struct queue *queue, const char *state_folder);

#endif
