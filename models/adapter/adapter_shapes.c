/* Checks a module's tensors against each other and against the layer that the module changes. */
#include "models/adapter/adapter_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NUMBERS_AT_A_TIME 4096

/* A matrix, [rows][columns], or a convolution's weights, [rows][columns][side][side], which may be
 * written as [rows][columns * side * side]. */
struct shape {
    int64_t rows, columns;
    int64_t side;
};

static int64_t side_of(const struct named_weight *target) {
    return target->is_conv && target->kind != CONV_1X1 ? 3 : 1;
}

int64_t adapter_target_taps(const struct named_weight *target) {
    return side_of(target) * side_of(target);
}

static const char *describe(const struct tensor *t, char *text, size_t size) {
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < t->rank && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "[%lld]", (long long)t->shape[i]);
    return text;
}

static const char *describe_shape(struct shape s, char *text, size_t size) {
    snprintf(text, size, s.side > 1 ? "[%lld][%lld][%lld][%lld]" : "[%lld][%lld]",
        (long long)s.rows, (long long)s.columns, (long long)s.side, (long long)s.side);
    return text;
}

static bool has_shape(const struct tensor *t, struct shape s) {
    if (t->rank == 2)
        return t->shape[0] == s.rows && t->shape[1] == s.columns * s.side * s.side;
    return t->rank == 4 && t->shape[0] == s.rows && t->shape[1] == s.columns &&
           t->shape[2] == s.side && t->shape[3] == s.side;
}

/* Checks a tensor's shape, which follows from the layer and from the other factors. */
static bool check_shape(const struct adapter_module *m, enum adapter_part part, struct shape wanted,
    struct error *err) {
    const struct adapter_factor *factor = &m->factors[part];
    char found[96], right[96];
    if (has_shape(&factor->tensor, wanted))
        return true;
    return error_set(err, ERROR_INVALID,
        "%.200s has the shape %s; the layer %.100s (%lld outputs, %lld inputs%s) needs %s",
        factor->name, describe(&factor->tensor, found, sizeof(found)), m->target->name,
        (long long)m->target->n, (long long)m->target->k, side_of(m->target) > 1 ? ", 3x3" : "",
        describe_shape(wanted, right, sizeof(right)));
}

static bool check_vector(
    const struct adapter_module *m, enum adapter_part part, struct error *err) {
    const struct adapter_factor *factor = &m->factors[part];
    char found[96];
    if (!m->target->has_bias)
        return error_set(err, ERROR_INVALID, "%.200s: the layer %.100s has no bias to change",
            factor->name, m->target->name);
    if (factor->tensor.rank == 1 && factor->tensor.shape[0] == m->target->n)
        return true;
    return error_set(err, ERROR_INVALID,
        "%.200s has the shape %s; the bias of the layer %.100s needs [%lld]", factor->name,
        describe(&factor->tensor, found, sizeof(found)), m->target->name, (long long)m->target->n);
}

static bool has(const struct adapter_module *m, enum adapter_part part) {
    return m->factors[part].name != NULL;
}

/* Checks that `count` parts that belong together are all present or all absent. *any: they are
 * present. */
static bool check_together(const struct adapter_module *m, const char *name,
    const enum adapter_part *parts, int count, bool *any, struct error *err) {
    static const char *const words[ADAPTER_PART_COUNT] = { [ADAPTER_DOWN] = "its down factor",
        [ADAPTER_UP] = "its up factor",
        [ADAPTER_W1_A] = "w1_a",
        [ADAPTER_W1_B] = "w1_b",
        [ADAPTER_T1] = "t1",
        [ADAPTER_W2_A] = "w2_a",
        [ADAPTER_W2_B] = "w2_b",
        [ADAPTER_T2] = "t2" };
    int there = 0;
    enum adapter_part missing = parts[0], found = parts[0];
    for (int i = 0; i < count; i++) {
        there += has(m, parts[i]);
        if (has(m, parts[i]))
            found = parts[i];
        else
            missing = parts[i];
    }
    *any = there > 0;
    return there == 0 || there == count ||
           error_set(err, ERROR_INVALID, "%.200s is there, but %s of the module %.150s is missing",
               m->factors[found].name, words[missing], name);
}

static bool check_rank(
    struct adapter_module *m, enum adapter_part part, int64_t rank, struct error *err) {
    if (rank > ADAPTER_MAX_RANK)
        return error_set(err, ERROR_TOO_LARGE, "%.200s: rank %lld; at most %d is taken",
            m->factors[part].name, (long long)rank, ADAPTER_MAX_RANK);
    m->rank = rank;
    return true;
}

static bool check_lora(struct adapter_module *m, const char *name, struct error *err) {
    static const enum adapter_part pair[] = { ADAPTER_DOWN, ADAPTER_UP };
    const struct named_weight *target = m->target;
    const int64_t side = side_of(target);
    bool any;
    if (!check_together(m, name, pair, 2, &any, err))
        return false;
    if (!any)
        return error_set(
            err, ERROR_INVALID, "the module %.200s has neither a down nor an up factor", name);
    const struct tensor *up = &m->factors[ADAPTER_UP].tensor,
                        *down = &m->factors[ADAPTER_DOWN].tensor;
    const int64_t rank = down->shape[0];
    const int64_t outer = has(m, ADAPTER_MID) && up->rank > 1 ? up->shape[1] : rank;
    m->has_weight = true;
    if (!check_rank(m, ADAPTER_DOWN, rank, err) || !check_rank(m, ADAPTER_UP, outer, err))
        return false;
    if (!check_shape(m, ADAPTER_UP, (struct shape){ target->n, outer, 1 }, err))
        return false;
    if (!has(m, ADAPTER_MID))
        return check_shape(m, ADAPTER_DOWN, (struct shape){ rank, target->k, side }, err);
    return check_shape(m, ADAPTER_DOWN, (struct shape){ rank, target->k, 1 }, err) &&
           check_shape(m, ADAPTER_MID, (struct shape){ outer, rank, side }, err);
}

/* Checks one of LoHa's two products, or LoKr's second: [rows][columns][side][side] from a and b, or
 * from a, b and a core. */
static bool check_product(struct adapter_module *m, enum adapter_part a, enum adapter_part b,
    enum adapter_part core, struct shape whole, struct error *err) {
    const int64_t rank = m->factors[b].tensor.shape[0];
    if (!check_rank(m, b, rank, err))
        return false;
    if (core == ADAPTER_PART_COUNT || !has(m, core))
        return check_shape(m, a, (struct shape){ whole.rows, rank, 1 }, err) &&
               check_shape(m, b, (struct shape){ rank, whole.columns, whole.side }, err);
    return check_shape(m, core, (struct shape){ rank, rank, whole.side }, err) &&
           check_shape(m, a, (struct shape){ rank, whole.rows, 1 }, err) &&
           check_shape(m, b, (struct shape){ rank, whole.columns, 1 }, err);
}

static bool check_loha(struct adapter_module *m, const char *name, struct error *err) {
    static const enum adapter_part factors[] = { ADAPTER_W1_A, ADAPTER_W1_B, ADAPTER_W2_A,
        ADAPTER_W2_B };
    static const enum adapter_part cores[] = { ADAPTER_T1, ADAPTER_T2 };
    const struct shape whole = { m->target->n, m->target->k, side_of(m->target) };
    bool any, tucker;
    if (!check_together(m, name, factors, 4, &any, err) ||
        !check_together(m, name, cores, 2, &tucker, err))
        return false;
    if (!any)
        return error_set(err, ERROR_INVALID, "the module %.200s has a core but no factors", name);
    m->has_weight = true;
    return check_product(m, ADAPTER_W2_A, ADAPTER_W2_B, ADAPTER_T2, whole, err) &&
           check_product(m, ADAPTER_W1_A, ADAPTER_W1_B, ADAPTER_T1, whole, err);
}

/* Checks LoKr: w1 is [a][b] and w2 is [n / a][k / b]. Each is in the file whole or as a product. */
static bool check_lokr(struct adapter_module *m, const char *name, struct error *err) {
    static const enum adapter_part first[] = { ADAPTER_W1_A, ADAPTER_W1_B };
    static const enum adapter_part second[] = { ADAPTER_W2_A, ADAPTER_W2_B };
    const struct named_weight *target = m->target;
    bool product1, product2;
    if (!check_together(m, name, first, 2, &product1, err) ||
        !check_together(m, name, second, 2, &product2, err))
        return false;
    if (product1 == has(m, ADAPTER_W1) || product2 == has(m, ADAPTER_W2))
        return error_set(err, ERROR_INVALID,
            "the module %.200s needs lokr_w1 and lokr_w2, each whole or as a product, not both",
            name);
    const enum adapter_part rows_of = product1 ? ADAPTER_W1_A : ADAPTER_W1;
    const enum adapter_part columns_of = product1 ? ADAPTER_W1_B : ADAPTER_W1;
    const struct tensor *rows = &m->factors[rows_of].tensor,
                        *columns = &m->factors[columns_of].tensor;
    char shown[96];
    if (rows->rank != 2 || columns->rank != 2 || target->n % rows->shape[0] != 0 ||
        target->k % columns->shape[1] != 0)
        return error_set(err, ERROR_INVALID,
            "%.200s has the shape %s; a matrix whose sides divide the layer's is needed: %.100s "
            "has %lld outputs and %lld inputs",
            m->factors[rows_of].name, describe(rows, shown, sizeof(shown)), target->name,
            (long long)target->n, (long long)target->k);
    const struct shape one = { rows->shape[0], columns->shape[1], 1 };
    const struct shape two = { target->n / one.rows, target->k / one.columns, side_of(target) };
    m->has_weight = true;
    if (product2 ? !check_product(m, ADAPTER_W2_A, ADAPTER_W2_B, ADAPTER_T2, two, err)
                 : !check_shape(m, ADAPTER_W2, two, err))
        return false;
    const int64_t rank2 = m->rank;
    if (product1 && !check_product(m, ADAPTER_W1_A, ADAPTER_W1_B, ADAPTER_PART_COUNT, one, err))
        return false;
    return !product1 || !product2 || rank2 == m->rank ||
           error_set(err, ERROR_INVALID,
               "%.200s has rank %lld, but the module's second product has rank %lld",
               m->factors[ADAPTER_W1_B].name, (long long)m->rank, (long long)rank2);
}

/* Checks the change of a norm. The scale has one number per channel; the shift is checked as every
 * bias. */
static bool check_norm(struct adapter_module *m, const char *name, struct error *err) {
    const struct adapter_factor *scale = &m->factors[ADAPTER_DIFF];
    char found[96];
    if (!m->norm)
        return error_set(err, ERROR_INVALID,
            "%.200s has a norm's scale and shift, and the layer %.100s is none", name,
            m->target->name);
    if (m->kind != ADAPTER_NORM && m->kind != ADAPTER_FULL)
        return error_set(err, ERROR_INVALID,
            "%.200s is of the kind %s, and the layer %.100s is a norm, which takes differences of "
            "its "
            "scale and shift only",
            name, adapter_kind_name(m->kind), m->target->name);
    m->has_weight = has(m, ADAPTER_DIFF);
    if (!m->has_weight || (scale->tensor.rank == 1 && scale->tensor.shape[0] == m->target->n))
        return true;
    return error_set(err, ERROR_INVALID, "%.200s has the shape %s; the norm %.100s needs [%lld]",
        scale->name, describe(&scale->tensor, found, sizeof(found)), m->target->name,
        (long long)m->target->n);
}

static bool check_full(struct adapter_module *m, struct error *err) {
    const struct shape whole = { m->target->n, m->target->k, side_of(m->target) };
    m->has_weight = has(m, ADAPTER_DIFF);
    return !m->has_weight || check_shape(m, ADAPTER_DIFF, whole, err);
}

const struct adapter_factor *adapter_magnitude(const struct adapter_module *m) {
    return &m->factors[has(m, ADAPTER_MAGNITUDE) ? ADAPTER_MAGNITUDE : ADAPTER_DORA_SCALE];
}

/* LyCORIS's magnitudes are [n][1]... or [1][k]...; PEFT's are per output, [n] or (for a
 * convolution) [1][n][1][1]. */
bool adapter_magnitude_of_outputs(const struct adapter_module *m) {
    const struct tensor *t = &adapter_magnitude(m)->tensor;
    return has(m, ADAPTER_MAGNITUDE) || t->shape[0] == m->target->n;
}

static bool check_magnitude(struct adapter_module *m, struct error *err) {
    const struct adapter_factor *factor = adapter_magnitude(m);
    const struct tensor *t = &factor->tensor;
    const int64_t elements = tensor_elements(t);
    char shown[96];
    if (has(m, ADAPTER_MAGNITUDE) && has(m, ADAPTER_DORA_SCALE))
        return error_set(err, ERROR_INVALID, "%.200s and %.200s are of the same layer",
            factor->name, m->factors[ADAPTER_DORA_SCALE].name);
    if (!m->has_weight)
        return error_set(
            err, ERROR_INVALID, "%.200s stands alone, without a change of weights", factor->name);
    m->dora = true;
    bool fits = elements == m->target->n;
    if (has(m, ADAPTER_DORA_SCALE))
        fits = (t->shape[0] == m->target->n && elements == m->target->n) ||
               (t->rank > 1 && t->shape[0] == 1 && t->shape[1] == m->target->k &&
                   elements == m->target->k);
    return fits || error_set(err, ERROR_INVALID,
                       "%.200s has the shape %s; the layer %.100s needs [%lld][1], one number an "
                       "output, or [1][%lld], one an input",
                       factor->name, describe(t, shown, sizeof(shown)), m->target->name,
                       (long long)m->target->n, (long long)m->target->k);
}

static bool check_finite(const struct adapter_factor *factor, struct error *err) {
    const struct tensor *t = &factor->tensor;
    const int64_t count = tensor_elements(t);
    float piece[NUMBERS_AT_A_TIME];
    for (int64_t i = 0; i < count; i += NUMBERS_AT_A_TIME) {
        const int64_t n = count - i < NUMBERS_AT_A_TIME ? count - i : NUMBERS_AT_A_TIME;
        const char *from = (const char *)t->data + (size_t)i * dtype_size(t->dtype);
        float zero = 0;
        convert_elements(piece, DTYPE_F32, from, t->dtype, n);
        for (int64_t j = 0; j < n; j++)
            zero += piece[j] * 0; /* stays 0 unless there is an infinity or NaN */
        if (zero != 0 || isnan(zero))
            return error_set(
                err, ERROR_INVALID, "%.200s holds a value that is not finite", factor->name);
    }
    return true;
}

bool adapter_module_check(struct adapter_module *m, const char *name, struct error *err) {
    bool ok = m->norm || m->kind == ADAPTER_NORM ? check_norm(m, name, err)
              : m->kind == ADAPTER_LORA          ? check_lora(m, name, err)
              : m->kind == ADAPTER_LOHA          ? check_loha(m, name, err)
              : m->kind == ADAPTER_LOKR          ? check_lokr(m, name, err)
                                                 : check_full(m, err);
    for (int i = ADAPTER_UP_BIAS; ok && i <= ADAPTER_DIFF_B; i++)
        if ((i == ADAPTER_UP_BIAS || i == ADAPTER_DIFF_B) && has(m, (enum adapter_part)i)) {
            m->has_bias = true;
            ok = check_vector(m, (enum adapter_part)i, err);
        }
    if (ok && (has(m, ADAPTER_MAGNITUDE) || has(m, ADAPTER_DORA_SCALE)))
        ok = check_magnitude(m, err);
    for (int i = 0; ok && i < ADAPTER_PART_COUNT; i++)
        if (has(m, (enum adapter_part)i) && i != ADAPTER_ALPHA)
            ok = check_finite(&m->factors[i], err);
    m->low_rank = m->kind == ADAPTER_LORA && !m->dora && !m->has_bias;
    return ok;
}
