/* The words for the enums of a request, spelt as diffusers spells them, in both directions. One
 * table for the request parser, the checkpoint's scheduler_config.json, the command line and the
 * answers. */
#ifndef ENGINE_NAMES_H
#define ENGINE_NAMES_H

#include "engine/request.h"

#include <stdbool.h>

/* "ddpm", "ddim", "pndm"; "leading", "trailing", "linspace"; "epsilon", "v_prediction", "sample";
 * "linear", "scaled_linear", "squaredcos_cap_v2"; "cpu", "cuda". Static strings. */
const char *scheduler_kind_name(enum scheduler_kind kind);
const char *timestep_spacing_name(enum timestep_spacing spacing);
const char *prediction_type_name(enum prediction_type prediction);
const char *beta_schedule_name(enum beta_schedule schedule);
const char *rng_kind_name(enum rng_kind rng);

/* False, with *out untouched, for a word that is none of them. Exact spelling. */
bool scheduler_kind_from_name(const char *name, enum scheduler_kind *out);
bool timestep_spacing_from_name(const char *name, enum timestep_spacing *out);
bool prediction_type_from_name(const char *name, enum prediction_type *out);
bool beta_schedule_from_name(const char *name, enum beta_schedule *out);
bool rng_kind_from_name(const char *name, enum rng_kind *out);

/* What is allowed, for error messages: "\"ddpm\", \"ddim\" or \"pndm\"". Static strings. */
extern const char *const scheduler_kind_words;
extern const char *const timestep_spacing_words;
extern const char *const prediction_type_words;
extern const char *const beta_schedule_words;
extern const char *const rng_kind_words;

#endif
