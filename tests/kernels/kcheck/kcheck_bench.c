/* kcheck --bench: prints one line per subject, with its rate and its share of the device's peak.
 *
 * On the CPU, calls are timed one by one. On another device the inputs are copied once and many
 * calls are queued, as a recording if the device has those, so that the device is timed and not the
 * host. Inputs stay in the device's caches as far as they fit. */
#include "tests/kernels/kcheck/kcheck.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CALLS 20 /* per recording; two with --quick, for emulators */
#define TURNS 9
#define ENOUGH_S 1.5

/* ---- the CPU ---- */

/* Takes the best of several calls, by the clock and by the processor time of all threads. On a busy
 * machine the processor time shows how good the code is. */
static void measure_on_cpu(struct kcheck *k, struct subject *s) {
    struct compute c = { .kernels = k->table };
    struct buffer y = buffer_create(s->y, 0);
    double best = INFINITY, busy = INFINITY, begin = seconds_now();
    for (int i = 0; i < 50 && (i < 3 || seconds_now() - begin < ENOUGH_S) && compute_ok(&c); i++) {
        double start = seconds_now(), start_busy = seconds_busy();
        s->run(&c, s, -1, &y.t);
        best = fmin(best, seconds_now() - start);
        busy = fmin(busy, seconds_busy() - start_busy);
    }
    buffer_finish(&y);
    if (!compute_ok(&c)) {
        printf("FAIL %s %s: %s\n", s->op, s->shape, c.error.message);
        k->failed++;
        return;
    }
    printf("%-18s %-46s %9.3f ms", s->op, s->shape, best * 1e3);
    if (s->flops > 0)
        printf("  %7.1f GFLOP/s; per thread %6.1f, %5.1f %% of peak\n", s->flops / best / 1e9,
            s->flops / busy / 1e9, 100 * s->flops / busy / k->peaks.flops_per_s[DTYPE_F32]);
    else
        printf("  %7.1f GB/s; per thread %6.1f\n", s->bytes / best / 1e9, s->bytes / busy / 1e9);
}

/* ---- another device ---- */

static void queue(struct compute *c, const struct subject *s, struct tensor *y, int calls) {
    for (int i = 0; i < calls; i++)
        s->run(c, s, -1, y);
}

/* Returns a recording of the calls, or NULL if the device has no recordings or a call cannot be
 * recorded (low_rank uploads its terms). The operation must have been called before with this
 * shape, because one-time work cannot be recorded. */
static struct recording *record(
    struct compute *c, const struct subject *s, struct tensor *y, int calls) {
    const struct recorder *recorder = c->kernels->recorder;
    struct recording *out = NULL;
    if (!recorder || !compute_ok(c) || !recorder->begin(&c->error))
        return NULL;
    queue(c, s, y, calls);
    struct error err = { 0 };
    const bool recorded = compute_ok(c);
    c->error = (struct error){ 0 }; /* it may only mean that the call cannot be recorded; a call
    that fails without recording sets the error again */
    if (!recorder->end(recorded ? &out : NULL, &err) && recorded)
        c->error = err;
    return out;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the seconds of one call. Times several batches of many calls and takes the median. */
static double time_on_device(
    struct compute *c, const struct subject *s, struct tensor *y, int calls) {
    double times[TURNS], begin = seconds_now();
    int turns = 0;
    s->run(c, s, -1, y);
    compute_synchronize(c);
    struct recording *recording = record(c, s, y, calls);
    for (int i = 0; i <= TURNS && compute_ok(c) && (i < 2 || seconds_now() - begin < ENOUGH_S);
         i++) {
        double start = seconds_now();
        if (!recording)
            queue(c, s, y, calls);
        else if (!c->kernels->recorder->replay(recording, &c->error))
            break;
        compute_synchronize(c);
        if (i > 0) /* the first batch warms up */
            times[turns++] = (seconds_now() - start) / calls;
    }
    if (recording)
        c->kernels->recorder->destroy(recording);
    if (!turns)
        return INFINITY;
    qsort(times, (size_t)turns, sizeof(times[0]), compare_doubles);
    return times[turns / 2];
}

/* Returns false after reporting an error. */
static bool measure_on_device(struct kcheck *k, struct subject *s, double *seconds) {
    struct compute c = { .kernels = k->table };
    struct buffer y = buffer_create(s->y, 0);
    struct placed placed;
    if (subject_place(&c, s, &y.t, &placed))
        *seconds = time_on_device(&c, s, &placed.y, k->quick ? 2 : CALLS);
    subject_take_back(&c, s, &placed);
    buffer_finish(&y);
    if (!compute_ok(&c)) {
        printf("FAIL %s %s: %s\n", s->op, s->shape, c.error.message);
        k->failed++;
    }
    return compute_ok(&c);
}

static void print_on_device(const struct kcheck *k, const struct subject *s, double seconds) {
    const double peak = s->y.dtype <= DTYPE_BF16 ? k->peaks.flops_per_s[s->y.dtype] : 0;
    printf("%-18s %-46s %9.4f ms", s->op, s->shape, seconds * 1e3);
    if (s->flops > 0)
        printf("  %8.2f TFLOP/s", s->flops / seconds * 1e-12);
    else
        printf("  %8.1f GB/s", s->bytes / seconds * 1e-9);
    double share = s->flops > 0 ? (peak > 0 ? s->flops / seconds / peak : 0)
                                : s->bytes / seconds / k->peaks.bytes_per_s;
    if (share > 0)
        printf(", %5.1f %% of peak", 100 * share);
    putchar('\n');
}

void subject_measure(struct kcheck *k, struct subject *s) {
    double seconds;
    if (k->table->device == DEVICE_CPU)
        measure_on_cpu(k, s);
    else if (measure_on_device(k, s, &seconds))
        print_on_device(k, s, seconds);
}

/* ---- peaks ---- */

static void run_product(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    (void)row;
    op_linear(c, &(struct linear_args){ .x = &s->inputs[0].t, .weight = s->weight, .y = y });
}

static void run_sum(struct compute *c, const struct subject *s, int64_t row, struct tensor *y) {
    (void)row;
    op_add(c, &(struct add_args){ .a = &s->inputs[0].t, .y = y });
}

/* Returns the operations a second of a large product, with the kernel that the device chooses
 * itself. */
static double product_peak(struct kcheck *k, enum dtype dtype) {
    const int64_t n = k->quick ? 64 : 8192;
    struct subject s = { .op = "peak", .run = run_product };
    struct error err = { 0 };
    double seconds = INFINITY;
    snprintf(s.shape, sizeof(s.shape), "%s", dtype_name(dtype));
    /* One row of many tokens, because rows of one token use another kernel. */
    subject_input(k, &s, tensor_3d(NULL, dtype, 1, n, n), 1, 0);
    struct buffer w = buffer_create(tensor_2d(NULL, DTYPE_F32, n, n), 0);
    for (int64_t i = 0; i < n * n; i++)
        ((float *)w.t.data)[i] = random_float(k) / 64;
    s.y = tensor_3d(NULL, dtype, 1, n, n);
    if (linear_pack(k->table, "peak", &w.t, NULL, false, dtype, &s.weight, &err))
        (void)measure_on_device(k, &s, &seconds);
    buffer_finish(&w);
    buffer_finish(&s.inputs[0]);
    packed_destroy(s.weight);
    return 2.0 * (double)(n * n * n) / seconds;
}

/* Returns the bytes a second that copying a large tensor reads and writes. */
static double copy_peak(struct kcheck *k) {
    const int64_t n = k->quick ? 1 << 12 : 1 << 27;
    struct subject s = { .op = "peak", .shape = "copy", .run = run_sum };
    double seconds = INFINITY;
    s.inputs[s.input_count++] = buffer_create(tensor_2d(NULL, DTYPE_F32, 1, n), 0);
    s.y = s.inputs[0].t;
    (void)measure_on_device(k, &s, &seconds);
    buffer_finish(&s.inputs[0]);
    return 2.0 * (double)n * 4 / seconds;
}

/* Whether the filter can match subjects of this dtype: it cannot if it is another dtype's name. */
static bool is_wanted(const struct kcheck *k, enum dtype dtype) {
    for (enum dtype other = DTYPE_F32; k->filter && other <= DTYPE_BF16; other++)
        if (other != dtype && strcmp(k->filter, dtype_name(other)) == 0)
            return false;
    return true;
}

void measure_peaks(struct kcheck *k) {
    if (k->table->device == DEVICE_CPU) {
        k->peaks.flops_per_s[DTYPE_F32] = measure_cpu_peak();
        printf("f32 peak of one thread, in processor time: %.1f GFLOP/s\n",
            k->peaks.flops_per_s[DTYPE_F32] / 1e9);
        return;
    }
    printf("peak of the device:");
    for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++)
        if (has_weights(k, dtype) && is_wanted(k, dtype)) {
            k->peaks.flops_per_s[dtype] = product_peak(k, dtype);
            printf(" %s %.1f TFLOP/s,", dtype_name(dtype), k->peaks.flops_per_s[dtype] * 1e-12);
        }
    k->peaks.bytes_per_s = copy_peak(k);
    printf(" memory %.1f GB/s\n", k->peaks.bytes_per_s * 1e-9);
}
