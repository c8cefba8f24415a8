/* A trained adapter as a file that others load.
 *
 * The diffusers format is what save_lora_weights writes for the targets of its scripts, attention's
 * projections: "unet.LAYER.lora.down.weight", "text_encoder.LAYER.lora_linear_layer.down.weight".
 * Where other layers are trained too, all are called as in peft, "unet.LAYER.lora_A.weight",
 * because diffusers cannot read the mixture that it writes then. peft's configuration stands in the
 * metadata, which alone says alpha. kohya's format, which AUTOMATIC1111 and stable-diffusion.cpp
 * read, has "lora_unet_LAYER.lora_down.weight" with underscores in the name, an alpha for each
 * layer, and how it was trained in metadata that begins with ss_. Both say what the model was
 * trained to predict (modelspec.prediction_type, "epsilon" or "v") and the dropout that it was
 * trained with (ss_network_dropout). peft's configuration has a lora_dropout of 0: diffusers leaves
 * the layers of a larger one dropping while it draws. Neither holds a time or a host, so that the
 * same job gives the same bytes. */
#ifndef TRAIN_SAVE_ADAPTER_H
#define TRAIN_SAVE_ADAPTER_H

#include "train/parameters.h"

/* What the metadata tells of a job besides its configuration. */
struct adapter_facts {
    const char *model; /* what was trained, borrowed */
    int64_t steps, epochs, pictures;
    bool is_sd2;
    bool v_prediction; /* the checkpoint says so; the job may train something else */
    bool linear_projection; /* proj_in and proj_out are linear layers, not 1x1 convolutions */
};

/* `values` is host memory laid out as the parameters are; they are written as the configuration's
 * save_precision says. `path` is replaced as a whole (base/file.h). */
bool save_adapter(const char *path, enum train_save_format format,
    const struct parameters *parameters, const float *values, const struct train_config *config,
    const struct adapter_facts *facts, struct error *err) __attribute__((warn_unused_result));

#endif
