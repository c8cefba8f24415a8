#include "models/adapter/adapter.h"

#include "base/file.h"
#include "models/adapter/adapter_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct adapter {
    struct safetensors *file;
    struct adapter_config config;
    struct adapter_index index; /* used only while adapter_open reads the file */
    struct named_weight *norms; /* owned: the modules' targets that describe norms */
    struct adapter_summary summary;
    struct adapter_module *modules; /* owned */
    size_t module_count;
    struct adapter_leftover *leftovers; /* owned, and so are their names */
    size_t leftover_count;
};

/* A tensor of the file, used while modules are assembled. */
struct piece {
    const char *tensor;
    size_t entry;
    struct adapter_name name;
};

static int by_module(const void *a, const void *b) {
    const struct piece *x = a, *y = b;
    const size_t shorter = x->name.module_length < y->name.module_length ? x->name.module_length
                                                                         : y->name.module_length;
    const int order = strncmp(x->tensor, y->tensor, shorter);
    if (order != 0 || x->name.module_length == y->name.module_length)
        return order;
    return x->name.module_length < y->name.module_length ? -1 : 1;
}

static bool leave(
    struct adapter *a, const char *name, size_t length, const char *why, struct error *err) {
    char *copy = strndup(name, length);
    if (!copy)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a name");
    a->leftovers[a->leftover_count++] = (struct adapter_leftover){ copy, why };
    return true;
}

/* Refuses the kinds that are recognised by their names but not supported. */
static bool check_kind(const struct piece *piece, struct error *err) {
    switch (piece->name.kind) {
    case ADAPTER_IA3:
    case ADAPTER_OFT:
    case ADAPTER_GLORA:
        return error_set(err, ERROR_UNSUPPORTED,
            "%.200s is of the kind %s; LoRA, LoCon, LoHa, LoKr, DoRA and full differences are "
            "taken",
            piece->tensor, adapter_kind_name(piece->name.kind));
    default:
        return true;
    }
}

/* Returns whether the tensor determines its module's kind. A change of a bias does not: it may
 * occur with any kind. */
static bool tells_kind(const struct piece *piece) {
    return piece->name.kind == ADAPTER_NORM ||
           (piece->name.kind != ADAPTER_ANY && piece->name.part != ADAPTER_DIFF_B);
}

static bool collect(struct adapter *a, const struct piece *pieces, size_t count,
    struct adapter_module *m, struct error *err) {
    const struct piece *teller = NULL;
    m->kind = ADAPTER_FULL;
    for (size_t i = 0; i < count; i++) {
        struct adapter_factor *factor = &m->factors[pieces[i].name.part];
        if (!check_kind(&pieces[i], err))
            return false;
        if (factor->name)
            return error_set(err, ERROR_INVALID, "%.200s and %.200s are the same thing twice",
                factor->name, pieces[i].tensor);
        if (teller && tells_kind(&pieces[i]) && pieces[i].name.kind != m->kind)
            return error_set(err, ERROR_INVALID,
                "%.200s and %.200s are of two kinds, where a layer has one", teller->tensor,
                pieces[i].tensor);
        if (tells_kind(&pieces[i])) {
            teller = &pieces[i];
            m->kind = teller->name.kind;
        }
        if (!safetensors_view(a->file, pieces[i].entry, &factor->tensor, err))
            return false;
        factor->name = pieces[i].tensor;
        const enum dtype dtype = factor->tensor.dtype;
        if (pieces[i].name.part != ADAPTER_ALPHA && dtype != DTYPE_F32 && dtype != DTYPE_F16 &&
            dtype != DTYPE_BF16)
            return error_set(err, ERROR_UNSUPPORTED,
                "%.200s: its dtype is %s; F32, F16 or BF16 is needed", factor->name,
                dtype_name(dtype));
    }
    for (int i = 0; i < ADAPTER_PART_COUNT; i++)
        if (m->factors[i].name && i != ADAPTER_ALPHA)
            return true;
    return error_set(
        err, ERROR_INVALID, "%.200s stands alone, without a change of weights", pieces[0].tensor);
}

static bool read_alpha(const struct adapter_factor *factor, double *out, struct error *err) {
    const struct tensor *t = &factor->tensor;
    float value = 0;
    if (tensor_elements(t) != 1)
        return error_set(err, ERROR_INVALID, "%.200s has %lld numbers; one is needed", factor->name,
            (long long)tensor_elements(t));
    if (t->dtype == DTYPE_I32)
        *out = *(const int32_t *)t->data;
    else if (t->dtype == DTYPE_I64)
        *out = (double)*(const int64_t *)t->data;
    else {
        convert_elements(&value, DTYPE_F32, t->data, t->dtype, 1);
        *out = (double)value;
    }
    return isfinite(*out) ||
           error_set(err, ERROR_INVALID, "%.200s is %g; a number is needed", factor->name, *out);
}

/* The scale is alpha / rank, with two exceptions. LyCORIS's LoKr has scale 1 if the file has
 * both of its factors whole, whatever its alpha is. For PEFT's files the configuration gives the
 * scale. */
static bool read_scale(
    struct adapter_module *m, const struct adapter_config *config, struct error *err) {
    struct adapter_config_scale said;
    m->alpha = (double)m->rank;
    m->scale = 1;
    if (m->factors[ADAPTER_ALPHA].name) {
        double alpha = 0;
        if (!read_alpha(&m->factors[ADAPTER_ALPHA], &alpha, err))
            return false;
        if (m->rank > 0 && alpha != 0) {
            m->alpha = alpha;
            m->scale = (float)(alpha / (double)m->rank);
        }
    } else if (m->kind != ADAPTER_FULL && m->kind != ADAPTER_NORM) {
        if (!adapter_config_scale(config, m->component, m->target->name, &said, err))
            return false;
        const double rank = m->rank > 0 ? (double)m->rank : said.rank;
        if (said.said && !(rank > 0))
            return error_set(err, ERROR_INVALID, "r is %g; more than 0 is needed", rank);
        if (said.said) {
            m->alpha = said.alpha;
            m->scale = (float)(said.alpha / (said.rslora ? sqrt(rank) : rank));
        }
    }
    return isfinite(m->scale) ||
           error_set(err, ERROR_INVALID, "alpha %g is too large for rank %lld of %s", m->alpha,
               (long long)m->rank, m->target->name);
}

/* The tensors of one module of the file. */
static bool add_module(
    struct adapter *a, const struct piece *pieces, size_t count, struct error *err) {
    const size_t length = pieces[0].name.module_length;
    const struct adapter_index_entry *found = adapter_index_find(
        &a->index, pieces[0].tensor, length);
    char name[SAFETENSORS_MAX_NAME_BYTES + 1];
    snprintf(name, sizeof(name), "%.*s", (int)length, pieces[0].tensor);
    if (!found)
        return leave(a, name, length, "the model has no such layer", err);
    if (!found->target)
        return error_set(
            err, ERROR_INVALID, "%.200s: two layers of the model have this name", name);
    struct adapter_module *m = &a->modules[a->module_count];
    *m = (struct adapter_module){
        .component = found->component, .target = found->target, .norm = found->norm
    };
    if (!collect(a, pieces, count, m, err) || !adapter_module_check(m, name, err) ||
        !read_scale(m, &a->config, err))
        return false;
    a->module_count++;
    return true;
}

static int by_layer(const void *a, const void *b) {
    const struct adapter_module *x = a, *y = b;
    if (x->component != y->component)
        return x->component == COMPONENT_UNET ? -1 : 1;
    if (!x->norm != !y->norm)
        return x->norm ? 1 : -1;
    return x->target < y->target ? -1 : x->target > y->target;
}

static const char *first_name(const struct adapter_module *m) {
    for (int i = 0; i < ADAPTER_PART_COUNT; i++)
        if (m->factors[i].name)
            return m->factors[i].name;
    return "";
}

static bool check_layers(struct adapter *a, struct error *err) {
    if (a->module_count == 0)
        return error_set(err, ERROR_INVALID,
            "none of the adapter's %zu modules is a layer of the model; the first is %.200s (%s)",
            a->leftover_count, a->leftover_count ? a->leftovers[0].name : "missing",
            a->leftover_count ? a->leftovers[0].why : "the file is empty");
    qsort(a->modules, a->module_count, sizeof(*a->modules), by_layer);
    for (size_t i = 1; i < a->module_count; i++)
        if (a->modules[i].target == a->modules[i - 1].target)
            return error_set(err, ERROR_INVALID, "%.150s and %.150s change the same layer, %s",
                first_name(&a->modules[i - 1]), first_name(&a->modules[i]),
                a->modules[i].target->name);
    return true;
}

static bool read_modules(struct adapter *a, struct piece *pieces, struct error *err) {
    const struct safetensors_header *header = safetensors_get_header(a->file);
    size_t count = 0;
    for (size_t i = 0; i < header->count; i++) {
        const char *name = header->entries[i].name;
        pieces[count] = (struct piece){ .tensor = name, .entry = i };
        if (adapter_name_parse(name, &pieces[count].name))
            count++;
        else if (!leave(a, name, strlen(name), "no part of an adapter", err))
            return false;
    }
    if (count == 0)
        return error_set(err, ERROR_INVALID,
            "none of the %zu tensors is part of an adapter; the first is %.200s", header->count,
            header->count ? header->entries[0].name : "missing");
    qsort(pieces, count, sizeof(*pieces), by_module);
    for (size_t i = 0, n; i < count; i += n) {
        for (n = 1; i + n < count && by_module(&pieces[i], &pieces[i + n]) == 0; n++)
            ;
        if (!add_module(a, pieces + i, n, err))
            return false;
    }
    return check_layers(a, err);
}

static bool read_file(struct adapter *a, const struct adapter_targets *targets, struct error *err) {
    const struct safetensors_header *header = safetensors_get_header(a->file);
    const size_t count = header->count ? header->count : 1;
    if (!a->config.json && !adapter_config_from_metadata(header->metadata, &a->config, err))
        return false;
    if (!adapter_family_check(header, targets, err))
        return false;
    if (!adapter_summarize(a->file, true, &a->summary) && !a->summary.format)
        a->summary.format = "names of its own";
    a->modules = calloc(count, sizeof(*a->modules));
    a->leftovers = calloc(count, sizeof(*a->leftovers));
    struct piece *pieces = calloc(count, sizeof(*pieces));
    bool ok = a->modules && a->leftovers && pieces;
    if (!ok)
        error_set(err, ERROR_NO_MEMORY, "no memory for %zu tensors of an adapter", count);
    ok = ok && adapter_index_create(targets, &a->index, err) && read_modules(a, pieces, err);
    a->norms = a->index.norms;
    a->index.norms = NULL;
    adapter_index_finish(&a->index);
    free(pieces);
    return ok;
}

/* Opens the two files of a folder that PEFT wrote. */
static bool open_folder(struct adapter *a, const char *path, struct error *err) {
    char *config = file_join(path, "adapter_config.json");
    char *weights = file_join(path, "adapter_model.safetensors");
    const bool ok = config && weights ? adapter_config_read(config, &a->config, err) &&
                                            safetensors_open(weights, &a->file, err)
                                      : error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    free(config);
    free(weights);
    return ok;
}

/* Reads the opened file and assembles its modules. Closes `a` if that fails, or if no file was
 * opened. */
static bool open_rest(struct adapter *a, bool opened, const char *path,
    const struct adapter_targets *targets, struct adapter **out, struct error *err) {
    bool ok = opened;
    if (ok && !read_file(a, targets, err))
        ok = error_prefix(err, "%s", path);
    if (!ok || !adapter_intact(a, err)) {
        adapter_close(a);
        return false;
    }
    *out = a;
    return true;
}

bool adapter_open(const char *path, const struct adapter_targets *targets, struct adapter **out,
    struct error *err) {
    struct adapter *a = calloc(1, sizeof(*a));
    if (!a)
        return error_set(err, ERROR_NO_MEMORY, "no memory to open %s", path);
    const bool opened = file_is_folder(path) ? open_folder(a, path, err)
                                             : safetensors_open(path, &a->file, err);
    return open_rest(a, opened, path, targets, out, err);
}

bool adapter_open_fd(int fd, const char *path, const struct adapter_targets *targets,
    struct adapter **out, struct error *err) {
    struct adapter *a = calloc(1, sizeof(*a));
    if (!a) {
        close(fd);
        return error_set(err, ERROR_NO_MEMORY, "no memory to open %s", path);
    }
    return open_rest(a, safetensors_open_fd(fd, path, &a->file, err), path, targets, out, err);
}

void adapter_close(struct adapter *a) {
    if (!a)
        return;
    for (size_t i = 0; i < a->leftover_count; i++)
        free((char *)(uintptr_t)a->leftovers[i].name);
    free(a->leftovers);
    free(a->modules);
    free(a->norms);
    adapter_config_finish(&a->config);
    safetensors_close(a->file);
    free(a);
}

bool adapter_intact(const struct adapter *a, struct error *err) {
    return safetensors_intact(a->file, err);
}

const struct adapter_module *adapter_modules(const struct adapter *a, size_t *count) {
    *count = a->module_count;
    return a->modules;
}

const struct adapter_leftover *adapter_leftovers(const struct adapter *a, size_t *count) {
    *count = a->leftover_count;
    return a->leftovers;
}

const struct adapter_summary *adapter_get_summary(const struct adapter *a) {
    return &a->summary;
}

uint64_t adapter_file_bytes(const struct adapter *a) {
    return safetensors_file_bytes(a->file);
}
