/* What a job of type "generate" is asked to draw, as it lies in the job's folder: request.json, a
 * body for POST /generate with everything decided that was left open (seed, model, adapters). So a
 * job draws the same however often it is begun. */
#ifndef SERVER_GENERATION_ORDERS_H
#define SERVER_GENERATION_ORDERS_H

#include "server/dialect/generate_json.h"
#include "engine/resolve.h"
#include "server/server.h"

#define GENERATE_JOB_TYPE "generate"

/* An adapter's file, when the job was accepted. */
struct order_adapter {
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    int64_t bytes, changed_ns;
};

struct generation_order_file {
    struct generate_request request; /* what is in it is owned */
    struct generate_delivery delivery;
    struct order_adapter adapters[LORAS_PER_REQUEST_MAX];
    int adapter_count;
};

/* Writes FOLDER/request.json, which is on the disk then. `body` is what was sent, `resolved` what
 * it came to. *shown: a new reference, the body with pictures' sizes in their place. */
bool orders_write(const char *folder, const struct http_options *options, const json_t *body,
    const struct resolved_request *resolved, json_t **shown, struct error *err)
    __attribute__((warn_unused_result));

/* *out is finished by the caller on success. */
bool orders_read(const char *folder, struct generation_order_file *out, struct error *err)
    __attribute__((warn_unused_result));
void orders_finish(struct generation_order_file *order);

/* Whether the adapters' files are still those that the job was accepted with; ERROR_CONFLICT. */
bool orders_check_adapters(const struct generation_order_file *order,
    const struct http_options *options, struct error *err) __attribute__((warn_unused_result));

#endif
