/* A checksum of a model's weights. Only a back end knows the layout of its packed weights, so every
 * weight is multiplied with fixed numbers, and the products are hashed. */
#ifndef TESTS_ENGINE_BASE_CHECKSUM_H
#define TESTS_ENGINE_BASE_CHECKSUM_H

#include "engine/adapters/adapters.h"

/* Computes the checksum of all packed weights of the base: equal weights give equal checksums. Must
 * not be called while the engine works. */
bool adapters_base_checksum(struct adapters *adapters, uint64_t *out, struct error *err)
    __attribute__((warn_unused_result));

#endif
