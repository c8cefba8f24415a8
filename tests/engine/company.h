/* Random requests, each drawn alone and then all of them together in one studio: the same bits. For
 * tests of the studio on models, whatever the device. Linked with --wrap=clock_gettime. */
#ifndef TESTS_ENGINE_COMPANY_H
#define TESTS_ENGINE_COMPANY_H

#include "engine/loop/pipeline.h"

struct company {
    const char *model;      /* a folder */
    const char *loras;      /* another, with the adapters "a", "b" and "c", and "spoils" where some
                               fail, or NULL */
    const char *embeddings; /* another, with "style", or NULL */
    int context_width;      /* for prompts that come encoded; 0: none do */
    enum device_kind device;
    enum dtype dtype;
    int requests;             /* at most COMPANY_MAX */
    bool inpaints;            /* the checkpoint does: every request has a picture and a mask */
    bool latents_only, fails; /* some are cancelled, late or not finite in the midst of the others:
                                 then context_width is needed */
    uint64_t seed;
};
#define COMPANY_MAX 1000

/* Checks the bits at each of these limits of a call's rows, 0-terminated, and that at the last one
 * calls had more than `mean_rows` rows on average. Prints what it compared; false if any differ. */
bool company_same_bits(const struct company *company, const int *max_rows, double mean_rows);

#endif
