#include "models/tokenizer/tokenizer_vocab.h"

#include "base/hash.h"
#include "base/limits.h"
#include "base/text/json.h"

#include <stdlib.h>
#include <string.h>

static size_t hash_bytes(const char *bytes, size_t length) {
    uint64_t hash = hash_fnv1a(bytes, length);
    return (size_t)(hash ^ hash >> 32);
}

static size_t hash_pair(int32_t left, int32_t right) {
    uint64_t x = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    return (size_t)(x ^ x >> 31);
}

/* Returns a power of two that leaves at least half of the table empty. */
static size_t table_size(size_t entries) {
    size_t size = 64;
    while (size < entries * 2)
        size *= 2;
    return size;
}

int32_t vocab_find(const struct vocab *vocab, const char *bytes, size_t length) {
    size_t mask = vocab->slot_count - 1;
    for (size_t at = hash_bytes(bytes, length) & mask; vocab->slots[at] >= 0;
         at = (at + 1) & mask) {
        const char *token = vocab->tokens[vocab->slots[at]];
        if (strncmp(token, bytes, length) == 0 && token[length] == 0)
            return vocab->slots[at];
    }
    return -1;
}

/* Inserts a token that is not in the table; there must be room for it. */
static void insert_slot(struct vocab *vocab, int32_t id) {
    size_t mask = vocab->slot_count - 1;
    size_t at = hash_bytes(vocab->tokens[id], strlen(vocab->tokens[id])) & mask;
    while (vocab->slots[at] >= 0)
        at = (at + 1) & mask;
    vocab->slots[at] = id;
}

void vocab_byte_symbols(int32_t symbols[256]) {
    int others = 0;
    for (int byte = 0; byte < 256; byte++) {
        bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        symbols[byte] = prints ? byte : 0x100 + others++;
    }
}

static bool read_id(const char *token, const json_t *value, int64_t *id, struct error *err) {
    char shown[64];
    if (!json_exact_integer(value, id) || *id < 0 || *id >= TOKENIZER_MAX_TOKENS)
        return error_set(err, ERROR_INVALID,
            "vocabulary: the id of \"%.60s\" is %s; an integer from 0 to %d is needed", token,
            json_describe(value, shown, sizeof(shown)), TOKENIZER_MAX_TOKENS - 1);
    return true;
}

bool vocab_alloc(struct vocab *vocab, size_t count, struct error *err) {
    memset(vocab, 0, sizeof(*vocab));
    vocab->count = count;
    /* This includes room for added tokens, so the table never grows. */
    vocab->slot_count = table_size(count + TOKENIZER_MAX_ADDED_TOKENS);
    vocab->tokens = calloc(count, sizeof(*vocab->tokens));
    vocab->slots = malloc(vocab->slot_count * sizeof(*vocab->slots));
    if (!vocab->tokens || !vocab->slots) {
        vocab_finish(vocab);
        return error_set(err, ERROR_NO_MEMORY, "vocabulary: no memory for %zu tokens", count);
    }
    memset(vocab->slots, 0xff, vocab->slot_count * sizeof(*vocab->slots));
    return true;
}

bool vocab_init(struct vocab *vocab, const json_t *tokens, struct error *err) {
    memset(vocab, 0, sizeof(*vocab));
    if (json_object_size(tokens) == 0)
        return error_set(err, ERROR_INVALID, "vocabulary: not an object of tokens and their ids");
    const char *token;
    json_t *value;
    int64_t id;
    size_t count = 0;
    json_object_foreach((json_t *)tokens, token, value) {
        if (!read_id(token, value, &id, err))
            return false;
        if ((size_t)id >= count)
            count = (size_t)id + 1;
    }
    bool ok = vocab_alloc(vocab, count, err);
    void *iter = ok ? json_object_iter((json_t *)tokens) : NULL;
    for (; ok && iter; iter = json_object_iter_next((json_t *)tokens, iter)) {
        token = json_object_iter_key(iter);
        ok = read_id(token, json_object_iter_value(iter), &id, err) &&
             vocab_add(vocab, token, (int32_t)id, err);
    }
    if (!ok)
        vocab_finish(vocab);
    return ok;
}

void vocab_finish(struct vocab *vocab) {
    for (size_t i = 0; vocab->tokens && i < vocab->count; i++)
        free(vocab->tokens[i]);
    free(vocab->tokens);
    free(vocab->slots);
    free(vocab->merges);
    memset(vocab, 0, sizeof(*vocab));
}

bool vocab_add(struct vocab *vocab, const char *token, int32_t id, struct error *err) {
    if ((size_t)id >= vocab->count) {
        char **tokens = reallocarray(vocab->tokens, (size_t)id + 1, sizeof(*tokens));
        if (!tokens)
            return error_set(err, ERROR_NO_MEMORY, "vocabulary: no memory for %d tokens", id + 1);
        memset(tokens + vocab->count, 0, ((size_t)id + 1 - vocab->count) * sizeof(*tokens));
        vocab->tokens = tokens;
        vocab->count = (size_t)id + 1;
    }
    if (vocab->tokens[id])
        return error_set(err, ERROR_INVALID,
            "vocabulary: \"%.60s\" and \"%.60s\" have the same id, %d", vocab->tokens[id], token,
            id);
    if (!(vocab->tokens[id] = strdup(token)))
        return error_set(err, ERROR_NO_MEMORY, "vocabulary: no memory for a token");
    insert_slot(vocab, id);
    return true;
}

const struct vocab_merge *vocab_find_merge(const struct vocab *vocab, int32_t left, int32_t right) {
    size_t mask = vocab->merge_slot_count - 1;
    for (size_t at = hash_pair(left, right) & mask; vocab->merges[at].left >= 0;
         at = (at + 1) & mask)
        if (vocab->merges[at].left == left && vocab->merges[at].right == right)
            return &vocab->merges[at];
    return NULL;
}

static bool merges_start(struct vocab *vocab, size_t count, struct error *err) {
    if (count > TOKENIZER_MAX_TOKENS)
        return error_set(err, ERROR_INVALID, "merges: %zu of them; at most %d are supported", count,
            TOKENIZER_MAX_TOKENS);
    vocab->merge_slot_count = table_size(count);
    vocab->merges = malloc(vocab->merge_slot_count * sizeof(*vocab->merges));
    if (!vocab->merges)
        return error_set(err, ERROR_NO_MEMORY, "merges: no memory for %zu of them", count);
    for (size_t i = 0; i < vocab->merge_slot_count; i++)
        vocab->merges[i].left = -1;
    return true;
}

/* Adds merge number `rank`. Both sides and their result must be tokens. */
static bool add_merge(struct vocab *vocab, const char *left, size_t left_length, const char *right,
    size_t right_length, int32_t rank, struct error *err) {
    char joined[1024];
    if (left_length + right_length > sizeof(joined))
        return error_set(
            err, ERROR_INVALID, "merges: number %d is longer than %zu bytes", rank, sizeof(joined));
    memcpy(joined, left, left_length);
    memcpy(joined + left_length, right, right_length);
    struct vocab_merge merge = { vocab_find(vocab, left, left_length),
        vocab_find(vocab, right, right_length),
        vocab_find(vocab, joined, left_length + right_length), rank };
    if (merge.left < 0 || merge.right < 0 || merge.merged < 0)
        return error_set(err, ERROR_INVALID,
            "merges: number %d joins \"%.*s\" and \"%.*s\", which are not both in the vocabulary "
            "together with their join",
            rank, (int)left_length, left, (int)right_length, right);
    size_t mask = vocab->merge_slot_count - 1;
    size_t at = hash_pair(merge.left, merge.right) & mask;
    for (; vocab->merges[at].left >= 0; at = (at + 1) & mask)
        if (vocab->merges[at].left == merge.left && vocab->merges[at].right == merge.right)
            break; /* a repeated pair: the later rank counts, as in the tokenizers library */
    vocab->merges[at] = merge;
    return true;
}

/* Adds the merge in a line "LEFT RIGHT" of `length` bytes. */
static bool add_merge_line(
    struct vocab *vocab, const char *line, size_t length, int32_t rank, struct error *err) {
    const char *space = memchr(line, ' ', length);
    size_t left = space ? (size_t)(space - line) : 0;
    if (left == 0 || left + 1 == length || memchr(space + 1, ' ', length - left - 1))
        return error_set(err, ERROR_INVALID, "merges: number %d is \"%.*s\", not two tokens", rank,
            (int)(length < 60 ? length : 60), line);
    return add_merge(vocab, line, left, space + 1, length - left - 1, rank, err);
}

static const char no_merges[] = "merges: there are none, so every word would be cut into bytes";

bool vocab_set_merges_text(struct vocab *vocab, const char *text, struct error *err) {
    size_t lines = 1;
    for (const char *at = text; *at; at++)
        lines += *at == '\n';
    if (!merges_start(vocab, lines, err))
        return false;
    int32_t rank = 0;
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n"), skip = line[length] ? 1 : 0;
        const char *next = line + length + skip;
        if (length > 0 && line[length - 1] == '\r')
            length--;
        bool comment = line == text && strncmp(line, "#version", 8) == 0;
        if (length > 0 && !comment && !add_merge_line(vocab, line, length, rank++, err))
            return false;
        line = next;
    }
    return rank > 0 || error_set(err, ERROR_INVALID, "%s", no_merges);
}

bool vocab_set_merges_json(struct vocab *vocab, const json_t *merges, struct error *err) {
    if (!json_is_array(merges))
        return error_set(err, ERROR_INVALID, "merges: not a list");
    if (json_array_size(merges) == 0)
        return error_set(err, ERROR_INVALID, "%s", no_merges);
    if (!merges_start(vocab, json_array_size(merges), err))
        return false;
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *item = json_array_get(merges, i);
        const char *left = json_string_value(json_array_get(item, 0));
        const char *right = json_string_value(json_array_get(item, 1));
        bool ok;
        if (json_is_string(item))
            ok = add_merge_line(
                vocab, json_string_value(item), json_string_length(item), (int32_t)i, err);
        else if (left && right && json_array_size(item) == 2)
            ok = add_merge(vocab, left, strlen(left), right, strlen(right), (int32_t)i, err);
        else
            ok = error_set(err, ERROR_INVALID, "merges: number %zu is not two tokens", i);
        if (!ok)
            return false;
    }
    return true;
}
