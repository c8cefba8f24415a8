/* A Stable Diffusion checkpoint on disk: a diffusers folder or a single LDM safetensors file.
 *
 * Both look the same from outside: three components whose tensors have their diffusers names, the
 * components' configs, the scheduler's JSON and the tokenizer's files. Opening maps the files. The
 * models copy what they need (packed); after that checkpoint_close may be called.
 *
 * Every requested tensor is checked against the expected shape. The error for a wrong file names
 * the tensors that are wrong, missing or left over.
 */
#ifndef MODELS_CHECKPOINT_CHECKPOINT_H
#define MODELS_CHECKPOINT_CHECKPOINT_H

#include "base/error.h"
#include "kernels/tensor.h"
#include "models/config.h"
#include "models/tokenizer/tokenizer.h"
#include "models/weights.h"

struct checkpoint;

/* The safety checker is opened only on request. A checkpoint need not have one. */
enum component {
    COMPONENT_TEXT_ENCODER,
    COMPONENT_UNET,
    COMPONENT_VAE,
    COMPONENT_SAFETY_CHECKER,
};

/* Opens `path`: a folder with model_index.json or unet/, or a .safetensors file. `tokenizer_dir`,
 * if not NULL, replaces the checkpoint's own tokenizer. */
bool checkpoint_open(const char *path, const char *tokenizer_dir, struct checkpoint **out,
    struct error *err) __attribute__((warn_unused_result));
void checkpoint_close(struct checkpoint *checkpoint); /* NULL is fine */
/* Gives the memory of the tensors read so far back to the system. They can be read again. */
void checkpoint_drop_pages(struct checkpoint *c);

/* The configs are borrowed from the checkpoint. */
const struct text_encoder_config *checkpoint_text_encoder_config(const struct checkpoint *c);
const struct unet_config *checkpoint_unet_config(const struct checkpoint *c);
const struct vae_config *checkpoint_vae_config(const struct checkpoint *c);
/* Returns whether the checkpoint has a safety checker: its folder exists, and model_index.json (if
 * any) does not say that there is none. */
bool checkpoint_has_safety_checker(const struct checkpoint *c);
/* Opens the safety checker, so that its config and its weights can be read. */
bool checkpoint_open_safety_checker(struct checkpoint *c, struct error *err)
    __attribute__((warn_unused_result));
const struct safety_checker_config *checkpoint_safety_checker_config(const struct checkpoint *c);
/* Returns scheduler/scheduler_config.json; for a single file, the one that SD-1.x ships.
 * Borrowed. */
const json_t *checkpoint_scheduler_json(const struct checkpoint *c);

/* Where the tokenizer comes from. */
enum tokenizer_source {
    TOKENIZER_FOLDER,  /* the checkpoint's folder, or the given one */
    TOKENIZER_CLIP,    /* no folder: CLIP's own, built into the program */
    TOKENIZER_MISSING, /* no folder, and CLIP's own has another number of tokens */
};
enum tokenizer_source checkpoint_tokenizer_source(const struct checkpoint *c);
/* Returns the tokenizer's folder, or NULL if the tokenizer does not come from a folder.
 * Borrowed. */
const char *checkpoint_tokenizer_dir(const struct checkpoint *c);
/* Returns how CLIP's own tokenizer pads for this text encoder. */
enum clip_padding checkpoint_clip_padding(const struct checkpoint *c);
bool tokenizer_from_checkpoint(const struct checkpoint *c, struct tokenizer **out,
    struct error *err) __attribute__((warn_unused_result));

/* Returns the component's tensors for a model, packed for `kernels` in `dtype` (one of its
 * weight_dtypes). After the model has taken its tensors, tensors of the component that were not
 * requested are an error that names a few of them. Known leftovers such as position_ids are
 * ignored. ERROR_IO if a file was truncated or written to meanwhile. Valid as long as the
 * checkpoint. */
struct weights weights_from_checkpoint(struct checkpoint *c, enum component component,
    const struct kernels *kernels, enum dtype dtype);

/* Finds the tensor `name`, a diffusers name such as "down_blocks.0.resnets.0.conv1.weight"; the
 * text encoder's begin with "text_model.". *out is a view of the mapped file, valid until close.
 * The tensor must have exactly `rank` dimensions of these sizes, but [n][k] and [n][k][1][1] are
 * accepted for each other. ERROR_INVALID names the tensor, its shape and the expected one, or says
 * that it is missing. */
bool checkpoint_tensor(struct checkpoint *c, enum component component, const char *name, int rank,
    const int64_t *shape, struct tensor *out, struct error *err)
    __attribute__((warn_unused_result));
/* Returns whether the tensor exists, with any shape. Does not mark it as used. */
bool checkpoint_has_tensor(const struct checkpoint *c, enum component component, const char *name);

/* A component's figures, for listings. */
struct checkpoint_stats {
    size_t tensors;
    uint64_t parameters, bytes;
    size_t by_dtype[DTYPE_I64 + 1]; /* tensors of each enum dtype; others are not counted */
};
void checkpoint_get_stats(
    const struct checkpoint *c, enum component component, struct checkpoint_stats *out);
bool checkpoint_is_single_file(const struct checkpoint *c);
/* Returns the metadata of the files: an object of strings, or NULL. Borrowed. */
const json_t *checkpoint_file_metadata(const struct checkpoint *c);
/* Returns a sentence about the facts that had to be guessed because a single file does not contain
 * them; "" if there are none. */
const char *checkpoint_note(const struct checkpoint *c);
/* Returns "text_encoder", "unet", "vae" or "safety_checker". */
const char *component_name(enum component component);

#endif
