/* GET /metrics: the daemon's counters, for Prometheus. */
#include "base/metrics.h"
#include "server/http/respond.h"
#include "server/http/route.h"

#include <stdio.h>
#include <unistd.h>

static void set_resident_bytes(void) {
    FILE *statm = fopen("/proc/self/statm", "re");
    long long pages;
    if (statm && fscanf(statm, "%*d %lld", &pages) == 1)
        metric_set(METRIC_process_resident_bytes, pages * sysconf(_SC_PAGESIZE));
    if (statm)
        fclose(statm);
}

/* Sets the device's latest figures; does nothing on the CPU. */
static void set_device_memory(struct engine *engine) {
    struct device_figures f;
    double age_s;
    if (!engine_get_figures(engine, &f, &age_s))
        return;
    metric_set(METRIC_gpu_memory_bytes_total, (int64_t)f.memory_total);
    metric_set(METRIC_gpu_memory_bytes_free, (int64_t)f.memory_free);
    metric_set(METRIC_gpu_memory_bytes_weights, (int64_t)f.weight_bytes);
    metric_set(METRIC_gpu_memory_bytes_activations, (int64_t)f.activation_bytes);
}

static void set_queue(struct engine *engine) {
    int waiting, drawing;
    engine_get_queue(engine, &waiting, &drawing);
    metric_set(METRIC_requests_waiting, waiting);
    metric_set(METRIC_requests_running, drawing);
}

static enum MHD_Result metrics(struct exchange *exchange) {
    struct engine *engine = exchange->server->options.engine;
    set_resident_bytes();
    set_device_memory(engine);
    set_queue(engine);
    size_t size;
    char *text = metrics_render(&size);
    if (!text) {
        struct error err;
        error_set(&err, ERROR_NO_MEMORY, "no memory for the metrics");
        return respond_error(exchange, &err);
    }
    return respond_bytes(exchange, 200, METRICS_CONTENT_TYPE, text, size, NULL, false);
}

const struct route route_metrics = { .path = "/metrics",
    .methods = { { "GET", .handle = metrics, .about = "figures for Prometheus",
        .answers = "text/plain" } } };
