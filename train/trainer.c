#include "train/trainer.h"

#include "base/metrics.h"
#include "base/monotonic.h"
#include "train/data/python_random.h"
#include "train/optimizer/ema.h"
#include "train/optimizer/products.h"
#include "train/trainer_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- planning --- */

static struct learning_rate schedule_of(const struct train_config *c, int64_t steps) {
    struct learning_rate r = {
        .kind = (enum learning_rate_kind)c->lr_scheduler,
        .warmup_steps = c->lr_warmup_ratio > 0 ? (int64_t)(c->lr_warmup_ratio * (double)steps)
                                               : c->lr_warmup_steps,
        .total_steps = steps,
        .lr = c->learning_rate * parameters_rate_scale(c),
        .num_cycles = c->lr_scheduler == LEARNING_RATE_COSINE ? 0.5 : (double)c->lr_num_cycles,
        .power = c->lr_power,
        .end = c->lr_end,
        .start_factor = c->lr_start_factor,
        .eta_min = c->lr_eta_min,
    };
    struct error unlikely; /* the config was parsed with the same rules */
    if (r.kind == LEARNING_RATE_PIECEWISE_CONSTANT && c->lr_step_rules)
        (void)!learning_rate_rules_parse(c->lr_step_rules, &r, &unlikely);
    return r;
}

static struct loss_scaler scaler_of(const struct train_config *c) {
    if (c->mixed_precision != TRAIN_PRECISION_FP16)
        return loss_scaler_none();
    struct loss_scaler s = loss_scaler_torch();
    s.scale = c->loss_scale ? (double)c->loss_scale : ldexp(1, (int)c->initial_scale_power);
    s.dynamic = !c->loss_scale;
    s.growth_interval = c->loss_scale_window;
    s.hysteresis = (int)c->hysteresis;
    s.min_scale = c->min_loss_scale;
    return s;
}

static struct order_options order_options_of(const struct trainer *t) {
    return (struct order_options){
        .seed = (uint64_t)t->config->seed,
        .count = batch_samples(t->config, t->options.source),
        .batch_size = (int)t->config->train_batch_size,
        .world = 1,
        .buckets = t->buckets,
        .bucket_count = t->bucket_count,
    };
}

/* Numbers the buckets, one per picture size, in order of appearance. */
static bool number_buckets(struct trainer *t, struct error *err) {
    const struct train_source *s = t->options.source;
    const int64_t count = batch_samples(t->config, s);
    struct bucket *sizes = malloc((size_t)count * sizeof(*sizes));
    t->buckets = malloc((size_t)count * sizeof(*t->buckets));
    if (!sizes || !t->buckets) {
        free(sizes);
        return error_set(err, ERROR_NO_MEMORY, "no memory for %lld pictures", (long long)count);
    }
    for (int64_t i = 0; i < count; i++) {
        const struct bucket size = train_source_size(s, i % s->count);
        int b = 0;
        while (
            b < t->bucket_count && (sizes[b].height != size.height || sizes[b].width != size.width))
            b++;
        if (b == t->bucket_count)
            sizes[t->bucket_count++] = size;
        t->buckets[i] = b;
    }
    free(sizes);
    return true;
}

static void count_steps(struct trainer *t) {
    const struct train_config *c = t->config;
    const struct order_options order = order_options_of(t);
    t->batches = order_batches(&order);
    t->steps = c->max_train_steps ? c->max_train_steps
                                  : c->num_train_epochs * order_updates(t->batches,
                                                              (int)c->gradient_accumulation_steps);
}

static bool create_parameters(struct trainer *t, struct error *err) {
    const struct trainer_models *m = &t->options.models;
    const bool text = t->config->train_text_encoder;
    if (!train_config_changes_weights(t->config))
        return parameters_create(m->kernels, t->config, unet_weights(m->unet),
            text ? text_encoder_weights(m->text_encoder) : NULL, &t->generator,
            t->options.is_wanted, t->options.user, &t->parameters, err);
    const struct trained_model unet = { unet_weights(m->unet), m->unet_source };
    const struct trained_model encoder = { text_encoder_weights(m->text_encoder),
        m->text_encoder_source };
    if (t->config->method == TRAIN_LORA)
        return products_create(m->kernels, t->config, &unet, text ? &encoder : NULL, &t->generator,
            t->options.room, &t->parameters, err);
    return parameters_create_full(
        m->kernels, t->config, &unet, text ? &encoder : NULL, t->options.room, &t->parameters, err);
}

/* Allocates the average, which starts as a copy of the values. */
static bool make_average(struct trainer *t, struct error *err) {
    struct parameters *p = t->parameters;
    const size_t bytes = (size_t)p->floats * sizeof(float);
    t->average = malloc(bytes);
    if (!t->average)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %lld numbers", (long long)p->floats);
    float *values = parameters_gather(p, err);
    const float *host = values ? p->kernels->memory->view(values, bytes, err) : NULL;
    if (host)
        memcpy(t->average, host, bytes);
    return host && (values == p->values || parameters_clear_gradients(p, err));
}

/* Takes the memory to exchange gradients with other ranks. */
static bool open_round(struct trainer *t, struct error *err) {
    struct parameters *p = t->parameters;
    return !t->options.ranks ||
           round_open(&t->round, t->options.ranks, p->products ? p->products->whole : p, err);
}

static bool make_parameters(struct trainer *t, struct error *err) {
    noise_init(&t->generator, RNG_CPU, (uint64_t)t->config->seed);
    if (!create_parameters(t, err) || !open_round(t, err) ||
        !optimizer_init(&t->optimizer, t->config, t->parameters, err) ||
        (t->config->use_ema && !make_average(t, err)))
        return false;
    t->taped = calloc(parameters_taped_count(t->parameters), sizeof(*t->taped));
    if (!t->taped)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a list of parameters");
    t->dropout_seed = (uint64_t)t->config->seed;
    parameters_taped(
        t->parameters, (float)t->config->dropout, &t->dropout_seed, &t->passes, t->taped);
    return true;
}

static struct pass_options pass_options_of(
    const struct trainer *t, int64_t rows, int64_t height, int64_t width) {
    const struct trainer_models *m = &t->options.models;
    return (struct pass_options){
        .kernels = m->kernels,
        .unet = m->unet,
        .text_encoder = t->config->train_text_encoder ? m->text_encoder : NULL,
        .overlay = t->parameters->overlay,
        .parameters = t->taped,
        .parameter_count = (int)parameters_taped_count(t->parameters),
        .rows = rows,
        .height = height,
        .width = width,
        .tokens = text_encoder_get_config(m->text_encoder)->max_position_embeddings,
        .checkpointing = t->config->gradient_checkpointing,
    };
}

/* Makes a pass for batches of this size, unless the current pass has this size. */
static bool make_pass(
    struct trainer *t, int64_t rows, int64_t height, int64_t width, struct error *err) {
    if (t->pass && t->rows == rows && t->height == height && t->width == width)
        return true;
    pass_destroy(t->pass);
    t->pass = NULL;
    t->rows = rows;
    t->height = height;
    t->width = width;
    const struct pass_options options = pass_options_of(t, rows, height, width);
    return pass_create(&options, &t->pass, err);
}

/* Makes the pass of a full batch of the largest bucket, so that a job that does not fit is refused
 * now. */
static bool make_largest_pass(struct trainer *t, struct error *err) {
    const struct train_source *s = t->options.source;
    struct encoded_size largest = { 0 };
    for (int64_t i = 0; i < s->count; i++) {
        const struct encoded_size size = encoded_size(t->encoded, i);
        if (size.height * size.width > largest.height * largest.width)
            largest = size;
    }
    const int64_t samples = batch_samples(t->config, s), batch = t->config->train_batch_size;
    const int64_t rows = batch_rows_max(t->config);
    return make_pass(
        t, samples < batch ? rows / batch * samples : rows, largest.height, largest.width, err);
}

static bool make_encoded(struct trainer *t, struct error *err) {
    const struct train_config *c = t->config;
    const struct trainer_models *m = &t->options.models;
    const enum encoded_masks masks = c->masks == TRAIN_MASKS_FILES ? ENCODED_MASKS_FILES
                                                                   : ENCODED_MASKS_DRAWN;
    t->shuffle = (struct shuffle_options){ c->caption_separator, c->keep_tokens_separator,
        c->keep_tokens };
    return encoded_create(
        &(struct encoded_options){
            .kernels = m->kernels,
            .vae = m->vae,
            .text_encoder = m->text_encoder,
            .tokenizer = m->tokenizer,
            .vae_weights = m->vae_weights,
            .text_encoder_weights = m->text_encoder_weights,
            .source = t->options.source,
            .cache = t->options.cache,
            .masks = t->inpainting ? masks : ENCODED_MASKS_NONE,
            .flipped = c->random_flip,
            .ids_only = c->train_text_encoder,
            .center_crop = c->center_crop,
            .cut_once = c->cache_latents,
            .seed = (uint64_t)c->seed,
            .rank = agreement_rank(t->options.ranks),
            .world = agreement_world(t->options.ranks),
            .shuffle = c->shuffle_caption ? &t->shuffle : NULL,
            .load_models = t->options.load_encoders,
            .user = t->options.user,
        },
        &t->encoded, err);
}

static struct batch_options batch_options_of(const struct trainer *t) {
    const struct trainer_models *m = &t->options.models;
    return (struct batch_options){
        .config = t->config,
        .source = t->options.source,
        .encoded = t->encoded,
        .vae = m->vae,
        .alphas_cumprod = m->alphas_cumprod,
        .num_train_timesteps = m->num_train_timesteps,
        .v_prediction = train_config_predicts_v(t->config, m->v_prediction),
        .inpainting = t->inpainting,
    };
}

static bool make_batch(struct trainer *t, struct error *err) {
    const struct batch_options options = batch_options_of(t);
    return batch_create(&options, &t->pictures, err);
}

static bool make_held_out(struct trainer *t, struct error *err) {
    if (t->config->validation_share == 0)
        return true;
    if (t->options.source->held_out < 1)
        return error_set(err, ERROR_INVALID,
            "validation_share: there is one picture, and none beside it to be held out");
    const struct held_out_options options = { .batch = batch_options_of(t),
        .pass = pass_options_of(t, 0, 0, 0),
        .seed = (uint64_t)t->config->seed };
    return held_out_create(&options, &t->held_out, err);
}

/* Decides by the UNet's input channels whether this is inpainting. */
static bool find_inpainting(struct trainer *t, struct error *err) {
    const struct trainer_models *m = &t->options.models;
    const int in = unet_get_config(m->unet)->in_channels;
    const int latent = vae_get_config(m->vae)->latent_channels;
    t->inpainting = in == 2 * latent + 1;
    if (in != latent && !t->inpainting)
        return error_set(err, ERROR_UNSUPPORTED,
            "the UNet takes %d channels; %d (latents) or %d (for inpainting) can be trained", in,
            latent, 2 * latent + 1);
    return t->inpainting || t->config->masks != TRAIN_MASKS_FILES ||
           error_field(err, "masks", "files",
               "\"random\", which has no effect: this UNet takes %d channels, no masks", in);
}

static bool make_all(struct trainer *t, struct error *err) {
    const struct train_source *source = t->options.source;
    if (t->config->with_prior_preservation && source->class_count < 1)
        return error_set(err, ERROR_INVALID, "there is no picture of the class to train on");
    if (source->count < 1)
        return error_set(err, ERROR_INVALID, "there is no picture to train on");
    if (!find_inpainting(t, err) || !number_buckets(t, err) || !make_parameters(t, err) ||
        !make_encoded(t, err) || !make_batch(t, err) || !make_largest_pass(t, err) ||
        !make_held_out(t, err))
        return false;
    count_steps(t);
    t->schedule = schedule_of(t->config, t->steps);
    t->scaler = scaler_of(t->config);
    python_random_seed(&t->masks, (uint64_t)t->config->seed);
    t->resume_point = (struct resume_point){ .generator = t->generator, .masks = t->masks };
    return true;
}

bool trainer_create(
    const struct trainer_options *options, struct trainer **out, struct error *err) {
    *out = NULL;
    struct trainer *t = calloc(1, sizeof(*t));
    if (!t)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a training job");
    t->options = *options;
    t->multiplied_by = options->multiplied_by;
    t->config = options->config;
    if (make_all(t, err)) {
        *out = t;
        return true;
    }
    agreement_fail(options->ranks, err); /* ranks free what they share together */
    trainer_destroy(t);
    return false;
}

void trainer_destroy(struct trainer *trainer) {
    if (!trainer)
        return;
    held_out_destroy(trainer->held_out);
    pass_destroy(trainer->pass);
    order_finish(&trainer->order);
    optimizer_finish(&trainer->optimizer);
    round_close(&trainer->round);
    parameters_destroy(trainer->parameters);
    batch_destroy(trainer->pictures);
    encoded_destroy(trainer->encoded);
    free(trainer->average);
    free(trainer->taped);
    free(trainer->buckets);
    free(trainer);
}

/* --- a batch --- */

/* Returns the factor by which every row's loss is multiplied, besides its own weight. */
static double scale_of(const struct trainer *t) {
    return t->scaler.scale / (double)t->config->gradient_accumulation_steps;
}

/* Fetches one row per piece. */
static bool prepare_batch(struct trainer *t, bool *ready, struct error *err) {
    const int64_t first = t->order.starts[t->batch];
    if (!t->in_batch)
        batch_begin(t->pictures, t->epoch, t->order.items + first,
            t->order.starts[t->batch + 1] - first, &t->generator, &t->masks);
    t->in_batch = true;
    return batch_fetch(t->pictures, ready, err);
}

/* Returns whether this process computes a batch of an epoch. */
static bool is_own(const struct trainer *t, int64_t batch) {
    const struct agreement *ranks = t->options.ranks;
    return round_rank(batch, (int)t->config->gradient_accumulation_steps, agreement_world(ranks)) ==
           agreement_rank(ranks);
}

static bool syncs(const struct trainer *t, int64_t batch) {
    return order_syncs(batch, t->batches, (int)t->config->gradient_accumulation_steps);
}

/* Announces the next batch of this process, so that its pictures are decoded while the pass of this
 * batch runs. Batches of other ranks that come before it are skipped on copies of the generators.
 */
static bool expect_next_batch(struct trainer *t, struct error *err) {
    const struct order_options options = order_options_of(t);
    struct noise_generator generator = t->generator;
    struct mt19937 masks = t->masks;
    struct order next = { 0 };
    const struct order *order = &t->order;
    int64_t step = t->step, batch = t->batch;
    if (!encoded_waits_for_pixels(t->encoded))
        return true;
    for (;;) {
        step += syncs(t, batch);
        if (step == t->steps)
            break;
        if (++batch == t->batches) {
            if (order == &next) /* an epoch without a batch of this rank */
                break;
            if (!order_init(&options, t->epoch + 1, &next, err))
                return false;
            order = &next;
            batch = 0;
        }
        const int64_t *items = order->items + order->starts[batch];
        const int64_t count = order->starts[batch + 1] - order->starts[batch];
        if (is_own(t, batch)) {
            batch_expect(t->pictures, items, count, &generator);
            break;
        }
        batch_skip(t->pictures, items, count, &generator, &masks);
    }
    order_finish(&next);
    return true;
}

static bool begin_pass(struct trainer *t, struct error *err) {
    const struct batch_shape shape = batch_get_shape(t->pictures);
    const struct pass_batch batch = batch_take(t->pictures, &t->generator, scale_of(t));
    if (!make_pass(t, shape.rows, shape.height, shape.width, err))
        return false;
    memcpy(t->weights, batch.weights, (size_t)shape.rows * sizeof(*t->weights));
    t->in_pass = true;
    return pass_begin(t->pass, &batch, err) && expect_next_batch(t, err);
}

/* --- a step of the optimizer --- */

static bool average_values(struct trainer *t, struct error *err) {
    const struct train_config *c = t->config;
    struct parameters *p = t->parameters;
    const struct ema_options ema = {
        .decay = c->ema_decay,
        .min_decay = c->ema_min_decay,
        .update_after_step = c->ema_update_after_step,
        .use_ema_warmup = c->use_ema_warmup,
        .inv_gamma = c->ema_inv_gamma,
        .power = c->ema_power,
    };
    if (!t->average)
        return true;
    float *values = parameters_gather(p, err);
    const float *host =
        values ? p->kernels->memory->view(values, (size_t)p->floats * sizeof(float), err) : NULL;
    if (host)
        ema_update(ema_decay(&ema, t->step), host, t->average, p->floats);
    return host && (values == p->values || parameters_clear_gradients(p, err));
}

/* Returns the rate at a step of the schedule, for the report. */
static double rate_of(const struct trainer *t, double base, int64_t schedule_step) {
    return optimizer_rate(
        &t->optimizer, &t->schedule, base * parameters_rate_scale(t->config), schedule_step);
}

/* Lists the rates of parameter groups that have their own rate. */
static size_t group_rates(
    const struct trainer *t, int64_t schedule_step, struct train_rate rates[TRAIN_TEXTS_MAX]) {
    size_t count = 0;
    for (size_t i = 0; i < t->config->parameter_groups.count; i++) {
        const struct train_group *group = &t->config->parameter_groups.items[i];
        if (!isnan(group->learning_rate))
            rates[count++] = (struct train_rate){ group->pattern,
                rate_of(t, group->learning_rate, schedule_step) };
    }
    return count;
}

/* Returns whether losses are scaled, as fp16 needs it. A step that overflows is then skipped, and
 * training continues. */
static bool scales_loss(const struct trainer *t) {
    return t->config->mixed_precision == TRAIN_PRECISION_FP16;
}

/* Reports the step that was just attempted; its rates are those of the schedule's step
 * `schedule_step`. */
static void report(struct trainer *t, int64_t schedule_step, double grad_norm) {
    const struct train_config *c = t->config;
    const double now_s = monotonic_seconds(), took_s = now_s - t->step_began_s;
    const double text = c->text_encoder_learning_rate > 0 ? c->text_encoder_learning_rate
                                                          : c->learning_rate;
    struct train_rate rates[TRAIN_TEXTS_MAX];
    const struct train_record record = {
        .step = t->step,
        .epoch = (double)t->epoch + (double)(t->batch + 1) / (double)t->batches,
        .loss = t->loss / (double)t->loss_batches,
        .learning_rate = rate_of(t, c->learning_rate, schedule_step),
        .text_encoder_learning_rate = c->train_text_encoder ? rate_of(t, text, schedule_step) : NAN,
        .grad_norm = grad_norm,
        .loss_scale = scales_loss(t) ? t->scaler.scale : NAN,
        .images_per_s = (double)t->images / took_s,
        .eta_s = took_s * (double)(t->steps - t->step),
        .validation_loss = NAN,
        .rates = rates,
        .rate_count = group_rates(t, schedule_step, rates),
    };
    metric_add(METRIC_train_steps_total, 1);
    metric_observe(METRIC_train_step_seconds, took_s);
    if (isfinite(record.loss)) /* else it overflowed because of the loss scale */
        metric_set_real(METRIC_train_loss, record.loss);
    t->step_began_s = now_s;
    t->loss = 0;
    t->loss_batches = t->images = 0;
    if (t->options.stepped)
        t->options.stepped(t->options.user, &record);
}

static bool not_finite(const struct trainer *t, const char *what, struct error *err) {
    return error_set(err, ERROR_INVALID,
        "step %lld: %s not finite; a learning_rate below %g may help", (long long)t->step + 1, what,
        t->config->learning_rate);
}

static bool step_optimizer(struct trainer *t, struct error *err) {
    struct optimizer_report got;
    /* As in accelerate, the schedule does not advance when a step is skipped. */
    const int64_t schedule_step = t->optimizer.steps;
    if (!optimizer_step(&t->optimizer, &t->schedule, schedule_step, t->scaler.scale, &got, err))
        return false;
    if (!got.stepped && !scales_loss(t))
        return not_finite(
            t, got.broken ? "the gradients are" : "the norm of the gradients is", err);
    (void)loss_scaler_update(&t->scaler, !got.stepped);
    t->step++;
    if (!average_values(t, err))
        return false;
    report(t, schedule_step, got.grad_norm);
    return true;
}

/* --- pieces --- */

static bool begin_epoch(struct trainer *t, struct error *err) {
    const struct order_options options = order_options_of(t);
    order_finish(&t->order);
    t->order = (struct order){ 0 };
    return order_init(&options, t->epoch, &t->order, err);
}

static double loss_of_pass(const struct trainer *t) {
    double loss = 0;
    for (int64_t row = 0; row < t->rows; row++)
        loss += (double)t->weights[row] / scale_of(t) * (double)t->losses[row];
    return loss;
}

static bool add_loss(struct trainer *t, double loss, int64_t rows, struct error *err) {
    if (!isfinite(loss) && !scales_loss(t))
        return not_finite(t, "the loss is", err);
    t->loss += loss;
    t->loss_batches++;
    t->images += rows;
    return true;
}

/* Ends a batch of one of the ranks. At the end of a round, all ranks add the losses in the order of
 * the batches. */
static bool end_batch_of_ranks(struct trainer *t, struct error *err) {
    const int accumulation = (int)t->config->gradient_accumulation_steps;
    const int world = agreement_world(t->options.ranks);
    const int count = round_rank(t->batch, accumulation, world) + 1;
    if (is_own(t, t->batch)) {
        t->own_loss = loss_of_pass(t);
        t->own_rows = t->rows;
    }
    if (!round_ends(t->batch, t->batches, accumulation, world))
        return true;
    const bool ends_step = syncs(t, t->batch);
    if (!round_end(&t->round, count, t->own_loss, t->own_rows, ends_step, err) ||
        (!ends_step && !parameters_clear_gradients(t->parameters, err)))
        return false;
    t->own_rows = 0;
    bool ok = true;
    for (int rank = 0; ok && rank < count; rank++) {
        const struct agreement_word *word = &t->options.ranks->words[rank];
        ok = add_loss(t, word->loss, word->rows, err);
    }
    return ok;
}

static bool end_batch(struct trainer *t, struct error *err) {
    if (!(t->options.ranks ? end_batch_of_ranks(t, err)
                           : add_loss(t, loss_of_pass(t), t->rows, err)))
        return false;
    t->in_pass = t->in_batch = false;
    t->passes++;
    const bool stepped = syncs(t, t->batch);
    if (stepped && !step_optimizer(t, err))
        return false;
    if (++t->batch == t->batches) {
        t->batch = 0;
        t->epoch++;
        order_finish(&t->order);
        t->order = (struct order){ 0 };
    }
    if (stepped)
        t->resume_point = (struct resume_point){ t->generator, t->masks, t->epoch, t->batch,
            t->passes };
    if (t->step == t->steps)
        t->phase = TRAINER_DONE;
    return true;
}

/* Ends a batch that another rank computes: draws, and leaves, its random numbers. */
static bool skip_batch(struct trainer *t, struct error *err) {
    const int64_t first = t->order.starts[t->batch];
    batch_skip(t->pictures, t->order.items + first, t->order.starts[t->batch + 1] - first,
        &t->generator, &t->masks);
    return end_batch(t, err);
}

/* Fills the cache. Ranks first fill a share each; when all are done, each goes through the whole:
 * what others have encoded is found there if they share the folder. */
static bool encode(struct trainer *t, struct error *err) {
    bool done, over;
    if (!encoded_advance(t->encoded, &done, err) ||
        !agreement_wait(t->options.ranks, !done, &over, err))
        return false;
    if (over && !encoded_begin_rest(t->encoded)) {
        t->phase = TRAINER_STEPPING;
        t->step_began_s = monotonic_seconds();
    }
    return true;
}

/* Goes back to the state after the last optimizer step. Work done since then will be repeated. */
static bool begin_step_anew(struct trainer *t, struct error *err) {
    t->generator = t->resume_point.generator;
    t->masks = t->resume_point.masks;
    t->epoch = t->resume_point.epoch;
    t->batch = t->resume_point.batch;
    t->passes = t->resume_point.passes;
    order_finish(&t->order);
    t->order = (struct order){ 0 };
    t->in_batch = t->in_pass = t->gradients_lost = false;
    batch_expect_none(t->pictures);
    round_forget(&t->round);
    t->own_rows = 0;
    t->loss = 0;
    t->loss_batches = t->images = 0;
    return parameters_clear_gradients(t->parameters, err);
}

bool trainer_advance(struct trainer *t, struct error *err) {
    bool done = false;
    if (t->gradients_lost && !begin_step_anew(t, err))
        return false;
    switch (t->phase) {
    case TRAINER_ENCODING:
        return encode(t, err);
    case TRAINER_STEPPING:
        if (!t->order.items && !begin_epoch(t, err))
            return false;
        if (!is_own(t, t->batch))
            return skip_batch(t, err);
        if (!t->in_pass) {
            bool ready;
            if (!prepare_batch(t, &ready, err) || (ready && !begin_pass(t, err)))
                return false;
            if (!ready)
                return true;
        }
        if (!pass_advance(t->pass, &done, t->losses, err))
            return false;
        return !done || end_batch(t, err);
    default:
        return true;
    }
}

enum trainer_phase trainer_get_phase(const struct trainer *trainer) {
    return trainer->phase;
}

bool trainer_uses_vae(const struct trainer *trainer) {
    return encoded_uses_vae(trainer->encoded);
}

bool trainer_uses_text_encoder(const struct trainer *trainer) {
    return encoded_uses_text_encoder(trainer->encoded);
}

bool trainer_is_between_steps(const struct trainer *t) {
    return !t->in_batch && t->epoch == t->resume_point.epoch && t->batch == t->resume_point.batch;
}

int64_t trainer_step(const struct trainer *trainer) {
    return trainer->step;
}

int64_t trainer_steps(const struct trainer *trainer) {
    return trainer->steps;
}

struct trainer_memory trainer_get_memory(const struct trainer *trainer) {
    return (struct trainer_memory){
        .parameters = parameters_bytes(trainer->parameters),
        .optimizer = optimizer_measure(trainer->config, trainer->parameters),
        .pass = pass_bytes(trainer->pass) + held_out_bytes(trainer->held_out),
        .copies = parameters_host_bytes(trainer->parameters) +
                  (trainer->average ? (size_t)trainer->parameters->floats * sizeof(float) : 0),
        .exchange = round_bytes(&trainer->round),
        .encoded = encoded_get_memory(trainer->encoded),
    };
}

const struct parameters *trainer_parameters(const struct trainer *trainer) {
    return trainer->parameters;
}

float *trainer_gather(struct trainer *t, struct error *err) {
    struct parameters *p = t->parameters;
    t->gradients_lost = t->gradients_lost || !p->values;
    return parameters_gather(p, err);
}

const float *trainer_values(struct trainer *t, struct error *err) {
    const struct parameters *p = t->parameters;
    if (t->average && t->step)
        return t->average;
    const float *values = trainer_gather(t, err);
    return values ? p->kernels->memory->view(values, (size_t)p->floats * sizeof(float), err) : NULL;
}

bool trainer_values_agree(struct trainer *t, struct error *err) {
    const size_t bytes = (size_t)t->parameters->floats * sizeof(float);
    char text[DIGEST_TEXT_BYTES];
    if (!t->options.ranks)
        return true;
    const float *values = trainer_gather(t, err);
    const void *seen = values ? t->parameters->kernels->memory->view(values, bytes, err) : NULL;
    if (!seen)
        return false;
    const struct digest digest = sha256_of(seen, bytes);
    digest_to_text(&digest, text);
    return agreement_compare(t->options.ranks, "the digest of the trained values", text, err);
}

bool trainer_swap_average(struct trainer *t, struct error *err) {
    const struct device_memory *memory = t->parameters->kernels->memory;
    const size_t bytes = (size_t)t->parameters->floats * sizeof(float);
    if (!t->average || !t->step)
        return true;
    float *copy = malloc(bytes), *values = copy ? trainer_gather(t, err) : NULL;
    const float *seen = values ? memory->view(values, bytes, err) : NULL;
    bool ok = copy || error_set(err, ERROR_NO_MEMORY, "no memory for %zu bytes", bytes);
    if (seen)
        memcpy(copy, seen, bytes);
    ok = ok && seen && memory->upload(values, t->average, bytes, err) &&
         parameters_scatter(t->parameters, err);
    if (ok)
        memcpy(t->average, copy, bytes);
    free(copy);
    return ok;
}

void trainer_restart_clock(struct trainer *t) {
    t->step_began_s = monotonic_seconds();
}

int64_t trainer_epoch_steps(const struct trainer *t) {
    return order_updates(t->batches, (int)t->config->gradient_accumulation_steps);
}

bool trainer_holds_out(const struct trainer *t) {
    return t->held_out;
}

bool trainer_measure(struct trainer *t, bool *done, double *loss, struct error *err) {
    return held_out_advance(t->held_out, done, loss, err);
}
