#include "train/loss.h"

#include <math.h>

/* Computes a min-SNR weight, with torch's rounding. */
static float min_snr_weight(const struct loss_options *o, float alpha_cumprod) {
    const float ratio = sqrtf(alpha_cumprod) / sqrtf(1 - alpha_cumprod);
    const float snr = ratio * ratio;
    const float gamma = (float)o->snr_gamma;
    if (o->v_prediction)
        return fminf(snr, gamma) / (snr + 1);
    return snr <= gamma ? 1 : gamma / snr; /* 1 also for snr 0, where torch has 0 / 0 */
}

void loss_weights(const struct loss_options *o, const float *alphas_cumprod,
    const int32_t *timesteps, int rows, float *weights) {
    const int instances = o->prior ? rows / 2 : rows;
    for (int i = 0; i < rows; i++) {
        const float share = 1 / (float)(i < instances ? instances : rows - instances);
        const float weight = o->snr_gamma > 0 ? min_snr_weight(o, alphas_cumprod[timesteps[i]]) : 1;
        weights[i] = share * weight * (i < instances ? 1 : (float)o->prior_loss_weight);
    }
}
