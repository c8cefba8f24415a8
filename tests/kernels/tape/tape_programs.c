#include "tests/kernels/tape/tape_programs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const uint64_t program_seed = 77, program_step = 3;

static uint64_t state = 1;

float program_random(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(state >> 32) * 0x1p-31f;
}

static void must(bool ok, const struct error *err) {
    if (ok)
        return;
    printf("the test cannot run: %s\n", err->message);
    exit(1);
}

/* Takes the next `count` numbers. With `fill`, they are random around `middle`. */
static float *take(struct program *p, int64_t count, float middle, double scale) {
    float *numbers = p->numbers + p->used;
    p->used += count;
    must(p->used <= PROGRAM_NUMBERS, &(struct error){ .message = "too few numbers" });
    for (int64_t i = 0; p->fill && i < count; i++)
        numbers[i] = middle + (float)scale * program_random();
    return numbers;
}

/* Puts a tensor into the device's memory, with the contents of `from`, or zeros if it is NULL. */
static struct tensor resident(struct program *p, struct tensor t, const void *from) {
    const struct device_memory *memory = p->kernels->memory;
    const size_t bytes = tensor_bytes(&t);
    struct error err = { 0 };
    must(p->block_count < 4 * MOST, &(struct error){ .message = "too many tensors" });
    must(memory->alloc(MEMORY_WEIGHTS, bytes, &t.data, &err) &&
             (from ? memory->upload(t.data, from, bytes, &err) : memory->zero(t.data, bytes, &err)),
        &err);
    p->block_bytes[p->block_count] = bytes;
    p->blocks[p->block_count++] = t.data;
    t.device = p->kernels->device;
    return t;
}

/* The same memory viewed as [ROWS][a][b][c]. */
static struct tensor view_4d(const struct tensor *t, int64_t a, int64_t b, int64_t c) {
    return (struct tensor){ t->data, t->dtype, t->device, 4, { ROWS, a, b, c } };
}

static struct variable *variable(
    struct program *p, enum tape_parameter_kind kind, const void *what, int64_t a, int64_t b) {
    struct variable *v = &p->variables[p->variable_count++];
    *v = (struct variable){
        .kind = kind, .what = what, .first = { p->used - a - b, p->used - b }, .count = { a, b }
    };
    return v;
}

static void linear(struct program *p, int64_t n, int64_t k, bool geglu) {
    struct error err = { 0 };
    const struct tensor weight = tensor_2d(
        take(p, n * k, 0, sqrt(3.0 / (double)k)), DTYPE_F32, n, k);
    const struct tensor bias = tensor_1d(take(p, n, 0, 0.2), DTYPE_F32, n);
    struct packed **w = &p->weights[p->weight_count++];
    must(linear_pack(p->kernels, "w", &weight, &bias, geglu, DTYPE_F32, w, &err), &err);
    variable(p, TAPE_WEIGHT, *w, n * k, n);
}

static void conv(struct program *p, enum conv_kind kind, int64_t n, int64_t k) {
    struct error err = { 0 };
    const int64_t side = kind == CONV_1X1 ? 1 : 3, count = n * k * side * side;
    const struct tensor weight = tensor_4d(
        take(p, count, 0, sqrt(3.0 / (double)(k * side * side))), DTYPE_F32, n, k, side, side);
    const struct tensor bias = tensor_1d(take(p, n, 0, 0.2), DTYPE_F32, n);
    struct packed **w = &p->weights[p->weight_count++];
    must(conv2d_pack(p->kernels, "w", &weight, &bias, kind, DTYPE_F32, w, &err), &err);
    struct variable *v = variable(p, TAPE_WEIGHT, *w, count, n);
    v->outer[0] = n;
    v->inner[0] = k;
    v->taps = side * side;
}

static void norm(struct program *p, int64_t c) {
    const struct tensor shape = tensor_1d(NULL, DTYPE_F32, c);
    p->gammas[p->norm_count] = resident(p, shape, take(p, c, 1, 0.3));
    p->betas[p->norm_count] = resident(p, shape, take(p, c, 0, 0.3));
    variable(p, TAPE_NORM, p->gammas[p->norm_count].data, c, c);
    p->norm_count++;
}

static void table(struct program *p, int64_t rows, int64_t c) {
    p->tables[p->table_count] = resident(
        p, tensor_2d(NULL, DTYPE_F32, rows, c), take(p, rows * c, 0, 1));
    variable(p, TAPE_TABLE, p->tables[p->table_count].data, rows * c, 0);
    p->table_count++;
}

static void input(struct program *p, struct tensor shape) {
    struct tensor *t = &p->inputs[p->input_count++];
    *t = resident(p, shape, take(p, tensor_elements(&shape), 0, 1.5));
    variable(p, TAPE_INPUT, t, tensor_elements(&shape), 0);
}

/* Adds a low-rank pair for outputs first .. first + n - 1 of the latest weight. */
static void pair(struct program *p, int64_t first, int64_t n, int64_t rank, float dropout) {
    struct error err = { 0 };
    const struct packed *w = p->weights[p->weight_count - 1];
    const int64_t side = w->is_conv && w->kind != CONV_1X1 ? 3 : 1, inner = w->k * side * side;
    const struct tensor down = tensor_4d(
        take(p, rank * inner, 0, 0.4), DTYPE_F32, rank, w->k, side, side);
    const struct tensor up = tensor_2d(take(p, n * rank, 0, 0.4), DTYPE_F32, n, rank);
    struct low_rank_pair **made = &p->pairs[p->pair_count++];
    must(low_rank_pair_create("pair", w, n, &down, &up, made, &err) &&
             (p->changes || row_overlay_create(&p->changes, &err)) &&
             row_overlay_add_low_rank(p->changes, w, first, *made, 0.8f, &err),
        &err);
    struct variable *v = variable(p, TAPE_PAIR, *made, rank * inner, n * rank);
    *v = (struct variable){ v->kind, v->what, { v->first[0], v->first[1] },
        { v->count[0], v->count[1] }, { rank, n }, { w->k, rank }, side * side, dropout };
}

static void output(struct program *p, struct tensor shape) {
    p->out = resident(p, shape, NULL);
}

void program_start(struct program *p, const struct program_case *of, const struct kernels *kernels,
    float *numbers, bool fill) {
    *p = (struct program){ .kernels = kernels, .numbers = numbers, .fill = fill };
    state = fill ? 1 : state;
    of->build(p);
    for (int i = 0; i < of->rows; i++)
        p->rows[i] = p->changes;
    p->overlay = (struct overlay){ p->rows, of->rows };
}

void program_finish(struct program *p) {
    row_overlay_destroy(p->changes);
    for (int i = 0; i < p->pair_count; i++)
        low_rank_pair_destroy(p->pairs[i]);
    for (int i = 0; i < p->weight_count; i++)
        packed_destroy(p->weights[i]);
    for (int i = 0; i < p->block_count; i++)
        p->kernels->memory->release(MEMORY_WEIGHTS, p->blocks[i], p->block_bytes[i]);
}

/* --- a resnet computed in place, with downsampling and upsampling --- */

static void build_resnet(struct program *p) {
    input(p, tensor_4d(NULL, DTYPE_F32, ROWS, 6, 5, 16));
    input(p, tensor_2d(NULL, DTYPE_F32, ROWS, 8));
    conv(p, CONV_3X3, 16, 16);
    pair(p, 0, 16, 3, 0);
    linear(p, 24, 8, false);
    conv(p, CONV_1X1, 24, 32);
    conv(p, CONV_3X3, 24, 32);
    pair(p, 0, 24, 5, 0);
    conv(p, CONV_3X3, 24, 24);
    conv(p, CONV_3X3_DOWN, 16, 24);
    pair(p, 0, 16, 17, 0);
    conv(p, CONV_3X3_UP, 8, 16);
    norm(p, 32);
    norm(p, 24);
    norm(p, 24);
    output(p, tensor_4d(NULL, DTYPE_F32, ROWS, 6, 5, 8));
}

static void group_norm(struct compute *c, const struct program *p, int index, bool silu,
    const struct tensor *x, struct tensor *y) {
    op_group_norm(c, &(struct group_norm_args){ .x = x,
                         .gamma = &p->gammas[index],
                         .beta = &p->betas[index],
                         .groups = 4,
                         .eps = 1e-5f,
                         .silu = silu,
                         .y = y });
}

static void conv_add(struct compute *c, const struct program *p, int index, const struct tensor *x,
    const struct tensor *row, const struct tensor *residual, struct tensor *y) {
    op_conv2d(c, &(struct conv2d_args){ x, p->weights[index], row, residual, y });
}

static void forward_resnet(struct compute *c, void *program) {
    const struct program *p = program;
    const size_t start = arena_mark(c->arena);
    struct tensor out = p->out;
    struct tensor skip = compute_tensor_4d(c, DTYPE_F32, ROWS, 6, 5, 16);
    struct tensor y = compute_tensor_4d(c, DTYPE_F32, ROWS, 6, 5, 24);
    conv_add(c, p, 0, &p->inputs[0], NULL, NULL, &skip);
    const size_t mark = arena_mark(c->arena);
    struct tensor cat = compute_tensor_4d(c, DTYPE_F32, ROWS, 6, 5, 32);
    op_concat(c, &(struct concat_args){ .a = &skip, .b = &p->inputs[0], .y = &cat });
    conv_add(c, p, 2, &cat, NULL, NULL, &y);
    struct tensor temb = compute_tensor_2d(c, DTYPE_F32, ROWS, 8);
    struct tensor row = compute_tensor_2d(c, DTYPE_F32, ROWS, 24);
    op_add(c, &(struct add_args){ .a = &p->inputs[1], .activation = ACTIVATION_SILU, .y = &temb });
    op_linear(c, &(struct linear_args){ .x = &temb, .weight = p->weights[1], .y = &row });
    struct tensor hidden = compute_tensor_4d(c, DTYPE_F32, ROWS, 6, 5, 24);
    group_norm(c, p, 0, true, &cat, &cat);
    conv_add(c, p, 3, &cat, &row, NULL, &hidden);
    group_norm(c, p, 1, true, &hidden, &hidden);
    conv_add(c, p, 4, &hidden, NULL, &y, &y);
    arena_release(c->arena, mark);
    struct tensor small = compute_tensor_4d(c, DTYPE_F32, ROWS, 3, 3, 16);
    group_norm(c, p, 2, false, &y, &y);
    conv_add(c, p, 5, &y, NULL, NULL, &small);
    conv_add(c, p, 6, &small, NULL, NULL, &out);
    arena_release(c->arena, start);
}

/* --- three transformer blocks over one tensor of keys and values --- */

#define BLOCKS 3
#define TOKENS 5
#define CHANNELS 16

static void build_transformer(struct program *p) {
    static const int32_t lengths[ROWS] = { 7, 4 };
    p->lengths = resident(p, tensor_1d(NULL, DTYPE_I32, ROWS), lengths);
    input(p, tensor_3d(NULL, DTYPE_F32, ROWS, TOKENS, CHANNELS));
    input(p, tensor_3d(NULL, DTYPE_F32, ROWS, 7, 12));
    linear(p, 2 * BLOCKS * CHANNELS, 12, false);
    pair(p, 2 * CHANNELS, CHANNELS, 4, 0);
    for (int i = 0; i < BLOCKS; i++) {
        linear(p, 3 * CHANNELS, CHANNELS, false);
        if (i != 1) {
            pair(p, 0, CHANNELS, 2, 0);
            pair(p, 2 * CHANNELS, CHANNELS, 3, i == 2 ? 0.4f : 0);
        }
        linear(p, CHANNELS, CHANNELS, false);
        linear(p, CHANNELS, CHANNELS, false);
        linear(p, 4 * CHANNELS, CHANNELS, true);
        if (i == 1)
            pair(p, 0, 4 * CHANNELS, 4, 0);
        linear(p, CHANNELS, 2 * CHANNELS, false);
        norm(p, CHANNELS);
        norm(p, CHANNELS);
    }
    output(p, tensor_3d(NULL, DTYPE_F32, ROWS, TOKENS, CHANNELS));
}

static void layer_norm(struct compute *c, const struct program *p, int index,
    const struct tensor *x, struct tensor *y) {
    op_layer_norm(c,
        &(struct layer_norm_args){
            .x = x, .gamma = &p->gammas[index], .beta = &p->betas[index], .eps = 1e-5f, .y = y });
}

static void linear_to(struct compute *c, const struct packed *w, const struct tensor *x,
    const struct tensor *residual, struct tensor *y) {
    op_linear(c, &(struct linear_args){ .x = x, .weight = w, .residual = residual, .y = y });
}

static void block(
    struct compute *c, const struct program *p, int i, const struct tensor *kv, struct tensor *s) {
    struct packed *const *w = p->weights + 1 + 5 * i;
    const size_t mark = arena_mark(c->arena);
    struct tensor normed = compute_tensor_3d(c, DTYPE_F32, ROWS, TOKENS, CHANNELS);
    const size_t inner = arena_mark(c->arena);
    struct tensor qkv = compute_tensor_3d(c, DTYPE_F32, ROWS, TOKENS, 3 * CHANNELS);
    layer_norm(c, p, 2 * i, s, &normed);
    linear_to(c, w[0], &normed, NULL, &qkv);
    struct attention_args attention = { .q = &qkv,
        .k = &qkv,
        .v = &qkv,
        .k_offset = CHANNELS,
        .v_offset = 2 * CHANNELS,
        .heads = 2,
        .head_dim = 8,
        .scale = 0.4f,
        .causal = i == 1,
        .y = &normed };
    op_attention(c, &attention);
    arena_release(c->arena, inner);
    linear_to(c, w[1], &normed, s, s);
    struct tensor query = compute_tensor_3d(c, DTYPE_F32, ROWS, TOKENS, CHANNELS);
    linear_to(c, w[2], s, NULL, &query);
    attention = (struct attention_args){ .q = &query,
        .k = kv,
        .v = kv,
        .k_offset = 2 * i * CHANNELS,
        .v_offset = (2 * i + 1) * CHANNELS,
        .heads = 2,
        .head_dim = 8,
        .scale = 0.4f,
        .y = &normed };
    attention.lengths = &p->lengths;
    op_attention(c, &attention);
    op_add(c, &(struct add_args){ .a = s, .b = &normed, .y = s });
    arena_release(c->arena, inner);
    struct tensor gated = compute_tensor_3d(c, DTYPE_F32, ROWS, TOKENS, 2 * CHANNELS);
    layer_norm(c, p, 2 * i + 1, s, &normed);
    linear_to(c, w[3], &normed, NULL, &gated);
    linear_to(c, w[4], &gated, s, s);
    arena_release(c->arena, mark);
}

static void forward_transformer(struct compute *c, void *program) {
    const struct program *p = program;
    const size_t start = arena_mark(c->arena);
    struct tensor out = p->out;
    struct tensor kv = compute_tensor_3d(c, DTYPE_F32, ROWS, 7, 2 * BLOCKS * CHANNELS);
    struct tensor s = compute_tensor_3d(c, DTYPE_F32, ROWS, TOKENS, CHANNELS);
    linear_to(c, p->weights[0], &p->inputs[1], NULL, &kv);
    op_convert(c, &(struct convert_args){ .x = &p->inputs[0], .y = &s });
    for (int i = 0; i < BLOCKS; i++)
        block(c, p, i, &kv, &s);
    op_convert(c, &(struct convert_args){ .x = &s, .y = &out });
    arena_release(c->arena, start);
}

/* --- the rest: tables, activations with residuals, layouts, rows, values used twice --- */

static void build_rest(struct program *p) {
    static const int32_t ids[ROWS * 4] = { 3, 0, 3, 5, 1, 1, 4, 0 };
    p->ids = resident(p, tensor_2d(NULL, DTYPE_I32, ROWS, 4), ids);
    table(p, 6, 8);
    table(p, 4, 8);
    linear(p, 8, 8, false);
    pair(p, 2, 5, 3, 0.25f);
    linear(p, 8, 8, false);
    linear(p, 16, 8, true);
    pair(p, 0, 16, 2, 0);
    linear(p, 8, 8, false);
    input(p, tensor_3d(NULL, DTYPE_F32, ROWS, 4, 8));
    norm(p, 8);
    output(p, tensor_3d(NULL, DTYPE_F32, ROWS, 4, 8));
}

static void forward_rest(struct compute *c, void *program) {
    const struct program *p = program;
    const size_t start = arena_mark(c->arena);
    struct tensor out = p->out; /* the caller's memory is overwritten too */
    op_embedding(c, &(struct embedding_args){ &p->ids, &p->tables[0], &p->tables[1], &out });
    struct tensor h = compute_tensor_3d(c, DTYPE_F32, ROWS, 4, 8);
    op_linear(c, &(struct linear_args){ .x = &out,
                     .weight = p->weights[0],
                     .activation = ACTIVATION_QUICK_GELU,
                     .residual = &p->inputs[0],
                     .y = &h });
    op_linear(c, &(struct linear_args){ .x = &out,
                     .weight = p->weights[1],
                     .activation = ACTIVATION_GELU,
                     .residual = &h,
                     .y = &h });
    op_add(c, &(struct add_args){ .a = &out, .b = &h, .activation = ACTIVATION_SILU, .y = &out });
    op_linear(c, &(struct linear_args){
                     .x = &out, .weight = p->weights[2], .residual = &p->inputs[0], .y = &h });
    op_linear(
        c, &(struct linear_args){ .x = &out, .weight = p->weights[2], .residual = &h, .y = &h });
    layer_norm(c, p, 0, &h, &out);
    /* each row alone, written to the other row's place */
    for (int i = 0; i < ROWS; i++) {
        struct compute one = *c;
        const struct overlay overlay = { p->rows, 1 };
        const struct tensor x = tensor_rows(&out, i, 1);
        struct tensor y = tensor_rows(&h, ROWS - 1 - i, 1);
        one.overlay = c->overlay ? &overlay : NULL;
        linear_to(&one, p->weights[3], &x, &y, &y);
        c->error = one.error;
    }
    struct tensor nchw = compute_tensor_4d(c, DTYPE_F32, ROWS, 8, 2, 2);
    struct tensor nhwc = compute_tensor_4d(c, DTYPE_F32, ROWS, 2, 2, 8);
    const struct tensor image = view_4d(&h, 2, 2, 8);
    op_convert(c, &(struct convert_args){ &image, LAYOUT_NHWC_TO_NCHW, &nchw });
    const struct tensor turned = view_4d(&nchw, 8, 2, 2);
    op_convert(c, &(struct convert_args){ &turned, LAYOUT_NCHW_TO_NHWC, &nhwc });
    op_convert(c, &(struct convert_args){ &image, LAYOUT_SAME, &nhwc });
    const struct tensor flat = tensor_view_3d(&nhwc, ROWS, 4, 8);
    struct tensor turned_flat = tensor_view_3d(&nchw, ROWS, 4, 8);
    op_dropout(c, &(struct dropout_args){ .x = &turned_flat,
                      .p = 0.3f,
                      .seed = &program_seed,
                      .step = &program_step,
                      .layer = 99,
                      .y = &turned_flat });
    op_add(c, &(struct add_args){ .a = &flat, .b = &turned_flat, .y = &out });
    op_add(c, &(struct add_args){ .a = &out, .b = &h, .y = &out });
    arena_release(c->arena, start);
}

/* --- many rows; each parameter has one call --- */

static void build_many_rows(struct program *p) {
    input(p, tensor_3d(NULL, DTYPE_F32, ROWS_MOST, 3, 8));
    linear(p, 12, 8, false);
    pair(p, 0, 12, 3, 0.25f);
    linear(p, 16, 12, true);
    pair(p, 0, 16, 2, 0.5f);
    output(p, tensor_3d(NULL, DTYPE_F32, ROWS_MOST, 3, 8));
}

static void forward_many_rows(struct compute *c, void *program) {
    const struct program *p = program;
    const size_t start = arena_mark(c->arena);
    struct tensor x = compute_tensor_3d(c, DTYPE_F32, ROWS_MOST, 3, 8), out = p->out;
    struct tensor h = compute_tensor_3d(c, DTYPE_F32, ROWS_MOST, 3, 12);
    op_convert(c, &(struct convert_args){ .x = &p->inputs[0], .y = &x });
    linear_to(c, p->weights[0], &x, NULL, &h);
    linear_to(c, p->weights[1], &h, NULL, &x);
    op_convert(c, &(struct convert_args){ .x = &x, .y = &out });
    arena_release(c->arena, start);
}

const struct program_case program_cases[] = { { "resnet", build_resnet, forward_resnet, ROWS },
    { "transformer", build_transformer, forward_transformer, ROWS },
    { "the rest", build_rest, forward_rest, ROWS },
    { "many rows", build_many_rows, forward_many_rows, ROWS_MOST } };
const struct program_case *const program_many_rows = &program_cases[3];
const int program_case_count = sizeof(program_cases) / sizeof(program_cases[0]);
