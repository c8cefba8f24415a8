/* Orders for training jobs, whoever speaks of them: POST /train, and OpenAI's fine-tuning. */
#ifndef SERVER_TRAINING_TRAIN_ORDER_H
#define SERVER_TRAINING_TRAIN_ORDER_H

#include "base/limits.h"
#include "queue/dispatcher.h"
#include "server/access/caller.h"
#include "server/http/exchange.h"

#include <jansson.h>

/* Whether the daemon trains, and the request is one that can order it: without a query, with a
 * right Idempotency-Key, if any, and not too large. */
bool train_order_may_come(const struct exchange *exchange, struct error *err)
    __attribute__((warn_unused_result));

struct train_order {
    struct queue *queue;             /* borrowed */
    struct engine *engine;           /* borrowed */
    const struct job_runner *runner; /* borrowed */
    char key[JOB_KEY_MAX_BYTES + 1]; /* "": none */
    struct viewer viewer;            /* who orders */
    struct caller caller;            /* the same, for turns */
};
/* After train_order_may_come. */
void train_order_init(struct train_order *order, const struct exchange *exchange);

/* The job of the request: the one that it was when it came before, or a new one, which the caller
 * finishes. `body` is what came, and compared where there is a key; `config` (train/config.h) what
 * is to be done. May wait for the disk. */
bool train_order_place(const struct train_order *order, const json_t *body, const json_t *config,
    struct job *job, struct error *err) __attribute__((warn_unused_result));

#endif
