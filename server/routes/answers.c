#include "server/routes/answers.h"

#include "base/metrics.h"
#include "server/routes/openapi.h"
#include "server/routes/routes.h"

#include <inttypes.h>
#include <stdatomic.h>

#define ROUTES_MAX 255
#define STATUS_FIRST 100
#define STATUS_END 600
#define FAMILY "latentd_http_responses_total"

/* A row for each place in the table of routes; the last one is for paths without a route. Most
 * pages of it are never written, so they take no memory. */
static _Atomic uint64_t counts[ROUTES_MAX + 1][STATUS_END - STATUS_FIRST];

void answers_count(const struct route *route, int status) {
    size_t place = 0;
    while (place < ROUTES_MAX && route_at(place) && route_at(place) != route)
        place++;
    if (!route || !route_at(place))
        place = ROUTES_MAX;
    if (status >= STATUS_FIRST && status < STATUS_END)
        atomic_fetch_add_explicit(&counts[place][status - STATUS_FIRST], 1, memory_order_relaxed);
}

void answers_put(FILE *out) {
    metrics_put_head(out, FAMILY, "HTTP answers, by route and status.", "counter");
    for (size_t place = 0; place <= ROUTES_MAX; place++) {
        const struct route *route = route_at(place);
        char path[256] = "none";
        if (route)
            openapi_path(route, path, sizeof(path));
        for (int i = 0; i < STATUS_END - STATUS_FIRST; i++) {
            const uint64_t count = atomic_load_explicit(&counts[place][i], memory_order_relaxed);
            if (count)
                fprintf(out, FAMILY "{route=\"%s\",code=\"%d\"} %" PRIu64 "\n", path,
                    i + STATUS_FIRST, count);
        }
    }
}
