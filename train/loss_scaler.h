/* Dynamic loss scaling for f16: the loss is multiplied by a scale, so that small gradients do not
 * vanish; where a gradient overflows, the step is skipped and the scale falls.
 *
 * With hysteresis 1 and no minimum this is torch.amp.GradScaler; with them, DeepSpeed's scaler,
 * which forgives hysteresis - 1 overflows before it falls. A plain struct: copied, it is saved. */
#ifndef TRAIN_LOSS_SCALER_H
#define TRAIN_LOSS_SCALER_H

#include <stdbool.h>
#include <stdint.h>

struct loss_scaler {
    double growth_factor, backoff_factor;
    int64_t growth_interval; /* good steps before it grows */
    int hysteresis;
    double min_scale;
    bool dynamic; /* else the scale stays, and an overflow only skips */
    /* what changes */
    double scale;
    int64_t good_steps; /* since it grew or a step overflowed */
    int forgiven;       /* overflows, of hysteresis - 1 */
};

/* torch's: 65536, twice as much after 2,000 good steps, half at an overflow. */
struct loss_scaler loss_scaler_torch(void);
/* No scaling at all: 1 for ever. */
struct loss_scaler loss_scaler_none(void);

/* After each try of an optimizer's step. True if the step is to be taken: nothing overflowed. */
bool loss_scaler_update(struct loss_scaler *scaler, bool overflowed);

#endif
