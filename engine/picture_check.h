/* The safety checker's look at a picture that was drawn, before anybody sees it. */
#ifndef ENGINE_PICTURE_CHECK_H
#define ENGINE_PICTURE_CHECK_H

#include "models/safety_checker.h"

/* `input` is safety_checker_read's; NULL in a dry run. embedding: [projection_dim], written unless
 * it is a dry run. */
void picture_check_run(
    struct compute *c, const struct safety_checker *checker, const float *input, float *embedding);

/* Of an RGB picture [height][width][3]; a flagged one becomes black. The arena holds what
 * picture_check_run takes. */
bool picture_check(struct compute *c, const struct safety_checker *checker, uint8_t *pixels,
    int width, int height, struct safety_scores *out, struct error *err)
    __attribute__((warn_unused_result));

#endif
