/* Tests overlays (kernels/compute/overlay.h). Every layer is compared with the same layer with
 * merged weights. Each row must have the same bits when it is computed alone. A row without changes
 * must have the same bits as in a call without an overlay. */
#include "kernels/compute/overlay.h"
#include "kernels/compute/recordings.h"
#include "kernels/devices.h"
#include "kernels/pack.h"
#include "tests/check.h"
#include "tests/kernels/random_tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 5
#define K 32

/* One layer under test: n outputs, as a linear layer or a convolution. */
struct layer_case {
    const char *name;
    bool is_conv;
    enum conv_kind kind;
    int64_t h, w, n;
    enum activation activation;
    bool geglu, residual;
    bool wide; /* y is f32, if the table supports that */
    /* A convolution with a shortcut. The weight under test is the 3x3 convolution's, or that of the
     * 1x1 shortcut. */
    bool around;
};

static const struct layer_case cases[] = {
    { "linear", false, CONV_1X1, 3, 7, 48, ACTIVATION_NONE, false, false },
    { "linear, residual", false, CONV_1X1, 3, 7, 48, ACTIVATION_NONE, false, true },
    { "silu", false, CONV_1X1, 1, 1, 48, ACTIVATION_SILU, false, false },
    { "quick_gelu, residual", false, CONV_1X1, 3, 7, 48, ACTIVATION_QUICK_GELU, false, true },
    { "geglu", false, CONV_1X1, 15, 17, 96, ACTIVATION_NONE, true, false },
    { "geglu, residual", false, CONV_1X1, 3, 7, 96, ACTIVATION_NONE, true, true },
    { "1x1", true, CONV_1X1, 5, 4, 48, ACTIVATION_NONE, false, true },
    { "3x3", true, CONV_3X3, 5, 4, 48, ACTIVATION_NONE, false, true },
    { "3x3 down", true, CONV_3X3_DOWN, 6, 5, 48, ACTIVATION_NONE, false, false },
    { "3x3 up", true, CONV_3X3_UP, 3, 5, 48, ACTIVATION_NONE, false, false },
    { "3x3, wide", true, CONV_3X3, 5, 4, 48, ACTIVATION_NONE, false, false, true },
    { "3x3, shortcut", true, CONV_3X3, 5, 4, 48, ACTIVATION_NONE, false, false, false, true },
    { "shortcut", true, CONV_1X1, 5, 4, 48, ACTIVATION_NONE, false, false, false, true },
};

/* A low-rank change of outputs [first, first + n) of the layer. */
struct change_case {
    int64_t rank, first, n; /* n 0: all outputs from `first` on */
    float scale;
};

/* The rows' changes: none; one term; three terms; a replaced weight; a replaced weight and two
 * terms. */
static const struct change_case changes[] = { { 4, 0, 0, 0.7f }, { 17, 16, 16, -0.3f },
    { 3, 16, 16, 1.5f } };
static const struct {
    bool replaced;
    unsigned terms; /* bits of `changes` */
} row_cases[ROWS] = { { false, 0 }, { false, 1 }, { false, 7 }, { true, 0 }, { true, 5 } };

/* A layer and all changes of its rows. */
struct fixture {
    const struct kernels *kernels;
    const struct layer_case *p;
    enum dtype dtype;
    struct arena *arena;
    struct tensor weight, other, bias; /* f32 on the host */
    struct tensor down[3], up[3];
    struct packed *base, *replacement, *merged[ROWS];
    struct packed *unchanged; /* with `around`: the other weight, else NULL */
    struct low_rank_pair *pairs[3];
    struct row_overlay *overlays[ROWS];
    struct tensor x, residual; /* all rows; y has the shape of residual */
};

static struct packed *pack(const struct fixture *f, const struct tensor *weight) {
    struct packed *out = NULL;
    struct error err = { 0 };
    bool ok = f->p->is_conv ? conv2d_pack(f->kernels, f->p->name, weight, &f->bias, f->p->kind,
                                  f->dtype, &out, &err)
                            : linear_pack(f->kernels, f->p->name, weight, &f->bias, f->p->geglu,
                                  f->dtype, &out, &err);
    CHECK(ok, "%s", err.message);
    return out;
}

/* Packs the other convolution's weight for `around`; it has the same channels. */
static struct packed *pack_unchanged(const struct fixture *f) {
    const bool main = f->p->kind == CONV_3X3;
    const int64_t s = main ? 1 : 3;
    struct packed *out = NULL;
    struct error err = { 0 };
    struct tensor weight = random_tensor(tensor_4d(NULL, DTYPE_F32, f->p->n, K, s, s), 0.2f);
    CHECK(conv2d_pack(f->kernels, f->p->name, &weight, &f->bias, main ? CONV_1X1 : CONV_3X3,
              f->dtype, &out, &err),
        "%s", err.message);
    free(weight.data);
    return out;
}

static int64_t side(const struct layer_case *p) {
    return p->is_conv && p->kind != CONV_1X1 ? 3 : 1;
}

/* weight += scale * up down, in double. */
static void merge(const struct fixture *f, int index, struct tensor *weight) {
    const int64_t inner = tensor_elements(weight) / weight->shape[0];
    const struct change_case *c = &changes[index];
    for (int64_t j = 0; j < f->up[index].shape[0]; j++) {
        for (int64_t i = 0; i < inner; i++) {
            double sum = 0;
            for (int64_t r = 0; r < c->rank; r++)
                sum += (double)((const float *)f->up[index].data)[j * c->rank + r] *
                       (double)((const float *)f->down[index].data)[r * inner + i];
            float *w = (float *)weight->data + (c->first + j) * inner + i;
            *w = (float)((double)*w + (double)c->scale * sum);
        }
    }
}

static void make_row(struct fixture *f, int row) {
    struct error err = { 0 };
    const struct tensor *start = row_cases[row].replaced ? &f->other : &f->weight;
    struct tensor merged = *start;
    merged.data = malloc(tensor_bytes(start));
    memcpy(merged.data, start->data, tensor_bytes(start));
    CHECK(row_overlay_create(&f->overlays[row], &err), "%s", err.message);
    if (row_cases[row].replaced)
        CHECK(row_overlay_replace(f->overlays[row], f->base, f->replacement, &err), "%s",
            err.message);
    for (int i = 0; i < 3; i++) {
        if (!(row_cases[row].terms >> i & 1))
            continue;
        merge(f, i, &merged);
        CHECK(row_overlay_add_low_rank(
                  f->overlays[row], f->base, changes[i].first, f->pairs[i], changes[i].scale, &err),
            "%s", err.message);
    }
    f->merged[row] = pack(f, &merged);
    free(merged.data);
}

static void start(struct fixture *f, const struct kernels *kernels, enum dtype dtype,
    const struct layer_case *p) {
    const int64_t s = side(p);
    struct error err = { 0 };
    *f = (struct fixture){ .kernels = kernels, .p = p, .dtype = dtype };
    CHECK(arena_create(kernels->memory, &f->arena, &err) &&
              arena_reserve(f->arena, (size_t)4 << 20, &err),
        "%s", err.message);
    f->weight = random_tensor(tensor_4d(NULL, DTYPE_F32, p->n, K, s, s), 0.3f / (float)s);
    f->other = random_tensor(f->weight, 0.3f / (float)s);
    f->bias = random_tensor(tensor_1d(NULL, DTYPE_F32, p->n), 0.3f);
    f->base = pack(f, &f->weight);
    f->replacement = pack(f, &f->other);
    if (p->around)
        f->unchanged = pack_unchanged(f);
    for (int i = 0; i < 3; i++) {
        const int64_t n = changes[i].n ? changes[i].n : p->n;
        f->down[i] = random_tensor(
            tensor_4d(NULL, DTYPE_F32, changes[i].rank, K, s, s), 0.3f / (float)s);
        f->up[i] = random_tensor(tensor_2d(NULL, DTYPE_F32, n, changes[i].rank), 0.5f);
        CHECK(low_rank_pair_create(p->name, f->base, n, &f->down[i], &f->up[i], &f->pairs[i], &err),
            "%s", err.message);
    }
    for (int row = 0; row < ROWS; row++)
        make_row(f, row);
    const enum dtype activations = kernels->activation_dtype(dtype);
    f->x = random_tensor(tensor_4d(NULL, activations, ROWS, p->h, p->w, K), 1);
    f->residual = random_tensor(
        tensor_4d(NULL, p->wide && kernels->widens ? DTYPE_F32 : activations, ROWS,
            conv_out_size(p->kind, p->h), conv_out_size(p->kind, p->w), p->geglu ? p->n / 2 : p->n),
        1);
}

static void finish(struct fixture *f) {
    for (int row = 0; row < ROWS; row++) {
        row_overlay_destroy(f->overlays[row]);
        packed_destroy(f->merged[row]);
    }
    for (int i = 0; i < 3; i++) {
        low_rank_pair_destroy(f->pairs[i]);
        free(f->down[i].data);
        free(f->up[i].data);
    }
    packed_destroy(f->base);
    packed_destroy(f->replacement);
    packed_destroy(f->unchanged);
    free(f->weight.data);
    free(f->other.data);
    free(f->bias.data);
    free(f->x.data);
    free(f->residual.data);
    arena_destroy(f->arena);
}

/* Copies the tensor into the device's arena. */
static struct tensor place(struct compute *c, const struct tensor *t) {
    struct tensor placed = compute_tensor_4d(
        c, t->dtype, t->shape[0], t->shape[1], t->shape[2], t->shape[3]);
    compute_upload(c, t->data, &placed);
    return placed;
}

/* Adds both convolutions of x into y; a table without shortcuts computes them one after the
 * other. */
static void call_around(struct compute *c, const struct fixture *f, const struct packed *weight,
    const struct tensor *x, struct tensor *y) {
    const bool main = f->p->kind == CONV_3X3, adds = f->kernels->adds_shortcuts;
    const struct packed *around = main ? f->unchanged : weight;
    if (!adds)
        op_conv2d(c, &(struct conv2d_args){ .x = x, .weight = around, .y = y });
    op_conv2d(c, &(struct conv2d_args){ .x = x,
                     .weight = main ? weight : f->unchanged,
                     .residual = adds ? NULL : y,
                     .y = y,
                     .shortcut = adds ? x : NULL,
                     .shortcut_weight = adds ? around : NULL });
}

static void call(struct compute *c, const struct fixture *f, const struct packed *weight,
    const struct tensor *x, struct tensor *y) {
    const struct tensor *residual = f->p->residual ? y : NULL;
    if (f->p->around)
        call_around(c, f, weight, x, y);
    else if (f->p->is_conv)
        op_conv2d(
            c, &(struct conv2d_args){ .x = x, .weight = weight, .residual = residual, .y = y });
    else
        op_linear(c, &(struct linear_args){ .x = x,
                         .weight = weight,
                         .activation = f->p->activation,
                         .residual = residual,
                         .y = y });
}

/* Runs rows [first, first + count) with `weight`. y starts as the residual. */
static struct tensor run(const struct fixture *f, const struct packed *weight,
    const struct overlay *overlay, int64_t first, int64_t count) {
    struct compute c = { .kernels = f->kernels, .arena = f->arena, .overlay = overlay };
    const struct tensor from = tensor_rows(&f->x, first, count);
    struct tensor out = tensor_rows(&f->residual, first, count);
    struct tensor x = place(&c, &from), y = place(&c, &out);
    call(&c, f, weight, &x, &y);
    const void *seen = compute_view(&c, &y);
    CHECK(compute_ok(&c), "%s: %s", f->p->name, c.error.message);
    CHECK(c.overlay == overlay, "%s: the overlay is gone", f->p->name);
    out.data = malloc(tensor_bytes(&out));
    if (seen)
        memcpy(out.data, seen, tensor_bytes(&out));
    arena_release(f->arena, 0);
    return out;
}

static double distance(const struct tensor *a, const struct tensor *b) {
    const int64_t n = tensor_elements(a);
    float *x = malloc((size_t)n * sizeof(float)), *y = malloc((size_t)n * sizeof(float));
    double difference = 0, size = 0;
    convert_elements(x, DTYPE_F32, a->data, a->dtype, n);
    convert_elements(y, DTYPE_F32, b->data, b->dtype, n);
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        size += (double)y[i] * (double)y[i];
    }
    free(x);
    free(y);
    return sqrt(difference / size);
}

static bool same_bits(const struct tensor *a, const struct tensor *b) {
    return memcmp(a->data, b->data, tensor_bytes(a)) == 0;
}

static void check_row(const struct fixture *f, const struct tensor *all, int row, double *worst) {
    const struct row_overlay *mine[] = { f->overlays[row] };
    struct tensor here = tensor_rows(all, row, 1);
    struct tensor merged = run(f, f->merged[row], NULL, row, 1);
    struct tensor alone = run(f, f->base, &(struct overlay){ mine, 1 }, row, 1);
    const double error = distance(&here, &merged);
    const double allowed = f->x.dtype == DTYPE_BF16  ? 1.5e-2
                           : f->x.dtype == DTYPE_F16 ? 2e-3
                           : f->dtype == DTYPE_BF16  ? 5e-3
                                                     : 1e-5;
    *worst = error > *worst ? error : *worst;
    CHECK(error <= allowed, "%s, %s, %s, row %d: %.2e from the merged weights", f->kernels->name,
        f->p->name, dtype_name(f->dtype), row, error);
    CHECK(same_bits(&here, &alone), "%s, %s, %s: row %d has other bits alone", f->kernels->name,
        f->p->name, dtype_name(f->dtype), row);
    if (!row_cases[row].terms)
        CHECK(same_bits(&here, &merged), "%s, %s, %s: row %d has other bits than %s",
            f->kernels->name, f->p->name, dtype_name(f->dtype), row,
            row_cases[row].replaced ? "its replacement" : "without an overlay");
    free(merged.data);
    free(alone.data);
}

static void rows_are_like_merged_weights(const struct kernels *kernels, enum dtype dtype) {
    double worst = 0;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fixture f;
        start(&f, kernels, dtype, &cases[i]);
        const struct row_overlay *rows[ROWS];
        memcpy(rows, f.overlays, sizeof(rows));
        rows[0] = NULL;
        const struct overlay overlay = { rows, ROWS };
        struct tensor all = run(&f, f.base, &overlay, 0, ROWS);
        for (int row = 0; row < ROWS; row++)
            check_row(&f, &all, row, &worst);
        free(all.data);
        finish(&f);
    }
    printf("%s, %s: %.2e at most from the layers with merged weights\n", kernels->name,
        dtype_name(dtype), worst);
}

/* A change of another weight has no effect. An overlay with the wrong number of rows is refused. */
static void others_are_left_alone(void) {
    struct fixture f;
    start(&f, kernels_cpu(), DTYPE_F32, &cases[0]);
    const struct row_overlay *rows[] = { f.overlays[2], f.overlays[4] };
    struct tensor plain = run(&f, f.replacement, NULL, 0, 2);
    struct tensor with = run(&f, f.replacement, &(struct overlay){ rows, 2 }, 0, 2);
    CHECK(same_bits(&plain, &with), "a change of one weight has changed another");
    struct compute c = { .kernels = f.kernels, .overlay = &(struct overlay){ rows, 2 } };
    op_linear(&c, &(struct linear_args){ .x = &f.x, .weight = f.base, .y = &f.residual });
    CHECK(!compute_ok(&c), "an overlay of 2 rows was taken for %d", ROWS);
    CHECK_CONTAINS(c.error.message, "linear: x is f32 [5][3][7][32], the overlay has 2 rows");
    free(plain.data);
    free(with.data);
    finish(&f);
}

/* A pair of zeros in the caller's memory changes nothing. After another pair's factors are copied
 * there, it gives that pair's bits. */
static void zeros_become_factors(const struct kernels *kernels) {
    struct fixture f;
    struct error err = { 0 };
    start(&f, kernels, DTYPE_F32, &cases[7]);
    const struct low_rank_factors given = low_rank_pair_factors(f.pairs[1]),
                                  sizes = low_rank_factors_of(f.base, given.n, given.rank);
    const size_t bytes = (size_t)(sizes.down_floats + sizes.up_floats) * sizeof(float);
    struct row_overlay *theirs = NULL, *ours = NULL;
    struct low_rank_pair *pair = NULL;
    void *memory = NULL;
    CHECK(given.down_floats == sizes.down_floats && given.up_floats == sizes.up_floats &&
              given.k == K && given.taps == 9,
        "%lld and %lld floats, not %lld and %lld", (long long)given.down_floats,
        (long long)given.up_floats, (long long)sizes.down_floats, (long long)sizes.up_floats);
    CHECK(
        kernels->memory->alloc(MEMORY_WEIGHTS, bytes, &memory, &err) &&
            low_rank_pair_create_zeros("ours", f.base, given.n, given.rank, memory, &pair, &err) &&
            row_overlay_create(&theirs, &err) && row_overlay_create(&ours, &err) &&
            row_overlay_add_low_rank(theirs, f.base, 16, f.pairs[1], 0.5f, &err) &&
            row_overlay_add_low_rank(ours, f.base, 16, pair, 0.5f, &err),
        "%s", err.message);
    const struct row_overlay *their_rows[] = { theirs }, *our_rows[] = { ours };
    struct tensor base = run(&f, f.base, NULL, 0, 1);
    struct tensor want = run(&f, f.base, &(struct overlay){ their_rows, 1 }, 0, 1);
    struct tensor zeros = run(&f, f.base, &(struct overlay){ our_rows, 1 }, 0, 1);
    CHECK(low_rank_pair_factors(pair).down == memory && same_bits(&zeros, &base),
        "%s: zeros change a layer", kernels->name);
    void *copy = malloc(bytes);
    memcpy(copy, kernels->memory->view(given.down, bytes, &err), bytes);
    CHECK(kernels->memory->upload(memory, copy, bytes, &err), "%s", err.message);
    struct tensor got = run(&f, f.base, &(struct overlay){ our_rows, 1 }, 0, 1);
    CHECK(same_bits(&got, &want) && !same_bits(&got, &base), "%s: the same factors, other bits",
        kernels->name);
    free(copy);
    free(base.data);
    free(want.data);
    free(zeros.data);
    free(got.data);
    row_overlay_destroy(theirs);
    row_overlay_destroy(ours);
    low_rank_pair_destroy(pair);
    kernels->memory->release(MEMORY_WEIGHTS, memory, bytes);
    finish(&f);
}

/* --- recordings --- */

struct recorded {
    const struct fixture *f;
    struct tensor x, y; /* in the device's memory */
};

static void run_recorded(struct compute *c, const void *user) {
    const struct recorded *r = user;
    struct tensor y = r->y;
    call(c, r->f, r->f->base, &r->x, &y);
}

/* Makes one call with the changes `rows`. It must have the bits of a call without recordings,
 * whether it is recorded or replayed. */
static void call_recorded(
    struct compute *c, struct recorded *r, const struct row_overlay *const *rows) {
    const struct overlay overlay = { rows, ROWS };
    struct tensor want = run(r->f, r->f->base, &overlay, 0, ROWS);
    const uintptr_t key[] = { (uintptr_t)r->f };
    r->x = place(c, &r->f->x);
    r->y = place(c, &r->f->residual);
    c->overlay = &overlay;
    compute_recorded(c, key, sizeof(key), run_recorded, r);
    const void *seen = compute_view(c, &r->y);
    CHECK(compute_ok(c), "%s: %s", r->f->p->name, c->error.message);
    CHECK(seen && memcmp(seen, want.data, tensor_bytes(&want)) == 0,
        "%s: other bits than without recordings", r->f->p->name);
    arena_release(c->arena, 0);
    free(want.data);
}

/* If only factors, ranks or scales change, for the same weights of the same rows, the recording is
 * replayed. If other weights change, a new one is made. */
static void a_swap_records_nothing(const struct kernels *kernels, const struct layer_case *p) {
    struct fixture f;
    struct error err = { 0 };
    struct recordings *recordings = NULL;
    struct recordings_figures figures;
    start(&f, kernels, DTYPE_F32, p);
    CHECK(recordings_create(kernels, &recordings, &err), "%s", err.message);
    struct compute c = { .kernels = kernels, .arena = f.arena, .recordings = recordings };
    struct recorded r = { .f = &f };
    const struct row_overlay *none[ROWS] = { NULL };
    const struct row_overlay *first[ROWS] = { NULL, f.overlays[1], NULL, NULL, f.overlays[2] };
    const struct row_overlay *second[ROWS] = { NULL, f.overlays[2], NULL, NULL, f.overlays[1] };
    const struct row_overlay *other[ROWS] = { f.overlays[1], NULL, NULL, f.overlays[3], NULL };
    const struct row_overlay *const *const sequence[] = { first, first, first, second, first, none,
        none, none, other, other, second };
    const int recorded[] = { 0, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3 };
    for (size_t i = 0; i < sizeof(recorded) / sizeof(recorded[0]); i++) {
        call_recorded(&c, &r, sequence[i]);
        recordings_get_figures(recordings, &figures);
        CHECK(figures.recorded == recorded[i], "%s: %d recordings after call %zu, not %d", p->name,
            (int)figures.recorded, i, recorded[i]);
    }
    printf("%s, %s: %d recordings and %d replays of %zu calls\n", kernels->name, p->name,
        (int)figures.recorded, (int)figures.replayed, sizeof(recorded) / sizeof(recorded[0]));
    recordings_destroy(recordings);
    finish(&f);
}

/* Factors from a file are refused with the layer's name; a programming error is refused with its
 * description. */
static void wrong_factors_are_refused(void) {
    struct fixture f;
    struct error err = { 0 };
    struct low_rank_pair *pair = NULL;
    start(&f, kernels_reference(), DTYPE_F32, &cases[7]);
    struct tensor down = f.down[0], up = f.up[0];
    struct tensor flat = random_tensor(tensor_2d(NULL, DTYPE_F32, 4, K), 1);
    CHECK(!low_rank_pair_create("conv", f.base, 48, &flat, &up, &pair, &err), "taken");
    CHECK_CONTAINS(
        err.message, "conv: its down factor is f32 [4][32]; a 3x3 one of [4][32] is wanted");
    CHECK(!low_rank_pair_create("conv", f.base, 40, &down, &up, &pair, &err), "taken");
    CHECK_CONTAINS(err.message, "conv: its up factor is f32 [48][4]; one of [40][4] is wanted");
    down.shape[1] = K / 2;
    CHECK(!low_rank_pair_create("conv", f.base, 48, &down, &up, &pair, &err), "taken");
    CHECK_CONTAINS(err.message, "a 3x3 one of [4][32] is wanted");
    CHECK(!row_overlay_add_low_rank(f.overlays[0], f.base, 1, f.pairs[0], 1, &err), "taken");
    CHECK_CONTAINS(err.message, "do not fit outputs from 1 on of a weight [48][32]");
    CHECK(!pair && err.code == ERROR_INTERNAL, "code %d", (int)err.code);
    free(flat.data);
    finish(&f);
}

/* --- norms --- */

struct parameters {
    void *memory; /* owned, device memory */
    size_t bytes;
    struct tensor gamma, beta;
};

static struct parameters make_parameters(const struct kernels *kernels) {
    struct error err = { 0 };
    struct tensor numbers = random_tensor(tensor_1d(NULL, DTYPE_F32, 2 * K), 1);
    struct parameters p = { .bytes = tensor_bytes(&numbers) };
    CHECK(kernels->memory->alloc(MEMORY_WEIGHTS, p.bytes, &p.memory, &err) &&
              kernels->memory->upload(p.memory, numbers.data, p.bytes, &err),
        "%s", err.message);
    free(numbers.data);
    p.gamma = tensor_1d(p.memory, DTYPE_F32, K);
    p.beta = tensor_1d((float *)p.memory + K, DTYPE_F32, K);
    p.gamma.device = p.beta.device = kernels->device;
    return p;
}

enum norm { LAYER_NORM, GROUP_NORM, JOINING_GROUP_NORM, NORM_COUNT };

static const char *const norm_names[] = { "layer", "group", "joining group" };

/* Copies half of x's channels (`half` 0 or 1) to the device. */
static struct tensor place_half(struct compute *c, const struct tensor *x, int half) {
    struct tensor part = *x;
    part.shape[x->rank - 1] /= 2;
    const size_t bytes = tensor_bytes(&part), line = dtype_size(x->dtype) * (size_t)part.shape[3];
    part.data = malloc(bytes);
    for (size_t at = 0; at < bytes; at += line)
        memcpy((char *)part.data + at, (const char *)x->data + 2 * at + (size_t)half * line, line);
    const struct tensor placed = place(c, &part);
    free(part.data);
    return placed;
}

/* Runs a group norm that joins the two halves of x, into y. y starts as x. */
static void run_joining(
    struct compute *c, const struct tensor *x, const struct parameters *p, struct tensor *y) {
    const struct tensor first = place_half(c, x, 0), second = place_half(c, x, 1);
    struct tensor joined = place(c, x);
    op_group_norm(c, &(struct group_norm_args){ .x = &first,
                         .gamma = &p->gamma,
                         .beta = &p->beta,
                         .groups = 8,
                         .eps = 1e-5f,
                         .silu = true,
                         .y = y,
                         .more = &second,
                         .joined = &joined });
}

/* Runs a norm on the fixture's rows [first, first + count). */
static struct tensor run_norm(const struct fixture *f, enum norm norm, const struct parameters *p,
    const struct overlay *overlay, int64_t first, int64_t count) {
    struct compute c = { .kernels = f->kernels, .arena = f->arena, .overlay = overlay };
    struct tensor out = tensor_rows(&f->x, first, count);
    struct tensor y = place(&c, &out);
    if (norm == JOINING_GROUP_NORM)
        run_joining(&c, &out, p, &y);
    else if (norm == GROUP_NORM)
        op_group_norm(&c, &(struct group_norm_args){ &y, &p->gamma, &p->beta, 8, 1e-5f, true, &y });
    else
        op_layer_norm(&c, &(struct layer_norm_args){ &y, &p->gamma, &p->beta, 1e-5f, &y });
    const void *seen = compute_view(&c, &y);
    CHECK(compute_ok(&c), "%s", c.error.message);
    CHECK(c.overlay == overlay, "the overlay is gone");
    out.data = malloc(tensor_bytes(&out));
    if (seen)
        memcpy(out.data, seen, tensor_bytes(&out));
    arena_release(f->arena, 0);
    return out;
}

/* Each row has the bits of its own norm, computed alone. */
static void norms_are_each_row_s(const struct kernels *kernels, enum dtype dtype) {
    static const int wanted[ROWS] = { 0, 1, 1, 2, 0 }; /* 0: the norm itself, unchanged */
    struct fixture f;
    struct error err = { 0 };
    start(&f, kernels, dtype, &cases[0]);
    struct parameters p[3] = { make_parameters(kernels), make_parameters(kernels),
        make_parameters(kernels) };
    struct row_overlay *overlays[3] = { NULL };
    const struct row_overlay *rows[ROWS];
    for (int i = 1; i < 3; i++)
        CHECK(row_overlay_create(&overlays[i], &err) &&
                  row_overlay_replace_norm(overlays[i], &p[0].gamma, &p[i].gamma, &p[i].beta, &err),
            "%s", err.message);
    CHECK(!row_overlay_replace_norm(overlays[1], &p[0].gamma, &p[2].gamma, &p[2].beta, &err),
        "one norm is replaced twice");
    for (int i = 0; i < ROWS; i++)
        rows[i] = overlays[wanted[i]];
    const struct overlay overlay = { rows, ROWS };
    for (enum norm norm = 0; norm < NORM_COUNT; norm++) {
        if (norm == JOINING_GROUP_NORM && !kernels->joins)
            continue;
        struct tensor all = run_norm(&f, norm, &p[0], &overlay, 0, ROWS);
        for (int i = 0; i < ROWS; i++) {
            const struct tensor here = tensor_rows(&all, i, 1);
            struct tensor alone = run_norm(&f, norm, &p[wanted[i]], NULL, i, 1);
            struct tensor base = run_norm(&f, norm, &p[0], NULL, i, 1);
            CHECK(same_bits(&alone, &here), "row %d of a %s norm", i, norm_names[norm]);
            CHECK(same_bits(&base, &here) == !wanted[i], "row %d has the base's bits", i);
            free(alone.data);
            free(base.data);
        }
        /* The overlay must not affect another norm. */
        struct tensor with = run_norm(&f, norm, &p[1], &overlay, 0, ROWS);
        struct tensor without = run_norm(&f, norm, &p[1], NULL, 0, ROWS);
        CHECK(same_bits(&with, &without), "a change of one norm has changed another");
        free(with.data);
        free(without.data);
        free(all.data);
    }
    for (int i = 0; i < 3; i++) {
        row_overlay_destroy(overlays[i]);
        kernels->memory->release(MEMORY_WEIGHTS, p[i].memory, p[i].bytes);
    }
    finish(&f);
}

static int on_device(void) {
    struct error err = { 0 };
    const struct kernels *cuda = devices_open(&(struct device_choice){ .kind = DEVICE_CUDA }, &err);
    if (!cuda)
        return check_no_device(err.message);
    rows_are_like_merged_weights(cuda, DTYPE_F32);
    rows_are_like_merged_weights(cuda, DTYPE_F16);
    norms_are_each_row_s(cuda, DTYPE_F16);
    if (cuda->weight_dtypes >> DTYPE_BF16 & 1)
        rows_are_like_merged_weights(cuda, DTYPE_BF16);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        a_swap_records_nothing(cuda, &cases[i]);
    return check_done();
}

/* overlay_test [cuda] */
int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1)
        return on_device();
    rows_are_like_merged_weights(kernels_reference(), DTYPE_F32);
    rows_are_like_merged_weights(kernels_cpu(), DTYPE_F32);
    rows_are_like_merged_weights(kernels_cpu(), DTYPE_BF16);
    norms_are_each_row_s(kernels_reference(), DTYPE_F32);
    norms_are_each_row_s(kernels_cpu(), DTYPE_F32);
    norms_are_each_row_s(kernels_cpu(), DTYPE_BF16);
    others_are_left_alone();
    zeros_become_factors(kernels_reference());
    zeros_become_factors(kernels_cpu());
    wrong_factors_are_refused();
    return check_done();
}
