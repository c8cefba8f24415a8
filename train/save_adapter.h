/* Saves a trained adapter in the file formats that other programs load.
 *
 * The diffusers format is that of save_lora_weights. For the targets of diffusers' scripts, the
 * attention projections, the names are "unet.LAYER.lora.down.weight" and
 * "text_encoder.LAYER.lora_linear_layer.down.weight". If other layers are trained too, all names
 * are those of peft, "unet.LAYER.lora_A.weight", because diffusers cannot read the mixture that it
 * writes itself in this case. The metadata holds peft's configuration, which alone gives alpha.
 *
 * kohya's format, which AUTOMATIC1111 and stable-diffusion.cpp read, has
 * "lora_unet_LAYER.lora_down.weight" with underscores in the name, an alpha per layer, and the
 * training settings in metadata whose keys begin with ss_.
 *
 * Both formats record the prediction type (modelspec.prediction_type, "epsilon" or "v") and the
 * dropout of the training (ss_network_dropout). peft's configuration has a lora_dropout of 0,
 * because diffusers would leave the layers of a larger one dropping while it draws. Neither format
 * records a time or a host, so the same job gives the same bytes. */
#ifndef TRAIN_SAVE_ADAPTER_H
#define TRAIN_SAVE_ADAPTER_H

#include "train/optimizer/parameters.h"

/* What the metadata records besides the job's configuration. */
struct adapter_facts {
    const char *model; /* path of the trained model, borrowed */
    int64_t steps, epochs, pictures;
    bool is_sd2;
    bool v_prediction;      /* of the checkpoint; the job may train another prediction type */
    bool linear_projection; /* proj_in and proj_out are linear layers, not 1x1 convolutions */
};

/* Writes the adapter with the configuration's save_precision. `values` is host memory, laid out
 * like the parameters. `path` is replaced as a whole (base/file.h). */
bool save_adapter(const char *path, enum train_save_format format,
    const struct parameters *parameters, const float *values, const struct train_config *config,
    const struct adapter_facts *facts, struct error *err) __attribute__((warn_unused_result));

#endif
