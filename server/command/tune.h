/* Between `latentd tune` and the processes it starts: a worker opens the device, tries candidates
 * one after the other from a number on, and says on its standard output what it does, a line each:
 *
 *   identity TAB TEXT
 *   trying TAB NUMBER TAB KEY TAB NAME
 *   right TAB NUMBER TAB US TAB ERROR TAB FLOPS
 *   wrong TAB NUMBER TAB WHY
 *   end
 *
 * Numbers count all candidates of all problems; the first of a problem is what is used untuned. If
 * a worker ends before `end`, the candidate it was trying is to blame and the next worker starts
 * behind it. */
#ifndef SERVER_COMMAND_TUNE_H
#define SERVER_COMMAND_TUNE_H

#include "engine/pipeline.h"

struct tune_options {
    struct pipeline_options pipeline;
    int width, height; /* px; 0 is the model's own */
};

/* The worker's whole life; its exit status. */
int tune_work(const struct tune_options *options, int first);

#endif
