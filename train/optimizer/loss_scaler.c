#include "train/optimizer/loss_scaler.h"

#include <math.h>

struct loss_scaler loss_scaler_torch(void) {
    return (struct loss_scaler){ .growth_factor = 2,
        .backoff_factor = 0.5,
        .growth_interval = 2000,
        .hysteresis = 1,
        .dynamic = true,
        .scale = 65536 };
}

struct loss_scaler loss_scaler_none(void) {
    return (struct loss_scaler){ .scale = 1 };
}

bool loss_scaler_update(struct loss_scaler *s, bool overflowed) {
    if (!s->dynamic)
        return !overflowed;
    if (overflowed) {
        s->good_steps = 0;
        if (s->forgiven < s->hysteresis - 1)
            s->forgiven++;
        else
            s->scale = fmax(s->scale * s->backoff_factor, s->min_scale);
        return false;
    }
    if (++s->good_steps == s->growth_interval) {
        s->good_steps = 0;
        s->forgiven = 0;
        /* The scale must be finite as a float, as it is used as one. */
        if (isfinite((float)(s->scale * s->growth_factor)))
            s->scale *= s->growth_factor;
    }
    return true;
}
