/* Computes what a module adds to a layer's weights from its factors. Sums are in f32, in an order
 * that depends on the shapes alone. */
#include "models/adapter/adapter_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool has(const struct adapter_module *m, enum adapter_part part) {
    return m->factors[part].name != NULL;
}

static float *numbers(int64_t count, struct error *err) {
    float *data = reallocarray(NULL, (size_t)count, sizeof(*data));
    if (!data)
        error_set(err, ERROR_NO_MEMORY, "no memory for %lld numbers", (long long)count);
    return data;
}

static void read_factor(const struct adapter_module *m, enum adapter_part part, float *out) {
    const struct tensor *t = &m->factors[part].tensor;
    convert_elements(out, DTYPE_F32, t->data, t->dtype, tensor_elements(t));
}

static float *factor_numbers(
    const struct adapter_module *m, enum adapter_part part, struct error *err) {
    float *out = numbers(tensor_elements(&m->factors[part].tensor), err);
    if (out)
        read_factor(m, part, out);
    return out;
}

/* y[i][j] = sum over t of a(i, t) b[t][j], where a(i, t) = a[i * row + t * step] */
static void multiply(const float *a, int64_t row, int64_t step, const float *b, int64_t rows,
    int64_t inner, int64_t columns, float *y) {
    for (int64_t i = 0; i < rows; i++) {
        float *out = y + i * columns;
        memset(out, 0, (size_t)columns * sizeof(*out));
        for (int64_t t = 0; t < inner; t++) {
            const float value = a[i * row + t * step];
            const float *from = b + t * columns;
            for (int64_t j = 0; j < columns; j++)
                out[j] += value * from[j];
        }
    }
}

/* Folds a core into the factor after it: y[i][q][s] = sum over j of core[i][j][s] b[j][q], for taps
 * s. */
static void fold(const float *core, const float *b, int64_t outer, int64_t rank, int64_t columns,
    int64_t taps, float *y) {
    memset(y, 0, (size_t)(outer * columns * taps) * sizeof(*y));
    for (int64_t i = 0; i < outer; i++)
        for (int64_t j = 0; j < rank; j++)
            for (int64_t q = 0; q < columns; q++) {
                const float *from = core + (i * rank + j) * taps, value = b[j * columns + q];
                float *out = y + (i * columns + q) * taps;
                for (int64_t s = 0; s < taps; s++)
                    out[s] += from[s] * value;
            }
}

/* Returns the matrix that `a` is multiplied with: the factor b itself, or a core folded into b. The
 * caller owns it. */
static float *inner_factor(const struct adapter_module *m, enum adapter_part b,
    enum adapter_part core, struct error *err) {
    float *inner = factor_numbers(m, b, err);
    if (!inner || !has(m, core))
        return inner;
    const struct tensor *shape = &m->factors[core].tensor;
    const int64_t outer = shape->shape[0], rank = m->factors[b].tensor.shape[0];
    const int64_t columns = tensor_elements(&m->factors[b].tensor) / rank;
    const int64_t taps = tensor_elements(shape) / (outer * rank);
    float *weights = factor_numbers(m, core, err);
    float *folded = weights ? numbers(outer * columns * taps, err) : NULL;
    if (folded)
        fold(weights, inner, outer, rank, columns, taps, folded);
    free(weights);
    free(inner);
    return folded;
}

/* y[rows][columns] = a b. With a core, LyCORIS stores a transposed, [inner][rows]. */
static bool product(const struct adapter_module *m, enum adapter_part a, enum adapter_part b,
    enum adapter_part core, int64_t rows, int64_t columns, float *y, struct error *err) {
    float *left = factor_numbers(m, a, err);
    float *right = left ? inner_factor(m, b, core, err) : NULL;
    if (right) {
        const int64_t inner = tensor_elements(&m->factors[a].tensor) / rows;
        const bool turned = has(m, core) && m->kind != ADAPTER_LORA;
        multiply(left, turned ? 1 : inner, turned ? rows : 1, right, rows, inner, columns, y);
    }
    free(left);
    free(right);
    return right != NULL;
}

static bool loha_product(
    const struct adapter_module *m, int64_t rows, int64_t columns, float *y, struct error *err) {
    float *second = numbers(rows * columns, err);
    const bool ok = second &&
                    product(m, ADAPTER_W1_A, ADAPTER_W1_B, ADAPTER_T1, rows, columns, y, err) &&
                    product(m, ADAPTER_W2_A, ADAPTER_W2_B, ADAPTER_T2, rows, columns, second, err);
    for (int64_t i = 0; ok && i < rows * columns; i++)
        y[i] *= second[i];
    free(second);
    return ok;
}

/* Returns lokr_w1 or lokr_w2 as [rows][columns]; the file has it whole or as a product. */
static float *lokr_factor(const struct adapter_module *m, enum adapter_part whole,
    enum adapter_part a, enum adapter_part b, enum adapter_part core, int64_t rows, int64_t columns,
    struct error *err) {
    if (has(m, whole))
        return factor_numbers(m, whole, err);
    float *out = numbers(rows * columns, err);
    if (out && !product(m, a, b, core, rows, columns, out, err)) {
        free(out);
        return NULL;
    }
    return out;
}

/* y[n][k][taps] = w1[a][b] (x) w2[n / a][k / b][taps] */
static bool lokr_product(const struct adapter_module *m, float *y, struct error *err) {
    const int64_t taps = adapter_target_taps(m->target), n = m->target->n, k = m->target->k;
    const bool whole = has(m, ADAPTER_W1);
    const int64_t rows1 = m->factors[whole ? ADAPTER_W1 : ADAPTER_W1_A].tensor.shape[0];
    const int64_t columns1 = m->factors[whole ? ADAPTER_W1 : ADAPTER_W1_B].tensor.shape[1];
    const int64_t rows2 = n / rows1, columns2 = k / columns1 * taps;
    float *w1 = lokr_factor(
        m, ADAPTER_W1, ADAPTER_W1_A, ADAPTER_W1_B, ADAPTER_MID, rows1, columns1, err);
    float *w2 = w1 ? lokr_factor(m, ADAPTER_W2, ADAPTER_W2_A, ADAPTER_W2_B, ADAPTER_T2, rows2,
                         columns2, err)
                   : NULL;
    for (int64_t row = 0; w2 && row < n; row++)
        for (int64_t i = 0; i < columns1; i++) {
            const float value = w1[row / rows2 * columns1 + i], *from = w2 + row % rows2 * columns2;
            float *out = y + (row * columns1 + i) * columns2;
            for (int64_t j = 0; j < columns2; j++)
                out[j] = value * from[j];
        }
    free(w1);
    free(w2);
    return w2 != NULL;
}

/* Computes the change at strength 1, without `scale`: y [n][k][taps]. */
static bool unscaled_change(const struct adapter_module *m, float *y, struct error *err) {
    const int64_t rows = m->target->n, columns = m->target->k * adapter_target_taps(m->target);
    switch (m->kind) {
    case ADAPTER_LORA:
        return product(m, ADAPTER_UP, ADAPTER_DOWN, ADAPTER_MID, rows, columns, y, err);
    case ADAPTER_LOHA:
        return loha_product(m, rows, columns, y, err);
    case ADAPTER_LOKR:
        return lokr_product(m, y, err);
    default:
        read_factor(m, ADAPTER_DIFF, y);
        return true;
    }
}

/* change = magnitude * (W + change) / |W + change| - W, where the norm is taken over the weights of
 * an output, or of an input. */
static bool decompose(
    const struct adapter_module *m, const float *pristine, float *change, struct error *err) {
    const int64_t n = m->target->n, k = m->target->k, taps = adapter_target_taps(m->target);
    const bool outputs = adapter_magnitude_of_outputs(m);
    const int64_t groups = outputs ? n : k;
    float *magnitude = numbers(groups, err);
    double *norms = calloc((size_t)groups, sizeof(*norms));
    const bool ok = magnitude && norms;
    if (ok) {
        const struct tensor *t = &adapter_magnitude(m)->tensor;
        convert_elements(magnitude, DTYPE_F32, t->data, t->dtype, groups);
        for (int64_t i = 0; i < n * k * taps; i++) {
            change[i] += pristine[i];
            norms[outputs ? i / (k * taps) : i / taps % k] += (double)change[i] * (double)change[i];
        }
        /* Weights that are all 0 have no direction and stay 0. */
        for (int64_t i = 0; i < groups; i++)
            norms[i] = norms[i] > 0 ? (double)magnitude[i] / sqrt(norms[i]) : 0;
        for (int64_t i = 0; i < n * k * taps; i++)
            change[i] = change[i] * (float)norms[outputs ? i / (k * taps) : i / taps % k] -
                        pristine[i];
    } else {
        error_set(err, ERROR_NO_MEMORY, "no memory for %lld norms", (long long)groups);
    }
    free(norms);
    free(magnitude);
    return ok;
}

bool adapter_module_add(const struct adapter_module *module, const float *pristine, float strength,
    float *weights, struct error *err) {
    const int64_t count = module->target->n * module->target->k *
                          adapter_target_taps(module->target);
    float *change = numbers(count, err);
    bool ok = change && unscaled_change(module, change, err);
    for (int64_t i = 0; ok && module->scale != 1 && i < count; i++)
        change[i] *= module->scale;
    if (ok && module->dora)
        ok = decompose(module, pristine, change, err);
    for (int64_t i = 0; ok && i < count; i++)
        weights[i] += strength * change[i];
    free(change);
    return ok || error_prefix(err, "%s", module->target->name);
}

void adapter_module_add_bias(const struct adapter_module *module, float strength, float *bias) {
    static const enum adapter_part parts[] = { ADAPTER_UP_BIAS, ADAPTER_DIFF_B };
    for (int i = 0; i < 2; i++) {
        const struct tensor *t = &module->factors[parts[i]].tensor;
        const float scale = parts[i] == ADAPTER_UP_BIAS ? module->scale : 1;
        for (int64_t j = 0; has(module, parts[i]) && j < module->target->n; j++) {
            float value;
            convert_elements(&value, DTYPE_F32,
                (const char *)t->data + (size_t)j * dtype_size(t->dtype), t->dtype, 1);
            bias[j] += strength * scale * value;
        }
    }
}

bool adapter_module_factors(
    const struct adapter_module *module, float *down, float *up, struct error *err) {
    const struct tensor *t = &module->factors[ADAPTER_DOWN].tensor;
    read_factor(module, ADAPTER_UP, up);
    if (!has(module, ADAPTER_MID)) {
        read_factor(module, ADAPTER_DOWN, down);
        return true;
    }
    float *folded = inner_factor(module, ADAPTER_DOWN, ADAPTER_MID, err);
    if (folded)
        memcpy(down, folded,
            (size_t)(module->rank * t->shape[1] * adapter_target_taps(module->target)) *
                sizeof(*down));
    free(folded);
    return folded || error_prefix(err, "%s", module->target->name);
}
