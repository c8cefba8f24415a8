/* Private to train/kohya/: a translation in progress, and what its parts share. */
#ifndef TRAIN_KOHYA_TRANSLATION_H
#define TRAIN_KOHYA_TRANSLATION_H

#include "base/error.h"

#include <jansson.h>

struct translation {
    json_t *from;        /* the keys that are still to be read, all in one object */
    json_t *job;         /* the fields so far */
    json_t *notes;       /* array of texts */
    const char *prompts; /* borrowed; may be NULL */
    json_int_t repeats;  /* epochs of ours in one of kohya's */
    struct error *err;
};

/* Removes a key and returns its value, a new reference; NULL if it is not given. */
json_t *kohya_take(struct translation *t, const char *key);
/* Sets a field of the job. kohya_set_new takes over the value. */
void kohya_set(struct translation *t, const char *field, json_t *value);
void kohya_set_new(struct translation *t, const char *field, json_t *value);
/* Adds "KEY has no effect: WHY". Clears nothing. */
void kohya_note(struct translation *t, const char *key, const char *why);
/* Sets an error for a key. Always returns false. */
bool kohya_refuse(struct translation *t, const char *key, const json_t *value, const char *why, ...)
    __attribute__((format(printf, 4, 5)));
/* Whether a number or another value is in a JSON list; 1 and 1.0 are equal. */
bool kohya_is_one_of(const json_t *value, const char *list);

/* Take a flag or an integer that is at least `least`; *out stays as it is if the key is not given.
 * kohya_take_integer: *given says whether it was (may be NULL). */
bool kohya_take_flag(struct translation *t, const char *key, bool *out);
bool kohya_take_integer(
    struct translation *t, const char *key, json_int_t least, json_int_t *out, bool *given);

/* network.c: network_module, its size and its arguments. */
bool kohya_read_network(struct translation *t);
/* optimizer.c: the optimizer, the rates and the schedule. */
bool kohya_read_optimizer(struct translation *t);
/* samples.c: sample_* and validation_*. */
bool kohya_read_samples(struct translation *t);

#endif
