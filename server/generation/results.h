/* What jobs of type "generate" leave: pictures in STATE/jobs/ID/images, for a while. */
#ifndef SERVER_GENERATION_RESULTS_H
#define SERVER_GENERATION_RESULTS_H

#include "queue/queue.h"
#include "server/dialect/generate_answer.h"
#include "server/server.h"

/* Writes each picture as a whole, and *out, a new reference: the job's result, with where its
 * pictures can be had. All of it is on the disk then. */
bool results_write(const char *folder, const char *id, const struct generate_answer *answer,
    json_t **out, struct error *err) __attribute__((warn_unused_result));

/* The path of a picture, malloc'd, with its media type; NULL for what is no name of one, or when
 * memory is short. */
char *results_picture(const char *folder, const char *name, const char **media_type);

/* How old pictures are, in time that has passed: the system's clock is asked when they are first
 * seen, and may be set from then on. Zeroed to begin with. */
struct results_ages {
    struct results_born *items; /* owned, by id */
    int count;
    int64_t last_ms; /* of the last look, since the machine was started; 0: there was none */
};
void results_ages_finish(struct results_ages *ages);

/* Removes pictures that are older than allowed, and the oldest of more than may be kept; and of
 * jobs that cannot begin again, because they succeeded or were cancelled, what was asked for. One
 * thread, with the ages that it keeps from one call to the next. */
void results_sweep(
    struct queue *queue, const struct http_options *options, struct results_ages *ages);
/* Removes folders of jobs that never became any: the daemon ended before they were accepted. */
void results_remove_orphans(struct queue *queue, const char *state_folder);

#endif
