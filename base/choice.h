/* A setting that can be on, off, or left to the daemon. */
#ifndef BASE_CHOICE_H
#define BASE_CHOICE_H

enum choice { CHOICE_AUTO, CHOICE_ON, CHOICE_OFF };
/* For a field's columns (base/fields.h). */
#define CHOICE_WORDS FIELD_WORDS("auto", "on", "off")

#endif
