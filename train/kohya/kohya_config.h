/* Converts the files of kohya's sd-scripts to a job: that of train_network.py's --config_file, with
 * or without that of --dataset_config. Both are TOML (base/text/toml.h), read as JSON objects.
 *
 * Every key of the script's parser is in one table (keys.c): its value is used, or the key is noted
 * as having no effect here, or refused by its name. Keys have the meaning of the scripts. So have
 * missing ones where the script's default differs from a job's: the learning rate, the adapter's
 * size, the layers that learn, the crop, the optimizer's settings. docs/kohya.md has the table. */
#ifndef TRAIN_KOHYA_KOHYA_CONFIG_H
#define TRAIN_KOHYA_KOHYA_CONFIG_H

#include "base/error.h"

#include <jansson.h>

struct kohya_files {       /* all borrowed */
    const json_t *config;  /* that of --config_file */
    const json_t *dataset; /* that of --dataset_config; NULL: none */
    const char *prompts;   /* text of the file that `sample_prompts` names; NULL: none */
    const char *name;      /* of the adapter; NULL: output_name */
};

/* *job is an object for train_config_parse. *notes is an array of texts, one for each key without
 * effect and for each thing that is done another way. Both are new references. ERROR_INVALID names
 * the key, its value and what is allowed. */
bool kohya_config_read(const struct kohya_files *files, json_t **job, json_t **notes,
    struct error *err) __attribute__((warn_unused_result));

/* Returns the path that a key of the config names ("dataset_config", "sample_prompts"), borrowed;
 * NULL if it names none. */
const char *kohya_config_path(const json_t *config, const char *key);

/* Describes key `index` of the table for a list. Returns false after the last one. */
struct kohya_line {
    const char *name, *does; /* does: "used", "reported" or "refused" */
    char about[300], where[40];
};
bool kohya_config_line(size_t index, struct kohya_line *out);

#endif
