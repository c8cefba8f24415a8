/* Whether a job can be done with its checkpoint, asked before it is taken: nobody wants to hear an
 * hour later, behind other jobs, that a layer's name is misspelt. */
#include "engine/training_job/internal.h"

#include <stdio.h>

/* What is missing of the class would have to be drawn. */
static bool has_class(const struct train_config *c, const char *class_folder, struct error *err) {
    int64_t missing = c->num_class_images;
    char value[24];
    if (class_folder && !class_pictures_missing(class_folder, c, &missing, err))
        return false;
    snprintf(value, sizeof(value), "%lld", (long long)c->num_class_images);
    return !missing ||
           error_field(err, "num_class_images", value,
               "at most %lld, the pictures in class_data_dir: this checkpoint inpaints, "
               "and draws from no prompt alone",
               (long long)(c->num_class_images - missing));
}

bool training_job_suits(const struct train_config *c, const struct checkpoint *checkpoint,
    const char *class_folder, struct error *err) {
    const struct unet_config *unet = checkpoint_unet_config(checkpoint);
    const bool inpaints = unet->in_channels != unet->out_channels;
    enum scheduler_kind kind;
    if (c->validation_scheduler && !scheduler_kind_from_name(c->validation_scheduler, &kind))
        return error_field(err, "validation_scheduler", c->validation_scheduler,
            "the name of a scheduler: GET /schedulers lists them");
    if (c->validation_prompts.count && inpaints)
        return error_field(err, "validation_prompts", c->validation_prompts.items[0],
            "none: this checkpoint inpaints, and draws from no prompt alone");
    return !c->with_prior_preservation || !inpaints || has_class(c, class_folder, err);
}

/* By the tensors' names and shapes: nothing is loaded. */
static bool layers_are_there(
    const struct train_config *config, struct checkpoint *c, struct error *err) {
    struct weights unet_weights_of = weights_from_checkpoint(
        c, COMPONENT_UNET, kernels_reference(), DTYPE_F32);
    struct weights text_weights_of = weights_from_checkpoint(
        c, COMPONENT_TEXT_ENCODER, kernels_reference(), DTYPE_F32);
    struct unet *unet = NULL;
    struct text_encoder *text = NULL;
    unet_weights_of.check_only = text_weights_of.check_only = true;
    const bool ok = unet_create(checkpoint_unet_config(c), &unet_weights_of, &unet, err) &&
                    (!config->train_text_encoder ||
                        text_encoder_create(
                            checkpoint_text_encoder_config(c), &text_weights_of, &text, err)) &&
                    parameters_are_there(
                        config, unet_weights(unet), text ? text_encoder_weights(text) : NULL, err);
    text_encoder_destroy(text);
    unet_destroy(unet);
    return ok;
}

bool training_job_is_possible(const struct train_config *config, const char *model_path,
    const char *tokenizer_dir, const char *class_folder, const char *folder, struct error *err) {
    struct checkpoint *c;
    if (!checkpoint_open(model_path, tokenizer_dir, &c, err))
        return false;
    const bool ok = training_job_suits(config, c, class_folder, err) &&
                    (config->method == TRAIN_FULL ? training_disk_would_fit(config, c, folder, err)
                                                  : layers_are_there(config, c, err));
    checkpoint_close(c);
    return ok;
}
