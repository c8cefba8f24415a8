#include "kernels/cuda/tuner.h"

extern "C" {
#include "base/limits.h"
#include "base/log.h"
#include "kernels/compute.h"
}

#include <link.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows of a trial: enough that a kernel which mixes them, or which only knows one, is seen. */
#define TRIAL_ROWS 3
#define GUARD_BYTES 1024
#define GUARD 0xa5
#define PATTERN_COUNT 1000003 /* a prime: rows do not repeat */
#define COMPARE_BYTES ((size_t)8 << 20)
#define TIMED_RUNS 7
#define TIMED_US 300.0 /* at least, of one timed run */

struct problem {
    const struct tunable *tunable; /* borrowed */
    char key[TUNER_KEY_BYTES];     /* shapes are compared by what they are called */
    unsigned char shape[TUNABLE_MAX_SHAPE_BYTES];
};

struct chosen {
    char key[TUNER_KEY_BYTES], name[TUNER_NAME_BYTES];
};

static struct {
    struct problem *problems; /* owned */
    int problem_count, problem_room;
    struct chosen *chosen; /* owned */
    int chosen_count, chosen_room;
    bool full;      /* there was no room for a problem, and that was said */
    float *pattern; /* owned */
} tuner;

/* --- problems --- */

/* Room for one more, up to TUNER_SHAPES_MAX; false if there is none. */
template <class T> static bool make_room(T **entries, int count, int *room) {
    if (count < *room)
        return true;
    const int wanted = *room ? 2 * *room : 256;
    T *grown = wanted <= TUNER_SHAPES_MAX ? (T *)realloc(*entries, (size_t)wanted * sizeof(T))
                                          : NULL;
    if (!grown)
        return false;
    *entries = grown;
    *room = wanted;
    return true;
}

static void key_of(const struct tunable *tunable, const void *shape, char key[TUNER_KEY_BYTES]) {
    int used = snprintf(key, TUNER_KEY_BYTES, "%s ", tunable->name);
    tunable->describe(shape, key + used, (size_t)(TUNER_KEY_BYTES - used));
}

static bool select_chosen(const struct problem *p) {
    char name[TUNER_NAME_BYTES];
    for (int i = 0; i < tuner.chosen_count; i++) {
        if (strcmp(tuner.chosen[i].key, p->key) != 0)
            continue;
        for (int c = 0, n = p->tunable->candidates(p->shape); c < n; c++) {
            p->tunable->candidate_name(p->shape, c, name);
            if (strcmp(name, tuner.chosen[i].name) == 0)
                return p->tunable->select(p->shape, c);
        }
    }
    return false;
}

bool tuner_note(const struct tunable *tunable, const void *shape) {
    char key[TUNER_KEY_BYTES];
    key_of(tunable, shape, key);
    for (int i = 0; i < tuner.problem_count; i++)
        if (strcmp(tuner.problems[i].key, key) == 0)
            return false;
    if (tunable->shape_bytes > TUNABLE_MAX_SHAPE_BYTES)
        return false;
    if (!make_room(&tuner.problems, tuner.problem_count, &tuner.problem_room)) {
        if (!tuner.full)
            log_warning("the tuner has no room beyond %d shapes: later ones are computed by the "
                        "kernels that the rule chooses",
                tuner.problem_count);
        tuner.full = true;
        return false;
    }
    struct problem *p = &tuner.problems[tuner.problem_count++];
    p->tunable = tunable;
    memcpy(p->key, key, sizeof(key));
    memcpy(p->shape, shape, tunable->shape_bytes);
    return select_chosen(p);
}

static int problem_count(void) {
    return tuner.problem_count;
}

static void problem_key(int problem, char key[TUNER_KEY_BYTES]) {
    memcpy(key, tuner.problems[problem].key, TUNER_KEY_BYTES);
}

static int candidate_count(int problem) {
    return tuner.problems[problem].tunable->candidates(tuner.problems[problem].shape);
}

static void candidate_name(int problem, int candidate, char name[TUNER_NAME_BYTES]) {
    const struct problem *p = &tuner.problems[problem];
    p->tunable->candidate_name(p->shape, candidate, name);
}

static bool choose(const char *key, const char *name) {
    if (!make_room(&tuner.chosen, tuner.chosen_count, &tuner.chosen_room))
        return false;
    struct chosen *c = &tuner.chosen[tuner.chosen_count++];
    snprintf(c->key, sizeof(c->key), "%s", key);
    snprintf(c->name, sizeof(c->name), "%s", name);
    return true;
}

/* --- identity --- */

/* The linker's build id of the program itself, in hexadecimal. */
static int read_build_id(struct dl_phdr_info *info, size_t size, void *user) {
    char *out = (char *)user;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type != PT_NOTE)
            continue;
        const char *at = (const char *)(info->dlpi_addr + segment->p_vaddr);
        const char *end = at + segment->p_memsz;
        while (at + sizeof(ElfW(Nhdr)) <= end) {
            const ElfW(Nhdr) *note = (const ElfW(Nhdr) *)at;
            const char *name = at + sizeof(*note);
            const unsigned char *bytes = (const unsigned char *)name + (note->n_namesz + 3) / 4 * 4;
            if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 &&
                memcmp(name, "GNU", 4) == 0)
                for (unsigned b = 0; b < note->n_descsz && b < 20; b++)
                    snprintf(out + 2 * b, 3, "%02x", bytes[b]);
            at = (const char *)bytes + (note->n_descsz + 3) / 4 * 4;
        }
    }
    return 1; /* the first is the program; no others */
}

static void identity(char text[TUNER_IDENTITY_BYTES]) {
    const struct cuda_properties *p = cuda_get_properties();
    char build[64] = "without an id";
    dl_iterate_phdr(read_build_id, build);
    snprintf(text, TUNER_IDENTITY_BYTES, "%s sm_%d x%d, driver %d, runtime %d, build %s", p->name,
        p->capability, p->multiprocessors, p->driver_version, p->runtime_version, build);
}

/* --- operands --- */

static bool make_pattern(struct error *err) {
    if (tuner.pattern)
        return true;
    tuner.pattern = (float *)malloc(PATTERN_COUNT * sizeof(float));
    if (!tuner.pattern)
        return error_set(err, ERROR_NO_MEMORY, "no memory for random numbers");
    uint64_t state = 1;
    for (int i = 0; i < PATTERN_COUNT; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        /* -1.73..1.73: of variance one */
        tuner.pattern[i] = ((float)(state >> 40) * 0x1p-23f - 1.0f) * 1.7320508f;
    }
    return true;
}

/* Numbers of the pattern from `from` on, times `scale`, as dtype. */
static void fill(void *to, enum dtype dtype, int64_t count, int64_t from, float scale) {
    float piece[1024];
    for (int64_t i = 0; i < count; i += 1024) {
        int64_t n = count - i < 1024 ? count - i : 1024;
        for (int64_t j = 0; j < n; j++)
            piece[j] = tuner.pattern[(from + i + j) % PATTERN_COUNT] * scale;
        convert_elements((char *)to + (size_t)i * dtype_size(dtype), dtype, piece, DTYPE_F32, n);
    }
}

bool trial_input(struct trial *trial, struct tensor like, struct error *err) {
    const size_t size = dtype_size(like.dtype);
    const int64_t count = tensor_elements(&like);
    void *host = malloc(PATTERN_COUNT * size);
    if (!host || !make_pattern(err)) {
        free(host);
        return error_set(err, ERROR_NO_MEMORY, "no memory for an operand");
    }
    like.device = DEVICE_CUDA;
    bool ok = cuda_memory.alloc(MEMORY_ACTIVATIONS, tensor_bytes(&like), &like.data, err);
    if (ok)
        trial->inputs[trial->input_count++] = like;
    fill(host, like.dtype, PATTERN_COUNT, 7919 * (trial->input_count + 1), 1.0f);
    for (int64_t i = 0; ok && i < count; i += PATTERN_COUNT) {
        const int64_t n = count - i < PATTERN_COUNT ? count - i : PATTERN_COUNT;
        ok = cuda_upload((char *)like.data + (size_t)i * size, host, (size_t)n * size, err);
    }
    free(host);
    return ok;
}

bool trial_weight(struct trial *trial, int64_t n, int64_t k, bool is_conv, enum conv_kind kind,
    bool geglu, enum dtype dtype, struct error *err) {
    const struct kernels *table = kernels_cuda(cuda_get_properties()->index, err);
    const int64_t side = is_conv && kind != CONV_1X1 ? 3 : 1, count = n * k * side * side;
    float *weight = (float *)malloc((size_t)count * sizeof(float));
    float *bias = (float *)malloc((size_t)n * sizeof(float));
    bool ok = table && make_pattern(err);
    if (ok && (!weight || !bias))
        ok = error_set(err, ERROR_NO_MEMORY, "no memory for a weight of %lld", (long long)count);
    if (ok) {
        fill(weight, DTYPE_F32, count, 0, 1.0f / sqrtf((float)(k * side * side)));
        fill(bias, DTYPE_F32, n, 12345, 1.0f);
        const struct tensor bias_tensor = tensor_1d(bias, DTYPE_F32, n);
        if (is_conv) {
            const struct tensor w = tensor_4d(weight, DTYPE_F32, n, k, side, side);
            ok = conv2d_pack(table, "trial", &w, &bias_tensor, kind, dtype, &trial->weight, err);
        } else {
            const struct tensor w = tensor_2d(weight, DTYPE_F32, n, k);
            ok = linear_pack(table, "trial", &w, &bias_tensor, geglu, dtype, &trial->weight, err);
        }
    }
    free(weight);
    free(bias);
    return ok;
}

static void trial_finish(struct trial *trial) {
    for (int i = 0; i < trial->input_count; i++)
        cuda_memory.release(
            MEMORY_ACTIVATIONS, trial->inputs[i].data, tensor_bytes(&trial->inputs[i]));
    packed_destroy(trial->weight);
}

/* --- results --- */

/* A result of the trial's whole y with guards around, poisoned with NaN. */
static bool result_alloc(
    const struct trial *trial, void **block, struct tensor *y, struct error *err) {
    const size_t bytes = tensor_bytes(&trial->y) + 2 * GUARD_BYTES;
    if (!cuda_memory.alloc(MEMORY_ACTIVATIONS, bytes, block, err))
        return false;
    *y = trial->y;
    y->device = DEVICE_CUDA;
    y->data = (char *)*block + GUARD_BYTES;
    return cuda_ok(cudaMemsetAsync(*block, GUARD, bytes, cuda_stream()), "filling", err) &&
           cuda_ok(cudaMemsetAsync(y->data, 0xff, tensor_bytes(y), cuda_stream()), "filling", err);
}

static void result_release(const struct trial *trial, void *block) {
    cuda_memory.release(MEMORY_ACTIVATIONS, block, tensor_bytes(&trial->y) + 2 * GUARD_BYTES);
}

static bool guards_are_whole(const struct tensor *y, bool *whole, struct error *err) {
    const char *ends[2] = { (char *)y->data - GUARD_BYTES, (char *)y->data + tensor_bytes(y) };
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

struct difference {
    double squares, size; /* sums of (y - p)^2 and p^2 */
    double worst;         /* largest |y - p| */
    bool finite;
    bool same_bits;
};

static bool compare(const struct tensor *y, const struct tensor *p, int64_t count,
    struct difference *out, struct error *err) {
    const size_t size = dtype_size(y->dtype), step = COMPARE_BYTES / size;
    void *plain = malloc(COMPARE_BYTES);
    float *a = (float *)malloc(step * sizeof(float)), *b = (float *)malloc(step * sizeof(float));
    bool ok = plain && a && b;
    *out = (struct difference){ 0, 0, 0, true, true };
    if (!ok)
        error_set(err, ERROR_NO_MEMORY, "no memory to compare results");
    for (size_t i = 0; ok && i < (size_t)count; i += step) {
        const size_t n = (size_t)count - i < step ? (size_t)count - i : step;
        const void *seen = cuda_memory.view((char *)p->data + i * size, n * size, err);
        if (seen)
            memcpy(plain, seen, n * size);
        seen = seen ? cuda_memory.view((char *)y->data + i * size, n * size, err) : NULL;
        ok = seen != NULL;
        if (!ok)
            break;
        out->same_bits = out->same_bits && memcmp(plain, seen, n * size) == 0;
        convert_elements(a, DTYPE_F32, seen, y->dtype, (int64_t)n);
        convert_elements(b, DTYPE_F32, plain, y->dtype, (int64_t)n);
        for (size_t j = 0; j < n; j++) {
            const double d = fabs((double)a[j] - (double)b[j]);
            out->finite = out->finite && isfinite(a[j]);
            out->squares += d * d;
            out->size += (double)b[j] * (double)b[j];
            out->worst = d > out->worst ? d : out->worst;
        }
    }
    free(plain);
    free(a);
    free(b);
    return ok;
}

/* Two kernels that are right differ by rounding their sums and, once, their result. */
static double allowed_error(enum dtype dtype) {
    return dtype == DTYPE_F32 ? 2e-5 : dtype == DTYPE_F16 ? 2e-3 : 1.2e-2;
}

static void judge(
    const struct difference *d, enum dtype dtype, int64_t count, struct tuner_result *out) {
    const double typical = sqrt(d->size / (double)count), allowed = allowed_error(dtype);
    out->error = d->size > 0 ? sqrt(d->squares / d->size) : sqrt(d->squares);
    if (!d->finite)
        snprintf(out->why, sizeof(out->why), "not finite, or not written");
    else if (!(out->error <= allowed))
        snprintf(out->why, sizeof(out->why), "error %.3g, allowed %.3g", out->error, allowed);
    else if (!(d->worst <= 16 * allowed * typical))
        snprintf(
            out->why, sizeof(out->why), "one element is off by %.3g of %.3g", d->worst, typical);
    else
        out->right = true;
}

/* --- one candidate --- */

static bool timed(const struct problem *p, int candidate, const struct trial *trial,
    struct tensor *y, double *us, struct error *err) {
    cudaEvent_t begin = NULL, end = NULL;
    bool ok = cuda_ok(cudaEventCreate(&begin), "making an event", err) &&
              cuda_ok(cudaEventCreate(&end), "making an event", err);
    int repeats = 1;
    *us = INFINITY;
    for (int i = 0; ok && i < TIMED_RUNS; i++) {
        float ms = 0;
        ok = cuda_ok(cudaEventRecord(begin, cuda_stream()), "timing", err);
        for (int r = 0; ok && r < repeats; r++)
            ok = p->tunable->run(p->shape, candidate, trial, 2, y, err);
        ok = ok && cuda_ok(cudaEventRecord(end, cuda_stream()), "timing", err) &&
             cuda_ok(cudaEventSynchronize(end), "timing", err) &&
             cuda_ok(cudaEventElapsedTime(&ms, begin, end), "timing", err);
        const double once = 1e3 * (double)ms / repeats;
        if (i > 0 && once < *us)
            *us = once;
        if (i == 0) /* the first also tells how many make a run that can be timed */
            repeats = once * 50 < TIMED_US ? 50 : once < TIMED_US ? (int)(TIMED_US / once) + 1 : 1;
    }
    if (begin)
        (void)cudaEventDestroy(begin);
    if (end)
        (void)cudaEventDestroy(end);
    return ok;
}

/* The whole batch against the plainest, the guards, and one row alone against itself in the batch.
 */
static bool check(const struct problem *p, int candidate, const struct trial *trial,
    struct tensor *y, struct tensor *plain, struct tuner_result *out, struct error *err) {
    const struct tunable *t = p->tunable;
    const int plainest = t->candidates(p->shape) - 1;
    const int64_t count = tensor_elements(y), row = count / trial->rows;
    struct difference d;
    bool whole;
    if (!t->run(p->shape, plainest, trial, trial->rows, plain, err) ||
        !t->run(p->shape, candidate, trial, trial->rows, y, err) ||
        !compare(y, plain, count, &d, err) || !guards_are_whole(y, &whole, err))
        return false;
    judge(&d, y->dtype, count, out);
    if (!whole) {
        out->right = false;
        snprintf(out->why, sizeof(out->why), "it writes outside its result");
    }
    if (!out->right)
        return true;
    /* plain now takes the first row alone */
    if (!t->run(p->shape, candidate, trial, 1, plain, err) || !compare(y, plain, row, &d, err))
        return false;
    if (!d.same_bits) {
        out->right = false;
        snprintf(out->why, sizeof(out->why), "a row's bits depend on the batch");
    }
    return true;
}

static bool try_candidate(int problem, int candidate, struct tuner_result *out, struct error *err) {
    const struct problem *p = &tuner.problems[problem];
    struct trial trial;
    void *block = NULL, *plain_block = NULL;
    struct tensor y, plain;
    memset(&trial, 0, sizeof(trial));
    memset(out, 0, sizeof(*out));
    trial.rows = TRIAL_ROWS;
    bool ok = cuda_enter(err) && p->tunable->prepare(p->shape, &trial, err) &&
              result_alloc(&trial, &block, &y, err) &&
              result_alloc(&trial, &plain_block, &plain, err);
    if (ok) {
        ok = check(p, candidate, &trial, &y, &plain, out, err);
        ok = ok && (!out->right || timed(p, candidate, &trial, &y, &out->us, err));
        out->flops = trial.flops / (double)trial.rows * 2;
    }
    if (block)
        result_release(&trial, block);
    if (plain_block)
        result_release(&trial, plain_block);
    trial_finish(&trial);
    if (!ok && err->code == ERROR_DEVICE) { /* a launch that was refused */
        out->right = false;
        snprintf(out->why, sizeof(out->why), "%.120s", err->message);
        return true;
    }
    return ok;
}

const struct tuner cuda_tuner = {
    identity,
    problem_count,
    problem_key,
    candidate_count,
    candidate_name,
    try_candidate,
    choose,
};
