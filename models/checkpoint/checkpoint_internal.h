/* Shared by the files behind checkpoint.h. For their use only. */
#ifndef MODELS_CHECKPOINT_CHECKPOINT_INTERNAL_H
#define MODELS_CHECKPOINT_CHECKPOINT_INTERNAL_H

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/safetensors.h"

#define COMPONENT_COUNT 3 /* components that every checkpoint has; some have the next one too */
#define COMPONENTS_MAX 4

/* One tensor of a component under its diffusers name: a whole entry of a file, or one of the equal
 * parts stacked in an entry along its first dimension (OpenCLIP's q, k and v). */
struct weight {
    char *name;               /* owned */
    struct safetensors *file; /* borrowed from the checkpoint */
    size_t entry;
    int part, parts;
    bool used;
};

/* Sorted by name once sealed. */
struct weight_table {
    struct weight *items; /* owned */
    size_t count;
};

/* The user pointer of weights_from_checkpoint's callbacks. */
struct component_source {
    struct checkpoint *checkpoint;
    enum component component;
};

struct checkpoint {
    bool single_file;
    struct safetensors **files; /* owned */
    size_t file_count;
    size_t viewed_bytes; /* bytes viewed since the files' pages were last dropped */
    char *folder;        /* owned; NULL for a single file */
    struct weight_table tables[COMPONENTS_MAX];
    struct component_source sources[COMPONENTS_MAX];
    struct text_encoder_config text_encoder;
    struct unet_config unet;
    struct vae_config vae;
    struct safety_checker_config safety_checker; /* filled once it is open */
    bool has_safety_checker;
    json_t *scheduler;
    char *tokenizer_dir;
    char note[256]; /* what was guessed, as text for people; may be empty */
};

/* Opens a file and keeps it until the checkpoint closes. Returns NULL on failure. */
struct safetensors *checkpoint_add_file(struct checkpoint *c, const char *path, struct error *err)
    __attribute__((warn_unused_result));

/* Adds a tensor under its name in current diffusers: adds a missing "text_model." to the text
 * encoder's names and replaces the old names of VAE attention. */
bool checkpoint_add_weight(struct checkpoint *c, enum component component, const char *name,
    struct safetensors *file, size_t entry, int part, int parts, struct error *err)
    __attribute__((warn_unused_result));
/* Sorts the tables; the same name twice is an error. */
bool checkpoint_seal(struct checkpoint *c, struct error *err) __attribute__((warn_unused_result));

/* The tensor `name` of the component, or NULL. */
struct weight *checkpoint_find(
    const struct checkpoint *c, enum component component, const char *name);
/* The shape of the weight (parts divided); returns the rank. */
int weight_shape(const struct weight *weight, int64_t *shape);

/* The name of a component's file of weights without ".safetensors". */
const char *checkpoint_stem(enum component component);

/* Fill a zeroed checkpoint. On failure the caller closes it. */
bool checkpoint_open_folder(struct checkpoint *c, const char *path, struct error *err)
    __attribute__((warn_unused_result));
bool checkpoint_open_ldm(struct checkpoint *c, const char *path, struct error *err)
    __attribute__((warn_unused_result));

#endif
