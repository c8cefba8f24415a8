#include "train/pass.h"

#include <stdlib.h>
#include <string.h>

struct pass {
    struct pass_options options;             /* a copy; its `parameters` is NULL */
    const struct row_overlay **overlay_rows; /* owned: one per row, or NULL */
    struct overlay overlay;
    struct tape *tape;
    void *block; /* owned, device memory; holds the tensors below */
    size_t bytes;
    struct tensor noisy, target, timesteps, context, prediction, loss;
    float *weights; /* owned: host memory [rows] */
};

/* --- the forward --- */

static void forward(struct compute *c, void *user) {
    const struct pass *p = user;
    const struct pass_options *o = &p->options;
    const size_t mark = arena_mark(c->arena);
    const enum dtype dtype = unet_activation_dtype(o->unet);
    struct tensor context = p->context;
    if (o->text_encoder) {
        context = compute_tensor_3d(
            c, dtype, o->rows, o->tokens, text_encoder_get_config(o->text_encoder)->hidden_size);
        text_encoder_forward(o->text_encoder, c, &p->context, 0, &context);
    }
    struct tensor kv = compute_tensor_3d(
        c, dtype, o->rows, o->tokens, unet_context_channels(o->unet));
    unet_encode_context(o->unet, c, &context, &kv);
    struct tensor prediction = p->prediction;
    unet_forward(o->unet, c, &p->noisy, &p->timesteps, &kv, NULL, &prediction);
    arena_release(c->arena, mark);
}

/* --- memory --- */

/* Places a tensor at *at in the block. The block is NULL while sizes are only added up. */
static struct tensor place(const struct pass *p, struct tensor t, size_t *at) {
    t.device = p->options.kernels->device;
    t.data = (char *)p->block + *at;
    *at += (tensor_bytes(&t) + MEMORY_ALIGNMENT - 1) / MEMORY_ALIGNMENT * MEMORY_ALIGNMENT;
    return t;
}

static size_t place_all(struct pass *p) {
    const struct pass_options *o = &p->options;
    const struct unet_config *config = unet_get_config(o->unet);
    const int64_t n = o->rows, h = o->height, w = o->width;
    size_t at = 0;
    p->noisy = place(p, tensor_4d(NULL, DTYPE_F32, n, h, w, config->in_channels), &at);
    p->target = place(p, tensor_4d(NULL, DTYPE_F32, n, h, w, config->out_channels), &at);
    p->prediction = place(p, tensor_4d(NULL, DTYPE_F32, n, h, w, config->out_channels), &at);
    p->timesteps = place(p, tensor_1d(NULL, DTYPE_F32, n), &at);
    p->loss = place(p, tensor_1d(NULL, DTYPE_F32, n), &at);
    p->context = place(p,
        o->text_encoder ? tensor_2d(NULL, DTYPE_I32, n, o->tokens)
                        : tensor_3d(NULL, unet_activation_dtype(o->unet), n, o->tokens,
                              config->cross_attention_dim),
        &at);
    return at;
}

_Static_assert(TRAIN_PASS_ROWS_MAX <= OVERLAY_ROWS_AT_ONCE, "a pass adds to each gradient once");

static bool check_rows(const struct pass_options *options, struct error *err) {
    return (options->rows >= 1 && options->rows <= TRAIN_PASS_ROWS_MAX) ||
           error_set(err, ERROR_INVALID, "a batch of %lld pictures; 1 to %d are possible",
               (long long)options->rows, TRAIN_PASS_ROWS_MAX);
}

/* Prepares everything except the tape. */
static bool prepare(const struct pass_options *options, struct pass *p, struct error *err) {
    if (!check_rows(options, err))
        return false;
    const size_t rows = (size_t)options->rows;
    p->options = *options;
    p->options.parameters = NULL;
    p->overlay_rows = calloc(rows, sizeof(*p->overlay_rows));
    p->weights = calloc(rows, sizeof(*p->weights));
    if (!p->overlay_rows || !p->weights)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a batch of %zu", rows);
    for (size_t i = 0; i < rows; i++)
        p->overlay_rows[i] = options->overlay;
    p->overlay = (struct overlay){ p->overlay_rows, (int)rows };
    p->bytes = place_all(p);
    if (!options->kernels->memory->alloc(MEMORY_ACTIVATIONS, p->bytes, &p->block, err))
        return false;
    (void)place_all(p);
    return true;
}

static struct compute compute_of(const struct pass *p) {
    return (struct compute){
        .kernels = p->options.kernels,
        .overlay = p->options.overlay ? &p->overlay : NULL,
    };
}

static struct tape_options tape_options_of(const struct pass_options *options) {
    return (struct tape_options){
        .parameters = options->parameters,
        .count = options->parameter_count,
        .checkpointing = options->checkpointing,
    };
}

bool pass_create(const struct pass_options *options, struct pass **out, struct error *err) {
    *out = NULL;
    struct pass *p = calloc(1, sizeof(*p));
    if (!p)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a training pass");
    const struct tape_options tape = tape_options_of(options);
    if (prepare(options, p, err)) {
        const struct compute like = compute_of(p);
        if (tape_create(&like, forward, p, &p->prediction, &tape, &p->tape, err)) {
            *out = p;
            return true;
        }
    }
    pass_destroy(p);
    return false;
}

void pass_destroy(struct pass *pass) {
    if (!pass)
        return;
    tape_destroy(pass->tape);
    if (pass->block)
        pass->options.kernels->memory->release(MEMORY_ACTIVATIONS, pass->block, pass->bytes);
    free(pass->overlay_rows);
    free(pass->weights);
    free(pass);
}

size_t pass_bytes(const struct pass *pass) {
    return pass->bytes + tape_bytes(pass->tape);
}

/* --- a pass --- */

bool pass_begin(struct pass *pass, const struct pass_batch *batch, struct error *err) {
    const size_t rows = (size_t)pass->options.rows;
    float timesteps[TRAIN_PASS_ROWS_MAX];
    for (size_t i = 0; i < rows; i++)
        timesteps[i] = (float)batch->timesteps[i];
    memcpy(pass->weights, batch->weights, rows * sizeof(*pass->weights));
    struct compute c = compute_of(pass);
    compute_upload(&c, batch->noisy, &pass->noisy);
    compute_upload(&c, batch->target, &pass->target);
    compute_upload(&c, timesteps, &pass->timesteps);
    compute_upload(&c, batch->context, &pass->context);
    tape_begin(pass->tape);
    if (!compute_ok(&c) && err)
        *err = c.error;
    return compute_ok(&c);
}

/* Computes the losses and, if d_prediction is not NULL, their gradient. */
static bool compare(struct pass *p, struct tensor *d_prediction, float *losses, struct error *err) {
    struct compute c = { .kernels = p->options.kernels };
    op_mse(&c, &(struct mse_args){
                   .prediction = &p->prediction,
                   .target = &p->target,
                   .weights = p->weights,
                   .loss = &p->loss,
                   .d_prediction = d_prediction,
               });
    if (losses) {
        const float *host = compute_view(&c, &p->loss);
        if (host)
            memcpy(losses, host, (size_t)p->options.rows * sizeof(*losses));
    }
    if (!compute_ok(&c) && err)
        *err = c.error;
    return compute_ok(&c);
}

bool pass_advance(struct pass *pass, bool *done, float *losses, struct error *err) {
    enum tape_point reached;
    *done = false;
    if (!tape_advance(pass->tape, &reached, err))
        return false;
    if (reached == TAPE_BETWEEN)
        return true;
    if (reached == TAPE_MIDDLE) {
        struct tensor d_prediction = tape_gradient(pass->tape, &pass->prediction);
        return compare(pass, &d_prediction, NULL, err);
    }
    *done = true;
    const float *host = pass->options.kernels->memory->view(
        pass->loss.data, tensor_bytes(&pass->loss), err);
    if (host)
        memcpy(losses, host, tensor_bytes(&pass->loss));
    return host;
}

bool pass_advance_forward(struct pass *pass, bool *done, float *losses, struct error *err) {
    enum tape_point reached;
    *done = false;
    if (!tape_advance(pass->tape, &reached, err))
        return false;
    *done = reached != TAPE_BETWEEN;
    return !*done || compare(pass, NULL, losses, err);
}
