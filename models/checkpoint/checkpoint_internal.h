/* Shared by the files that implement checkpoint.h; private to them. */
#ifndef MODELS_CHECKPOINT_CHECKPOINT_INTERNAL_H
#define MODELS_CHECKPOINT_CHECKPOINT_INTERNAL_H

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/safetensors.h"

#define COMPONENT_COUNT 3 /* in every checkpoint; the safety checker is optional */
#define COMPONENTS_MAX 4

/* One tensor of a component under its diffusers name. It is a whole entry of a file, or one of the
 * equal parts that are stacked in an entry along its first dimension (OpenCLIP's q, k and v). */
struct weight {
    char *name;               /* owned */
    struct safetensors *file; /* borrowed from the checkpoint */
    size_t entry;
    int part, parts;
    bool used;
};

/* The tensors of a component. They are sorted by name after sealing. */
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
    struct safety_checker_config safety_checker; /* filled in when it is opened */
    bool has_safety_checker;
    json_t *scheduler;
    char *tokenizer_dir;
    char note[256]; /* the guesses, as text for people; may be empty */
};

/* Opens a file and keeps it until the checkpoint closes. Returns NULL on failure. */
struct safetensors *checkpoint_add_file(struct checkpoint *c, const char *path, struct error *err)
    __attribute__((warn_unused_result));

/* Adds a tensor under its current diffusers name: adds a missing "text_model." to names of the text
 * encoder, and replaces the old names of VAE attention. */
bool checkpoint_add_weight(struct checkpoint *c, enum component component, const char *name,
    struct safetensors *file, size_t entry, int part, int parts, struct error *err)
    __attribute__((warn_unused_result));
/* Sorts the tables. If a name occurs twice, that is an error. */
bool checkpoint_seal(struct checkpoint *c, struct error *err) __attribute__((warn_unused_result));

/* Returns the tensor `name` of the component, or NULL. */
struct weight *checkpoint_find(
    const struct checkpoint *c, enum component component, const char *name);
/* Computes the shape of the weight, with stacked parts divided. Returns its rank. */
int weight_shape(const struct weight *weight, int64_t *shape);

/* Returns the name of a component's weight file without ".safetensors". */
const char *checkpoint_stem(enum component component);

/* Fill a zeroed checkpoint. On failure the caller closes it. */
bool checkpoint_open_folder(struct checkpoint *c, const char *path, struct error *err)
    __attribute__((warn_unused_result));
bool checkpoint_open_ldm(struct checkpoint *c, const char *path, struct error *err)
    __attribute__((warn_unused_result));

#endif
