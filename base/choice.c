#include "base/choice.h"

#include <stddef.h>
#include <string.h>

static const char *const names[] = {
    [CHOICE_AUTO] = "auto",
    [CHOICE_ON] = "on",
    [CHOICE_OFF] = "off",
};

const char *choice_name(enum choice choice) {
    return names[choice];
}

bool choice_from_name(const char *name, enum choice *out) {
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i], name) == 0) {
            *out = (enum choice)i;
            return true;
        }
    return false;
}
