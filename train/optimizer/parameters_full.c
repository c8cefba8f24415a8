/* All numbers of a model as parameters: everything that its lists name (models/weights.h), in
 * unpacked form, one trained weight after the other. */
#include "kernels/compute/compute.h"
#include "kernels/pack.h"
#include "train/optimizer/optimizer.h"
#include "train/optimizer/parameters.h"
#include "train/optimizer/products.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the list of weights --- */

static int64_t taps_of(const struct named_weight *w) {
    return w->is_conv && w->kind != CONV_1X1 ? 9 : 1;
}

static bool add_tensor(struct parameters *p, const struct train_config *config,
    struct trained_tensor tensor, const char *layer, const char *leaf, struct error *err) {
    struct trained_tensor *to = &p->tensors[p->tensor_count];
    *to = tensor;
    if (asprintf(&to->name, "%s.%s", layer, leaf) < 0) {
        to->name = NULL;
        return error_set(err, ERROR_NO_MEMORY, "no memory for a tensor's name");
    }
    p->tensor_count++;
    p->trained += to->n * to->taps * to->k;
    parameters_rates(config, to->component, to->name, &to->learning_rate, &to->weight_decay);
    return true;
}

/* Adds a packed weight at the end of the buffers, unless they contain it already. */
static struct trained_weight *add_packed(
    struct parameters *p, const struct named_weight *w, size_t from) {
    for (size_t i = from; i < p->weight_count; i++)
        if (p->weights[i].packed == w->packed)
            return &p->weights[i];
    struct trained_weight *weight = &p->weights[p->weight_count++];
    *weight = (struct trained_weight){
        .kind = TAPE_WEIGHT,
        .packed = (struct packed *)w->packed, /* training writes to the model's own weight */
        .at = p->floats,
        .floats = { w->packed->n * taps_of(w) * w->k, w->has_bias ? w->packed->n : 0 },
    };
    p->floats += weight->floats[0] + weight->floats[1];
    return weight;
}

static bool add_layer(struct parameters *p, const struct train_config *config,
    enum component component, const struct named_weight *w, size_t from, struct error *err) {
    const struct trained_weight *weight = add_packed(p, w, from);
    const struct trained_tensor matrix = { .component = component,
        .at = weight->at + w->first * taps_of(w) * w->k,
        .n = w->n,
        .taps = taps_of(w),
        .k = w->k,
        .rank = w->is_conv ? 4 : 2 };
    const struct trained_tensor bias = { .component = component,
        .at = weight->at + weight->floats[0] + w->first,
        .n = w->n,
        .taps = 1,
        .k = 1,
        .rank = 1 };
    return add_tensor(p, config, matrix, w->name, "weight", err) &&
           (!w->has_bias || add_tensor(p, config, bias, w->name, "bias", err));
}

static bool add_resident(struct parameters *p, const struct train_config *config,
    enum component component, const struct named_resident *r, struct error *err) {
    const bool is_norm = r->bias.data != NULL;
    const int64_t count = tensor_elements(&r->weight);
    struct trained_tensor tensor = { .component = component,
        .at = p->floats,
        .n = r->weight.shape[0],
        .taps = 1,
        .k = is_norm ? 1 : r->weight.shape[1],
        .rank = r->weight.rank };
    p->weights[p->weight_count++] = (struct trained_weight){
        .kind = is_norm ? TAPE_NORM : TAPE_TABLE,
        .weight = r->weight,
        .bias = r->bias,
        .at = p->floats,
        .floats = { count, is_norm ? count : 0 },
    };
    p->floats += is_norm ? 2 * count : count;
    if (!add_tensor(p, config, tensor, r->name, "weight", err))
        return false;
    tensor.at += count;
    return !is_norm || add_tensor(p, config, tensor, r->name, "bias", err);
}

static bool add_model(struct parameters *p, const struct train_config *config,
    enum component component, const struct weight_list *list, struct error *err) {
    const size_t from = p->weight_count;
    for (size_t i = 0; i < list->count; i++)
        if (!add_layer(p, config, component, &list->items[i], from, err))
            return false;
    for (size_t i = 0; i < list->resident_count; i++)
        if (!add_resident(p, config, component, &list->residents[i], err))
            return false;
    return true;
}

static int by_place(const void *a, const void *b) {
    const struct trained_tensor *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

/* Makes ranges that do not cross weights, so that each weight can be stepped by itself. */
static void cut(struct parameters *p) {
    const struct trained_tensor *t = p->tensors, *end = p->tensors + p->tensor_count;
    qsort(p->tensors, p->tensor_count, sizeof(*p->tensors), by_place);
    for (size_t i = 0; i < p->weight_count; i++) {
        struct trained_weight *w = &p->weights[i];
        w->first_range = p->range_count;
        for (; t < end && t->at < w->at + w->floats[0] + w->floats[1]; t++) {
            struct parameter_range *last = &p->ranges[p->range_count - 1];
            if (p->range_count == w->first_range || last->learning_rate != t->learning_rate ||
                last->weight_decay != t->weight_decay) {
                last = &p->ranges[p->range_count++];
                *last = (struct parameter_range){ t->at, 0, t->learning_rate, t->weight_decay };
            }
            last->count += t->n * t->taps * t->k;
        }
        w->range_count = p->range_count - w->first_range;
    }
}

static bool lay_out(struct parameters *p, const struct train_config *config,
    const struct weight_list *unet, const struct weight_list *text_encoder, struct error *err) {
    const size_t most = unet->count + unet->resident_count +
                        (text_encoder ? text_encoder->count + text_encoder->resident_count : 0);
    p->weights = calloc(most, sizeof(*p->weights));
    p->tensors = calloc(2 * most, sizeof(*p->tensors));
    p->ranges = calloc(2 * most, sizeof(*p->ranges));
    if (!p->weights || !p->tensors || !p->ranges)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a list of weights");
    if (!add_model(p, config, COMPONENT_UNET, unet, err) ||
        (text_encoder && !add_model(p, config, COMPONENT_TEXT_ENCODER, text_encoder, err)))
        return false;
    cut(p);
    return true;
}

/* --- their values --- */

static struct tensor view_of(
    const struct parameters *p, const float *data, const struct tensor *t) {
    struct tensor view = *t;
    view.dtype = DTYPE_F32;
    view.data = (float *)data;
    view.device = p->kernels->device;
    return view;
}

/* Copies a norm or a table from or to the model; both are in device memory. Converts a table that
 * the model does not hold as f32. */
static bool copy_resident(const struct parameters *p, const struct tensor *from,
    const struct tensor *to, struct error *err) {
    struct compute c = { .kernels = p->kernels };
    struct tensor out = *to;
    if (from->dtype == to->dtype)
        return p->kernels->memory->copy(to->data, from->data, tensor_bytes(to), err);
    op_convert(&c, &(struct convert_args){ .x = from, .y = &out });
    if (!compute_ok(&c) && err)
        *err = c.error;
    return compute_ok(&c);
}

/* Reads a weight and its bias from the model into `to`. Only called if `values` is NULL; the
 * model's numbers are then f32 in host memory. */
static bool read_weight(
    const struct parameters *p, const struct trained_weight *w, float *to, struct error *err) {
    float *bias = w->floats[1] ? to + w->floats[0] : NULL;
    if (w->packed)
        return packed_unpack(w->packed, to, bias, err);
    const struct tensor weight = view_of(p, to, &w->weight), second = view_of(p, bias, &w->bias);
    return copy_resident(p, &w->weight, &weight, err) &&
           (!bias || copy_resident(p, &w->bias, &second, err));
}

bool parameters_put(
    struct parameters *p, const struct trained_weight *w, const float *values, struct error *err) {
    const float *bias = w->floats[1] ? values + w->floats[0] : NULL;
    if (w->packed)
        return packed_rewrite(w->packed, values, bias, err);
    const struct tensor weight = view_of(p, values, &w->weight);
    const struct tensor second = view_of(p, bias, &w->bias);
    return copy_resident(p, &weight, &w->weight, err) &&
           (!bias || copy_resident(p, &second, &w->bias, err));
}

float *parameters_take(struct parameters *p, const struct trained_weight *w, struct error *err) {
    return read_weight(p, w, p->work, err) ? p->work : NULL;
}

float *parameters_gather(struct parameters *p, struct error *err) {
    bool ok = true;
    if (p->values)
        return p->values;
    for (size_t i = 0; ok && i < p->weight_count; i++)
        ok = read_weight(p, &p->weights[i], p->gradients + p->weights[i].at, err);
    return ok ? p->gradients : NULL;
}

bool parameters_scatter(struct parameters *p, struct error *err) {
    const float *values = p->values ? p->values : p->gradients;
    bool ok = true;
    if (p->products)
        return products_apply(p, err);
    for (size_t i = 0; ok && i < p->weight_count; i++)
        ok = parameters_put(p, &p->weights[i], values + p->weights[i].at, err);
    return ok;
}

void trained_tensor_turn(
    const struct trained_tensor *t, const float *from, bool to_file, float *to) {
    const int64_t outer = to_file ? t->taps : t->k, inner = to_file ? t->k : t->taps;
    if (outer == 1 || inner == 1) {
        memcpy(to, from, (size_t)(t->n * t->taps * t->k) * sizeof(*to));
        return;
    }
    /* [n][outer][inner] to [n][inner][outer] */
#pragma omp parallel for
    for (int64_t i = 0; i < t->n; i++)
        for (int64_t a = 0; a < inner; a++)
            for (int64_t b = 0; b < outer; b++)
                to[(i * inner + a) * outer + b] = from[(i * outer + b) * inner + a];
}

/* Reads a tensor from the source into `values` as f32. The model's own copy is not used, because
 * packing may have rounded it. */
static bool read_source(const struct parameters *p, const struct trained_tensor *t,
    const struct weights *source, struct error *err) {
    const int64_t size = t->taps == 9 ? 3 : 1, count = t->n * t->taps * t->k;
    const int64_t shape[4] = { t->n, t->k, size, size };
    float *plain = malloc((size_t)count * sizeof(*plain));
    float *turned = malloc((size_t)count * sizeof(*turned));
    struct tensor tensor;
    bool ok = (plain && turned) || error_set(err, ERROR_NO_MEMORY, "no memory to read %s", t->name);
    ok = ok && source->get(source->user, t->name, t->rank, shape, &tensor, err);
    if (ok) {
        convert_elements(plain, DTYPE_F32, tensor.data, tensor.dtype, count);
        trained_tensor_turn(t, plain, false, turned);
        ok = p->kernels->memory->upload(
            p->values + t->at, turned, (size_t)count * sizeof(*turned), err);
    }
    free(plain);
    free(turned);
    return ok;
}

/* --- the whole --- */

/* Returns whether the values need a buffer of their own. They need none if the model holds them as
 * f32 in host memory, because they can be read back exactly. */
static bool keeps_values(const struct kernels *kernels, const struct weights *source) {
    return kernels->device != DEVICE_CPU || source->dtype != DTYPE_F32;
}

/* Checks that there is memory before any of it is allocated: for gradients and values; if they are
 * `stepped` for the optimizer's states and the average, else for the copies in host memory that
 * products.c makes. */
static bool check_memory(const struct parameters *p, const struct train_config *config, bool keeps,
    bool stepped, const struct available *room, struct error *err) {
    const size_t floats = (size_t)p->floats * (keeps ? 2 : 1) + (size_t)p->work_floats;
    const bool on_host = p->kernels->device == DEVICE_CPU;
    const size_t copies = !on_host ? 0 : !stepped ? 2 : config->use_ema ? 1 : 0;
    const size_t bytes = (floats + copies * (size_t)p->floats) * sizeof(float) +
                         (stepped ? optimizer_measure(config, p) : 0);
    struct available left;
    if (room)
        left = *room;
    else
        p->kernels->memory->available(&left);
    return bytes <= left.bytes ||
           error_set(err, ERROR_NO_MEMORY,
               "to train all %lld numbers takes %zu MiB beside the model, and %zu MiB are "
               "available (%s)",
               (long long)p->trained, bytes >> 20, left.bytes >> 20, left.why);
}

static bool take_memory(struct parameters *p, const struct train_config *config, bool keeps,
    bool stepped, const struct available *room, struct error *err) {
    const struct device_memory *memory = p->kernels->memory;
    const size_t bytes = (size_t)p->floats * sizeof(float);
    for (size_t i = 0; !keeps && i < p->weight_count; i++) {
        const int64_t floats = p->weights[i].floats[0] + p->weights[i].floats[1];
        p->work_floats = floats > p->work_floats ? floats : p->work_floats;
    }
    return check_memory(p, config, keeps, stepped, room, err) &&
           memory->alloc(MEMORY_WEIGHTS, bytes, (void **)&p->gradients, err) &&
           parameters_clear_gradients(p, err) &&
           (keeps ? memory->alloc(MEMORY_WEIGHTS, bytes, (void **)&p->values, err)
                  : memory->alloc(MEMORY_WEIGHTS, (size_t)p->work_floats * sizeof(float),
                        (void **)&p->work, err));
}

static bool create(const struct kernels *kernels, const struct train_config *config,
    const struct trained_model *unet, const struct trained_model *text_encoder, bool stepped,
    const struct available *room, struct parameters **out, struct error *err) {
    *out = NULL;
    struct parameters *p = calloc(1, sizeof(*p));
    if (!p)
        return error_set(err, ERROR_NO_MEMORY, "no memory for parameters");
    p->kernels = kernels;
    const bool keeps = keeps_values(kernels, unet->source);
    bool ok = lay_out(p, config, unet->list, text_encoder ? text_encoder->list : NULL, err) &&
              take_memory(p, config, keeps, stepped, room, err);
    for (size_t i = 0; ok && keeps && i < p->tensor_count; i++) {
        const struct trained_tensor *t = &p->tensors[i];
        ok = read_source(
            p, t, t->component == COMPONENT_UNET ? unet->source : text_encoder->source, err);
    }
    if (!ok) {
        parameters_destroy(p);
        return false;
    }
    *out = p;
    return true;
}

bool parameters_create_full(const struct kernels *kernels, const struct train_config *config,
    const struct trained_model *unet, const struct trained_model *text_encoder,
    const struct available *room, struct parameters **out, struct error *err) {
    return create(kernels, config, unet, text_encoder, true, room, out, err);
}

bool parameters_create_weights(const struct kernels *kernels, const struct train_config *config,
    const struct trained_model *unet, const struct trained_model *text_encoder,
    const struct available *room, struct parameters **out, struct error *err) {
    return create(kernels, config, unet, text_encoder, false, room, out, err);
}
