/* GET /metrics: the daemon's counters, for Prometheus. */
#include "base/metrics.h"
#include "server/http/respond.h"
#include "server/http/route.h"
#include "server/routes/answers.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* Reads one number from a file of /proc: the value of a line that begins with `key`. */
static bool read_number(const char *path, const char *key, double *value) {
    FILE *file = fopen(path, "re");
    char line[256];
    bool found = false;
    while (file && !found && fgets(line, sizeof(line), file))
        found = strncmp(line, key, strlen(key)) == 0 &&
                sscanf(line + strlen(key), "%lf", value) == 1;
    if (file)
        fclose(file);
    return found;
}

/* Field 22 of /proc/self/stat is the start in clock ticks after the machine's (proc(5)). The
 * second field is the program's name in brackets, and may have spaces. */
static void set_start_time(void) {
    char line[1024] = "";
    FILE *file = fopen("/proc/self/stat", "re");
    if (file && !fgets(line, sizeof(line), file))
        line[0] = 0;
    if (file)
        fclose(file);
    const char *at = strrchr(line, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    double machine_s, ticks;
    if (at && sscanf(at, "%lf", &ticks) == 1 && read_number("/proc/stat", "btime ", &machine_s))
        metric_set_real(
            METRIC_process_start_time_seconds, machine_s + ticks / (double)sysconf(_SC_CLK_TCK));
}

static void set_memory(void) {
    FILE *statm = fopen("/proc/self/statm", "re");
    long long all, resident;
    if (statm && fscanf(statm, "%lld %lld", &all, &resident) == 2) {
        metric_set(METRIC_process_virtual_memory_bytes, all * sysconf(_SC_PAGESIZE));
        metric_set(METRIC_process_resident_memory_bytes, resident * sysconf(_SC_PAGESIZE));
    }
    if (statm)
        fclose(statm);
}

static void set_files(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        metric_set(METRIC_process_max_fds, (int64_t)limit.rlim_cur);
    DIR *folder = opendir("/proc/self/fd");
    int64_t count = -3; /* ".", ".." and this folder's own */
    while (folder && readdir(folder))
        count++;
    if (!folder)
        return;
    metric_set(METRIC_process_open_fds, count);
    closedir(folder);
}

static void set_process(void) {
    struct timespec cpu;
    set_start_time();
    set_memory();
    set_files();
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0)
        metric_set_real(
            METRIC_process_cpu_seconds_total, (double)cpu.tv_sec + (double)cpu.tv_nsec / 1e9);
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

static void put_more(FILE *out) {
    answers_put(out);
    metrics_put_head(
        out, "latentd_build_info", "Always 1; its label is the program's version.", "gauge");
    fputs("latentd_build_info{version=\"" LATENTD_VERSION "\"} 1\n", out);
}

static enum MHD_Result metrics(struct exchange *exchange) {
    struct engine *engine = exchange->server->options.engine;
    set_process();
    set_device_memory(engine);
    set_queue(engine);
    size_t size;
    char *text = metrics_render(put_more, &size);
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
