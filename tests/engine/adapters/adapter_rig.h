/* A small checkpoint with a folder of adapters, made for one test and removed after it: its models,
 * its registry, files of several kinds, and what the models compute with a set. Helpers end the
 * program when the test itself is broken. */
#ifndef TESTS_ENGINE_ADAPTERS_ADAPTER_RIG_H
#define TESTS_ENGINE_ADAPTERS_ADAPTER_RIG_H

#include "engine/adapters/adapters.h"
#include "engine/request/request.h"
#include "models/text_encoder.h"
#include "models/unet.h"

struct rig {
    char root[64], loras[96]; /* the latter is --lora-dir; "": none */
    const struct kernels *kernels;
    enum dtype dtype;
    struct text_encoder *text_encoder;
    struct unet *unet;
    struct adapters *adapters;
    int64_t outputs;          /* numbers of rig_run */
    double upload_patience_s; /* of a registry opened from now on; 0: the default */
};

/* Makes the checkpoint and an empty folder; no registry yet. */
void rig_make(struct rig *rig, const struct kernels *kernels, enum dtype dtype);
/* The registry of what is in the folder now; one that is open is closed. */
void rig_open(struct rig *rig, size_t memory_bytes, bool merge);
void rig_remove(struct rig *rig);

enum rig_kind { RIG_LORA, RIG_LOCON, RIG_LOHA, RIG_FULL, RIG_NORM, RIG_OVERFLOW };
/* Writes an adapter of rank `rank` for every layer that `kind` can be for (RIG_LORA: linear ones;
 * RIG_NORM: norms; RIG_OVERFLOW: as RIG_LORA, of finite numbers whose products are not) and whose
 * name contains `part`, of the UNet and of the text encoder. Equal seeds give equal numbers.
 */
void rig_write(const struct rig *rig, const char *path, enum rig_kind kind, int64_t rank,
    const char *part, int seed);
/* The same into the folder, as NAME.safetensors. */
void rig_put(const struct rig *rig, const char *name, enum rig_kind kind, int64_t rank,
    const char *part, int seed);
/* "FOLDER/NAME.safetensors"; valid until the next call. */
const char *rig_path(const struct rig *rig, const char *name);

/* The set of one or two adapters; ends the program if that fails. name NULL: not asked for. */
struct adapter_set *rig_set(
    struct rig *rig, const char *a, double a_weight, const char *b, double b_weight);

/* What the models make of two rows, the first without and the second with the set: [0] the first's
 * numbers, then the second's, rig->outputs each: the UNet's with fixed latents and context, the
 * text encoder's with fixed ids. To be freed. */
float *rig_run(const struct rig *rig, const struct adapter_set *set);

#endif
