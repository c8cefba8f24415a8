/* Private to train/kohya/: every key of kohya's files in one table (kohya_config.h). */
#ifndef TRAIN_KOHYA_KEYS_H
#define TRAIN_KOHYA_KEYS_H

#include <stddef.h>

/* What becomes of a key. */
enum kohya_use {
    KOHYA_TAKEN,   /* its value is that of the job's field `field` */
    KOHYA_READ,    /* kohya_config.c converts it; `about` says to what */
    KOHYA_NOTED,   /* no effect; `about` says why */
    KOHYA_REFUSED, /* refused, except for the values in `values`; `about` says why */
};

/* Where a key may stand. */
enum {
    KOHYA_FILE = 1,    /* in the file of --config_file */
    KOHYA_DATASET = 2, /* in [general] and [[datasets]] of that of --dataset_config */
    KOHYA_SUBSET = 4,  /* in its [[datasets.subsets]] */
};

struct kohya_key {
    const char *name;
    enum kohya_use use;
    unsigned places;
    const char *field;  /* KOHYA_TAKEN */
    const char *needs;  /* KOHYA_TAKEN: a flag of the job without which the key is noted; or NULL */
    const char *values; /* KOHYA_REFUSED: JSON list of the values without effect */
    const char *about;
};

extern const struct kohya_key kohya_keys[];
extern const size_t kohya_key_count;

/* Returns the key of this name; NULL if there is none. */
const struct kohya_key *kohya_key_named(const char *name);

#endif
