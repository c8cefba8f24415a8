#include "server/access/cors.h"

#include "server/http/exchange.h"

#include <string.h>

bool cors_origin_is_valid(const char *origin) {
    const char *host = strncmp(origin, "https://", 8) == 0  ? origin + 8
                       : strncmp(origin, "http://", 7) == 0 ? origin + 7
                                                            : NULL;
    static const char in_hosts[] = "abcdefghijklmnopqrstuvwxyz0123456789.-_[]:";
    const size_t length = host ? strlen(host) : 0;
    return length > 0 && length <= 255 && host[0] != ':' && host[length - 1] != ':' &&
           strspn(host, in_hosts) == length;
}

const char *cors_find(const char *const *origins, const char *origin, size_t length) {
    for (; origins && *origins; origins++)
        if (strlen(*origins) == length && memcmp(*origins, origin, length) == 0)
            return *origins;
    return NULL;
}

bool cors_is_preflight(const struct exchange *exchange) {
    return exchange->cors_origin && strcmp(exchange->method_name, "OPTIONS") == 0 &&
           exchange_header(exchange, "Access-Control-Request-Method");
}
