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
    struct shared_picture *file; /* owned: one reference */
    double added_s;
    uint64_t used; /* the clock when it was added or last fetched */
    struct holder *holder;
    struct kept *newer, *older; /* used more, and less recently, of the same holder */
};

/* A caller with pictures. It exists as long as it has any. */
struct holder {
    uint64_t account;
    size_t bytes;
    struct kept *first, *last; /* owned; the most, and the least recently used */
    struct holder *next;
};

struct picture_urls {
    struct picture_urls_limits limits;
    pthread_mutex_t mutex; /* guards what follows */
    struct holder *holders;
    uint64_t clock;
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

void shared_picture_release(void *released) {
    struct shared_picture *file = released;
    if (atomic_fetch_sub(&file->references, 1) > 1)
        return;
    free(file->bytes);
    free(file);
}

static void kept_free(struct kept *k) {
    shared_picture_release(k->file);
    free(k);
}

/* All functions from here to picture_urls_destroy: call with the lock held. */

/* Takes the picture out of its holder's list. */
static void take(struct kept *k) {
    *(k->newer ? &k->newer->older : &k->holder->first) = k->older;
    *(k->older ? &k->older->newer : &k->holder->last) = k->newer;
}

static void put_first(struct picture_urls *urls, struct kept *k) {
    struct holder *holder = k->holder;
    k->used = ++urls->clock;
    k->newer = NULL;
    k->older = holder->first;
    *(holder->first ? &holder->first->newer : &holder->last) = k;
    holder->first = k;
}

static struct holder **find_holder(struct picture_urls *urls, uint64_t account) {
    struct holder **at = &urls->holders;
    while (*at && (*at)->account != account)
        at = &(*at)->next;
    return at;
}

/* Returns false if there is no memory for a new holder. */
static bool add(struct picture_urls *urls, uint64_t account, struct kept *k) {
    struct holder **at = find_holder(urls, account);
    if (!*at && !(*at = calloc(1, sizeof(**at))))
        return false;
    k->holder = *at;
    k->holder->account = account;
    k->holder->bytes += k->file->size;
    urls->bytes += k->file->size;
    urls->count++;
    put_first(urls, k);
    return true;
}

static void drop(struct picture_urls *urls, struct kept *k) {
    struct holder *holder = k->holder;
    take(k);
    holder->bytes -= k->file->size;
    urls->bytes -= k->file->size;
    urls->count--;
    kept_free(k);
    if (holder->first)
        return;
    *find_holder(urls, holder->account) = holder->next;
    free(holder);
}

static void drop_old(struct picture_urls *urls, double now_s) {
    for (struct holder *holder = urls->holders, *next; holder; holder = next) {
        next = holder->next;
        for (struct kept *k = holder->first, *older; k; k = older) {
            older = k->older;
            if (now_s - k->added_s > urls->limits.age_s)
                drop(urls, k);
        }
    }
}

/* Drops the least recently used picture of the caller that holds most bytes. If that is the one
 * that was just added, drops the least recently used of all. There are at least two. Each picture
 * is dropped once, so adding one costs a walk over the callers on average, however many leave. */
static void drop_one(struct picture_urls *urls) {
    struct kept *oldest = urls->holders->last;
    struct holder *most = urls->holders;
    for (struct holder *holder = urls->holders; holder; holder = holder->next) {
        if (holder->last->used < oldest->used)
            oldest = holder->last;
        if (holder->bytes > most->bytes ||
            (holder->bytes == most->bytes && holder->last->used < most->last->used))
            most = holder;
    }
    drop(urls, most->last->used == urls->clock ? oldest : most->last);
}

/* Compares all characters, so that the time tells nothing of how many are right. */
static bool is_named(const struct kept *k, const char name[PICTURE_URL_NAME_BYTES]) {
    unsigned differ = 0;
    for (int i = 0; i < PICTURE_URL_NAME_BYTES; i++)
        differ |= (unsigned)(k->name[i] ^ name[i]);
    return differ == 0;
}

static struct kept *find(struct picture_urls *urls, const char name[PICTURE_URL_NAME_BYTES]) {
    struct kept *found = NULL;
    for (struct holder *holder = urls->holders; holder; holder = holder->next)
        for (struct kept *k = holder->first; k; k = k->older)
            found = is_named(k, name) ? k : found;
    return found;
}

void picture_urls_destroy(struct picture_urls *urls) {
    if (!urls)
        return;
    while (urls->holders)
        drop(urls, urls->holders->first);
    pthread_mutex_destroy(&urls->mutex);
    free(urls);
}

/* Takes over `bytes`. */
static struct kept *kept_create(
    enum picture_format format, void *bytes, size_t size, double now_s, struct error *err) {
    char random[2 * NAME_RANDOM_BYTES + 1];
    struct kept *k = calloc(1, sizeof(*k));
    struct shared_picture *file = malloc(sizeof(*file));
    bool ok = k && file;
    if (!ok)
        error_set(err, ERROR_NO_MEMORY, "no memory for a picture with an address");
    ok = ok && random_text(random, NAME_RANDOM_BYTES, err);
    if (!ok) {
        free(k);
        free(file);
        free(bytes);
        return NULL;
    }
    *file = (struct shared_picture){ .format = format, .bytes = bytes, .size = size };
    atomic_init(&file->references, 1);
    *k = (struct kept){ .file = file, .added_s = now_s };
    snprintf(k->name, sizeof(k->name), "%s.%s", random, picture_format_name(format));
    return k;
}

bool picture_urls_add(struct picture_urls *urls, uint64_t account, enum picture_format format,
    void *bytes, size_t size, double now_s, char name[PICTURE_URL_NAME_BYTES], struct error *err) {
    if (size > urls->limits.bytes) {
        free(bytes);
        return error_set(err, ERROR_TOO_LARGE, "a picture of %zu bytes; at most %zu get an address",
            size, urls->limits.bytes);
    }
    struct kept *k = kept_create(format, bytes, size, now_s, err);
    if (!k)
        return false;
    memcpy(name, k->name, PICTURE_URL_NAME_BYTES);
    pthread_mutex_lock(&urls->mutex);
    drop_old(urls, now_s);
    const bool added = add(urls, account, k);
    while (added && (urls->bytes > urls->limits.bytes || urls->count > urls->limits.count))
        drop_one(urls);
    pthread_mutex_unlock(&urls->mutex);
    if (added)
        return true;
    kept_free(k);
    return error_set(err, ERROR_NO_MEMORY, "no memory for a picture with an address");
}

bool picture_urls_get(struct picture_urls *urls, const char *name, double now_s,
    struct shared_picture **out, struct error *err) {
    char whole[PICTURE_URL_NAME_BYTES] = { 0 };
    if (strlen(name) < sizeof(whole))
        memcpy(whole, name, strlen(name));
    *out = NULL;
    pthread_mutex_lock(&urls->mutex);
    drop_old(urls, now_s);
    struct kept *k = find(urls, whole);
    if (k) {
        take(k);
        put_first(urls, k);
        atomic_fetch_add(&k->file->references, 1);
        *out = k->file;
    }
    pthread_mutex_unlock(&urls->mutex);
    return *out ||
           error_set(err, ERROR_NOT_FOUND,
               "there is no picture of this name, or not any more: pictures stay for %g minutes at "
               "most, and less when newer ones need the room",
               urls->limits.age_s / 60);
}

/* --- The route --- */

static enum MHD_Result handle(struct exchange *exchange) {
    struct error err = { 0 };
    struct shared_picture *file;
    size_t length;
    char name[PICTURE_URL_NAME_BYTES];
    const char *piece = route_piece(exchange->route, exchange->target, &length);
    if (!openai_query_none(exchange->target, &err))
        return respond_error(exchange, &err);
    snprintf(name, sizeof(name), "%.*s", (int)(length < sizeof(name) ? length : 0), piece);
    if (!picture_urls_get(exchange->server->picture_urls, name, monotonic_seconds(), &file, &err))
        return respond_error(exchange, &err);
    const struct shared_bytes body = { file->bytes, file->size, shared_picture_release, file };
    return respond_shared(exchange, picture_media_type(file->format), &body);
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
