/* The oneDNN engine against the reference. On processors that multiply bf16, kcheck tests it
 * through the kernel table. Its f32 form runs on every processor and is tested here: every kind of
 * layer, different sizes one after another with one weight (which need new primitives and layouts),
 * residuals in place, and rows that do not depend on their batch. */
#include "kernels/compute/compute.h"
#include "kernels/cpu/layers.h"
#include "tests/check.h"

#include <stdlib.h>

static uint64_t seed = 1;
static double worst; /* largest error of the layer under test so far */

/* Random elements in the given shape; data owned by the caller. */
static struct tensor random_like(struct tensor t) {
    t.data = malloc(tensor_bytes(&t));
    for (int64_t i = 0; i < tensor_elements(&t); i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        ((float *)t.data)[i] = (float)(int64_t)(seed >> 33) / (float)(1u << 30) - 1.0f;
    }
    return t;
}

static struct tensor random_tensor(int rank, int64_t a, int64_t b, int64_t c, int64_t d) {
    return random_like(
        (struct tensor){ .dtype = DTYPE_F32, .rank = rank, .shape = { a, b, c, d } });
}

static double relative_error(const struct tensor *y, const struct tensor *truth) {
    const float *a = y->data, *b = truth->data;
    double error = 0, norm = 0;
    for (int64_t i = 0; i < tensor_elements(y); i++) {
        error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(error / norm);
}

static bool same_bits(const struct tensor *a, const struct tensor *b) {
    return memcmp(a->data, b->data, tensor_bytes(a)) == 0;
}

/* One random weight, packed for oneDNN and for the reference. */
struct weights {
    struct layer *layer;
    struct packed *reference;
};

/* Packs the weight, as a convolution's if it has rank 4. Frees weight and bias. Returns false on an
 * error. */
static bool weights_init(
    struct weights *w, struct tensor weight, struct tensor bias, enum conv_kind kind, bool geglu) {
    const struct kernels *truth = kernels_reference();
    const bool is_conv = weight.rank == 4;
    struct error err = { 0 };
    bool ok = dnnl_engine.pack(&weight, &bias, is_conv, kind, geglu, DTYPE_F32, &w->layer, &err);
    ok = ok &&
         (is_conv ? truth->conv2d_pack(&weight, &bias, kind, DTYPE_F32, &w->reference, &err)
                  : truth->linear_pack(&weight, &bias, geglu, DTYPE_F32, &w->reference, &err));
    CHECK(ok, "%s", err.message);
    free(weight.data);
    free(bias.data);
    return ok;
}

/* Prints the largest error of all cases with this weight. */
static void weights_finish(struct weights *w, const char *what) {
    printf("%s, %lld to %lld: relative error %.1e\n", what, (long long)w->reference->k,
        (long long)w->reference->n, worst);
    worst = 0;
    dnnl_engine.destroy(w->layer);
    kernels_reference()->packed_destroy(w->reference);
}

/* One case: the input, its residual, and the outputs of the reference, of oneDNN, and of oneDNN
 * with the last row alone. */
struct example {
    struct tensor x, residual, truth, y, alone; /* data owned */
    struct tensor last_x, last_residual;        /* borrowed: last rows of x and residual */
};

/* x and y give only shapes. With in_place, y starts as the residual. */
static struct example example_init(struct tensor x, struct tensor y, bool in_place) {
    struct example e = { .x = random_like(x), .y = random_like(y), .residual = random_like(y) };
    e.truth = e.alone = y;
    e.truth.data = malloc(tensor_bytes(&e.truth));
    e.alone.shape[0] = 1;
    e.alone.data = malloc(tensor_bytes(&e.alone));
    e.last_x = tensor_rows(&e.x, x.shape[0] - 1, 1);
    e.last_residual = tensor_rows(&e.residual, x.shape[0] - 1, 1);
    if (in_place)
        memcpy(e.y.data, e.residual.data, tensor_bytes(&y));
    return e;
}

/* Compares the results and frees the case. */
static void example_finish(struct example *e, const char *what) {
    char text[112];
    double error = relative_error(&e->y, &e->truth);
    worst = error > worst ? error : worst;
    CHECK(error < 1e-6, "%s of %s: %.2e", what, tensor_describe(&e->x, text, sizeof(text)), error);
    struct tensor last_y = tensor_rows(&e->y, e->y.shape[0] - 1, 1);
    CHECK(same_bits(&last_y, &e->alone), "%s: the last row alone has other bits", what);
    free(e->x.data);
    free(e->residual.data);
    free(e->truth.data);
    free(e->y.data);
    free(e->alone.data);
}

static void linear_case(struct layer *layer, struct packed *reference, struct tensor x,
    enum activation activation, bool in_place) {
    struct error err = { 0 };
    struct tensor y = x;
    y.shape[2] = reference->geglu ? reference->n / 2 : reference->n;
    struct example e = example_init(x, y, in_place);
    struct linear_args args = { .x = &e.x,
        .weight = reference,
        .activation = activation,
        .residual = &e.residual,
        .y = &e.truth };
    CHECK(kernels_reference()->linear(&args, &err), "%s", err.message);
    args.residual = in_place ? &e.y : &e.residual;
    args.y = &e.y;
    CHECK(dnnl_engine.linear(layer, &args, &err), "%s", err.message);
    args.x = &e.last_x;
    args.residual = &e.last_residual;
    args.y = &e.alone;
    CHECK(dnnl_engine.linear(layer, &args, &err), "%s", err.message);
    example_finish(&e, "linear");
}

static void linear_matches_reference(int64_t k, int64_t n, bool geglu) {
    static const int64_t tokens[] = { 77, 1, 300, 5, 64, 3, 2, 9, 10, 11, 12, 77 };
    struct tensor weight = random_tensor(2, n, k, 0, 0), bias = random_tensor(1, n, 0, 0, 0);
    struct weights w;
    if (!weights_init(&w, weight, bias, CONV_1X1, geglu))
        return;
    for (size_t i = 0; i < sizeof(tokens) / sizeof(*tokens); i++)
        linear_case(w.layer, w.reference,
            tensor_3d(NULL, DTYPE_F32, 1 + (int64_t)i % 3, tokens[i], k),
            geglu ? ACTIVATION_NONE : (enum activation)(i % 4), i % 2);
    weights_finish(&w, geglu ? "geglu" : "linear");
}

static const char *const kind_names[] = { "1x1", "3x3", "3x3 down", "3x3 down right", "3x3 up" };

static void conv_case(
    struct layer *layer, struct packed *reference, struct tensor x, bool in_place) {
    struct error err = { 0 };
    int64_t rows = x.shape[0];
    struct tensor y = tensor_4d(NULL, DTYPE_F32, rows, conv_out_size(reference->kind, x.shape[1]),
        conv_out_size(reference->kind, x.shape[2]), reference->n);
    struct example e = example_init(x, y, in_place);
    struct tensor row_add = random_tensor(2, rows, reference->n, 0, 0);
    struct tensor last_add = tensor_rows(&row_add, rows - 1, 1);
    struct conv2d_args args = {
        .x = &e.x, .weight = reference, .row_add = &row_add, .residual = &e.residual, .y = &e.truth
    };
    CHECK(kernels_reference()->conv2d(&args, &err), "%s", err.message);
    args.residual = in_place ? &e.y : &e.residual;
    args.y = &e.y;
    CHECK(dnnl_engine.conv2d(layer, &args, &err), "%s", err.message);
    args = (struct conv2d_args){
        .x = &e.last_x, .row_add = &last_add, .residual = &e.last_residual, .y = &e.alone
    };
    CHECK(dnnl_engine.conv2d(layer, &args, &err), "%s", err.message);
    example_finish(&e, kind_names[reference->kind]);
    free(row_add.data);
}

static void conv_matches_reference(enum conv_kind kind, int64_t k, int64_t n) {
    int64_t size = kind == CONV_1X1 ? 1 : 3;
    struct tensor weight = random_tensor(4, n, k, size, size);
    struct tensor bias = random_tensor(1, n, 0, 0, 0);
    struct weights weights;
    if (!weights_init(&weights, weight, bias, kind, false))
        return;
    weights.layer->packed.kind = kind;
    for (int64_t h = 4; h < 30; h += 11)
        for (int64_t w = 5; w < 40; w += 17)
            conv_case(weights.layer, weights.reference,
                tensor_4d(NULL, DTYPE_F32, 1 + h % 3, h, w, k), w % 2);
    weights_finish(&weights, kind_names[kind]);
}

int main(void) {
    linear_matches_reference(70, 100, false);
    linear_matches_reference(320, 64, false);
    linear_matches_reference(64, 200, true);
    static const enum conv_kind kinds[] = { CONV_1X1, CONV_3X3, CONV_3X3_DOWN,
        CONV_3X3_DOWN_RIGHT };
    for (int i = 0; i < 4; i++) {
        conv_matches_reference(kinds[i], 32, 48);
        conv_matches_reference(kinds[i], 4, 20);
    }
    return check_done();
}
