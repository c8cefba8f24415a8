/* Private to train/kohya/: arguments of the form key=value, with values as Python writes them. */
#ifndef TRAIN_KOHYA_LITERAL_H
#define TRAIN_KOHYA_LITERAL_H

#include "train/kohya/translation.h"

/* Takes a list of texts "key=value" as an object, a new reference. Numbers, True, False and None
 * become JSON's; "0.9,0.99", with or without brackets, a list; all else stays a text. Refuses a
 * list or a text of another form, and a key that is given twice. */
bool kohya_take_arguments(struct translation *t, const char *key, json_t **out);

/* Converts one value. A new reference. */
json_t *kohya_literal(const char *text);

#endif
