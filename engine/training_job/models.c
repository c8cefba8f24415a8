/* Loads the models of a job in the job's precision. */
#include "engine/training_job/internal.h"

#include "models/checkpoint/checkpoint_save.h"

#include <malloc.h>
#include <string.h>

static enum dtype dtype_of(const struct train_config *c) {
    return c->mixed_precision == TRAIN_PRECISION_BF16   ? DTYPE_BF16
           : c->mixed_precision == TRAIN_PRECISION_FP16 ? DTYPE_F16
                                                        : DTYPE_F32;
}

/* Wraps the weights of a model to compute a digest of every tensor that is loaded. */
struct hashed {
    struct weights from;
    struct sha256 sha;
};

static bool get_hashed(void *user, const char *name, int rank, const int64_t *shape,
    struct tensor *out, struct error *err) {
    struct hashed *h = user;
    if (!h->from.get(h->from.user, name, rank, shape, out, err))
        return false;
    sha256_add_text(&h->sha, name);
    sha256_add(&h->sha, &out->dtype, sizeof(out->dtype));
    sha256_add(&h->sha, out->data, tensor_bytes(out));
    return true;
}

static bool end_hashed(void *user, struct error *err) {
    const struct hashed *h = user;
    return h->from.end(h->from.user, err);
}

/* Returns weights that add to the digest `h`, which must live as long as they are used. The digest
 * includes the dtype. */
static struct weights hash_weights(struct weights from, struct hashed *h) {
    h->from = from;
    sha256_begin(&h->sha);
    sha256_add(&h->sha, &from.dtype, sizeof(from.dtype));
    from.get = get_hashed;
    from.end = end_hashed;
    from.user = h;
    return from;
}

/* Wraps the weights of a checkpoint to call training_job_between before each tensor. */
struct paced {
    const struct training_job *job;
    struct weights weights;
};

static bool paced_get(void *user, const char *name, int rank, const int64_t *shape,
    struct tensor *out, struct error *err) {
    const struct paced *p = user;
    return training_job_between(p->job, err) &&
           p->weights.get(p->weights.user, name, rank, shape, out, err);
}

static bool paced_end(void *user, struct error *err) {
    const struct paced *p = user;
    return !p->weights.end || p->weights.end(p->weights.user, err);
}

/* The caller owns `paced` and keeps it until loading ends. */
static struct weights weights_of(const struct training_job *t, struct checkpoint *c,
    enum component component, enum dtype dtype, struct paced *paced) {
    const struct weights weights = weights_from_checkpoint(c, component, t->options.kernels, dtype);
    *paced = (struct paced){ t, weights };
    struct weights slow = weights;
    slow.get = paced_get;
    slow.end = paced_end;
    slow.user = paced;
    return slow;
}

/* Copies the checkpoint's scheduler_config.json, with the scheduler of the defaults if they have
 * one. */
static bool copy_scheduler(const struct checkpoint *c, const struct generate_request *defaults,
    json_t **out, struct error *err) {
    *out = json_deep_copy(checkpoint_scheduler_json(c));
    if (!*out)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the checkpoint's scheduler");
    return scheduler_config_replace(*out, &defaults->scheduler, err) ||
           error_prefix(err, "the default scheduler");
}

bool training_job_load_models(struct training_job *t, struct checkpoint *c, struct error *err) {
    const enum dtype dtype = dtype_of(t->options.config);
    struct hashed hashed_text, hashed_unet, hashed_vae;
    struct paced paced_text, paced_unet, paced_vae, paced_decoder;
    t->text_encoder_source = weights_from_checkpoint(
        c, COMPONENT_TEXT_ENCODER, t->options.kernels, dtype);
    t->unet_source = weights_from_checkpoint(c, COMPONENT_UNET, t->options.kernels, dtype);
    const struct weights text = hash_weights(
        weights_of(t, c, COMPONENT_TEXT_ENCODER, dtype, &paced_text), &hashed_text);
    const struct weights plain_unet = weights_of(t, c, COMPONENT_UNET, dtype, &paced_unet);
    const struct weights unet = t->options.ranks ? hash_weights(plain_unet, &hashed_unet)
                                                 : plain_unet;
    /* f32, because latents are computed only once: they should be as precise as possible. */
    const struct weights vae = hash_weights(
        weights_of(t, c, COMPONENT_VAE, DTYPE_F32, &paced_vae), &hashed_vae);
    const struct weights decoder = weights_of(t, c, COMPONENT_VAE, dtype, &paced_decoder);
    const bool draws = (t->class_folder && !t->class_dataset) ||
                       t->options.config->validation_prompts.count;
    const struct scheduler_choice ddpm = { .has_kind = true, .kind = SCHEDULER_DDPM };
    struct scheduler_config config;
    t->borrows_unet = t->options.unet && t->options.dtype == dtype &&
                      !train_config_changes_weights(t->options.config);
    if (t->borrows_unet)
        t->unet = t->options.unet;
    if (!training_job_models_fit(t, c, dtype, err) ||
        !tokenizer_from_checkpoint(c, &t->tokenizer, err) ||
        !text_encoder_create(checkpoint_text_encoder_config(c), &text, &t->text_encoder, err) ||
        (!t->unet && !unet_create(checkpoint_unet_config(c), &unet, &t->unet, err)) ||
        !vae_create(checkpoint_vae_config(c), &vae, VAE_ENCODER, &t->vae, err) ||
        (draws && training_job_is_first(t) &&
            !vae_create(checkpoint_vae_config(c), &decoder, VAE_DECODER, &t->decoder, err)) ||
        !scheduler_config_resolve(checkpoint_scheduler_json(c), &ddpm, &config, err) ||
        !noise_schedule_init(&config, &t->noise, err))
        return false;
    if (!copy_scheduler(c, &t->defaults, &t->scheduler_json, err) ||
        !copy_scheduler(c, &t->own_defaults, &t->own_scheduler_json, err))
        return false;
    t->text_encoder_weights = sha256_end(&hashed_text.sha);
    t->vae_weights = sha256_end(&hashed_vae.sha);
    if (t->options.ranks)
        t->unet_weights = sha256_end(&hashed_unet.sha);
    t->facts = (struct adapter_facts){
        .model = t->options.model_path,
        .pictures = t->source.count,
        .is_sd2 = text_encoder_get_config(t->text_encoder)->hidden_size == 1024,
        .v_prediction = config.values.prediction_type == PREDICTION_V,
        .linear_projection = unet_get_config(t->unet)->use_linear_projection,
    };
    return true;
}

struct drawing_models training_job_drawing_models(const struct training_job *t) {
    return (struct drawing_models){ .kernels = t->options.kernels,
        .text_encoder = t->text_encoder,
        .unet = t->unet,
        .vae = t->decoder,
        .tokenizer = t->tokenizer,
        .scheduler_json = t->scheduler_json,
        .defaults = &t->defaults,
        .default_px = (int)t->options.config->resolution };
}

/* Whether the text encoder's weights can be freed: it is not trained, and has no more captions and
 * prompts to encode. */
static bool drops_text_encoder(const struct training_job *t) {
    const bool draws = training_job_is_first(t) && t->options.config->validation_prompts.count;
    return !t->options.config->train_text_encoder && !draws &&
           !trainer_uses_text_encoder(t->trainer);
}

void training_job_drop_encoders(struct training_job *t) {
    const bool drops_vae = !t->vae_dropped && !trainer_uses_vae(t->trainer);
    const bool drops_text = !t->text_encoder_dropped && drops_text_encoder(t);
    if (drops_vae)
        vae_drop_weights(t->vae);
    if (drops_text)
        text_encoder_drop_weights(t->text_encoder);
    if (drops_vae || drops_text)
        malloc_trim(0);
    t->vae_dropped = t->vae_dropped || drops_vae;
    t->text_encoder_dropped = t->text_encoder_dropped || drops_text;
}

static bool check_same(const struct training_job *t, const char *model, struct hashed *h,
    const struct digest *before, struct error *err) {
    const struct digest now = sha256_end(&h->sha);
    return memcmp(&now, before, sizeof(now)) == 0 ||
           error_set(err, ERROR_INVALID,
               "%s: the weights of its %s have changed since the job began", t->options.model_path,
               model);
}

static bool load_vae(struct training_job *t, struct checkpoint *c, struct error *err) {
    struct hashed hashed;
    const struct weights weights = hash_weights(
        weights_from_checkpoint(c, COMPONENT_VAE, t->options.kernels, DTYPE_F32), &hashed);
    struct vae *vae;
    if (!vae_create(vae_get_config(t->vae), &weights, VAE_ENCODER, &vae, err))
        return false;
    vae_swap(t->vae, vae);
    vae_destroy(vae);
    return check_same(t, "VAE", &hashed, &t->vae_weights, err);
}

static bool load_text_encoder(struct training_job *t, struct checkpoint *c, struct error *err) {
    struct hashed hashed;
    const struct weights weights = hash_weights(
        weights_from_checkpoint(
            c, COMPONENT_TEXT_ENCODER, t->options.kernels, dtype_of(t->options.config)),
        &hashed);
    struct text_encoder *encoder;
    if (!text_encoder_create(text_encoder_get_config(t->text_encoder), &weights, &encoder, err))
        return false;
    text_encoder_swap(t->text_encoder, encoder);
    text_encoder_destroy(encoder);
    return check_same(t, "text encoder", &hashed, &t->text_encoder_weights, err);
}

bool training_job_load_encoders(void *user, struct error *err) {
    struct training_job *t = user;
    struct checkpoint *c;
    if (!t->vae_dropped && !t->text_encoder_dropped)
        return true;
    if (!checkpoint_open(t->options.model_path, t->options.tokenizer_dir, &c, err))
        return false;
    const bool ok = (!t->vae_dropped || load_vae(t, c, err)) &&
                    (!t->text_encoder_dropped || load_text_encoder(t, c, err)) &&
                    t->options.kernels->memory->synchronize(err);
    t->vae_dropped = t->text_encoder_dropped = false;
    checkpoint_close(c);
    return ok;
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
