/* Inside kcheck: every entry of a device's table against the reference.
 *
 * A subject is one operation on one shape. subject_check runs it on both tables with the same
 * random inputs and looks at everything that can go wrong: the values, NaN and infinities, memory
 * before and behind the output, inputs that were written to, a row that comes out with other bits
 * when it is computed alone, and sums over rows whose bits depend on the number of threads. Buffers
 * lie in host memory; for a table of another device each run works on copies, guards and all.
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

/* A tensor with guard bytes around it and, for an input, a copy to find writes. */
struct buffer {
    struct tensor t;
    char *block;  /* owned: guard, data, guard */
    char *copy;   /* owned, or NULL: an output's is what each run starts with */
    bool on_host; /* an argument that is host memory on every device */
    /* A further output beside y, which is written or added to; has_rows: row by row, as y is. */
    bool is_output, has_rows;
    struct tolerance tolerance; /* if is_output */
};

/* How NaN and infinities must come out. */
enum classes {
    CLASSES_EXACT,  /* where the reference has them, and of the same kind */
    CLASSES_SPREAD, /* at least where the reference has them, and only in rows where it has any:
                       transforms (Winograd) mix neighbours */
};

#define SUBJECT_MAX_INPUTS 16

struct subject {
    const char *op;
    char shape[128];
    struct buffer inputs[SUBJECT_MAX_INPUTS];
    int input_count;
    int special;     /* index of the input that gets NaN and infinities, or -1 */
    int in_place;    /* 1 + the input that y may be, or 0 */
    struct tensor y; /* dtype and shape of the output */
    bool is_whole;   /* y is one sum over all rows, or depends on where its rows lie */
    bool is_absent;  /* the table says that it does not compute this */
    /* Calls the op_* wrapper on `table` for row `row`, or for all rows if it is -1. */
    void (*run)(struct compute *c, const struct subject *s, int64_t row, struct tensor *y);
    const void *params;                       /* for run */
    struct packed *weight, *reference_weight; /* owned, or NULL */
    struct tolerance tolerance;
    double floor; /* the output's size counts as at least this per element */
    enum classes classes;
    double flops, bytes; /* of one call, for --bench */
};

/* What the device does at most, measured; 0: unknown. */
struct peaks {
    double flops_per_s[3]; /* of products, by enum dtype; on the CPU f32's of one thread */
    double bytes_per_s;    /* read and written */
};

struct kcheck {
    const struct kernels *table; /* under test */
    uint64_t seed, state;
    const char *filter;    /* part of "op shape", or NULL */
    const char *kernel;    /* the beginning of the wanted kernel's name, or NULL */
    const char *operation; /* alone, or NULL */
    bool quick, channels, bench, names;
    int checked, failed, absent;
    struct peaks peaks; /* with --bench */
};

/* -1 .. 1 */
float random_float(struct kcheck *k);
int64_t random_below(struct kcheck *k, int64_t n);

/* Starts a subject; the shape's text is printf-like. False if the filter passes it over. */
bool subject_start(struct kcheck *k, struct subject *s, const char *op, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* A further input of random numbers in -scale .. scale (+ offset); returns its tensor. */
struct tensor *subject_input(
    struct kcheck *k, struct subject *s, struct tensor shape, float scale, float offset);
/* A further output beside y: what is added to random numbers, or, without `accumulate`, written
 * over NaN. */
void subject_output(struct kcheck *k, struct subject *s, struct tensor shape, bool has_rows,
    bool accumulate, struct tolerance tolerance);
/* Packs a weight for both tables, and looks at what they unpack. A failure ends the program. */
void subject_pack(struct kcheck *k, struct subject *s, const struct tensor *weight,
    const struct tensor *bias, bool is_conv, enum conv_kind kind, bool geglu, enum dtype dtype);
/* The input's tensor, or its row alone. */
struct tensor subject_row(const struct subject *s, int input, int64_t row);
/* Checks (or measures, with --bench) and frees the subject. */
void subject_check(struct kcheck *k, struct subject *s);

/* Whether the table under test has an entry of its own for `op`. */
bool entry_differs(const struct kcheck *k, const char *op);

struct buffer buffer_create(struct tensor shape, int fill);
void buffer_finish(struct buffer *b);

/* A subject in the memory of another device: its inputs point there until it is taken back. */
struct placed_copy {
    void *block; /* owned: a buffer's block, guards and all */
    size_t bytes;
    char *host; /* the block that it is a copy of */
};
struct placed {
    struct placed_copy copies[SUBJECT_MAX_INPUTS + 1]; /* y's is the last */
    struct tensor hosts[SUBJECT_MAX_INPUTS];
    struct tensor y;
};
/* False with c->error; the caller takes back in any case. */
bool subject_place(
    struct compute *c, struct subject *s, const struct tensor *y, struct placed *out);
/* Everything that was copied comes back, inputs too, unless something failed. */
void subject_take_back(struct compute *c, struct subject *s, struct placed *placed);

/* Times the subject and prints a line. */
void subject_measure(struct kcheck *k, struct subject *s);
void measure_peaks(struct kcheck *k);

/* When a case runs: small ones always; real channel counts on small images unless --quick; real
 * images unless --quick or --channels; the shapes of SD-1.5 with --bench, small ones with both. */
enum when { QUICK, CHANNELS, SLOW, BENCH };
bool is_time_for(const struct kcheck *k, enum when when);
/* Whether the table under test packs weights as `dtype`. */
bool has_weights(const struct kcheck *k, enum dtype dtype);
/* Whether it takes activations of `dtype`. */
bool has_activations(const struct kcheck *k, enum dtype dtype);

struct tolerance tolerance_for(const char *op, enum dtype activations, enum dtype weights);

/* void check_NAME(struct kcheck *k): all subjects of each operation. */
#define CHECK_OPERATION(name) void check_##name(struct kcheck *k);
ALL_OPERATIONS(CHECK_OPERATION)
#undef CHECK_OPERATION

/* Fused multiply-adds on one thread of the CPU: f32 operations a second, the best of a few. */
double measure_cpu_peak(void);
double seconds_now(void);
/* Processor time of this process, all threads together. */
double seconds_busy(void);

#endif
