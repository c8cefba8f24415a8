/* The three models from a checkpoint: each takes the tensors of its component, and whatever is then
 * left over in the file is an error. */
#include "models/build.h"

#include "models/checkpoint/checkpoint.h"

struct source {
    struct checkpoint *checkpoint;
    enum component component;
};

static bool get(void *user, const char *name, int rank, const int64_t *shape, struct tensor *out,
    struct error *err) {
    const struct source *source = user;
    return checkpoint_tensor(source->checkpoint, source->component, name, rank, shape, out, err);
}

static struct weights weights_from(
    struct source *source, const struct kernels *kernels, enum dtype dtype) {
    return (struct weights){ .get = get, .user = source, .kernels = kernels, .dtype = dtype };
}

/* After a model took its weights: it took all, and the files held still meanwhile. */
static bool check_done(const struct source *source, struct error *err) {
    return checkpoint_check_unused(source->checkpoint, source->component, err) &&
           checkpoint_check_intact(source->checkpoint, err);
}

bool text_encoder_create(struct checkpoint *checkpoint, const struct kernels *kernels,
    enum dtype dtype, struct text_encoder **out, struct error *err) {
    struct source source = { checkpoint, COMPONENT_TEXT_ENCODER };
    const struct weights w = weights_from(&source, kernels, dtype);
    struct text_encoder *encoder;
    if (!text_encoder_build(checkpoint_text_encoder_config(checkpoint), &w, &encoder, err))
        return false;
    if (!check_done(&source, err)) {
        text_encoder_destroy(encoder);
        return false;
    }
    *out = encoder;
    return true;
}

bool unet_create(struct checkpoint *checkpoint, const struct kernels *kernels, enum dtype dtype,
    struct unet **out, struct error *err) {
    struct source source = { checkpoint, COMPONENT_UNET };
    const struct weights w = weights_from(&source, kernels, dtype);
    struct unet *unet;
    if (!unet_build(checkpoint_unet_config(checkpoint), &w, &unet, err))
        return false;
    if (!check_done(&source, err)) {
        unet_destroy(unet);
        return false;
    }
    *out = unet;
    return true;
}

bool vae_create(struct checkpoint *checkpoint, const struct kernels *kernels, enum dtype dtype,
    enum vae_parts parts, struct vae **out, struct error *err) {
    struct source source = { checkpoint, COMPONENT_VAE };
    const struct weights w = weights_from(&source, kernels, dtype);
    struct vae *vae;
    if (!vae_build(checkpoint_vae_config(checkpoint), &w, parts, &vae, err))
        return false;
    if (!check_done(&source, err)) {
        vae_destroy(vae);
        return false;
    }
    *out = vae;
    return true;
}
