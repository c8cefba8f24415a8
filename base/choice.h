/* What can be left to us, wanted or not wanted. */
#ifndef BASE_CHOICE_H
#define BASE_CHOICE_H

#include <stdbool.h>

enum choice { CHOICE_AUTO, CHOICE_ON, CHOICE_OFF };
#define CHOICE_ALLOWED "auto, on or off"

const char *choice_name(enum choice choice); /* "auto", "on", "off" */
/* False, with *out untouched, for any other word. */
bool choice_from_name(const char *name, enum choice *out);

#endif
