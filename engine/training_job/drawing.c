#include "engine/training_job/drawing.h"

#define CALL_ROWS 2 /* one picture with guidance */

bool drawing_init(const struct drawing_models *models, struct drawing *d, struct error *err) {
    const struct text_encoder_config *text = text_encoder_get_config(models->text_encoder);
    *d = (struct drawing){
        .figures = { .tokenizer = models->tokenizer,
            .scheduler_json = models->scheduler_json,
            .default_px = models->default_px,
            .vae_scale = vae_scale(models->vae),
            .latent_channels = vae_get_config(models->vae)->latent_channels,
            .context_length = text->max_position_embeddings,
            .text_layers = text->num_hidden_layers },
    };
    if (!arena_create(models->kernels->memory, &d->arena, err))
        return false;
    const struct stage_models stage_models = {
        .kernels = models->kernels,
        .text_encoder = models->text_encoder,
        .unet = models->unet,
        .vae = models->vae,
        .arena = d->arena,
        .max_rows = CALL_ROWS,
    };
    if (!model_stages_create(&stage_models, &d->stages, err))
        return false;
    const struct stages table = model_stages_table(d->stages);
    return studio_create(&table, CALL_ROWS, &d->studio, err);
}

void drawing_finish(struct drawing *d) {
    studio_destroy(d->studio);
    model_stages_destroy(d->stages);
    arena_destroy(d->arena);
    *d = (struct drawing){ 0 };
}
