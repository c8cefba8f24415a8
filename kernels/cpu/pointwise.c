/* Elementwise operations (add, convert, embedding), and the table of functions. */
#include "kernels/cpu/simd.h"

/* Below this many elements a second thread costs more than it saves. */
#define PARALLEL_MIN 16384
/* Elements that one thread takes at a time. */
#define PIECE 8192

INLINE void add_piece(const struct add_args *args, int64_t from, int64_t to, enum dtype dtype) {
    const void *a = args->a->data, *b = args->b ? args->b->data : NULL;
    for (int64_t i = from; i < to; i += LANES) {
        int64_t count = to - i;
        if (count >= LANES) {
            vf sum = load_as(a, dtype, i);
            if (b)
                sum += load_as(b, dtype, i);
            store_as(args->y->data, dtype, i, vf_activate(args->activation, sum));
        } else {
            vf sum = load_some(a, dtype, i, count);
            if (b)
                sum += load_some(b, dtype, i, count);
            store_some(args->y->data, dtype, i, count, vf_activate(args->activation, sum));
        }
    }
}

bool NAME(add)(const struct add_args *args, struct error *err) {
    (void)err;
    int64_t n = tensor_elements(args->a), pieces = (n + PIECE - 1) / PIECE;
#pragma omp parallel for if (n >= PARALLEL_MIN)
    for (int64_t piece = 0; piece < pieces; piece++) {
        int64_t from = piece * PIECE, to = from + PIECE < n ? from + PIECE : n;
        if (args->a->dtype == DTYPE_F32)
            add_piece(args, from, to, DTYPE_F32);
        else
            add_piece(args, from, to, DTYPE_BF16);
    }
    return true;
}

/* y[row][t] = table[ids[row][t]], converted to y's dtype. */
static void gather(const struct embedding_args *args) {
    const int32_t *ids = args->ids->data;
    const int64_t tokens = tensor_elements(args->ids), c = args->table->shape[1];
    const enum dtype from = args->table->dtype, to = args->y->dtype;
    const size_t from_bytes = dtype_size(from) * (size_t)c, to_bytes = dtype_size(to) * (size_t)c;
#pragma omp parallel for if (tokens * c >= PARALLEL_MIN)
    for (int64_t i = 0; i < tokens; i++) {
        const char *line = (const char *)args->table->data + (size_t)ids[i] * from_bytes;
        convert_elements((char *)args->y->data + (size_t)i * to_bytes, to, line, from, c);
    }
}

bool NAME(embedding)(const struct embedding_args *args, struct error *err) {
    (void)err;
    if (!args->positions) {
        gather(args);
        return true;
    }
    const int32_t *ids = args->ids->data;
    int64_t t = args->ids->shape[1], tokens = args->ids->shape[0] * t;
    int64_t c = args->table->shape[1];
    enum dtype from = args->table->dtype, position = args->positions->dtype, to = args->y->dtype;
#pragma omp parallel for if (tokens * c >= PARALLEL_MIN)
    for (int64_t i = 0; i < tokens; i++) {
        for (int64_t j = 0; j < c; j += LANES) {
            int64_t count = c - j < LANES ? c - j : LANES;
            int64_t a = ids[i] * c + j, b = i % t * c + j;
            if (count == LANES)
                store_as(args->y->data, to, i * c + j,
                    load_as(args->table->data, from, a) +
                        load_as(args->positions->data, position, b));
            else
                store_some(args->y->data, to, i * c + j, count,
                    load_some(args->table->data, from, a, count) +
                        load_some(args->positions->data, position, b, count));
        }
    }
    return true;
}

/* Converts one stripe of pixels of one image between NCHW and NHWC. */
static void convert_stripe(const struct convert_args *args, int64_t row, int64_t channels,
    int64_t pixels, int64_t from, int64_t to) {
    bool to_nhwc = args->layout == LAYOUT_NCHW_TO_NHWC;
    const char *x = args->x->data;
    char *y = args->y->data;
    size_t x_size = dtype_size(args->x->dtype), y_size = dtype_size(args->y->dtype);
    for (int64_t c = 0; c < channels; c++) {
        for (int64_t i = from; i < to; i++) {
            size_t nhwc = (size_t)((row * pixels + i) * channels + c);
            size_t nchw = (size_t)((row * channels + c) * pixels + i);
            convert_elements(y + (to_nhwc ? nhwc : nchw) * y_size, args->y->dtype,
                x + (to_nhwc ? nchw : nhwc) * x_size, args->x->dtype, 1);
        }
    }
}

bool NAME(convert)(const struct convert_args *args, struct error *err) {
    (void)err;
    int64_t n = tensor_elements(args->x);
    if (args->layout == LAYOUT_SAME) {
        int64_t pieces = (n + PIECE - 1) / PIECE;
        size_t x_size = dtype_size(args->x->dtype), y_size = dtype_size(args->y->dtype);
#pragma omp parallel for if (n >= PARALLEL_MIN)
        for (int64_t piece = 0; piece < pieces; piece++) {
            int64_t from = piece * PIECE, count = n - from < PIECE ? n - from : PIECE;
            convert_elements((char *)args->y->data + (size_t)from * y_size, args->y->dtype,
                (const char *)args->x->data + (size_t)from * x_size, args->x->dtype, count);
        }
        return true;
    }
    const int64_t *s = args->x->shape;
    bool to_nhwc = args->layout == LAYOUT_NCHW_TO_NHWC;
    int64_t channels = to_nhwc ? s[1] : s[3], pixels = to_nhwc ? s[2] * s[3] : s[1] * s[2];
    const int64_t stripe = 256; /* pixels; a stripe of few channels fits in the cache */
    int64_t stripes = (pixels + stripe - 1) / stripe;
#pragma omp parallel for if (n >= PARALLEL_MIN)
    for (int64_t item = 0; item < s[0] * stripes; item++) {
        int64_t row = item / stripes, from = item % stripes * stripe;
        convert_stripe(
            args, row, channels, pixels, from, from + stripe < pixels ? from + stripe : pixels);
    }
    return true;
}

void NAME(exp)(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i + LANES <= n; i += LANES)
        store(y + i, vf_exp(load(x + i)));
    for (int64_t i = n / LANES * LANES; i < n; i++)
        store_some(y, DTYPE_F32, i, 1, vf_exp(splat(x[i])));
}

void NAME(exp2)(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        store_some(y, DTYPE_F32, i, 1, vf_exp2(splat(x[i])));
}

void NAME(erf)(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        store_some(y, DTYPE_F32, i, 1, vf_erf(splat(x[i])));
}

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

#define ENTRY(operation) .operation = NAME(operation),
const struct simd NAME(table) = { .name = TEXT(ISA),
    .exp = NAME(exp),
    .exp2 = NAME(exp2),
    .erf = NAME(erf),
    SIMD_OPERATIONS(ENTRY) };
