/* Which device to compute on, as it is asked for on a command line. */
#ifndef KERNELS_DEVICES_H
#define KERNELS_DEVICES_H

#include "kernels/kernels.h"

struct device_choice {
    bool automatic;        /* CUDA device 0 if it opens, else the CPU */
    enum device_kind kind; /* unless automatic */
    int index;             /* of a CUDA device */
};

/* "auto", "cpu", "cuda", "cuda:1". False, with *out untouched, for any other word. */
bool device_choice_parse(const char *text, struct device_choice *out);

/* The table of the chosen device, or NULL and why not; what was chosen, and why a device was passed
 * over, is logged. */
const struct kernels *devices_open(const struct device_choice *choice, struct error *err);

#endif
