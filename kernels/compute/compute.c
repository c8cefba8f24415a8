#include "kernels/compute/compute.h"

#include "kernels/check.h"
#include "kernels/compute/overlay.h"
#include "kernels/compute/recordings.h"
#include "kernels/tape.h"

static struct tensor allocate(struct compute *c, struct tensor t) {
    char text[112];
    t.device = c->kernels->device;
    t.data = NULL;
    if (!compute_ok(c))
        return t;
    size_t bytes = dtype_size(t.dtype);
    for (int i = 0; i < t.rank; i++) {
        if (t.shape[i] < 1 || __builtin_mul_overflow(bytes, (size_t)t.shape[i], &bytes)) {
            error_set(&c->error, ERROR_INTERNAL, "no tensor can be %s",
                tensor_describe(&t, text, sizeof(text)));
            return t;
        }
    }
    t.data = arena_alloc(c->arena, bytes);
    if (!t.data)
        error_set(&c->error, ERROR_NO_MEMORY, "%s does not fit in the %zu bytes of activations",
            tensor_describe(&t, text, sizeof(text)), arena_reserved_bytes(c->arena));
    return t;
}

struct tensor compute_tensor_1d(struct compute *c, enum dtype dtype, int64_t a) {
    return allocate(c, tensor_1d(NULL, dtype, a));
}

struct tensor compute_tensor_2d(struct compute *c, enum dtype dtype, int64_t a, int64_t b) {
    return allocate(c, tensor_2d(NULL, dtype, a, b));
}

struct tensor compute_tensor_3d(
    struct compute *c, enum dtype dtype, int64_t a, int64_t b, int64_t d) {
    return allocate(c, tensor_3d(NULL, dtype, a, b, d));
}

struct tensor compute_tensor_4d(
    struct compute *c, enum dtype dtype, int64_t a, int64_t b, int64_t d, int64_t e) {
    return allocate(c, tensor_4d(NULL, dtype, a, b, d, e));
}

bool compute_measure(struct compute *c, void (*run)(struct compute *c, void *user), void *user,
    size_t *peak, struct error *err) {
    struct compute dry = *c;
    dry.dry_run = true;
    dry.error = (struct error){ 0 };
    arena_plan_begin(c->arena);
    run(&dry, user);
    *peak = arena_plan_end(c->arena);
    if (!compute_ok(&dry) && err)
        *err = dry.error;
    return compute_ok(&dry);
}

bool compute_plan(
    struct compute *c, void (*run)(struct compute *c, void *user), void *user, struct error *err) {
    size_t peak;
    if (!compute_measure(c, run, user, &peak, err))
        return false;
    /* Recordings hold addresses in the old block, and memory that the new block may need. */
    if (peak > arena_reserved_bytes(c->arena))
        recordings_clear(c->recordings);
    return arena_reserve(c->arena, peak, err);
}

void compute_upload(struct compute *c, const void *from, const struct tensor *to) {
    const struct check k = { c, "upload" };
    if (compute_ok(c) && check_tensor(&k, "to", to, 1, TENSOR_MAX_RANK) && !c->dry_run)
        c->kernels->memory->upload(to->data, from, tensor_bytes(to), &c->error);
}

const void *compute_view(struct compute *c, const struct tensor *from) {
    const struct check k = { c, "view" };
    if (!compute_ok(c) || !check_tensor(&k, "from", from, 1, TENSOR_MAX_RANK) || c->dry_run)
        return NULL;
    return c->kernels->memory->view(from->data, tensor_bytes(from), &c->error);
}

void compute_pace(struct compute *c) {
    if (compute_ok(c) && !c->dry_run)
        c->kernels->memory->pace(&c->error);
}

void compute_synchronize(struct compute *c) {
    if (compute_ok(c) && !c->dry_run)
        c->kernels->memory->synchronize(&c->error);
}

static bool linear_is_right(const struct check *k, const struct linear_args *a) {
    if (!check_activation(k, "x", a->x, 2, 4) || !check_activation(k, "y", a->y, 2, 4) ||
        !check_weight(k, a->weight, false) || !check_activation_kind(k, a->activation))
        return false;
    char text[112];
    if (a->x->shape[a->x->rank - 1] != a->weight->k)
        return check_fail(k, "x is %s, the weight [%lld][%lld] needs %lld channels",
            tensor_describe(a->x, text, sizeof(text)), (long long)a->weight->n,
            (long long)a->weight->k, (long long)a->weight->k);
    if (a->weight->geglu && a->activation != ACTIVATION_NONE)
        return check_fail(k, "a geglu weight takes no further activation");
    if (a->ungated && (!a->weight->geglu || a->residual))
        return check_fail(k, "only a geglu weight without a residual can be ungated");
    const bool gated = a->weight->geglu && !a->ungated;
    struct tensor want = *a->x;
    want.shape[want.rank - 1] = gated ? a->weight->n / 2 : a->weight->n;
    return check_shape(k, "y", a->y, &want, "x", a->x) && check_apart(k, a->y, "x", a->x, false) &&
           (!a->residual || (check_like(k, "residual", a->residual, "y", a->y) &&
                                check_apart(k, a->y, "residual", a->residual, true)));
}

/* Checks a shortcut: a second convolution that is added to the first. The other arguments are
 * already checked. */
static bool shortcut_is_right(const struct check *k, const struct conv2d_args *a) {
    if (!k->c->kernels->adds_shortcuts)
        return check_fail(k, "%s adds no shortcut", k->c->kernels->name);
    if (k->c->tape)
        return check_fail(k, "a tape takes down one convolution, not two");
    if (a->weight->kind != CONV_3X3 || a->row_add || a->residual || a->y->dtype != a->x->dtype)
        return check_fail(k, "a shortcut takes a 3x3 convolution without row_add and residual");
    if (!check_activation(k, "shortcut", a->shortcut, 4, 4) ||
        !check_weight(k, a->shortcut_weight, true))
        return false;
    char text[112];
    const struct packed *w = a->shortcut_weight;
    if (w->kind != CONV_1X1 || w->n != a->weight->n || w->k != a->shortcut->shape[3])
        return check_fail(k,
            "shortcut is %s, its weight must be 1x1 and [%lld][%lld], not [%lld][%lld]",
            tensor_describe(a->shortcut, text, sizeof(text)), (long long)a->weight->n,
            (long long)a->shortcut->shape[3], (long long)w->n, (long long)w->k);
    struct tensor want = *a->y;
    want.shape[3] = w->k;
    return check_shape(k, "shortcut", a->shortcut, &want, "y", a->y) &&
           check_apart(k, a->y, "shortcut", a->shortcut, false);
}

static bool conv2d_is_right(const struct check *k, const struct conv2d_args *a) {
    if (!check_activation(k, "x", a->x, 4, 4) || !check_activation(k, "y", a->y, 4, 4) ||
        !check_weight(k, a->weight, true))
        return false;
    char text[112];
    if (a->x->shape[3] != a->weight->k)
        return check_fail(k, "x is %s, the weight [%lld][%lld] needs %lld channels",
            tensor_describe(a->x, text, sizeof(text)), (long long)a->weight->n,
            (long long)a->weight->k, (long long)a->weight->k);
    const bool wider = k->c->kernels->widens && a->y->dtype == DTYPE_F32 &&
                       a->x->dtype != DTYPE_F32;
    if (!check_conv_output(
            k, a->weight->kind, a->x, a->weight->n, wider ? DTYPE_F32 : a->x->dtype, a->y))
        return false;
    if (wider && (k->c->tape || a->residual))
        return check_fail(k, "%s takes no y that is wider than x, %s",
            k->c->tape ? "a tape" : "a residual", tensor_describe(a->x, text, sizeof(text)));
    if (a->row_add) {
        if (!check_activation(k, "row_add", a->row_add, 2, 2) ||
            !check_row_add(k, "row_add", a->row_add, a->row_add_offset, a->weight->n, "y", a->y) ||
            !check_apart(k, a->y, "row_add", a->row_add, false))
            return false;
        if (a->row_add->dtype != DTYPE_F32 && a->row_add->dtype != a->x->dtype)
            return check_dtype(k, "row_add", a->row_add, a->x->dtype, "x");
    }
    if ((a->shortcut || a->shortcut_weight) && !shortcut_is_right(k, a))
        return false;
    return !a->residual || (check_like(k, "residual", a->residual, "y", a->y) &&
                               check_apart(k, a->y, "residual", a->residual, true));
}

/* gamma and beta: f32 [c]. */
static bool norm_parameters_are_right(const struct check *k, const struct tensor *x,
    const struct tensor *gamma, const struct tensor *beta, const struct tensor *y) {
    if (!check_tensor(k, "gamma", gamma, 1, 1) || !check_tensor(k, "beta", beta, 1, 1))
        return false;
    struct tensor want = tensor_1d(NULL, DTYPE_F32, x->shape[x->rank - 1]);
    return check_shape(k, "gamma", gamma, &want, "x", x) &&
           check_shape(k, "beta", beta, &want, "x", x) && check_like(k, "y", y, "x", x) &&
           check_apart(k, y, "x", x, true) && check_apart(k, y, "gamma", gamma, false) &&
           check_apart(k, y, "beta", beta, false);
}

/* Checks `more` and `joined` of a group norm that reads two tensors. */
static bool sources_are_right(const struct check *k, const struct group_norm_args *a) {
    if (!k->c->kernels->joins)
        return check_fail(k, "%s reads one tensor, not two", k->c->kernels->name);
    if (k->c->tape)
        return check_fail(k, "a tape takes down one tensor, not two");
    if (!check_activation(k, "more", a->more, 4, 4) ||
        !check_activation(k, "joined", a->joined, 4, 4))
        return false;
    struct tensor more = *a->x, joined = *a->x;
    more.shape[3] = a->more->shape[3];
    joined.shape[3] += a->more->shape[3];
    return check_shape(k, "more", a->more, &more, "x", a->x) &&
           check_shape(k, "joined", a->joined, &joined, "x", a->x) &&
           check_output_apart(k, "joined", a->joined, "x", a->x, false) &&
           check_output_apart(k, "joined", a->joined, "more", a->more, false);
}

static bool group_norm_is_right(const struct check *k, const struct group_norm_args *a) {
    const bool joins = a->more || a->joined;
    if (!check_activation(k, "x", a->x, 4, 4) || (joins && !sources_are_right(k, a)))
        return false;
    const struct tensor *x = joins ? a->joined : a->x;
    if (!norm_parameters_are_right(k, x, a->gamma, a->beta, a->y) ||
        (joins && (!check_apart(k, a->y, "x", a->x, false) ||
                      !check_apart(k, a->y, "more", a->more, false) ||
                      !check_apart(k, a->y, "joined", a->joined, false))))
        return false;
    if (a->groups < 1 || x->shape[3] % a->groups != 0)
        return check_fail(k, "%lld channels are not %d groups", (long long)x->shape[3], a->groups);
    if (!(a->eps >= 0))
        return check_fail(k, "eps %g is negative", (double)a->eps);
    return true;
}

static bool layer_norm_is_right(const struct check *k, const struct layer_norm_args *a) {
    if (!check_activation(k, "x", a->x, 2, 4) ||
        !norm_parameters_are_right(k, a->x, a->gamma, a->beta, a->y))
        return false;
    if (!(a->eps >= 0))
        return check_fail(k, "eps %g is negative", (double)a->eps);
    return true;
}

/* Checks q, k or v: rank 3, y's dtype, y's rows, and channels for all heads from the offset on. */
static bool attention_input_is_right(const struct check *k, const struct attention_args *a,
    const char *name, const struct tensor *t, int64_t offset, int64_t tokens) {
    char text[112], other[112];
    if (!check_activation(k, name, t, 3, 3) || !check_dtype(k, name, t, a->y->dtype, "y"))
        return false;
    int64_t channels = (int64_t)a->heads * a->head_dim;
    if (t->shape[0] != a->y->shape[0] || t->shape[1] != tokens)
        return check_fail(k, "%s is %s, it must be [%lld][%lld][...] for y %s", name,
            tensor_describe(t, text, sizeof(text)), (long long)a->y->shape[0], (long long)tokens,
            tensor_describe(a->y, other, sizeof(other)));
    if (offset < 0 || offset > t->shape[2] || channels > t->shape[2] - offset)
        return check_fail(k, "%s is %s, too few channels for %d heads of %d from %lld on", name,
            tensor_describe(t, text, sizeof(text)), a->heads, a->head_dim, (long long)offset);
    return check_apart(k, a->y, name, t, false);
}

static bool lengths_are_right(const struct check *k, const struct attention_args *a) {
    char text[112];
    const struct tensor *lengths = a->lengths, want = tensor_1d(NULL, DTYPE_I32, a->y->shape[0]);
    if (!lengths)
        return true;
    if (!check_tensor(k, "lengths", lengths, 1, 1) ||
        !check_shape(k, "lengths", lengths, &want, "y", a->y) ||
        !check_apart(k, a->y, "lengths", lengths, false))
        return false;
    /* Lengths in an accelerator's memory cannot be read here. The kernels never read beyond tk
     * keys. */
    for (int64_t i = 0; lengths->device == DEVICE_CPU && !k->c->dry_run && i < want.shape[0]; i++)
        if (attention_keys(a, i) < 1 || attention_keys(a, i) > a->k->shape[1])
            return check_fail(k, "lengths[%lld] is %lld, it must be 1 to the keys of k %s",
                (long long)i, (long long)attention_keys(a, i),
                tensor_describe(a->k, text, sizeof(text)));
    return true;
}

bool attention_is_right(const struct check *k, const struct attention_args *a) {
    if (!check_activation(k, "y", a->y, 3, 3) || !check_activation(k, "k", a->k, 3, 3))
        return false;
    if (a->heads < 1 || a->head_dim < 1)
        return check_fail(k, "%d heads of %d are not possible", a->heads, a->head_dim);
    struct tensor want = *a->y;
    want.shape[2] = (int64_t)a->heads * a->head_dim;
    return check_shape(k, "y", a->y, &want, "its own heads,", a->y) &&
           attention_input_is_right(k, a, "q", a->q, a->q_offset, a->y->shape[1]) &&
           attention_input_is_right(k, a, "k", a->k, a->k_offset, a->k->shape[1]) &&
           attention_input_is_right(k, a, "v", a->v, a->v_offset, a->k->shape[1]) &&
           lengths_are_right(k, a);
}

static bool embedding_is_right(const struct check *k, const struct embedding_args *a) {
    char text[112], other[112];
    if (!check_tensor(k, "ids", a->ids, 2, 2) || !check_dtype(k, "ids", a->ids, DTYPE_I32, NULL) ||
        !check_activation(k, "table", a->table, 2, 2) ||
        (a->positions && !check_activation(k, "positions", a->positions, 2, 2)) ||
        !check_activation(k, "y", a->y, 3, 3))
        return false;
    if (a->positions &&
        (a->positions->shape[1] != a->table->shape[1] || a->positions->shape[0] < a->ids->shape[1]))
        return check_fail(k, "positions are %s, they must reach ids %s and be as wide as the table",
            tensor_describe(a->positions, text, sizeof(text)),
            tensor_describe(a->ids, other, sizeof(other)));
    struct tensor want = tensor_3d(
        NULL, a->y->dtype, a->ids->shape[0], a->ids->shape[1], a->table->shape[1]);
    return check_shape(k, "y", a->y, &want, "ids", a->ids) &&
           check_apart(k, a->y, "ids", a->ids, false) &&
           check_apart(k, a->y, "table", a->table, false) &&
           (!a->positions || check_apart(k, a->y, "positions", a->positions, false));
}

static bool timestep_embedding_is_right(
    const struct check *k, const struct timestep_embedding_args *a) {
    char text[112];
    if (!check_tensor(k, "timesteps", a->timesteps, 1, 1) ||
        !check_dtype(k, "timesteps", a->timesteps, DTYPE_F32, NULL) ||
        !check_activation(k, "y", a->y, 2, 2))
        return false;
    struct tensor want = tensor_2d(NULL, a->y->dtype, a->timesteps->shape[0], a->y->shape[1]);
    if (a->y->shape[1] % 2 != 0 || !((float)(a->y->shape[1] / 2) > a->freq_shift))
        return check_fail(k, "y is %s, its width must be even and above twice freq_shift %g",
            tensor_describe(a->y, text, sizeof(text)), (double)a->freq_shift);
    return check_shape(k, "y", a->y, &want, "timesteps", a->timesteps) &&
           check_apart(k, a->y, "timesteps", a->timesteps, false);
}

static bool add_is_right(const struct check *k, const struct add_args *a) {
    return check_activation(k, "a", a->a, 1, 4) && check_like(k, "y", a->y, "a", a->a) &&
           (!a->b || check_like(k, "b", a->b, "a", a->a)) &&
           check_activation_kind(k, a->activation) && check_apart(k, a->y, "a", a->a, true) &&
           check_apart(k, a->y, "b", a->b, false);
}

static bool concat_is_right(const struct check *k, const struct concat_args *a) {
    if (!check_activation(k, "a", a->a, 2, 4) || !check_activation(k, "b", a->b, 2, 4) ||
        !check_activation(k, "y", a->y, 2, 4))
        return false;
    int last = a->a->rank - 1;
    struct tensor b = *a->a, y = *a->a;
    if (a->b->rank == a->a->rank) {
        b.shape[last] = a->b->shape[last];
        y.shape[last] += a->b->shape[last];
    }
    return check_shape(k, "b", a->b, &b, "a", a->a) && check_shape(k, "y", a->y, &y, "a", a->a) &&
           check_apart(k, a->y, "a", a->a, false) && check_apart(k, a->y, "b", a->b, false);
}

static bool combine_is_right(const struct check *k, const struct combine_args *a) {
    if (a->count < 1 || a->count > COMBINE_MAX_TERMS)
        return check_fail(k, "%d terms are not 1 to %d", a->count, COMBINE_MAX_TERMS);
    if (!a->coefficients)
        return check_fail(k, "coefficients are missing");
    if (!check_tensor(k, "y", a->y, 1, 4) || !check_dtype(k, "y", a->y, DTYPE_F32, NULL))
        return false;
    for (int i = 0; i < a->count; i++) {
        char name[16] = "terms[0]";
        name[6] = (char)('0' + i);
        if (!check_like(k, name, a->terms[i], "y", a->y) ||
            !check_apart(k, a->y, name, a->terms[i], true))
            return false;
    }
    return true;
}

static bool blend_is_right(const struct check *k, const struct blend_args *a) {
    if (!check_tensor(k, "y", a->y, 2, 4) || !check_dtype(k, "y", a->y, DTYPE_F32, NULL) ||
        !check_like(k, "a", a->a, "y", a->y) || !check_like(k, "b", a->b, "y", a->y))
        return false;
    struct tensor mask = *a->y;
    mask.shape[mask.rank - 1] = 1;
    return check_shape(k, "mask", a->mask, &mask, "y", a->y) &&
           check_apart(k, a->y, "a", a->a, true) && check_apart(k, a->y, "b", a->b, true) &&
           check_apart(k, a->y, "mask", a->mask, false);
}

static bool is_float(const struct check *k, const char *name, const struct tensor *t) {
    char text[112];
    if (t->dtype == DTYPE_F32 || t->dtype == DTYPE_F16 || t->dtype == DTYPE_BF16)
        return true;
    return check_fail(
        k, "%s is %s, it must be f32, f16 or bf16", name, tensor_describe(t, text, sizeof(text)));
}

static bool convert_is_right(const struct check *k, const struct convert_args *a) {
    int rank = a->layout == LAYOUT_SAME ? 1 : 4;
    if (!check_tensor(k, "x", a->x, rank, 4) || !check_tensor(k, "y", a->y, rank, 4) ||
        !is_float(k, "x", a->x) || !is_float(k, "y", a->y))
        return false;
    struct tensor want = *a->x;
    want.dtype = a->y->dtype;
    const int64_t *s = a->x->shape;
    if (a->layout == LAYOUT_NCHW_TO_NHWC)
        want = tensor_4d(NULL, a->y->dtype, s[0], s[2], s[3], s[1]);
    else if (a->layout == LAYOUT_NHWC_TO_NCHW)
        want = tensor_4d(NULL, a->y->dtype, s[0], s[3], s[1], s[2]);
    else if (a->layout != LAYOUT_SAME)
        return check_fail(k, "layout change %d is unknown", (int)a->layout);
    return check_shape(k, "y", a->y, &want, "x", a->x) && check_apart(k, a->y, "x", a->x, false);
}

static bool noise_is_right(const struct check *k, const struct noise_args *a) {
    if (!a->seeds || !a->offsets)
        return check_fail(k, "seeds or offsets are missing");
    return check_tensor(k, "y", a->y, 1, 4) && check_dtype(k, "y", a->y, DTYPE_F32, NULL);
}

static bool low_rank_is_right(const struct check *k, const struct low_rank_args *a) {
    if (a->kind < CONV_1X1 || a->kind > CONV_3X3_UP)
        return check_fail(k, "convolution kind %d is unknown", (int)a->kind);
    const int least = a->kind == CONV_1X1 ? 2 : 4;
    if (!check_activation(k, "x", a->x, least, 4) || !check_activation(k, "y", a->y, least, 4))
        return false;
    if (!a->rows)
        return check_fail(k, "rows are missing");
    const int64_t channels = a->y->shape[a->y->rank - 1];
    for (int64_t row = 0; row < a->x->shape[0]; row++)
        for (int i = 0; i < a->rows[row].count; i++)
            if (!check_term(k, &a->rows[row].terms[i], channels))
                return false;
    if (a->kind != CONV_1X1)
        return check_conv_output(k, a->kind, a->x, channels, a->x->dtype, a->y);
    struct tensor want = *a->x;
    want.shape[want.rank - 1] = channels;
    return check_shape(k, "y", a->y, &want, "x", a->x) && check_apart(k, a->y, "x", a->x, false);
}

static bool geglu_is_right(const struct check *k, const struct geglu_args *a) {
    if (!check_activation(k, "h", a->h, 2, 4) || !check_activation(k, "y", a->y, 2, 4))
        return false;
    struct tensor want = *a->y;
    want.shape[want.rank - 1] *= 2;
    return check_shape(k, "h", a->h, &want, "y", a->y) && check_apart(k, a->y, "h", a->h, false) &&
           (!a->residual || (check_like(k, "residual", a->residual, "y", a->y) &&
                                check_apart(k, a->y, "residual", a->residual, true)));
}

static double low_rank_flops(const struct low_rank_args *a) {
    const int64_t rows = a->x->shape[0], channels = a->y->shape[a->y->rank - 1];
    const double taps = a->kind == CONV_1X1 ? 1 : 9, k = (double)a->x->shape[a->x->rank - 1];
    double products = 0; /* per token, summed over all rows */
    for (int64_t row = 0; row < rows; row++)
        for (int i = 0; i < a->rows[row].count; i++)
            products += (double)a->rows[row].terms[i].rank *
                        (taps * k + (double)a->rows[row].terms[i].n);
    return 2.0 * products * (double)(tensor_elements(a->y) / rows / channels);
}

/* Returns what struct compute counts for a call: the multiplications and additions of its
 * products. */
static double flops_of(enum operation operation, const void *args) {
    switch (operation) {
    case OPERATION_linear: {
        const struct linear_args *a = args;
        return 2.0 * (double)tensor_elements(a->x) * (double)a->weight->n;
    }
    case OPERATION_conv2d: {
        const struct conv2d_args *a = args;
        const double taps = a->weight->kind == CONV_1X1 ? 1 : 9;
        const double of_shortcut = a->shortcut ? (double)a->shortcut_weight->k : 0;
        return 2.0 * (double)tensor_elements(a->y) * (taps * (double)a->weight->k + of_shortcut);
    }
    case OPERATION_attention: { /* q k^T, weights times v; a causal mask is not deducted */
        const struct attention_args *a = args;
        return 4.0 * (double)tensor_elements(a->y) * (double)a->k->shape[1];
    }
    case OPERATION_low_rank:
        return low_rank_flops(args);
    default:
        return training_flops(operation, args);
    }
}

/* Call with checked arguments. Returns whether the entry must be called. A dry run calls only
 * entries whose scratch memory must be planned. */
static bool begin(struct compute *c, enum operation operation, const void *args) {
    c->flops += flops_of(operation, args);
    if (c->dry_run && c->note && c->kernels->tuner)
        c->kernels->tuner->note(operation, args);
    if (c->dry_run && !(c->arena && arena_is_planning(c->arena) &&
                          c->kernels->scratch_operations >> operation & 1))
        return false;
    if (c->kernels->lend)
        c->kernels->lend(c->arena);
    return true;
}

/* Call after the entry. `mark` is the arena's position before the entry took scratch memory. */
static void end(struct compute *c, size_t mark, const char *name) {
    if (c->arena)
        arena_release(c->arena, mark);
    if (c->kernels->lend)
        c->kernels->lend(NULL);
    if (!compute_ok(c))
        error_prefix(&c->error, "%s", name);
}

#define WRAPPER(name)                                                                              \
    void op_##name(struct compute *c, const struct name##_args *args) {                            \
        if (!compute_ok(c) || !name##_is_right(&(struct check){ c, #name }, args))                 \
            return;                                                                                \
        if (c->tape && tape_split(c, OPERATION_##name, args))                                      \
            return;                                                                                \
        if (c->overlay && overlay_run(c, OPERATION_##name, args))                                  \
            return;                                                                                \
        if (c->tape) {                                                                             \
            tape_record(c, OPERATION_##name, args);                                                \
            return;                                                                                \
        }                                                                                          \
        const size_t mark = c->arena ? arena_mark(c->arena) : 0;                                   \
        if (!begin(c, OPERATION_##name, args))                                                     \
            return;                                                                                \
        (void)c->kernels->name(args, &c->error);                                                   \
        end(c, mark, #name);                                                                       \
    }
ALL_OPERATIONS(WRAPPER)
#undef WRAPPER
