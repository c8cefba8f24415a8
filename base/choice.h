/* A setting that can be on, off, or left to the daemon. */
#ifndef BASE_CHOICE_H
#define BASE_CHOICE_H

#include <stdbool.h>

enum choice { CHOICE_AUTO, CHOICE_ON, CHOICE_OFF };
#define CHOICE_ALLOWED "auto, on or off"

const char *choice_name(enum choice choice); /* "auto", "on", "off" */
/* Returns false, with *out untouched, for any other word. */
bool choice_from_name(const char *name, enum choice *out);

#endif
