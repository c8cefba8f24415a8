/* The operations of training that this device does not compute yet: each says so. */
#include "kernels/cuda/cuda.h"

static bool refuse(struct error *err) {
    return error_set(err, ERROR_UNSUPPORTED, "cuda:%d does not compute this yet; train on the CPU",
        cuda_get_properties()->index);
}

#define ABSENT(name)                                                                               \
    extern "C" bool cuda_##name(const struct name##_args *args, struct error *err) {               \
        (void)args;                                                                                \
        return refuse(err);                                                                        \
    }
TRAINING_OPERATIONS(ABSENT)
#undef ABSENT
