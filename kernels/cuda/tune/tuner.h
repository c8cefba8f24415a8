/* Inside kernels/cuda/: what the tuner needs to know about a kind of operation that several kernels
 * can compute. tunables.cu describes each kind. tuner.cu holds the problems and the choices.
 * trial.cu tries a candidate: it checks the candidate's result and measures its time. */
#ifndef KERNELS_CUDA_TUNE_TUNER_H
#define KERNELS_CUDA_TUNE_TUNER_H

#include "kernels/cuda/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/tuner.h"

#define TRIAL_MAX_INPUTS 4
#define TRIAL_MAX_WEIGHTS 2

/* The operands of one problem, for `rows` rows. */
struct trial {
    int64_t rows;
    struct tensor inputs[TRIAL_MAX_INPUTS]; /* device memory, owned by the tuner */
    int input_count;
    struct packed *weights[TRIAL_MAX_WEIGHTS]; /* owned by the tuner */
    int weight_count;
    struct tensor y; /* shape and dtype of the result; data NULL */
    double flops;
};

#define TUNABLE_MAX_SHAPE_BYTES 128

struct tunable {
    const char *name;
    size_t shape_bytes;
    /* Writes a text that describes the whole shape and nothing else. */
    void (*describe)(const void *shape, char *text, size_t size);
    /* Returns the number of candidates for two rows, the static choice first and the plainest
     * last. */
    int (*candidates)(const void *shape);
    void (*candidate_name)(const void *shape, int candidate, char name[TUNER_NAME_BYTES]);
    /* Makes the operands with trial_input and trial_weight, and sets the shape and dtype of y. */
    bool (*prepare)(const void *shape, struct trial *trial, struct error *err);
    /* Computes the first `rows` rows of y from the first `rows` rows of the operands. */
    bool (*run)(const void *shape, int candidate, const struct trial *trial, int64_t rows,
        struct tensor *y, struct error *err);
    bool (*select)(const void *shape, int candidate);
};

/* An operation on one shape. */
struct problem {
    const struct tunable *tunable; /* borrowed */
    char key[TUNER_KEY_BYTES];     /* two shapes are the same if their keys are */
    unsigned char shape[TUNABLE_MAX_SHAPE_BYTES];
    int64_t rows_min, rows_max; /* rows of the noted calls; 0: none was noted */
};

/* Registers the shape with the tuner, and selects the candidate that was chosen for it before. An
 * operation calls this when it has no selected candidate. Returns true if this call selected
 * one. */
bool tuner_note(const struct tunable *tunable, const void *shape);
/* Does what tuner_note does for a call on `rows` rows, and notes the number of rows too. */
void tuner_note_rows(const struct tunable *tunable, const void *shape, int64_t rows);

/* Tries one candidate, for struct tuner's try_candidate. Keeps the operands and the plainest
 * kernel's result for the next candidate of the same problem; trial_end frees them. */
bool trial_of(
    const struct problem *problem, int candidate, struct tuner_result *out, struct error *err);
void trial_end(void);

/* For prepare. trial_input adds an input of random numbers of about unit size. trial_weight adds a
 * weight [n][k] or [n][k][3][3] with a bias; its products are of about unit size again. */
bool trial_input(struct trial *trial, struct tensor like, struct error *err);
bool trial_weight(struct trial *trial, int64_t n, int64_t k, bool is_conv, enum conv_kind kind,
    bool geglu, enum dtype dtype, struct error *err);

/* The names and digests of the compiler and of each file of kernels that the tuner chooses between.
 * Made by the build (scripts/code-digest). */
extern const char cuda_tuned_code[];

extern const struct tuner cuda_tuner;

/* The kinds of operations. tunables_note registers a call of one of them, for struct tuner's
 * note. */
extern const struct tunable tunable_gemm, tunable_attention, tunable_group_norm;
void tunables_note(enum operation operation, const void *args);

#ifdef __cplusplus
}
#endif

#endif
