#include "kernels/cpu/layers.h"

#include "kernels/cpu/cpu.h"

static const struct layer_engine *choose_engine(enum dtype weight_dtype) {
    (void)weight_dtype;
    return &panels_engine;
}

static enum dtype layers_activation_dtype(enum dtype weight_dtype) {
    return choose_engine(weight_dtype)->activation_dtype;
}

static bool pack(const struct tensor *weight, const struct tensor *bias, bool is_conv,
    enum conv_kind kind, bool geglu, enum dtype dtype, struct packed **out, struct error *err) {
    const struct layer_engine *engine = choose_engine(dtype);
    struct layer *layer;
    if (!engine->pack(weight, bias, is_conv, kind, geglu, dtype, &layer, err))
        return false;
    layer->engine = engine;
    layer->packed.is_conv = is_conv;
    layer->packed.kind = kind;
    layer->packed.n = weight->shape[0];
    layer->packed.k = weight->shape[1];
    layer->packed.geglu = geglu;
    *out = &layer->packed;
    return true;
}

static bool layers_linear_pack(const struct tensor *weight, const struct tensor *bias, bool geglu,
    enum dtype dtype, struct packed **out, struct error *err) {
    return pack(weight, bias, false, CONV_1X1, geglu, dtype, out, err);
}

static bool layers_conv2d_pack(const struct tensor *weight, const struct tensor *bias,
    enum conv_kind kind, enum dtype dtype, struct packed **out, struct error *err) {
    return pack(weight, bias, true, kind, false, dtype, out, err);
}

static void layers_packed_destroy(struct packed *packed) {
    struct layer *layer = (struct layer *)packed;
    if (layer)
        layer->engine->destroy(layer);
}

/* The engine behind a weight, or NULL and an error if x is not what its weights multiply. */
static const struct layer_engine *engine_for(
    const struct packed *weight, const struct tensor *x, struct error *err) {
    const struct layer_engine *engine = ((const struct layer *)weight)->engine;
    if (x->dtype == engine->activation_dtype)
        return engine;
    error_set(err, ERROR_INTERNAL, "x is %s, this weight multiplies %s", dtype_name(x->dtype),
        dtype_name(engine->activation_dtype));
    return NULL;
}

static bool layers_linear(const struct linear_args *args, struct error *err) {
    const struct layer_engine *engine = engine_for(args->weight, args->x, err);
    return engine && engine->linear((struct layer *)args->weight, args, err);
}

static bool layers_conv2d(const struct conv2d_args *args, struct error *err) {
    const struct layer_engine *engine = engine_for(args->weight, args->x, err);
    return engine && engine->conv2d((struct layer *)args->weight, args, err);
}

void layers_register(struct kernels *table) {
    table->activation_dtype = layers_activation_dtype;
    table->linear_pack = layers_linear_pack;
    table->conv2d_pack = layers_conv2d_pack;
    table->packed_destroy = layers_packed_destroy;
    table->linear = layers_linear;
    table->conv2d = layers_conv2d;
}
