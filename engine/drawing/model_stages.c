#include "engine/drawing/model_stages.h"

#include "base/limits.h"
#include "base/log.h"
#include "base/monotonic.h"
#include "engine/drawing/picture_check.h"
#include "engine/drawing/text_stage.h"
#include "engine/drawing/vae_stage.h"
#include "kernels/compute/overlay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SIZES_MAX 6   /* latent sizes with a slab, in use or idle */
#define NEEDS_MAX 128 /* remembered memory needs */

/* The memory for all images of one latent size. */
struct slab {
    struct arena *arena; /* owned; NULL: the slab is free */
    struct sampler sampler;
    const struct resolved_request
        *requests[SAMPLER_MAX_IMAGES]; /* of the image in each row; NULL: none */
    const struct image *images[SAMPLER_MAX_IMAGES];
    int indices[SAMPLER_MAX_IMAGES]; /* of these images in their requests */
    int64_t used;                    /* clock of the last use */
};

/* How many bytes of the common arena one kind of call takes, and its flops. */
enum part {
    PART_TEXTS = 1,
    PART_STEP = 2,
    PART_DECODE = 4,
    PART_ENCODE = 8,
    PART_CHECK = 16,
    PART_DECODE_TILE = 32,
    PART_ENCODE_TILE = 64,
};
struct need {
    enum part part; /* 0: free */
    int64_t height, width;
    int rows, tokens; /* tokens: most tokens of a row's text */
    size_t bytes;
    double flops;
};

struct model_stages {
    struct stage_models models;
    struct slab slabs[SIZES_MAX];
    struct need needs[NEEDS_MAX];
    int next_need;            /* the entry to overwrite next */
    struct text_cache *cache; /* owned; NULL: allocating it failed */
    int64_t clock;
    /* The previous UNet call and the memory it needs. call_count is 0 after an image joined or
     * left. */
    const struct image *call[UNET_CALL_MAX_IMAGES];
    int call_count;
    size_t call_bytes;
};

static struct compute compute_of(const struct model_stages *m) {
    return (struct compute){
        .kernels = m->models.kernels,
        .arena = m->models.arena,
        .recordings = m->models.recordings,
    };
}

/* Ends a unit of work: empties the common arena and returns the result. */
static bool finish(struct compute *c, struct error *err) {
    arena_release(c->arena, 0);
    if (compute_ok(c))
        return true;
    *err = c->error;
    return false;
}

static int call_images(void *user, const struct resolved_request *request) {
    const struct model_stages *m = user;
    const struct kernels *kernels = m->models.kernels;
    if (m->models.max_rows)
        return m->models.max_rows < UNET_CALL_MAX_IMAGES ? m->models.max_rows
                                                         : UNET_CALL_MAX_IMAGES;
    int64_t fit = kernels->batch_px / ((int64_t)request->asked.width * request->asked.height);
    const int limits[] = { kernels->batch_images, UNET_CALL_MAX_IMAGES };
    for (int i = 0; i < 2; i++)
        if (fit > limits[i])
            fit = limits[i];
    return fit < 1 ? 1 : (int)fit;
}

static int longest_text(const struct resolved_request *r) {
    return r->chunks * r->tokens;
}

static void fill_image(const struct resolved_request *r, int index, float *latents,
    const float *moments, struct image *image) {
    const struct generate_request *asked = &r->asked;
    size_t at = (size_t)index * (size_t)r->latent_channels * (size_t)r->latent_height *
                (size_t)r->latent_width;
    *image = (struct image){
        .plan = r->plan,
        .init_latents = asked->init_latents.values ? asked->init_latents.values + at : NULL,
        .moments = moments,
        .keeps = r->source && r->source->mask.pixels && !r->source->inpaints,
        .guided = r->guided,
        .guidance_scale = asked->guidance_scale,
        .guidance_rescale = asked->guidance_rescale,
        .prediction = r->scheduler.values.prediction_type,
        .overlay = adapter_set_unet(r->adapters),
        .parts = resolved_request_texts(r, index).count,
        .latents = latents,
    };
    for (int text = 0; text <= image->parts; text++) {
        image->text_variants[text] = -1;
        image->text_tokens[text] = text ? resolved_request_texts(r, index).tokens
                                        : r->texts[0].tokens;
        if (text)
            image->part_weights[text - 1] = text_stage_text(r, index, text)->guidance;
    }
    noise_init(&image->generator, asked->rng, resolved_request_seed(r, index));
}

/* --- the models --- */

static struct text_stage text_stage_of(const struct model_stages *m) {
    return (struct text_stage){
        .encoder = m->models.text_encoder, .unet = m->models.unet, .cache = m->cache
    };
}

/* A picture that is no larger than a tile is handled whole even if `tiled` is true. A picture that
 * is encoded may have another size than those that are drawn. */
static struct vae_stage vae_stage_of(
    const struct model_stages *m, const struct resolved_request *r, bool encodes, bool tiled) {
    const struct picture *init = encodes && r->source ? &r->source->init : NULL;
    return (struct vae_stage){
        .vae = m->models.vae,
        .height = init ? init->height : r->asked.height,
        .width = init ? init->width : r->asked.width,
        .tiled = tiled,
    };
}

/* Whether the VAE handles the request's pictures in tiles. CHOICE_AUTO: only if memory is too short
 * for the whole picture. */
static enum choice tiling_of(
    const struct model_stages *m, const struct resolved_request *r, bool encodes) {
    const struct vae_stage whole = vae_stage_of(m, r, encodes, false);
    if (!vae_stage_has_tiles(m->models.vae, whole.height, whole.width))
        return CHOICE_OFF;
    return r->asked.vae_tiling != CHOICE_AUTO ? r->asked.vae_tiling : m->models.vae_tiling;
}

/* --- memory needs --- */

/* A dry run of some parts of a drawing, with a sampler of its own. */
struct rehearsal {
    const struct model_stages *m;
    const struct resolved_request *request;
    unsigned parts;
    struct image images[UNET_CALL_MAX_IMAGES]; /* of one UNet call */
    int count, tokens;
    int index;            /* of the first image in its request */
    size_t sampler_bytes; /* output */
    double flops;         /* output */
};

static void rehearse(struct compute *c, void *user) {
    struct rehearsal *r = user;
    struct sampler_size size = {
        .height = r->request->latent_height,
        .width = r->request->latent_width,
        .images = r->count,
        .call_images = r->count,
        .parts = 1,
        .tokens = r->tokens,
    };
    for (int i = 0; i < r->count; i++) {
        size.parts = r->images[i].parts > size.parts ? r->images[i].parts : size.parts;
        size.call_rows += image_rows(&r->images[i]);
    }
    struct sampler sampler;
    struct image *images[UNET_CALL_MAX_IMAGES];
    sampler_init(c, &sampler, r->m->models.unet, &size);
    r->sampler_bytes = arena_mark(c->arena);
    c->flops = 0;
    for (int i = 0; i < r->count && compute_ok(c); i++) {
        images[i] = &r->images[i];
        sampler_place(&sampler, images[i]);
    }
    if (r->parts & PART_TEXTS) {
        const struct text_stage texts = text_stage_of(r->m);
        text_stage_encode(c, &texts, r->request, r->index, images[0], NULL);
    }
    if (r->parts & PART_STEP) {
        sampler_start(c, &sampler, images, r->count);
        sampler_tick(c, &sampler, images, r->count);
        sampler_finish(c, &sampler, images, r->count);
    }
    for (int tiled = 0; tiled <= 1; tiled++) {
        const struct vae_stage decoder = vae_stage_of(r->m, r->request, false, tiled);
        const struct vae_stage encoder = vae_stage_of(r->m, r->request, true, tiled);
        if (r->parts & (tiled ? PART_DECODE_TILE : PART_DECODE))
            vae_stage_draw(c, &decoder, NULL, NULL);
        if (r->parts & (tiled ? PART_ENCODE_TILE : PART_ENCODE))
            vae_stage_encode(c, &encoder, NULL, NULL);
    }
    if (r->parts & PART_CHECK)
        picture_check_run(c, r->m->models.safety_checker, NULL, NULL);
    r->flops = c->flops;
}

static bool measure_need(
    struct model_stages *m, struct rehearsal *r, struct need *need, struct error *err) {
    struct compute c = compute_of(m);
    size_t peak;
    r->m = m;
    r->parts = need->part;
    if (!compute_measure(&c, rehearse, r, &peak, err))
        return false;
    need->bytes = peak - r->sampler_bytes;
    need->flops = r->flops;
    return true;
}

static struct need *find_need(struct model_stages *m, const struct need *like) {
    for (int i = 0; i < NEEDS_MAX; i++) {
        struct need *n = &m->needs[i];
        if (n->part == like->part && n->height == like->height && n->width == like->width &&
            n->rows == like->rows && n->tokens == like->tokens)
            return n;
    }
    return NULL;
}

/* Returns the memory need of one part for the images in the rehearsal. Measures it unless it is
 * remembered. If the images have overlays or their texts have vectors, the need depends on these,
 * so it is measured each time. */
static bool get_need(struct model_stages *m, enum part part, struct rehearsal *r, struct need *out,
    struct error *err) {
    *out = (struct need){
        .part = part, .height = r->request->latent_height, .width = r->request->latent_width
    };
    if ((part == PART_ENCODE || part == PART_ENCODE_TILE) && r->request->source) {
        out->height = r->request->source->latent_height;
        out->width = r->request->source->latent_width;
    }
    bool overlays = part == PART_TEXTS &&
                    (adapter_set_text_encoder(r->request->adapters) || r->request->vectors);
    const bool steps = part == PART_TEXTS || part == PART_STEP;
    for (int i = 0; i < r->count && steps; i++) {
        out->rows += image_rows(&r->images[i]);
        overlays = overlays || r->images[i].overlay;
    }
    out->tokens = steps ? r->tokens : 0;
    const struct need *found = overlays ? NULL : find_need(m, out);
    if (found) {
        *out = *found;
        return true;
    }
    if (!measure_need(m, r, out, err))
        return false;
    if (overlays)
        return true;
    m->needs[m->next_need] = *out;
    m->next_need = (m->next_need + 1) % NEEDS_MAX;
    return true;
}

/* Returns the image of the request that takes the most rows in a call. */
static int widest_image(const struct resolved_request *r) {
    int widest = 0;
    for (int i = 1; i < r->images; i++)
        if (resolved_request_rows(r, i) > resolved_request_rows(r, widest))
            widest = i;
    return widest;
}

/* Prepares a rehearsal of the request's widest image. */
static void rehearse_one(const struct resolved_request *request, struct rehearsal *r) {
    *r = (struct rehearsal){ .request = request,
        .count = 1,
        .tokens = longest_text(request),
        .index = widest_image(request) };
    fill_image(request, r->index, NULL, NULL, &r->images[0]);
    /* Measures with the longest text, which needs the most memory. */
    for (int text = 0; text <= r->images[0].parts; text++)
        r->images[0].text_tokens[text] = r->tokens;
}

static bool measure(
    void *user, const struct resolved_request *request, struct stage_work *out, struct error *err) {
    const struct model_stages *m = user;
    struct rehearsal r;
    struct need step, decode, encode = { 0 }, check = { 0 };
    rehearse_one(request, &r);
    r.images[0].overlay = NULL;
    if (!get_need(user, PART_STEP, &r, &step, err) ||
        !get_need(user, PART_DECODE, &r, &decode, err) ||
        (request->source && !get_need(user, PART_ENCODE, &r, &encode, err)) ||
        (m->models.safety_checker && !get_need(user, PART_CHECK, &r, &check, err)))
        return false;
    *out = (struct stage_work){ .evaluation = step.flops, .decode = decode.flops + check.flops };
    if (request->source)
        out->encode = encode.flops * source_encode_count(request->source);
    return true;
}

static int rows_in(const struct image *images, int count) {
    int rows = 0;
    for (int i = 0; i < count; i++)
        rows += image_rows(&images[i]);
    return rows;
}

bool model_stages_note(
    struct model_stages *m, const struct resolved_request *request, struct error *err) {
    struct compute c = compute_of(m);
    struct rehearsal r = { .m = m,
        .request = request,
        .tokens = longest_text(request),
        .parts = PART_TEXTS | PART_STEP | (request->asked.latent_output ? 0 : PART_DECODE) |
                 (request->source ? PART_ENCODE : 0) |
                 (m->models.safety_checker && !request->asked.latent_output ? PART_CHECK : 0) };
    r.count = call_images(m, request);
    r.count = r.count < request->images ? r.count : request->images;
    for (int i = 0; i < r.count; i++)
        fill_image(request, i, NULL, NULL, &r.images[i]);
    while (r.count > 1 && rows_in(r.images, r.count) > UNET_CALL_MAX_ROWS)
        r.count--;
    size_t peak;
    c.note = true;
    return compute_measure(&c, rehearse, &r, &peak, err);
}

/* --- memory --- */

static int images_in(const struct slab *slab) {
    int count = 0;
    for (int row = 0; row < SAMPLER_MAX_IMAGES; row++)
        count += slab->images[row] != NULL;
    return count;
}

static void drop_slab(struct slab *slab) {
    arena_destroy(slab->arena);
    *slab = (struct slab){ 0 };
}

/* Frees the least recently used sampler that has no images. Returns false if there is none. */
static bool drop_idle(struct model_stages *m) {
    struct slab *oldest = NULL;
    for (int i = 0; i < SIZES_MAX; i++) {
        struct slab *slab = &m->slabs[i];
        if (slab->arena && !images_in(slab) && (!oldest || slab->used < oldest->used))
            oldest = slab;
    }
    if (oldest)
        drop_slab(oldest);
    return oldest;
}

static bool is_busy(const struct model_stages *m) {
    for (int i = 0; i < SIZES_MAX; i++)
        if (images_in(&m->slabs[i]))
            return true;
    return false;
}

/* Clears the recordings before the arena grows. They hold addresses in the arena's old block, and
 * they take memory that may be needed. */
static bool reserve_once(struct model_stages *m, size_t bytes, struct error *err) {
    if (bytes > arena_reserved_bytes(m->models.arena))
        recordings_clear(m->models.recordings);
    return arena_reserve(m->models.arena, bytes, err);
}

static bool reserve(struct model_stages *m, size_t bytes, struct error *err) {
    while (!reserve_once(m, bytes, err))
        if (err->code != ERROR_NO_MEMORY || !drop_idle(m))
            return false;
    return true;
}

/* Reserves memory to encode or decode one picture with the VAE, whole or in tiles. */
static bool reserve_vae(struct model_stages *m, const struct resolved_request *request,
    bool encodes, bool *tiled, struct error *err) {
    struct rehearsal r;
    struct need need;
    const enum choice choice = tiling_of(m, request, encodes);
    const enum part whole = encodes ? PART_ENCODE : PART_DECODE;
    const enum part tile = encodes ? PART_ENCODE_TILE : PART_DECODE_TILE;
    rehearse_one(request, &r);
    *tiled = choice == CHOICE_ON;
    if (!get_need(m, *tiled ? tile : whole, &r, &need, err))
        return false;
    if (reserve(m, need.bytes, err))
        return true;
    if (choice != CHOICE_AUTO || err->code != ERROR_NO_MEMORY)
        return false;
    const struct picture *init = encodes ? &request->source->init : NULL;
    log_warning("a %dx%d %s in tiles: %s", init ? init->width : request->asked.width,
        init ? init->height : request->asked.height, init ? "init_image" : "picture", err->message);
    *err = (struct error){ 0 };
    *tiled = true;
    return get_need(m, tile, &r, &need, err) && reserve(m, need.bytes, err);
}

/* Reserves memory for every part of drawing one picture alone. */
static bool reserve_one(
    struct model_stages *m, const struct resolved_request *request, struct error *err) {
    struct rehearsal r;
    rehearse_one(request, &r);
    size_t most = 0;
    const enum part parts[] = { PART_TEXTS, PART_STEP, PART_CHECK };
    bool tiled;
    if (!request->asked.latent_output && !reserve_vae(m, request, false, &tiled, err))
        return false;
    for (int i = 0; i < 3; i++) {
        const enum part part = parts[i];
        if (part == PART_CHECK && (request->asked.latent_output || !m->models.safety_checker))
            continue;
        struct need need;
        if (!get_need(m, part, &r, &need, err))
            return false;
        most = need.bytes > most ? need.bytes : most;
    }
    return reserve(m, most, err);
}

/* Call after an error. Where memory is short, names the picture that needs it. */
static bool for_size(const struct resolved_request *r, struct error *err) {
    const struct error why = *err;
    return why.code != ERROR_NO_MEMORY ||
           error_set(err, why.code, "a %dx%d picture: %.400s: ask for a smaller one",
               r->asked.width, r->asked.height, why.message);
}

/* As for_size, while init_image is encoded: it may have a size of its own. */
static bool for_init_image(const struct resolved_request *r, struct error *err) {
    const struct error why = *err;
    return why.code != ERROR_NO_MEMORY ||
           error_set(err, why.code, "init_image of %dx%d px: %.400s: send a smaller one",
               r->source->init.width, r->source->init.height, why.message);
}

bool model_stages_plan(
    struct model_stages *m, const struct resolved_request *request, struct error *err) {
    if (reserve_one(m, request, err))
        return true;
    for_size(request, err);
    return false;
}

struct sampler_making {
    struct sampler *sampler;
    const struct unet *unet;
    struct sampler_size size;
};

static void make_sampler(struct compute *c, void *user) {
    const struct sampler_making *making = user;
    sampler_init(c, making->sampler, making->unet, &making->size);
}

/* Creates a sampler in a new arena. */
static bool create_sampler(struct model_stages *m, const struct sampler_size *size,
    struct arena **arena, struct sampler *out, struct error *err) {
    struct sampler_making making = { out, m->models.unet, *size };
    struct compute c = compute_of(m);
    if (!arena_create(m->models.kernels->memory, arena, err))
        return false;
    c.arena = *arena;
    c.recordings = NULL;
    bool ok = compute_plan(&c, make_sampler, &making, err);
    if (ok) {
        make_sampler(&c, &making);
        ok = compute_ok(&c);
        if (!ok)
            *err = c.error;
    }
    if (!ok) {
        arena_destroy(*arena);
        *arena = NULL;
    }
    return ok;
}

static struct slab *find_slab(struct model_stages *m, const struct resolved_request *r) {
    for (int i = 0; i < SIZES_MAX; i++) {
        struct slab *slab = &m->slabs[i];
        if (slab->arena && slab->sampler.size.height == r->latent_height &&
            slab->sampler.size.width == r->latent_width)
            return slab;
    }
    return NULL;
}

static struct slab *free_slab(struct model_stages *m) {
    for (;;) {
        for (int i = 0; i < SIZES_MAX; i++)
            if (!m->slabs[i].arena)
                return &m->slabs[i];
        if (!drop_idle(m))
            return NULL;
    }
}

/* Returns how many images of one size may be in progress at once: those of one call, and as many
 * again that wait for a later call. */
static int images_max(struct model_stages *m, const struct resolved_request *r) {
    const int wanted = 2 * call_images(m, r);
    return wanted < 4 ? 4 : wanted > SAMPLER_MAX_IMAGES ? SAMPLER_MAX_IMAGES : wanted;
}

/* Returns the size of a sampler for `images` images of the request's size with texts of up to
 * `tokens` tokens and prompts of up to `parts` parts. The rows of a call are those that
 * policy_choose allows. */
static struct sampler_size size_for(
    struct model_stages *m, const struct resolved_request *r, int images, int tokens, int parts) {
    const int call = call_images(m, r), all = images * (1 + parts);
    const int most = 2 * call > 1 + parts ? 2 * call : 1 + parts;
    return (struct sampler_size){
        .height = r->latent_height,
        .width = r->latent_width,
        .images = images,
        .call_images = call < images ? call : images,
        .call_rows = all < most ? all : most,
        .parts = parts,
        .tokens = tokens,
    };
}

static int most_parts(const struct resolved_request *r) {
    return resolved_request_texts(r, widest_image(r)).count;
}

static bool create_slab(struct model_stages *m, const struct resolved_request *r, struct slab **out,
    struct error *err) {
    const int call = call_images(m, r);
    const struct sampler_size size = size_for(
        m, r, r->images < call ? r->images : call, longest_text(r), most_parts(r));
    struct slab *slab = free_slab(m);
    if (!slab)
        return error_set(
            err, ERROR_NO_MEMORY, "pictures of %d different sizes are in progress", SIZES_MAX);
    while (!create_sampler(m, &size, &slab->arena, &slab->sampler, err))
        if (err->code != ERROR_NO_MEMORY || !drop_idle(m))
            return false;
    *out = slab;
    return true;
}

/* Returns the slab for the request's size; NULL if there is none yet. An idle slab that is too
 * small for the request's texts is dropped: it is made anew for the request's images alone. */
static struct slab *slab_for(struct model_stages *m, const struct resolved_request *r) {
    struct slab *slab = find_slab(m, r);
    if (!slab || images_in(slab) ||
        (slab->sampler.size.tokens >= longest_text(r) && slab->sampler.size.parts >= most_parts(r)))
        return slab;
    drop_slab(slab);
    m->call_count = 0;
    return NULL;
}

/* Moves a slab's images to a sampler of another size in a new arena. */
static bool resize_slab(
    struct model_stages *m, struct slab *slab, const struct sampler_size *size, struct error *err) {
    struct slab grown = *slab;
    while (!create_sampler(m, size, &grown.arena, &grown.sampler, err))
        if (err->code != ERROR_NO_MEMORY || !drop_idle(m))
            return false;
    struct compute c = compute_of(m);
    sampler_move(&c, &grown.sampler, &slab->sampler);
    compute_synchronize(&c);
    if (!finish(&c, err)) {
        arena_destroy(grown.arena);
        return false;
    }
    arena_destroy(slab->arena);
    m->call_count = 0; /* the images' memory has moved */
    *slab = grown;     /* images keep pointing to slab->sampler */
    return true;
}

/* Doubles the slab's rows, up to images_max. */
static bool grow_slab(struct model_stages *m, struct slab *slab, const struct resolved_request *r,
    struct error *err) {
    const int most = images_max(m, r), images = 2 * slab->sampler.size.images;
    const struct sampler_size size = size_for(
        m, r, images < most ? images : most, slab->sampler.size.tokens, slab->sampler.size.parts);
    if (size.images <= slab->sampler.size.images)
        return error_set(
            err, ERROR_NO_MEMORY, "%d pictures of this size are in progress", size.images);
    return resize_slab(m, slab, &size, err);
}

/* Enlarges the slab's text memory if the request's texts do not fit. */
static bool lengthen_slab(struct model_stages *m, struct slab *slab,
    const struct resolved_request *r, struct error *err) {
    const struct sampler_size *now = &slab->sampler.size;
    const int tokens = longest_text(r), parts = most_parts(r);
    if (now->tokens >= tokens && now->parts >= parts)
        return true;
    const struct sampler_size size = size_for(m, r, now->images,
        tokens > now->tokens ? tokens : now->tokens, parts > now->parts ? parts : now->parts);
    return resize_slab(m, slab, &size, err);
}

/* --- the functions of the table --- */

static struct slab *slab_of(struct model_stages *m, const struct image *image) {
    struct slab *slab = m->slabs;
    while (image->sampler != &slab->sampler)
        slab++;
    return slab;
}

static void leave(void *user, struct image *image) {
    struct model_stages *m = user;
    struct slab *slab = slab_of(m, image);
    m->call_count = 0;
    slab->images[image->row] = NULL;
    slab->requests[image->row] = NULL;
    sampler_leave(image);
    brownian_destroy(image->brownian);
    image->brownian = NULL;
}

/* Finds another image of the same request and prompt, so that its encoded texts can be copied. */
static const struct image *find_like(const struct slab *slab, const struct image *image) {
    const struct resolved_request *r = slab->requests[image->row];
    const int first = resolved_request_texts(r, slab->indices[image->row]).first;
    for (int row = 0; row < SAMPLER_MAX_IMAGES; row++)
        if (row != image->row && slab->images[row] && slab->requests[row] == r &&
            resolved_request_texts(r, slab->indices[row]).first == first)
            return slab->images[row];
    return NULL;
}

static bool place_image(struct model_stages *m, const struct resolved_request *r, int index,
    struct image *image, struct error *err) {
    if (!reserve_one(m, r, err))
        return false;
    struct slab *slab = slab_for(m, r); /* not earlier: reserve_one may drop idle slabs */
    if ((!slab && !create_slab(m, r, &slab, err)) || !lengthen_slab(m, slab, r, err))
        return false;
    fill_image(r, index, image->latents, image->moments, image);
    if (!sampler_place(&slab->sampler, image) &&
        (!grow_slab(m, slab, r, err) || !sampler_place(&slab->sampler, image)))
        return false;
    m->call_count = 0;
    slab->used = ++m->clock;
    slab->images[image->row] = image;
    slab->requests[image->row] = r;
    slab->indices[image->row] = index;
    return true;
}

/* Creates the Brownian motion of an image whose plan needs it. Called early, so that its noise is
 * drawn while the texts are encoded. */
static bool create_motion(
    const struct resolved_request *r, int index, struct image *image, struct error *err) {
    const int64_t count = (int64_t)r->latent_channels * r->latent_height * r->latent_width;
    return !scheduler_plan_is_brownian(r->plan) ||
           brownian_create(r->plan, r->asked.rng, resolved_request_seed(r, index), count, true,
               &image->brownian, err);
}

/* Draws a first noise that a subseed or another size varies. The noise is in image->latents, which
 * is only scratch until the drawing is done. */
static bool draw_varied(const struct resolved_request *r, const struct noise_variation *variation,
    struct image *image, struct error *err) {
    const struct latent_shape shape = { r->latent_channels, r->latent_height, r->latent_width };
    noise_draw(&image->generator, image->latents, shape.channels * shape.height * shape.width);
    image->init_latents = image->latents;
    return noise_vary(variation, &shape, image->latents, err);
}

/* Makes the image's start from the request's pictures, if the request has any, or else its first
 * noise, if the request varies it. */
static bool create_start(const struct model_stages *m, const struct resolved_request *r, int index,
    struct image *image, struct image_start *out, struct error *err) {
    const struct noise_variation variation = resolved_request_variation(r, index);
    *out = (struct image_start){ 0 };
    if (!r->source)
        return (variation.strength == 0 && variation.width == 0) ||
               draw_varied(r, &variation, image, err);
    const struct image_start_options options = {
        .source = r->source,
        .moments = image->moments,
        .shape = { r->latent_channels, r->latent_height, r->latent_width },
        .variation = variation,
        .scaling_factor = vae_get_config(m->models.vae)->scaling_factor,
        .signal = r->plan->evaluations[0].signal,
        .noise = r->plan->evaluations[0].noise,
        .init_noise_sigma = r->plan->init_noise_sigma,
    };
    image->start = out;
    return image_start_create(&options, &image->generator, out, err);
}

static bool start_image(struct model_stages *m, const struct resolved_request *r, int index,
    struct image *image, struct error *err) {
    const struct slab *slab = slab_of(m, image);
    struct compute c = compute_of(m);
    const struct text_stage texts = text_stage_of(m);
    struct image_start start;
    if (!create_motion(r, index, image, err) || !create_start(m, r, index, image, &start, err))
        return false;
    text_stage_encode(&c, &texts, r, index, image, find_like(slab, image));
    sampler_start(&c, image->sampler, &image, 1);
    image->start = NULL;
    image->init_latents = NULL;
    image_start_finish(&start);
    return finish(&c, err);
}

static enum stage_begun begin(void *user, const struct resolved_request *request, int index,
    struct image *image, struct error *err) {
    struct model_stages *m = user;
    if (place_image(m, request, index, image, err)) {
        if (start_image(m, request, index, image, err))
            return STAGE_BEGUN;
        leave(m, image);
    }
    if (err->code == ERROR_NO_MEMORY && is_busy(m))
        return STAGE_NO_ROOM;
    for_size(request, err);
    return STAGE_FAILED;
}

static bool is_call_before(const struct model_stages *m, struct image *const *images, int count) {
    return count == m->call_count &&
           memcmp(m->call, images, sizeof(struct image *) * (size_t)count) == 0;
}

/* Measures the call once for each overlay, as if every row used that overlay. The largest result is
 * enough for any mixture of the overlays. */
static bool measure_call(struct model_stages *m, struct image *const *images, int count,
    size_t *bytes, struct error *err) {
    const struct slab *slab = slab_of(m, images[0]);
    struct rehearsal r = { .request = slab->requests[images[0]->row],
        .count = count,
        .tokens = slab->sampler.size.tokens };
    struct need need;
    *bytes = 0;
    for (int i = 0; i < count; i++) {
        bool seen = false;
        for (int k = 0; k < i; k++)
            seen = seen || images[k]->overlay == images[i]->overlay;
        if (seen)
            continue;
        for (int k = 0; k < count; k++) {
            r.images[k] = *images[k];
            r.images[k].overlay = images[i]->overlay;
        }
        if (!get_need(m, PART_STEP, &r, &need, err))
            return false;
        *bytes = need.bytes > *bytes ? need.bytes : *bytes;
    }
    return true;
}

static bool ready(void *user, struct image *const *images, int count, struct error *err) {
    struct model_stages *m = user;
    if (!is_call_before(m, images, count)) {
        size_t bytes;
        if (!measure_call(m, images, count, &bytes, err))
            return false;
        memcpy(m->call, images, sizeof(struct image *) * (size_t)count);
        m->call_count = count;
        m->call_bytes = bytes;
    }
    return reserve(m, m->call_bytes, err);
}

static bool renew_texts(void *user, struct image *image, double *seconds, struct error *err) {
    struct model_stages *m = user;
    const struct slab *slab = slab_of(m, image);
    const struct text_stage texts = text_stage_of(m);
    const struct resolved_request *r = slab->requests[image->row];
    const int index = slab->indices[image->row];
    struct compute c = compute_of(m);
    *seconds = 0;
    if (!text_stage_is_due(r, index, image))
        return true;
    compute_synchronize(&c); /* the UNet call before may still run */
    const double before = monotonic_seconds();
    text_stage_encode(&c, &texts, r, index, image, find_like(slab, image));
    *seconds = monotonic_seconds() - before;
    return finish(&c, err);
}

static int by_row(const void *a, const void *b) {
    const struct image *x = *(struct image *const *)a, *y = *(struct image *const *)b;
    return x->row - y->row;
}

/* Sorts the images by row, so that one operation handles neighbouring rows. An image that stays in
 * the calls also keeps its row of `kv`, and its texts are not copied again. */
static bool step(void *user, struct image *const *images, int count, struct error *err) {
    struct model_stages *m = user;
    struct compute c = compute_of(m);
    struct image *sorted[UNET_CALL_MAX_IMAGES];
    memcpy(sorted, images, sizeof(struct image *) * (size_t)count);
    qsort(sorted, (size_t)count, sizeof(struct image *), by_row);
    sampler_tick(&c, sorted[0]->sampler, sorted, count);
    return finish(&c, err);
}

static bool take(void *user, struct image *image, struct error *err) {
    struct model_stages *m = user;
    struct slab *slab = slab_of(m, image);
    struct compute c = compute_of(m);
    sampler_finish(&c, &slab->sampler, &image, 1);
    leave(m, image);
    if (!finish(&c, err))
        return false;
    return image->is_finite ||
           error_set(err, ERROR_INTERNAL,
               "the latents are not finite: the model's output overflowed or is damaged");
}

static bool decode(void *user, const struct resolved_request *request, const float *latents,
    uint8_t *out, bool *tiled, struct error *err) {
    struct model_stages *m = user;
    if (!reserve_vae(m, request, false, tiled, err))
        return false;
    struct compute c = compute_of(m);
    const struct vae_stage vae = vae_stage_of(m, request, false, *tiled);
    vae_stage_draw(&c, &vae, latents, out);
    return finish(&c, err);
}

static bool check(void *user, const struct resolved_request *request, uint8_t *pixels,
    bool *flagged, struct error *err) {
    struct model_stages *m = user;
    struct rehearsal r;
    struct need need;
    struct safety_scores scores = { 0 };
    rehearse_one(request, &r);
    if (!get_need(m, PART_CHECK, &r, &need, err) || !reserve(m, need.bytes, err))
        return false;
    struct compute c = compute_of(m);
    const bool ok = picture_check(&c, m->models.safety_checker, pixels, request->asked.width,
        request->asked.height, &scores, err);
    *flagged = scores.flagged;
    if (ok)
        return finish(&c, err);
    arena_release(c.arena, 0);
    return false;
}

static bool encode(
    void *user, const struct resolved_request *request, float *moments, struct error *err) {
    struct model_stages *m = user;
    const size_t values = source_moments(request->source, request->latent_channels);
    bool tiled;
    if (!reserve_vae(m, request, true, &tiled, err))
        return for_init_image(request, err), false;
    const struct vae_stage vae = vae_stage_of(m, request, true, tiled);
    float *pixels = malloc((size_t)(vae.width * vae.height) * 3 * sizeof(*pixels));
    if (!pixels)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a picture");
    struct compute c = compute_of(m);
    for (int picture = 0; picture < SOURCE_PICTURES; picture++) {
        if (!source_encodes(request->source, (enum source_picture)picture))
            continue;
        source_fill(request->source, (enum source_picture)picture, pixels);
        vae_stage_encode(&c, &vae, pixels, moments);
        moments += values;
    }
    free(pixels);
    return finish(&c, err);
}

static bool colours(void *user, struct latent_colours *out, struct error *err) {
    struct model_stages *m = user;
    const struct vae_config *config = vae_get_config(m->models.vae);
    const int side = LATENT_COLOURS_PX / vae_scale(m->models.vae);
    const struct resolved_request square = {
        .asked = { .width = LATENT_COLOURS_PX, .height = LATENT_COLOURS_PX },
        .latent_channels = config->latent_channels,
        .latent_height = side,
        .latent_width = side,
    };
    struct rehearsal r = {
        .request = &square, .count = 1, .tokens = 1, .images = { { .parts = 1 } }
    };
    struct need need;
    if (!get_need(m, PART_ENCODE, &r, &need, err) || !reserve(m, need.bytes, err))
        return false;
    const size_t pixels = (size_t)LATENT_COLOURS_PX * LATENT_COLOURS_PX;
    const size_t moments = (size_t)side * (size_t)side * 2 * (size_t)config->latent_channels;
    float *picture = malloc((3 * pixels + moments) * sizeof(*picture));
    if (!picture)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a picture");
    latent_colours_fill(picture);
    struct compute c = compute_of(m);
    const struct vae_stage vae = vae_stage_of(m, &square, true, false);
    vae_stage_encode(&c, &vae, picture, picture + 3 * pixels);
    const bool ok = finish(&c, err) &&
                    latent_colours_fit(picture + 3 * pixels, side, 2 * config->latent_channels,
                        config->latent_channels, config->scaling_factor, out, err);
    free(picture);
    return ok;
}

struct stages model_stages_table(struct model_stages *m) {
    return (struct stages){
        .user = m,
        .measure = measure,
        .call_images = call_images,
        .encode = encode,
        .begin = begin,
        .ready = ready,
        .renew_texts = renew_texts,
        .step = step,
        .take = take,
        .leave = leave,
        .colours = colours,
        .decode = decode,
        .check = m->models.safety_checker ? check : NULL,
    };
}

bool model_stages_create(
    const struct stage_models *models, struct model_stages **out, struct error *err) {
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a pipeline");
    (*out)->models = *models;
    (*out)->cache = text_cache_create(TEXT_CACHE_BYTES);
    return true;
}

void model_stages_destroy(struct model_stages *m) {
    for (int i = 0; m && i < SIZES_MAX; i++)
        drop_slab(&m->slabs[i]);
    if (m)
        text_cache_destroy(m->cache);
    free(m);
}
