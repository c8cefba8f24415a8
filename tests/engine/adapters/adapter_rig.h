/* A small checkpoint with a folder of adapters, made for one test and removed after it: its models,
 * its adapter registry, files of several kinds, and the models' outputs with a set of adapters.
 * Helpers end the program if the test itself is broken. */
#ifndef TESTS_ENGINE_ADAPTERS_ADAPTER_RIG_H
#define TESTS_ENGINE_ADAPTERS_ADAPTER_RIG_H

#include "engine/adapters/adapters.h"
#include "engine/request/request.h"
#include "models/text_encoder.h"
#include "models/unet.h"

struct rig {
    char root[64], loras[96]; /* loras is --lora-dir; "": none */
    const struct kernels *kernels;
    enum dtype dtype;
    struct text_encoder *text_encoder;
    struct unet *unet;
    struct adapters *adapters;
    int64_t outputs;          /* how many numbers rig_run gives per row */
    double upload_patience_s; /* for registries opened later; 0: the default */
};

/* Makes the checkpoint and an empty folder. Opens no registry. */
void rig_make(struct rig *rig, const struct kernels *kernels, enum dtype dtype);
/* Opens a registry over the files that are now in the folder. Closes the registry that was open. */
void rig_open(struct rig *rig, size_t memory_bytes, bool merge);
void rig_remove(struct rig *rig);

enum rig_kind { RIG_LORA, RIG_LOCON, RIG_LOHA, RIG_FULL, RIG_NORM, RIG_OVERFLOW };
/* Writes an adapter of rank `rank` for the UNet and the text encoder. It covers every layer that
 * `kind` can change and whose name contains `part`. RIG_LORA: linear layers. RIG_NORM: norms.
 * RIG_OVERFLOW: like RIG_LORA, with finite numbers whose products overflow. Equal seeds give equal
 * numbers. */
void rig_write(const struct rig *rig, const char *path, enum rig_kind kind, int64_t rank,
    const char *part, int seed);
/* Writes the adapter into the folder, as NAME.safetensors. */
void rig_put(const struct rig *rig, const char *name, enum rig_kind kind, int64_t rank,
    const char *part, int seed);
/* Returns "FOLDER/NAME.safetensors"; valid until the next call. */
const char *rig_path(const struct rig *rig, const char *name);

/* Returns the set of one or two adapters; b NULL: only one. Ends the program if that fails. */
struct adapter_set *rig_set(
    struct rig *rig, const char *a, double a_weight, const char *b, double b_weight);

/* Runs the models on two rows, the first without the set and the second with it. Returns
 * [2][rig->outputs]: for each row the UNet's outputs for fixed latents and context, then the text
 * encoder's for fixed ids. To be freed. */
float *rig_run(const struct rig *rig, const struct adapter_set *set);

#endif
