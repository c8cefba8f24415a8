/* Writes and reads the order of a "generate" job, which is stored as request.json in the job's
 * folder. The order is the client's body for POST /generate. Values that the client left open and
 * that might change before the job runs, such as the seed and the model, are filled in. So all
 * attempts of the job draw the same pictures. */
#ifndef SERVER_GENERATION_ORDERS_H
#define SERVER_GENERATION_ORDERS_H

#include "engine/resolve/resolve.h"
#include "server/generation/generate_json.h"
#include "server/http/server.h"

#define GENERATE_JOB_TYPE "generate"

/* An adapter's file as it was when the job was accepted. */
struct order_adapter {
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    int64_t bytes, changed_ns;
};

struct generation_order_file {
    struct generate_request request; /* its contents are owned */
    struct generate_delivery delivery;
    struct order_adapter adapters[LORAS_PER_REQUEST_MAX];
    int adapter_count;
};

/* Writes and syncs FOLDER/request.json. `body` is the request as the client sent it; `resolved` is
 * its resolved form. *shown is a new reference to the stored body, with {"characters": N} in place
 * of pictures and other very long texts. */
bool orders_write(const char *folder, const struct http_options *options, const json_t *body,
    const struct resolved_request *resolved, json_t **shown, struct error *err)
    __attribute__((warn_unused_result));

/* Reads FOLDER/request.json. The caller finishes *out on success. */
bool orders_read(const char *folder, struct generation_order_file *out, struct error *err)
    __attribute__((warn_unused_result));
void orders_finish(struct generation_order_file *order);

/* Checks that the adapters' files are unchanged since the job was accepted; ERROR_CONFLICT if
 * not. */
bool orders_check_adapters(const struct generation_order_file *order,
    const struct http_options *options, struct error *err) __attribute__((warn_unused_result));

#endif
