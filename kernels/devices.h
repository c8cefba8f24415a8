/* Which device to compute on, as it is asked for on a command line. */
#ifndef KERNELS_DEVICES_H
#define KERNELS_DEVICES_H

#include "kernels/kernels.h"

struct device_choice {
    bool automatic;        /* CUDA device 0 if it opens, else the CPU */
    enum device_kind kind; /* unless automatic */
    int index;             /* of a CUDA device */
    bool untuned;          /* without what the tuner found, or a word of it: for the tuner */
};

struct dtype_choice {
    bool automatic;   /* the device's own default */
    enum dtype dtype; /* unless automatic */
};

/* "auto", "cpu", "cuda", "cuda:1". False, with *out untouched, for any other word. */
bool device_choice_parse(const char *text, struct device_choice *out);
/* "auto", "f32", "f16", "bf16". */
bool dtype_choice_parse(const char *text, struct dtype_choice *out);

/* The table of the chosen device, or NULL and why not; what was chosen, and why a device was passed
 * over, is logged. */
const struct kernels *devices_open(const struct device_choice *choice, struct error *err);

/* What weights are held as on that device; ERROR_UNSUPPORTED if it does not multiply such. */
bool devices_choose_dtype(const struct kernels *kernels, const struct dtype_choice *choice,
    enum dtype *out, struct error *err) __attribute__((warn_unused_result));

#endif
