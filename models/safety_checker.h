/* The safety checker of Stable Diffusion 1.x: CLIP's vision tower, a projection, and the similarity
 * of the result to the embeddings of some concepts. Follows diffusers'
 * StableDiffusionSafetyChecker, with CLIPImageProcessor as its preprocessor. */
#ifndef MODELS_SAFETY_CHECKER_H
#define MODELS_SAFETY_CHECKER_H

#include "kernels/compute/compute.h"
#include "models/config.h"
#include "models/weights.h"
#include "pictures/picture.h"

/* The numbers of concepts of the two kinds: special concepts, which lower the thresholds, and
 * concepts that are not shown. */
#define SAFETY_SPECIAL 3
#define SAFETY_CONCEPTS 17

struct safety_checker;

/* Copies the config and packs the weights; neither is needed afterwards. Errors begin with
 * "safety_checker: ". */
bool safety_checker_create(const struct safety_checker_config *config, const struct weights *w,
    struct safety_checker **out, struct error *err) __attribute__((warn_unused_result));
void safety_checker_destroy(struct safety_checker *checker); /* NULL is fine */

const struct safety_checker_config *safety_checker_get_config(const struct safety_checker *checker);

/* Returns the number of floats that safety_checker_read writes: [1 + patches][3 * patch_size^2]. */
int64_t safety_checker_input_count(const struct safety_checker *checker);
/* Prepares an RGB picture for the tower: resizes it, cuts out its middle, normalises it and splits
 * it into patches. The first patch is for the class token and is zero. */
bool safety_checker_read(const struct safety_checker *checker, const struct picture *picture,
    float *out, struct error *err) __attribute__((warn_unused_result));

/* input f32 [1 + patches][3 * patch_size^2], from safety_checker_read; embedding f32
 * [1][projection_dim]; positions f32 [1 + patches][hidden_size], a copy of
 * safety_checker_positions. */
void safety_checker_forward(const struct safety_checker *checker, struct compute *c,
    const struct tensor *input, const struct tensor *positions, struct tensor *embedding);
/* Returns [1 + patches][hidden_size], borrowed. */
const float *safety_checker_positions(const struct safety_checker *checker);

struct safety_scores {
    double special[SAFETY_SPECIAL], concepts[SAFETY_CONCEPTS]; /* above 0: present */
    bool flagged;                                              /* any of `concepts` is present */
};
/* Scores an embedding [projection_dim]. A score is the cosine minus the threshold of the concept,
 * rounded to three places. After the first special concept above 0, all further scores are raised
 * by 0.01. */
void safety_checker_score(
    const struct safety_checker *checker, const float *embedding, struct safety_scores *out);

#endif
