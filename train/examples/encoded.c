#include "train/examples/encoded.h"

#include "base/log.h"
#include "train/examples/cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Prefixes of names in the cache. Change the number whenever the same input would give another
 * result. */
#define PICTURE_NAME "picture 1"
#define TEXT_NAME "text 1"
/* The most existing entries that one piece of work skips. */
#define CHECKS_PER_PIECE 64

struct encoded {
    struct encoded_options options;
    int64_t tokens, channels; /* of a text; of the latents */
    size_t caption_bytes;
    struct digest vae, text_encoder; /* digests of the weights and of the code */
    const char **captions;           /* owned: the distinct captions; NULL when done */
    size_t caption_count;
    uint64_t disk;       /* as in struct encoded_memory */
    int64_t each_time;   /* number of pictures that are not kept */
    struct arena *arena; /* owned; NULL while nothing is being computed */
    float *moments;      /* owned: room for the largest picture, with its mask */
    size_t moments_bytes;
    bool computed; /* the current call has computed something */
    bool full;     /* all is in the cache: a model is needed only for what is encoded in each use */
    bool whole;    /* filling all of the cache, not only this rank's share */
    int64_t next;  /* the next part: 4 for each picture (find_part), then captions */
    int64_t ahead; /* missing parts below this one were announced */
};

/* --- how pictures are cropped --- */

static bool is_held_out(const struct encoded *e, int64_t item) {
    const struct train_source *s = e->options.source;
    return item >= s->count && item < s->count + s->held_out;
}

static bool has_choice(const struct encoded *e, int64_t item) {
    const struct train_source *s = e->options.source;
    const struct placement *p = s->placement(s->user, item);
    return !e->options.center_crop && !is_held_out(e, item) &&
           (placement_tops(p) > 1 || placement_lefts(p) > 1);
}

bool encoded_is_cut_anew(const struct encoded *e, int64_t item) {
    return has_choice(e, item) && !e->options.cut_once;
}

struct crop encoded_crop(const struct encoded *e, int64_t item) {
    const struct train_source *s = e->options.source;
    const struct placement *p = s->placement(s->user, item);
    if (!has_choice(e, item))
        return placement_centre(p);
    struct mt19937 mt;
    mt19937_init(&mt, e->options.seed + (uint64_t)item);
    const int top = (int)(mt19937_next(&mt) % (uint32_t)placement_tops(p));
    return (struct crop){ top, (int)(mt19937_next(&mt) % (uint32_t)placement_lefts(p)), false };
}

bool encoded_waits_for_pixels(const struct encoded *e) {
    const struct train_source *s = e->options.source;
    return e->each_time && s->expect && !s->expects(s->user);
}

bool encoded_expect(
    const struct encoded *e, int64_t item, const struct crop *crop, bool masked, bool drawn) {
    const struct train_source *s = e->options.source;
    return !s->expect || !(drawn || encoded_is_cut_anew(e, item)) ||
           s->expect(s->user, item, crop, masked && !drawn);
}

struct encoded_size encoded_size(const struct encoded *e, int64_t item) {
    const int scale = vae_scale(e->options.vae);
    const struct bucket size = train_source_size(e->options.source, item);
    return (struct encoded_size){ size.height / scale, size.width / scale };
}

static size_t latent_floats(const struct encoded *e, struct encoded_size size) {
    return (size_t)(size.height * size.width * e->channels);
}

/* Returns the size of mean, log-variance and, if masked, the mask, in bytes. */
static size_t moments_bytes(const struct encoded *e, struct encoded_size size, bool masked) {
    const size_t mask = masked ? (size_t)(size.height * size.width) : 0;
    return (2 * latent_floats(e, size) + mask) * sizeof(float);
}

/* Returns whether captions are encoded in each use. */
static bool encodes_captions(const struct encoded *e) {
    return e->options.shuffle && !e->options.ids_only;
}

/* --- names in the cache --- */

/* Adds the device's kernels to the digest, because other code rounds differently. */
static void add_kernels(const struct kernels *k, struct sha256 *to) {
    sha256_add_text(to, k->name);
    for (int dtype = 0; k->implementations && dtype < 32; dtype++)
        for (const struct implementation *i =
                 k->weight_dtypes >> dtype & 1 ? k->implementations((enum dtype)dtype) : NULL;
             i && i->layer; i++) {
            sha256_add_text(to, i->layer);
            sha256_add_text(to, i->code);
        }
}

static struct digest with_kernels(
    const char *kind, const struct digest *weights, const struct kernels *kernels) {
    struct sha256 sha;
    sha256_begin(&sha);
    sha256_add_text(&sha, kind);
    sha256_add(&sha, weights, sizeof(*weights));
    add_kernels(kernels, &sha);
    return sha256_end(&sha);
}

static struct digest name_picture(
    const struct encoded *e, int64_t item, const struct crop *crop, bool masked) {
    const struct train_source *s = e->options.source;
    const struct placement *p = s->placement(s->user, item);
    const int32_t numbers[] = { p->resized_width, p->resized_height, p->bucket.width,
        p->bucket.height, crop->top, crop->left, crop->flip, masked };
    struct sha256 sha;
    sha256_begin(&sha);
    sha256_add(&sha, &e->vae, sizeof(e->vae));
    sha256_add(&sha, numbers, sizeof(numbers));
    s->name(s->user, item, &sha);
    return sha256_end(&sha);
}

static struct digest name_text(const struct encoded *e, const int32_t *ids) {
    const int32_t bytes = (int32_t)e->caption_bytes;
    struct sha256 sha;
    sha256_begin(&sha);
    sha256_add(&sha, &e->text_encoder, sizeof(e->text_encoder));
    sha256_add(&sha, &bytes, sizeof(bytes));
    sha256_add(&sha, ids, (size_t)e->tokens * sizeof(*ids));
    return sha256_end(&sha);
}

/* --- computing --- */

/* Computes a result; *host points to it in host memory until the next call. */
static bool run(struct encoded *e, void (*forward)(struct compute *c, void *user), void *user,
    const struct tensor *result, const void **host, struct error *err) {
    e->computed = true;
    if (!e->arena && !arena_create(e->options.kernels->memory, &e->arena, err))
        return false;
    struct compute c = { .kernels = e->options.kernels, .arena = e->arena };
    if (!compute_plan(&c, forward, user, err))
        return false;
    forward(&c, user);
    *host = compute_view(&c, result);
    if (!compute_ok(&c) && err)
        *err = c.error;
    return compute_ok(&c);
}

struct picture_call {
    const struct vae *vae;
    struct tensor image, moments; /* moments: the result */
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

static struct picture_call call_for(
    const struct encoded *e, struct encoded_size size, const float *pixels) {
    const int64_t scale = vae_scale(e->options.vae);
    return (struct picture_call){
        .vae = e->options.vae,
        .image = tensor_4d(NULL, DTYPE_F32, 1, size.height * scale, size.width * scale, 3),
        .moments = tensor_4d(NULL, DTYPE_F32, 1, size.height, size.width, 2 * e->channels),
        .pixels = pixels,
    };
}

/* Converts [pixels][mean.. | log-variance..] to all means followed by all log-variances. */
static void split_moments(const float *from, int64_t pixels, int64_t channels, float *to) {
    for (int64_t i = 0; i < pixels; i++)
        for (int64_t c = 0; c < channels; c++) {
            to[i * channels + c] = from[2 * i * channels + c];
            to[(pixels + i) * channels + c] = from[(2 * i + 1) * channels + c];
        }
}

/* Sets pixels to grey where the mask is 1. `small` becomes the mask at the latents' size: it takes
 * every scale-th pixel, as torch's nearest. */
static void apply_mask(
    const float *mask, struct encoded_size size, int64_t scale, float *pixels, float *small) {
    const int64_t width = size.width * scale;
    for (int64_t i = 0; i < size.height * scale * width; i++)
        for (int64_t c = 0; c < 3; c++)
            pixels[3 * i + c] *= mask[i] < 0.5f ? 1.0f : 0.0f;
    for (int64_t y = 0; y < size.height; y++)
        for (int64_t x = 0; x < size.width; x++)
            *small++ = mask[y * scale * width + x * scale];
}

/* Encodes a picture into e->moments. */
static bool encode_picture(struct encoded *e, int64_t item, const struct crop *crop, bool masked,
    const struct mask_shape *shape, struct error *err) {
    const struct train_source *s = e->options.source;
    const struct encoded_size size = encoded_size(e, item);
    const struct bucket px = train_source_size(s, item);
    const size_t pixel_count = (size_t)px.width * (size_t)px.height;
    float *pixels = malloc(pixel_count * 3 * sizeof(*pixels));
    float *mask = masked ? malloc(pixel_count * sizeof(*mask)) : NULL;
    const void *host = NULL;
    bool ok = (pixels && (mask || !masked)) ||
              error_set(
                  err, ERROR_NO_MEMORY, "no memory for a picture of %dx%d", px.width, px.height);
    ok = ok && s->pixels(s->user, item, crop, pixels, shape ? NULL : mask, err);
    if (ok && shape)
        mask_fill(shape, px.width, px.height, mask);
    if (ok && masked)
        apply_mask(
            mask, size, vae_scale(e->options.vae), pixels, e->moments + 2 * latent_floats(e, size));
    struct picture_call call = call_for(e, size, pixels);
    ok = ok && run(e, run_vae, &call, &call.moments, &host, err);
    if (ok)
        split_moments(host, size.height * size.width, e->channels, e->moments);
    free(pixels);
    free(mask);
    return ok;
}

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

static bool encode_ids(struct encoded *e, const int32_t *ids, void *out, struct error *err) {
    struct caption_call call = {
        .text_encoder = e->options.text_encoder, .ids = ids, .tokens = e->tokens
    };
    const void *host;
    const bool ok = run(e, run_text_encoder, &call, &call.context, &host, err);
    if (ok)
        memcpy(out, host, e->caption_bytes);
    return ok;
}

/* --- from the cache, or computed --- */

/* Does what cache_read does. If an entry that the job relies on has disappeared, the models that
 * were dropped are loaded again to encode it, and stay loaded. */
static bool read_kept(struct encoded *e, const struct digest *name, void *out, size_t bytes,
    bool *found, struct error *err) {
    char text[DIGEST_TEXT_BYTES];
    *found = cache_read(e->options.cache, name, out, bytes);
    if (*found || !e->full)
        return true;
    const int why = errno;
    digest_to_text(name, text);
    log_warning("the cache %s no longer has %s, which the job needs (%s); what is missing is "
                "encoded again",
        e->options.cache, text, strerror(why));
    e->full = false;
    return !e->options.load_models || e->options.load_models(e->options.user, err);
}

/* Fills e->moments from the cache, or encodes the picture. */
static bool fetch_picture(struct encoded *e, int64_t item, const struct crop *crop, bool masked,
    const struct mask_shape *shape, struct error *err) {
    const bool kept = !shape && !encoded_is_cut_anew(e, item);
    const size_t bytes = moments_bytes(e, encoded_size(e, item), masked);
    const struct digest name = name_picture(e, item, crop, masked);
    bool found = false;
    if (kept && !read_kept(e, &name, e->moments, bytes, &found, err))
        return false;
    if (found)
        return true;
    return encode_picture(e, item, crop, masked, shape, err) &&
           (!kept || cache_write(e->options.cache, &name, e->moments, bytes, err));
}

static bool fetch_text(
    struct encoded *e, const char *text, bool first_time, void *out, struct error *err) {
    int32_t *ids = e->options.ids_only ? out : malloc((size_t)e->tokens * sizeof(*ids));
    char *cut = NULL;
    bool ok = ids || error_set(err, ERROR_NO_MEMORY, "no memory for a caption");
    ok = ok &&
         tokenizer_encode_padded(e->options.tokenizer, text, (size_t)e->tokens, ids, &cut, err);
    if (cut && first_time)
        log_warning("a caption is longer than %lld tokens, its end is not seen: %.200s",
            (long long)e->tokens, cut);
    free(cut);
    if (e->options.ids_only)
        return ok;
    const struct digest name = ok ? name_text(e, ids) : e->text_encoder;
    if (ok && first_time)
        cache_touch(e->options.cache, &name);
    bool found = false;
    ok = ok && read_kept(e, &name, out, e->caption_bytes, &found, err);
    if (ok && !found)
        ok = encode_ids(e, ids, out, err) &&
             cache_write(e->options.cache, &name, out, e->caption_bytes, err);
    free(ids);
    return ok;
}

bool encoded_picture(struct encoded *e, int64_t item, const struct crop *crop, float *mean,
    float *log_variance, struct error *err) {
    const size_t floats = latent_floats(e, encoded_size(e, item));
    if (!fetch_picture(e, item, crop, false, NULL, err))
        return false;
    memcpy(mean, e->moments, floats * sizeof(float));
    memcpy(log_variance, e->moments + floats, floats * sizeof(float));
    return true;
}

bool encoded_masked_picture(struct encoded *e, int64_t item, const struct crop *crop,
    const struct mask_shape *shape, float *mean, float *log_variance, float *mask,
    struct error *err) {
    const struct encoded_size size = encoded_size(e, item);
    const size_t floats = latent_floats(e, size);
    if (!fetch_picture(e, item, crop, true, shape, err))
        return false;
    memcpy(mean, e->moments, floats * sizeof(float));
    memcpy(log_variance, e->moments + floats, floats * sizeof(float));
    memcpy(mask, e->moments + 2 * floats, (size_t)(size.height * size.width) * sizeof(float));
    return true;
}

static bool fetch_shuffled(
    struct encoded *e, const char *text, uint64_t key, void *out, struct error *err) {
    int32_t *ids = e->options.ids_only ? out : malloc((size_t)e->tokens * sizeof(*ids));
    char *shuffled = NULL, *cut = NULL;
    bool ok = ids || error_set(err, ERROR_NO_MEMORY, "no memory for a caption");
    ok = ok && shuffle_caption(e->options.shuffle, text, key, &shuffled, err) &&
         tokenizer_encode_padded(
             e->options.tokenizer, shuffled, (size_t)e->tokens, ids, &cut, err) &&
         (e->options.ids_only || encode_ids(e, ids, out, err));
    free(shuffled);
    free(cut);
    if (!e->options.ids_only)
        free(ids);
    return ok;
}

bool encoded_caption(
    struct encoded *e, int64_t item, int which, const uint64_t *key, void *out, struct error *err) {
    const struct train_source *s = e->options.source;
    const char *text = s->caption(s->user, item, which);
    return key ? fetch_shuffled(e, text, *key, out, err) : fetch_text(e, text, false, out, err);
}

bool encoded_no_caption(struct encoded *e, void *out, struct error *err) {
    return fetch_text(e, "", false, out, err);
}

size_t encoded_caption_bytes(const struct encoded *e) {
    return e->caption_bytes;
}

/* --- filling the cache --- */

/* One form of a picture: itself, its mirror image, or either of them masked. */
struct part {
    int64_t item;
    bool masked;
    struct crop crop;
};

/* Finds part number `next`. Returns false if the job does not use this part, or does not keep
 * it. */
static bool find_part(const struct encoded *e, int64_t next, struct part *out) {
    const int64_t item = next / 4;
    const bool flip = next % 4 & 1, masked = next % 4 & 2;
    if ((flip && (!e->options.flipped || is_held_out(e, item))) ||
        (masked && e->options.masks != ENCODED_MASKS_FILES) || encoded_is_cut_anew(e, item))
        return false;
    *out = (struct part){ item, masked, encoded_crop(e, item) };
    out->crop.flip = flip;
    return true;
}

static bool fill_picture(struct encoded *e, int64_t next, struct error *err) {
    struct part part;
    if (!find_part(e, next, &part))
        return true;
    const struct digest name = name_picture(e, part.item, &part.crop, part.masked);
    cache_touch(e->options.cache, &name);
    return fetch_picture(e, part.item, &part.crop, part.masked, NULL, err);
}

static bool fill_caption(struct encoded *e, size_t index, struct error *err) {
    void *out = malloc(e->caption_bytes);
    const bool is_first = e->options.world <= 1 || !e->whole; /* one rank warns, and once */
    const bool ok = out ? fetch_text(e, e->captions[index], is_first, out, err)
                        : error_set(err, ERROR_NO_MEMORY, "no memory for a caption");
    free(out);
    return ok;
}

/* Returns whether part `next` is to be filled now. */
static bool is_due(const struct encoded *e, int64_t next) {
    const int64_t pictures = 4 * train_source_all(e->options.source);
    return e->whole || (next < pictures ? next / 4 : next) % e->options.world == e->options.rank;
}

static bool fill_part(struct encoded *e, int64_t next, struct error *err) {
    const int64_t pictures = 4 * train_source_all(e->options.source);
    return !is_due(e, next) || (next < pictures ? fill_picture(e, next, err)
                                                : fill_caption(e, (size_t)(next - pictures), err));
}

/* Announces missing pictures from e->next on, as long as there is room. */
static void expect_pictures(struct encoded *e) {
    const struct train_source *s = e->options.source;
    const int64_t all = 4 * train_source_all(s);
    struct part part;
    if (e->ahead < e->next)
        e->ahead = e->next;
    for (int i = 0; s->expect && e->ahead < all && i < CHECKS_PER_PIECE; i++, e->ahead++) {
        if (!is_due(e, e->ahead) || !find_part(e, e->ahead, &part))
            continue;
        const struct digest name = name_picture(e, part.item, &part.crop, part.masked);
        if (!cache_has(e->options.cache, &name) &&
            !s->expect(s->user, part.item, &part.crop, part.masked))
            return;
    }
}

/* Takes the memory for what is encoded in each use. */
static bool plan_each_time(struct encoded *e, struct encoded_size largest, struct error *err) {
    struct picture_call picture = call_for(e, largest, NULL);
    struct caption_call caption = { .text_encoder = e->options.text_encoder, .tokens = e->tokens };
    struct compute c = { .kernels = e->options.kernels };
    if (!e->each_time && !encodes_captions(e))
        return true;
    if (!arena_create(e->options.kernels->memory, &e->arena, err))
        return false;
    c.arena = e->arena;
    return (!e->each_time || compute_plan(&c, run_vae, &picture, err)) &&
           (!encodes_captions(e) || compute_plan(&c, run_text_encoder, &caption, err));
}

/* When the cache is full: gives back the memory of the models that are no longer needed. */
static bool plan_what_is_left(struct encoded *e, struct error *err) {
    if (e->each_time)
        return true;
    arena_destroy(e->arena);
    e->arena = NULL;
    return plan_each_time(e, (struct encoded_size){ 0 }, err);
}

bool encoded_advance(struct encoded *e, bool *done, struct error *err) {
    const int64_t pictures = 4 * train_source_all(e->options.source);
    const int64_t all = pictures + (int64_t)e->caption_count;
    e->computed = false;
    expect_pictures(e);
    for (int i = 0; e->next < all && !e->computed && i < CHECKS_PER_PIECE; i++, e->next++)
        if (!fill_part(e, e->next, err))
            return false;
    *done = e->next >= all;
    if (*done && e->whole) {
        free(e->captions);
        e->captions = NULL;
        e->full = true;
        return plan_what_is_left(e, err);
    }
    return true;
}

bool encoded_begin_rest(struct encoded *e) {
    if (e->whole)
        return false;
    e->whole = true;
    e->next = e->ahead = 0;
    return true;
}

/* --- creating and destroying --- */

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool list_captions(struct encoded *e, struct error *err) {
    const struct train_source *s = e->options.source;
    const int64_t all = train_source_all(s), first = e->options.shuffle ? s->count : 0;
    size_t count = 1, kept = 0;
    for (int64_t i = first; i < all; i++)
        count += (size_t)s->captions(s->user, i);
    e->captions = malloc(count * sizeof(*e->captions));
    if (!e->captions)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu captions", count);
    size_t at = 0;
    e->captions[at++] = "";
    for (int64_t i = first; i < all; i++)
        for (int which = s->captions(s->user, i); which--;)
            e->captions[at++] = s->caption(s->user, i, which);
    qsort(e->captions, count, sizeof(*e->captions), by_text);
    for (size_t i = 0; i < count; i++)
        if (!i || strcmp(e->captions[i], e->captions[kept - 1]) != 0)
            e->captions[kept++] = e->captions[i];
    e->caption_count = kept;
    return true;
}

/* Adds up the sizes of all pictures, and allocates room for the largest. */
static bool measure_pictures(struct encoded *e, struct error *err) {
    const struct train_source *s = e->options.source;
    const int scale = vae_scale(e->options.vae);
    const bool files = e->options.masks == ENCODED_MASKS_FILES;
    struct encoded_size largest = { 0 };
    for (int64_t i = 0; i < train_source_all(s); i++) {
        const struct bucket px = train_source_size(s, i);
        const struct encoded_size size = encoded_size(e, i);
        const bool anew = encoded_is_cut_anew(e, i);
        if (px.height % scale || px.width % scale)
            return error_set(err, ERROR_INTERNAL, "picture %lld is %dx%d, no multiple of %d",
                (long long)i, px.width, px.height, scale);
        if (size.height * size.width > largest.height * largest.width)
            largest = size;
        e->each_time += anew || e->options.masks == ENCODED_MASKS_DRAWN;
        if (!anew)
            e->disk += (e->options.flipped ? 2 : 1) *
                       (moments_bytes(e, size, false) + (files ? moments_bytes(e, size, true) : 0));
    }
    if (!e->options.ids_only)
        e->disk += e->caption_count * e->caption_bytes;
    e->moments_bytes = moments_bytes(e, largest, true);
    e->moments = malloc(e->moments_bytes);
    if (!e->moments)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an encoded picture");
    return plan_each_time(e, largest, err);
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
    e->whole = options->world <= 1;
    e->tokens = text->max_position_embeddings;
    e->channels = vae_get_config(options->vae)->latent_channels;
    e->caption_bytes = (size_t)e->tokens * (options->ids_only
                                                   ? sizeof(int32_t)
                                                   : (size_t)text->hidden_size * dtype_size(dtype));
    e->vae = with_kernels(PICTURE_NAME, &options->vae_weights, options->kernels);
    e->text_encoder = with_kernels(TEXT_NAME, &options->text_encoder_weights, options->kernels);
    if (list_captions(e, err) && measure_pictures(e, err)) {
        *out = e;
        return true;
    }
    encoded_destroy(e);
    return false;
}

void encoded_destroy(struct encoded *encoded) {
    if (!encoded)
        return;
    free(encoded->captions);
    free(encoded->moments);
    arena_destroy(encoded->arena);
    free(encoded);
}

struct encoded_memory encoded_get_memory(const struct encoded *e) {
    return (struct encoded_memory){
        .host = e->moments_bytes + (e->captions ? e->caption_count * sizeof(*e->captions) : 0),
        .device = e->each_time || encodes_captions(e) ? arena_reserved_bytes(e->arena) : 0,
        .disk = e->disk,
    };
}

bool encoded_uses_vae(const struct encoded *e) {
    return !e->full || e->each_time;
}

bool encoded_uses_text_encoder(const struct encoded *e) {
    return !e->full || encodes_captions(e);
}
