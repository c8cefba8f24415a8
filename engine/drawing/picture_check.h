/* Runs the safety checker over a drawn picture before the picture is delivered. */
#ifndef ENGINE_DRAWING_PICTURE_CHECK_H
#define ENGINE_DRAWING_PICTURE_CHECK_H

#include "models/safety_checker.h"

/* `input` comes from safety_checker_read; NULL in a dry run. embedding: [projection_dim], not
 * written in a dry run. */
void picture_check_run(
    struct compute *c, const struct safety_checker *checker, const float *input, float *embedding);

/* Checks an RGB picture [height][width][3], and makes it black if it is flagged. The arena must
 * have room for picture_check_run. */
bool picture_check(struct compute *c, const struct safety_checker *checker, uint8_t *pixels,
    int width, int height, struct safety_scores *out, struct error *err)
    __attribute__((warn_unused_result));

#endif
