/* Shared by the files that implement adapter.h; private to them. */
#ifndef MODELS_ADAPTER_ADAPTER_INTERNAL_H
#define MODELS_ADAPTER_ADAPTER_INTERNAL_H

#include "models/adapter/adapter.h"
#include "models/checkpoint/safetensors.h"

/* The model's layers under every name that a file may use for them, sorted by name. */
struct adapter_index {
    struct adapter_index_entry {
        char *name; /* owned: "unet_" or "te_", then the layer's name with underscores for dots */
        enum component component;
        const struct named_weight *target; /* NULL: two layers have this name */
        const struct named_resident *norm; /* as in adapter_module */
    } * items;                             /* owned */
    size_t count;
    struct named_weight *norms; /* owned: the targets that describe norms */
};
bool adapter_index_create(const struct adapter_targets *targets, struct adapter_index *out,
    struct error *err) __attribute__((warn_unused_result));
void adapter_index_finish(struct adapter_index *index); /* zeroed is fine */
/* Returns the layer of a file's module, whose name has `length` bytes, or NULL. */
const struct adapter_index_entry *adapter_index_find(
    const struct adapter_index *index, const char *module, size_t length);

/* PEFT's configuration of strengths: adapter_config.json, or the lora_adapter_metadata of a file's
 * header, where each component has keys of its own. */
struct adapter_config {
    json_t *json;  /* owned; NULL: no configuration */
    bool prefixed; /* keys begin with "unet." or "text_encoder." */
    const char *peft_type;
};
/* Reads a folder's adapter_config.json. */
bool adapter_config_read(const char *path, struct adapter_config *out, struct error *err)
    __attribute__((warn_unused_result));
/* Reads a file's metadata (may be NULL). Leaves *out empty if it has no configuration. */
bool adapter_config_from_metadata(const json_t *metadata, struct adapter_config *out,
    struct error *err) __attribute__((warn_unused_result));
void adapter_config_finish(struct adapter_config *config);
/* Finds the alpha and the rank of a layer, patterns included. out->said is false if the
 * configuration says nothing about the layer's component. */
struct adapter_config_scale {
    double alpha, rank;
    bool rslora; /* alpha is divided by the root of the rank */
    bool said;
};
bool adapter_config_scale(const struct adapter_config *config, enum component component,
    const char *layer, struct adapter_config_scale *out, struct error *err)
    __attribute__((warn_unused_result));

/* Returns ERROR_UNSUPPORTED if the file's names or shapes belong to another family of models than
 * the targets. */
bool adapter_family_check(const struct safetensors_header *header,
    const struct adapter_targets *targets, struct error *err) __attribute__((warn_unused_result));

/* Checks module->factors against the target. Sets the rank and everything else that follows from
 * the shapes. `name` is the module's name in the file. */
bool adapter_module_check(struct adapter_module *module, const char *name, struct error *err)
    __attribute__((warn_unused_result));
/* Returns whether DoRA's magnitude has one number per output (true) or per input. */
bool adapter_magnitude_of_outputs(const struct adapter_module *module);
const struct adapter_factor *adapter_magnitude(const struct adapter_module *module);

/* Writes the words that call up what the adapter was trained on; "" if the file's metadata (may be
 * NULL) does not tell. One line of UTF-8; a longer one is cut. */
void adapter_trigger_read(const json_t *metadata, char out[ADAPTER_TRIGGER_MAX_BYTES + 1]);

#endif
