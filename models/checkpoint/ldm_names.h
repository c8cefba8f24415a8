/* Translates the tensor names of the single-file ("LDM") layout to diffusers' names, by rules. */
#ifndef MODELS_CHECKPOINT_LDM_NAMES_H
#define MODELS_CHECKPOINT_LDM_NAMES_H

#include "base/limits.h"
#include "models/checkpoint/checkpoint.h"

/* Facts about a file that the rules need, because its blocks are numbered consecutively. */
struct ldm_layout {
    int unet_layers_per_block; /* input_blocks of a level, without its downsampler */
    int vae_levels;            /* decoder.up counts in the opposite direction */
    int open_clip_layers;      /* text layers to use; later ones are dropped */
};

enum ldm_kind {
    LDM_TENSOR,  /* translated */
    LDM_IGNORED, /* known but not needed for drawing: EMA copies, noise tables, counters */
    LDM_UNKNOWN,
};

struct ldm_name {
    enum component component;
    /* The diffusers name. If q, k and v are stacked, '?' is in place of their letter. */
    char name[SAFETENSORS_MAX_NAME_BYTES + 64];
    bool stacked_qkv;
};

enum ldm_kind ldm_translate(
    const char *ldm_name, const struct ldm_layout *layout, struct ldm_name *out);

/* Translates the name of a UNet layer back: in a model with 2 layers per block,
 * "down_blocks.0.resnets.0.conv1" becomes "input_blocks.1.0.in_layers.2". `attends`: the layer's up
 * block has attention, which comes before the upsampler in the numbering. Returns false if the
 * layout has no such layer. */
bool ldm_unet_layer(const char *layer, int layers_per_block, bool attends, char *out, size_t size);

/* Parses the number after a prefix: for "input_blocks.12.1.rest" and "input_blocks." returns 12 and
 * sets *rest to "1.rest". Returns -1 if the text has another prefix or no such number. Numbers are
 * below 1000. */
int ldm_number_after(const char *text, const char *prefix, const char **rest);

#endif
