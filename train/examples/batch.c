#include "train/examples/batch.h"

#include "train/data/python_random.h"
#include "train/examples/draws.h"
#include "train/loss.h"

#include <stdlib.h>
#include <string.h>

/* The random choices for one picture. */
struct row {
    int64_t item;
    int caption;
    struct crop crop;
    struct mask_shape mask;
    uint64_t shuffle; /* the key of its caption */
};

struct batch {
    struct batch_options options;
    int64_t channels;            /* of latents */
    struct row *rows, *expected; /* owned: [batch_rows_max] */
    int64_t count, fetched;
    int64_t told, told_next; /* entries announced: of `rows`, of `expected` */
    bool plain;
    /* owned; host memory for a full batch: */
    float *mean, *log_variance, *noisy, *target, *work, *weights;
    float *masked_mean, *masked_log_variance, *masked, *mask, *input; /* inpainting, else NULL */
    char *context, *no_context;
    int32_t *timesteps;
    bool *dropped;
};

/* --- creating and destroying --- */

int64_t batch_rows_max(const struct train_config *config) {
    return config->train_batch_size * (config->with_prior_preservation ? 2 : 1);
}

int64_t batch_samples(const struct train_config *config, const struct train_source *source) {
    return config->with_prior_preservation && source->class_count > source->count
               ? source->class_count
               : source->count;
}

/* Checks the largest batch that the samples of an epoch can fill. */
static bool check_rows(const struct batch_options *o, struct error *err) {
    const struct train_config *c = o->config;
    const int64_t samples = batch_samples(c, o->source), batch = c->train_batch_size;
    const int64_t most = TRAIN_PASS_ROWS_MAX / (c->with_prior_preservation ? 2 : 1);
    return (samples < batch ? samples : batch) <= most ||
           error_set(err, ERROR_INVALID, "train_batch_size is %lld; at most %lld%s is possible",
               (long long)batch, (long long)most,
               c->with_prior_preservation ? " with with_prior_preservation" : "");
}

static size_t largest_picture(const struct batch_options *o) {
    int64_t most = 0;
    for (int64_t i = 0; i < train_source_all(o->source); i++) {
        const struct encoded_size size = encoded_size(o->encoded, i);
        most = size.height * size.width > most ? size.height * size.width : most;
    }
    return (size_t)most;
}

/* Allocates `count` floats; sets *ok to false if memory is short. */
static float *room(size_t count, bool *ok) {
    float *floats = malloc(count * sizeof(*floats));
    *ok = *ok && floats;
    return floats;
}

bool batch_create(const struct batch_options *options, struct batch **out, struct error *err) {
    *out = NULL;
    if (!check_rows(options, err))
        return false;
    struct batch *b = calloc(1, sizeof(*b));
    const size_t rows = (size_t)batch_rows_max(options->config);
    const size_t pixels = rows * largest_picture(options);
    bool ok = b;
    if (ok) {
        b->options = *options;
        b->channels = vae_get_config(options->vae)->latent_channels;
        const size_t floats = pixels * (size_t)b->channels;
        float **const all[] = { &b->mean, &b->log_variance, &b->noisy, &b->target, &b->work };
        float **const inpainting[] = { &b->masked_mean, &b->masked_log_variance, &b->masked };
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
            *all[i] = room(floats, &ok);
        for (size_t i = 0; options->inpainting && i < sizeof(inpainting) / sizeof(*inpainting); i++)
            *inpainting[i] = room(floats, &ok);
        if (options->inpainting) {
            b->mask = room(pixels, &ok);
            b->input = room(2 * floats + pixels, &ok);
        }
        b->weights = room(rows, &ok);
        b->rows = calloc(rows, sizeof(*b->rows));
        b->expected = calloc(rows, sizeof(*b->expected));
        b->context = malloc(rows * encoded_caption_bytes(options->encoded));
        b->no_context = malloc(encoded_caption_bytes(options->encoded));
        b->timesteps = calloc(rows, sizeof(*b->timesteps));
        b->dropped = calloc(rows, sizeof(*b->dropped));
        ok = ok && b->rows && b->expected && b->context && b->no_context && b->timesteps &&
             b->dropped;
    }
    if (ok) {
        *out = b;
        return true;
    }
    batch_destroy(b);
    return error_set(err, ERROR_NO_MEMORY, "no memory for a batch of %zu", rows);
}

void batch_destroy(struct batch *b) {
    if (!b)
        return;
    void *const all[] = { b->rows, b->expected, b->mean, b->log_variance, b->noisy, b->target,
        b->work, b->weights, b->masked_mean, b->masked_log_variance, b->masked, b->mask, b->input,
        b->context, b->no_context, b->timesteps, b->dropped };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
    free(b);
}

/* --- drawing the rows --- */

static struct row draw_row(const struct batch *b, int64_t item, struct mt19937 *mt) {
    const struct train_source *s = b->options.source;
    struct row row = { .item = item, .crop = encoded_crop(b->options.encoded, item) };
    if (encoded_is_cut_anew(b->options.encoded, item)) {
        const struct placement *p = s->placement(s->user, item);
        row.crop.top = (int)(mt19937_next(mt) % (uint32_t)placement_tops(p));
        row.crop.left = (int)(mt19937_next(mt) % (uint32_t)placement_lefts(p));
    }
    row.crop.flip = b->options.config->random_flip && draws_uniform(mt) < 0.5f;
    const int captions = s->captions(s->user, item);
    if (captions > 1)
        row.caption = (int)(draws_uniform(mt) * (float)captions);
    return row;
}

static void draw_masks(
    const struct batch *b, struct row *rows, int64_t count, struct mt19937 *masks) {
    if (!b->options.inpainting || b->options.config->masks != TRAIN_MASKS_RANDOM)
        return;
    for (int64_t i = 0; i < count; i++) {
        const struct bucket px = train_source_size(b->options.source, rows[i].item);
        rows[i].mask = mask_draw(masks, px.width, px.height);
    }
}

/* Draws the rows of the samples. Returns the number of rows. */
static int64_t draw_rows(const struct batch *b, const int64_t *samples, int64_t count,
    struct mt19937 *mt, struct row *rows) {
    const struct train_source *s = b->options.source;
    const bool prior = b->options.config->with_prior_preservation;
    for (int64_t i = 0; i < count; i++) {
        rows[i] = draw_row(b, samples[i] % s->count, mt);
        if (prior)
            rows[count + i] = draw_row(b, s->count + s->held_out + samples[i] % s->class_count, mt);
    }
    return prior ? 2 * count : count;
}

/* Announces the pictures that batch_fetch will ask for, from entry `told` on, as long as there is
 * room. Each row has two entries, the picture and the masked picture. Returns the first entry that
 * was not announced. */
static int64_t expect_rows(
    const struct batch *b, const struct row *rows, int64_t count, int64_t told) {
    const bool drawn = b->options.config->masks == TRAIN_MASKS_RANDOM;
    for (; told < 2 * count; told++) {
        const struct row *row = &rows[told / 2];
        const bool masked = told % 2;
        if ((!masked || b->options.inpainting) &&
            !encoded_expect(b->options.encoded, row->item, &row->crop, masked, drawn && masked))
            break;
    }
    return told;
}

void batch_expect(struct batch *b, const int64_t *samples, int64_t count,
    const struct noise_generator *generator) {
    struct mt19937 mt = generator->mt;
    const int64_t rows = draw_rows(b, samples, count, &mt, b->expected);
    b->told_next = expect_rows(b, b->expected, rows, 0);
}

void batch_expect_none(struct batch *b) {
    b->told_next = 0;
}

/* Continues with the announcements for this batch, unless they were forgotten because something
 * else was asked for meanwhile. */
static void begin_expecting(struct batch *b) {
    b->told = encoded_waits_for_pixels(b->options.encoded) ? 0 : b->told_next;
    b->told_next = 0;
}

void batch_begin(struct batch *b, int64_t epoch, const int64_t *samples, int64_t count,
    struct noise_generator *generator, struct mt19937 *masks) {
    b->count = draw_rows(b, samples, count, &generator->mt, b->rows);
    for (int64_t i = 0; i < count; i++)
        b->rows[i].shuffle = shuffle_key((uint64_t)b->options.config->seed, epoch, samples[i]);
    b->fetched = 0;
    b->plain = false;
    draw_masks(b, b->rows, b->count, masks);
    begin_expecting(b);
}

void batch_begin_plain(
    struct batch *b, const int64_t *items, int64_t count, struct mt19937 *masks) {
    const struct train_source *s = b->options.source;
    b->count = count;
    b->fetched = 0;
    b->plain = true;
    for (int64_t i = 0; i < count; i++)
        b->rows[i] = (struct row){ .item = items[i],
            .crop = placement_centre(s->placement(s->user, items[i])) };
    draw_masks(b, b->rows, b->count, masks);
    begin_expecting(b);
}

/* --- rows --- */

static bool is_shuffled(const struct batch *b, const struct row *row) {
    return b->options.config->shuffle_caption && !b->plain && row->item < b->options.source->count;
}

bool batch_fetch(struct batch *b, bool *done, struct error *err) {
    struct encoded *e = b->options.encoded;
    const struct row *row = &b->rows[b->fetched];
    const struct encoded_size size = encoded_size(e, row->item);
    const int64_t pixels = b->fetched * size.height * size.width, floats = pixels * b->channels;
    const size_t text_bytes = encoded_caption_bytes(e);
    const bool drawn = b->options.config->masks == TRAIN_MASKS_RANDOM;
    b->told = expect_rows(
        b, b->rows, b->count, b->told < 2 * b->fetched ? 2 * b->fetched : b->told);
    if (!encoded_picture(
            e, row->item, &row->crop, b->mean + floats, b->log_variance + floats, err) ||
        !encoded_caption(e, row->item, row->caption, is_shuffled(b, row) ? &row->shuffle : NULL,
            b->context + (size_t)b->fetched * text_bytes, err))
        return false;
    if (b->options.inpainting &&
        !encoded_masked_picture(e, row->item, &row->crop, drawn ? &row->mask : NULL,
            b->masked_mean + floats, b->masked_log_variance + floats, b->mask + pixels, err))
        return false;
    if (b->options.config->caption_dropout > 0 && b->fetched == 0 &&
        !encoded_no_caption(e, b->no_context, err))
        return false;
    *done = ++b->fetched == b->count;
    return true;
}

/* All rows of a batch have one size. */
struct batch_shape batch_get_shape(const struct batch *b) {
    const struct encoded_size size = encoded_size(b->options.encoded, b->rows[0].item);
    return (struct batch_shape){ b->count, size.height, size.width };
}

/* --- the input of a pass --- */

/* [rows][height][width][noisy.. | mask | masked..] */
static void join_input(struct batch *b, int64_t pixels) {
    const size_t channels = (size_t)b->channels;
    float *to = b->input;
    for (int64_t i = 0; i < pixels; i++) {
        memcpy(to, b->noisy + (size_t)i * channels, channels * sizeof(*to));
        to[channels] = b->mask[i];
        memcpy(to + channels + 1, b->masked + (size_t)i * channels, channels * sizeof(*to));
        to += 2 * channels + 1;
    }
}

static struct draws_options draws_options_of(const struct batch *b, bool plain) {
    const struct batch_options *o = &b->options;
    const struct train_config *c = o->config;
    return (struct draws_options){
        .noise_offset = (float)c->noise_offset,
        .input_perturbation = (float)c->input_perturbation,
        .caption_dropout = plain ? 0 : (float)c->caption_dropout,
        .v_prediction = o->v_prediction,
        .num_train_timesteps = o->num_train_timesteps,
        .alphas_cumprod = o->alphas_cumprod,
        .scaling_factor = vae_get_config(o->vae)->scaling_factor,
    };
}

static void weigh_rows(struct batch *b, double scale) {
    const struct train_config *c = b->options.config;
    loss_weights(&(struct loss_options){ .v_prediction = b->options.v_prediction,
                     .snr_gamma = c->snr_gamma,
                     .prior = c->with_prior_preservation && !b->plain,
                     .prior_loss_weight = c->prior_loss_weight },
        b->options.alphas_cumprod, b->timesteps, (int)b->count, b->weights);
    for (int64_t row = 0; row < b->count; row++)
        b->weights[row] *= (float)scale;
}

struct pass_batch batch_take(struct batch *b, struct noise_generator *generator, double scale) {
    const struct batch_options *o = &b->options;
    const struct batch_shape shape = batch_get_shape(b);
    const struct draws_options draws = draws_options_of(b, b->plain);
    draws_take(generator, &draws,
        &(struct draws_batch){
            .shape = { shape.rows, shape.height, shape.width, b->channels },
            .mean = b->mean,
            .log_variance = b->log_variance,
            .masked_mean = b->masked_mean,
            .masked_log_variance = b->masked_log_variance,
            .masked = b->masked,
            .noisy = b->noisy,
            .target = b->target,
            .timesteps = b->timesteps,
            .dropped = b->dropped,
            .work = b->work,
        });
    const size_t text_bytes = encoded_caption_bytes(o->encoded);
    for (int64_t row = 0; row < shape.rows; row++)
        if (b->dropped[row])
            memcpy(b->context + (size_t)row * text_bytes, b->no_context, text_bytes);
    if (o->inpainting)
        join_input(b, shape.rows * shape.height * shape.width);
    weigh_rows(b, scale);
    return (struct pass_batch){ o->inpainting ? b->input : b->noisy, b->target, b->timesteps,
        b->context, b->weights };
}

/* --- batches of other ranks --- */

void batch_skip(const struct batch *b, const int64_t *samples, int64_t count,
    struct noise_generator *generator, struct mt19937 *masks) {
    struct row rows[TRAIN_PASS_ROWS_MAX];
    const int64_t row_count = draw_rows(b, samples, count, &generator->mt, rows);
    draw_masks(b, rows, row_count, masks);
    const struct encoded_size size = encoded_size(b->options.encoded, rows[0].item);
    const struct draws_options draws = draws_options_of(b, false);
    draws_skip(generator, &draws,
        &(struct draws_shape){ row_count, size.height, size.width, b->channels },
        b->options.inpainting);
}
