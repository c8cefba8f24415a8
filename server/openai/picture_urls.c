#include "server/openai/picture_urls.h"

#include "base/monotonic.h"
#include "base/random.h"
#include "server/http/respond.h"
#include "server/openai/openai.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_RANDOM_BYTES 16

struct kept {
    char name[PICTURE_URL_NAME_BYTES];
    uint64_t account;
    enum picture_format format;
    void *bytes; /* owned */
    size_t size;
    double added_s;
    struct kept *next; /* used less recently */
};

struct picture_urls {
    struct picture_urls_limits limits;
    pthread_mutex_t mutex; /* guards what follows */
    struct kept *first;
    size_t bytes;
    int count;
};

bool picture_urls_create(
    const struct picture_urls_limits *limits, struct picture_urls **out, struct error *err) {
    struct picture_urls *urls = calloc(1, sizeof(*urls));
    *out = urls;
    if (!urls)
        return error_set(err, ERROR_NO_MEMORY, "no memory for pictures with an address");
    urls->limits = *limits;
    pthread_mutex_init(&urls->mutex, NULL);
    return true;
}

/* All functions from here to picture_urls_destroy: call with the lock held. */

/* Takes the picture at *at out of the list. */
static struct kept *take(struct picture_urls *urls, struct kept **at) {
    struct kept *k = *at;
    *at = k->next;
    urls->bytes -= k->size;
    urls->count--;
    return k;
}

static void put_first(struct picture_urls *urls, struct kept *k) {
    k->next = urls->first;
    urls->first = k;
    urls->bytes += k->size;
    urls->count++;
}

static void drop(struct picture_urls *urls, struct kept **at) {
    struct kept *k = take(urls, at);
    free(k->bytes);
    free(k);
}

static void drop_old(struct picture_urls *urls, double now_s) {
    for (struct kept **at = &urls->first; *at;) {
        if (now_s - (*at)->added_s > urls->limits.age_s)
            drop(urls, at);
        else
            at = &(*at)->next;
    }
}

static size_t bytes_of(const struct picture_urls *urls, uint64_t account) {
    size_t bytes = 0;
    for (const struct kept *k = urls->first; k; k = k->next)
        bytes += k->account == account ? k->size : 0;
    return bytes;
}

/* Drops the least recently used picture of the caller that holds most bytes. If that is the first,
 * which was just added, drops the least recently used of all. There are at least two. */
static void drop_one(struct picture_urls *urls) {
    uint64_t account = 0;
    size_t most = 0;
    for (const struct kept *k = urls->first; k; k = k->next) {
        const size_t bytes = bytes_of(urls, k->account);
        if (bytes > most) {
            most = bytes;
            account = k->account;
        }
    }
    struct kept **own = &urls->first, **last = &urls->first;
    for (struct kept **at = &urls->first; *at; at = &(*at)->next) {
        last = at;
        own = (*at)->account == account ? at : own;
    }
    drop(urls, own == &urls->first ? last : own);
}

/* Compares all characters, so that the time tells nothing of how many are right. */
static bool is_named(const struct kept *k, const char name[PICTURE_URL_NAME_BYTES]) {
    unsigned differ = 0;
    for (int i = 0; i < PICTURE_URL_NAME_BYTES; i++)
        differ |= (unsigned)(k->name[i] ^ name[i]);
    return differ == 0;
}

void picture_urls_destroy(struct picture_urls *urls) {
    if (!urls)
        return;
    while (urls->first)
        drop(urls, &urls->first);
    pthread_mutex_destroy(&urls->mutex);
    free(urls);
}

static struct kept *kept_create(uint64_t account, enum picture_format format, const void *bytes,
    size_t size, double now_s, struct error *err) {
    char random[2 * NAME_RANDOM_BYTES + 1];
    if (!random_text(random, NAME_RANDOM_BYTES, err))
        return NULL;
    struct kept *k = calloc(1, sizeof(*k));
    void *copy = malloc(size + 1); /* + 1: never 0 bytes */
    if (!k || !copy) {
        free(k);
        free(copy);
        error_set(err, ERROR_NO_MEMORY, "no memory for a picture with an address");
        return NULL;
    }
    memcpy(copy, bytes, size);
    *k = (struct kept){ .account = account, .format = format, .bytes = copy, .size = size };
    k->added_s = now_s;
    snprintf(k->name, sizeof(k->name), "%s.%s", random, picture_format_name(format));
    return k;
}

bool picture_urls_add(struct picture_urls *urls, uint64_t account, enum picture_format format,
    const void *bytes, size_t size, double now_s, char name[PICTURE_URL_NAME_BYTES],
    struct error *err) {
    if (size > urls->limits.bytes)
        return error_set(err, ERROR_TOO_LARGE, "a picture of %zu bytes; at most %zu get an address",
            size, urls->limits.bytes);
    struct kept *k = kept_create(account, format, bytes, size, now_s, err);
    if (!k)
        return false;
    memcpy(name, k->name, PICTURE_URL_NAME_BYTES);
    pthread_mutex_lock(&urls->mutex);
    drop_old(urls, now_s);
    put_first(urls, k);
    while (urls->bytes > urls->limits.bytes || urls->count > urls->limits.count)
        drop_one(urls);
    pthread_mutex_unlock(&urls->mutex);
    return true;
}

bool picture_urls_get(struct picture_urls *urls, const char *name, double now_s,
    enum picture_format *format, void **bytes, size_t *size, struct error *err) {
    char whole[PICTURE_URL_NAME_BYTES] = { 0 };
    if (strlen(name) < sizeof(whole))
        memcpy(whole, name, strlen(name));
    *bytes = NULL;
    pthread_mutex_lock(&urls->mutex);
    drop_old(urls, now_s);
    struct kept **at = &urls->first;
    while (*at && !is_named(*at, whole))
        at = &(*at)->next;
    const bool found = *at;
    if (found) {
        put_first(urls, take(urls, at));
        *format = urls->first->format;
        *size = urls->first->size;
        *bytes = malloc(*size + 1);
        if (*bytes)
            memcpy(*bytes, urls->first->bytes, *size);
    }
    pthread_mutex_unlock(&urls->mutex);
    if (!found)
        return error_set(err, ERROR_NOT_FOUND,
            "there is no picture of this name, or not any more: pictures stay for %g minutes at "
            "most, and less when newer ones need the room",
            urls->limits.age_s / 60);
    return *bytes || error_set(err, ERROR_NO_MEMORY, "no memory for a picture");
}

/* --- The route --- */

static enum MHD_Result handle(struct exchange *exchange) {
    struct error err = { 0 };
    enum picture_format format;
    void *bytes;
    size_t size, length;
    char name[PICTURE_URL_NAME_BYTES];
    const char *piece = route_piece(exchange->route, exchange->target, &length);
    if (!openai_query_none(exchange->target, &err))
        return respond_error(exchange, &err);
    snprintf(name, sizeof(name), "%.*s", (int)(length < sizeof(name) ? length : 0), piece);
    if (!picture_urls_get(exchange->server->picture_urls, name, monotonic_seconds(), &format,
            &bytes, &size, &err))
        return respond_error(exchange, &err);
    return respond_bytes(exchange, 200, picture_media_type(format), bytes, size, NULL, false);
}

/* Needs no API key: clients fetch an address without one, as they fetch OpenAI's. */
const struct route route_openai_picture = { .path = PICTURE_URLS_PATH,
    .is_prefix = true,
    .piece = "id",
    .open = true,
    .dialect = &dialect_openai,
    .methods = {
        { "GET", .handle = handle, .about = "the picture at the address that an answer's url named",
            .answers = "image/png image/jpeg image/webp" } } };
