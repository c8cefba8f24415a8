/* Which device to compute on, as given on a command line. */
#ifndef KERNELS_DEVICES_H
#define KERNELS_DEVICES_H

#include "kernels/kernels.h"

struct device_choice {
    bool automatic;        /* CUDA device `index` if it opens, else the CPU */
    enum device_kind kind; /* unless automatic */
    int index;             /* of a CUDA device */
    bool indexed;          /* the index was given */
    bool untuned; /* for the tuner: ignore its earlier results, and log nothing of the device */
};

struct dtype_choice {
    bool automatic;   /* the device's own default */
    enum dtype dtype; /* unless automatic */
};

/* Parses "auto", "cpu", "cuda" or "cuda:1". Returns false for any other word and leaves *out
 * untouched. */
bool device_choice_parse(const char *text, struct device_choice *out);
/* Parses "auto", "f32", "f16" or "bf16". Returns false for any other word and leaves *out
 * untouched. */
bool dtype_choice_parse(const char *text, struct dtype_choice *out);

/* Returns the table of the chosen device, or NULL with an error. Logs which device is used. If that
 * is the CPU because no GPU opened, logs the reason too. */
const struct kernels *devices_open(const struct device_choice *choice, struct error *err);

/* Chooses the dtype in which the device holds weights. ERROR_UNSUPPORTED if the device does not
 * multiply weights of the wanted dtype. */
bool devices_choose_dtype(const struct kernels *kernels, const struct dtype_choice *choice,
    enum dtype *out, struct error *err) __attribute__((warn_unused_result));

#endif
