/* The gate: if the daemon has API keys, every request needs one, except on open routes. Runs after
 * the guard (server/http/guard/guard.h) and before a body is processed. */
#ifndef SERVER_ACCESS_GATE_H
#define SERVER_ACCESS_GATE_H

#include "base/error.h"
#include "server/http/exchange.h"
#include "server/keys/keys.h"

struct gate;

/* `keys` is borrowed and outlives the gate. If it is NULL or empty, every request is admitted. */
bool gate_create(const struct api_keys *keys, struct gate **out, struct error *err)
    __attribute__((warn_unused_result));
void gate_destroy(struct gate *gate); /* NULL is fine */

/* Sets exchange->caller and exchange->rights. Returns false if the request was refused. *answered
 * is then the result of sending the answer: 401, or 429 for a peer that has sent too many wrong
 * keys. A peer on this machine may be a proxy for many clients, so 429 refuses only its wrong keys.
 * An admitted request stays admitted. Any thread. */
bool gate_admit(struct gate *gate, struct exchange *exchange, enum MHD_Result *answered);

#endif
