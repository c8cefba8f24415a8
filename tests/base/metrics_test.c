/* Counting from many threads at once, and Prometheus' text format (exposition formats, version
 * 0.0.4), parsed here as its specification says. */
#include "base/metrics.h"

#include "base/limits.h"
#include "tests/check.h"

#include <pthread.h>
#include <stdlib.h>

#define THREADS 4
#define ROUNDS 50000

/* The value of the line that begins with `series` and a space; NAN if there is none. */
static double value_of(const char *text, const char *series) {
    const size_t length = strlen(series);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, series, length) == 0 && line[length] == ' ')
            return strtod(line + length, NULL);
    }
    return NAN;
}

static double rendered(const char *series) {
    size_t size;
    char *text = metrics_render(NULL, &size);
    CHECK(text && strlen(text) == size, "the text does not have the returned size");
    const double value = text ? value_of(text, series) : NAN;
    free(text);
    return value;
}

static void *count(void *user) {
    const char *const names[] = { "snow", "ink" };
    (void)user;
    for (int i = 0; i < ROUNDS; i++) {
        metric_add(METRIC_unet_rows_total, 3);
        metric_observe(METRIC_vae_seconds, i % 2 ? 0.002 : 20);
        metric_observe(METRIC_batch_distinct_loras, i % 4);
        metric_add_lora_request(names[i % 2]);
    }
    return NULL;
}

static void no_count_is_lost_between_threads(void) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, count, NULL) == 0, "thread %d", i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    const double all = THREADS * ROUNDS;
    CHECK(
        rendered("latentd_unet_rows_total") == 3 * all, "%g", rendered("latentd_unet_rows_total"));
    CHECK(
        rendered("latentd_vae_seconds_count") == all, "%g", rendered("latentd_vae_seconds_count"));
    CHECK_NEAR(rendered("latentd_vae_seconds_sum"), all * 10.001, 1e-6);
    CHECK(
        rendered("latentd_vae_seconds_bucket{le=\"0.001\"}") == 0, "values are counted below 1 ms");
    CHECK(rendered("latentd_vae_seconds_bucket{le=\"0.0025\"}") == all / 2,
        "the values of 2 ms are not in the bucket up to 2.5 ms");
    CHECK(rendered("latentd_vae_seconds_bucket{le=\"10\"}") == all / 2,
        "not half of the values are above 10 s");
    CHECK(
        rendered("latentd_vae_seconds_bucket{le=\"30\"}") == all, "not all values are below 30 s");
    CHECK(rendered("latentd_vae_seconds_bucket{le=\"+Inf\"}") == all, "all");
    CHECK(rendered("latentd_batch_distinct_loras_bucket{le=\"1\"}") == all / 2,
        "a bucket does not include its upper bound");
    CHECK(rendered("latentd_lora_requests_total{lora=\"snow\"}") == all / 2, "snow");
    CHECK(rendered("latentd_lora_requests_total{lora=\"ink\"}") == all / 2, "ink");
    printf("compared: %d threads of %d rounds lost nothing\n", THREADS, ROUNDS);
}

static void a_gauge_is_there_once_it_is_set(void) {
    CHECK(isnan(rendered("latentd_lora_bytes")), "a gauge that was never set is rendered: %g",
        rendered("latentd_lora_bytes"));
    size_t size;
    char *text = metrics_render(NULL, &size);
    CHECK(text && !strstr(text, "latentd_lora_bytes"),
        "the head of a gauge that was never set is rendered");
    free(text);
    metric_set(METRIC_lora_bytes, -5);
    CHECK(rendered("latentd_lora_bytes") == -5, "%g", rendered("latentd_lora_bytes"));
    CHECK(isnan(rendered("latentd_train_loss")), "a gauge that was never set is rendered: %g",
        rendered("latentd_train_loss"));
    metric_set_real(METRIC_train_loss, 0.125);
    CHECK(rendered("latentd_train_loss") == 0.125, "%g", rendered("latentd_train_loss"));
    metric_set(METRIC_gpu_memory_bytes_weights, INT64_C(1) << 40);
    CHECK(rendered("latentd_gpu_memory_bytes{kind=\"weights\"}") == ldexp(1, 40), "2^40");
    text = metrics_render(NULL, &size);
    CHECK(text && strstr(text, "# HELP latentd_gpu_memory_bytes Memory of the GPU, by kind.\n"),
        "the family's help is missing, because its first series is not set");
    free(text);
}

static void odd_values_do_no_harm(void) {
    metric_observe(METRIC_png_seconds, NAN);
    metric_observe(METRIC_png_seconds, -1);
    metric_observe(METRIC_png_seconds, INFINITY);
    CHECK(rendered("latentd_png_seconds_count") == 3, "counted");
    CHECK(rendered("latentd_png_seconds_bucket{le=\"0.001\"}") == 2,
        "NaN and negative values are not counted as 0");
    CHECK_NEAR(rendered("latentd_png_seconds_sum"), 1e9, 1);
}

static void steps_are_told_apart_by_their_rows(void) {
    static const struct {
        int rows;
        enum metric metric;
    } cases[] = {
        { 1, METRIC_step_seconds_1 },
        { 2, METRIC_step_seconds_2 },
        { 3, METRIC_step_seconds_4 },
        { 4, METRIC_step_seconds_4 },
        { 5, METRIC_step_seconds_8 },
        { 8, METRIC_step_seconds_8 },
        { 16, METRIC_step_seconds_16 },
        { 17, METRIC_step_seconds_more },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        CHECK(metric_step_seconds(cases[i].rows) == cases[i].metric, "%d rows", cases[i].rows);
    metric_observe(metric_step_seconds(4), 0.3);
    CHECK(rendered("latentd_step_seconds_bucket{rows=\"3-4\",le=\"0.5\"}") == 1,
        "the call is not in the series of its number of rows");
    CHECK(rendered("latentd_step_seconds_count{rows=\"3-4\"}") == 1,
        "the series of 3 or 4 rows does not count the call");
}

/* A picture of 25 steps takes 0.5 s on a GPU and 200 s on a CPU; quantiles need ends around both.
 */
static void buckets_fit_what_they_hold(void) {
    metric_observe(METRIC_request_seconds, 0.5);
    metric_observe(METRIC_request_seconds, 200);
    metric_observe(METRIC_request_seconds, 1500);
    CHECK(rendered("latentd_request_seconds_bucket{le=\"0.25\"}") == 0,
        "a request is counted within 0.25 s");
    CHECK(rendered("latentd_request_seconds_bucket{le=\"0.5\"}") == 1,
        "not one request is counted within 0.5 s");
    CHECK(rendered("latentd_request_seconds_bucket{le=\"120\"}") == 1,
        "not one request is counted within 2 minutes");
    CHECK(rendered("latentd_request_seconds_bucket{le=\"300\"}") == 2,
        "not two requests are counted within 5 minutes");
    CHECK(rendered("latentd_request_seconds_bucket{le=\"1200\"}") == 2,
        "not two requests are counted within 20 minutes");
    CHECK(rendered("latentd_request_seconds_bucket{le=\"1800\"}") == 3,
        "not all requests are counted within 30 minutes");
}

static void put_more(FILE *out) {
    metrics_put_head(out, "more_total", "Of a caller's own.", "counter");
    fputs("more_total 4\n", out);
}

static void a_caller_adds_families(void) {
    static const char expected[] =
        "\n# HELP more_total Of a caller's own.\n# TYPE more_total counter\nmore_total 4\n";
    size_t size;
    char *text = metrics_render(put_more, &size);
    CHECK(text && strstr(text, expected), "the caller's family does not follow the daemon's");
    free(text);
}

static void names_are_escaped_and_bounded(void) {
    char name[32];
    metric_add_lora_request("a\"b\\c\nd");
    CHECK(rendered("latentd_lora_requests_total{lora=\"a\\\"b\\\\c\\nd\"}") == 1, "escaped");
    for (int i = 0; i < 2 * METRICS_LORAS_MAX; i++) {
        snprintf(name, sizeof(name), "lora-%d", i);
        metric_add_lora_request(name);
    }
    size_t size;
    int series = 0;
    char *text = metrics_render(NULL, &size);
    for (const char *p = text; p && (p = strstr(p, "\nlatentd_lora_requests_total{")); p++)
        series++;
    CHECK(series == METRICS_LORAS_MAX, "%d series", series);
    free(text);
    const double others = rendered("latentd_lora_requests_other_total");
    CHECK(others == METRICS_LORAS_MAX + 3, "requests of names without a series are counted as %g",
        others);
}

int main(void) {
    no_count_is_lost_between_threads();
    a_gauge_is_there_once_it_is_set();
    odd_values_do_no_harm();
    steps_are_told_apart_by_their_rows();
    buckets_fit_what_they_hold();
    a_caller_adds_families();
    names_are_escaped_and_bounded();
    return check_done();
}
