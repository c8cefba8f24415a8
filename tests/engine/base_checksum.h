/* The bytes of a packed weight are private to its back end; only its products can be compared. So
 * this is a checksum of the products of every weight with fixed numbers. */
#ifndef TESTS_ENGINE_BASE_CHECKSUM_H
#define TESTS_ENGINE_BASE_CHECKSUM_H

#include "engine/adapters/adapters.h"

/* Multiplies with every packed weight of the base: equal weights give equal numbers. Not while the
 * engine works. */
bool adapters_base_checksum(struct adapters *adapters, uint64_t *out, struct error *err)
    __attribute__((warn_unused_result));

#endif
