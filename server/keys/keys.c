#include "server/keys/keys.h"

#include "base/file.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct api_key {
    char name[KEY_NAME_MAX_BYTES + 1];
    struct digest digest;
    unsigned rights;
};

struct api_keys {
    int count;
    struct api_key keys[];
};

bool api_key_name_is_valid(const char *name, size_t length) {
    if (length < 1 || length > KEY_NAME_MAX_BYTES || !isalnum((unsigned char)name[0]))
        return false;
    for (size_t i = 0; i < length; i++)
        if (!name[i] || (!isalnum((unsigned char)name[i]) && !strchr("._-", name[i])))
            return false;
    return true;
}

bool key_rights_parse(const char *text, size_t length, unsigned *out) {
    static const struct {
        const char *name;
        enum key_right right;
    } rights[] = { { "priority", KEY_MAY_PRIORITY }, { "all-jobs", KEY_MAY_ALL_JOBS } };
    *out = 0;
    for (size_t at = 0; at <= length;) {
        const char *comma = memchr(text + at, ',', length - at);
        const size_t size = comma ? (size_t)(comma - text) - at : length - at;
        const unsigned before = *out;
        for (size_t i = 0; i < sizeof(rights) / sizeof(rights[0]); i++)
            if (strlen(rights[i].name) == size && memcmp(rights[i].name, text + at, size) == 0 &&
                !(before & rights[i].right))
                *out |= rights[i].right;
        if (*out == before)
            return false;
        at += size + 1;
    }
    return true;
}

int api_keys_count(const struct api_keys *keys) {
    return keys->count;
}

bool api_keys_has_name(const struct api_keys *keys, const char *name) {
    for (int i = 0; i < keys->count; i++)
        if (strcmp(keys->keys[i].name, name) == 0)
            return true;
    return false;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool parse_digest(const char *text, size_t length, struct digest *out) {
    if (length != 2 * sizeof(out->bytes))
        return false;
    for (size_t i = 0; i < sizeof(out->bytes); i++) {
        const int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        out->bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static bool bad_line(int number, const char *allowed, struct error *err) {
    return error_set(err, ERROR_INVALID, "line %d: %s", number, allowed);
}

/* word_at returns the end of the word that begins at `at`; skip_space returns the beginning of the
 * next word. */
static size_t word_at(const char *line, size_t at, size_t length) {
    while (at < length && !isspace((unsigned char)line[at]))
        at++;
    return at;
}

static size_t skip_space(const char *line, size_t at, size_t length) {
    while (at < length && isspace((unsigned char)line[at]))
        at++;
    return at;
}

/* Parses one line, without its line end. */
static bool parse_line(
    struct api_keys *keys, const char *line, size_t length, int number, struct error *err) {
    while (length > 0 && isspace((unsigned char)line[length - 1]))
        length--;
    while (length > 0 && isspace((unsigned char)line[0]))
        line++, length--;
    if (length == 0 || line[0] == '#')
        return true;
    if (keys->count == KEYS_MAX)
        return error_set(err, ERROR_INVALID, "more than %d keys", KEYS_MAX);
    struct api_key *key = &keys->keys[keys->count];
    const size_t name = word_at(line, 0, length);
    const size_t digest = skip_space(line, name, length);
    const size_t digest_end = word_at(line, digest, length);
    const size_t rights = skip_space(line, digest_end, length);
    if (!api_key_name_is_valid(line, name))
        return bad_line(number, "a name is 1 to 64 letters, digits, '.', '_' and '-'", err);
    if (!parse_digest(line + digest, digest_end - digest, &key->digest))
        return bad_line(number,
            "behind the name come the 64 hexadecimal digits of a SHA-256; latentd key makes them",
            err);
    if (rights < length && !key_rights_parse(line + rights, length - rights, &key->rights))
        return bad_line(number, "behind the digest may come " KEY_RIGHTS_ALLOWED, err);
    memcpy(key->name, line, name);
    key->name[name] = 0;
    if (api_keys_has_name(keys, key->name))
        return bad_line(number, "this name is there twice", err);
    for (int i = 0; i < keys->count; i++)
        if (digest_equals(&keys->keys[i].digest, &key->digest))
            return bad_line(number, "this key is there twice", err);
    keys->count++;
    return true;
}

bool api_keys_parse(const char *text, size_t size, struct api_keys **out, struct error *err) {
    struct api_keys *keys = calloc(1, sizeof(*keys) + KEYS_MAX * sizeof(keys->keys[0]));
    if (!keys)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the keys");
    int number = 0;
    for (const char *at = text, *end = text + size; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop)
            stop = end;
        if (!parse_line(keys, at, (size_t)(stop - at), ++number, err)) {
            free(keys);
            return false;
        }
        at = stop < end ? stop + 1 : end;
    }
    *out = keys;
    return true;
}

bool api_keys_read(const char *path, struct api_keys **out, struct error *err) {
    char *text;
    size_t size;
    if (!file_read(path, KEYS_FILE_MAX_BYTES, &text, &size, err))
        return false;
    const bool ok = api_keys_parse(text, size, out, err) || error_prefix(err, "%s", path);
    free(text);
    return ok;
}

void api_keys_destroy(struct api_keys *keys) {
    free(keys);
}

/* Returns 0 if the digests are equal. `all` is volatile, so that the compiler cannot make the loop
 * stop early. */
static unsigned difference(const struct digest *a, const struct digest *b) {
    volatile unsigned all = 0;
    for (size_t i = 0; i < sizeof(a->bytes); i++)
        all = all | (unsigned)(a->bytes[i] ^ b->bytes[i]);
    return all;
}

bool digest_equals(const struct digest *a, const struct digest *b) {
    return difference(a, b) == 0;
}

const char *api_keys_find(
    const struct api_keys *keys, const struct digest *digest, unsigned *rights) {
    volatile unsigned found = 0; /* 0: none; else 1 + the index */
    for (int i = 0; i < keys->count; i++) {
        const unsigned other = difference(&keys->keys[i].digest, digest); /* 0 to 255 */
        const unsigned mask = ((other - 1) >> 8) & UINT32_C(0xffffff);    /* 0 if different */
        found = found | (mask & (unsigned)(i + 1));
    }
    *rights = found ? keys->keys[found - 1].rights : 0;
    return found ? keys->keys[found - 1].name : NULL;
}
