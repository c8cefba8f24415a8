/* Reads a safetensors header in its usual form, several times faster than a JSON parser: a folder
 * may hold a thousand files. */
#ifndef MODELS_CHECKPOINT_SAFETENSORS_SCAN_H
#define MODELS_CHECKPOINT_SAFETENSORS_SCAN_H

#include "models/checkpoint/safetensors.h"

/* Fills *out from the JSON text of a header, with the entries in the order of the text. Checks each
 * entry as safetensors_header_parse does; the caller checks that they tile the data, and that the
 * metadata are texts. Returns false if anything is wrong, or
 * correct but unusual (an escape in a name, another key); *out is empty then, and a JSON parser
 * decides which it is. */
bool safetensors_scan(
    const char *text, size_t size, uint64_t data_bytes, struct safetensors_header *out);

#endif
