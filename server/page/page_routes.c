/* GET / and /web/NAME: the web page. Its files need no key, because they contain nothing about the
 * daemon. The page uses the same routes as other clients. */
#include "server/http/respond.h"
#include "server/page/files.h"

#include <stdlib.h>
#include <string.h>

/* The page loads nothing from other sites, and has no inline code. Pictures are shown from blob:
 * URLs, because an <img> cannot send a key. */
static const struct answer_header headers[] = {
    { "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" },
    { "Cross-Origin-Opener-Policy", "same-origin" },
    { "Referrer-Policy", "no-referrer" },
    { "Cache-Control", "no-cache" }, /* cached, but checked by tag each time */
    { NULL, NULL },
};

static const struct page_file *find(const char *name, size_t length) {
    const struct page_file *file = page_files;
    while (file->name && (strlen(file->name) != length || memcmp(file->name, name, length) != 0))
        file++;
    return file->name ? file : NULL;
}

/* Returns whether the client has the same bytes already (RFC 9110, section 13.1.2). */
static bool client_has(const struct exchange *exchange, const struct page_file *file) {
    const char *tags = exchange_header(exchange, "If-None-Match");
    return tags && (strcmp(tags, "*") == 0 || strstr(tags, file->tag));
}

static enum MHD_Result respond_page_file(struct exchange *exchange, const struct page_file *file) {
    const struct answer_header own[] = { { "ETag", file->tag }, { NULL, NULL } };
    if (client_has(exchange, file))
        return respond_bytes(exchange, 304, NULL, NULL, 0, own, false);
    char *copy = malloc(file->size + 1); /* + 1: never 0 bytes */
    if (!copy)
        return MHD_NO;
    memcpy(copy, file->bytes, file->size);
    return respond_bytes(exchange, 200, file->media_type, copy, file->size, own, false);
}

static enum MHD_Result handle_page(struct exchange *exchange) {
    static const char index[] = "index.html";
    return respond_page_file(exchange, find(index, strlen(index)));
}

static enum MHD_Result handle_file(struct exchange *exchange) {
    size_t length;
    const char *name = route_piece(exchange->route, exchange->target, &length);
    const struct page_file *file = find(name, length);
    return file ? respond_page_file(exchange, file)
                : respond_refusal(
                      exchange, 404, "not_found", "the page has no such file", NULL, false);
}

const struct route route_page = { .path = "/",
    .headers = headers,
    .methods = { { "GET", .handle = handle_page, .about = "the web page",
        .answers = "text/html" } },
    .open = true };

const struct route route_page_file = { .path = "/web/",
    .is_prefix = true,
    .headers = headers,
    .methods = { { "GET", .handle = handle_file, .about = "a file of the web page",
        .answers = "text/css text/javascript image/svg+xml", .returns = "200; 304" } },
    .open = true };
