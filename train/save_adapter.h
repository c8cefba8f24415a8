/* Saves a trained adapter in the file formats that other programs load.
 *
 * The diffusers format is that of save_lora_weights. diffusers' scripts train the attention
 * projections. If only these are trained, the names are "unet.LAYER.lora.down.weight" and
 * "text_encoder.LAYER.lora_linear_layer.down.weight". If other layers are trained too, all names
 * are those of peft, "unet.LAYER.lora_A.weight", because diffusers cannot read the mixture of names
 * that it writes itself in this case. The metadata has peft's configuration, the only place where
 * alpha is stored.
 *
 * kohya's format, which AUTOMATIC1111 and stable-diffusion.cpp read, has
 * "lora_unet_LAYER.lora_down.weight" with underscores in the name, an alpha per layer, and the
 * training settings in metadata whose keys begin with ss_.
 *
 * Both formats record the prediction type (modelspec.prediction_type, "epsilon" or "v") and the
 * dropout of the training (ss_network_dropout). peft's configuration has a lora_dropout of 0: with
 * a larger one, diffusers would also apply the dropout while it draws. Neither format
 * records a time or a host, so the same job gives the same bytes. */
#ifndef TRAIN_SAVE_ADAPTER_H
#define TRAIN_SAVE_ADAPTER_H

#include "train/optimizer/parameters.h"

/* Facts for the metadata that are not in the job's configuration. */
struct adapter_facts {
    const char *model; /* borrowed: path of the trained model */
    int64_t steps, epochs, pictures;
    bool is_sd2;
    bool v_prediction;      /* by the checkpoint; the job may train another */
    bool linear_projection; /* proj_in and proj_out are linear, not 1x1 convolutions */
};

/* Writes the adapter with the configuration's save_precision. `values` is host memory, laid out
 * like the parameters. `path` is replaced atomically (base/file.h). */
bool save_adapter(const char *path, enum train_save_format format,
    const struct parameters *parameters, const float *values, const struct train_config *config,
    const struct adapter_facts *facts, struct error *err) __attribute__((warn_unused_result));

#endif
