/* A job's losses as a picture: SVG, for a browser or a README. */
#ifndef TRAIN_REPORT_PLOT_H
#define TRAIN_REPORT_PLOT_H

#include "train/report/records.h"

/* The losses of all steps, pale, their running mean, and the held-out pictures' losses as dots.
 * `title` may hold anything. malloc'd text; NULL when memory ran out. No steps: an empty plot. */
char *plot_losses(const char *title, const struct train_record *records, size_t count);

#endif
