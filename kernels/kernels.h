/* The operations of Stable Diffusion 1.5 (operations.h lists them), as one table that each device
 * fills.
 *
 * A table starts as the plain-C reference (kernels/reference/); a device replaces the entries that
 * it does better (kernels/cpu/, kernels/cuda/). Models never call an entry directly. They use the
 * wrappers of kernels/compute/compute.h, which check every argument first, so an entry may trust
 * its arguments. tests/kernels/kcheck/ compares every entry with the reference.
 *
 * Conventions, for every entry:
 *  - tensors are dense, row-major, channels-last; inputs are never written; outputs never alias
 *    inputs unless the field allows it;
 *  - activations are f32, bf16 or, where the table takes f16 weights, f16, and all of one call have
 *    the same dtype; norm parameters and biases are f32; accumulation is in f32 or better;
 *  - tensors are in the table's memory; if that is an accelerator's, an entry only queues work, in
 *    order, and reads the arguments marked "host memory" before it returns;
 *  - row i of a batch (the outermost dimension) is computed alone: its bits do not depend on the
 *    contents or the number of the other rows;
 *  - an entry returns false and fills the error only for memory or device faults.
 */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "base/error.h"
#include "kernels/memory.h"
#include "kernels/operations.h"
#include "kernels/tensor.h"
#include "kernels/tuner.h"

/* The function applied to an output element before it is stored. */
enum activation {
    ACTIVATION_NONE,
    ACTIVATION_SILU,       /* x * sigmoid(x) */
    ACTIVATION_QUICK_GELU, /* x * sigmoid(1.702 x), CLIP-L */
    ACTIVATION_GELU,       /* 0.5 x (1 + erf(x / sqrt 2)) */
};

/* The convolutions that models use; padding and stride follow from the kind. */
enum conv_kind {
    CONV_1X1,            /* [c_out][c_in][1][1] */
    CONV_3X3,            /* stride 1, one pixel of zeros around */
    CONV_3X3_DOWN,       /* stride 2, one pixel of zeros around; h_out = (h - 1) / 2 + 1 */
    CONV_3X3_DOWN_RIGHT, /* stride 2, zeros right and below only (VAE encoder); h_out = h / 2 */
    CONV_3X3_UP,         /* nearest upsampling to the output's size (2h or 2h - 1), then CONV_3X3 */
};

/* The output size of a convolution kind for input size h; CONV_3X3_UP gives 2h. */
static inline int64_t conv_out_size(enum conv_kind kind, int64_t h) {
    switch (kind) {
    case CONV_1X1:
    case CONV_3X3:
        return h;
    case CONV_3X3_DOWN:
        return (h - 1) / 2 + 1;
    case CONV_3X3_DOWN_RIGHT:
        return h / 2;
    case CONV_3X3_UP:
        return 2 * h;
    }
    return 0;
}

struct arena;

/* A weight in its device's own form, made once at load. Opaque outside the back ends; the fields
 * here are those that the validation reads. */
struct packed {
    bool is_conv;
    enum conv_kind kind; /* if is_conv */
    int64_t n, k;        /* linear: outputs, inputs; convolution: c_out, c_in */
    bool geglu;          /* linear whose n outputs are stored as n/2: a * gelu(gate) */
    size_t bytes;        /* resident memory */
    /* Set by the wrapper (pack.c). owner: the table it was packed with (tables share entries).
     * serial: a number that no other weight of this process has or had. */
    const struct kernels *owner;
    uint64_t serial;
};

/* y[m][n] = activation(x[m][k] . W[n][k]^T + bias) + residual.
 * With packed->geglu: h = x . W^T + bias; y[m][j] = h[m][j] * gelu(h[m][n/2 + j]), y is [m][n/2]
 * (the second half is the gate, exact erf form). x, y: rank 2..4; the last dimension is the
 * channel, the outermost one the batch row. */
struct linear_args {
    const struct tensor *x;
    const struct packed *weight;
    enum activation activation;    /* NONE with geglu */
    const struct tensor *residual; /* like y, or NULL; may be y itself */
    struct tensor *y;
    bool ungated; /* with packed->geglu: y is h, [m][n], for op_geglu; no residual then */
};

/* y = conv(x) + bias + row_add[row][row_add_offset + c_out] + residual.
 * x [n][h][w][c_in], y [n][h'][w'][c_out].
 *
 * On a table with `widens`, without a tape and without a residual, y may be f32 whatever x is. On a
 * table with `adds_shortcuts`, without a tape, a CONV_3X3 with neither row_add nor residual may add
 * a second convolution: + conv(shortcut) + its bias, with shortcut_weight, a CONV_1X1.
 */
struct conv2d_args {
    const struct tensor *x;
    const struct packed *weight;
    /* [n][>= c_out], f32 or x's dtype, or NULL: the time embedding */
    const struct tensor *row_add;
    const struct tensor *residual; /* like y, or NULL; may be y itself */
    struct tensor *y;
    int64_t row_add_offset;        /* first channel used; row_add may hold those of many layers */
    const struct tensor *shortcut; /* [n][h'][w'][...], x's dtype, apart from y; or NULL */
    const struct packed *shortcut_weight;
};

/* y = gamma (x - mean) / sqrt(var + eps) + beta, mean and biased variance over (h, w, c / groups)
 * of each row; then SiLU if `silu`. x, y [n][h][w][c]; gamma, beta f32 [c]. y may be x.
 *
 * On a table with `joins`, without a tape, x may hold the first channels only. Then `more` holds
 * the other channels, and `joined`, shaped like y, receives both side by side. `joined` and y
 * overlap neither each other nor x and `more`.
 */
struct group_norm_args {
    const struct tensor *x, *gamma, *beta;
    int groups;
    float eps;
    bool silu;
    struct tensor *y;
    const struct tensor *more; /* [n][h][w][...]; or NULL, and then joined is NULL too */
    struct tensor *joined;
};

/* Like group_norm, over the last dimension only, without SiLU. y may be x. */
struct layer_norm_args {
    const struct tensor *x, *gamma, *beta;
    float eps;
    struct tensor *y;
};

/* For each row and head: y = softmax(scale q k^T + mask) v, softmax in f32.
 * q [n][tq][>= heads*d], k, v [n][tk][>= heads*d], y [n][tq][heads*d]; head h owns channels [h*d,
 * (h+1)*d) after the offset. The offsets let q, k and v be parts of one fused projection
 * [n][t][3*heads*d].
 *
 * causal: query i sees keys 0..i only. lengths: i32 [n], or NULL if every row has tk keys. Row i
 * has lengths[i] keys, 1 to tk, and gets the same bits as in a call with that many keys. Contents
 * beyond its keys are ignored and may be NaN.
 */
struct attention_args {
    const struct tensor *q, *k, *v;
    int64_t q_offset, k_offset, v_offset; /* first channel, in elements */
    int heads;
    int head_dim;
    float scale;
    bool causal;
    struct tensor *y;
    const struct tensor *lengths;
};

/* Returns the number of keys of a row. Only for tensors in host memory. */
static inline int64_t attention_keys(const struct attention_args *args, int64_t row) {
    return args->lengths ? ((const int32_t *)args->lengths->data)[row] : args->k->shape[1];
}

/* y[row][t] = table[ids[row][t]] + positions[t]. ids i32 [n][t]; table [vocab][c] and positions
 * [t_max][c] in f32 or bf16. If positions is NULL, y[row][t] = table[ids[row][t]], bit for bit if
 * the dtypes are the same. The wrapper's caller checks every id. */
struct embedding_args {
    const struct tensor *ids, *table, *positions;
    struct tensor *y;
};

/* y[row] = [cos(t f_0..) | sin(t f_0..)] (flip_sin_to_cos) or [sin | cos];
 * f_i = exp(-ln(10000) i / (dim/2 - freq_shift)), computed in f32. t f32 [n]; y [n][dim]. */
struct timestep_embedding_args {
    const struct tensor *timesteps;
    bool flip_sin_to_cos;
    float freq_shift;
    struct tensor *y;
};

/* y = activation(a + b); b NULL means y = activation(a). y may be a. */
struct add_args {
    const struct tensor *a, *b;
    enum activation activation;
    struct tensor *y;
};

/* y[...][0..ca) = a, y[...][ca..ca+cb) = b, as for the skip connections. */
struct concat_args {
    const struct tensor *a, *b;
    struct tensor *y;
};

#define COMBINE_MAX_TERMS 8

/* y[row] = (sum over i of coefficients[row][i] * terms[i][row]) / divisors[row], with `count`
 * terms, summed in order i = 0.. in f32. Every product, sum and quotient is rounded, as in torch's
 * separate operations, so the bits are the same on every device. Every sampler update is one
 * combine. f32 tensors of one shape. coefficients: host memory [rows][count]. divisors: host memory
 * [rows], or NULL for none. y may be one of the terms. */
struct combine_args {
    const struct tensor *terms[COMBINE_MAX_TERMS];
    int count;
    const float *coefficients;
    const float *divisors;
    struct tensor *y;
};

/* y[...][c] = (1 - mask[...]) * a[...][c] + mask[...] * b[...][c], all f32. Inpainting uses it
 * to keep part of a picture and draw the rest. mask: shaped like a, with one channel. y may be a
 * or b. */
struct blend_args {
    const struct tensor *a, *b, *mask;
    struct tensor *y;
};

/* y = x in y's dtype; same shape, or x [n][c][h][w] to y [n][h][w][c] and back. */
enum layout_change { LAYOUT_SAME, LAYOUT_NCHW_TO_NHWC, LAYOUT_NHWC_TO_NCHW };
struct convert_args {
    const struct tensor *x;
    enum layout_change layout;
    struct tensor *y;
};

/* y[row] = torch.randn of torch's CUDA generator (see kernels/random/philox.h) in torch's order,
 * f32. seeds and offsets are host memory, one element per row. Values differ from the host's by at
 * most 2e-6 of their size if the device has its own sine and logarithm. */
struct noise_args {
    const uint64_t *seeds, *offsets;
    struct tensor *y;
};

/* How many ranks (of down) or outputs (of up) lie side by side in a term's factors. */
#define LOW_RANK_PANEL 16

/* One product of two thin factors. low_rank_pair_create (overlay.h) makes the factors: f32 in the
 * table's memory, in panels padded with zeros. taps: 1, or 9 for a 3x3 convolution. */
struct low_rank_term {
    const float *down; /* [ceil(rank / 16)][taps][k][16] */
    const float *up;   /* [ceil(n / 16)][rank][16] */
    int64_t rank;
    int64_t first, n; /* added to channels first .. first + n - 1 of y */
    float scale;
};

/* The terms of one row of the batch, possibly none. Host memory. */
struct low_rank_row {
    const struct low_rank_term *terms;
    int count;
};

struct low_rank_span {
    uint32_t first, count;
};

/* y[row][t][first + j] += sum over the row's terms, in order, of
 *     scale * sum over r of (sum over k of x[row][t][k] down[r][k]) up[j][r]
 * with f32 sums. A row without terms is not touched. y may be rounded between the terms of one row
 * if their outputs overlap without being the same, or if their ranks are many; this depends on the
 * row's own terms only. For CONV_1X1, x and y are as in linear_args. For the other kinds they are
 * as in conv2d_args, and the inner sum is that convolution, with `rank` outputs.
 */
struct low_rank_args {
    const struct tensor *x;
    enum conv_kind kind;
    const struct low_rank_row *rows; /* host memory, one per row of x */
    /* The same terms, in the memory of a device that cannot read host memory. Row i has
     * spans[i].count of `terms`, from spans[i].first on. If NULL, the entry uploads them. */
    const struct low_rank_span *spans;
    const struct low_rank_term *terms;
    struct tensor *y;
};

/* y[m][j] = h[m][j] * gelu(h[m][n/2 + j]) + residual[m][j]. This is the second half of a linear
 * layer with packed->geglu whose h was computed with `ungated`. h: [m][n]; y: [m][n/2]; rank
 * 2..4. */
struct geglu_args {
    const struct tensor *h;
    const struct tensor *residual; /* like y, or NULL; may be y itself */
    struct tensor *y;
};

/* A sequence of calls that a device keeps and runs again without the host: the same entries on the
 * same addresses with the same scalars. Only the contents of the memory differ. */
struct recording;

struct recorder {
    /* Between begin and end the entries only record what they would do. Nothing else may be done
     * with the device meanwhile. */
    bool (*begin)(struct error *err);
    /* Must follow every successful begin, even if a call in between failed. If `out` is NULL, the
     * recording is discarded. */
    bool (*end)(struct recording **out, struct error *err);
    /* Queues the whole sequence as its calls would have been queued. */
    bool (*replay)(const struct recording *recording, struct error *err);
    int (*launches)(const struct recording *recording); /* kernels in one replay */
    void (*destroy)(struct recording *recording);       /* NULL is fine */
};

/* What a device reports about itself. */
struct device_figures {
    char name[64];                          /* the chip's */
    char bus_id[32];                        /* where it is in this machine */
    int driver_version, runtime_version;    /* 1000 major + 10 minor */
    int64_t memory_total, memory_free;      /* bytes, all processes */
    int64_t weight_bytes, activation_bytes; /* this process */
    int utilisation_percent;                /* of the chip, all processes; -1: unknown */
    int memory_utilisation_percent;         /* of its memory's bandwidth; -1: unknown */
};

/* Which code computes a kind of layer, as readable text. */
struct implementation {
    const char *layer, *code; /* "conv 3x3", "oneDNN, bf16" */
};

/* The arguments of training's operations (backward.h). */
#define ARGUMENTS(name) struct name##_args;
TRAINING_OPERATIONS(ARGUMENTS)
#undef ARGUMENTS

/* The table. `weight` is host memory in f32, f16 or bf16: [n][k] for a linear layer (also accepted
 * as [n][k][1][1]), [c_out][c_in][kh][kw] for a convolution; bias is [n] or NULL. The packed form
 * may keep bf16 or f16 if `dtype` says so. It multiplies activations of activation_dtype(dtype). */
struct kernels {
    const char *name; /* "reference", "cpu", "cuda:0" */
    enum device_kind device;
    const struct device_memory *memory; /* the memory of all tensors of this table */
    /* NULL on a device whose calls cost next to nothing. */
    const struct recorder *recorder;
    /* NULL if there is nothing to choose between. */
    const struct tuner *tuner;
    /* May be NULL. Any thread. */
    bool (*figures)(struct device_figures *out, struct error *err);
    unsigned weight_dtypes;   /* bits 1 << DTYPE_X: the dtypes that weights can be packed in */
    enum dtype default_dtype; /* used if none is asked for */
    /* The best size of one call of a model. More rows, or pictures of more pixels, would only take
     * more memory. */
    int batch_images;
    int64_t batch_px;
    /* How many tokens of an ungated GEGLU product fit into a cache; 0: no limit. */
    int64_t geglu_tokens;
    /* Whether group_norm takes two tensors and also writes their concatenation. This is cheaper
     * than op_concat if each call has a cost of its own. */
    bool joins;
    /* Whether conv2d takes a shortcut. This is cheaper than two calls if some kernels add the
     * shortcut to the same sum. */
    bool adds_shortcuts;
    /* Whether conv2d may write f32 from a 16-bit x. This is cheaper than a separate op_convert. */
    bool widens;

    /* Lends an arena to the entries that the calling thread calls. They take scratch memory from
     * the arena's top until the thread calls lend again; with NULL they take it from elsewhere. The
     * caller of lend releases that memory. `lend` itself is NULL if entries need no memory besides
     * their tensors. */
    void (*lend)(struct arena *arena);
    /* Bits OPERATION_BIT(x) of the entries that take scratch memory. These entries are also called
     * while the arena is planning. They then allocate their scratch and prepare what they need, but
     * touch no tensor. */
    uint64_t scratch_operations;

    /* The activation dtype that goes with weights of `weight_dtype`. bf16 weights go with bf16
     * activations if the processor multiplies bf16, and with f32 activations otherwise. */
    enum dtype (*activation_dtype)(enum dtype weight_dtype);

    /* Returns what computes each kind of layer with weights of `weight_dtype` on this machine;
     * kinds computed the same way share an element. The array ends with a NULL layer and lives
     * forever. May be NULL. Any thread. */
    const struct implementation *(*implementations)(enum dtype weight_dtype);

    bool (*linear_pack)(const struct tensor *weight, const struct tensor *bias, bool geglu,
        enum dtype dtype, struct packed **out, struct error *err);
    bool (*conv2d_pack)(const struct tensor *weight, const struct tensor *bias, enum conv_kind kind,
        enum dtype dtype, struct packed **out, struct error *err);
    void (*packed_destroy)(struct packed *packed);
    /* Reads a packed weight back as f32 in host memory, rounded as it was packed: weight [n][k], or
     * [c_out][kh][kw][c_in] for a convolution; bias [n], zeros if it has none. Either pointer may
     * be NULL. */
    bool (*unpack)(const struct packed *packed, float *weight, float *bias, struct error *err);
    /* Replaces a weight's numbers, as if it had been packed from `weight` and `bias`. These are f32
     * in the table's memory, in the order of unpack. bias is NULL if the weight was packed without
     * one. */
    bool (*rewrite)(
        struct packed *packed, const float *weight, const float *bias, struct error *err);

    /* bool (*NAME)(const struct NAME_args *args, struct error *err) for each operation. */
#define ENTRY(name) bool (*name)(const struct name##_args *args, struct error *err);
    ALL_OPERATIONS(ENTRY)
#undef ENTRY
};

/* The plain-C reference, and the fastest table for this processor (found at the first call). Both
 * live forever. Thread-safe. */
const struct kernels *kernels_reference(void);
const struct kernels *kernels_cpu(void);
/* The table of CUDA device `index`, opened at the first call. One device per process, one calling
 * thread at a time. On failure returns NULL: ERROR_UNSUPPORTED if this build has no CUDA or cannot
 * use the chip, ERROR_NOT_FOUND if there is no driver or no such device. Lives forever. */
const struct kernels *kernels_cuda(int index, struct error *err);

/* The dtypes that a table packs weights in, for messages: "f32 or bf16". */
const char *kernels_dtype_names(const struct kernels *kernels);

#endif
