#include "engine/scheduler/options.h"

#include "base/limits.h"

#include <string.h>

#define WORDS FIELD_WORDS
#define KIND_OF(member)                                                                            \
    _Generic(((struct scheduler_values *)0)->member, bool                                          \
             : FIELD_FLAG, int                                                                     \
             : FIELD_INTEGER, double                                                               \
             : FIELD_NUMBER, unsigned                                                              \
             : FIELD_WORD)
#define OPTION_LINE(id, c_type, member, ...)                                                       \
    [OPTION_##id] = { .name = #member,                                                             \
        .kind = KIND_OF(member),                                                                   \
        FIELD_OF(struct scheduler_values, member),                                                 \
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

/* field_get reads a word as an int. */
_Static_assert(sizeof(enum timestep_spacing) == sizeof(int), "words are as wide as an int");

double scheduler_option_max(
    const struct scheduler_option *option, const struct scheduler_values *values) {
    return option == &scheduler_options[OPTION_STEPS_OFFSET] ? values->num_train_timesteps - 1
                                                             : (double)option->max;
}
