/* The safetensors header parser on arbitrary bytes. The first eight bytes are the size of the data,
 * the rest is the header, so the fuzzer can reach tensors of any size without their bytes. An
 * accepted header must keep the promises of safetensors.h. */
#include "base/text/json.h"
#include "models/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* A header that the scanner accepts is JSON with the same names. */
static void agree(const char *text, size_t size, const struct safetensors_header *header) {
    json_t *json = header->names ? json_parse(text, size, NULL) : NULL;
    promise(!header->names || json_object_size(json) == header->count + (header->metadata ? 1 : 0));
    for (size_t i = 0; json && i < header->count; i++)
        promise(json_object_get(json, header->entries[i].name));
    json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct safetensors_header header;
    struct error err = { 0 };
    uint64_t data_bytes = 0;
    if (size < sizeof(data_bytes))
        return 0;
    memcpy(&data_bytes, data, sizeof(data_bytes));
    if (!safetensors_header_parse((const char *)data + sizeof(data_bytes),
            size - sizeof(data_bytes), data_bytes, &header, &err)) {
        promise(err.code != ERROR_NONE && err.message[0] && !header.entries && !header.json);
        return 0;
    }
    agree((const char *)data + sizeof(data_bytes), size - sizeof(data_bytes), &header);
    uint64_t at = 0;
    for (size_t i = 0; i < header.count; i++) {
        const struct safetensors_entry *entry = &header.entries[i];
        unsigned __int128 elements = 1;
        promise(entry->rank >= 0 && entry->rank <= TENSOR_MAX_RANK);
        for (int k = 0; k < entry->rank; k++) {
            promise(entry->shape[k] >= 1 && entry->shape[k] <= INT32_MAX);
            elements *= (unsigned __int128)entry->shape[k];
        }
        promise(elements == entry->elements);
        promise(elements * safetensors_dtype_size(entry->dtype) == entry->end - entry->begin);
        promise(entry->begin == at);
        at = entry->end;
    }
    promise(at == data_bytes);
    safetensors_header_finish(&header);
    return 0;
}
