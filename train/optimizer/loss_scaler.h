/* Dynamic loss scaling for f16. The loss is multiplied by a scale, so that small gradients do not
 * vanish. If a gradient overflows, the step is skipped and the scale falls.
 *
 * With hysteresis 1 and no minimum this is torch.amp.GradScaler; otherwise DeepSpeed's scaler,
 * which tolerates hysteresis - 1 overflows before the scale falls. A plain struct: a copy of it is
 * enough to save it. */
#ifndef TRAIN_OPTIMIZER_LOSS_SCALER_H
#define TRAIN_OPTIMIZER_LOSS_SCALER_H

#include <stdbool.h>
#include <stdint.h>

struct loss_scaler {
    double growth_factor, backoff_factor;
    int64_t growth_interval; /* good steps before the scale grows */
    int hysteresis;
    double min_scale;
    bool dynamic; /* false: the scale stays; an overflow only skips the step */
    /* state */
    double scale;
    int64_t good_steps; /* since the scale grew or a step overflowed */
    int forgiven;       /* overflows tolerated so far, below hysteresis */
};

/* The defaults of torch: 65536, doubled after 2,000 good steps, halved at an overflow. */
struct loss_scaler loss_scaler_torch(void);
/* A scaler that does not scale: always 1. */
struct loss_scaler loss_scaler_none(void);

/* Call it after each attempt at an optimizer step. Returns true if the step is to be taken, because
 * nothing overflowed. */
bool loss_scaler_update(struct loss_scaler *scaler, bool overflowed);

#endif
