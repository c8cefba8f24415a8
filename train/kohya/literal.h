/* Private to train/kohya/: arguments of the form key=value, with values as Python writes them. */
#ifndef TRAIN_KOHYA_LITERAL_H
#define TRAIN_KOHYA_LITERAL_H

#include "train/kohya/translation.h"

/* Takes the setting `key`, a list of texts "key=value". *out is a new reference to an object with
 * these keys and values. Numbers, True, False and None become the JSON values that mean the same.
 * Several of them with commas between ("0.9,0.99"), with or without brackets, become a list. Any
 * other value stays a text. Refuses a setting that is not such a list, and a key that is given
 * twice. */
bool kohya_take_arguments(struct translation *t, const char *key, json_t **out);

/* Converts one value in the same way. Returns a new reference. */
json_t *kohya_literal(const char *text);

#endif
