#include "tests/kernels/kcheck/kcheck.h"

#include "tests/kernels/narrow.h"

#include <math.h>
#include <omp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES 512
#define GUARD 0xa5
#define POISON 0xff /* a NaN in f32 and in bf16 */

float random_float(struct kcheck *k) {
    k->state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    uint64_t z = k->state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (float)((z ^ z >> 31) >> 40) / (float)(1 << 23) - 1.0f;
}

int64_t random_below(struct kcheck *k, int64_t n) {
    return (int64_t)((double)(random_float(k) + 1.0f) / 2.0 * (double)n) % n;
}

/* Allocates memory of the test itself; ends the program if there is none. */
static void *allocate(size_t bytes) {
    void *p = malloc(bytes);
    if (!p) {
        printf("kcheck: out of memory (%zu bytes)\n", bytes);
        exit(1);
    }
    return p;
}

struct buffer buffer_create(struct tensor shape, int fill) {
    struct buffer b = { .t = shape };
    size_t bytes = tensor_bytes(&shape);
    b.block = allocate(bytes + 2 * GUARD_BYTES);
    memset(b.block, GUARD, bytes + 2 * GUARD_BYTES);
    b.t.data = b.block + GUARD_BYTES;
    b.t.device = DEVICE_CPU;
    memset(b.t.data, fill, bytes);
    return b;
}

void buffer_finish(struct buffer *b) {
    free(b->block);
    free(b->copy);
    *b = (struct buffer){ 0 };
}

static bool guards_are_whole(const struct buffer *b) {
    size_t bytes = tensor_bytes(&b->t);
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if ((unsigned char)b->block[i] != GUARD ||
            (unsigned char)b->block[GUARD_BYTES + bytes + i] != GUARD)
            return false;
    return true;
}

static double value(const struct tensor *t, int64_t i) {
    if (t->dtype == DTYPE_F32)
        return (double)((const float *)t->data)[i];
    if (t->dtype == DTYPE_F64)
        return ((const double *)t->data)[i];
    if (t->dtype == DTYPE_BF16)
        return (double)bf16_to_f32(((const uint16_t *)t->data)[i]);
    return (double)f16_to_f32(((const uint16_t *)t->data)[i]);
}

static void put(struct tensor *t, int64_t i, float x) {
    if (t->dtype == DTYPE_F32)
        ((float *)t->data)[i] = x;
    else
        ((uint16_t *)t->data)[i] = t->dtype == DTYPE_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
}

bool subject_start(struct kcheck *k, struct subject *s, const char *op, const char *format, ...) {
    *s = (struct subject){ .op = op };
    va_list args;
    va_start(args, format);
    vsnprintf(s->shape, sizeof(s->shape), format, args);
    va_end(args);
    char name[192];
    snprintf(name, sizeof(name), "%s %s", op, s->shape);
    /* A subject's random numbers do not depend on what ran before it. */
    k->state = k->seed;
    for (const char *p = name; *p; p++)
        k->state = k->state * 31 + (unsigned char)*p;
    const bool wanted = entry_differs(k, op) && (!k->filter || strstr(name, k->filter));
    if (wanted && k->names)
        printf("subject %s\n", name);
    return wanted;
}

struct tensor *subject_input(
    struct kcheck *k, struct subject *s, struct tensor shape, float scale, float offset) {
    struct buffer *b = &s->inputs[s->input_count++];
    *b = buffer_create(shape, 0);
    for (int64_t i = 0; i < tensor_elements(&b->t); i++)
        put(&b->t, i, random_float(k) * scale + offset);
    return &b->t;
}

void subject_output(struct kcheck *k, struct subject *s, struct tensor shape, bool has_rows,
    bool accumulate, struct tolerance tolerance) {
    struct tensor *t = subject_input(k, s, shape, 1, 0);
    struct buffer *b = &s->inputs[s->input_count - 1];
    b->is_output = true;
    b->has_rows = has_rows;
    b->tolerance = tolerance;
    if (!accumulate)
        memset(t->data, POISON, tensor_bytes(t));
    b->copy = allocate(tensor_bytes(t));
    memcpy(b->copy, t->data, tensor_bytes(t));
}

void subject_gradient(
    struct kcheck *k, struct subject *s, struct tensor shape, struct tolerance tolerance) {
    subject_output(k, s, shape, false, true, tolerance);
    s->inputs[s->input_count - 1].is_gradient = true;
}

struct tensor subject_row(const struct subject *s, int input, int64_t row) {
    const struct tensor *t = &s->inputs[input].t;
    return row < 0 ? *t : tensor_rows(t, row, 1);
}

static void complain(struct kcheck *k, const struct subject *s, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void complain(struct kcheck *k, const struct subject *s, const char *format, ...) {
    printf("FAIL %s %s: ", s->op, s->shape);
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    const char *isa = getenv("LATENTD_CPU");
    printf("\n  again: %s%s%skcheck%s --seed %llu --filter '%s %s'\n", isa ? "LATENTD_CPU=" : "",
        isa ? isa : "", isa ? " " : "", k->table->device == DEVICE_CPU ? "" : " --device cuda",
        (unsigned long long)k->seed, s->op, s->shape);
    k->failed++;
}

/* Both tables must unpack the same bits, because they round in the same way. */
static void compare_unpacked(struct kcheck *k, const struct subject *s, int64_t n, int64_t inner) {
    struct error err = { 0 };
    struct buffer weights[2], biases[2];
    for (int i = 0; i < 2; i++) {
        weights[i] = buffer_create(tensor_2d(NULL, DTYPE_F32, n, inner), POISON);
        biases[i] = buffer_create(tensor_1d(NULL, DTYPE_F32, n), POISON);
        if (!packed_unpack(
                i ? s->reference_weight : s->weight, weights[i].t.data, biases[i].t.data, &err))
            complain(k, s, "unpacking: %s", err.message);
        if (!guards_are_whole(&weights[i]) || !guards_are_whole(&biases[i]))
            complain(k, s, "unpacking wrote before or behind the weight");
    }
    if (memcmp(weights[0].t.data, weights[1].t.data, tensor_bytes(&weights[0].t)) != 0 ||
        memcmp(biases[0].t.data, biases[1].t.data, tensor_bytes(&biases[0].t)) != 0)
        complain(k, s, "what is unpacked is not what was packed");
    for (int i = 0; i < 2; i++) {
        buffer_finish(&weights[i]);
        buffer_finish(&biases[i]);
    }
}

/* Copies [n][inner] or [n][c][taps] into the table's memory, in the order in which weights are
 * unpacked. */
static float *numbers_of(const struct kernels *table, const struct tensor *t, struct error *err) {
    const int64_t n = t->shape[0], c = t->rank > 1 ? t->shape[1] : 1;
    const int64_t taps = tensor_elements(t) / n / c;
    const size_t bytes = (size_t)tensor_elements(t) * sizeof(float);
    float *plain = allocate(bytes), *turned = allocate(bytes);
    void *out = NULL;
    convert_elements(plain, DTYPE_F32, t->data, t->dtype, tensor_elements(t));
    for (int64_t i = 0; i < tensor_elements(t); i++)
        turned[(i / (c * taps) * taps + i % taps) * c + i / taps % c] = plain[i];
    if (!table->memory->alloc(MEMORY_WEIGHTS, bytes, &out, err) ||
        !table->memory->upload(out, turned, bytes, err)) {
        printf("kcheck: %s\n", err->message);
        exit(1);
    }
    free(plain);
    free(turned);
    return out;
}

/* Rewrites a weight with its numbers in reverse order, then with the right ones. Half of all checks
 * then use a rewritten weight. */
static void rewrite(struct kcheck *k, const struct subject *s, const struct kernels *table,
    struct packed *packed, const struct tensor *weight, const struct tensor *bias) {
    struct error err = { 0 };
    float *numbers = numbers_of(table, weight, &err);
    float *biases = bias ? numbers_of(table, bias, &err) : NULL;
    struct tensor other = *weight;
    const int64_t count = tensor_elements(weight);
    const size_t size = dtype_size(weight->dtype);
    other.data = allocate(tensor_bytes(weight));
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)other.data + (size_t)i * size,
            (const char *)weight->data + (size_t)(count - 1 - i) * size, size);
    float *others = numbers_of(table, &other, &err);
    if (!packed_rewrite(packed, others, biases, &err) ||
        !packed_rewrite(packed, numbers, biases, &err))
        complain(k, s, "rewriting: %s", err.message);
    table->memory->release(MEMORY_WEIGHTS, numbers, (size_t)count * sizeof(float));
    table->memory->release(MEMORY_WEIGHTS, others, (size_t)count * sizeof(float));
    if (bias)
        table->memory->release(MEMORY_WEIGHTS, biases, (size_t)weight->shape[0] * sizeof(float));
    free(other.data);
}

void subject_pack(struct kcheck *k, struct subject *s, const struct tensor *weight,
    const struct tensor *bias, bool is_conv, enum conv_kind kind, bool geglu, enum dtype dtype) {
    struct error err = { 0 };
    const struct kernels *tables[] = { k->table, kernels_reference() };
    struct packed **packed[] = { &s->weight, &s->reference_weight };
    for (int i = k->bench ? 0 : 1; i >= 0; i--) {
        bool ok = is_conv
                      ? conv2d_pack(tables[i], s->op, weight, bias, kind, dtype, packed[i], &err)
                      : linear_pack(tables[i], s->op, weight, bias, geglu, dtype, packed[i], &err);
        if (!ok) {
            printf("kcheck: %s\n", err.message);
            exit(1);
        }
    }
    const bool rewritten = !k->bench && random_below(k, 2);
    for (int i = 0; rewritten && i < 2; i++)
        rewrite(k, s, tables[i], *packed[i], weight, bias);
    if (!k->bench)
        compare_unpacked(k, s, weight->shape[0], tensor_elements(weight) / weight->shape[0]);
}

static bool copy_up(const struct kernels *table, char *host, size_t data_bytes,
    struct placed_copy *out, struct error *err) {
    *out = (struct placed_copy){ NULL, data_bytes + 2 * GUARD_BYTES, host };
    return table->memory->alloc(MEMORY_ACTIVATIONS, out->bytes, &out->block, err) &&
           table->memory->upload(out->block, host, out->bytes, err);
}

static bool copy_back(const struct kernels *table, const struct placed_copy *c, struct error *err) {
    const void *seen = table->memory->view(c->block, c->bytes, err);
    if (seen)
        memcpy(c->host, seen, c->bytes);
    return seen != NULL;
}

bool subject_place(
    struct compute *c, struct subject *s, const struct tensor *y, struct placed *out) {
    *out = (struct placed){ .y = *y };
    bool ok = copy_up(c->kernels, (char *)y->data - GUARD_BYTES, tensor_bytes(y),
        &out->copies[s->input_count], &c->error);
    out->y.device = c->kernels->device;
    out->y.data = (char *)out->copies[s->input_count].block + GUARD_BYTES;
    for (int i = 0; i < s->input_count; i++) {
        struct buffer *b = &s->inputs[i];
        out->hosts[i] = b->t;
        if (b->on_host || !ok)
            continue;
        b->t.device = c->kernels->device;
        if (out->hosts[i].data == y->data) { /* an input that shares y's memory needs no copy */
            b->t.data = out->y.data;
            continue;
        }
        ok = copy_up(c->kernels, b->block, tensor_bytes(&b->t), &out->copies[i], &c->error);
        b->t.data = (char *)out->copies[i].block + GUARD_BYTES;
    }
    return ok;
}

void subject_take_back(struct compute *c, struct subject *s, struct placed *placed) {
    for (int i = 0; i <= s->input_count; i++) {
        struct placed_copy *copy = &placed->copies[i];
        if (i < s->input_count)
            s->inputs[i].t = placed->hosts[i];
        if (copy->block && compute_ok(c))
            (void)copy_back(c->kernels, copy, &c->error);
        c->kernels->memory->release(MEMORY_ACTIVATIONS, copy->block, copy->bytes);
    }
}

/* Inputs are copied back too, so that a write to one is detected. */
static void run_on_copies(struct compute *c, struct subject *s, int64_t row, struct tensor *y) {
    struct placed placed;
    if (subject_place(c, s, y, &placed))
        s->run(c, s, row, &placed.y);
    subject_take_back(c, s, &placed);
}

/* Every run starts with the same contents in its outputs. */
static void reset_outputs(struct subject *s) {
    for (int i = 0; i < s->input_count; i++)
        if (s->inputs[i].is_output)
            memcpy(s->inputs[i].t.data, s->inputs[i].copy, tensor_bytes(&s->inputs[i].t));
}

/* Runs one row, or all rows (-1), on a table. Returns false after reporting an error, or if the
 * table has no such entry. */
static bool run(struct kcheck *k, struct subject *s, const struct kernels *table, int64_t row,
    struct tensor *y) {
    struct compute c = { .kernels = table };
    reset_outputs(s);
    struct packed *weight = s->weight;
    if (table == kernels_reference())
        s->weight = s->reference_weight;
    if (table->device == DEVICE_CPU)
        s->run(&c, s, row, y);
    else
        run_on_copies(&c, s, row, y);
    s->weight = weight;
    s->is_absent = c.error.code == ERROR_UNSUPPORTED;
    if (!compute_ok(&c) && !s->is_absent)
        complain(k, s, "%s", c.error.message);
    if (c.error.code == ERROR_DEVICE_LOST) {
        printf("kcheck: nothing more can be checked in this process\n");
        exit(1);
    }
    return compute_ok(&c);
}

static int class_of(double x) {
    return isnan(x) ? 1 : isinf(x) ? (x > 0 ? 2 : 3) : 0;
}

/* Checks NaN and infinities. It runs first because an error of NaN would pass as small. Returns
 * false after reporting a mismatch. */
static bool classes_agree(struct kcheck *k, const struct subject *s, const struct tensor *want,
    const struct tensor *got) {
    int64_t n = tensor_elements(want), width = n / want->shape[0], bad_in_row = 0;
    for (int64_t i = 0; i < n; i++) {
        int w = class_of(value(want, i)), g = class_of(value(got, i));
        if (s->classes == CLASSES_SPREAD && i % width == 0) {
            bad_in_row = 0;
            for (int64_t j = i; j < i + width; j++)
                bad_in_row += class_of(value(want, j)) != 0;
        }
        bool same = s->classes == CLASSES_EXACT ? w == g : w ? g != 0 : !g || bad_in_row > 0;
        if (!same) {
            complain(k, s, "element %lld is %g where the reference has %g", (long long)i,
                value(got, i), value(want, i));
            return false;
        }
    }
    return true;
}

static void compare(struct kcheck *k, const struct subject *s, const struct tensor *want,
    const struct tensor *got, struct tolerance tolerance, const char *what) {
    if (!classes_agree(k, s, want, got))
        return;
    double difference = 0, size = 0;
    int64_t n = tensor_elements(want), finite = 0;
    for (int64_t i = 0; i < n; i++) {
        double w = value(want, i), g = value(got, i);
        if (class_of(w) || class_of(g))
            continue;
        difference += (w - g) * (w - g);
        size += w * w;
        finite++;
    }
    size = fmax(size, s->floor * s->floor * (double)finite);
    double error = size > 0 ? sqrt(difference / size) : sqrt(difference);
    /* In a small output, one element that is rounded the other way makes most of the error. */
    double allowed = tolerance.normalised;
    const bool is_bf16 = got->dtype == DTYPE_BF16, is_f16 = got->dtype == DTYPE_F16;
    if ((is_bf16 || is_f16) && n < 4096 && allowed > 0)
        allowed = is_bf16 ? 0x1p-8 : 0x1p-11;
    if (error > allowed)
        complain(k, s, "%s: normalised error %.3g, allowed %.3g (%s)", what, error, allowed,
            tolerance.reason);
    /* A single element may have a larger error than the whole, but not a much larger one. */
    double typical = finite ? sqrt(size / (double)finite) : 0, worst = 0;
    int64_t where = 0;
    for (int64_t i = 0; i < n; i++) {
        double w = value(want, i), g = value(got, i);
        if (class_of(w) || class_of(g) || !(fabs(w) + typical > 0))
            continue;
        double off = fabs(w - g) / (fabs(w) + typical);
        if (off > worst) {
            worst = off;
            where = i;
        }
    }
    /* A difference of one unit in the last place is allowed: the two tables may round in different
     * directions. */
    double limit = 32 * tolerance.normalised, ulp = is_bf16 ? 0x1p-7 : is_f16 ? 0x1p-10 : 0;
    if (worst > limit && worst > ulp)
        complain(k, s, "%s: element %lld is %.9g, the reference has %.9g", what, (long long)where,
            value(got, where), value(want, where));
}

/* Copies of the other outputs after a run. of[i] belongs to input i; it has no block if that is not
 * an output. */
struct outputs {
    struct buffer of[SUBJECT_MAX_INPUTS];
};

static struct outputs take_outputs(const struct subject *s) {
    struct outputs out = { 0 };
    for (int i = 0; i < s->input_count; i++) {
        if (!s->inputs[i].is_output)
            continue;
        out.of[i] = buffer_create(s->inputs[i].t, 0);
        memcpy(out.of[i].t.data, s->inputs[i].t.data, tensor_bytes(&s->inputs[i].t));
    }
    return out;
}

static void outputs_finish(struct outputs *outputs) {
    for (int i = 0; i < SUBJECT_MAX_INPUTS; i++)
        buffer_finish(&outputs->of[i]);
}

/* A row computed alone must have the same bits. */
static void check_rows(
    struct kcheck *k, struct subject *s, const struct buffer *all, const struct outputs *outputs) {
    int64_t rows = s->y.shape[0], checked = rows < 3 ? rows : 3;
    for (int64_t i = 0; i < checked && rows > 1; i++) {
        int64_t row = i == 2 ? rows - 1 : i;
        struct tensor shape = s->y;
        shape.shape[0] = 1;
        struct buffer alone = buffer_create(shape, POISON);
        struct tensor want = tensor_rows(&all->t, row, 1);
        bool same = !run(k, s, k->table, row, &alone.t) ||
                    memcmp(alone.t.data, want.data, tensor_bytes(&want)) == 0;
        for (int j = 0; j < s->input_count; j++) {
            if (!s->inputs[j].has_rows)
                continue;
            want = tensor_rows(&outputs->of[j].t, row, 1);
            const struct tensor got = subject_row(s, j, row);
            same = same && memcmp(got.data, want.data, tensor_bytes(&want)) == 0;
        }
        if (!same)
            complain(k, s, "row %lld has other bits when it is computed alone", (long long)row);
        buffer_finish(&alone);
    }
}

/* Sums over rows must have the same bits on any number of threads. */
static void check_threads(
    struct kcheck *k, struct subject *s, const struct buffer *all, const struct outputs *outputs) {
    const int threads = omp_get_max_threads();
    bool is_summed = s->is_whole;
    for (int i = 0; i < s->input_count; i++)
        is_summed = is_summed || (s->inputs[i].is_output && !s->inputs[i].has_rows);
    for (int count = 1; count <= 4 && is_summed && k->table->device == DEVICE_CPU; count++) {
        struct buffer y = buffer_create(s->y, POISON);
        omp_set_num_threads(count);
        bool same = !run(k, s, k->table, -1, &y.t) ||
                    memcmp(y.t.data, all->t.data, tensor_bytes(&s->y)) == 0;
        for (int i = 0; i < s->input_count; i++)
            same = same &&
                   (!s->inputs[i].is_output || memcmp(s->inputs[i].t.data, outputs->of[i].t.data,
                                                   tensor_bytes(&s->inputs[i].t)) == 0);
        if (!same)
            complain(k, s, "other bits on %d threads than on %d", count, threads);
        buffer_finish(&y);
    }
    omp_set_num_threads(threads);
}

/* Compares an output with what it held before, plus the gradient `g`. */
static void compare_sum(struct kcheck *k, struct subject *s, int output, const struct tensor *g) {
    const struct buffer *b = &s->inputs[output];
    const float *before = (const float *)(const void *)b->copy;
    const float *part = g->data, *got = b->t.data;
    const int64_t n = tensor_elements(g);
    int64_t wrong = 0, first = 0;
    for (int64_t i = n - 1; i >= 0; i--) {
        const float want = before[i] + part[i];
        if (memcmp(&want, &got[i], sizeof(want)) != 0) {
            wrong++;
            first = i;
        }
    }
    k->added++;
    if (wrong)
        complain(k, s,
            "output %d: %lld of %lld elements are not the old number plus the gradient that zeros "
            "get; element %lld is %.9g, not %.9g + %.9g",
            output, (long long)wrong, (long long)n, (long long)first, (double)got[first],
            (double)before[first], (double)part[first]);
}

/* The gradient of a parameter must be added once, as a whole: if a call leaves g in zeros, it must
 * leave a + g, rounded once to f32, where any a was before. */
static void check_sums(struct kcheck *k, struct subject *s) {
    struct buffer y = buffer_create(s->y, POISON);
    char *before[SUBJECT_MAX_INPUTS] = { 0 };
    int count = 0;
    for (int i = 0; i < s->input_count; i++) {
        struct buffer *b = &s->inputs[i];
        if (!b->is_gradient)
            continue;
        before[i] = b->copy;
        b->copy = allocate(tensor_bytes(&b->t));
        memset(b->copy, 0, tensor_bytes(&b->t));
        count++;
    }
    bool ok = count && run(k, s, k->table, -1, &y.t);
    struct outputs gradients = { 0 };
    if (ok)
        gradients = take_outputs(s);
    for (int i = 0; i < s->input_count; i++)
        if (before[i]) {
            free(s->inputs[i].copy);
            s->inputs[i].copy = before[i];
        }
    ok = ok && run(k, s, k->table, -1, &y.t);
    for (int i = 0; ok && i < s->input_count; i++)
        if (before[i])
            compare_sum(k, s, i, &gradients.of[i].t);
    outputs_finish(&gradients);
    buffer_finish(&y);
}

/* If y may share an input's memory, sharing it must not change the bits. */
static void check_in_place(struct kcheck *k, struct subject *s, const struct buffer *apart) {
    struct buffer *input = &s->inputs[s->in_place - 1], y = buffer_create(s->y, 0);
    void *data = input->t.data;
    memcpy(y.t.data, data, tensor_bytes(&y.t));
    input->t.data = y.t.data;
    if (run(k, s, k->table, -1, &y.t) && memcmp(y.t.data, apart->t.data, tensor_bytes(&y.t)) != 0)
        complain(k, s, "other bits when y is input %d", s->in_place - 1);
    input->t.data = data;
    buffer_finish(&y);
}

static void look_at_buffers(struct kcheck *k, struct subject *s, const struct buffer *y,
    const struct outputs *want, const char *what) {
    if (!guards_are_whole(y))
        complain(k, s, "%s: memory before or behind the output was written", what);
    for (int i = 0; i < s->input_count; i++) {
        const struct buffer *b = &s->inputs[i];
        char text[64];
        snprintf(text, sizeof(text), "%s, output %d", what, i);
        if (!guards_are_whole(b))
            complain(k, s, "%s: memory before or behind input %d was written", what, i);
        if (b->is_output)
            compare(k, s, &want->of[i].t, &b->t, b->tolerance, text);
        else if (memcmp(b->copy, b->t.data, tensor_bytes(&b->t)) != 0)
            complain(k, s, "%s: input %d was written", what, i);
    }
}

static void compare_tables(struct kcheck *k, struct subject *s, const char *what) {
    for (int i = 0; i < s->input_count; i++) {
        struct buffer *b = &s->inputs[i];
        if (b->is_output)
            continue;
        free(b->copy);
        b->copy = allocate(tensor_bytes(&b->t));
        memcpy(b->copy, b->t.data, tensor_bytes(&b->t));
    }
    struct buffer want = buffer_create(s->y, POISON), got = buffer_create(s->y, POISON);
    struct outputs wanted = { 0 }, outputs = { 0 };
    bool ok = run(k, s, kernels_reference(), -1, &want.t);
    if (ok)
        wanted = take_outputs(s);
    if (ok && run(k, s, k->table, -1, &got.t)) {
        outputs = take_outputs(s);
        compare(k, s, &want.t, &got.t, s->tolerance, what);
        look_at_buffers(k, s, &got, &wanted, what);
        if (!s->is_whole)
            check_rows(k, s, &got, &outputs);
        check_threads(k, s, &got, &outputs);
        if (s->in_place)
            check_in_place(k, s, &got);
    }
    outputs_finish(&wanted);
    outputs_finish(&outputs);
    buffer_finish(&want);
    buffer_finish(&got);
}

void subject_check(struct kcheck *k, struct subject *s) {
    k->checked++;
    if (k->bench) {
        subject_measure(k, s);
    } else {
        int failed = k->failed;
        compare_tables(k, s, "random");
        if (!s->is_absent)
            check_sums(k, s);
        /* Large subjects are skipped, because they would take minutes and small shapes show the
         * same. --channels is for the emulator, where a tenth of that size is large. */
        const double large = k->channels ? 1e7 : 1e8;
        if (s->special >= 0 && s->flops < large && k->failed == failed && !s->is_absent) {
            struct tensor *x = &s->inputs[s->special].t;
            int64_t n = tensor_elements(x);
            /* Changes only the first row; the other rows must not be affected. */
            int64_t row = n / x->shape[0];
            put(x, random_below(k, row), NAN);
            compare_tables(k, s, "with a NaN");
            put(x, random_below(k, row), INFINITY);
            put(x, random_below(k, row), -INFINITY);
            compare_tables(k, s, "with NaN and infinities");
        }
    }
    if (s->is_absent) {
        k->checked--;
        k->absent++;
    }
    for (int i = 0; i < s->input_count; i++)
        buffer_finish(&s->inputs[i]);
    packed_destroy(s->weight);
    packed_destroy(s->reference_weight);
}

bool is_time_for(const struct kcheck *k, enum when when) {
    if (k->bench || when == BENCH)
        return k->bench && when == (k->quick ? QUICK : BENCH);
    return when == QUICK || (!k->quick && (when == CHANNELS || !k->channels));
}

bool has_weights(const struct kcheck *k, enum dtype dtype) {
    return k->table->weight_dtypes >> dtype & 1;
}

bool has_activations(const struct kcheck *k, enum dtype dtype) {
    return dtype != DTYPE_F16 || has_weights(k, dtype);
}

bool entry_differs(const struct kcheck *k, const char *op) {
    const struct kernels *a = k->table, *b = kernels_reference();
    if (a == b)
        return true;
#define ENTRY(name)                                                                                \
    if (strcmp(op, #name) == 0)                                                                    \
        return a->name != b->name;
    ALL_OPERATIONS(ENTRY)
#undef ENTRY
    return true;
}
