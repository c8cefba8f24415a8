/* Tries one candidate on random operands: compares its result with the plainest kernel's, and
 * measures its time.
 *
 * What all candidates of a problem share (operands, the plainest result, scratch) is made for the
 * first of them and kept, and results are compared on the device. A trial then takes only the
 * candidate's own time, and the tuner tries hundreds of them a second.
 */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tune/tuner.h"

extern "C" {
#include "kernels/pack.h"
}

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Minimum rows of a trial: enough to detect a kernel that mixes rows or handles only one. */
#define TRIAL_ROWS 3
#define GUARD_BYTES 1024
#define GUARD 0xa5
#define PATTERN_COUNT 1000003 /* a prime: rows do not repeat */
#define COMPARE_THREADS 256
#define COMPARE_BLOCKS 512
/* A time is the median of RUNS_MAX runs. If they would take longer than RUNS_US, there are fewer,
 * but at least RUNS_MIN. */
#define RUNS_MAX 15
#define RUNS_MIN 3
#define RUNS_US 20e3
/* A candidate that is this many times slower than the best so far gets one run only. */
#define HOPELESS 3.0

/* A result with guard bytes before and after it. */
struct guarded {
    void *block; /* owned, device */
    size_t bytes;
    struct tensor y;
};

/* Memory that is shared by all candidates of one problem. */
static struct {
    char key[TUNER_KEY_BYTES]; /* the problem's key; empty: nothing is kept */
    struct trial trial;
    struct guarded y, plain, alone; /* alone: a result of one row */
    struct guarded first;           /* the candidate's result before it was timed */
    uint32_t *differs;              /* owned, device; not 0: a timed call gave other bits */
    int64_t rows[2]; /* numbers of rows to time; the second is 0 if there is only one */
    double best_us[2];
    void *flush; /* owned, device: larger than the second-level cache */
    size_t flush_bytes;
} kept;

/* Random numbers, made once. The host's copy is kept; the device's copies, one per dtype, are kept
 * until trial_end. */
static float *pattern;          /* owned */
static void *patterns[3];       /* owned, device: f32, f16, bf16 */
static size_t patterns_size[3]; /* bytes */

/* --- operands --- */

static bool make_pattern(struct error *err) {
    if (pattern)
        return true;
    pattern = (float *)malloc(PATTERN_COUNT * sizeof(float));
    if (!pattern)
        return error_set(err, ERROR_NO_MEMORY, "no memory for random numbers");
    uint64_t state = 1;
    for (int i = 0; i < PATTERN_COUNT; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        /* -1.73..1.73, with variance 1 */
        pattern[i] = ((float)(state >> 40) * 0x1p-23f - 1.0f) * 1.7320508f;
    }
    return true;
}

/* The pattern as `dtype` on the device, or NULL. */
static const char *device_pattern(enum dtype dtype, struct error *err) {
    const int slot = dtype == DTYPE_F32 ? 0 : dtype == DTYPE_F16 ? 1 : 2;
    const size_t bytes = PATTERN_COUNT * dtype_size(dtype);
    if (patterns[slot])
        return (const char *)patterns[slot];
    void *host = malloc(bytes), *block = NULL;
    bool ok = host || error_set(err, ERROR_NO_MEMORY, "no memory for random numbers");
    ok = ok && make_pattern(err) && cuda_memory.alloc(MEMORY_ACTIVATIONS, bytes, &block, err);
    if (ok) {
        convert_elements(host, dtype, pattern, DTYPE_F32, PATTERN_COUNT);
        patterns[slot] = block;
        patterns_size[slot] = bytes;
        ok = cuda_upload(block, host, bytes, err);
    }
    free(host);
    return ok ? (const char *)block : NULL;
}

/* to = `count` numbers of the pattern from `from` on, times `scale`. */
static void fill(float *to, int64_t count, int64_t from, float scale) {
    int64_t at = from % PATTERN_COUNT;
    for (int64_t i = 0; i < count; i++) {
        to[i] = pattern[at] * scale;
        at = at + 1 == PATTERN_COUNT ? 0 : at + 1;
    }
}

bool trial_input(struct trial *trial, struct tensor like, struct error *err) {
    const size_t size = dtype_size(like.dtype);
    const int64_t count = tensor_elements(&like);
    const char *from = device_pattern(like.dtype, err);
    like.device = DEVICE_CUDA;
    if (!from || !cuda_memory.alloc(MEMORY_ACTIVATIONS, tensor_bytes(&like), &like.data, err))
        return false;
    trial->inputs[trial->input_count++] = like;
    int64_t at = 7919 * trial->input_count;
    cuda_forbid_overlap();
    for (int64_t done = 0; done < count; at = 0) {
        const int64_t n = count - done < PATTERN_COUNT - at ? count - done : PATTERN_COUNT - at;
        if (!cuda_ok(
                cudaMemcpyAsync((char *)like.data + (size_t)done * size, from + (size_t)at * size,
                    (size_t)n * size, cudaMemcpyDeviceToDevice, cuda_stream()),
                "filling an operand", err))
            return false;
        done += n;
    }
    return true;
}

bool trial_weight(struct trial *trial, int64_t n, int64_t k, bool is_conv, enum conv_kind kind,
    bool geglu, enum dtype dtype, struct error *err) {
    const struct kernels *table = kernels_cuda(cuda_get_properties()->index, err);
    const int64_t side = is_conv && kind != CONV_1X1 ? 3 : 1, count = n * k * side * side;
    float *weight = (float *)malloc((size_t)count * sizeof(float));
    float *bias = (float *)malloc((size_t)n * sizeof(float));
    struct packed **out = &trial->weights[trial->weight_count];
    const int64_t from = 54321 * trial->weight_count;
    bool ok = table && make_pattern(err);
    if (ok && (!weight || !bias))
        ok = error_set(
            err, ERROR_NO_MEMORY, "no memory for a weight of %lld values", (long long)count);
    if (ok) {
        fill(weight, count, from, 1.0f / sqrtf((float)(k * side * side)));
        fill(bias, n, from + 12345, 1.0f);
        const struct tensor bias_tensor = tensor_1d(bias, DTYPE_F32, n);
        if (is_conv) {
            const struct tensor w = tensor_4d(weight, DTYPE_F32, n, k, side, side);
            ok = conv2d_pack(table, "trial", &w, &bias_tensor, kind, dtype, out, err);
        } else {
            const struct tensor w = tensor_2d(weight, DTYPE_F32, n, k);
            ok = linear_pack(table, "trial", &w, &bias_tensor, geglu, dtype, out, err);
        }
    }
    free(weight);
    free(bias);
    trial->weight_count += ok;
    return ok;
}

/* --- results --- */

static bool guarded_init(struct guarded *g, const struct tensor *like, struct error *err) {
    const size_t bytes = tensor_bytes(like) + 2 * GUARD_BYTES;
    if (!cuda_memory.alloc(MEMORY_ACTIVATIONS, bytes, &g->block, err))
        return false;
    g->bytes = bytes;
    g->y = *like;
    g->y.device = DEVICE_CUDA;
    g->y.data = (char *)g->block + GUARD_BYTES;
    return true;
}

/* Fills the guards, and fills the result between them with NaN. */
static bool guarded_poison(struct guarded *g, struct error *err) {
    cuda_forbid_overlap();
    return cuda_ok(cudaMemsetAsync(g->block, GUARD, g->bytes, cuda_stream()), "filling", err) &&
           cuda_ok(cudaMemsetAsync(g->y.data, 0xff, tensor_bytes(&g->y), cuda_stream()), "filling",
               err);
}

static bool guards_are_whole(const struct guarded *g, bool *whole, struct error *err) {
    const char *ends[2] = { (char *)g->block, (char *)g->block + g->bytes - GUARD_BYTES };
    *whole = true;
    for (int i = 0; i < 2; i++) {
        const unsigned char *seen = (const unsigned char *)cuda_memory.view(
            ends[i], GUARD_BYTES, err);
        if (!seen)
            return false;
        for (int j = 0; j < GUARD_BYTES; j++)
            *whole = *whole && seen[j] == GUARD;
    }
    return true;
}

static void guarded_finish(struct guarded *g) {
    cuda_memory.release(MEMORY_ACTIVATIONS, g->block, g->bytes);
    memset(g, 0, sizeof(*g));
}

struct difference {
    double squares, size; /* sums of (y - p)^2 and p^2 */
    double worst;         /* largest |y - p| */
    int64_t not_finite, other_bits;
};

/* Adds the differences `d` to `to`. Merges the results of threads and of blocks. */
__host__ __device__ static inline void add_difference(
    struct difference *to, const struct difference *d) {
    to->squares += d->squares;
    to->size += d->size;
    to->worst = d->worst > to->worst ? d->worst : to->worst;
    to->not_finite += d->not_finite;
    to->other_bits += d->other_bits;
}

/* Compares y [count] with p [count]. out: [blocks]. BITS is an integer type as wide as T. */
template <class T, class BITS>
__global__ void __launch_bounds__(COMPARE_THREADS)
    compare_kernel(const T *y, const T *p, int64_t count, struct difference *out) {
    DYNAMIC_SHARED(struct difference, found); /* [COMPARE_THREADS] */
    const int64_t step = (int64_t)gridDim.x * COMPARE_THREADS;
    struct difference mine = {};
    for (int64_t i = (int64_t)blockIdx.x * COMPARE_THREADS + threadIdx.x; i < count; i += step) {
        const float a = to_float(y[i]), b = to_float(p[i]);
        const double d = fabs((double)a - (double)b);
        mine.squares += d * d;
        mine.size += (double)b * (double)b;
        mine.worst = d > mine.worst ? d : mine.worst;
        mine.not_finite += !(fabsf(a) <= 3.4e38f);
        mine.other_bits += ((const BITS *)y)[i] != ((const BITS *)p)[i];
    }
    found[threadIdx.x] = mine;
    for (int half = COMPARE_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            add_difference(&found[threadIdx.x], &found[threadIdx.x + half]);
    }
    if (threadIdx.x == 0)
        out[blockIdx.x] = found[0];
}

/* Compares the first `count` elements of two results. */
static bool compare(const struct tensor *y, const struct tensor *p, int64_t count,
    struct difference *out, struct error *err) {
    const int64_t wanted = (count + 8 * COMPARE_THREADS - 1) / (8 * COMPARE_THREADS);
    const int blocks = wanted < COMPARE_BLOCKS ? (int)wanted : COMPARE_BLOCKS;
    struct difference *parts = (struct difference *)cuda_workspace(sizeof(*parts) * (size_t)blocks);
    struct launch_shape shape = {};
    shape.grid = dim3((unsigned)blocks);
    shape.block = dim3(COMPARE_THREADS);
    shape.shared_bytes = COMPARE_THREADS * sizeof(struct difference);
    bool ok = false;
    switch (y->dtype) {
    case DTYPE_F16:
        ok = launch_kernel(&shape, "compare", err, compare_kernel<__half, uint16_t>,
            (const __half *)y->data, (const __half *)p->data, count, parts);
        break;
    case DTYPE_BF16:
        ok = launch_kernel(&shape, "compare", err, compare_kernel<__nv_bfloat16, uint16_t>,
            (const __nv_bfloat16 *)y->data, (const __nv_bfloat16 *)p->data, count, parts);
        break;
    default:
        ok = launch_kernel(&shape, "compare", err, compare_kernel<float, uint32_t>,
            (const float *)y->data, (const float *)p->data, count, parts);
    }
    const struct difference *seen = ok ? (const struct difference *)cuda_memory.view(
                                             parts, sizeof(*parts) * (size_t)blocks, err)
                                       : NULL;
    memset(out, 0, sizeof(*out));
    for (int i = 0; seen && i < blocks; i++)
        add_difference(out, &seen[i]);
    return seen != NULL;
}

/* Sets *differs if two results of `count` 16-bit words have different bits. */
__global__ void __launch_bounds__(COMPARE_THREADS)
    differs_kernel(const uint16_t *a, const uint16_t *b, int64_t count, uint32_t *differs) {
    for (int64_t i = (int64_t)blockIdx.x * COMPARE_THREADS + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * COMPARE_THREADS)
        if (a[i] != b[i])
            *differs = 1; /* any thread may write: all write the same */
}

/* Queues the comparison of a timed call's result, `rows` rows, with kept.first. */
static bool note_bits(int64_t rows, struct error *err) {
    const struct tensor y = tensor_rows(&kept.y.y, 0, rows);
    const int64_t count = (int64_t)(tensor_bytes(&y) / sizeof(uint16_t));
    const int64_t wanted = (count + 8 * COMPARE_THREADS - 1) / (8 * COMPARE_THREADS);
    struct launch_shape shape = {};
    shape.grid = dim3(wanted < COMPARE_BLOCKS ? (unsigned)wanted : COMPARE_BLOCKS);
    shape.block = dim3(COMPARE_THREADS);
    return launch_kernel(&shape, "differs", err, differs_kernel, (const uint16_t *)y.data,
        (const uint16_t *)kept.first.y.data, count, kept.differs);
}

/* The error that is allowed, relative to the result's size. Correct kernels differ by the rounding
 * of their sums and of their result. */
static double allowed_error(enum dtype dtype) {
    return dtype == DTYPE_F32 ? 2e-5 : dtype == DTYPE_F16 ? 2e-3 : 1.2e-2;
}

static void judge(
    const struct difference *d, enum dtype dtype, int64_t count, struct tuner_result *out) {
    const double typical = sqrt(d->size / (double)count), allowed = allowed_error(dtype);
    out->verdict = TUNER_WRONG;
    out->error = d->size > 0 ? sqrt(d->squares / d->size) : sqrt(d->squares);
    if (d->not_finite)
        snprintf(out->why, sizeof(out->why), "not finite, or not written");
    else if (!(out->error <= allowed))
        snprintf(out->why, sizeof(out->why), "error %.3g, allowed %.3g", out->error, allowed);
    else if (!(d->worst <= 16 * allowed * typical))
        snprintf(out->why, sizeof(out->why),
            "one element differs by %.3g, typical elements are %.3g", d->worst, typical);
    else
        out->verdict = TUNER_RIGHT;
}

/* --- shared by a problem's candidates --- */

static void kept_finish(void) {
    for (int i = 0; i < kept.trial.input_count; i++)
        cuda_memory.release(
            MEMORY_ACTIVATIONS, kept.trial.inputs[i].data, tensor_bytes(&kept.trial.inputs[i]));
    for (int i = 0; i < kept.trial.weight_count; i++)
        packed_destroy(kept.trial.weights[i]);
    guarded_finish(&kept.y);
    guarded_finish(&kept.plain);
    guarded_finish(&kept.alone);
    guarded_finish(&kept.first);
    cuda_memory.release(MEMORY_ACTIVATIONS, kept.differs, sizeof(*kept.differs));
    cuda_memory.release(MEMORY_ACTIVATIONS, kept.flush, kept.flush_bytes);
    memset(&kept, 0, sizeof(kept));
}

void trial_end(void) {
    kept_finish();
    for (int i = 0; i < 3; i++) {
        cuda_memory.release(MEMORY_ACTIVATIONS, patterns[i], patterns_size[i]);
        patterns[i] = NULL;
    }
}

/* Makes everything that a problem's candidates share, including the plainest kernel's result. */
static bool kept_fill(const struct problem *p, int64_t rows, struct error *err) {
    const struct tunable *t = p->tunable;
    kept.trial.rows = rows;
    if (!t->prepare(p->shape, &kept.trial, err))
        return false;
    struct tensor row = kept.trial.y;
    row.shape[0] = 1;
    const size_t flush_bytes = 2 * cuda_get_properties()->l2_bytes;
    if (!guarded_init(&kept.y, &kept.trial.y, err) ||
        !guarded_init(&kept.plain, &kept.trial.y, err) || !guarded_init(&kept.alone, &row, err) ||
        !guarded_init(&kept.first, &kept.trial.y, err) ||
        !cuda_memory.alloc(
            MEMORY_ACTIVATIONS, sizeof(*kept.differs), (void **)&kept.differs, err) ||
        (flush_bytes && !cuda_memory.alloc(MEMORY_ACTIVATIONS, flush_bytes, &kept.flush, err)))
        return false;
    kept.flush_bytes = kept.flush ? flush_bytes : 0;
    return guarded_poison(&kept.plain, err) &&
           t->run(p->shape, t->candidates(p->shape) - 1, &kept.trial, rows, &kept.plain.y, err);
}

/* Makes what the problem's candidates share, unless it is already there. The operands have the
 * largest number of rows that was noted for the problem, or TRIAL_ROWS if that is more. If there is
 * too little memory for that, they have TRIAL_ROWS, unless the smallest noted number is larger. */
static bool kept_prepare(const struct problem *p, struct error *err) {
    const int64_t fewest = p->rows_min ? p->rows_min : 2, most = p->rows_max ? p->rows_max : fewest;
    int64_t rows = most > TRIAL_ROWS ? most : TRIAL_ROWS;
    if (strcmp(kept.key, p->key) == 0)
        return true;
    kept_finish();
    bool ok = kept_fill(p, rows, err);
    if (!ok && err->code == ERROR_NO_MEMORY && fewest <= TRIAL_ROWS && rows > TRIAL_ROWS) {
        kept_finish();
        rows = TRIAL_ROWS;
        ok = kept_fill(p, rows, err);
    }
    if (!ok) {
        kept_finish();
        return false;
    }
    kept.rows[0] = fewest;
    kept.rows[1] = most > fewest && most <= rows ? most : 0;
    kept.best_us[0] = kept.best_us[1] = INFINITY;
    memcpy(kept.key, p->key, sizeof(kept.key));
    return true;
}

/* --- time --- */

static int by_size(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Reads all of x; the result is not used. */
__global__ void __launch_bounds__(COMPARE_THREADS)
    touch_kernel(const uint32_t *x, int64_t count, uint32_t *unused) {
    uint32_t all = 0;
    for (int64_t i = (int64_t)blockIdx.x * COMPARE_THREADS + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * COMPARE_THREADS)
        all |= x[i];
    if (all == 0)
        unused[blockIdx.x] = all; /* or the compiler would drop the reads */
}

/* Fills the cache with other data, then with what the previous call of a step would have left
 * there: the operands, but no weights. This also keeps the device busy while the call is queued, so
 * that only the device's time is measured. */
static bool fill_cache(int i, int64_t rows, struct error *err) {
    if (!kept.flush)
        return true;
    cuda_forbid_overlap();
    if (!cuda_ok(cudaMemsetAsync(kept.flush, i, kept.flush_bytes, cuda_stream()),
            "filling the cache", err))
        return false;
    struct launch_shape shape = {};
    shape.grid = dim3(COMPARE_BLOCKS);
    shape.block = dim3(COMPARE_THREADS);
    uint32_t *unused = (uint32_t *)cuda_workspace(COMPARE_BLOCKS * sizeof(uint32_t));
    for (int k = 0; k < kept.trial.input_count; k++) {
        const struct tensor x = tensor_rows(&kept.trial.inputs[k], 0,
            kept.trial.inputs[k].shape[0] < rows ? kept.trial.inputs[k].shape[0] : rows);
        if (!launch_kernel(&shape, "touch", err, touch_kernel, (const uint32_t *)x.data,
                (int64_t)(tensor_bytes(&x) / sizeof(uint32_t)), unused))
            return false;
    }
    return true;
}

/* Times `count` calls, in milliseconds. Each starts with the cache as fill_cache leaves it. The
 * bits of each result are compared with kept.first. */
static bool time_calls(const struct problem *p, int candidate, int64_t rows, int count,
    cudaEvent_t (*events)[2], float *ms, struct error *err) {
    for (int i = 0; i < count; i++)
        if (!fill_cache(i, rows, err) ||
            !cuda_ok(cudaEventRecord(events[i][0], cuda_stream()), "timing", err) ||
            !p->tunable->run(p->shape, candidate, &kept.trial, rows, &kept.y.y, err) ||
            !cuda_ok(cudaEventRecord(events[i][1], cuda_stream()), "timing", err) ||
            !note_bits(rows, err))
            return false;
    if (!cuda_memory.synchronize(err))
        return false;
    for (int i = 0; i < count; i++)
        if (!cuda_ok(cudaEventElapsedTime(&ms[i], events[i][0], events[i][1]), "timing", err))
            return false;
    return true;
}

static bool time_rows(const struct problem *p, int candidate, int which, double *us,
    cudaEvent_t (*events)[2], struct error *err) {
    float ms[RUNS_MAX];
    const int64_t rows = kept.rows[which];
    if (!time_calls(p, candidate, rows, 1, events, ms, err))
        return false;
    *us = 1e3 * (double)ms[0];
    if (*us > HOPELESS * kept.best_us[which])
        return true;
    int runs = *us * RUNS_MAX > RUNS_US ? (int)(RUNS_US / *us) : RUNS_MAX;
    runs = runs < RUNS_MIN ? RUNS_MIN : runs;
    if (!time_calls(p, candidate, rows, runs, events, ms, err))
        return false;
    qsort(ms, (size_t)runs, sizeof(ms[0]), by_size);
    *us = 1e3 * (double)ms[runs / 2];
    if (*us < kept.best_us[which])
        kept.best_us[which] = *us;
    return true;
}

static bool timed(const struct problem *p, int candidate, double *us, struct error *err) {
    cudaEvent_t events[RUNS_MAX][2] = {};
    double each[2] = { 0, 0 };
    bool ok = true;
    for (int i = 0; ok && i < 2 * RUNS_MAX; i++)
        ok = cuda_ok(cudaEventCreate(&events[i / 2][i % 2]), "making an event", err);
    for (int i = 0; ok && i < 2 && kept.rows[i]; i++)
        ok = time_rows(p, candidate, i, &each[i], events, err);
    for (int i = 0; i < 2 * RUNS_MAX; i++)
        if (events[i / 2][i % 2])
            (void)cudaEventDestroy(events[i / 2][i % 2]);
    *us = kept.rows[1] ? (each[0] + each[1] * (double)kept.rows[0] / (double)kept.rows[1]) / 2
                       : each[0];
    return ok;
}

/* --- one candidate --- */

/* Checks that the first row has the same bits alone, as one of two rows, and in the whole batch. */
static bool check_rows(
    const struct problem *p, int candidate, struct tuner_result *out, struct error *err) {
    const struct tunable *t = p->tunable;
    const int64_t row = tensor_elements(&kept.alone.y);
    struct difference all, two;
    bool whole;
    if (!guarded_poison(&kept.alone, err) ||
        !t->run(p->shape, candidate, &kept.trial, 1, &kept.alone.y, err) ||
        !compare(&kept.y.y, &kept.alone.y, row, &all, err) ||
        !guards_are_whole(&kept.alone, &whole, err) ||
        !t->run(p->shape, candidate, &kept.trial, 2, &kept.y.y, err) ||
        !compare(&kept.y.y, &kept.alone.y, row, &two, err))
        return false;
    if (all.other_bits || two.other_bits || !whole) {
        out->verdict = TUNER_WRONG;
        snprintf(out->why, sizeof(out->why), "%s",
            whole ? "a row's bits depend on the batch" : "it writes outside its result");
    }
    return true;
}

/* Compares the result of the whole batch with that of the plainest kernel. Checks that nothing was
 * written outside the result, and that the bits of the first row do not depend on the batch. */
static bool check(
    const struct problem *p, int candidate, struct tuner_result *out, struct error *err) {
    const struct tunable *t = p->tunable;
    const int64_t count = tensor_elements(&kept.y.y);
    struct difference d;
    bool whole;
    if (!guarded_poison(&kept.y, err) ||
        !t->run(p->shape, candidate, &kept.trial, kept.trial.rows, &kept.y.y, err) ||
        !compare(&kept.y.y, &kept.plain.y, count, &d, err) ||
        !guards_are_whole(&kept.y, &whole, err))
        return false;
    judge(&d, kept.y.y.dtype, count, out);
    if (!whole) {
        out->verdict = TUNER_WRONG;
        snprintf(out->why, sizeof(out->why), "it writes outside its result");
    }
    return out->verdict != TUNER_RIGHT || check_rows(p, candidate, out, err);
}

/* Times a correct candidate. A candidate whose calls give different bits is wrong: it has a
 * race. */
static bool time_and_watch(
    const struct problem *p, int candidate, struct tuner_result *out, struct error *err) {
    const size_t bytes = tensor_bytes(&kept.y.y);
    /* Compute all rows again, because check_rows has overwritten the first two. */
    if (!p->tunable->run(p->shape, candidate, &kept.trial, kept.trial.rows, &kept.y.y, err) ||
        !cuda_memory.copy(kept.first.y.data, kept.y.y.data, bytes, err) ||
        !cuda_memory.zero(kept.differs, sizeof(*kept.differs), err) ||
        !timed(p, candidate, &out->us, err))
        return false;
    const uint32_t *differs = (const uint32_t *)cuda_memory.view(
        kept.differs, sizeof(*kept.differs), err);
    if (differs && *differs) {
        out->verdict = TUNER_WRONG;
        snprintf(out->why, sizeof(out->why), "its bits differ from call to call");
    }
    return differs != NULL;
}

bool trial_of(
    const struct problem *problem, int candidate, struct tuner_result *out, struct error *err) {
    struct error own = {};
    memset(out, 0, sizeof(*out));
    bool ok = cuda_enter(&own) && kept_prepare(problem, &own);
    if (ok) {
        ok = check(problem, candidate, out, &own) &&
             (out->verdict != TUNER_RIGHT || time_and_watch(problem, candidate, out, &own));
        out->flops = kept.trial.flops / (double)kept.trial.rows * (double)kept.rows[0];
    }
    if (ok)
        return true;
    /* A refused launch is the candidate's fault; a lack of memory is not. */
    out->verdict = own.code == ERROR_NO_MEMORY ? TUNER_SKIPPED : TUNER_WRONG;
    snprintf(out->why, sizeof(out->why), "%.120s", own.message);
    if (own.code == ERROR_NO_MEMORY || own.code == ERROR_DEVICE)
        return true;
    if (err)
        *err = own;
    return false;
}
