/* Inside kernels/cuda/: what the tuner needs to know of a kind of operation that several kernels
 * can compute. tunables.cu describes each kind, tuner.cu knows the problems and the choices,
 * trial.cu tries a candidate: compares and times it. */
#ifndef KERNELS_CUDA_TUNER_H
#define KERNELS_CUDA_TUNER_H

#include "kernels/cuda/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/tuner.h"

#define TRIAL_MAX_INPUTS 4
#define TRIAL_MAX_WEIGHTS 2

/* One problem's operands, for `rows` rows. */
struct trial {
    int64_t rows;
    struct tensor inputs[TRIAL_MAX_INPUTS]; /* device memory, of the tuner */
    int input_count;
    struct packed *weights[TRIAL_MAX_WEIGHTS]; /* of the tuner */
    int weight_count;
    struct tensor y;       /* shape and dtype of the result; data NULL */
    double flops;
};

#define TUNABLE_MAX_SHAPE_BYTES 128

struct tunable {
    const char *name;
    size_t shape_bytes;
    /* A text that says all of the shape, and of nothing else. */
    void (*describe)(const void *shape, char *text, size_t size);
    /* Candidates for two rows, the static choice first and the plainest last. */
    int (*candidates)(const void *shape);
    void (*candidate_name)(const void *shape, int candidate, char name[TUNER_NAME_BYTES]);
    /* Makes the operands with trial_input and trial_weight, and says what y is. */
    bool (*prepare)(const void *shape, struct trial *trial, struct error *err);
    /* The first `rows` rows of y = the operation on the first `rows` rows of the operands. */
    bool (*run)(const void *shape, int candidate, const struct trial *trial, int64_t rows,
        struct tensor *y, struct error *err);
    bool (*select)(const void *shape, int candidate);
    /* Optional: the same for the candidate of that name, without listing all. False if there is no
     * such one. */
    bool (*select_by_name)(const void *shape, const char *name);
};

/* An operation on one shape. */
struct problem {
    const struct tunable *tunable; /* borrowed */
    char key[TUNER_KEY_BYTES];     /* shapes are compared by what they are called */
    unsigned char shape[TUNABLE_MAX_SHAPE_BYTES];
    int64_t rows_min, rows_max; /* of the calls that were noted with their rows; 0: none was */
};

/* An operation calls this when it has no selected candidate: makes the shape known to the tuner,
 * and selects what was chosen for it before. True if something was selected just now. */
bool tuner_note(const struct tunable *tunable, const void *shape);
/* The same for a call on `rows` rows. */
void tuner_note_rows(const struct tunable *tunable, const void *shape, int64_t rows);

/* One candidate, as struct tuner's try_candidate. Keeps the operands and the plainest kernel's
 * result for the next candidate of the same problem; trial_end gives them back. */
bool trial_of(
    const struct problem *problem, int candidate, struct tuner_result *out, struct error *err);
void trial_end(void);

/* For prepare: a further input of random numbers of about unit size, and a further weight [n][k] or
 * [n][k][3][3] with bias whose products are of unit size again. */
bool trial_input(struct trial *trial, struct tensor like, struct error *err);
bool trial_weight(struct trial *trial, int64_t n, int64_t k, bool is_conv, enum conv_kind kind,
    bool geglu, enum dtype dtype, struct error *err);

/* The compiler and each file of kernels that the tuner chooses between, with digests: made by the
 * build (scripts/code-digest). */
extern const char cuda_tuned_code[];

extern const struct tuner cuda_tuner;

/* The kinds; a call of one is made known as struct tuner's note says. */
extern const struct tunable tunable_gemm, tunable_attention, tunable_group_norm;
void tunables_note(enum operation operation, const void *args);

#ifdef __cplusplus
}
#endif

#endif
