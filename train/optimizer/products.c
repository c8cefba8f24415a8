#include "train/optimizer/products.h"

#include "kernels/tensor.h"
#include "train/examples/draws.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t taps_of(const struct named_weight *w) {
    return w->is_conv && w->kind != CONV_1X1 ? 9 : 1;
}

void products_factorize(int64_t dimension, int64_t factor, int64_t *small, int64_t *large) {
    int64_t m = 1, n = dimension;
    if (factor > 0 && dimension % factor == 0) {
        m = factor;
        n = dimension / factor;
    } else {
        const int64_t most = factor < 0 ? dimension : factor;
        while (m < n) {
            int64_t next = m + 1;
            while (dimension % next)
                next++;
            if (next + dimension / next > dimension + 1 || next > most)
                break;
            m = next;
            n = dimension / next;
        }
    }
    *small = m < n ? m : n;
    *large = m < n ? n : m;
}

/* --- which layers, and where their numbers are --- */

/* Places a factor at the end of the values. */
static struct product_factor place(struct parameters *p, int64_t rows, int64_t cols, int64_t rank) {
    const struct product_factor f = { rows, cols, rank, p->floats,
        p->floats + rows * (rank ? rank : cols) };
    p->floats += rank ? (rows + cols) * rank : rows * cols;
    return f;
}

static void place_lokr(
    const struct train_config *c, struct parameters *p, struct product_module *m, int64_t taps) {
    int64_t rows[2], cols[2];
    const double rank = (double)c->rank;
    products_factorize(m->target->n, c->lokr_factor, &rows[0], &rows[1]);
    products_factorize(m->target->k, c->lokr_factor, &cols[0], &cols[1]);
    for (int i = 0; i < 2; i++) {
        const double half = (double)(rows[i] > cols[i] ? rows[i] : cols[i]) / 2;
        const bool whole = rank >= half || (i == 0 && !c->lokr_decompose_both);
        m->factors[i] = place(p, rows[i], cols[i] * (i ? taps : 1), whole ? 0 : c->rank);
    }
    /* LyCORIS: nothing to scale if there is no rank. */
    if (!m->factors[0].rank && !m->factors[1].rank)
        m->scale = 1;
}

static void place_module(
    const struct train_config *c, struct parameters *p, struct product_module *m) {
    const int64_t taps = taps_of(m->target), n = m->target->n, first = p->floats;
    m->scale = p->scale;
    m->magnitude = -1;
    if (c->adapter_type == TRAIN_ADAPTER_LOKR) {
        place_lokr(c, p, m, taps);
    } else {
        m->factors[0] = place(p, n, m->target->k * taps, c->rank);
        if (c->adapter_type == TRAIN_ADAPTER_LOHA)
            m->factors[1] = place(p, n, m->target->k * taps, c->rank);
    }
    if (c->use_dora) {
        m->magnitude = p->floats;
        p->floats += n;
    }
    m->alpha = m->scale * (double)c->rank;
    parameters_rates(c, m->component, m->target->name, &m->learning_rate, &m->weight_decay);
    struct parameter_range *last = p->range_count ? &p->ranges[p->range_count - 1] : NULL;
    if (!last || last->learning_rate != m->learning_rate || last->weight_decay != m->weight_decay) {
        last = &p->ranges[p->range_count++];
        *last = (struct parameter_range){ first, 0, m->learning_rate, m->weight_decay };
    }
    last->count += p->floats - first;
}

/* Makes a list of those matrices that share a packed weight with a target. */
static bool filter(const struct parameters *targets, enum component component,
    const struct weight_list *list, struct weight_list *out, struct error *err) {
    for (size_t i = 0; i < list->count; i++) {
        bool wanted = false;
        for (size_t t = 0; t < targets->count && !wanted; t++)
            wanted = targets->modules[t].component == component &&
                     targets->modules[t].target->packed == list->items[i].packed;
        if (wanted && !weight_list_add(out, &list->items[i], err))
            return false;
    }
    return true;
}

static size_t tensor_of(const struct parameters *whole, const struct product_module *m) {
    const size_t length = strlen(m->target->name);
    size_t i = 0;
    while (whole->tensors[i].component != m->component ||
           strncmp(whole->tensors[i].name, m->target->name, length) != 0 ||
           strcmp(whole->tensors[i].name + length, ".weight") != 0)
        i++;
    return i;
}

/* Creates the weights as parameters of their own, with the untouched weights in host memory. */
static bool make_whole(const struct kernels *kernels, const struct train_config *config,
    const struct parameters *targets, const struct trained_model *unet,
    const struct trained_model *text_encoder, const struct available *room, struct products *s,
    struct error *err) {
    struct weight_list lists[2] = { 0 };
    const struct trained_model models[2] = { { &lists[0], unet->source },
        { &lists[1], text_encoder ? text_encoder->source : NULL } };
    bool ok = filter(targets, COMPONENT_UNET, unet->list, &lists[0], err) &&
              (!text_encoder ||
                  filter(targets, COMPONENT_TEXT_ENCODER, text_encoder->list, &lists[1], err)) &&
              parameters_create_weights(kernels, config, &models[0],
                  text_encoder ? &models[1] : NULL, room, &s->whole, err);
    weight_list_finish(&lists[0]);
    weight_list_finish(&lists[1]);
    if (!ok)
        return false;
    const size_t bytes = (size_t)s->whole->floats * sizeof(float);
    float *values = parameters_gather(s->whole, err);
    const float *seen = values ? kernels->memory->view(values, bytes, err) : NULL;
    s->base = malloc(bytes);
    if (seen && !s->base)
        error_set(err, ERROR_NO_MEMORY, "no memory for a copy of the weights");
    if (!seen || !s->base)
        return false;
    memcpy(s->base, seen, bytes);
    return parameters_clear_gradients(s->whole, err);
}

static bool list_modules(const struct train_config *config, const struct parameters *targets,
    struct parameters *p, struct error *err) {
    struct products *s = p->products;
    s->modules = calloc(targets->count, sizeof(*s->modules));
    p->ranges = calloc(targets->count, sizeof(*p->ranges));
    if (!s->modules || !p->ranges)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a list of layers");
    for (; s->count < targets->count; s->count++) {
        struct product_module *m = &s->modules[s->count];
        m->component = targets->modules[s->count].component;
        m->target = targets->modules[s->count].target;
        m->tensor = tensor_of(s->whole, m);
        place_module(config, p, m);
    }
    p->trained = p->floats;
    return true;
}

/* --- the first numbers --- */

/* Draws the numbers as torch's kaiming_uniform_ with a = sqrt(5) draws a matrix with `cols`
 * columns. */
static void draw_kaiming(
    struct noise_generator *generator, int64_t count, int64_t cols, float *out) {
    const float bound = (float)(sqrt(3.0) * (sqrt(2.0 / (1 + 5.0)) / sqrt((double)cols)));
    for (int64_t i = 0; i < count; i++)
        out[i] = draws_uniform(&generator->mt) * (2 * bound) - bound;
}

static void draw_normal(
    struct noise_generator *generator, int64_t count, float deviation, float *out) {
    noise_draw(generator, out, count);
    for (int64_t i = 0; i < count; i++)
        out[i] *= deviation;
}

/* In the order of LyCORIS: w1_b, w1_a, w2_b; w2_a stays 0. */
static void draw_loha(
    const struct product_module *m, struct noise_generator *generator, float *values) {
    const struct product_factor *first = &m->factors[0], *second = &m->factors[1];
    draw_normal(generator, first->rank * first->cols, 1, values + first->b);
    draw_normal(generator, first->rows * first->rank, 0.1f, values + first->a);
    draw_normal(generator, second->rank * second->cols, 1, values + second->b);
}

/* In the order of LyCORIS: w2_a, then w1 or its factors; w2 or w2_b stays 0. */
static void draw_lokr(
    const struct product_module *m, struct noise_generator *generator, float *values) {
    const struct product_factor *first = &m->factors[0], *second = &m->factors[1];
    if (second->rank)
        draw_kaiming(generator, second->rows * second->rank, second->rank, values + second->a);
    if (!first->rank) {
        draw_kaiming(generator, first->rows * first->cols, first->cols, values + first->a);
        return;
    }
    draw_kaiming(generator, first->rows * first->rank, first->rank, values + first->a);
    draw_kaiming(generator, first->rank * first->cols, first->cols, values + first->b);
}

/* Returns the norm of a row of weights. */
static float norm_of(const float *row, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)row[i] * (double)row[i];
    return (float)sqrt(sum);
}

static void draw_lora(const struct train_config *config, const struct products *s,
    const struct product_module *m, struct noise_generator *generator, float *values) {
    const struct trained_tensor *t = &s->whole->tensors[m->tensor];
    const int64_t row = t->taps * t->k; /* the norm does not depend on the order in a row */
    parameters_draw_down(config, m->target, generator, values + m->factors[0].b);
    for (int64_t o = 0; m->magnitude >= 0 && o < t->n; o++)
        values[m->magnitude + o] = norm_of(s->base + t->at + o * row, row);
}

static bool draw_all(const struct train_config *config, struct noise_generator *generator,
    struct parameters *p, struct error *err) {
    const struct products *s = p->products;
    const size_t bytes = (size_t)p->floats * sizeof(float);
    float *values = calloc(1, bytes);
    if (!values)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an adapter's numbers");
    for (size_t i = 0; i < s->count; i++)
        if (s->kind == TRAIN_ADAPTER_LOHA)
            draw_loha(&s->modules[i], generator, values);
        else if (s->kind == TRAIN_ADAPTER_LOKR)
            draw_lokr(&s->modules[i], generator, values);
        else
            draw_lora(config, s, &s->modules[i], generator, values);
    const bool ok = p->kernels->memory->upload(p->values, values, bytes, err);
    free(values);
    return ok;
}

/* --- the whole --- */

bool products_create(const struct kernels *kernels, const struct train_config *config,
    const struct trained_model *unet, const struct trained_model *text_encoder,
    struct noise_generator *generator, const struct available *room, struct parameters **out,
    struct error *err) {
    const struct device_memory *memory = kernels->memory;
    struct parameters *targets = NULL, *p = calloc(1, sizeof(*p));
    *out = NULL;
    if (p) {
        p->kernels = kernels;
        p->rank = config->rank;
        p->products = calloc(1, sizeof(*p->products));
    }
    bool ok = (p && p->products) || error_set(err, ERROR_NO_MEMORY, "no memory for parameters");
    ok = ok && parameters_find_targets(kernels, config, unet->list,
                   text_encoder ? text_encoder->list : NULL, &targets, err);
    if (ok) {
        p->products->kind = config->adapter_type;
        p->alpha = targets->alpha;
        p->scale = targets->scale;
    }
    ok = ok && make_whole(kernels, config, targets, unet, text_encoder, room, p->products, err) &&
         list_modules(config, targets, p, err);
    const size_t bytes = ok ? (size_t)p->floats * sizeof(float) : 0;
    ok = ok && memory->alloc(MEMORY_WEIGHTS, bytes, (void **)&p->values, err) &&
         memory->alloc(MEMORY_WEIGHTS, bytes, (void **)&p->gradients, err) &&
         memory->zero(p->gradients, bytes, err) && draw_all(config, generator, p, err) &&
         products_apply(p, err);
    parameters_destroy(targets);
    if (ok)
        *out = p;
    else
        parameters_destroy(p);
    return ok;
}

void products_destroy(struct products *s) {
    if (!s)
        return;
    parameters_destroy(s->whole);
    free(s->modules);
    free(s->base);
    free(s);
}

/* --- arithmetic on one layer --- */

/* y[rows][cols] = a [rows][inner] b [inner][cols] */
static void multiply(
    const float *a, const float *b, int64_t rows, int64_t inner, int64_t cols, float *y) {
    for (int64_t i = 0; i < rows; i++) {
        float *out = y + i * cols;
        memset(out, 0, (size_t)cols * sizeof(*out));
        for (int64_t t = 0; t < inner; t++)
            for (int64_t j = 0; j < cols; j++)
                out[j] += a[i * inner + t] * b[t * cols + j];
    }
}

static void compute_factor(const struct product_factor *f, const float *values, float *out) {
    if (f->rank)
        multiply(values + f->a, values + f->b, f->rows, f->rank, f->cols, out);
    else
        memcpy(out, values + f->a, (size_t)(f->rows * f->cols) * sizeof(*out));
}

/* Adds to the gradients of a factor what its matrix's gradient d [rows][cols] makes of them: each
 * is summed first, then added (backward.h). `sums` [rank][cols] is scratch. */
static void factor_gradient(const struct product_factor *f, const float *values, const float *d,
    float *sums, float *gradients) {
    const float *a = values + f->a, *b = values + f->b;
    float *da = gradients + f->a, *db = gradients + f->b;
    if (!f->rank) {
        for (int64_t i = 0; i < f->rows * f->cols; i++)
            da[i] += d[i];
        return;
    }
    memset(sums, 0, (size_t)(f->rank * f->cols) * sizeof(*sums));
    for (int64_t i = 0; i < f->rows; i++)
        for (int64_t t = 0; t < f->rank; t++) {
            float sum = 0;
            for (int64_t j = 0; j < f->cols; j++)
                sum += d[i * f->cols + j] * b[t * f->cols + j];
            da[i * f->rank + t] += sum;
            for (int64_t j = 0; j < f->cols; j++)
                sums[t * f->cols + j] += a[i * f->rank + t] * d[i * f->cols + j];
        }
    for (int64_t i = 0; i < f->rank * f->cols; i++)
        db[i] += sums[i];
}

/* Memory for one layer. */
struct room {
    float *base, *change; /* owned: [n][k taps] */
    float *factors[2];    /* owned: the matrices */
    float *d[2];          /* owned: their gradients */
    float *sums[2];       /* owned: [rank][cols] */
};

static void room_finish(struct room *r) {
    float *const all[] = { r->base, r->change, r->factors[0], r->factors[1], r->d[0], r->d[1],
        r->sums[0], r->sums[1] };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

static bool room_init(const struct product_module *m, struct room *r) {
    const size_t count = (size_t)(m->target->n * m->target->k * taps_of(m->target));
    bool ok = true;
    *r = (struct room){ .base = malloc(count * sizeof(float)),
        .change = malloc(count * sizeof(float)) };
    for (int i = 0; i < 2; i++) {
        const struct product_factor *f = &m->factors[i];
        const size_t own = (size_t)(f->rows * f->cols);
        r->factors[i] = malloc((own + 1) * sizeof(float));
        r->d[i] = calloc(own + 1, sizeof(float));
        r->sums[i] = malloc((size_t)(f->rank * f->cols + 1) * sizeof(float));
        ok = ok && r->factors[i] && r->d[i] && r->sums[i];
    }
    if (ok && r->base && r->change)
        return true;
    room_finish(r);
    return false;
}

/* Computes W + the change, without the magnitude, in r->change. */
static void compute_sum(
    const struct products *s, const struct product_module *m, const float *values, struct room *r) {
    const struct trained_tensor *t = &s->whole->tensors[m->tensor];
    const int64_t cols = t->k * t->taps, count = t->n * cols;
    const float scale = (float)m->scale;
    trained_tensor_turn(t, s->base + t->at, true, r->base);
    for (int i = 0; i < 2 && m->factors[i].rows; i++)
        compute_factor(&m->factors[i], values, r->factors[i]);
    const float *first = r->factors[0], *second = r->factors[1];
    const int64_t rows2 = m->factors[1].rows, cols1 = m->factors[0].cols;
    const int64_t cols2 = m->factors[1].cols;
    for (int64_t i = 0; i < count; i++) {
        const int64_t o = i / cols, c = i % cols;
        const float change = s->kind == TRAIN_ADAPTER_LORA ? first[i]
                             : s->kind == TRAIN_ADAPTER_LOHA
                                 ? first[i] * second[i]
                                 : first[o / rows2 * cols1 + c / cols2] *
                                       second[o % rows2 * cols2 + c % cols2];
        r->change[i] = r->base[i] + scale * change;
    }
}

/* Turns the gradient `d` of W' into that of the sum W + change, and adds the magnitude's. */
static void magnitude_gradient(const struct product_module *m, const float *values,
    const struct room *r, int64_t rows, int64_t cols, float *d, float *gradients) {
    for (int64_t o = 0; o < rows; o++) {
        const float norm = norm_of(r->change + o * cols, cols);
        const float factor = norm > 0 ? values[m->magnitude + o] / norm : 0;
        double sum = 0;
        for (int64_t i = o * cols; i < (o + 1) * cols; i++) {
            sum += (double)d[i] * (double)r->change[i];
            d[i] *= factor;
        }
        gradients[m->magnitude + o] += norm > 0 ? (float)(sum / (double)norm) : 0;
    }
}

/* Adds the gradients of a module's numbers; `weights` has the gradients of the weights. */
static bool pull_module(const struct products *s, const struct product_module *m,
    const float *values, const float *weights, float *gradients) {
    const struct trained_tensor *t = &s->whole->tensors[m->tensor];
    const int64_t cols = t->k * t->taps, count = t->n * cols;
    const int64_t rows2 = m->factors[1].rows, cols1 = m->factors[0].cols;
    const int64_t cols2 = m->factors[1].cols;
    const float scale = (float)m->scale;
    struct room r;
    if (!room_init(m, &r))
        return false;
    compute_sum(s, m, values, &r);
    float *d = r.base; /* no longer needed */
    trained_tensor_turn(t, weights + t->at, true, d);
    if (m->magnitude >= 0)
        magnitude_gradient(m, values, &r, t->n, cols, d, gradients);
    for (int64_t i = 0; i < count; i++) {
        const float own = scale * d[i];
        int64_t one = i, two = i;
        if (s->kind == TRAIN_ADAPTER_LOKR) {
            one = i / cols / rows2 * cols1 + i % cols / cols2;
            two = i / cols % rows2 * cols2 + i % cols % cols2;
        }
        r.d[0][one] += s->kind == TRAIN_ADAPTER_LORA ? own : own * r.factors[1][two];
        if (s->kind != TRAIN_ADAPTER_LORA)
            r.d[1][two] += own * r.factors[0][one];
    }
    for (int i = 0; i < 2 && m->factors[i].rows; i++)
        factor_gradient(&m->factors[i], values, r.d[i], r.sums[i], gradients);
    room_finish(&r);
    return true;
}

/* Computes a module's new weights in their place in `out`. */
static bool apply_module(
    const struct products *s, const struct product_module *m, const float *values, float *out) {
    const struct trained_tensor *t = &s->whole->tensors[m->tensor];
    const int64_t cols = t->k * t->taps;
    struct room r;
    if (!room_init(m, &r))
        return false;
    compute_sum(s, m, values, &r);
    for (int64_t o = 0; m->magnitude >= 0 && o < t->n; o++) {
        float *row = r.change + o * cols;
        const float norm = norm_of(row, cols);
        const float factor = norm > 0 ? values[m->magnitude + o] / norm : 0;
        for (int64_t i = 0; i < cols; i++)
            row[i] *= factor;
    }
    trained_tensor_turn(t, r.change, false, out + t->at);
    room_finish(&r);
    return true;
}

/* --- all layers --- */

/* Copies a buffer of the device to host memory; the caller frees it. */
static float *fetch(
    const struct parameters *p, const float *buffer, int64_t floats, struct error *err) {
    const size_t bytes = (size_t)floats * sizeof(float);
    float *copy = malloc(bytes);
    const float *seen = copy ? p->kernels->memory->view(buffer, bytes, err) : NULL;
    if (!copy)
        error_set(err, ERROR_NO_MEMORY, "no memory for %zu bytes", bytes);
    if (seen)
        return memcpy(copy, seen, bytes);
    free(copy);
    return NULL;
}

bool products_pull(struct parameters *p, struct error *err) {
    const struct products *s = p->products;
    float *values = fetch(p, p->values, p->floats, err);
    float *weights = values ? fetch(p, s->whole->gradients, s->whole->floats, err) : NULL;
    float *gradients = weights ? fetch(p, p->gradients, p->floats, err) : NULL;
    int failed = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : failed) if (gradients)
    for (size_t i = 0; i < (gradients ? s->count : 0); i++)
        failed += !pull_module(s, &s->modules[i], values, weights, gradients);
    if (failed)
        error_set(err, ERROR_NO_MEMORY, "no memory for the gradients of an adapter");
    const bool ok = gradients && !failed &&
                    p->kernels->memory->upload(
                        p->gradients, gradients, (size_t)p->floats * sizeof(float), err);
    free(values);
    free(weights);
    free(gradients);
    return ok;
}

/* Puts the weights `out`, in host memory, into the models. */
static bool put(struct parameters *whole, const float *out, struct error *err) {
    bool ok = true;
    if (whole->values)
        return whole->kernels->memory->upload(
                   whole->values, out, (size_t)whole->floats * sizeof(float), err) &&
               parameters_scatter(whole, err);
    for (size_t i = 0; ok && i < whole->weight_count; i++)
        ok = parameters_put(whole, &whole->weights[i], out + whole->weights[i].at, err);
    return ok;
}

bool products_apply(struct parameters *p, struct error *err) {
    const struct products *s = p->products;
    const size_t bytes = (size_t)s->whole->floats * sizeof(float);
    float *values = fetch(p, p->values, p->floats, err);
    float *out = values ? malloc(bytes) : NULL;
    int failed = 0;
    if (values && !out)
        error_set(err, ERROR_NO_MEMORY, "no memory for an adapter's weights");
    if (out)
        memcpy(out, s->base, bytes);
#pragma omp parallel for schedule(dynamic) reduction(+ : failed) if (out)
    for (size_t i = 0; i < (out ? s->count : 0); i++)
        failed += !apply_module(s, &s->modules[i], values, out);
    if (failed)
        error_set(err, ERROR_NO_MEMORY, "no memory for an adapter's weights");
    const bool ok = out && !failed && put(s->whole, out, err);
    free(values);
    free(out);
    return ok;
}
