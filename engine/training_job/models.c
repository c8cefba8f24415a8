/* The models of a job, in the precision that it asks for. */
#include "engine/training_job/internal.h"

#include "models/checkpoint/checkpoint_save.h"

#include <malloc.h>

static enum dtype dtype_of(const struct train_config *c) {
    return c->mixed_precision == TRAIN_PRECISION_BF16   ? DTYPE_BF16
           : c->mixed_precision == TRAIN_PRECISION_FP16 ? DTYPE_F16
                                                        : DTYPE_F32;
}

bool training_job_load_models(struct training_job *t, struct checkpoint *c, struct error *err) {
    const struct kernels *k = t->options.kernels;
    const enum dtype dtype = dtype_of(t->options.config);
    t->text_encoder_source = weights_from_checkpoint(c, COMPONENT_TEXT_ENCODER, k, dtype);
    t->unet_source = weights_from_checkpoint(c, COMPONENT_UNET, k, dtype);
    /* Latents are computed once, and as well as they can be. */
    const struct weights vae = weights_from_checkpoint(c, COMPONENT_VAE, k, DTYPE_F32);
    const struct scheduler_choice ddpm = { .has_kind = true, .kind = SCHEDULER_DDPM };
    struct scheduler_config config;
    if (t->options.config->method == TRAIN_FULL && !checkpoint_can_save(c, err))
        return false;
    if (!tokenizer_from_checkpoint(c, &t->tokenizer, err) ||
        !text_encoder_create(
            checkpoint_text_encoder_config(c), &t->text_encoder_source, &t->text_encoder, err) ||
        !unet_create(checkpoint_unet_config(c), &t->unet_source, &t->unet, err) ||
        !vae_create(checkpoint_vae_config(c), &vae, VAE_ENCODER, &t->vae, err) ||
        !scheduler_config_resolve(checkpoint_scheduler_json(c), &ddpm, &config, err) ||
        !noise_schedule_init(&config, &t->noise, err))
        return false;
    t->facts = (struct adapter_facts){
        .model = t->options.model_path,
        .pictures = t->source.count,
        .is_sd2 = text_encoder_get_config(t->text_encoder)->hidden_size == 1024,
        .v_prediction = config.values.prediction_type == PREDICTION_V,
        .linear_projection = unet_get_config(t->unet)->use_linear_projection,
    };
    const int unet_in = unet_get_config(t->unet)->in_channels;
    const int latent = vae_get_config(t->vae)->latent_channels;
    return unet_in == latent || error_set(err, ERROR_UNSUPPORTED,
                                    "the UNet takes %d channels, latents have %d: inpainting "
                                    "models cannot be trained yet",
                                    unet_in, latent);
}

void training_job_drop_encoders(struct training_job *t) {
    t->encoded = true;
    vae_drop_weights(t->vae);
    if (!t->options.config->train_text_encoder)
        text_encoder_drop_weights(t->text_encoder);
    malloc_trim(0);
}

bool training_job_save_model(struct training_job *t, struct error *err) {
    const char *path = t->options.model_path;
    struct checkpoint *checkpoint;
    if (!checkpoint_open(path, t->options.tokenizer_dir, &checkpoint, err))
        return false;
    const bool ok = trainer_save_model(t->trainer, checkpoint, path, t->result, err);
    checkpoint_close(checkpoint);
    return ok;
}
