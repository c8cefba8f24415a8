/* Every tile of the CUDA products, and sums split into parts, against the reference: linear layers
 * and convolutions of awkward sizes, with each candidate in turn. Also checks that the path and the
 * number of parts chosen without tuning do not depend on the batch. */
#include "kernels/compute/compute.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/pack.h"
#include "tests/kernels/device_tensors.h"
#include "tests/kernels/narrow.h"

/* One operation: a conv2d if weight has rank 4, otherwise a linear layer. */
struct product {
    const char *name;
    enum conv_kind kind;
    enum activation activation;
    bool geglu;
    struct tensor x, weight, bias, row_add, residual, y; /* host */
    /* Used instead of row_add and residual: a shortcut, its weight of rank 4 and its bias. */
    struct tensor shortcut, more_weight, more_bias;
};

static void product_release(struct product *p) {
    free(p->x.data);
    free(p->weight.data);
    free(p->bias.data);
    free(p->row_add.data);
    free(p->residual.data);
    free(p->y.data);
    free(p->shortcut.data);
    free(p->more_weight.data);
    free(p->more_bias.data);
}

/* Packs the shortcut's weight; NULL if there is no shortcut. */
static struct packed *packed_more(const struct product *p, const struct kernels *table) {
    struct packed *out = NULL;
    struct error err = { 0 };
    if (p->shortcut.data)
        CHECK(conv2d_pack(table, "shortcut", &p->more_weight, &p->more_bias, CONV_1X1, p->x.dtype,
                  &out, &err),
            "%s", err.message);
    return out;
}

static struct packed *packed(const struct product *p, const struct kernels *table) {
    struct packed *out = NULL;
    struct error err = { 0 };
    bool ok =
        p->weight.rank == 4
            ? conv2d_pack(table, p->name, &p->weight, &p->bias, p->kind, p->x.dtype, &out, &err)
            : linear_pack(table, p->name, &p->weight, &p->bias, p->geglu, p->x.dtype, &out, &err);
    CHECK(ok, "%s", err.message);
    return out;
}

/* The arguments in device memory, with the packed weight. */
struct call {
    struct tensor x, row_add, residual, y, shortcut;
    struct linear_args linear;
    struct conv2d_args conv2d;
};

static struct tensor on_device_if_any(const struct tensor *t) {
    return t->data ? on_device(t) : (struct tensor){ 0 };
}

/* more: the shortcut's packed weight, or NULL. */
static void call_init(struct call *c, const struct product *p, const struct packed *weight,
    const struct packed *more) {
    c->x = on_device(&p->x);
    c->residual = on_device_if_any(&p->residual);
    c->y = on_device(&p->y);
    c->row_add = on_device_if_any(&p->row_add);
    c->shortcut = on_device_if_any(&p->shortcut);
    c->linear = (struct linear_args){ &c->x, weight, p->activation, &c->residual, &c->y };
    c->conv2d = (struct conv2d_args){ .x = &c->x,
        .weight = weight,
        .row_add = c->row_add.data ? &c->row_add : NULL,
        .residual = c->residual.data ? &c->residual : NULL,
        .y = &c->y,
        .shortcut = more ? &c->shortcut : NULL,
        .shortcut_weight = more };
}

static void call_finish(struct call *c) {
    struct tensor *const all[] = { &c->x, &c->residual, &c->y, &c->row_add, &c->shortcut };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i]->data)
            device_release(all[i]);
}

/* Returns some rows of a tensor, or NULL if it has no data. */
static const struct tensor *rows_if_any(
    const struct tensor *t, int64_t first, int64_t count, struct tensor *rows) {
    if (!t->data)
        return NULL;
    *rows = tensor_rows(t, first, count);
    return rows;
}

/* Runs the candidate on the rows from `first` on. Returns their results, valid until the next call,
 * or NULL. */
static const void *run(const struct product *p, struct call *c,
    const struct gemm_candidate *candidate, int64_t first) {
    struct error err = { 0 };
    int64_t count = p->x.shape[0] - first;
    struct tensor x = tensor_rows(&c->x, first, count), y = tensor_rows(&c->y, first, count);
    struct tensor residual, row_add, shortcut;
    struct linear_args linear = { &x, c->linear.weight, p->activation,
        rows_if_any(&c->residual, first, count, &residual), &y };
    struct conv2d_args conv2d = c->conv2d;
    conv2d.x = &x;
    conv2d.y = &y;
    conv2d.row_add = rows_if_any(&c->row_add, first, count, &row_add);
    conv2d.residual = linear.residual;
    conv2d.shortcut = rows_if_any(&c->shortcut, first, count, &shortcut);
    bool ok = cuda->memory->upload(c->y.data, p->y.data, tensor_bytes(&p->y), &err) &&
              (p->weight.rank == 4 ? gemm_conv2d_with(candidate, &conv2d, &err)
                                   : gemm_linear_with(candidate, &linear, &err));
    const void *got = ok ? cuda->memory->view(y.data, tensor_bytes(&y), &err) : NULL;
    CHECK(got, "%s", err.message);
    return got;
}

/* Tries the candidate on all rows, and on the last one alone; returns the distance to `want`. */
static double try_candidate(const struct product *p, struct call *c,
    const struct gemm_candidate *candidate, const struct tensor *want) {
    struct tensor all = p->y, last = tensor_rows(&p->y, p->y.shape[0] - 1, 1);
    const void *got = run(p, c, candidate, 0);
    if (!got)
        return NAN;
    all.data = malloc(tensor_bytes(&all));
    memcpy(all.data, got, tensor_bytes(&all));
    double error = distance(&all, want);
    char name[64];
    got = run(p, c, candidate, p->y.shape[0] - 1);
    CHECK(
        got && memcmp(got, tensor_rows(&all, p->y.shape[0] - 1, 1).data, tensor_bytes(&last)) == 0,
        "%s by %s: other bits in a row that is computed alone", p->name,
        gemm_candidate_name(candidate, name, sizeof(name)));
    free(all.data);
    return error;
}

/* more: the shortcut's weight, or NULL. Its result is computed first and added as a residual. */
static void reference(struct product *p, struct packed *weight, struct packed *more) {
    struct compute c = { .kernels = kernels_reference() };
    if (more)
        op_conv2d(&c, &(struct conv2d_args){ .x = &p->shortcut, .weight = more, .y = &p->y });
    if (p->weight.rank == 4)
        op_conv2d(&c, &(struct conv2d_args){ &p->x, weight, p->row_add.data ? &p->row_add : NULL,
                          more ? &p->y : &p->residual, &p->y });
    else
        op_linear(&c, &(struct linear_args){ &p->x, weight, p->activation, &p->residual, &p->y });
    CHECK(compute_ok(&c), "%s", c.error.message);
}

/* Tries all tiles of all paths, with one part and with three. */
static void check_product(struct product *p) {
    /* CUDA's upsampling adds weights for each phase and rounds the sums once; the reference rounds
     * each weight. Also, the reference rounds the shortcut's result separately. */
    const bool sums = (p->weight.rank == 4 && p->kind == CONV_3X3_UP) || p->shortcut.data;
    const double allowed = (p->x.dtype == DTYPE_F16 ? 1.3e-4 : 1e-3) * (sums ? 3 : 1);
    struct packed *ours = packed(p, cuda), *theirs = packed(p, kernels_reference());
    struct packed *our_more = packed_more(p, cuda),
                  *their_more = packed_more(p, kernels_reference());
    struct tensor want = p->y;
    reference(p, theirs, their_more);
    struct call c;
    call_init(&c, p, ours, our_more);
    /* Every candidate starts with zeros in y, so results that it does not write are noticed. */
    p->y.data = calloc(1, tensor_bytes(&p->y));
    const struct gemm_shape shape = p->weight.rank == 4 ? gemm_shape_of_conv2d(&c.conv2d)
                                                        : gemm_shape_of_linear(&c.linear);
    int tried = 0;
    double worst = 0;
    for (int path = 0; path < GEMM_PATHS; path++) {
        int count;
        (void)gemm_tiles((enum gemm_path)path, &count);
        for (int i = 0; i < 2 * count; i++) {
            struct gemm_candidate candidate = { (enum gemm_path)path, i / 2, i % 2 ? 3 : 1 };
            char name[64];
            if (!gemm_can(&shape, &candidate))
                continue;
            double error = try_candidate(p, &c, &candidate, &want);
            CHECK(error <= allowed, "%s by %s: %.3g, allowed %.3g", p->name,
                gemm_candidate_name(&candidate, name, sizeof(name)), error, allowed);
            worst = error > worst ? error : worst;
            tried++;
        }
    }
    printf(
        "%s: %d candidates, worst distance %.3g, allowed %.3g\n", p->name, tried, worst, allowed);
    CHECK(tried > 2, "%s: %d candidates", p->name, tried);
    call_finish(&c);
    packed_destroy(ours);
    packed_destroy(theirs);
    packed_destroy(our_more);
    packed_destroy(their_more);
    free(want.data);
    product_release(p);
}

static void check_linear(const char *name, enum dtype dtype, int64_t m, int64_t n, int64_t k,
    enum activation activation, bool geglu) {
    struct product p = { .name = name, .activation = activation, .geglu = geglu };
    p.x = random_tensor(tensor_3d(NULL, dtype, 2, m, k), 1);
    p.weight = random_tensor(tensor_2d(NULL, DTYPE_F32, n, k), 0.1f);
    p.bias = random_tensor(tensor_1d(NULL, DTYPE_F32, n), 1);
    p.residual = random_tensor(tensor_3d(NULL, dtype, 2, m, geglu ? n / 2 : n), 1);
    p.y = random_tensor(p.residual, 1);
    check_product(&p);
}

static void check_conv2d(const char *name, enum dtype dtype, enum conv_kind kind, int64_t h,
    int64_t w, int64_t c_in, int64_t c_out, int64_t shorter) {
    struct product p = { .name = name, .kind = kind };
    int64_t taps = kind == CONV_1X1 ? 1 : 3;
    p.x = random_tensor(tensor_4d(NULL, dtype, 2, h, w, c_in), 1);
    p.weight = random_tensor(tensor_4d(NULL, DTYPE_F32, c_out, c_in, taps, taps), 0.1f);
    p.bias = random_tensor(tensor_1d(NULL, DTYPE_F32, c_out), 1);
    p.row_add = random_tensor(tensor_2d(NULL, dtype, 2, c_out), 1);
    p.residual = random_tensor(tensor_4d(NULL, dtype, 2, conv_out_size(kind, h) - shorter,
                                   conv_out_size(kind, w) - shorter, c_out),
        1);
    p.y = random_tensor(p.residual, 1);
    check_product(&p);
}

/* A convolution with a shortcut, as one product: its sum continues from the taps to the channels of
 * another image, and no step of the sum contains some of both. Candidates that cannot do this
 * compute two products. */
static void check_shortcut(const char *name, enum dtype dtype, int64_t h, int64_t w, int64_t c_in,
    int64_t c_shortcut, int64_t c_out) {
    struct product p = { .name = name, .kind = CONV_3X3 };
    p.x = random_tensor(tensor_4d(NULL, dtype, 2, h, w, c_in), 1);
    p.weight = random_tensor(tensor_4d(NULL, DTYPE_F32, c_out, c_in, 3, 3), 0.1f);
    p.bias = random_tensor(tensor_1d(NULL, DTYPE_F32, c_out), 1);
    p.shortcut = random_tensor(tensor_4d(NULL, dtype, 2, h, w, c_shortcut), 1);
    p.more_weight = random_tensor(tensor_4d(NULL, DTYPE_F32, c_out, c_shortcut, 1, 1), 0.3f);
    p.more_bias = random_tensor(tensor_1d(NULL, DTYPE_F32, c_out), 3);
    p.y = random_tensor(tensor_4d(NULL, dtype, 2, h, w, c_out), 1);
    check_product(&p);
}

/* Whether some candidates add their parts in clusters of more than 8 blocks. On the emulator this
 * depends on the environment variable for its largest cluster. */
static bool large_clusters_fit(void) {
    const char *largest = getenv("CUDA_EMULATOR_LARGEST_CLUSTER");
    return gemm_hopper_has(0, &(struct gemm_shape){ .dtype = DTYPE_F16, .k = 64 }) &&
           (!largest || atoi(largest) > 8);
}

/* Parts are added in order, however many there are and whichever blocks add them. The first part is
 * 2^33, the last but one is -2^33, the last is 1, so the result is 1. If 1 were added to a large
 * part first, it would be lost. */
static void parts_keep_their_order(void) {
    static const int splits[] = { 3, 5, 8 };
    for (size_t i = 0; i < sizeof(splits) / sizeof(splits[0]); i++) {
        enum { TOKENS = 3, N = 24, PART = 4 * 64 };
        const int parts = splits[i], k = parts * PART;
        struct product p = { .name = "parts in order" };
        p.x = random_tensor(tensor_3d(NULL, DTYPE_F16, 1, TOKENS, k), 0);
        p.weight = random_tensor(tensor_2d(NULL, DTYPE_F32, N, k), 0);
        p.bias = random_tensor(tensor_1d(NULL, DTYPE_F32, N), 0);
        p.residual = random_tensor(tensor_3d(NULL, DTYPE_F16, 1, TOKENS, N), 0);
        p.y = random_tensor(p.residual, 0);
        for (int at = 0; at < TOKENS * k; at++)
            ((uint16_t *)p.x.data)[at] = at % k / PART == parts - 1 ? f32_to_f16(1.0f / PART)
                                                                    : f32_to_f16(1024.0f);
        for (int at = 0; at < N * k; at++) {
            const int part = at % k / PART;
            ((float *)p.weight.data)[at] = part == 0           ? 32768.0f
                                           : part == parts - 2 ? -32768.0f
                                           : part == parts - 1 ? 1.0f
                                                               : 0.0f;
        }
        struct packed *weight = packed(&p, cuda);
        struct call c;
        call_init(&c, &p, weight, NULL);
        const struct gemm_shape shape = gemm_shape_of_linear(&c.linear);
        int tried = 0, clustered = 0, large = 0;
        for (int path = 0; path < GEMM_PATHS; path++) {
            int count;
            (void)gemm_tiles((enum gemm_path)path, &count);
            for (int tile = 0; tile < count; tile++) {
                const struct gemm_candidate candidate = { (enum gemm_path)path, tile, parts };
                if (!gemm_can(&shape, &candidate))
                    continue;
                const uint16_t *got = run(&p, &c, &candidate, 0);
                for (int at = 0; got && at < TOKENS * N; at++) {
                    const float y = f16_to_f32(got[at]);
                    char name[64];
                    CHECK(y == 1.0f, "%s: output %d is %g instead of 1",
                        gemm_candidate_name(&candidate, name, sizeof(name)), at, y);
                    if (y != 1.0f)
                        break;
                }
                tried++;
                const bool is_clustered = gemm_is_clustered(&candidate);
                clustered += is_clustered;
                large += is_clustered &&
                         gemm_tiles(candidate.path, &count)[tile].cluster * parts > 8;
            }
        }
        printf("%d parts in order: %d candidates, %d in clusters, %d of more than 8 blocks\n",
            parts, tried, clustered, large);
        CHECK((large > 0) == large_clusters_fit(), "%d in large clusters", large);
        CHECK(tried > 1, "%d candidates", tried);
        CHECK((clustered > 0) == GEMM_PARTS_MEET(cuda_get_properties()->code), "%d in clusters",
            clustered);
        call_finish(&c);
        packed_destroy(weight);
        product_release(&p);
    }
}

/* The shapes of SD-1.5's UNet at 512 x 512: one row and many rows use the same path and parts, and
 * the choice made without tuning is among the candidates. */
static void the_batch_does_not_change_the_sum(void) {
    static const int64_t sizes[][3] = { { 64, 320, 320 }, { 64, 320, 960 }, { 32, 640, 640 },
        { 32, 640, 1920 }, { 16, 1280, 1280 }, { 16, 1280, 2560 }, { 8, 1280, 1280 } };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct gemm_shape s = { .dtype = DTYPE_F16,
            .is_conv = true,
            .kind = CONV_3X3,
            .n = sizes[i][1],
            .k = sizes[i][2],
            .h = sizes[i][0],
            .w = sizes[i][0],
            .h_out = sizes[i][0],
            .w_out = sizes[i][0] };
        struct gemm_candidate one[GEMM_MAX_CANDIDATES], many[GEMM_MAX_CANDIDATES];
        int count = gemm_candidates(&s, 2, one);
        for (int64_t rows = 1; rows <= 16; rows++) {
            gemm_candidates(&s, rows, many);
            CHECK(many[0].path == one[0].path && many[0].split == one[0].split,
                "%lld rows: path %d split %d", (long long)rows, many[0].path, many[0].split);
        }
        char name[64];
        printf("%lld x %lld, %lld to %lld: %d candidates, static choice %s\n", (long long)s.h,
            (long long)s.w, (long long)s.k, (long long)s.n, count,
            gemm_candidate_name(&one[0], name, sizeof(name)));
        CHECK(one[count - 1].path == GEMM_SIMT, "the plainest is not there");
        CHECK(gemm_select(&s, &one[count - 1]), "the plainest cannot be selected");
    }
    gemm_select_none();
}

/* usage: gemm_test [parts]; with an argument only the order of parts is tested */
int main(int argc, char **argv) {
    (void)argv;
    const int missing = device_open();
    if (missing)
        return missing;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1) {
        parts_keep_their_order();
        return check_done();
    }
    check_linear("linear f16", DTYPE_F16, 37, 184, 840, ACTIVATION_GELU, false);
    check_linear("geglu f16", DTYPE_F16, 33, 176, 776, ACTIVATION_NONE, true);
    check_conv2d("conv 3x3 f16", DTYPE_F16, CONV_3X3, 5, 7, 88, 72, 0);
    check_conv2d("conv down f16", DTYPE_F16, CONV_3X3_DOWN, 5, 8, 88, 24, 0);
    check_conv2d("conv up f16", DTYPE_F16, CONV_3X3_UP, 3, 5, 200, 40, 0);
    check_conv2d("conv up shorter f16", DTYPE_F16, CONV_3X3_UP, 4, 3, 88, 40, 1);
    if (cuda->weight_dtypes >> DTYPE_BF16 & 1)
        check_conv2d("conv 3x3 bf16", DTYPE_BF16, CONV_3X3, 5, 7, 88, 72, 0);
    check_shortcut("shortcut f16", DTYPE_F16, 5, 7, 88, 72, 72);
    check_shortcut("longer shortcut f16", DTYPE_F16, 9, 4, 64, 600, 40);
    check_shortcut("odd shortcut f16", DTYPE_F16, 5, 3, 64, 75, 40);
    if (cuda->weight_dtypes >> DTYPE_BF16 & 1)
        check_shortcut("shortcut bf16", DTYPE_BF16, 8, 6, 128, 192, 88);
    parts_keep_their_order();
    the_batch_does_not_change_the_sum();
    return check_done();
}
