#include "train/optimizer/parameters.h"

#include "base/text/words.h"
#include "train/examples/draws.h"
#include "train/module_order.h"
#include "train/optimizer/products.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- which layers --- */

/* Returns whether a target names a layer, as in peft: it is the whole name, or everything after one
 * of the name's dots. */
static bool is_target(const char *name, const char *target) {
    const size_t length = strlen(name), end = strlen(target);
    return length >= end && strcmp(name + length - end, target) == 0 &&
           (length == end || name[length - end - 1] == '.');
}

/* Matches a pattern. Each part matches at its first position after the previous part, which leaves
 * the most text for the rest. */
bool parameters_name_fits(const char *name, const char *pattern) {
    for (;;) {
        const size_t length = strcspn(pattern, "*");
        while (*name && strncmp(name, pattern, length) != 0)
            name++;
        if (strncmp(name, pattern, length) != 0)
            return false;
        if (!pattern[length])
            return true;
        name += length;
        pattern += length + 1;
    }
}

static bool refuse_targets(const char *field, const struct train_texts *targets,
    const struct weight_list *list, struct error *err) {
    const char *leafs[48];
    size_t count = 0;
    for (size_t i = 0; i < list->count && count < sizeof(leafs) / sizeof(leafs[0]); i++) {
        const char *dot = strrchr(list->items[i].name, '.');
        const char *leaf = dot ? dot + 1 : list->items[i].name;
        size_t known = 0;
        while (known < count && strcmp(leafs[known], leaf) != 0)
            known++;
        if (known == count)
            leafs[count++] = leaf;
    }
    char text[ERROR_ALLOWED_BYTES - 64], given[100];
    words_list(given, sizeof(given), (const char *const *)targets->items, targets->count, "", ", ");
    return error_field(err, field, given, "the end of a layer's name: %s",
        words_list(text, sizeof(text), leafs, count, "", " or "));
}

static int by_module_order(const void *a, const void *b) {
    const struct trained_module *x = a, *y = b;
    return module_order(x->target->name, y->target->name);
}

static bool is_there(const struct weight_list *list, const char *target) {
    size_t i = 0;
    while (i < list->count && !is_target(list->items[i].name, target))
        i++;
    return i < list->count;
}

/* Checks the targets. As in peft, one matching target is enough. */
static bool are_there(const struct weight_list *list, const struct train_texts *targets,
    const char *field, struct error *err) {
    size_t t = 0;
    while (t < targets->count && !is_there(list, targets->items[t]))
        t++;
    return t < targets->count || refuse_targets(field, targets, list, err);
}

bool parameters_are_there(const struct train_config *config, const struct weight_list *unet,
    const struct weight_list *text_encoder, struct error *err) {
    return are_there(unet, &config->target_modules, "target_modules", err) &&
           (!text_encoder || are_there(text_encoder, &config->text_encoder_target_modules,
                                 "text_encoder_target_modules", err));
}

const char *parameters_unused_target(
    const struct weight_list *list, const struct train_texts *targets, size_t index) {
    for (size_t t = 0; t < targets->count; t++)
        if (!is_there(list, targets->items[t]) && index-- == 0)
            return targets->items[t];
    return NULL;
}

static void collect(struct parameters *p, enum component component, const struct weight_list *list,
    const struct train_texts *targets) {
    const size_t first = p->count;
    for (size_t i = 0; i < list->count; i++) {
        bool wanted = false;
        for (size_t t = 0; t < targets->count && !wanted; t++)
            wanted = is_target(list->items[i].name, targets->items[t]);
        if (wanted)
            p->modules[p->count++] = (struct trained_module){ .component = component,
                .target = &list->items[i] };
    }
    qsort(p->modules + first, p->count - first, sizeof(*p->modules), by_module_order);
}

/* --- their rates and positions --- */

double parameters_rate_scale(const struct train_config *config) {
    return config->scale_lr
               ? (double)(config->gradient_accumulation_steps * config->train_batch_size)
               : 1;
}

void parameters_rates(const struct train_config *config, enum component component, const char *name,
    double *learning_rate, double *weight_decay) {
    const bool is_text = component == COMPONENT_TEXT_ENCODER;
    *learning_rate = is_text && config->text_encoder_learning_rate > 0
                         ? config->text_encoder_learning_rate
                         : config->learning_rate;
    *weight_decay = config->adam_weight_decay;
    for (size_t i = 0; i < config->parameter_groups.count; i++) {
        const struct train_group *group = &config->parameter_groups.items[i];
        if (!parameters_name_fits(name, group->pattern))
            continue;
        if (!isnan(group->learning_rate))
            *learning_rate = group->learning_rate;
        if (!isnan(group->weight_decay))
            *weight_decay = group->weight_decay;
        break;
    }
    *learning_rate *= parameters_rate_scale(config);
}

static void place(const struct train_config *config, struct parameters *p) {
    for (size_t i = 0; i < p->count; i++) {
        struct trained_module *m = &p->modules[i];
        const struct low_rank_factors factors = low_rank_factors_of(
            m->target->packed, m->target->n, config->rank);
        m->at = p->floats;
        m->down_floats = factors.down_floats;
        m->up_floats = factors.up_floats;
        p->floats += factors.down_floats + factors.up_floats;
        p->trained += factors.rank * (factors.k * factors.taps + factors.n);
        parameters_rates(
            config, m->component, m->target->name, &m->learning_rate, &m->weight_decay);
        struct parameter_range *last = p->range_count ? &p->ranges[p->range_count - 1] : NULL;
        if (!last || last->learning_rate != m->learning_rate ||
            last->weight_decay != m->weight_decay) {
            last = &p->ranges[p->range_count++];
            *last = (struct parameter_range){ m->at, 0, m->learning_rate, m->weight_decay };
        }
        last->count += factors.down_floats + factors.up_floats;
    }
}

/* Finds the target layers. */
static bool list_targets(const struct train_config *config, const struct weight_list *unet,
    const struct weight_list *text_encoder, struct parameters *p, struct error *err) {
    const size_t most = unet->count + (text_encoder ? text_encoder->count : 0);
    p->rank = config->rank;
    p->alpha = config->alpha;
    p->scale = p->alpha / (config->use_rslora ? sqrt((double)p->rank) : (double)p->rank);
    p->modules = calloc(most, sizeof(*p->modules));
    p->ranges = calloc(most, sizeof(*p->ranges));
    if (!p->modules || !p->ranges)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a list of layers");
    if (!parameters_are_there(config, unet, text_encoder, err))
        return false;
    collect(p, COMPONENT_UNET, unet, &config->target_modules);
    if (text_encoder)
        collect(p, COMPONENT_TEXT_ENCODER, text_encoder, &config->text_encoder_target_modules);
    return true;
}

bool parameters_find_targets(const struct kernels *kernels, const struct train_config *config,
    const struct weight_list *unet, const struct weight_list *text_encoder, struct parameters **out,
    struct error *err) {
    struct parameters *p = calloc(1, sizeof(*p));
    *out = NULL;
    if (!p)
        return error_set(err, ERROR_NO_MEMORY, "no memory for parameters");
    p->kernels = kernels;
    if (list_targets(config, unet, text_encoder, p, err)) {
        *out = p;
        return true;
    }
    parameters_destroy(p);
    return false;
}

/* --- their initial values --- */

static int64_t taps_of(const struct named_weight *target) {
    return target->is_conv && target->kind != CONV_1X1 ? 9 : 1;
}

/* Returns element (o, i) of [outer][inner], which is stored in panels of 16 along `outer`. */
static float *panel_at(float *panels, int64_t inner, int64_t o, int64_t i) {
    return panels + ((o / LOW_RANK_PANEL) * inner + i) * LOW_RANK_PANEL + o % LOW_RANK_PANEL;
}

/* torch first draws default values for both of the layer's factors, which are replaced; these draws
 * are skipped. */
void parameters_draw_down(const struct train_config *config, const struct named_weight *target,
    struct noise_generator *generator, float *out) {
    const int64_t inputs = target->k * taps_of(target);
    const int64_t count = config->rank * inputs;
    const int64_t unseen = count + config->rank * target->n;
    mt19937_skip(&generator->mt, unseen);
    if (config->init_lora_weights == TRAIN_INIT_GAUSSIAN) {
        noise_draw(generator, out, count);
        for (int64_t i = 0; i < count; i++)
            out[i] *= (float)(1.0 / (double)config->rank);
        return;
    }
    /* kaiming_uniform_ with a = sqrt(5): the bound is 1 / sqrt(inputs). */
    const float bound = (float)(sqrt(3.0) * (sqrt(2.0 / (1 + 5.0)) / sqrt((double)inputs)));
    for (int64_t i = 0; i < count; i++)
        out[i] = draws_uniform(&generator->mt) * (2 * bound) - bound;
}

static bool initialize(const struct train_config *config, struct noise_generator *generator,
    bool (*is_wanted)(void *user), void *user, struct parameters *p, struct error *err) {
    const struct device_memory *memory = p->kernels->memory;
    for (size_t i = 0; i < p->count; i++) {
        if (is_wanted && !is_wanted(user))
            return error_set(err, ERROR_CANCELLED, "the job is wanted back");
        const struct trained_module *m = &p->modules[i];
        const int64_t taps = taps_of(m->target), k = m->target->k;
        float *plain = malloc((size_t)(config->rank * k * taps) * sizeof(float));
        float *panels = calloc((size_t)m->down_floats, sizeof(float));
        bool ok = plain && panels;
        if (!ok)
            error_set(err, ERROR_NO_MEMORY, "no memory for the factors of %s", m->target->name);
        if (ok) {
            parameters_draw_down(config, m->target, generator, plain);
            for (int64_t r = 0; r < config->rank; r++)
                for (int64_t c = 0; c < k; c++)
                    for (int64_t tap = 0; tap < taps; tap++)
                        *panel_at(
                            panels, taps * k, r, tap * k + c) = plain[(r * k + c) * taps + tap];
            ok = memory->upload(
                p->values + m->at, panels, (size_t)m->down_floats * sizeof(float), err);
        }
        free(plain);
        free(panels);
        if (!ok)
            return false;
    }
    return true;
}

void parameters_plain(
    const struct trained_module *m, int64_t rank, const float *values, float *down, float *up) {
    const int64_t taps = taps_of(m->target), k = m->target->k, n = m->target->n;
    float *panels = (float *)values + m->at; /* only read */
    for (int64_t r = 0; r < rank; r++)
        for (int64_t c = 0; c < k; c++)
            for (int64_t tap = 0; tap < taps; tap++)
                down[(r * k + c) * taps + tap] = *panel_at(panels, taps * k, r, tap * k + c);
    panels += m->down_floats;
    for (int64_t o = 0; o < n; o++)
        for (int64_t r = 0; r < rank; r++)
            up[o * rank + r] = *panel_at(panels, rank, o, r);
}

/* --- the whole --- */

static bool make_pairs(struct parameters *p, struct error *err) {
    if (!row_overlay_create(&p->overlay, err))
        return false;
    for (size_t i = 0; i < p->count; i++) {
        struct trained_module *m = &p->modules[i];
        if (!low_rank_pair_create_zeros(m->target->name, m->target->packed, m->target->n, p->rank,
                p->values + m->at, &m->pair, err) ||
            !row_overlay_add_low_rank(
                p->overlay, m->target->packed, m->target->first, m->pair, (float)p->scale, err))
            return false;
    }
    return true;
}

bool parameters_create(const struct kernels *kernels, const struct train_config *config,
    const struct weight_list *unet, const struct weight_list *text_encoder,
    struct noise_generator *generator, bool (*is_wanted)(void *user), void *user,
    struct parameters **out, struct error *err) {
    *out = NULL;
    struct parameters *p;
    if (!parameters_find_targets(kernels, config, unet, text_encoder, &p, err))
        return false;
    place(config, p);
    const size_t bytes = (size_t)p->floats * sizeof(float);
    const bool ok = kernels->memory->alloc(MEMORY_WEIGHTS, bytes, (void **)&p->values, err) &&
                    kernels->memory->alloc(MEMORY_WEIGHTS, bytes, (void **)&p->gradients, err) &&
                    kernels->memory->zero(p->gradients, bytes, err) && make_pairs(p, err) &&
                    initialize(config, generator, is_wanted, user, p, err);
    if (!ok) {
        parameters_destroy(p);
        return false;
    }
    *out = p;
    return true;
}

void parameters_destroy(struct parameters *p) {
    if (!p)
        return;
    products_destroy(p->products);
    row_overlay_destroy(p->overlay);
    for (size_t i = 0; i < p->count; i++)
        low_rank_pair_destroy(p->modules[i].pair);
    for (size_t i = 0; i < p->tensor_count; i++)
        free(p->tensors[i].name);
    const struct device_memory *memory = p->kernels->memory;
    const size_t bytes = (size_t)p->floats * sizeof(float);
    memory->release(MEMORY_WEIGHTS, p->values, bytes);
    memory->release(MEMORY_WEIGHTS, p->gradients, bytes);
    memory->release(MEMORY_WEIGHTS, p->work, (size_t)p->work_floats * sizeof(float));
    free(p->modules);
    free(p->weights);
    free(p->tensors);
    free(p->ranges);
    free(p);
}

size_t parameters_bytes(const struct parameters *p) {
    const size_t own = ((size_t)p->floats * (p->values ? 2 : 1) + (size_t)p->work_floats) *
                       sizeof(float);
    return own + (p->products ? parameters_bytes(p->products->whole) : 0);
}

size_t parameters_host_bytes(const struct parameters *p) {
    return p->products ? 2 * (size_t)p->products->whole->floats * sizeof(float) : 0;
}

size_t parameters_taped_count(const struct parameters *p) {
    return p->products ? p->products->whole->weight_count : p->count + p->weight_count;
}

void parameters_taped(const struct parameters *p, float dropout, const uint64_t *seed,
    const uint64_t *step, struct tape_parameter *out) {
    p = p->products ? p->products->whole : p;
    for (size_t i = 0; i < p->count; i++) {
        const struct trained_module *m = &p->modules[i];
        float *gradient = p->gradients + m->at;
        *out++ = (struct tape_parameter){
            .kind = TAPE_PAIR,
            .what = m->pair,
            .gradient = { gradient, gradient + m->down_floats },
            .dropout = dropout,
            .layer = (uint32_t)i,
            .seed = seed,
            .step = step,
        };
    }
    for (size_t i = 0; i < p->weight_count; i++) {
        const struct trained_weight *w = &p->weights[i];
        float *gradient = p->gradients + w->at;
        *out++ = (struct tape_parameter){
            .kind = w->kind,
            .what = w->packed ? (const void *)w->packed : w->weight.data,
            .gradient = { gradient, w->floats[1] ? gradient + w->floats[0] : NULL },
        };
    }
}

/* The factors of a layer: down [rank][k][taps] and up [n][rank], in panels. */
static struct parameters_tensor factor_at(
    const struct parameters *p, const struct trained_module *m, bool is_up) {
    const struct named_weight *w = m->target;
    return (struct parameters_tensor){ m->at + (is_up ? m->down_floats : 0),
        { .n = is_up ? w->n : p->rank,
            .k = is_up ? p->rank : w->k,
            .side = !is_up && taps_of(w) == 9 ? 3 : 1,
            .panel = LOW_RANK_PANEL,
            .is_matrix = !w->is_conv } };
}

bool parameters_tensor_at(const struct parameters *p, size_t index, struct parameters_tensor *out) {
    if (index / 2 < p->count) {
        *out = factor_at(p, &p->modules[index / 2], index % 2);
        return true;
    }
    if (index >= p->tensor_count)
        return false;
    const struct trained_tensor *t = &p->tensors[index];
    *out = (struct parameters_tensor){ t->at, { .n = t->n,
                                                  .k = t->k,
                                                  .side = t->taps == 9 ? 3 : 1,
                                                  .panel = 1,
                                                  .is_matrix = t->rank == 2 } };
    return true;
}

bool parameters_clear_gradients(struct parameters *p, struct error *err) {
    return p->kernels->memory->zero(p->gradients, (size_t)p->floats * sizeof(float), err) &&
           (!p->products || parameters_clear_gradients(p->products->whole, err));
}

bool parameters_pull_gradients(struct parameters *p, struct error *err) {
    return !p->products || products_pull(p, err);
}
