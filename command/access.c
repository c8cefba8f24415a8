#include "command/access.h"

#include "base/file.h"
#include "command/service.h"
#include "server/access/cors.h"

#include <stdlib.h>
#include <string.h>

#define CREDENTIAL "api-keys"

/* Reads the keys that systemd hands over as a credential. *out stays NULL if there is no such file
 * or it has no key. */
static bool read_credential(struct api_keys **out, struct error *err) {
    const char *folder = getenv("CREDENTIALS_DIRECTORY");
    char *path = folder ? file_join(folder, CREDENTIAL) : NULL;
    bool ok = path || !folder || error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    if (path && file_exists(path))
        ok = api_keys_read(path, out, err);
    free(path);
    if (ok && *out && api_keys_count(*out) == 0) {
        api_keys_destroy(*out);
        *out = NULL;
    }
    return ok;
}

static bool read_keys(const char *path, struct api_keys **out, struct error *err) {
    if (!path)
        return read_credential(out, err);
    return api_keys_read(path, out, err) &&
           (api_keys_count(*out) > 0 ||
               error_set(err, ERROR_INVALID, "%s: there is no key in it; latentd key NAME adds one",
                   path));
}

static bool host_is_valid(const char *host) {
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_[]:";
    const size_t length = strlen(host);
    return length > 0 && length <= 255 && strspn(host, allowed) == length &&
           (host[0] == '[' || !strchr(host, ':'));
}

/* http:// or https://, then anything that needs no escape in a URL's host, port and path. */
static bool url_is_valid(const char *url) {
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_~[]:/";
    const size_t scheme = strncmp(url, "https://", 8) == 0  ? 8
                          : strncmp(url, "http://", 7) == 0 ? 7
                                                            : 0;
    const size_t length = strlen(url);
    return scheme > 0 && length > scheme && length <= 255 && url[scheme] != '/' &&
           url[length - 1] != '/' && strspn(url, allowed) == length;
}

static bool read_names(const struct options *given, const char *option, const char **out,
    bool (*is_valid)(const char *), const char *allowed, struct error *err) {
    const int count = options_count(given, option);
    for (int i = 0; i < count; i++) {
        out[i] = options_get_nth(given, option, i);
        if (!is_valid(out[i]))
            return options_refuse(option, out[i], allowed, err);
    }
    return true;
}

static bool parse_mode(const char *text, mode_t *out, struct error *err) {
    char *end;
    const unsigned long mode = text ? strtoul(text, &end, 8) : 0600;
    if (text && (strlen(text) < 3 || strlen(text) > 4 || strspn(text, "01234567") != strlen(text) ||
                    mode > 0777))
        return options_refuse("socket-mode", text, "an octal number from 000 to 777", err);
    *out = (mode_t)mode;
    return true;
}

static bool open_listener(
    struct access *access, const struct access_options *options, mode_t mode, struct error *err) {
    const struct listen_policy policy = { access->keys != NULL, options->no_tls };
    int fd;
    if (!service_take_socket(&fd, err))
        return false;
    if (fd >= 0 && options->address)
        return options_refuse(
            "listen", options->address, "leave it out: systemd hands over a socket", err);
    return fd >= 0 ? listener_inherit(&access->listener, fd, &policy, err)
                   : listener_init(&access->listener,
                         options->address ? options->address : ACCESS_ADDRESS, mode, &policy, err);
}

bool access_init(struct access *access, const struct access_options *options,
    const struct options *given, struct error *err) {
    mode_t mode = 0;
    *access = (struct access){ .listener.fd = -1 };
    return parse_mode(options->socket_mode, &mode, err) &&
           read_names(given, "host", access->hosts, host_is_valid,
               "a name or an address without a port", err) &&
           read_names(given, "cors-origin", access->origins, cors_origin_is_valid,
               "http:// or https://, a host in lower case, and maybe a port", err) &&
           (!options->public_url || url_is_valid(options->public_url) ||
               options_refuse("public-url", options->public_url,
                   "http:// or https://, a host, maybe a port and a path, without a slash at the "
                   "end",
                   err)) &&
           read_keys(options->api_keys, &access->keys, err) &&
           (!options->access_log || access_log_open(options->access_log, &access->log, err)) &&
           open_listener(access, options, mode, err);
}

void access_finish(struct access *access) {
    listener_finish(&access->listener);
    access_log_close(access->log);
    api_keys_destroy(access->keys);
}
