/* Inside kcheck: every entry of a device's table against the reference.
 *
 * A subject is one operation on one shape. subject_check runs it on both tables with the same
 * random inputs. It compares the values, NaN and infinities; it finds writes before or behind the
 * output and writes to inputs; a row must have the same bits when it is computed alone, sums over
 * rows must not depend on the number of threads, and a parameter's gradient must be added whole.
 * Buffers are in host memory; for the table of
 * another device each run works on copies, including the guards.
 */
#ifndef TESTS_KERNELS_KCHECK_KCHECK_H
#define TESTS_KERNELS_KCHECK_KCHECK_H

#include "kernels/compute/compute.h"
#include "kernels/pack.h"

#include <stdio.h>

struct tolerance {
    double normalised; /* |y - reference| / |reference|, Euclidean norms of the whole output */
    const char *reason;
};

/* A tensor with guard bytes around it. An input also has a copy, to detect writes. */
struct buffer {
    struct tensor t;
    char *block;  /* owned: guard, data, guard */
    char *copy;   /* owned; of an output: its initial contents; or NULL */
    bool on_host; /* an argument in host memory on every device */
    /* An output besides y, which is written or added to. has_rows: its rows correspond to y's
     * rows. */
    bool is_output, has_rows;
    bool is_gradient;           /* of a parameter: an output that is added to */
    struct tolerance tolerance; /* if is_output */
};

/* Where NaN and infinities must appear. */
enum classes {
    CLASSES_EXACT,  /* the same class as the reference's, everywhere */
    CLASSES_SPREAD, /* wherever the reference has them, and elsewhere only in the same rows:
                       transforms (Winograd) mix neighbours */
};

#define SUBJECT_MAX_INPUTS 16

struct subject {
    const char *op;
    char shape[128];
    struct buffer inputs[SUBJECT_MAX_INPUTS];
    int input_count;
    int special;     /* index of the input that gets NaN and infinities, or -1 */
    int in_place;    /* 1 + index of the input that y may be; 0: none */
    struct tensor y; /* dtype and shape of the output */
    bool is_whole;   /* y sums over all rows, or depends on their position */
    bool is_absent;  /* the table says that it does not compute this */
    /* Calls the op_* wrapper for one row, or for all rows if `row` is -1. */
    void (*run)(struct compute *c, const struct subject *s, int64_t row, struct tensor *y);
    const void *params;                       /* for run */
    struct packed *weight, *reference_weight; /* owned, or NULL */
    struct tolerance tolerance;
    double floor; /* least size per element for relative errors */
    enum classes classes;
    double flops, bytes; /* of one call, for --bench */
};

/* The device's measured peaks; 0: unknown. */
struct peaks {
    double flops_per_s[3]; /* products, by enum dtype; on the CPU: f32, one thread */
    double bytes_per_s;    /* reads plus writes */
};

struct kcheck {
    const struct kernels *table; /* under test */
    uint64_t seed, state;
    const char *filter;    /* part of "op shape", or NULL */
    const char *kernel;    /* the beginning of the wanted kernel's name, or NULL */
    const char *operation; /* checks only this one, or NULL */
    bool quick, channels, bench, names;
    int checked, failed, absent;
    int added;          /* parameters' gradients that were added to other numbers */
    struct peaks peaks; /* with --bench */
};

/* -1 .. 1 */
float random_float(struct kcheck *k);
int64_t random_below(struct kcheck *k, int64_t n);

/* Starts a subject; `format` and its arguments describe the shape. Returns false if the filter
 * excludes it. */
bool subject_start(struct kcheck *k, struct subject *s, const char *op, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Adds an input of random numbers in -scale .. scale (+ offset). Returns its tensor. */
struct tensor *subject_input(
    struct kcheck *k, struct subject *s, struct tensor shape, float scale, float offset);
/* Adds an output besides y. With `accumulate` results are added to random numbers; without, they
 * replace NaN. */
void subject_output(struct kcheck *k, struct subject *s, struct tensor shape, bool has_rows,
    bool accumulate, struct tolerance tolerance);
/* Adds an output for the gradient of a parameter. It is a sum over all rows, and the check adds it
 * to zeros and to other numbers: see backward.h. */
void subject_gradient(
    struct kcheck *k, struct subject *s, struct tensor shape, struct tolerance tolerance);
/* Packs a weight for both tables and compares what they unpack. Ends the program if packing
 * fails. */
void subject_pack(struct kcheck *k, struct subject *s, const struct tensor *weight,
    const struct tensor *bias, bool is_conv, enum conv_kind kind, bool geglu, enum dtype dtype);
/* Returns the tensor of an input, or only one row of it. */
struct tensor subject_row(const struct subject *s, int input, int64_t row);
/* Checks (or measures, with --bench) and frees the subject. */
void subject_check(struct kcheck *k, struct subject *s);

/* Whether the table under test has its own entry for `op`; the reference has all of its own. */
bool entry_differs(const struct kcheck *k, const char *op);

struct buffer buffer_create(struct tensor shape, int fill);
void buffer_finish(struct buffer *b);

/* A subject in another device's memory. Its inputs point there until subject_take_back. */
struct placed_copy {
    void *block; /* owned: a buffer's block, with its guards */
    size_t bytes;
    char *host; /* the block that was copied */
};
struct placed {
    struct placed_copy copies[SUBJECT_MAX_INPUTS + 1]; /* the last one is y's */
    struct tensor hosts[SUBJECT_MAX_INPUTS];
    struct tensor y;
};
/* Copies a subject to the device. Returns false and sets c->error on failure. The caller must call
 * subject_take_back in any case. */
bool subject_place(
    struct compute *c, struct subject *s, const struct tensor *y, struct placed *out);
/* Copies everything back, also the inputs, unless an error occurred. Frees the copies. */
void subject_take_back(struct compute *c, struct subject *s, struct placed *placed);

/* Times the subject and prints a line. */
void subject_measure(struct kcheck *k, struct subject *s);
void measure_peaks(struct kcheck *k);

/* When a case runs. QUICK: small cases; they run in every check, and in a --bench run only with
 * --quick. CHANNELS: real channel counts on small images; not with --quick. SLOW: real images; not
 * with --quick or --channels. BENCH: shapes of SD-1.5; only with --bench and without --quick. */
enum when { QUICK, CHANNELS, SLOW, BENCH };
bool is_time_for(const struct kcheck *k, enum when when);
/* Whether the table under test packs weights as `dtype`. */
bool has_weights(const struct kcheck *k, enum dtype dtype);
/* Whether the table under test takes activations of `dtype`. */
bool has_activations(const struct kcheck *k, enum dtype dtype);

struct tolerance tolerance_for(const char *op, enum dtype activations, enum dtype weights);

/* void check_NAME(struct kcheck *k): all subjects of each operation. */
#define CHECK_OPERATION(name) void check_##name(struct kcheck *k);
ALL_OPERATIONS(CHECK_OPERATION)
#undef CHECK_OPERATION

/* Returns one CPU thread's peak in f32 operations a second: fused multiply-adds, the best of a few
 * runs. */
double measure_cpu_peak(void);
double seconds_now(void);
/* Returns the processor time used by all threads of this process. */
double seconds_busy(void);

#endif
