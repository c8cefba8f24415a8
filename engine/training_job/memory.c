/* Checks whether there is memory for a job before the job uses it. The system grants any
 * allocation, and kills the process when too much of it is used. */
#include "engine/training_job/internal.h"

#include <stdio.h>

static size_t mebibytes(size_t bytes) {
    return (bytes + (1 << 20) - 1) >> 20;
}

/* `parts` is for the error message: what the bytes are used for. */
static bool fits(size_t bytes, const struct available *left, const char *parts, struct error *err) {
    return bytes <= left->bytes ||
           error_set(err, ERROR_NO_MEMORY,
               "the job takes %zu MiB (%s) and %zu MiB are available%s%s", mebibytes(bytes), parts,
               left->bytes >> 20, *left->why ? ": " : "", left->why);
}

static size_t parameters_of(const struct checkpoint *c, enum component component) {
    struct checkpoint_stats stats;
    checkpoint_get_stats(c, component, &stats);
    return stats.parameters;
}

bool training_job_models_fit(
    const struct training_job *t, const struct checkpoint *c, enum dtype dtype, struct error *err) {
    const size_t own = (t->borrows_unet ? 0 : parameters_of(c, COMPONENT_UNET)) +
                       parameters_of(c, COMPONENT_TEXT_ENCODER);
    const size_t models = own * dtype_size(dtype);
    /* Counts the whole VAE, although only its encoder is loaded. The encoder is less than half of
     * the VAE, but encoding itself needs more memory than the rest of the VAE would take. */
    const size_t vae = parameters_of(c, COMPONENT_VAE) * sizeof(float);
    struct available left;
    char parts[160];
    t->options.kernels->memory->available(&left);
    available_share(&left, t->options.device_ranks);
    snprintf(parts, sizeof(parts), "models of its own as %s %zu, the VAE %zu", dtype_name(dtype),
        mebibytes(models), mebibytes(vae));
    /* No rank loads before all have read how much there is. */
    return agreement_meet(t->options.ranks, fits(models + vae, &left, parts, err), err);
}

/* Returns the memory for pictures that are decoded ahead of encoding. */
static size_t decoded_bytes(const struct training_job *t) {
    const struct train_config *c = t->options.config;
    const size_t floats = c->masks == TRAIN_MASKS_FILES ? 4 : 3;
    size_t largest = 0;
    for (int64_t i = 0; i < train_source_all(&t->source); i++) {
        const struct bucket px = train_source_size(&t->source, i);
        const size_t bytes = (size_t)px.width * (size_t)px.height * floats * sizeof(float);
        largest = bytes > largest ? bytes : largest;
    }
    return read_ahead_bytes((int)c->dataloader_num_workers, largest);
}

bool training_job_training_fits(
    const struct training_job *t, const struct training_room *room, struct error *err) {
    struct trainer_memory m = trainer_get_memory(t->trainer);
    m.encoded.host += decoded_bytes(t);
    const bool apart = t->options.kernels->device != DEVICE_CPU;
    const size_t device = m.parameters + m.optimizer + m.pass + m.encoded.device;
    const size_t host = m.copies + m.exchange + m.encoded.host + (apart ? 0 : device);
    char parts[256];
    if (apart)
        snprintf(parts, sizeof(parts),
            "copies of weights %zu, gradients for other ranks %zu, encoded pictures and captions "
            "%zu",
            mebibytes(m.copies), mebibytes(m.exchange), mebibytes(m.encoded.host));
    else
        snprintf(parts, sizeof(parts),
            "trained parameters %zu, copies of weights %zu, gradients for other ranks %zu, "
            "optimizer "
            "%zu, a pass %zu, encoded pictures and captions %zu",
            mebibytes(m.parameters), mebibytes(m.copies), mebibytes(m.exchange),
            mebibytes(m.optimizer), mebibytes(m.pass),
            mebibytes(m.encoded.host + m.encoded.device));
    if (!fits(host, &room->host, parts, err))
        return false;
    snprintf(parts, sizeof(parts), "trained parameters %zu, optimizer %zu, a pass %zu",
        mebibytes(m.parameters), mebibytes(m.optimizer), mebibytes(m.pass));
    return !apart || fits(device, &room->device, parts, err);
}

bool training_room_read(
    const struct training_job *t, struct training_room *out, struct error *err) {
    t->options.kernels->memory->available(&out->device);
    available_read("", &out->host);
    available_share(&out->device, t->options.device_ranks);
    available_share(&out->host, agreement_host_ranks(t->options.ranks));
    /* No rank takes memory before all have read how much there is. */
    return agreement_meet(t->options.ranks, true, err);
}
