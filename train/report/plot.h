/* Plots a job's losses as SVG, for a browser or a README. */
#ifndef TRAIN_REPORT_PLOT_H
#define TRAIN_REPORT_PLOT_H

#include "train/report/records.h"

/* Plots the losses of all steps (pale), their running mean, and the held-out losses as dots.
 * `title` may be any text. Returns malloc'd text; NULL when memory is short. Without steps the plot
 * is empty. */
char *plot_losses(const char *title, const struct train_record *records, size_t count);

#endif
