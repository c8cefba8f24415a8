#include "engine/training_job/drawing.h"

#include "base/monotonic.h"

#define CALL_ROWS 2 /* one picture with guidance */

bool drawing_init(const struct drawing_models *models, struct drawing *d, struct error *err) {
    const struct text_encoder_config *text = text_encoder_get_config(models->text_encoder);
    *d = (struct drawing){
        .figures = { .tokenizer = models->tokenizer,
            .scheduler_json = models->scheduler_json,
            .defaults = models->defaults,
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

static void on_done(struct generate_result *result, const struct error *err, void *user) {
    struct drawing *d = user;
    if (result)
        d->result = *result;
    else
        d->error = *err;
    d->drawn = true;
}

static bool is_cancelled(void *user) {
    return ((const struct drawing *)user)->cancelled;
}

bool drawing_resolve(struct drawing *d, const struct generate_request *request, struct error *err) {
    d->asked = resolve_request(&d->figures, request, &d->request, err);
    return d->asked;
}

bool drawing_admit(struct drawing *d, struct error *err) {
    const struct studio_hooks hooks = { .is_cancelled = is_cancelled, .done = on_done, .user = d };
    return studio_admit(d->studio, &d->request, &hooks, monotonic_seconds(), err);
}

void drawing_forget(struct drawing *d) {
    if (d->asked)
        resolved_request_finish(&d->request);
    generate_result_finish(&d->result);
    d->result = (struct generate_result){ 0 };
    d->error = (struct error){ 0 };
    d->asked = d->drawn = false;
}

void drawing_finish(struct drawing *d) {
    struct error ignored;
    d->cancelled = true;
    while (d->studio && !studio_is_idle(d->studio) && studio_work(d->studio, &ignored))
        ;
    drawing_forget(d);
    studio_destroy(d->studio);
    model_stages_destroy(d->stages);
    arena_destroy(d->arena);
    *d = (struct drawing){ 0 };
}
