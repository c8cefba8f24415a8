/* Options for access: who may reach the daemon, from where, and the log of requests. */
#ifndef COMMAND_ACCESS_H
#define COMMAND_ACCESS_H

#include "base/error.h"
#include "command/options/options.h"
#include "server/access/access_log.h"
#include "server/http/listen.h"
#include "server/keys/keys.h"

#include <stdbool.h>

struct access_options {
    const char *address; /* NULL: systemd's socket, or ACCESS_ADDRESS */
    const char *socket_mode, *api_keys, *access_log, *public_url;
    bool no_tls;
};

#define ACCESS_ADDRESS "127.0.0.1:8188"

/* Rows for a table of options. `a` is a member of T, of type struct access_options. */
#define ACCESS_OPTION_ROWS(T, a)                                                                   \
    { "listen", 0, "HOST:PORT|unix:PATH",                                                          \
        "address to listen on; port 0: any free port [127.0.0.1:8188, or\n"                        \
        "the socket that systemd hands over]. The file of a unix socket is\n"                      \
        "removed at the end. An address that other machines can reach needs\n"                     \
        "--api-keys",                                                                              \
        .to = OPTION_TO_TEXT(T, a.address) },                                                      \
        { "socket-mode", 0, "OCTAL", "permissions of the unix socket [600]",                       \
            .to = OPTION_TO_TEXT(T, a.socket_mode) },                                              \
        { "api-keys", 0, "FILE",                                                                   \
            "API keys (see latentd key); every request must then carry one\n"                      \
            "[systemd's credential api-keys if there is one, else no keys]",                       \
            .to = OPTION_TO_TEXT(T, a.api_keys) },                                                 \
        { "insecure-no-tls", 0, NULL,                                                              \
            "allow an address that other machines can reach, although keys,\n"                     \
            "prompts and pictures are sent unencrypted",                                           \
            .to = OPTION_TO_FLAG(T, a.no_tls) },                                                   \
        { "host", 0, "NAME",                                                                       \
            "a host name that clients use for this daemon, besides localhost\n"                    \
            "and IP addresses; may be repeated",                                                   \
            .repeats = true },                                                                     \
        { "public-url", 0, "URL",                                                                  \
            "address at which clients reach the daemon, such as\n"                                 \
            "https://sd.example; URLs of pictures in answers to OpenAI's clients\n"                \
            "begin with this address [http:// and the request's Host]",                            \
            .to = OPTION_TO_TEXT(T, a.public_url) },                                               \
        { "cors-origin", 0, "ORIGIN",                                                              \
            "allow web pages of this origin to call the daemon, such as\n"                         \
            "https://app.example; may be repeated",                                                \
            .repeats = true },                                                                     \
    {                                                                                              \
        "access-log", 0, "FILE", "append a line of JSON for each request; - is standard output",   \
            .to = OPTION_TO_TEXT(T, a.access_log)                                                  \
    }

struct access {
    struct api_keys *keys;                        /* owned; NULL: none */
    struct access_log *log;                       /* owned; NULL: none */
    const char *hosts[OPTIONS_REPEATS_MAX + 1];   /* borrowed from the options; ends with NULL */
    const char *origins[OPTIONS_REPEATS_MAX + 1]; /* likewise */
    struct listener listener;
};

/* ERROR_INVALID means a wrong command line. Call access_finish also after a failure. */
bool access_init(struct access *access, const struct access_options *options,
    const struct options *given, struct error *err) __attribute__((warn_unused_result));
void access_finish(struct access *access);

#endif
