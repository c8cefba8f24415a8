/* Adapters that training sees as new weights, not as terms beside them: DoRA, LoHa and LoKr. Their
 * numbers are few, and the weights that follow from them replace the model's before each pass:
 *
 *   DoRA   W'[o] = m[o] (W + s B A)[o] / |(W + s B A)[o]|      for each output o (Liu et al. 2024)
 *   LoHa   W' = W + s (A1 B1) o (A2 B2)                        elementwise (Hyeon-Woo et al. 2021)
 *   LoKr   W' = W + s S1 (x) S2, each S whole or a product     Kronecker (Edalati et al. 2022)
 *
 * with s = alpha / rank. A pass adds up dW', the gradient of the weights; before a step of the
 * optimizer the numbers' gradients follow from it by the chain rule. This is exact, because the
 * numbers stay the same between two steps. As in peft, the norm of DoRA counts as a constant.
 *
 * The weights, dW' and a copy of the untouched weights take as much memory as in a full fine-tune
 * of these layers. The arithmetic on them is done in host memory, on any device. */
#ifndef TRAIN_OPTIMIZER_PRODUCTS_H
#define TRAIN_OPTIMIZER_PRODUCTS_H

#include "train/optimizer/parameters.h"

/* A matrix [rows][cols] among the values: itself, or a [rows][rank] times b [rank][cols]. */
struct product_factor {
    int64_t rows, cols, rank; /* rank 0: whole */
    int64_t a, b;             /* places in the values; whole: a */
};

/* One layer. Matrices of weights are [n][k taps], as in a file. */
struct product_module {
    enum component component;
    const struct named_weight *target; /* borrowed from the model's list */
    size_t tensor;                     /* its number in `whole` */
    struct product_factor factors[2];  /* DoRA: one, B A */
    int64_t magnitude;                 /* place in the values; -1: none */
    double scale, alpha;               /* alpha: as a file has it, scale times rank */
    double learning_rate, weight_decay;
};

struct products {
    int kind;                       /* enum train_adapter */
    struct product_module *modules; /* owned */
    size_t count;
    struct parameters *whole; /* owned: the weights, with their gradients */
    float *base;              /* owned, host memory: the untouched weights, in whole's order */
};

/* Does what parameters_create does, for a job whose adapter is not a plain LoRA. The models must be
 * the job's own. `room`: as of parameters_create_full. */
bool products_create(const struct kernels *kernels, const struct train_config *config,
    const struct trained_model *unet, const struct trained_model *text_encoder,
    struct noise_generator *generator, const struct available *room, struct parameters **out,
    struct error *err) __attribute__((warn_unused_result));
void products_destroy(struct products *products); /* NULL is fine */

/* Computes the numbers' gradients from the weights' and adds them to p->gradients. */
bool products_pull(struct parameters *p, struct error *err) __attribute__((warn_unused_result));
/* Computes the weights from the values in p->values and puts them into the models. */
bool products_apply(struct parameters *p, struct error *err) __attribute__((warn_unused_result));

/* LyCORIS's factorization: the two factors of a dimension, the smaller first, closest to each other
 * (factor -1), or with `factor` as one of them if it divides the dimension, else at most it. */
void products_factorize(int64_t dimension, int64_t factor, int64_t *small, int64_t *large);

#endif
