#include "train/optimizer/ema.h"

#include <math.h>

double ema_decay(const struct ema_options *o, int64_t step) {
    const int64_t s = step - o->update_after_step - 1;
    if (s <= 0)
        return 0;
    const double rising = o->use_ema_warmup ? 1 - pow(1 + (double)s / o->inv_gamma, -o->power)
                                            : (1 + (double)s) / (10 + (double)s);
    return fmax(fmin(rising, o->decay), o->min_decay);
}

void ema_update(double decay, const float *parameters, float *average, int64_t count) {
    const float rate = (float)(1 - decay);
    for (int64_t i = 0; i < count; i++)
        average[i] -= rate * (average[i] - parameters[i]);
}
