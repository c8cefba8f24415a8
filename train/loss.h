/* How much each picture of a batch counts in the loss.
 *
 * The loss is the mean over the pictures of weight_i (mean squared error)_i. min-SNR gives a weight
 * to each timestep (Hang et al. 2023, as diffusers' scripts have it): with snr = a / (1 - a), where
 * a = alphas_cumprod[t],
 *   epsilon: min(snr, gamma) / snr        v: min(snr, gamma) / (snr + 1)
 * Prior preservation appends as many class pictures to the instances: the mean over the instances
 * plus prior_loss_weight times the mean over the class pictures. min-SNR then weighs both halves
 * alike (diffusers' script fails with both). */
#ifndef TRAIN_LOSS_H
#define TRAIN_LOSS_H

#include <stdbool.h>
#include <stdint.h>

struct loss_options {
    bool v_prediction; /* else epsilon */
    double snr_gamma;  /* 0: every timestep counts the same */
    bool prior;        /* the second half of the rows are class pictures */
    double prior_loss_weight;
};

/* weights[i] is what picture i's mean squared error counts in the loss: they hold the division by
 * the number of pictures. */
void loss_weights(const struct loss_options *options, const float *alphas_cumprod,
    const int32_t *timesteps, int rows, float *weights);

#endif
