/* Draws random requests alone, then all of them together in one studio, and compares the bits. Used
 * by tests of the studio with real models, on any device. Link with --wrap=clock_gettime. */
#ifndef TESTS_ENGINE_DRAWN_TOGETHER_H
#define TESTS_ENGINE_DRAWN_TOGETHER_H

#include "engine/loop/pipeline.h"

struct drawn_together {
    const char *model; /* a folder */
    const char *loras; /* a folder with the adapters "a", "b" and "c", and with "spoils" if `fails`;
                          or NULL */
    const char *embeddings; /* a folder with "style", or NULL */
    int context_width;      /* of prompt_embeds; 0: none are used */
    enum device_kind device;
    enum dtype dtype;
    int requests;             /* at most DRAWN_TOGETHER_MAX */
    bool inpaints;            /* an inpainting model: all have picture and mask */
    bool latents_only, fails; /* fails: some are cancelled, late or not finite among the others;
                                 this needs context_width */
    uint64_t seed;
};
#define DRAWN_TOGETHER_MAX 1000

/* Compares the bits at each of these limits of a call's rows (0-terminated). At the last limit,
 * calls must have had more than `mean_rows` rows on average. Prints what it compared; returns false
 * if any check failed. */
bool drawn_together_same_bits(
    const struct drawn_together *setup, const int *max_rows, double mean_rows);

#endif
