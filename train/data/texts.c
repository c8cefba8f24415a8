#include "train/data/texts.h"

#include "base/limits.h"
#include "base/text/utf8.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES 65536

struct texts_chunk {
    struct texts_chunk *next;
    size_t used, capacity;
    char bytes[];
};

const char *texts_add(struct texts *texts, const char *text, size_t length, struct error *err) {
    struct texts_chunk *chunk = texts->chunks;
    if (!chunk || chunk->capacity - chunk->used <= length) {
        const size_t capacity = length < CHUNK_BYTES ? CHUNK_BYTES : length + 1;
        chunk = malloc(sizeof(*chunk) + capacity);
        if (!chunk) {
            error_set(err, ERROR_NO_MEMORY, "no memory for a text of %zu bytes", length);
            return NULL;
        }
        *chunk = (struct texts_chunk){ texts->chunks, 0, capacity };
        texts->chunks = chunk;
    }
    char *copy = chunk->bytes + chunk->used;
    memcpy(copy, text, length);
    copy[length] = 0;
    chunk->used += length + 1;
    return copy;
}

void texts_finish(struct texts *texts) {
    while (texts->chunks) {
        struct texts_chunk *chunk = texts->chunks;
        texts->chunks = chunk->next;
        free(chunk);
    }
}

bool caption_check(const char *text, size_t length, struct error *err) {
    const char *nul = memchr(text, 0, length);
    const size_t valid = utf8_valid_bytes(text, length);
    if (length > PROMPT_MAX_BYTES)
        return error_set(err, ERROR_INVALID, "a caption of %zu bytes; at most %d are taken", length,
            PROMPT_MAX_BYTES);
    if (nul)
        return error_set(
            err, ERROR_INVALID, "a caption with a NUL, at its byte %zu", (size_t)(nul - text));
    if (valid < length)
        return error_set(err, ERROR_INVALID, "a caption that is not UTF-8, at its byte %zu", valid);
    return true;
}

size_t utf8_mark_bytes(const char *file, size_t size) {
    return size >= 3 && memcmp(file, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

bool captions_parse(const char *file, size_t size, struct texts *texts, const char **captions,
    int max, int *count, struct error *err) {
    *count = 0;
    for (size_t at = utf8_mark_bytes(file, size); at < size;) {
        const char *line = file + at;
        const char *newline = memchr(line, '\n', size - at);
        size_t length = newline ? (size_t)(newline - line) : size - at;
        at += length + 1;
        while (length > 0 && is_blank(line[length - 1]))
            length--;
        while (length > 0 && is_blank(*line)) {
            line++;
            length--;
        }
        if (length == 0)
            continue;
        if (*count == max)
            return error_set(err, ERROR_INVALID, "more than %d captions (a line each)", max);
        if (!caption_check(line, length, err) ||
            !(captions[*count] = texts_add(texts, line, length, err)))
            return false;
        ++*count;
    }
    return true;
}
