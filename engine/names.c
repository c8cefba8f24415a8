#include "engine/names.h"

#include <string.h>

static const char *const scheduler_kinds[] = {
    [SCHEDULER_DDPM] = "ddpm",
    [SCHEDULER_DDIM] = "ddim",
    [SCHEDULER_PNDM] = "pndm",
};
static const char *const timestep_spacings[] = {
    [SPACING_LEADING] = "leading",
    [SPACING_TRAILING] = "trailing",
    [SPACING_LINSPACE] = "linspace",
};
static const char *const prediction_types[] = {
    [PREDICTION_EPSILON] = "epsilon",
    [PREDICTION_V] = "v_prediction",
    [PREDICTION_SAMPLE] = "sample",
};
static const char *const beta_schedules[] = {
    [BETA_LINEAR] = "linear",
    [BETA_SCALED_LINEAR] = "scaled_linear",
    [BETA_SQUAREDCOS_CAP_V2] = "squaredcos_cap_v2",
};
static const char *const rng_kinds[] = {
    [RNG_CPU] = "cpu",
    [RNG_CUDA] = "cuda",
};

const char *const scheduler_kind_words = "\"ddpm\", \"ddim\" or \"pndm\"";
const char *const timestep_spacing_words = "\"leading\", \"trailing\" or \"linspace\"";
const char *const prediction_type_words = "\"epsilon\", \"v_prediction\" or \"sample\"";
const char *const beta_schedule_words = "\"linear\", \"scaled_linear\" or \"squaredcos_cap_v2\"";
const char *const rng_kind_words = "\"cpu\" or \"cuda\"";

#define COUNT(table) ((int)(sizeof(table) / sizeof((table)[0])))

/* The index of the word, or -1. */
static int find(const char *text, const char *const *table, int count) {
    for (int i = 0; i < count; i++)
        if (strcmp(text, table[i]) == 0)
            return i;
    return -1;
}

/* One pair of functions for each enum: its word, and the enum of a word. */
#define DEFINE_NAMES(enumeration, table)                                                           \
    const char *enumeration##_name(enum enumeration value) {                                       \
        return table[value];                                                                       \
    }                                                                                              \
    bool enumeration##_from_name(const char *name, enum enumeration *out) {                        \
        int index = find(name, table, COUNT(table));                                               \
        if (index < 0)                                                                             \
            return false;                                                                          \
        *out = (enum enumeration)index;                                                            \
        return true;                                                                               \
    }

DEFINE_NAMES(scheduler_kind, scheduler_kinds)
DEFINE_NAMES(timestep_spacing, timestep_spacings)
DEFINE_NAMES(prediction_type, prediction_types)
DEFINE_NAMES(beta_schedule, beta_schedules)
DEFINE_NAMES(rng_kind, rng_kinds)
