#include "engine/scheduler/options.h"

#include "base/limits.h"
#include "base/text/json.h"
#include "base/text/words.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 32 /* one bit each */
#define WORDS(...)                                                                                 \
    .words = (const char *const[]) {                                                               \
        __VA_ARGS__, NULL                                                                          \
    }
#define TYPE_OF(member)                                                                            \
    _Generic(((struct scheduler_values *)0)->member, bool                                          \
             : VALUE_FLAG, int                                                                     \
             : VALUE_INTEGER, double                                                               \
             : VALUE_NUMBER, default                                                               \
             : VALUE_WORD)
#define OPTION_LINE(id, c_type, member, ...)                                                       \
    [OPTION_##id] = { .name = #member,                                                             \
        .type = TYPE_OF(member),                                                                   \
        .offset = offsetof(struct scheduler_values, member),                                       \
        __VA_ARGS__ },

const struct scheduler_option scheduler_options[SCHEDULER_OPTION_COUNT] = { SCHEDULER_OPTIONS(
    OPTION_LINE) };

bool scheduler_option_find(const char *name, enum scheduler_option_id *out) {
    for (int id = 0; id < SCHEDULER_OPTION_COUNT; id++)
        if (scheduler_options[id].from != FILE_ONLY &&
            strcmp(scheduler_options[id].name, name) == 0) {
            *out = (enum scheduler_option_id)id;
            return true;
        }
    return false;
}

/* Words are enums, which the compilers we know make unsigned. */
_Static_assert(sizeof(enum timestep_spacing) == sizeof(unsigned), "words are as wide as unsigned");

double scheduler_option_get(
    const struct scheduler_option *option, const struct scheduler_values *values) {
    const void *member = (const char *)values + option->offset;
    switch (option->type) {
    case VALUE_FLAG:
        return *(const bool *)member;
    case VALUE_INTEGER:
        return *(const int *)member;
    case VALUE_WORD:
        return *(const unsigned *)member;
    default:
        return *(const double *)member;
    }
}

void scheduler_option_set(
    const struct scheduler_option *option, struct scheduler_values *values, double value) {
    void *member = (char *)values + option->offset;
    switch (option->type) {
    case VALUE_FLAG:
        *(bool *)member = value != 0;
        break;
    case VALUE_INTEGER:
        *(int *)member = (int)value;
        break;
    case VALUE_WORD:
        *(unsigned *)member = (unsigned)value;
        break;
    default:
        *(double *)member = value;
    }
}

double scheduler_option_max(
    const struct scheduler_option *option, const struct scheduler_values *values) {
    return option == &scheduler_options[OPTION_STEPS_OFFSET] ? values->num_train_timesteps - 1
                                                             : option->max;
}

static int word_count(const struct scheduler_option *option) {
    int count = 0;
    while (option->words[count])
        count++;
    return count;
}

bool scheduler_option_allows(const struct scheduler_option *option, double value) {
    double max = option->type == VALUE_FLAG   ? 1
                 : option->type == VALUE_WORD ? word_count(option) - 1
                                              : option->max;
    if (!(value >= option->min && value <= max) || (option->below_max && value == max))
        return false; /* true for NaN */
    return option->type == VALUE_NUMBER || value == floor(value);
}

static bool word_from_text(const struct scheduler_option *option, const char *text, double *out) {
    for (int i = 0; option->words[i]; i++)
        if (strcmp(option->words[i], text) == 0) {
            *out = i;
            return true;
        }
    return false;
}

static bool take(const struct scheduler_option *option, double value, double *out) {
    if (!scheduler_option_allows(option, value))
        return false;
    *out = value;
    return true;
}

bool scheduler_option_from_json(
    const struct scheduler_option *option, const json_t *json, double *out) {
    int64_t integer;
    switch (option->type) {
    case VALUE_FLAG:
        return json_is_boolean(json) && take(option, json_is_true(json), out);
    case VALUE_INTEGER:
        return json_exact_integer(json, &integer) && take(option, (double)integer, out);
    case VALUE_WORD:
        return json_is_string(json) && word_from_text(option, json_string_value(json), out);
    default:
        return json_is_number(json) && take(option, json_number_value(json), out);
    }
}

bool scheduler_option_from_text(
    const struct scheduler_option *option, const char *text, double *out) {
    if (option->type == VALUE_WORD)
        return word_from_text(option, text, out);
    bool yes = strcmp(text, "true") == 0;
    if (option->type == VALUE_FLAG)
        return (yes || strcmp(text, "false") == 0) && take(option, yes, out);
    char *end;
    double value = strtod(text, &end);
    return end != text && !*end && take(option, value, out);
}

json_t *scheduler_option_to_json(const struct scheduler_option *option, double value) {
    if (option->type == VALUE_FLAG)
        return json_boolean(value != 0);
    if (option->type == VALUE_WORD && scheduler_option_allows(option, value))
        return json_string(option->words[(int)value]);
    /* writes 0, not 0.0 */
    return value == floor(value) && fabs(value) < 1e15 ? json_integer((json_int_t)value)
                                                       : json_real(value);
}

const char *scheduler_option_allowed(const struct scheduler_option *option, unsigned words,
    const char *quote, char *out, size_t size) {
    const char *listed[WORDS_MAX];
    size_t count = 0;
    switch (option->type) {
    case VALUE_FLAG:
        snprintf(out, size, "true or false");
        break;
    case VALUE_WORD:
        for (unsigned i = 0; option->words[i] && count < WORDS_MAX; i++)
            if (words & 1u << i)
                listed[count++] = option->words[i];
        words_list(out, size, listed, count, quote, " or ");
        break;
    default:
        snprintf(out, size, "%s from %g to %s%g",
            option->type == VALUE_INTEGER ? "an integer" : "a number", option->min,
            option->below_max ? "below " : "", option->max);
    }
    return out;
}
