/* Finished pictures that clients fetch by address, as OpenAI's answers have it ("url").
 *
 * Pictures are kept in memory. Within a bound on bytes, number and age (PICTURE_URLS_ in
 * base/limits.h) each stays until there is no room for newer ones. The one to leave is then, of the
 * caller that holds most bytes, the picture that was added or fetched least recently: a caller that
 * draws much does not push out the pictures of others. A name is 128 random bits, which nobody can
 * guess; whoever has it may fetch the picture. All answers share the one file in memory, so many
 * clients that fetch a picture cost no more memory than one. Any thread. */
#ifndef SERVER_OPENAI_PICTURE_URLS_H
#define SERVER_OPENAI_PICTURE_URLS_H

#include "base/error.h"
#include "pictures/encode.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct picture_urls;

/* Where pictures are served, before their name. */
#define PICTURE_URLS_PATH "/v1/images/files/"
/* A name: 32 hexadecimal digits, a dot, "png", "jpeg" or "webp", and a NUL. */
#define PICTURE_URL_NAME_BYTES 40

struct picture_urls_limits {
    size_t bytes; /* of all pictures */
    int count;
    double age_s; /* since a picture was added */
};

/* A picture's file, which never changes. It is shared by the pictures with an address and the
 * answers that send it; the last of them frees it. */
struct shared_picture {
    atomic_int references;
    enum picture_format format;
    void *bytes; /* owned */
    size_t size;
};
/* Drops a reference. `file` is a struct shared_picture. */
void shared_picture_release(void *file);

bool picture_urls_create(const struct picture_urls_limits *limits, struct picture_urls **out,
    struct error *err) __attribute__((warn_unused_result));
void picture_urls_destroy(struct picture_urls *urls); /* NULL is fine */

/* Keeps a file of `size` bytes and writes its name. Takes over `bytes` (malloc'd), also on failure.
 * `account` is the caller's number (server/http/caller.h), `now_s` the monotonic time.
 * ERROR_TOO_LARGE if it alone exceeds the limit. */
bool picture_urls_add(struct picture_urls *urls, uint64_t account, enum picture_format format,
    void *bytes, size_t size, double now_s, char name[PICTURE_URL_NAME_BYTES], struct error *err)
    __attribute__((warn_unused_result));

/* Finds the file of this name and adds a reference to it, which the caller releases.
 * ERROR_NOT_FOUND if there is none, or none any more. */
bool picture_urls_get(struct picture_urls *urls, const char *name, double now_s,
    struct shared_picture **out, struct error *err) __attribute__((warn_unused_result));

#endif
