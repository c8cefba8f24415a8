/* Small programs for the tape's tests. All parameters and inputs come from one array of numbers, so
 * that each can be changed slightly. The forwards use memory in all the ways that the models do. */
#ifndef TESTS_KERNELS_TAPE_TAPE_PROGRAMS_H
#define TESTS_KERNELS_TAPE_TAPE_PROGRAMS_H

#include "kernels/compute/overlay.h"
#include "kernels/pack.h"
#include "kernels/tape.h"

#define ROWS 2
#define ROWS_MOST 40
#define MOST 24

/* A parameter of up to two parts. Each part is a range of the program's numbers. */
struct variable {
    enum tape_parameter_kind kind;
    const void *what;
    int64_t first[2], count[2];
    int64_t outer[2], inner[2], taps; /* for parts in panels and for convolution weights */
    float dropout;
};

struct program {
    const struct kernels *kernels;
    float *numbers; /* borrowed */
    bool fill;      /* initialize the numbers */
    int64_t used;
    struct variable variables[2 * MOST];
    int variable_count;
    struct packed *weights[MOST]; /* owned */
    int weight_count;
    struct tensor gammas[MOST], betas[MOST], tables[MOST], inputs[MOST];
    int norm_count, table_count, input_count;
    struct low_rank_pair *pairs[MOST]; /* owned */
    int pair_count;
    struct row_overlay *changes; /* owned */
    const struct row_overlay *rows[ROWS_MOST];
    struct overlay overlay;
    struct tensor lengths, ids; /* i32, if the program uses them */
    struct tensor out;          /* f32 */
    /* owned: device memory of all the tensors here except weights and pairs */
    void *blocks[4 * MOST];
    size_t block_bytes[4 * MOST];
    int block_count;
};

struct program_case {
    const char *name;
    void (*build)(struct program *p);
    void (*forward)(struct compute *c, void *program);
    int rows; /* of the batch: ROWS or, to have more than a few, ROWS_MOST */
};
extern const struct program_case program_cases[];
extern const struct program_case *const program_many_rows; /* one of them */
extern const int program_case_count;

#define PROGRAM_NUMBERS 65536
extern const uint64_t program_seed, program_step;

/* Builds the program from `numbers` [PROGRAM_NUMBERS]. */
void program_start(struct program *p, const struct program_case *of, const struct kernels *kernels,
    float *numbers, bool fill);
void program_finish(struct program *p);

float program_random(void); /* in [-1, 1) */

#endif
