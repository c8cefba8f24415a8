/* The order of precedence is that of transformers. Tokens that tokenizer.json (or the config's
 * added_tokens_decoder) lists are used as listed. Otherwise the four roles are added in the order
 * begin, end, unknown, padding. If two of them have the same text, the later one decides how it is
 * matched. */
#include "models/tokenizer/tokenizer_special.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/list.h"
#include "base/text/json.h"
#include "models/tokenizer/tokenizer_text.h"

#include <stdlib.h>
#include <string.h>

enum { ROLE_BEGIN, ROLE_END, ROLE_UNKNOWN, ROLE_PAD, ROLE_COUNT };

static const struct {
    const char *key, *fallback;
} roles[ROLE_COUNT] = {
    [ROLE_BEGIN] = { "bos_token", "<|startoftext|>" },
    [ROLE_END] = { "eos_token", "<|endoftext|>" },
    [ROLE_UNKNOWN] = { "unk_token", "<|endoftext|>" },
    [ROLE_PAD] = { "pad_token", "<|endoftext|>" },
};

/* Until the end of special_tokens_init, `content` is the token as written. */
static bool add(struct special_tokens *special, const char *content, int32_t id, bool normalized,
    struct error *err) {
    for (size_t i = 0; i < special->count; i++)
        if (strcmp(special->items[i].content, content) == 0) {
            special->items[i].normalized = normalized;
            return true;
        }
    if (content[0] == 0)
        return error_set(err, ERROR_INVALID, "added token %d is empty", id);
    if (special->count == TOKENIZER_MAX_ADDED_TOKENS)
        return error_set(
            err, ERROR_INVALID, "more than %d added tokens", TOKENIZER_MAX_ADDED_TOKENS);
    if (!LIST_ROOM(special->items, special->count, "added tokens", err))
        return false;
    char *copy = strdup(content);
    if (!copy)
        return error_set(err, ERROR_NO_MEMORY, "no memory for added tokens");
    special->items[special->count++] = (struct special_token){ copy, strlen(copy), id, normalized };
    return true;
}

/* Adds an entry of added_tokens or of added_tokens_decoder. `id` is -1 if the entry has the id
 * itself. */
static bool add_described(struct special_tokens *special, const json_t *token, int64_t id,
    struct vocab *vocab, struct error *err) {
    static const char *const flags[] = { "single_word", "lstrip", "rstrip" };
    const char *content = json_string_value(json_object_get(token, "content"));
    if (!content || (id < 0 && !json_exact_integer(json_object_get(token, "id"), &id)) || id < 0 ||
        id >= TOKENIZER_MAX_TOKENS)
        return error_set(err, ERROR_INVALID, "an added token has no content or no valid id");
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        if (json_is_true(json_object_get(token, flags[i])))
            return error_set(err, ERROR_UNSUPPORTED, "added token \"%.60s\": %s is not supported",
                content, flags[i]);
    int32_t known = vocab_find(vocab, content, strlen(content));
    if (known >= 0 && known != id)
        return error_set(err, ERROR_INVALID,
            "added token \"%.60s\" has the id %lld, but %d in the vocabulary", content,
            (long long)id, known);
    if (known < 0 && !vocab_add(vocab, content, (int32_t)id, err))
        return false;
    return add(
        special, content, (int32_t)id, json_is_true(json_object_get(token, "normalized")), err);
}

/* Checks that a value is absent, null, or of the right kind. */
static bool check_kind(
    const char *key, const json_t *value, bool is_right, const char *needed, struct error *err) {
    char shown[96];
    return !value || json_is_null(value) || is_right ||
           error_set(err, ERROR_INVALID, "%s is %s; %s is needed", key,
               json_describe(value, shown, sizeof(shown)), needed);
}

static bool add_listed(struct special_tokens *special, const json_t *added_tokens,
    const json_t *decoder, struct vocab *vocab, struct error *err) {
    if (!check_kind("added_tokens", added_tokens, json_is_array(added_tokens), "a list", err) ||
        !check_kind("added_tokens_decoder", decoder, json_is_object(decoder), "an object", err))
        return false;
    for (size_t i = 0; i < json_array_size(added_tokens); i++)
        if (!add_described(special, json_array_get(added_tokens, i), -1, vocab, err))
            return false;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)decoder, key, value) {
        char *end;
        long id = strtol(key, &end, 10);
        if (*key == 0 || *end != 0 || id < 0)
            return error_set(
                err, ERROR_INVALID, "added_tokens_decoder: \"%.40s\" is not an id", key);
        if (!add_described(special, value, id, vocab, err))
            return false;
    }
    return true;
}

/* Adds the token of a role. It is a string, or an object with its content. */
static bool add_role(struct special_tokens *special, int role, const json_t *const *configs,
    bool listed_stand, const struct vocab *vocab, int32_t *id, struct error *err) {
    const json_t *value = NULL;
    for (int i = 0; i < 2 && !value; i++) {
        value = json_object_get(configs[i], roles[role].key);
        if (json_is_null(value))
            value = NULL;
    }
    const char *content = roles[role].fallback;
    if (value)
        content = json_string_value(
            json_is_object(value) ? json_object_get(value, "content") : value);
    if (!content)
        return error_set(err, ERROR_INVALID, "%s is not a token", roles[role].key);
    *id = vocab_find(vocab, content, strlen(content));
    if (*id < 0)
        return error_set(err, ERROR_INVALID, "%s is \"%.60s\", which is not in the vocabulary",
            roles[role].key, content);
    for (size_t i = 0; listed_stand && i < special->count; i++)
        if (special->items[i].id == *id)
            return true;
    return add(special, content, *id, json_is_true(json_object_get(value, "normalized")), err);
}

static bool normalize_contents(struct special_tokens *special, struct error *err) {
    for (size_t i = 0; i < special->count; i++) {
        struct special_token *token = &special->items[i];
        char *normal;
        if (!token->normalized)
            continue;
        if (!text_normalize(token->content, token->length, &normal, &token->length, err))
            return false;
        free(token->content);
        token->content = normal;
    }
    return true;
}

/* Reads a JSON file. *out is NULL, without an error, if there is no such file. */
static bool read_optional(const char *dir, const char *name, json_t **out, struct error *err) {
    char *path = file_join(dir, name);
    *out = NULL;
    if (!path)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    bool ok = true;
    if (file_exists(path)) {
        *out = json_parse_file_as_reals(path, CONFIG_MAX_BYTES, err);
        ok = *out != NULL;
    }
    free(path);
    return ok;
}

static bool init(struct special_tokens *special, const json_t *const *configs,
    const json_t *added_tokens, struct vocab *vocab, struct error *err) {
    const json_t *decoder = json_object_get(configs[0], "added_tokens_decoder");
    int32_t ids[ROLE_COUNT];
    if (!add_listed(special, added_tokens, decoder, vocab, err))
        return false;
    bool listed = special->count > 0;
    for (int role = 0; role < ROLE_COUNT; role++)
        if (!add_role(special, role, configs, listed, vocab, &ids[role], err))
            return false;
    special->begin = ids[ROLE_BEGIN];
    special->end = ids[ROLE_END];
    special->unknown = ids[ROLE_UNKNOWN];
    special->pad = ids[ROLE_PAD];
    return normalize_contents(special, err);
}

bool special_tokens_init(struct special_tokens *special, const json_t *config, const json_t *map,
    const json_t *added_tokens, struct vocab *vocab, struct error *err) {
    const json_t *configs[2] = { config, map };
    memset(special, 0, sizeof(*special));
    if (init(special, configs, added_tokens, vocab, err))
        return true;
    special_tokens_finish(special);
    return false;
}

bool special_tokens_read(struct special_tokens *special, const char *dir,
    const json_t *added_tokens, struct vocab *vocab, struct error *err) {
    json_t *config = NULL, *map = NULL;
    memset(special, 0, sizeof(*special));
    const bool ok = read_optional(dir, "tokenizer_config.json", &config, err) &&
                    read_optional(dir, "special_tokens_map.json", &map, err) &&
                    special_tokens_init(special, config, map, added_tokens, vocab, err);
    json_decref(config);
    json_decref(map);
    return ok;
}

void special_tokens_finish(struct special_tokens *special) {
    for (size_t i = 0; i < special->count; i++)
        free(special->items[i].content);
    free(special->items);
    memset(special, 0, sizeof(*special));
}

const struct special_token *special_tokens_find(const struct special_tokens *special,
    bool normalized, const char *text, size_t size, size_t *offset) {
    for (*offset = 0; *offset < size; ++*offset) {
        const struct special_token *longest = NULL;
        for (size_t i = 0; i < special->count; i++) {
            const struct special_token *token = &special->items[i];
            if (token->normalized == normalized && token->content[0] == text[*offset] &&
                token->length <= size - *offset &&
                memcmp(token->content, text + *offset, token->length) == 0 &&
                (!longest || token->length > longest->length))
                longest = token;
        }
        if (longest)
            return longest;
    }
    return NULL;
}
