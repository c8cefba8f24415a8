/* Fuzzes the parsers of texts that are read before anything else is checked, from operators and
 * from unknown clients. The first byte selects the kind: a configuration file, a file of keys, an
 * Authorization header, or an origin for CORS. A refusal gives a reason. An accepted header gives
 * exactly the key that it contains. */
#include "command/options/config_file.h"
#include "command/options/options.h"
#include "server/access/authorization.h"
#include "server/access/cors.h"
#include "server/keys/keys.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct target {
    const char *model;
    int count;
    double share;
    bool flag;
};

static const struct option_spec table[] = {
    { "model", 0, "PATH", "", .to = OPTION_TO_TEXT(struct target, model) },
    { "count", 0, "N", "", .to = OPTION_TO_INT(struct target, count, 1, 1000) },
    { "share", 0, "X", "", .to = OPTION_TO_DOUBLE(struct target, share, 0, 2) },
    { "flag", 0, NULL, "", .to = OPTION_TO_FLAG(struct target, flag) },
    { "host", 0, "NAME", "", .repeats = true },
    { "config", 0, "FILE", "", .holds_options = true },
    { 0 },
};

static bool is_reason(const struct error *err) {
    return err->code != ERROR_NONE && err->message[0];
}

static void read_config(const char *text, size_t size) {
    struct options options = { .table = table };
    struct target target = { .count = 1 };
    struct error err = { 0 };
    if (!config_file_parse(text, size, &options, &err)) {
        promise(is_reason(&err));
    } else {
        size_t bytes = 0; /* reads every byte of every value */
        for (int i = 0; table[i].name; i++)
            bytes += options.values[i] ? strlen(options.values[i]) : 0;
        for (int i = 0; i < options_count(&options, "host"); i++)
            bytes += strlen(options_get_nth(&options, "host", i));
        promise(!options_get(&options, "config") && bytes <= 32 * size + 32);
        if (!options_fill(&options, &target, &err))
            promise(is_reason(&err));
        else
            promise(target.count >= 1 && target.count <= 1000 && target.share <= 2);
    }
    options_finish(&options);
}

static void read_keys(const char *text, size_t size) {
    struct api_keys *keys = NULL;
    struct error err = { 0 };
    if (!api_keys_parse(text, size, &keys, &err)) {
        promise(is_reason(&err));
        return;
    }
    const struct digest digest = sha256_of(text, size);
    unsigned rights;
    const char *name = api_keys_find(keys, &digest, &rights);
    promise(api_keys_count(keys) >= 0 && api_keys_count(keys) <= KEYS_MAX);
    promise(rights == 0 || (name && (rights & ~KEY_MAY_EVERYTHING) == 0));
    promise(!name || (api_key_name_is_valid(name, strlen(name)) && api_keys_has_name(keys, name)));
    api_keys_destroy(keys);
}

static int base64_value(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Returns the key in an accepted header, parsed again in the simplest way; malloc'd. */
static char *key_in(const char *value, size_t size, size_t *key_size) {
    const size_t scheme = strncasecmp(value, "Bearer ", 7) == 0 ? 7 : 6;
    char *key = calloc(1, size + 1);
    promise(key != NULL);
    size_t used = 0, at = scheme;
    while (at < size && value[at] == ' ')
        at++;
    if (scheme == 7) {
        memcpy(key, value + at, size - at);
        *key_size = size - at;
        return key;
    }
    unsigned bits = 0, count = 0;
    for (; at < size && value[at] != '='; at++) {
        promise(base64_value(value[at]) >= 0);
        bits = bits << 6 | (unsigned)base64_value(value[at]);
        if ((count += 6) >= 8)
            key[used++] = (char)(bits >> (count -= 8));
    }
    const char *colon = memchr(key, ':', used);
    *key_size = colon ? used - (size_t)(colon + 1 - key) : used;
    memmove(key, colon ? colon + 1 : key, *key_size);
    return key;
}

static void read_header(const char *value, size_t size) {
    struct digest digest;
    if (!authorization_digest(value, size, &digest))
        return;
    size_t key_size;
    char *key = key_in(value, size, &key_size);
    const struct digest wanted = sha256_of(key, key_size);
    promise(key_size > 0 && key_size <= KEY_MAX_BYTES && digest_equals(&digest, &wanted));
    free(key);
}

static void read_origin(const char *text) {
    const char *const list[] = { text, NULL };
    if (!cors_origin_is_valid(text))
        return;
    const char *host = strstr(text, "://");
    promise(host && !strpbrk(host + 3, " \t\r\n*/?#@,;\"<>"));
    promise(cors_find(list, text, strlen(text)) == text);
    promise(!cors_find(list, text, strlen(text) - 1));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    char *text = malloc(size);
    if (!text)
        return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    switch (data[0] % 4) {
    case 0:
        read_config(text, size - 1);
        break;
    case 1:
        read_keys(text, size - 1);
        break;
    case 2:
        read_header(text, size - 1);
        break;
    default:
        read_origin(text);
    }
    free(text);
    return 0;
}
