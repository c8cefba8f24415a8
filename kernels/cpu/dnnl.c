/* The oneDNN engine: weights and activations of one dtype, bf16 (or f32, which the tests use on
 * processors without bf16 arithmetic). Every call of oneDNN is in this file; the parts that differ
 * between its versions 2 and 3 are the few functions under "versions".
 *
 * Row independence: a primitive computes one row of the batch (its tokens, or one image) and is
 * called once per row. Primitives are made at the first call with a shape and kept with the
 * weight, CACHE_MAX of them. The weight is laid out once, for a typical shape. If another shape
 * wants another layout, the weight is laid out anew and the kept primitives are destroyed.
 *
 * Gradients of the input are computed with the same weights. Each call copies them to scratch
 * memory in the layout that the gradient needs. This copy is not kept, because the copies of all
 * layers would be as large as the model.
 *
 * A mutex allows one call at a time, because each call sets the addresses in the kept primitives'
 * memories.
 */
#include "kernels/cpu/layers.h"

#include "base/limits.h"
#include "kernels/available.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/scratch.h"

#include <oneapi/dnnl/dnnl.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64
#define CACHE_MAX 8
#define TYPICAL_SIZE 32 /* height and width; tokens: its square */
#define GEGLU_ROWS 128  /* tokens per product of a GEGLU layer */
#define MEMORIES 5      /* source, weights, bias, destination, scratchpad */

/* What a primitive computes: `h` x `w` pixels, or `h` tokens. */
struct shape {
    int64_t h, w;
    enum activation activation;
    bool sum;  /* adds to the destination */
    bool back; /* computes dx from dy; h and w are those of dx */
};

struct cached {
    struct shape shape;
    dnnl_primitive_t primitive;
    dnnl_memory_t memories[MEMORIES];
    size_t scratch_bytes;
    /* back: */
    dnnl_primitive_t reorder; /* puts the weights in the primitive's layout */
    dnnl_memory_t turned;     /* its source: l->weights (products: transposed) */
    size_t weight_bytes;      /* bytes of the reordered weights */
    struct cached *next;
};

/* What a convolution reads: kernel x kernel pixels every `stride`, with `top` and `left` zeros
 * before the first pixel. Enough zeros follow the last pixel that the output of an input of `in`
 * pixels has size(in) pixels. */
struct geometry {
    int64_t kernel; /* 0: a matrix product (1x1 convolutions too) */
    int64_t stride, top, left;
    int64_t (*size)(int64_t in);
};

struct dnnl_layer {
    struct layer layer;
    struct geometry geometry;
    int64_t n, k;
    bool geglu;
    enum dtype dtype;
    float *bias;          /* [n], owned */
    void *weights;        /* owned */
    dnnl_memory_t layout; /* the layout of `weights` */
    struct cached *cache; /* newest first */
};

static struct {
    pthread_mutex_t mutex;
    dnnl_engine_t engine; /* made at the first pack, never destroyed */
    dnnl_stream_t stream;
} shared = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static bool check(dnnl_status_t status, const char *what, struct error *err) {
    if (status == dnnl_success)
        return true;
    enum error_code code = status == dnnl_out_of_memory ? ERROR_NO_MEMORY : ERROR_INTERNAL;
    return error_set(err, code, "oneDNN: %s failed with status %d", what, (int)status);
}

static dnnl_data_type_t data_type(enum dtype dtype) {
    return dtype == DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* ---- versions: descriptions of memory are values in version 2 and handles in version 3 ---- */

#if DNNL_VERSION_MAJOR >= 3

typedef dnnl_memory_desc_t md_t;

static bool md_init(md_t *md, int rank, const int64_t *dims, enum dtype dtype,
    dnnl_format_tag_t tag, struct error *err) {
    return check(dnnl_memory_desc_create_with_tag(md, rank, dims, data_type(dtype), tag),
        "describing memory", err);
}

static void md_finish(md_t *md) {
    if (*md)
        dnnl_memory_desc_destroy(*md);
}

static const_dnnl_memory_desc_t md_of(const md_t *md) {
    return *md;
}

static bool memory_create(dnnl_memory_t *out, const_dnnl_memory_desc_t md, struct error *err) {
    return check(
        dnnl_memory_create(out, md, shared.engine, DNNL_MEMORY_NONE), "making a memory", err);
}

static const_dnnl_memory_desc_t memory_md(dnnl_memory_t memory) {
    const_dnnl_memory_desc_t md = NULL;
    dnnl_memory_get_memory_desc(memory, &md);
    return md;
}

static bool create_matmul(dnnl_primitive_desc_t *out, md_t *md, dnnl_primitive_attr_t attr) {
    return dnnl_matmul_primitive_desc_create(
               out, shared.engine, md[0], md[1], md[2], md[3], attr) == dnnl_success;
}

static bool create_conv(dnnl_primitive_desc_t *out, md_t *md, const int64_t *strides,
    const int64_t *dilates, const int64_t *before, const int64_t *after,
    dnnl_primitive_attr_t attr) {
    return dnnl_convolution_forward_primitive_desc_create(out, shared.engine,
               dnnl_forward_inference, dnnl_convolution_direct, md[0], md[1], md[2], md[3], strides,
               dilates, before, after, attr) == dnnl_success;
}

/* `forward` describes the convolution whose gradient is created. */
static bool create_conv_back(dnnl_primitive_desc_t *out, md_t *md, const int64_t *strides,
    const int64_t *dilates, const int64_t *before, const int64_t *after,
    dnnl_primitive_desc_t forward, dnnl_primitive_attr_t attr) {
    return dnnl_convolution_backward_data_primitive_desc_create(out, shared.engine,
               dnnl_convolution_direct, md[0], md[1], md[3], strides, dilates, before, after,
               forward, attr) == dnnl_success;
}

static dnnl_status_t append_eltwise(dnnl_post_ops_t ops, dnnl_alg_kind_t kind, float alpha) {
    return dnnl_post_ops_append_eltwise(ops, kind, alpha, 0);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1, 0, dnnl_data_type_undef);
}

static int same_layout(const_dnnl_memory_desc_t a, const_dnnl_memory_desc_t b) {
    return dnnl_memory_desc_equal(a, b);
}

#else

typedef dnnl_memory_desc_t md_t;
typedef const dnnl_memory_desc_t *const_dnnl_memory_desc_t;

static bool md_init(md_t *md, int rank, const int64_t *dims, enum dtype dtype,
    dnnl_format_tag_t tag, struct error *err) {
    return check(dnnl_memory_desc_init_by_tag(md, rank, dims, data_type(dtype), tag),
        "describing memory", err);
}

static void md_finish(md_t *md) {
    (void)md;
}

static const_dnnl_memory_desc_t md_of(const md_t *md) {
    return md;
}

static bool memory_create(dnnl_memory_t *out, const_dnnl_memory_desc_t md, struct error *err) {
    return check(
        dnnl_memory_create(out, md, shared.engine, DNNL_MEMORY_NONE), "making a memory", err);
}

static const_dnnl_memory_desc_t memory_md(dnnl_memory_t memory) {
    const dnnl_memory_desc_t *md = NULL;
    dnnl_memory_get_memory_desc(memory, &md);
    return md;
}

static bool create_matmul(dnnl_primitive_desc_t *out, md_t *md, dnnl_primitive_attr_t attr) {
    dnnl_matmul_desc_t d;
    return dnnl_matmul_desc_init(&d, &md[0], &md[1], &md[2], &md[3]) == dnnl_success &&
           dnnl_primitive_desc_create(out, &d, attr, shared.engine, NULL) == dnnl_success;
}

static bool create_conv(dnnl_primitive_desc_t *out, md_t *md, const int64_t *strides,
    const int64_t *dilates, const int64_t *before, const int64_t *after,
    dnnl_primitive_attr_t attr) {
    dnnl_convolution_desc_t d;
    return dnnl_dilated_convolution_forward_desc_init(&d, dnnl_forward_inference,
               dnnl_convolution_direct, &md[0], &md[1], &md[2], &md[3], strides, dilates, before,
               after) == dnnl_success &&
           dnnl_primitive_desc_create(out, &d, attr, shared.engine, NULL) == dnnl_success;
}

static bool create_conv_back(dnnl_primitive_desc_t *out, md_t *md, const int64_t *strides,
    const int64_t *dilates, const int64_t *before, const int64_t *after,
    dnnl_primitive_desc_t forward, dnnl_primitive_attr_t attr) {
    dnnl_convolution_desc_t d;
    return dnnl_dilated_convolution_backward_data_desc_init(&d, dnnl_convolution_direct, &md[0],
               &md[1], &md[3], strides, dilates, before, after) == dnnl_success &&
           dnnl_primitive_desc_create(out, &d, attr, shared.engine, forward) == dnnl_success;
}

static dnnl_status_t append_eltwise(dnnl_post_ops_t ops, dnnl_alg_kind_t kind, float alpha) {
    return dnnl_post_ops_append_eltwise(ops, 1, kind, alpha, 0);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1);
}

static int same_layout(const_dnnl_memory_desc_t a, const_dnnl_memory_desc_t b) {
    return dnnl_memory_desc_equal(a, b);
}

#endif

/* ---- primitives ---- */

static bool make_attr(
    const struct shape *shape, bool sum, dnnl_primitive_attr_t *out, struct error *err) {
    dnnl_post_ops_t ops = NULL;
    *out = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(out);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (status == dnnl_success)
        status = dnnl_post_ops_create(&ops);
    if (status == dnnl_success && shape->activation == ACTIVATION_SILU)
        status = append_eltwise(ops, dnnl_eltwise_swish, 1.0f);
    if (status == dnnl_success && shape->activation == ACTIVATION_QUICK_GELU)
        status = append_eltwise(ops, dnnl_eltwise_swish, 1.702f);
    if (status == dnnl_success && shape->activation == ACTIVATION_GELU)
        status = append_eltwise(ops, dnnl_eltwise_gelu_erf, 0);
    if (status == dnnl_success && sum)
        status = append_sum(ops);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(*out, ops);
    if (ops)
        dnnl_post_ops_destroy(ops);
    if (status != dnnl_success && *out) {
        dnnl_primitive_attr_destroy(*out);
        *out = NULL;
    }
    return check(status, "making attributes", err);
}

/* Describes the matrix product of `shape`. */
static bool describe_matmul(const struct dnnl_layer *l, const struct shape *shape,
    dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *out, struct error *err) {
    md_t md[4] = { 0 };
    const int64_t k = shape->back ? l->n : l->k, n = shape->back ? l->k : l->n;
    dnnl_dims_t x = { shape->h, k }, w = { k, n }, b = { 1, n };
    dnnl_dims_t y = { shape->h, n };
    bool ok = md_init(&md[0], 2, x, l->dtype, dnnl_ab, err) &&
              md_init(&md[1], 2, w, l->dtype, dnnl_format_tag_any, err) &&
              (shape->back || md_init(&md[2], 2, b, DTYPE_F32, dnnl_ab, err)) &&
              md_init(&md[3], 2, y, l->dtype, dnnl_ab, err);
    if (ok && !create_matmul(out, md, attr))
        ok = error_set(err, ERROR_INTERNAL, "oneDNN has no product [%lld][%lld] x [%lld]",
            (long long)shape->h, (long long)k, (long long)n);
    for (int i = 0; i < 4; i++)
        md_finish(&md[i]);
    return ok;
}

static bool describe_conv(const struct dnnl_layer *l, const struct shape *shape,
    dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *out, struct error *err) {
    md_t md[4] = { 0 };
    const struct geometry *g = &l->geometry;
    int64_t h_out = g->size(shape->h), w_out = g->size(shape->w);
    dnnl_dims_t x = { 1, l->k, shape->h, shape->w }, w = { l->n, l->k, g->kernel, g->kernel };
    dnnl_dims_t y = { 1, l->n, h_out, w_out }, b = { l->n };
    dnnl_dims_t strides = { g->stride, g->stride }, dilates = { 0, 0 };
    dnnl_dims_t before = { g->top, g->left };
    dnnl_dims_t after = { (h_out - 1) * g->stride + g->kernel - shape->h - g->top,
        (w_out - 1) * g->stride + g->kernel - shape->w - g->left };
    bool ok = md_init(&md[0], 4, x, l->dtype, dnnl_nhwc, err) &&
              md_init(&md[1], 4, w, l->dtype, dnnl_format_tag_any, err) &&
              md_init(&md[2], 1, b, DTYPE_F32, dnnl_a, err) &&
              md_init(&md[3], 4, y, l->dtype, dnnl_nhwc, err);
    if (ok && !create_conv(out, md, strides, dilates, before, after, attr))
        ok = error_set(err, ERROR_INTERNAL, "oneDNN has no convolution of %lld x %lld x %lld",
            (long long)shape->h, (long long)shape->w, (long long)l->k);
    dnnl_primitive_desc_t forward = *out;
    if (ok && shape->back) {
        *out = NULL;
        if (shape->sum) { /* oneDNN writes f32 here; back_rows adds it to dx */
            md_finish(&md[0]);
            ok = md_init(&md[0], 4, x, DTYPE_F32, dnnl_nhwc, err);
        }
        if (ok && !create_conv_back(out, md, strides, dilates, before, after, forward, attr))
            ok = error_set(err, ERROR_UNSUPPORTED,
                "oneDNN has no gradient of a convolution of %lld x %lld x %lld",
                (long long)shape->h, (long long)shape->w, (long long)l->k);
        dnnl_primitive_desc_destroy(forward);
    }
    for (int i = 0; i < 4; i++)
        md_finish(&md[i]);
    return ok;
}

static bool describe(const struct dnnl_layer *l, const struct shape *shape,
    dnnl_primitive_desc_t *out, struct error *err) {
    const bool sum = shape->sum && !(l->geometry.kernel && shape->back);
    dnnl_primitive_attr_t attr;
    *out = NULL;
    if (!available_headroom(ONEDNN_HEADROOM_BYTES, "describing a product", err) ||
        !make_attr(shape, sum, &attr, err))
        return false;
    bool ok = (l->geometry.kernel ? describe_conv : describe_matmul)(l, shape, attr, out, err);
    dnnl_primitive_attr_destroy(attr);
    return ok;
}

/* oneDNN's code generator writes through a NULL pointer if memory is refused, so memory is checked
 * first. */
static bool make_primitive(
    dnnl_primitive_t *out, dnnl_primitive_desc_t description, struct error *err) {
    return available_headroom(ONEDNN_HEADROOM_BYTES, "making a product's code", err) &&
           check(dnnl_primitive_create(out, description), "making a primitive", err);
}

static void cached_destroy(struct cached *c) {
    for (int i = 0; i < MEMORIES; i++)
        if (c->memories[i])
            dnnl_memory_destroy(c->memories[i]);
    if (c->primitive)
        dnnl_primitive_destroy(c->primitive);
    if (c->reorder)
        dnnl_primitive_destroy(c->reorder);
    if (c->turned)
        dnnl_memory_destroy(c->turned);
    free(c);
}

static void cache_clear(struct cached **cache) {
    while (*cache) {
        struct cached *next = (*cache)->next;
        cached_destroy(*cache);
        *cache = next;
    }
}

/* Copies `from` to `to`, converting the layout. The addresses of both are already set. */
static bool reorder(dnnl_memory_t from, dnnl_memory_t to, struct error *err) {
    dnnl_primitive_desc_t description = NULL;
    dnnl_primitive_t primitive = NULL;
    bool ok = check(dnnl_reorder_primitive_desc_create(&description, memory_md(from), shared.engine,
                        memory_md(to), shared.engine, NULL),
                  "describing a reorder", err) &&
              make_primitive(&primitive, description, err);
    if (ok) {
        dnnl_exec_arg_t args[] = { { DNNL_ARG_FROM, from }, { DNNL_ARG_TO, to } };
        ok = check(dnnl_primitive_execute(primitive, shared.stream, 2, args), "a reorder", err) &&
             check(dnnl_stream_wait(shared.stream), "a reorder", err);
    }
    if (primitive)
        dnnl_primitive_destroy(primitive);
    if (description)
        dnnl_primitive_desc_destroy(description);
    return ok;
}

/* Copies the layer's weights to `data` in the layout `md`; with `back`, copies `data` into the
 * layer's weights. *other: a oneDNN memory for `data`, which the caller destroys; NULL after a
 * failure. */
static bool reorder_with(const struct dnnl_layer *l, const_dnnl_memory_desc_t md, void *data,
    bool back, dnnl_memory_t *other, struct error *err) {
    *other = NULL;
    const bool ok = memory_create(other, md, err) &&
                    check(dnnl_memory_set_data_handle(*other, data), "setting a memory", err) &&
                    check(dnnl_memory_set_data_handle(l->layout, l->weights), "setting a memory",
                        err) &&
                    (back ? reorder(*other, l->layout, err) : reorder(l->layout, *other, err));
    if (!ok && *other) {
        dnnl_memory_destroy(*other);
        *other = NULL;
    }
    return ok;
}

/* Brings l->weights from the layout `l->layout` into the layout `wanted`. */
static bool lay_out(struct dnnl_layer *l, const_dnnl_memory_desc_t wanted, struct error *err) {
    if (same_layout(memory_md(l->layout), wanted))
        return true;
    cache_clear(&l->cache);
    size_t bytes = dnnl_memory_desc_get_size(wanted);
    void *weights = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    dnnl_memory_t layout;
    if (!weights)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a weight of %zu bytes", bytes);
    if (!reorder_with(l, wanted, weights, false, &layout, err)) {
        free(weights);
        return false;
    }
    dnnl_memory_destroy(l->layout);
    free(l->weights);
    l->layout = layout;
    l->weights = weights;
    l->layer.packed.bytes = bytes + (size_t)l->n * sizeof(float) + sizeof(*l);
    return true;
}

/* Makes the reorder that brings the weights from their own layout into the one that a primitive
 * from dy to dx wants. */
static bool make_turn(
    struct dnnl_layer *l, struct cached *c, const_dnnl_memory_desc_t wanted, struct error *err) {
    static const int exchanged[2] = { 1, 0 };
    const_dnnl_memory_desc_t from = memory_md(l->layout);
    dnnl_primitive_desc_t description = NULL;
    md_t md = { 0 };
    c->weight_bytes = dnnl_memory_desc_get_size(wanted);
    bool ok = true;
    if (!l->geometry.kernel) {
        ok = check(dnnl_memory_desc_permute_axes(&md, from, exchanged), "turning a weight", err);
        from = md_of(&md);
    }
    ok = ok && memory_create(&c->turned, from, err) &&
         check(dnnl_reorder_primitive_desc_create(
                   &description, from, shared.engine, wanted, shared.engine, NULL),
             "describing a reorder", err) &&
         make_primitive(&c->reorder, description, err);
    if (description)
        dnnl_primitive_desc_destroy(description);
    md_finish(&md);
    return ok;
}

/* Whether oneDNN would use its plain reference loops, which take minutes. */
static bool is_plain(dnnl_primitive_desc_t description) {
    const char *name = "";
    return dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0, &name) !=
               dnnl_success ||
           strncmp(name, "ref", 3) == 0;
}

/* Creates the primitive of a shape. A primitive for a gradient has no bias, and it has a reorder
 * (make_turn) that copies the layer's weights into the layout that the primitive wants. */
static bool cached_create(
    struct dnnl_layer *l, const struct shape *shape, struct cached **out, struct error *err) {
    const bool back = shape->back, conv_back = back && l->geometry.kernel;
    const dnnl_query_t queries[MEMORIES] = {
        conv_back ? dnnl_query_diff_dst_md : dnnl_query_src_md,
        dnnl_query_weights_md,
        dnnl_query_weights_md,
        conv_back ? dnnl_query_diff_src_md : dnnl_query_dst_md,
        dnnl_query_scratchpad_md,
    };
    dnnl_primitive_desc_t description;
    struct cached *c = calloc(1, sizeof(*c));
    if (!c)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a primitive");
    c->shape = *shape;
    bool ok = describe(l, shape, &description, err);
    if (ok && back && is_plain(description))
        ok = error_set(err, ERROR_UNSUPPORTED, "oneDNN has no fast gradient of this layer");
    if (ok && !back)
        ok = lay_out(l, dnnl_primitive_desc_query_md(description, dnnl_query_weights_md, 0), err);
    for (int i = 0; ok && i < MEMORIES; i++) {
        if (back && i == 2)
            continue;
        const_dnnl_memory_desc_t md = dnnl_primitive_desc_query_md(
            description, queries[i], i == 2 ? 1 : 0);
        if (i == 4)
            c->scratch_bytes = dnnl_memory_desc_get_size(md);
        ok = memory_create(&c->memories[i], md, err);
    }
    ok = ok && (!back || make_turn(l, c, memory_md(c->memories[1]), err)) &&
         make_primitive(&c->primitive, description, err);
    if (description)
        dnnl_primitive_desc_destroy(description);
    if (!ok) {
        cached_destroy(c);
        return false;
    }
    *out = c;
    return true;
}

/* Returns the primitive of a shape; creates it if there is none yet. */
static struct cached *find(struct dnnl_layer *l, const struct shape *shape, struct error *err) {
    int count = 0;
    for (struct cached **link = &l->cache; *link; link = &(*link)->next) {
        const struct shape *s = &(*link)->shape;
        if (s->h == shape->h && s->w == shape->w && s->activation == shape->activation &&
            s->sum == shape->sum && s->back == shape->back)
            return *link;
        if (++count == CACHE_MAX) {
            cache_clear(link);
            break;
        }
    }
    struct cached *c = NULL;
    if (!cached_create(l, shape, &c, err))
        return NULL;
    c->next = l->cache;
    l->cache = c;
    return c;
}

static bool execute(struct dnnl_layer *l, struct cached *c, const void *x, const float *bias,
    void *y, void *scratchpad, struct error *err) {
    static const int names[MEMORIES] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS,
        DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD };
    void *handles[MEMORIES] = { (void *)x, l->weights, (void *)bias, y, scratchpad };
    dnnl_exec_arg_t args[MEMORIES];
    for (int i = 0; i < MEMORIES; i++) {
        dnnl_memory_set_data_handle(c->memories[i], handles[i]);
        args[i] = (dnnl_exec_arg_t){ names[i], c->memories[i] };
    }
    return check(dnnl_primitive_execute(c->primitive, shared.stream, MEMORIES, args), "a product",
               err) &&
           check(dnnl_stream_wait(shared.stream), "a product", err);
}

/* ---- the engine ---- */

static bool dnnl_start(struct error *err) {
    if (shared.stream)
        return true;
    /* oneDNN refuses to change this limit once any code in the process has used oneDNN. The earlier
     * limit then stays. */
    if (!shared.engine)
        (void)dnnl_set_max_cpu_isa((dnnl_cpu_isa_t)cpu_level()->dnnl_isa);
    if (!shared.engine &&
        !check(dnnl_engine_create(&shared.engine, dnnl_cpu, 0), "making an engine", err))
        return false;
    return check(dnnl_stream_create(&shared.stream, shared.engine, dnnl_stream_default_flags),
        "making a stream", err);
}

static void dnnl_layer_destroy(struct layer *layer) {
    struct dnnl_layer *l = (struct dnnl_layer *)layer;
    cache_clear(&l->cache);
    if (l->layout)
        dnnl_memory_destroy(l->layout);
    free(l->weights);
    free(l->bias);
    free(l);
}

/* Copies the weight and the bias into the layer, in the order of the file. */
static bool take_weights(struct dnnl_layer *l, const struct tensor *weight,
    const struct tensor *bias, struct error *err) {
    int64_t count = tensor_elements(weight);
    size_t bytes = (size_t)count * dtype_size(l->dtype);
    l->weights = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    l->bias = calloc((size_t)l->n, sizeof(float));
    if (!l->weights || !l->bias)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a weight of %zu bytes", bytes);
    convert_elements(l->weights, l->dtype, weight->data, weight->dtype, count);
    if (bias)
        convert_elements(l->bias, DTYPE_F32, bias->data, bias->dtype, l->n);
    md_t md = { 0 };
    dnnl_dims_t matrix = { l->k, l->n }, filter = { l->n, l->k, 0, 0 };
    filter[2] = filter[3] = l->geometry.kernel;
    bool ok = l->geometry.kernel ? md_init(&md, 4, filter, l->dtype, dnnl_oihw, err)
                                 : md_init(&md, 2, matrix, l->dtype, dnnl_ba, err);
    ok = ok && memory_create(&l->layout, md_of(&md), err);
    md_finish(&md);
    return ok;
}

static bool pack(const struct tensor *weight, const struct tensor *bias,
    const struct geometry *geometry, bool geglu, enum dtype dtype, struct layer **out,
    struct error *err) {
    struct dnnl_layer *l = calloc(1, sizeof(*l));
    if (!l)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a weight");
    l->geometry = *geometry;
    l->n = weight->shape[0];
    l->k = weight->shape[1];
    l->geglu = geglu;
    l->dtype = dtype;
    pthread_mutex_lock(&shared.mutex);
    struct shape typical = { .h = geometry->kernel ? TYPICAL_SIZE
                                  : geglu          ? GEGLU_ROWS
                                                   : TYPICAL_SIZE * TYPICAL_SIZE,
        .w = TYPICAL_SIZE };
    dnnl_primitive_desc_t description = NULL;
    bool ok = dnnl_start(err) && take_weights(l, weight, bias, err) &&
              describe(l, &typical, &description, err) &&
              lay_out(l, dnnl_primitive_desc_query_md(description, dnnl_query_weights_md, 0), err);
    if (description)
        dnnl_primitive_desc_destroy(description);
    pthread_mutex_unlock(&shared.mutex);
    if (!ok) {
        dnnl_layer_destroy(&l->layer);
        return false;
    }
    *out = &l->layer;
    return true;
}

static int64_t size_same(int64_t in) {
    return in;
}

static int64_t size_down(int64_t in) {
    return conv_out_size(CONV_3X3_DOWN, in);
}

static int64_t size_down_right(int64_t in) {
    return conv_out_size(CONV_3X3_DOWN_RIGHT, in);
}

static const struct geometry geometries[] = {
    [CONV_1X1] = { 0 },
    [CONV_3X3] = { 3, 1, 1, 1, size_same },
    [CONV_3X3_DOWN] = { 3, 2, 1, 1, size_down },
    [CONV_3X3_DOWN_RIGHT] = { 3, 2, 0, 0, size_down_right },
};

static struct geometry geometry_2x2(int top, int left) {
    return (struct geometry){ 2, 1, top, left, size_same };
}

static bool dnnl_pack(const struct tensor *weight, const struct tensor *bias, bool is_conv,
    enum conv_kind kind, bool geglu, enum dtype dtype, struct layer **out, struct error *err) {
    return pack(weight, bias, &geometries[is_conv ? kind : CONV_1X1], geglu, dtype, out, err);
}

bool dnnl_pack_2x2(const struct tensor *weight, const struct tensor *bias, int top, int left,
    enum dtype dtype, struct layer **out, struct error *err) {
    const struct geometry geometry = geometry_2x2(top, left);
    return pack(weight, bias, &geometry, false, dtype, out, err);
}

bool dnnl_implementation(
    const struct dnnl_question *question, char *out, size_t size, struct error *err) {
    struct dnnl_layer l = { .n = question->n, .k = question->k, .dtype = DTYPE_BF16 };
    l.geometry = question->kind == CONV_3X3_UP
                     ? geometry_2x2(question->phase / 2 ^ 1, question->phase % 2 ^ 1)
                     : geometries[question->kind];
    const struct shape shape = {
        .h = question->h, .w = question->w, .sum = question->residual, .back = question->back
    };
    dnnl_primitive_desc_t description = NULL;
    const char *name = NULL;
    pthread_mutex_lock(&shared.mutex);
    bool ok = dnnl_start(err) && describe(&l, &shape, &description, err) &&
              check(dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0, &name),
                  "asking for an implementation", err);
    if (ok)
        snprintf(out, size, "%s", name);
    if (description)
        dnnl_primitive_desc_destroy(description);
    pthread_mutex_unlock(&shared.mutex);
    return ok;
}

/* Computes one row of a plain layer. A residual is copied to y first, and the product is added to
 * it. */
static bool run_row(struct dnnl_layer *l, struct cached *c, const void *x, const float *bias,
    const void *residual, void *y, size_t y_bytes, void *scratch, struct error *err) {
    if (residual && residual != y)
        memcpy(y, residual, y_bytes);
    return execute(l, c, x, bias, y, scratch, err);
}

/* Returns the bytes of a GEGLU layer's product before its gate. */
static size_t geglu_bytes(const struct dnnl_layer *l) {
    return GEGLU_ROWS * (size_t)l->n * dtype_size(l->dtype);
}

/* Makes the primitives for one row of a layer. *bytes: the scratch memory that the row needs. */
static bool row_scratch(
    struct dnnl_layer *l, struct shape shape, bool geglu, size_t *bytes, struct error *err) {
    const int64_t tokens = shape.h, whole = tokens < GEGLU_ROWS ? tokens : GEGLU_ROWS;
    const int64_t parts[2] = { whole, tokens % GEGLU_ROWS };
    *bytes = 0;
    for (int i = 0; i < (geglu ? 2 : 1); i++) {
        if (geglu)
            shape = (struct shape){ .h = parts[i] };
        struct cached *c = shape.h ? find(l, &shape, err) : NULL;
        if (shape.h && !c)
            return false;
        if (c && c->scratch_bytes > *bytes)
            *bytes = c->scratch_bytes;
    }
    *bytes += geglu ? geglu_bytes(l) : 0;
    return true;
}

/* Computes one row of a GEGLU layer, GEGLU_ROWS tokens at a time, so that the product stays in the
 * cache. */
static bool run_row_geglu(struct dnnl_layer *l, const char *x, int64_t tokens, const char *residual,
    char *y, char *scratch, struct error *err) {
    size_t element = dtype_size(l->dtype);
    for (int64_t first = 0; first < tokens; first += GEGLU_ROWS) {
        struct shape shape = { .h = tokens - first < GEGLU_ROWS ? tokens - first : GEGLU_ROWS };
        struct cached *c = find(l, &shape, err);
        if (!c || !execute(l, c, x + (size_t)(first * l->k) * element, l->bias, scratch,
                      scratch + geglu_bytes(l), err))
            return false;
        size_t at = (size_t)(first * l->n / 2) * element;
        cpu_level()->matmul->geglu(
            scratch, shape.h, l->n, l->dtype, residual ? residual + at : NULL, y + at);
    }
    return true;
}

static bool linear_rows(struct dnnl_layer *l, const struct linear_args *args, struct error *err) {
    const struct tensor *x = args->x, *residual = args->residual, *y = args->y;
    const bool geglu = l->geglu && !args->ungated;
    int64_t rows = x->shape[0], tokens = tensor_elements(x) / l->k / rows;
    size_t element = dtype_size(l->dtype);
    size_t x_bytes = (size_t)(tokens * l->k) * element;
    size_t y_bytes = (size_t)(tokens * (geglu ? l->n / 2 : l->n)) * element;
    struct shape shape = { .h = tokens, .activation = args->activation, .sum = residual != NULL };
    size_t bytes;
    char *scratch = row_scratch(l, shape, geglu, &bytes, err) ? cpu_scratch(bytes, err) : NULL;
    if (!scratch || cpu_plans())
        return scratch != NULL;
    struct cached *c = geglu ? NULL : find(l, &shape, err);
    bool ok = geglu || c;
    for (int64_t row = 0; ok && row < rows; row++) {
        const char *from = (const char *)x->data + (size_t)row * x_bytes;
        const char *add = residual ? (const char *)residual->data + (size_t)row * y_bytes : NULL;
        char *to = (char *)y->data + (size_t)row * y_bytes;
        ok = geglu ? run_row_geglu(l, from, tokens, add, to, scratch, err)
                   : run_row(l, c, from, l->bias, add, to, y_bytes, scratch, err);
    }
    return ok;
}

static bool dnnl_linear(struct layer *layer, const struct linear_args *args, struct error *err) {
    struct dnnl_layer *l = (struct dnnl_layer *)layer;
    pthread_mutex_lock(&shared.mutex);
    bool ok = linear_rows(l, args, err);
    pthread_mutex_unlock(&shared.mutex);
    return ok;
}

/* Returns the layer's bias, plus the row's row_add if there is one; the sum is stored in `out`. */
static const float *row_bias(
    const struct dnnl_layer *l, const struct conv2d_args *args, int64_t row, float *out) {
    const struct tensor *row_add = args->row_add;
    if (!row_add)
        return l->bias;
    size_t at = (size_t)(row * row_add->shape[1] + args->row_add_offset) *
                dtype_size(row_add->dtype);
    convert_elements(out, DTYPE_F32, (const char *)row_add->data + at, row_add->dtype, l->n);
    for (int64_t i = 0; i < l->n; i++)
        out[i] += l->bias[i];
    return out;
}

static bool conv_rows(struct dnnl_layer *l, const struct conv2d_args *args, struct error *err) {
    const struct tensor *x = args->x, *residual = args->residual;
    struct tensor *y = args->y;
    struct shape shape = { .h = x->shape[1], .w = x->shape[2], .sum = residual != NULL };
    if (!l->geometry.kernel)
        shape = (struct shape){ .h = x->shape[1] * x->shape[2], .sum = residual != NULL };
    struct cached *c = find(l, &shape, err);
    size_t pad = ((size_t)l->n * sizeof(float) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    char *scratch = c ? cpu_scratch(pad + c->scratch_bytes, err) : NULL;
    if (!scratch || cpu_plans())
        return scratch != NULL;
    int64_t rows = x->shape[0];
    size_t x_bytes = tensor_bytes(x) / (size_t)rows, y_bytes = tensor_bytes(y) / (size_t)rows;
    for (int64_t row = 0; row < rows; row++) {
        const float *bias = row_bias(l, args, row, (float *)scratch);
        const char *add = residual ? (const char *)residual->data + (size_t)row * y_bytes : NULL;
        char *to = (char *)y->data + (size_t)row * y_bytes;
        if (add && add != to)
            memcpy(to, add, y_bytes);
        if (!execute(
                l, c, (const char *)x->data + (size_t)row * x_bytes, bias, to, scratch + pad, err))
            return false;
    }
    return true;
}

static bool dnnl_conv2d(struct layer *layer, const struct conv2d_args *args, struct error *err) {
    pthread_mutex_lock(&shared.mutex);
    bool ok = conv_rows((struct dnnl_layer *)layer, args, err);
    pthread_mutex_unlock(&shared.mutex);
    return ok;
}

/* Copies the layer's weights to `weight`, as f32 in the order of the table's unpack; with `back`,
 * copies `weight` into the layer. */
static bool exchange(struct dnnl_layer *l, float *weight, bool back, struct error *err) {
    const int64_t size = l->geometry.kernel;
    dnnl_dims_t matrix = { l->k, l->n }, filter = { l->n, l->k, size, size };
    dnnl_memory_t memory = NULL;
    md_t md = { 0 };
    pthread_mutex_lock(&shared.mutex);
    const bool ok = (size ? md_init(&md, 4, filter, DTYPE_F32, dnnl_acdb, err)
                          : md_init(&md, 2, matrix, DTYPE_F32, dnnl_ba, err)) &&
                    reorder_with(l, md_of(&md), weight, back, &memory, err);
    if (memory)
        dnnl_memory_destroy(memory);
    md_finish(&md);
    pthread_mutex_unlock(&shared.mutex);
    return ok;
}

static bool dnnl_unpack(struct layer *layer, float *weight, float *bias, struct error *err) {
    struct dnnl_layer *l = (struct dnnl_layer *)layer;
    if (weight && !exchange(l, weight, false, err))
        return false;
    if (bias)
        memcpy(bias, l->bias, (size_t)l->n * sizeof(*bias));
    return true;
}

static bool dnnl_rewrite(
    struct layer *layer, const float *weight, const float *bias, struct error *err) {
    struct dnnl_layer *l = (struct dnnl_layer *)layer;
    if (!exchange(l, (float *)weight, true, err)) /* only read */
        return false;
    if (bias)
        memcpy(l->bias, bias, (size_t)l->n * sizeof(*bias));
    return true;
}

/* ---- gradients of the input ---- */

static size_t align(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* to = the weights in the primitive's layout. */
static bool turn_weights(struct dnnl_layer *l, struct cached *c, void *to, struct error *err) {
    dnnl_memory_set_data_handle(c->turned, l->weights);
    dnnl_memory_set_data_handle(c->memories[1], to);
    dnnl_exec_arg_t args[] = { { DNNL_ARG_FROM, c->turned }, { DNNL_ARG_TO, c->memories[1] } };
    return check(dnnl_primitive_execute(c->reorder, shared.stream, 2, args), "a reorder", err) &&
           check(dnnl_stream_wait(shared.stream), "a reorder", err);
}

static bool execute_back(struct dnnl_layer *l, struct cached *c, const void *dy, void *dx,
    void *scratchpad, struct error *err) {
    const bool conv = l->geometry.kernel != 0;
    dnnl_memory_set_data_handle(c->memories[0], (void *)dy);
    dnnl_memory_set_data_handle(c->memories[3], dx);
    dnnl_memory_set_data_handle(c->memories[4], scratchpad);
    dnnl_exec_arg_t args[] = { { conv ? DNNL_ARG_DIFF_DST : DNNL_ARG_SRC, c->memories[0] },
        { DNNL_ARG_WEIGHTS, c->memories[1] },
        { conv ? DNNL_ARG_DIFF_SRC : DNNL_ARG_DST, c->memories[3] },
        { DNNL_ARG_SCRATCHPAD, c->memories[4] } };
    return check(dnnl_primitive_execute(c->primitive, shared.stream, 4, args), "a gradient", err) &&
           check(dnnl_stream_wait(shared.stream), "a gradient", err);
}

/* dx += part, rounded once. */
static void add_part(struct tensor *dx, const float *part) {
    const int64_t count = tensor_elements(dx), piece = 2048;
    const size_t element = dtype_size(dx->dtype);
#pragma omp parallel for
    for (int64_t first = 0; first < count; first += piece) {
        const int64_t n = count - first < piece ? count - first : piece;
        char *to = (char *)dx->data + (size_t)first * element;
        float sum[2048];
        convert_elements(sum, DTYPE_F32, to, dx->dtype, n);
        for (int64_t i = 0; i < n; i++)
            sum[i] += part[first + i];
        convert_elements(to, dx->dtype, sum, DTYPE_F32, n);
    }
}

/* oneDNN cannot add a convolution's gradient to dx, so that gradient goes to scratch memory
 * first. */
static bool back_rows(struct dnnl_layer *l, const struct tensor *dy, struct tensor *dx,
    bool accumulate, struct error *err) {
    const bool conv = l->geometry.kernel != 0, apart = conv && accumulate;
    const int64_t rows = dx->shape[0];
    const size_t dy_bytes = tensor_bytes(dy) / (size_t)rows;
    const size_t dx_bytes = tensor_bytes(dx) / (size_t)rows;
    struct shape shape = { .h = tensor_elements(dx) / rows / l->k, .sum = accumulate };
    if (conv)
        shape = (struct shape){ .h = dx->shape[1], .w = dx->shape[2], .sum = accumulate };
    shape.back = true;
    struct cached *c = find(l, &shape, err);
    const size_t weights = c ? align(c->weight_bytes) : 0;
    const size_t product = apart ? align(dx_bytes / dtype_size(dx->dtype) * sizeof(float)) : 0;
    char *scratch = c ? cpu_scratch(weights + product + c->scratch_bytes, err) : NULL;
    if (!scratch || cpu_plans())
        return scratch != NULL;
    bool ok = turn_weights(l, c, scratch, err);
    for (int64_t row = 0; ok && row < rows; row++) {
        struct tensor to = tensor_rows(dx, row, 1);
        ok = execute_back(l, c, (const char *)dy->data + (size_t)row * dy_bytes,
            apart ? scratch + weights : to.data, scratch + weights + product, err);
        if (ok && apart)
            add_part(&to, (const float *)(scratch + weights));
    }
    return ok;
}

static bool dnnl_dx(struct layer *layer, const struct tensor *dy, struct tensor *dx,
    bool accumulate, struct error *err) {
    pthread_mutex_lock(&shared.mutex);
    bool ok = back_rows((struct dnnl_layer *)layer, dy, dx, accumulate, err);
    pthread_mutex_unlock(&shared.mutex);
    return ok;
}

static bool dnnl_linear_dx(
    struct layer *layer, const struct linear_backward_args *args, struct error *err) {
    return dnnl_dx(layer, args->dy, args->dx, args->accumulate, err);
}

static bool dnnl_conv2d_dx(
    struct layer *layer, const struct conv2d_backward_args *args, struct error *err) {
    return dnnl_dx(layer, args->dy, args->dx, args->accumulate, err);
}

const struct layer_engine dnnl_engine = {
    .pack = dnnl_pack,
    .destroy = dnnl_layer_destroy,
    .unpack = dnnl_unpack,
    .rewrite = dnnl_rewrite,
    .linear = dnnl_linear,
    .conv2d = dnnl_conv2d,
    .linear_dx = dnnl_linear_dx,
    .conv2d_dx = dnnl_conv2d_dx,
};
