/* Finished pictures that clients fetch by address, as OpenAI's answers have it ("url").
 *
 * Pictures are copied into memory. Within a bound on bytes, number and age (PICTURE_URLS_ in
 * base/limits.h) each stays until there is no room for newer ones. The one to leave is then, of the
 * caller that holds most bytes, the picture that was added or fetched least recently: a caller that
 * draws much does not push out the pictures of others. A name is 128 random bits, which nobody can
 * guess; whoever has it may fetch the picture. Any thread. */
#ifndef SERVER_OPENAI_PICTURE_URLS_H
#define SERVER_OPENAI_PICTURE_URLS_H

#include "base/error.h"
#include "pictures/encode.h"

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

bool picture_urls_create(const struct picture_urls_limits *limits, struct picture_urls **out,
    struct error *err) __attribute__((warn_unused_result));
void picture_urls_destroy(struct picture_urls *urls); /* NULL is fine */

/* Copies a file of `size` bytes and writes its name. `account` is the caller's number
 * (server/http/caller.h), `now_s` the monotonic time. ERROR_TOO_LARGE if it alone exceeds the
 * limit. */
bool picture_urls_add(struct picture_urls *urls, uint64_t account, enum picture_format format,
    const void *bytes, size_t size, double now_s, char name[PICTURE_URL_NAME_BYTES],
    struct error *err) __attribute__((warn_unused_result));

/* Returns a copy of the file of this name, malloc'd. ERROR_NOT_FOUND if there is none, or none any
 * more. */
bool picture_urls_get(struct picture_urls *urls, const char *name, double now_s,
    enum picture_format *format, void **bytes, size_t *size, struct error *err)
    __attribute__((warn_unused_result));

#endif
