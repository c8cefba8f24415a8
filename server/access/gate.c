#include "server/access/gate.h"

#include "base/monotonic.h"
#include "server/access/authorization.h"
#include "server/access/failures.h"
#include "server/http/caller.h"
#include "server/http/respond.h"
#include "server/keys/keys.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gate {
    const struct api_keys *keys; /* borrowed; NULL: no key is needed */
    pthread_mutex_t mutex;       /* guards `failures` */
    struct failures failures;
};

bool gate_create(const struct api_keys *keys, struct gate **out, struct error *err) {
    struct gate *gate = calloc(1, sizeof(*gate));
    if (!gate)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the HTTP server");
    gate->keys = keys && api_keys_count(keys) > 0 ? keys : NULL;
    pthread_mutex_init(&gate->mutex, NULL);
    *out = gate;
    return true;
}

void gate_destroy(struct gate *gate) {
    if (!gate)
        return;
    pthread_mutex_destroy(&gate->mutex);
    free(gate);
}

/* Returns whether the client should be asked for a user name and a password: clients of
 * AUTOMATIC1111's API support nothing else. */
static bool asks_for_password(const char *target) {
    return strncmp(target, "/sdapi/", 7) == 0 || strncmp(target, "/internal/", 10) == 0;
}

/* Answers 401 or 429. If the body is not complete, also closes the connection, so that the rest of
 * the body need not be read. */
static enum MHD_Result refuse(struct exchange *exchange, bool presented, int64_t wait_ms) {
    const bool close = exchange->body_received < exchange->body_bytes;
    char seconds[24];
    snprintf(seconds, sizeof(seconds), "%" PRId64, (wait_ms + 999) / 1000);
    const struct answer_header later[] = { { "Retry-After", seconds }, { NULL, NULL } };
    const struct answer_header challenge[] = {
        { "WWW-Authenticate", asks_for_password(exchange->target)
                                  ? "Basic realm=\"latentd\", charset=\"UTF-8\""
                                  : "Bearer realm=\"latentd\"" },
        { NULL, NULL },
    };
    if (wait_ms > 0)
        return respond_refusal(exchange, 429, RESPOND_TOO_MANY_FAILURES,
            "too many wrong API keys have come from this address", later, close);
    return respond_refusal(exchange, 401, "unauthorized",
        presented ? "this API key is not known"
        : asks_for_password(exchange->target)
            ? "an API key is required: send it by Basic as the password, or Authorization: Bearer "
              "KEY"
            : "an API key is required: send Authorization: Bearer KEY",
        challenge, close);
}

/* Counts a wrong key. Returns how long its peer has to wait; 0: not at all. */
static int64_t count_failure(struct gate *gate, const struct sockaddr *address) {
    const struct peer peer = peer_of(address);
    const int64_t now_ms = monotonic_ms();
    pthread_mutex_lock(&gate->mutex);
    const int64_t wait_ms = failures_wait_ms(&gate->failures, &peer, now_ms);
    if (wait_ms == 0)
        failures_add(&gate->failures, &peer, now_ms);
    pthread_mutex_unlock(&gate->mutex);
    return wait_ms;
}

static int64_t wait_of(struct gate *gate, const struct sockaddr *address) {
    const struct peer peer = peer_of(address);
    pthread_mutex_lock(&gate->mutex);
    const int64_t wait_ms = failures_wait_ms(&gate->failures, &peer, monotonic_ms());
    pthread_mutex_unlock(&gate->mutex);
    return wait_ms;
}

bool gate_admit(struct gate *gate, struct exchange *exchange, enum MHD_Result *answered) {
    if (!gate->keys)
        exchange->rights = KEY_MAY_EVERYTHING;
    if (!gate->keys || exchange->admitted)
        return true;
    /* The guard refuses requests with more than one of these headers. */
    const char *value = exchange_header(exchange, "Authorization");
    const struct sockaddr *address = caller_address(exchange);
    const bool open = exchange->route && exchange->route->open;
    struct digest digest;
    if (!value) {
        if (!open)
            *answered = refuse(exchange, false, 0);
        return exchange->admitted = open;
    }
    int64_t wait_ms = peer_is_local(address) ? 0 : wait_of(gate, address);
    const char *name = wait_ms == 0 && authorization_digest(value, strlen(value), &digest)
                           ? api_keys_find(gate->keys, &digest, &exchange->rights)
                           : NULL;
    if (name) {
        snprintf(exchange->caller, sizeof(exchange->caller), "%s", name);
        return exchange->admitted = true;
    }
    if (open)
        return exchange->admitted = true;
    if (wait_ms == 0)
        wait_ms = count_failure(gate, address);
    *answered = refuse(exchange, true, wait_ms);
    return false;
}
