/* Creates training jobs for POST /train and for OpenAI's fine-tuning. */
#ifndef SERVER_TRAINING_TRAIN_ORDER_H
#define SERVER_TRAINING_TRAIN_ORDER_H

#include "base/limits.h"
#include "queue/dispatcher.h"
#include "server/http/caller.h"
#include "server/http/exchange.h"

#include <jansson.h>

/* Checks that the daemon can train and that the request can become a job: it has no query, its
 * Idempotency-Key is valid if there is one, and it is not too large. */
bool train_order_may_come(const struct exchange *exchange, struct error *err)
    __attribute__((warn_unused_result));

struct train_order {
    struct queue *queue;             /* borrowed */
    struct engine *engine;           /* borrowed */
    const struct job_runner *runner; /* borrowed */
    char key[JOB_KEY_MAX_BYTES + 1]; /* "": none */
    struct viewer viewer;            /* the owner of the job */
    struct caller caller;            /* the same caller, for its turns */
};
/* Call it after train_order_may_come. */
void train_order_init(struct train_order *order, const struct exchange *exchange);

/* Returns the job of the request in *job: the existing one if the request was sent before with
 * the same key, else a new one. The caller finishes *job. `body` is what the client sent; it is
 * compared if there is a key. `config` (train/config.h) says what to train. May wait for the
 * disk. */
bool train_order_place(const struct train_order *order, const json_t *body, const json_t *config,
    struct job *job, struct error *err) __attribute__((warn_unused_result));

#endif
