/* The operations of Stable Diffusion 1.5 (operations.h lists them), as one table that each device
 * fills.
 *
 * The table starts with the plain-C reference (kernels/reference/), and a device overwrites what it
 * does better (kernels/cpu/, kernels/cuda/). Nobody calls an entry directly: models use the
 * wrappers of kernels/compute.h, which check every argument first, so that an entry may trust them.
 * tests/kcheck compares every entry with the reference.
 *
 * Conventions, for every entry:
 *  - tensors are dense, row-major, channels-last; inputs are never written; outputs never alias
 *    inputs unless the field says so;
 *  - activations are f32, bf16 or, where the table takes such weights, f16 (all of one call the
 *    same); norm parameters and biases are f32; accumulation is f32 or better;
 *  - tensors are in the table's memory; where that is an accelerator's, an entry only queues work,
 *    in order, and what `struct kernels` calls host memory is read before the entry returns;
 *  - row i of a batch (the outermost dimension) is computed alone: its bits do not depend on what
 *    the other rows hold nor on how many there are;
 *  - an entry returns false and fills the error only for memory or device faults.
 */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "base/error.h"
#include "kernels/memory.h"
#include "kernels/operations.h"
#include "kernels/tensor.h"
#include "kernels/tuner.h"

/* What happens to an output element before it is stored. */
enum activation {
    ACTIVATION_NONE,
    ACTIVATION_SILU,       /* x * sigmoid(x) */
    ACTIVATION_QUICK_GELU, /* x * sigmoid(1.702 x), CLIP-L */
    ACTIVATION_GELU,       /* 0.5 x (1 + erf(x / sqrt 2)) */
};

/* The convolutions that occur; padding and stride follow from the kind. */
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

/* A weight in the form its device likes best, made once at load. Opaque outside the backends; the
 * fields here are what the validation reads. */
struct packed {
    bool is_conv;
    enum conv_kind kind; /* if is_conv */
    int64_t n, k;        /* linear: outputs, inputs; convolution: c_out, c_in */
    bool geglu;          /* linear whose n outputs are stored as n/2: a * gelu(gate) */
    size_t bytes;        /* resident memory */
    /* Set by the wrapper (pack.c): the table it was packed with, because tables share entries, and
     * a number that no other weight of the process has or had. */
    const struct kernels *owner;
    uint64_t serial;
};

/* y[m][n] = activation(x[m][k] . W[n][k]^T + bias) + residual
 * With packed->geglu: h = x . W^T + bias; y[m][j] = h[m][j] * gelu(h[m][n/2 + j]), y is [m][n/2]
 * (the second half is the gate, exact erf form). x, y: rank 2..4, the last dimension is the
 * channel; outermost dimension is the batch row. */
struct linear_args {
    const struct tensor *x;
    const struct packed *weight;
    enum activation activation;    /* NONE with geglu */
    const struct tensor *residual; /* like y, or NULL; may be y itself */
    struct tensor *y;
    bool ungated; /* with packed->geglu: y is h, [m][n], for op_geglu; no residual then */
};

/* y = conv(x) + bias + row_add[row][row_add_offset + c_out] + residual.
 * x [n][h][w][c_in], y [n][h'][w'][c_out]. On a table that widens, without a tape and a residual, y
 * may be f32 whatever x is.
 * On a table that adds shortcuts, without a tape, a CONV_3X3 with neither row_add nor residual may
 * add another convolution instead: + conv(shortcut) + its bias, of shortcut_weight, a CONV_1X1. */
struct conv2d_args {
    const struct tensor *x;
    const struct packed *weight;
    /* [n][>= c_out], f32 or x's dtype, or NULL: the time embedding */
    const struct tensor *row_add;
    const struct tensor *residual; /* like y, or NULL; may be y itself */
    struct tensor *y;
    int64_t row_add_offset; /* its first channel: many layers' may stand side by side */
    const struct tensor *shortcut; /* [n][h'][w'][...] in x's dtype, apart from y; or NULL */
    const struct packed *shortcut_weight;
};

/* y = gamma (x - mean) / sqrt(var + eps) + beta, mean and biased variance over (h, w, c / groups)
 * of each row; then SiLU if asked. x, y [n][h][w][c]; gamma, beta f32 [c]. y may be x.
 * On a table that joins, and without a tape, x may have the first channels alone: then `more` has
 * the others, and `joined`, like y, becomes both side by side. All are apart. */
struct group_norm_args {
    const struct tensor *x, *gamma, *beta;
    int groups;
    float eps;
    bool silu;
    struct tensor *y;
    const struct tensor *more; /* NULL, as joined is, or [n][h][w][...] */
    struct tensor *joined;
};

/* The same over the last dimension only. y may be x. */
struct layer_norm_args {
    const struct tensor *x, *gamma, *beta;
    float eps;
    struct tensor *y;
};

/* For each row and head: y = softmax(scale q k^T + mask) v, softmax in f32.
 * q [n][tq][>= heads*d], k, v [n][tk][>= heads*d], y [n][tq][heads*d]; head h owns channels
 * [h*d, (h+1)*d) after the offset. The offsets let q, k and v be parts of one fused projection
 * [n][t][3*heads*d]. causal: query i sees keys 0..i only. lengths: i32 [n], or NULL where every row
 * has tk keys: row i has lengths[i] of them, 1 to tk, and the bits of a call with so many. What
 * lies behind its keys is not looked at; it may be NaN. */
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

/* The keys of a row; for tensors in host memory. */
static inline int64_t attention_keys(const struct attention_args *args, int64_t row) {
    return args->lengths ? ((const int32_t *)args->lengths->data)[row] : args->k->shape[1];
}

/* y[row][t] = table[ids[row][t]] + positions[t]. ids i32 [n][t]; table [vocab][c] and positions
 * [t_max][c] in f32 or bf16; positions NULL: table[ids[row][t]] alone, bit for bit where the dtypes
 * are one. Every id is checked by the wrapper's caller. */
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

/* y[...][0..ca) = a, y[...][ca..ca+cb) = b: the skip connections. */
struct concat_args {
    const struct tensor *a, *b;
    struct tensor *y;
};

#define COMBINE_MAX_TERMS 8

/* y[row] = (sum over i of coefficients[row][i] * terms[i][row]) / divisors[row]; one row of
 * coefficients per batch row, `count` terms, summed in order i = 0.. in f32. Every product, sum and
 * quotient is rounded, as torch's are, whose operations come one by one: the bits are the same on
 * every device. Every sampler update is one of these. f32 tensors of one shape; coefficients is
 * host memory [rows][count], divisors [rows], or NULL for none. y may be one of the terms. */
struct combine_args {
    const struct tensor *terms[COMBINE_MAX_TERMS];
    int count;
    const float *coefficients;
    const float *divisors;
    struct tensor *y;
};

/* y[...][c] = (1 - mask[...]) * a[...][c] + mask[...] * b[...][c], f32: what inpainting keeps of a
 * picture and what it draws. mask: as a, with one channel. y may be a or b. */
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

/* y[row] = torch.randn of torch's CUDA generator (kernels/philox.h says how) in torch's order, f32.
 * seeds and offsets are host memory, one of each a row. Where the device has other sines and
 * logarithms than the host, values differ by 2e-6 of their size at most. */
struct noise_args {
    const uint64_t *seeds, *offsets;
    struct tensor *y;
};

/* Ranks, and outputs, that lie side by side in a term's factors. */
#define LOW_RANK_PANEL 16

/* One product of two thin factors. Both are f32 in the table's memory, in panels padded with zeros,
 * and are made by low_rank_pair_create (overlay.h). taps: 1, or 9 for a 3x3 convolution. */
struct low_rank_term {
    const float *down; /* [ceil(rank / 16)][taps][k][16] */
    const float *up;   /* [ceil(n / 16)][rank][16] */
    int64_t rank;
    int64_t first, n; /* it adds to y's channels first .. first + n - 1 */
    float scale;
};

/* The terms of one row of the batch: none or more. Host memory. */
struct low_rank_row {
    const struct low_rank_term *terms;
    int count;
};

struct low_rank_span {
    uint32_t first, count;
};

/* y[row][t][first + j] += sum over the row's terms, in order, of
 *     scale * sum over r of (sum over k of x[row][t][k] down[r][k]) up[j][r]
 * with f32 sums; a row without terms is left alone. y may be rounded between terms of one row, if
 * their outputs overlap without being the same or if their ranks are many; what decides that are
 * the row's own terms. x and y as in linear_args if kind is CONV_1X1;
 * for the others as in conv2d_args, and the inner sum is that convolution, with rank outputs. */
struct low_rank_args {
    const struct tensor *x;
    enum conv_kind kind;
    const struct low_rank_row *rows; /* host memory: one for each row of x */
    /* The same in the memory of a device that does not read the host's: row i has terms
     * spans[i].first and so on of `terms`. NULL: the entry uploads them. */
    const struct low_rank_span *spans;
    const struct low_rank_term *terms;
    struct tensor *y;
};

/* y[m][j] = h[m][j] * gelu(h[m][n/2 + j]) + residual[m][j]: the end of a linear layer with
 * packed->geglu whose h was made by itself. h: [m][n]; y: [m][n/2]; rank 2..4. */
struct geglu_args {
    const struct tensor *h;
    const struct tensor *residual; /* like y, or NULL; may be y itself */
    struct tensor *y;
};

/* A sequence of calls that a device keeps and runs again without the host: the same entries on the
 * same addresses with the same scalars; only the contents of the memory differ. */
struct recording;

struct recorder {
    /* Between begin and end the entries only write down what they would do; nothing else may be
     * done with the device. */
    bool (*begin)(struct error *err);
    /* Always after a successful begin, also if a call in between failed: with out NULL what was
     * written down is thrown away. */
    bool (*end)(struct recording **out, struct error *err);
    /* Queues the whole sequence, as its calls would have been. */
    bool (*replay)(const struct recording *recording, struct error *err);
    int (*launches)(const struct recording *recording); /* kernels in one replay */
    void (*destroy)(struct recording *recording);       /* NULL is fine */
};

/* What a device says of itself. */
struct device_figures {
    char name[64];                          /* the chip's */
    int driver_version, runtime_version;    /* 1000 major + 10 minor */
    int64_t memory_total, memory_free;      /* bytes, all processes */
    int64_t weight_bytes, activation_bytes; /* this process */
    int utilisation_percent;                /* of the chip, all processes; -1: unknown */
    int memory_utilisation_percent;         /* of its memory's bandwidth; -1: unknown */
};

/* What computes a kind of layer: words for people. */
struct implementation {
    const char *layer, *code; /* "conv 3x3", "oneDNN, bf16" */
};

/* The arguments of training's operations (backward.h). */
#define ARGUMENTS(name) struct name##_args;
TRAINING_OPERATIONS(ARGUMENTS)
#undef ARGUMENTS

/* The table. `weight` is host memory in f32, f16 or bf16: [n][k] for a linear layer (also given as
 * [n][k][1][1]), [c_out][c_in][kh][kw] for a convolution; bias is [n] or NULL. The packed form may
 * keep bf16 or f16 if `dtype` says so; it is what `activation_dtype(dtype)` activations multiply.
 */
struct kernels {
    const char *name; /* "reference", "cpu", "cuda:0" */
    enum device_kind device;
    const struct device_memory *memory; /* where all tensors of this table lie */
    /* Optional: NULL on a device whose calls cost next to nothing. */
    const struct recorder *recorder;
    /* Optional: NULL where there is nothing to choose between. */
    const struct tuner *tuner;
    /* Optional. Any thread. */
    bool (*figures)(struct device_figures *out, struct error *err);
    unsigned weight_dtypes;   /* bits 1 << DTYPE_X: what weights can be packed as */
    enum dtype default_dtype; /* where nobody asked for one */
    /* What one call of a model best gets: more rows or pixels (of pictures) at once would only take
     * more memory. */
    int batch_images;
    int64_t batch_px;
    /* Tokens whose ungated GEGLU products stay in a cache; 0: as many as there are. */
    int64_t geglu_tokens;
    /* Whether group_norm takes two tensors and leaves their concatenation: cheaper than op_concat
     * where a call by itself costs something. */
    bool joins;
    /* Whether conv2d takes a shortcut: cheaper than two calls where some of its kernels add it to
     * the same sum. */
    bool adds_shortcuts;
    /* Whether conv2d may leave f32 where x is of 16 bits: cheaper than op_convert there. */
    bool widens;

    /* Optional: NULL where calls need no memory beside their tensors. Until it is called again, the
     * calling thread's entries take scratch memory from the top of `arena` (NULL: from elsewhere),
     * and the caller gives it back. */
    void (*lend)(struct arena *arena);
    /* Bits 1 << OPERATION_x of the entries that take some: while the arena is planning they are
     * called too, take it and make ready what they need, but touch no tensor. */
    unsigned scratch_operations;

    /* The activation dtype that goes with weights of `dtype` here: bf16 weights go with bf16
     * activations where the processor multiplies bf16, and with f32 ones where it does not. */
    enum dtype (*activation_dtype)(enum dtype weight_dtype);

    /* Optional: what computes what with weights of `dtype` on this machine, the kinds that go the
     * same way as one; a NULL layer ends it. Lives forever. Any thread. */
    const struct implementation *(*implementations)(enum dtype weight_dtype);

    bool (*linear_pack)(const struct tensor *weight, const struct tensor *bias, bool geglu,
        enum dtype dtype, struct packed **out, struct error *err);
    bool (*conv2d_pack)(const struct tensor *weight, const struct tensor *bias, enum conv_kind kind,
        enum dtype dtype, struct packed **out, struct error *err);
    void (*packed_destroy)(struct packed *packed);
    /* What was packed, as f32 in host memory, rounded as it was: weight [n][k], of a convolution
     * [c_out][kh][kw][c_in]; bias [n], zeros without one. Either may be NULL. */
    bool (*unpack)(const struct packed *packed, float *weight, float *bias, struct error *err);
    /* Puts other numbers into a weight, which is then as one that was packed of them. They lie in
     * the table's memory, f32, in the order of unpack; bias is NULL where it was. */
    bool (*rewrite)(
        struct packed *packed, const float *weight, const float *bias, struct error *err);

    /* bool (*NAME)(const struct NAME_args *args, struct error *err), for each operation. */
#define ENTRY(name) bool (*name)(const struct name##_args *args, struct error *err);
    ALL_OPERATIONS(ENTRY)
#undef ENTRY
};

/* The plain-C truth, and the fastest this processor offers (found at the first call). Both live
 * forever. Thread-safe. */
const struct kernels *kernels_reference(void);
const struct kernels *kernels_cpu(void);
/* The CUDA device `index`, which is opened at the first call: one device a process, by one thread
 * at a time. NULL and why not: ERROR_UNSUPPORTED if this build has no CUDA or cannot use the chip,
 * ERROR_NOT_FOUND without a driver or such a device. Lives forever. */
const struct kernels *kernels_cuda(int index, struct error *err);

/* "f32 or bf16": what a table packs weights as, for messages. */
const char *kernels_dtype_names(const struct kernels *kernels);

#endif
