/* How much each picture of a batch counts in the loss.
 *
 * The loss is the mean over the pictures of weight_i (mean squared error)_i. min-SNR gives each
 * timestep a weight (Hang et al. 2023, as in diffusers' scripts). With snr = a / (1 - a), where a =
 * alphas_cumprod[t],
 *   epsilon: min(snr, gamma) / snr        v: min(snr, gamma) / (snr + 1)
 * Prior preservation appends one class picture per instance: the loss is the mean over the
 * instances plus prior_loss_weight times the mean over the class pictures. With min-SNR both halves
 * are weighted alike (diffusers' script fails with both). */
#ifndef TRAIN_LOSS_H
#define TRAIN_LOSS_H

#include <stdbool.h>
#include <stdint.h>

struct loss_options {
    bool v_prediction; /* false: epsilon */
    double snr_gamma;  /* 0: all timesteps have the same weight */
    bool prior;        /* the second half of the rows are class pictures */
    double prior_loss_weight;
};

/* Sets weights[i], the factor of picture i's mean squared error in the loss. It includes the
 * division by the number of pictures. */
void loss_weights(const struct loss_options *options, const float *alphas_cumprod,
    const int32_t *timesteps, int rows, float *weights);

#endif
