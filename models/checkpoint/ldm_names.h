/* Names of the single-file ("LDM") checkpoint layout, translated to diffusers' by rule. */
#ifndef MODELS_CHECKPOINT_LDM_NAMES_H
#define MODELS_CHECKPOINT_LDM_NAMES_H

#include "base/limits.h"
#include "models/checkpoint/checkpoint.h"

/* What the rules need to know about a file: its blocks are numbered through. */
struct ldm_layout {
    int unet_layers_per_block; /* input_blocks hold layers + 1 a level, the last one downsamples */
    int vae_levels;            /* decoder.up counts from the other end */
    int open_clip_layers;      /* text layers to use; those from here on are dropped */
};

enum ldm_kind {
    LDM_TENSOR,  /* translated */
    LDM_IGNORED, /* known, and not needed for drawing: EMA copies, noise tables, counters */
    LDM_UNKNOWN,
};

struct ldm_name {
    enum component component;
    /* The diffusers name. For a stacked q, k and v, a '?' stands where their letter belongs. */
    char name[SAFETENSORS_MAX_NAME_BYTES + 64];
    bool stacked_qkv;
};

enum ldm_kind ldm_translate(
    const char *ldm_name, const struct ldm_layout *layout, struct ldm_name *out);

/* The way back for a layer of the UNet: "down_blocks.0.resnets.0.conv1" of a model with 2 layers a
 * block is "input_blocks.1.0.in_layers.2". `attends`: the layer's up block has attention, behind
 * which its upsampler is numbered. False if there is no such layer in that layout. */
bool ldm_unet_layer(const char *layer, int layers_per_block, bool attends, char *out, size_t size);

/* "input_blocks.12.1.rest" with prefix "input_blocks.": 12, and *rest at "1.rest". -1 if the text
 * has another prefix or no such number. Numbers stay below 1000. */
int ldm_number_after(const char *text, const char *prefix, const char **rest);

#endif
