#include "train/encoded.h"

#include "base/log.h"
#include "train/draws.h"

#include <stdlib.h>
#include <string.h>

struct picture {
    int64_t height, width; /* of its latents */
    float *moments[2];     /* owned: mean, then log-variance; of the mirror image */
};

struct encoded {
    struct encoded_options options;
    int64_t tokens, channels; /* of a text; of latents */
    size_t caption_bytes;
    struct picture *pictures; /* owned: source->count */
    const char **captions;    /* owned: the different ones, sorted, "" among them */
    size_t caption_count;
    char *texts;         /* owned: [caption_count][caption_bytes] */
    struct arena *arena; /* owned, until all is done */
    int64_t next;        /* of pictures and their mirror images, then of captions */
};

/* --- sizes --- */

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool list_captions(struct encoded *e, struct error *err) {
    const struct train_source *s = e->options.source;
    size_t count = 1, kept = 0;
    for (int64_t i = 0; i < s->count; i++)
        count += (size_t)s->captions(s->user, i);
    e->captions = malloc(count * sizeof(*e->captions));
    if (!e->captions)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu captions", count);
    size_t at = 0;
    e->captions[at++] = "";
    for (int64_t i = 0; i < s->count; i++)
        for (int which = s->captions(s->user, i); which--;)
            e->captions[at++] = s->caption(s->user, i, which);
    qsort(e->captions, count, sizeof(*e->captions), by_text);
    for (size_t i = 0; i < count; i++)
        if (!i || strcmp(e->captions[i], e->captions[kept - 1]) != 0)
            e->captions[kept++] = e->captions[i];
    e->caption_count = kept;
    return true;
}

static bool size_pictures(struct encoded *e, struct error *err) {
    const struct train_source *s = e->options.source;
    const int scale = vae_scale(e->options.vae);
    e->pictures = calloc((size_t)s->count, sizeof(*e->pictures));
    if (!e->pictures)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %lld pictures", (long long)s->count);
    for (int64_t i = 0; i < s->count; i++) {
        int height, width;
        s->size(s->user, i, &height, &width);
        if (height % scale || width % scale)
            return error_set(err, ERROR_INTERNAL, "picture %lld is %dx%d, no multiple of %d",
                (long long)i, width, height, scale);
        e->pictures[i].height = height / scale;
        e->pictures[i].width = width / scale;
    }
    return true;
}

bool encoded_create(
    const struct encoded_options *options, struct encoded **out, struct error *err) {
    *out = NULL;
    struct encoded *e = calloc(1, sizeof(*e));
    if (!e)
        return error_set(err, ERROR_NO_MEMORY, "no memory for encoded pictures");
    const struct text_encoder_config *text = text_encoder_get_config(options->text_encoder);
    const enum dtype dtype = text_encoder_activation_dtype(options->text_encoder);
    e->options = *options;
    e->tokens = text->max_position_embeddings;
    e->channels = vae_get_config(options->vae)->latent_channels;
    e->caption_bytes = (size_t)e->tokens * (options->ids_only
                                                   ? sizeof(int32_t)
                                                   : (size_t)text->hidden_size * dtype_size(dtype));
    if (list_captions(e, err) && size_pictures(e, err) &&
        arena_create(options->kernels->memory, &e->arena, err)) {
        e->texts = malloc(e->caption_count * e->caption_bytes);
        if (e->texts) {
            *out = e;
            return true;
        }
        error_set(err, ERROR_NO_MEMORY, "no memory for %zu encoded captions", e->caption_count);
    }
    encoded_destroy(e);
    return false;
}

void encoded_destroy(struct encoded *encoded) {
    if (!encoded)
        return;
    for (int64_t i = 0; encoded->pictures && i < encoded->options.source->count; i++) {
        free(encoded->pictures[i].moments[0]);
        free(encoded->pictures[i].moments[1]);
    }
    free(encoded->pictures);
    free(encoded->captions);
    free(encoded->texts);
    arena_destroy(encoded->arena);
    free(encoded);
}

static int64_t latent_floats(const struct encoded *e, const struct picture *picture) {
    return picture->height * picture->width * e->channels;
}

size_t encoded_bytes(const struct encoded *e) {
    size_t floats = 0;
    for (int64_t i = 0; i < e->options.source->count; i++)
        floats += 2 * (size_t)latent_floats(e, &e->pictures[i]);
    return floats * sizeof(float) * (e->options.mirrored ? 2 : 1) +
           e->caption_count * e->caption_bytes;
}

/* --- pictures --- */

struct picture_call {
    const struct vae *vae;
    struct tensor image, moments; /* moments: of the caller's */
    const float *pixels;
};

static void run_vae(struct compute *c, void *user) {
    struct picture_call *call = user;
    const size_t mark = arena_mark(c->arena);
    const struct tensor *s = &call->image;
    struct tensor image = compute_tensor_4d(c, DTYPE_F32, 1, s->shape[1], s->shape[2], s->shape[3]);
    call->moments = compute_tensor_4d(
        c, DTYPE_F32, 1, call->moments.shape[1], call->moments.shape[2], call->moments.shape[3]);
    compute_upload(c, call->pixels, &image);
    vae_encode(call->vae, c, &image, &call->moments);
    arena_release(c->arena, mark);
}

/* [height][width][channels] mirrored from left to right, in place. */
static void mirror(float *pixels, int64_t height, int64_t width, int64_t channels) {
    for (int64_t y = 0; y < height; y++)
        for (int64_t x = 0; x < width / 2; x++)
            for (int64_t c = 0; c < channels; c++) {
                float *a = pixels + (y * width + x) * channels + c;
                float *b = pixels + (y * width + width - 1 - x) * channels + c;
                const float kept = *a;
                *a = *b;
                *b = kept;
            }
}

/* Interleaved [pixels][mean.. | log-variance..] to one after the other. */
static void split_moments(const float *from, int64_t pixels, int64_t channels, float *to) {
    for (int64_t i = 0; i < pixels; i++)
        for (int64_t c = 0; c < channels; c++) {
            to[i * channels + c] = from[2 * i * channels + c];
            to[(pixels + i) * channels + c] = from[(2 * i + 1) * channels + c];
        }
}

static bool run(struct encoded *e, void (*forward)(struct compute *c, void *user), void *user,
    struct tensor *result, const void **host, struct error *err) {
    struct compute c = { .kernels = e->options.kernels, .arena = e->arena };
    if (!compute_plan(&c, forward, user, err))
        return false;
    forward(&c, user);
    *host = compute_view(&c, result);
    if (!compute_ok(&c) && err)
        *err = c.error;
    return compute_ok(&c);
}

/* The same for a picture and its mirror image, and whatever the order. */
static void draw_crop(const struct encoded *e, int64_t item, float crop[2]) {
    struct mt19937 mt;
    mt19937_init(&mt, e->options.seed + (uint64_t)item);
    crop[0] = draws_uniform(&mt);
    crop[1] = draws_uniform(&mt);
}

static bool encode_picture(struct encoded *e, int64_t item, bool mirrored, struct error *err) {
    const struct train_source *s = e->options.source;
    struct picture *p = &e->pictures[item];
    const int64_t scale = vae_scale(e->options.vae), floats = latent_floats(e, p);
    const int64_t height = p->height * scale, width = p->width * scale;
    float *pixels = malloc((size_t)(height * width * 3) * sizeof(*pixels));
    float *moments = malloc(2 * (size_t)floats * sizeof(*moments));
    struct picture_call call = {
        .vae = e->options.vae,
        .image = tensor_4d(NULL, DTYPE_F32, 1, height, width, 3),
        .moments = tensor_4d(NULL, DTYPE_F32, 1, p->height, p->width, 2 * e->channels),
        .pixels = pixels,
    };
    const void *host = NULL;
    bool ok = (pixels && moments) ||
              error_set(err, ERROR_NO_MEMORY, "no memory for a picture of %lldx%lld",
                  (long long)width, (long long)height);
    float crop[2] = { 0.5f, 0.5f };
    if (e->options.random_crop)
        draw_crop(e, item, crop);
    ok = ok && s->pixels(s->user, item, crop[0], crop[1], pixels, err);
    if (ok && mirrored)
        mirror(pixels, height, width, 3);
    ok = ok && run(e, run_vae, &call, &call.moments, &host, err);
    if (ok)
        split_moments(host, p->height * p->width, e->channels, moments);
    free(pixels);
    if (!ok)
        free(moments);
    else
        p->moments[mirrored] = moments;
    return ok;
}

/* --- captions --- */

struct caption_call {
    const struct text_encoder *text_encoder;
    const int32_t *ids;
    int64_t tokens;
    struct tensor context;
};

static void run_text_encoder(struct compute *c, void *user) {
    struct caption_call *call = user;
    const size_t mark = arena_mark(c->arena);
    const struct tensor ids = compute_tensor_2d(c, DTYPE_I32, 1, call->tokens);
    call->context = compute_tensor_3d(c, text_encoder_activation_dtype(call->text_encoder), 1,
        call->tokens, text_encoder_get_config(call->text_encoder)->hidden_size);
    compute_upload(c, call->ids, &ids);
    text_encoder_forward(call->text_encoder, c, &ids, 0, &call->context);
    arena_release(c->arena, mark);
}

static bool encode_caption(struct encoded *e, size_t index, struct error *err) {
    char *to = e->texts + index * e->caption_bytes;
    int32_t *ids = malloc((size_t)e->tokens * sizeof(*ids));
    struct caption_call call = {
        .text_encoder = e->options.text_encoder, .ids = ids, .tokens = e->tokens
    };
    const void *host = ids;
    bool ok = ids || error_set(err, ERROR_NO_MEMORY, "no memory for a caption");
    char *cut = NULL;
    ok = ok && tokenizer_encode_padded(
                   e->options.tokenizer, e->captions[index], (size_t)e->tokens, ids, &cut, err);
    if (cut)
        log_warning("a caption is longer than %lld tokens, its end is not seen: %.200s",
            (long long)e->tokens, cut);
    free(cut);
    if (ok && !e->options.ids_only)
        ok = run(e, run_text_encoder, &call, &call.context, &host, err);
    if (ok)
        memcpy(to, host, e->caption_bytes);
    free(ids);
    return ok;
}

/* --- all of it --- */

bool encoded_advance(struct encoded *e, bool *done, struct error *err) {
    const int64_t sides = e->options.mirrored ? 2 : 1;
    const int64_t pictures = e->options.source->count * sides;
    const int64_t all = pictures + (int64_t)e->caption_count;
    if (e->next < pictures && !encode_picture(e, e->next / sides, e->next % sides, err))
        return false;
    if (e->next >= pictures && e->next < all &&
        !encode_caption(e, (size_t)(e->next - pictures), err))
        return false;
    *done = ++e->next >= all;
    if (*done) {
        arena_destroy(e->arena);
        e->arena = NULL;
    }
    return true;
}

struct encoded_picture encoded_picture(const struct encoded *encoded, int64_t item, bool mirrored) {
    const struct picture *p = &encoded->pictures[item];
    const float *mean = p->moments[mirrored];
    return (struct encoded_picture){ p->height, p->width, mean, mean + latent_floats(encoded, p) };
}

static const void *text_of(const struct encoded *e, const char *caption) {
    const char *const *found = bsearch(
        &caption, e->captions, e->caption_count, sizeof(*e->captions), by_text);
    return e->texts + (size_t)(found - e->captions) * e->caption_bytes;
}

const void *encoded_caption(const struct encoded *encoded, int64_t item, int which) {
    const struct train_source *s = encoded->options.source;
    return text_of(encoded, s->caption(s->user, item, which));
}

const void *encoded_no_caption(const struct encoded *encoded) {
    return text_of(encoded, "");
}

size_t encoded_caption_bytes(const struct encoded *encoded) {
    return encoded->caption_bytes;
}
