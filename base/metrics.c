#include "base/metrics.h"

#include "base/limits.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS_MAX 16
#define NANO 1e9

enum kind { COUNTER, GAUGE, REAL, REAL_COUNTER, SECONDS, MINUTES, COUNTS };

static const struct series {
    enum kind kind;
    const char *family, *label, *help;
} table[] = {
#define METRIC_ROW(symbol, kind, family, label, help) { kind, family, label, help },
    METRICS(METRIC_ROW)
#undef METRIC_ROW
};

/* Upper ends of the buckets, inclusive. SECONDS ranges from a step on a GPU (3 ms) to a call of
 * many rows on a CPU (a minute); MINUTES from a picture on a GPU (half a second) to a queue of
 * pictures on a CPU (an hour). */
#define ENDS(...)                                                                                  \
    sizeof((double[]){ __VA_ARGS__ }) / sizeof(double), {                                          \
        __VA_ARGS__                                                                                \
    }
static const struct {
    const char *type; /* Prometheus' */
    size_t count;     /* of the ends; 0: no histogram */
    double ends[BUCKETS_MAX];
} kinds[] = {
    [COUNTER] = { .type = "counter" },
    [GAUGE] = { .type = "gauge" },
    [REAL] = { .type = "gauge" },
    [REAL_COUNTER] = { .type = "counter" },
    [SECONDS] = { "histogram",
        ENDS(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60) },
    [MINUTES] = { "histogram",
        ENDS(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600) },
    [COUNTS] = { "histogram", ENDS(0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64) },
};
#undef ENDS

/* Each bucket of a histogram counts only its own values; the last one counts values above all ends.
 * Rendering adds the buckets up once, so that the histogram's count always equals the sum of its
 * buckets. */
static struct {
    _Atomic uint64_t value; /* a counter; a gauge's bits (REAL: of a double); or a histogram's sum
                               in units of 1e-9 */
    _Atomic uint64_t buckets[BUCKETS_MAX + 1];
    atomic_bool known; /* the gauge has been set */
} values[METRIC_COUNT];

/* Names are added with the mutex held and never change, so they can be read without it. */
static struct {
    pthread_mutex_t mutex;
    _Atomic(const char *) names[METRICS_LORAS_MAX];
    _Atomic uint64_t counts[METRICS_LORAS_MAX + 1]; /* the last counts all other names */
} loras = { .mutex = PTHREAD_MUTEX_INITIALIZER };

void metric_add(enum metric metric, uint64_t n) {
    atomic_fetch_add_explicit(&values[metric].value, n, memory_order_relaxed);
}

void metric_add_request(const char *dialect, enum request_outcome outcome) {
    static const struct {
        const char *dialect;
        enum metric first;
    } all[] = {
        { "native", METRIC_requests_native_succeeded },
        { "a1111", METRIC_requests_a1111_succeeded },
        { "openai", METRIC_requests_openai_succeeded },
        { "huggingface", METRIC_requests_huggingface_succeeded },
        { "job", METRIC_requests_job_succeeded },
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strcmp(all[i].dialect, dialect) == 0)
            metric_add((enum metric)((int)all[i].first + (int)outcome), 1);
}

void metric_set(enum metric metric, int64_t value) {
    atomic_store_explicit(&values[metric].value, (uint64_t)value, memory_order_relaxed);
    atomic_store_explicit(&values[metric].known, true, memory_order_release);
}

void metric_set_real(enum metric metric, double value) {
    int64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    metric_set(metric, bits);
}

void metric_observe(enum metric metric, double value) {
    const double *ends = kinds[table[metric].kind].ends;
    const size_t count = kinds[table[metric].kind].count;
    const double v = value > 0 ? fmin(value, 1e9) : 0; /* NaN also becomes 0 */
    size_t i = 0;
    while (i < count && v > ends[i])
        i++;
    atomic_fetch_add_explicit(&values[metric].buckets[i], 1, memory_order_relaxed);
    metric_add(metric, (uint64_t)llrint(v * NANO));
}

enum metric metric_step_seconds(int rows) {
    return rows <= 1    ? METRIC_step_seconds_1
           : rows == 2  ? METRIC_step_seconds_2
           : rows <= 4  ? METRIC_step_seconds_4
           : rows <= 8  ? METRIC_step_seconds_8
           : rows <= 16 ? METRIC_step_seconds_16
                        : METRIC_step_seconds_more;
}

/* Returns the index of the name, else of a free entry (*found is false), else METRICS_LORAS_MAX. */
static int find_lora(const char *name, bool *found) {
    for (int i = 0; i < METRICS_LORAS_MAX; i++) {
        const char *known = atomic_load_explicit(&loras.names[i], memory_order_acquire);
        *found = known && strcmp(known, name) == 0;
        if (*found || !known)
            return i;
    }
    *found = true;
    return METRICS_LORAS_MAX;
}

void metric_add_lora_request(const char *name) {
    bool found;
    int place = find_lora(name, &found);
    if (!found) {
        pthread_mutex_lock(&loras.mutex);
        place = find_lora(name, &found);
        const char *own = found ? NULL : strdup(name); /* for ever */
        if (own)
            atomic_store_explicit(&loras.names[place], own, memory_order_release);
        else if (!found)
            place = METRICS_LORAS_MAX;
        pthread_mutex_unlock(&loras.mutex);
    }
    atomic_fetch_add_explicit(&loras.counts[place], 1, memory_order_relaxed);
}

void metrics_put_head(FILE *out, const char *family, const char *help, const char *type) {
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", family, help, family, type);
}

static void put_histogram(FILE *out, enum metric metric) {
    const struct series *s = &table[metric];
    const double *ends = kinds[s->kind].ends;
    const size_t count = kinds[s->kind].count;
    const char *comma = s->label[0] ? "," : "";
    uint64_t below = 0;
    for (size_t i = 0; i <= count; i++) {
        below += atomic_load_explicit(&values[metric].buckets[i], memory_order_relaxed);
        char end[32] = "+Inf";
        if (i < count)
            snprintf(end, sizeof(end), "%g", ends[i]);
        fprintf(
            out, "%s_bucket{%s%sle=\"%s\"} %" PRIu64 "\n", s->family, s->label, comma, end, below);
    }
    const uint64_t sum = atomic_load_explicit(&values[metric].value, memory_order_relaxed);
    const char *open = s->label[0] ? "{" : "", *close = s->label[0] ? "}" : "";
    fprintf(out, "%s_sum%s%s%s %" PRIu64 ".%09" PRIu64 "\n", s->family, open, s->label, close,
        sum / (uint64_t)NANO, sum % (uint64_t)NANO);
    fprintf(out, "%s_count%s%s%s %" PRIu64 "\n", s->family, open, s->label, close, below);
}

static double real_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void put_plain(FILE *out, enum metric metric) {
    const struct series *s = &table[metric];
    const uint64_t value = atomic_load_explicit(&values[metric].value, memory_order_relaxed);
    const char *open = s->label[0] ? "{" : "", *close = s->label[0] ? "}" : "";
    fprintf(out, "%s%s%s%s ", s->family, open, s->label, close);
    if (s->kind == GAUGE)
        fprintf(out, "%" PRId64 "\n", (int64_t)value);
    else if (s->kind == REAL || s->kind == REAL_COUNTER)
        fprintf(out, "%.15g\n", real_of(value));
    else
        fprintf(out, "%" PRIu64 "\n", value);
}

static void put_label_value(FILE *out, const char *text) {
    for (; *text; text++)
        if (*text == '\n')
            fputs("\\n", out);
        else if (*text == '"' || *text == '\\')
            fprintf(out, "\\%c", *text);
        else
            fputc(*text, out);
}

static void put_loras(FILE *out) {
    metrics_put_head(out, "latentd_lora_requests_total",
        "Requests that used an adapter, by the adapter's name.", "counter");
    for (int i = 0; i < METRICS_LORAS_MAX; i++) {
        const char *name = atomic_load_explicit(&loras.names[i], memory_order_acquire);
        if (!name)
            break;
        fputs("latentd_lora_requests_total{lora=\"", out);
        put_label_value(out, name);
        fprintf(
            out, "\"} %" PRIu64 "\n", atomic_load_explicit(&loras.counts[i], memory_order_relaxed));
    }
    metrics_put_head(out, "latentd_lora_requests_other_total",
        "Requests that used adapters without a series of their own.", "counter");
    fprintf(out, "latentd_lora_requests_other_total %" PRIu64 "\n",
        atomic_load_explicit(&loras.counts[METRICS_LORAS_MAX], memory_order_relaxed));
}

static bool is_left_out(enum metric metric) {
    const enum kind kind = table[metric].kind;
    return (kind == GAUGE || kind == REAL || kind == REAL_COUNTER) &&
           !atomic_load_explicit(&values[metric].known, memory_order_acquire);
}

char *metrics_render(void (*put_more)(FILE *out), size_t *size) {
    char *text = NULL;
    FILE *out = open_memstream(&text, size);
    if (!out)
        return NULL;
    const char *help = "", *family = "", *headed = "";
    for (int m = 0; m < METRIC_COUNT; m++) {
        const struct series *s = &table[m];
        if (strcmp(s->family, family) != 0)
            help = s->help;
        family = s->family;
        if (is_left_out((enum metric)m))
            continue;
        if (strcmp(family, headed) != 0)
            metrics_put_head(out, family, help, kinds[s->kind].type);
        headed = family;
        if (kinds[s->kind].count)
            put_histogram(out, (enum metric)m);
        else
            put_plain(out, (enum metric)m);
    }
    put_loras(out);
    if (put_more)
        put_more(out);
    const bool ok = !ferror(out);
    if (fclose(out) == 0 && ok)
        return text;
    free(text);
    return NULL;
}
