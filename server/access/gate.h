/* Who gets past the door: where the daemon has API keys, every request but those of open routes
 * carries one. Runs behind the guard (server/http/guard.h), before anything is made of a body. */
#ifndef SERVER_ACCESS_GATE_H
#define SERVER_ACCESS_GATE_H

#include "base/error.h"
#include "server/access/keys.h"
#include "server/http/exchange.h"

struct gate;

/* `keys` is borrowed and outlives it; NULL or none: everybody may come in. */
bool gate_create(const struct api_keys *keys, struct gate **out, struct error *err)
    __attribute__((warn_unused_result));
void gate_destroy(struct gate *gate); /* NULL is fine */

/* Finds out who calls (exchange->caller) and what it may do (exchange->rights). False if the
 * request was refused: *answered is its answer, a 401, or a 429 to a peer that has presented too
 * many wrong keys. Of a peer on this machine, which may be a proxy for many, only the wrong ones
 * are. Who was admitted stays so. Any thread. */
bool gate_admit(struct gate *gate, struct exchange *exchange, enum MHD_Result *answered);

#endif
