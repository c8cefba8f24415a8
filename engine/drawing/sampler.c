#include "engine/drawing/sampler.h"

#include "kernels/compute/overlay.h"
#include "kernels/compute/recordings.h"
#include "kernels/random/philox.h"

#include <math.h>
#include <string.h>

_Static_assert(IMAGE_TEXTS_MAX <= UNET_CALL_MAX_ROWS, "an image fits a call");

/* One UNet call and its images. The call has `rows` rows: first the unconditional ones, then the
 * conditional ones. Both are in the order of the images. */
struct tick {
    struct compute *c;
    struct sampler *s;
    struct image *const *images;
    int count, rows;
    int conditional[UNET_CALL_MAX_IMAGES]; /* the first conditional row of each image */
};

static struct tick tick_of(
    struct compute *c, struct sampler *s, struct image *const *images, int count) {
    struct tick t = { .c = c, .s = s, .images = images, .count = count };
    for (int i = 0; i < count; i++)
        t.rows += images[i]->guided;
    for (int i = 0; i < count; i++) {
        t.conditional[i] = t.rows;
        t.rows += images[i]->parts;
    }
    return t;
}

static const struct scheduler_evaluation *evaluation_of(const struct image *image) {
    return &image->plan->evaluations[image->evaluations];
}

/* Consecutive images of a call whose rows of terms are consecutive too. One operation handles them
 * all, with a coefficient for each image. An image whose prompt has several parts is a run of its
 * own. */
struct run {
    int first, count;         /* indices into tick.images */
    int unconditional;        /* the first image's unconditional row, if guided */
    int row;                  /* row of terms of the first image */
    const struct image *head; /* the first image */
};

typedef bool are_alike(const struct image *a, const struct image *b);

/* Replaces `run` by the next run; a zeroed one gives the first. Returns false after the last. */
static bool next_run(const struct tick *t, are_alike *alike, struct run *run) {
    int first = run->first + run->count, unconditional = run->unconditional;
    if (run->count && run->head->guided)
        unconditional += run->count;
    if (first == t->count)
        return false;
    struct image *const *images = t->images + first;
    int count = 1;
    while (first + count < t->count && images[count]->row == images[0]->row + count &&
           images[count]->guided == images[0]->guided && images[count]->parts == 1 &&
           images[0]->parts == 1 && alike(images[0], images[count]))
        count++;
    *run = (struct run){ first, count, unconditional, images[0]->row, images[0] };
    return true;
}

static struct tensor term_rows(const struct sampler *s, int term, const struct run *run) {
    return tensor_rows(&s->terms[term], run->row, run->count);
}

static struct tensor call_rows(const struct tensor *t, const struct run *run) {
    return tensor_rows(t, run->first, run->count);
}

static struct tensor unconditional_rows(const struct tensor *t, const struct run *run) {
    return tensor_rows(t, run->unconditional, run->count);
}

/* Returns the rows of part number `part` of the run's prompts. */
static struct tensor conditional_rows(
    const struct tick *t, const struct tensor *x, const struct run *run, int part) {
    return tensor_rows(x, t->conditional[run->first] + part, run->count);
}

/* y[image] = factors[image] * x[image] */
static void scale(
    struct compute *c, const struct tensor *x, const float *factors, struct tensor *y) {
    op_combine(
        c, &(struct combine_args){ .terms = { x }, .count = 1, .coefficients = factors, .y = y });
}

/* y[image] = x[image] / divisors[image] */
static void divide(
    struct compute *c, const struct tensor *x, const float *divisors, struct tensor *y) {
    float ones[UNET_CALL_MAX_IMAGES];
    for (int i = 0; i < UNET_CALL_MAX_IMAGES; i++)
        ones[i] = 1;
    op_combine(
        c, &(struct combine_args){
               .terms = { x }, .count = 1, .coefficients = ones, .divisors = divisors, .y = y });
}

/* Whether the UNet also takes the mask and the masked picture as input. */
static bool inpaints(const struct sampler *s) {
    const struct unet_config *config = unet_get_config(s->unet);
    return config->in_channels != config->out_channels;
}

static bool check_count(struct compute *c, const struct sampler *s, int count) {
    if (compute_ok(c) && (count < 1 || count > s->size.call_images))
        error_set(&c->error, ERROR_INTERNAL, "%d images in one UNet call, 1 to %d fit", count,
            s->size.call_images);
    return compute_ok(c);
}

/* --- noise --- */

static bool start_alike(const struct image *a, const struct image *b) {
    return a->generator.kind == b->generator.kind && !a->init_latents == !b->init_latents &&
           !a->start == !b->start;
}

/* Fills the run's rows of `drawn` on the device, with the numbers of torch's CUDA generator. */
static void draw_on_device(const struct tick *t, const struct run *run) {
    struct tensor drawn = call_rows(&t->s->drawn, run);
    uint64_t seeds[UNET_CALL_MAX_IMAGES], offsets[UNET_CALL_MAX_IMAGES];
    for (int i = 0; i < run->count; i++) {
        seeds[i] = t->images[run->first + i]->generator.seed;
        offsets[i] = t->images[run->first + i]->generator.offset;
    }
    op_noise(t->c, &(struct noise_args){ .seeds = seeds, .offsets = offsets, .y = &drawn });
    int64_t elements = tensor_elements(&drawn) / run->count;
    for (int i = 0; !t->c->dry_run && i < run->count; i++)
        t->images[run->first + i]->generator.offset += (uint64_t)philox_rounds(elements);
}

/* Fills the run's rows of `drawn` from the host's generators or from the Brownian motions.
 * image->latents holds the numbers until they are uploaded. */
static void draw_on_host(const struct tick *t, const struct run *run, bool brownian) {
    for (int i = run->first; i < run->first + run->count; i++) {
        struct image *image = t->images[i];
        struct tensor drawn = tensor_rows(&t->s->drawn, i, 1);
        if (compute_ok(t->c) && !t->c->dry_run && brownian)
            brownian_draw(image->brownian, image->latents);
        else if (compute_ok(t->c) && !t->c->dry_run)
            noise_draw(&image->generator, image->latents, tensor_elements(&drawn));
        compute_upload(t->c, image->latents, &drawn);
    }
}

static void upload_given(const struct tick *t, const struct run *run) {
    for (int i = run->first; i < run->first + run->count; i++) {
        struct tensor drawn = tensor_rows(&t->s->drawn, i, 1);
        compute_upload(t->c, t->images[i]->init_latents, &drawn);
    }
}

/* Fills the run's rows of `noise`. Before the first step, an image with init_latents gets these.
 * Otherwise each image draws from its own generator, in torch's order. */
static void make_noise(const struct tick *t, const struct run *run, bool first_step) {
    bool brownian = !first_step && evaluation_is_brownian(evaluation_of(run->head));
    if (first_step && run->head->init_latents)
        upload_given(t, run);
    else if (run->head->generator.kind == RNG_CUDA && !brownian)
        draw_on_device(t, run);
    else
        draw_on_host(t, run, brownian);
    struct tensor drawn = call_rows(&t->s->drawn, run), noise = call_rows(&t->s->noise, run);
    op_convert(
        t->c, &(struct convert_args){ .x = &drawn, .layout = LAYOUT_NCHW_TO_NHWC, .y = &noise });
}

/* --- a tick --- */

static bool always_alike(const struct image *a, const struct image *b) {
    (void)a, (void)b;
    return true;
}

static bool never_alike(const struct image *a, const struct image *b) {
    (void)a, (void)b;
    return false;
}

/* Fills the run's rows of `input`, from row `first` on: sample / divisors, followed by the mask and
 * the masked picture if the UNet takes them. */
static void show(const struct tick *t, const struct run *run, const float *divisors, int first) {
    const struct sampler *s = t->s;
    const struct tensor sample = term_rows(s, TERM_SAMPLE, run);
    struct tensor input = tensor_rows(&s->input, first, run->count);
    if (!inpaints(s)) {
        divide(t->c, &sample, divisors, &input);
        return;
    }
    struct tensor scaled = tensor_rows(&s->scaled, first, run->count);
    const struct tensor shown = tensor_rows(&s->shown, run->row, run->count);
    divide(t->c, &sample, divisors, &scaled);
    op_concat(t->c, &(struct concat_args){ &scaled, &shown, &input });
}

/* Fills `input` with the samples, divided as each image's scheduler requires. */
static void fill_input(const struct tick *t) {
    float divisors[UNET_CALL_MAX_IMAGES];
    for (struct run run = { 0 }; next_run(t, always_alike, &run);) {
        for (int i = 0; i < run.count; i++)
            divisors[i] = evaluation_of(t->images[run.first + i])->input_divisor;
        if (run.head->guided)
            show(t, &run, divisors, run.unconditional);
        for (int part = 0; part < run.head->parts; part++)
            show(t, &run, divisors, t->conditional[run.first] + part);
    }
}

/* Returns the row of text_kv that holds text number `text` of the image in row `row`. */
static int text_place(const struct sampler *s, int row, int text) {
    return row * (1 + s->size.parts) + text;
}

/* A recording device keeps one recording for each number of rows. To keep few of them, an odd
 * number above 6 is rounded up by a padding row whose result is not read. */
static int recorded_rows(const struct compute *c, int rows) {
    return c->kernels->recorder && rows > 6 ? (rows + 1) / 2 * 2 : rows;
}

/* Returns the first `tokens` tokens of a row of text_kv or kv. */
static struct tensor text_row(const struct tensor *kv, int row, int tokens) {
    struct tensor text = tensor_rows(kv, row, 1);
    text.shape[1] = tokens;
    return text;
}

static void copy(struct compute *c, const struct tensor *from, struct tensor to) {
    op_convert(c, &(struct convert_args){ .x = from, .layout = LAYOUT_SAME, .y = &to });
}

static void copy_row(
    struct compute *c, const struct tensor *from, int from_row, struct tensor *to, int to_row) {
    const struct tensor x = tensor_rows(from, from_row, 1);
    copy(c, &x, tensor_rows(to, to_row, 1));
}

/* Fills `kv` with the text of each row, and `lengths`. A text that is already there from the
 * previous tick is not copied again. */
static void fill_kv(const struct tick *t) {
    struct sampler *s = t->s;
    int texts[UNET_CALL_MAX_ROWS], unconditional = 0;
    int32_t lengths[UNET_CALL_MAX_ROWS];
    for (int i = 0; i < t->count; i++) {
        const struct image *image = t->images[i];
        for (int text = image->guided ? 0 : 1; text <= image->parts; text++) {
            const int row = text ? t->conditional[i] + text - 1 : unconditional++;
            texts[row] = text_place(s, image->row, text);
            lengths[row] = image->text_tokens[text];
        }
    }
    for (int row = 0; row < t->rows; row++) {
        if (s->kv_texts[row] == texts[row])
            continue;
        const struct tensor text = text_row(&s->text_kv, texts[row], lengths[row]);
        copy(t->c, &text, text_row(&s->kv, row, lengths[row]));
        s->kv_texts[row] = texts[row];
    }
    const int rows = recorded_rows(t->c, t->rows);
    if (rows > t->rows)
        lengths[t->rows] = 1; /* the padding row of recorded_rows */
    const struct tensor uploaded = tensor_rows(&s->lengths, 0, rows);
    compute_upload(t->c, lengths, &uploaded);
}

/* The changes that each row of a call makes to the UNet's weights. */
struct call_overlay {
    const struct row_overlay *rows[UNET_CALL_MAX_ROWS];
    struct overlay overlay;
};

/* Returns the value for c->overlay that covers the first `count` rows; NULL if no row changes any
 * weight. */
static const struct overlay *use_overlay(struct call_overlay *o, int count) {
    bool any = false;
    for (int row = 0; row < count; row++)
        any = any || o->rows[row];
    o->overlay = (struct overlay){ o->rows, count };
    return any ? &o->overlay : NULL;
}

static const struct overlay *overlay_of(const struct tick *t, int rows, struct call_overlay *o) {
    int unconditional = 0;
    memset(o->rows, 0, sizeof(o->rows));
    for (int i = 0; i < t->count; i++) {
        for (int part = 0; part < t->images[i]->parts; part++)
            o->rows[t->conditional[i] + part] = t->images[i]->overlay;
        if (t->images[i]->guided)
            o->rows[unconditional++] = t->images[i]->overlay;
    }
    return use_overlay(o, rows);
}

/* Encodes the timesteps of the image's next evaluations into its SAMPLER_TIME_LINES lines. A dry
 * run encodes all lines, so that its memory is enough for any schedule. */
static void encode_timesteps(const struct tick *t, const struct image *image) {
    struct sampler *s = t->s;
    float timesteps[SAMPLER_TIME_LINES] = { 0 };
    const int left = image->plan->count - image->evaluations;
    const int made = left < SAMPLER_TIME_LINES ? left : SAMPLER_TIME_LINES;
    const int lines = t->c->dry_run ? SAMPLER_TIME_LINES : made;
    for (int i = 0; i < made; i++)
        timesteps[i] = evaluation_of(image)[i].timestep;
    const struct tensor uploaded = tensor_rows(&s->timesteps, 0, lines);
    compute_upload(t->c, timesteps, &uploaded);
    struct tensor table = tensor_rows(&s->time_table, image->row * SAMPLER_TIME_LINES, lines);
    struct call_overlay overlay;
    _Static_assert(SAMPLER_TIME_LINES <= UNET_CALL_MAX_ROWS, "a line takes a row of the call");
    for (int i = 0; i < lines; i++)
        overlay.rows[i] = image->overlay;
    t->c->overlay = use_overlay(&overlay, lines);
    unet_encode_timesteps(s->unet, t->c, &uploaded, &table);
    t->c->overlay = NULL;
    if (compute_ok(t->c))
        s->time_first[image->row] = image->evaluations;
}

/* Returns the line of time_table for the image's next evaluation. If it is missing, copies the
 * lines of an earlier image in the call that has the same schedule, adapters and evaluation, or
 * else encodes them. */
static int time_line(const struct tick *t, int index) {
    struct sampler *s = t->s;
    const struct image *image = t->images[index];
    int *first = &s->time_first[image->row];
    const int wanted = image->evaluations;
    if (*first >= 0 && wanted >= *first && wanted < *first + SAMPLER_TIME_LINES)
        return image->row * SAMPLER_TIME_LINES + wanted - *first;
    for (int i = 0; i < index; i++) {
        const struct image *like = t->images[i];
        if (like->plan != image->plan || like->overlay != image->overlay ||
            s->time_first[like->row] != wanted)
            continue;
        const struct tensor lines = tensor_rows(
            &s->time_table, like->row * SAMPLER_TIME_LINES, SAMPLER_TIME_LINES);
        copy(t->c, &lines,
            tensor_rows(&s->time_table, image->row * SAMPLER_TIME_LINES, SAMPLER_TIME_LINES));
        *first = wanted;
        break;
    }
    if (*first != wanted)
        encode_timesteps(t, image);
    return image->row * SAMPLER_TIME_LINES;
}

/* Fills `time_ids`: for each row, the line of its image. The padding row gets the line of the last
 * row. */
static void fill_times(const struct tick *t) {
    struct sampler *s = t->s;
    const int rows = recorded_rows(t->c, t->rows);
    const int pieces = unet_time_pieces(s->unet);
    int lines[UNET_CALL_MAX_ROWS], unconditional = 0;
    int32_t ids[UNET_CALL_MAX_ROWS * UNET_TIME_PIECES_MAX];
    for (int i = 0; i < t->count; i++) {
        const int line = time_line(t, i);
        for (int part = 0; part < t->images[i]->parts; part++)
            lines[t->conditional[i] + part] = line;
        if (t->images[i]->guided)
            lines[unconditional++] = line;
    }
    for (int row = t->rows; row < rows; row++)
        lines[row] = lines[t->rows - 1];
    for (int row = 0; row < rows; row++)
        unet_time_ids(s->unet, lines[row], ids + row * pieces);
    const struct tensor uploaded = tensor_rows(&s->time_ids, 0, rows);
    compute_upload(t->c, ids, &uploaded);
}

struct unet_call {
    const struct unet *unet;
    struct tensor input, time_table, time_ids, kv, lengths, predicted;
};

static void run_unet(struct compute *c, const void *user) {
    const struct unet_call *call = user;
    struct tensor predicted = call->predicted;
    unet_forward_timed(call->unet, c, &call->input, &call->time_table, &call->time_ids, &call->kv,
        &call->lengths, &predicted);
}

/* predicted = unet(input, lines of time_table, kv). Calls with the same number of rows and the same
 * size are identical at every tick, so a device may replay them. */
static void predict(const struct tick *t) {
    const struct sampler *s = t->s;
    int rows = recorded_rows(t->c, t->rows);
    const struct unet_call call = { s->unet, tensor_rows(&s->input, 0, rows), s->time_table,
        tensor_rows(&s->time_ids, 0, rows), tensor_rows(&s->kv, 0, rows),
        tensor_rows(&s->lengths, 0, rows), tensor_rows(&s->predicted, 0, rows) };
    const uintptr_t key[] = { (uintptr_t)call.unet, (uintptr_t)call.input.data,
        (uintptr_t)call.time_table.data, (uintptr_t)call.time_ids.data, (uintptr_t)call.kv.data,
        (uintptr_t)call.lengths.data, (uintptr_t)call.predicted.data, (uintptr_t)rows,
        (uintptr_t)s->size.height, (uintptr_t)s->size.width, (uintptr_t)s->size.tokens };
    struct call_overlay overlay;
    t->c->overlay = overlay_of(t, rows, &overlay);
    compute_recorded(t->c, key, sizeof(key), run_unet, &call);
    t->c->overlay = NULL;
}

static double unbiased_std(const float *x, int64_t count) {
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < count; i++)
        mean += x[i];
    mean /= (double)count;
    for (int64_t i = 0; i < count; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    return sqrt(squares / (double)(count - 1));
}

/* Computes the standard deviation of each image in `t`. */
static void deviations(
    struct compute *c, const struct tensor *t, double out[UNET_CALL_MAX_IMAGES]) {
    const float *x = compute_view(c, t);
    int64_t images = t->shape[0], elements = tensor_elements(t) / images;
    for (int64_t i = 0; x && i < images; i++)
        out[i] = unbiased_std(x + i * elements, elements);
}

/* Section 3.4 of "Common Diffusion Noise Schedules and Sample Steps are Flawed": pulls the standard
 * deviation of the guided output towards that of the conditional one, image by image. */
static void rescale_guidance(const struct tick *t, const struct run *run,
    const struct tensor *conditional, struct tensor *output) {
    double wanted[UNET_CALL_MAX_IMAGES] = { 0 }, guided[UNET_CALL_MAX_IMAGES] = { 0 };
    float factors[UNET_CALL_MAX_IMAGES] = { 0 };
    deviations(t->c, conditional, wanted);
    deviations(t->c, output, guided);
    for (int i = 0; compute_ok(t->c) && !t->c->dry_run && i < run->count; i++) {
        double rescale = t->images[run->first + i]->guidance_rescale;
        factors[i] = (float)(rescale * wanted[i] / guided[i] + (1 - rescale));
    }
    scale(t->c, output, factors, output);
}

static bool guidance_alike(const struct image *a, const struct image *b) {
    return (a->guidance_rescale > 0) == (b->guidance_rescale > 0);
}

/* y = unconditional + sum over the prompt's parts of weight (conditional - unconditional), where
 * `scaled` multiplies the weights by guidance_scale and the plan's guidance_factor. y is rows of
 * the call. */
static void combine_parts(
    const struct tick *t, const struct run *run, bool scaled, struct tensor *y) {
    const struct tensor unconditional = unconditional_rows(&t->s->predicted, run);
    struct tensor difference = call_rows(&t->s->difference, run);
    float signs[2 * UNET_CALL_MAX_IMAGES], scales[2 * UNET_CALL_MAX_IMAGES];
    for (int part = 0; part < run->head->parts; part++) {
        const struct tensor conditional = conditional_rows(t, &t->s->predicted, run, part);
        for (int i = 0; i < run->count; i++) {
            const struct image *image = t->images[run->first + i];
            signs[2 * i] = scales[2 * i] = 1;
            signs[2 * i + 1] = -1;
            const double scale = scaled
                                     ? image->guidance_scale * (double)image->plan->guidance_factor
                                     : 1;
            scales[2 * i + 1] = (float)(scale * image->part_weights[part]);
        }
        op_combine(t->c, &(struct combine_args){ .terms = { &conditional, &unconditional },
                             .count = 2,
                             .coefficients = signs,
                             .y = &difference });
        op_combine(
            t->c, &(struct combine_args){ .terms = { part ? y : &unconditional, &difference },
                      .count = 2,
                      .coefficients = scales,
                      .y = y });
    }
}

/* guided = the prompt's parts, combined with guidance_scale. With several parts, guidance_rescale
 * uses as the conditional output what the parts give with a guidance_scale of 1. */
static void guide(const struct tick *t, const struct run *run) {
    struct tensor output = call_rows(&t->s->guided, run);
    struct tensor conditional = conditional_rows(t, &t->s->predicted, run, 0);
    combine_parts(t, run, true, &output);
    if (!(run->head->guidance_rescale > 0))
        return;
    if (run->head->parts > 1) {
        conditional = call_rows(&t->s->noise, run); /* free until noise is drawn */
        combine_parts(t, run, false, &conditional);
    }
    rescale_guidance(t, run, &conditional, &output);
}

/* Returns the run's tensor of a term. Terms that last from tick to tick are in the images' rows,
 * the others in the rows of the call. */
static struct tensor find_term(const struct tick *t, const struct run *run, int term) {
    if (term == TERM_OUTPUT)
        return run->head->guided ? call_rows(&t->s->guided, run)
                                 : conditional_rows(t, &t->s->predicted, run, 0);
    if (term == TERM_UNCONDITIONAL)
        return unconditional_rows(&t->s->predicted, run);
    return term == TERM_NOISE ? call_rows(&t->s->noise, run) : term_rows(t->s, term, run);
}

/* Writes x0, as predicted from the model's output, to image->preview on the host. Uses `difference`
 * as scratch, because guidance has already been applied. */
static void preview(const struct tick *t, const struct run *run) {
    struct image *image = t->images[run->first];
    float weights[2];
    if (!image->preview)
        return;
    scheduler_evaluation_end(evaluation_of(image), image->prediction, &weights[0], &weights[1]);
    const struct tensor sample = find_term(t, run, TERM_SAMPLE);
    const struct tensor output = find_term(t, run, TERM_OUTPUT);
    struct tensor end = call_rows(&t->s->difference, run), drawn = call_rows(&t->s->drawn, run);
    op_combine(
        t->c, &(struct combine_args){
                  .terms = { &sample, &output }, .count = 2, .coefficients = weights, .y = &end });
    op_convert(
        t->c, &(struct convert_args){ .x = &end, .layout = LAYOUT_NHWC_TO_NCHW, .y = &drawn });
    const float *latents = compute_view(t->c, &drawn);
    if (latents)
        memcpy(image->preview, latents, tensor_bytes(&drawn));
}

static bool draw_alike(const struct image *a, const struct image *b) {
    return evaluation_of(a)->draws_noise == evaluation_of(b)->draws_noise &&
           evaluation_is_brownian(evaluation_of(a)) == evaluation_is_brownian(evaluation_of(b)) &&
           a->generator.kind == b->generator.kind;
}

/* Whether the next updates of both images read and write the same terms. Their weights may
 * differ. */
static bool update_alike(const struct image *a, const struct image *b) {
    const struct scheduler_evaluation *x = evaluation_of(a), *y = evaluation_of(b);
    bool alike = x->update_count == y->update_count;
    for (int u = 0; alike && u < x->update_count; u++) {
        alike = x->updates[u].target == y->updates[u].target;
        for (int term = 0; alike && term < TERM_COUNT; term++)
            alike = (x->updates[u].weights[term] != 0) == (y->updates[u].weights[term] != 0);
    }
    return alike;
}

/* Applies update number `index` of each image in the run. */
static void apply_update(const struct tick *t, const struct run *run, int index) {
    const struct scheduler_update *head = &evaluation_of(run->head)->updates[index];
    struct tensor terms[TERM_COUNT], target = find_term(t, run, head->target);
    int used[TERM_COUNT], count = 0;
    for (int term = 0; term < TERM_COUNT; term++)
        if (head->weights[term] != 0)
            used[count++] = term; /* at most COMBINE_MAX_TERMS: scheduler_plan_create checks */
    if (count == 0)               /* all weights are 0: 0 times the sample */
        used[count++] = TERM_SAMPLE;
    float weights[UNET_CALL_MAX_IMAGES * COMBINE_MAX_TERMS], divisors[UNET_CALL_MAX_IMAGES];
    struct combine_args args = {
        .count = count, .coefficients = weights, .divisors = divisors, .y = &target
    };
    for (int k = 0; k < count; k++) {
        terms[k] = find_term(t, run, used[k]);
        args.terms[k] = &terms[k];
    }
    for (int i = 0; i < run->count; i++) {
        const struct scheduler_update *update =
            &evaluation_of(t->images[run->first + i])->updates[index];
        divisors[i] = update->divisor;
        for (int k = 0; k < count; k++)
            weights[i * count + k] = update->weights[used[k]];
    }
    op_combine(t->c, &args);
}

static bool keep_alike(const struct image *a, const struct image *b) {
    return a->keeps == b->keeps;
}

/* Restores the part of the picture that the mask keeps, at the noise level of the next
 * evaluation. */
static void keep_picture(const struct tick *t, const struct run *run) {
    const struct sampler *s = t->s;
    float levels[2 * UNET_CALL_MAX_IMAGES];
    for (int i = 0; i < run->count; i++) {
        const struct image *image = t->images[run->first + i];
        const bool last = image->evaluations + 1 == image->plan->count;
        levels[2 * i] = last ? 1 : evaluation_of(image)[1].signal;
        levels[2 * i + 1] = last ? 0 : evaluation_of(image)[1].noise;
    }
    const struct tensor init = tensor_rows(&s->init, run->row, run->count);
    const struct tensor noise = tensor_rows(&s->init_noise, run->row, run->count);
    const struct tensor mask = tensor_rows(&s->mask, run->row, run->count);
    struct tensor kept = call_rows(&s->noise, run), sample = term_rows(s, TERM_SAMPLE, run);
    op_combine(
        t->c, &(struct combine_args){
                  .terms = { &init, &noise }, .count = 2, .coefficients = levels, .y = &kept });
    op_blend(t->c, &(struct blend_args){ &kept, &sample, &mask, &sample });
}

void sampler_tick(struct compute *c, struct sampler *s, struct image *const *images, int count) {
    if (!check_count(c, s, count))
        return;
    const struct tick t = tick_of(c, s, images, count);
    if (t.rows > s->size.call_rows) {
        error_set(&c->error, ERROR_INTERNAL, "%d rows in one UNet call, %d fit", t.rows,
            s->size.call_rows);
        return;
    }
    fill_kv(&t);
    fill_input(&t);
    fill_times(&t);
    predict(&t);
    for (struct run run = { 0 }; next_run(&t, guidance_alike, &run);)
        if (run.head->guided)
            guide(&t, &run);
    for (struct run run = { 0 }; next_run(&t, never_alike, &run);)
        preview(&t, &run);
    for (struct run run = { 0 }; next_run(&t, draw_alike, &run);)
        if (evaluation_of(run.head)->draws_noise)
            make_noise(&t, &run, false);
    for (struct run run = { 0 }; next_run(&t, update_alike, &run);)
        for (int i = 0; i < evaluation_of(run.head)->update_count; i++)
            apply_update(&t, &run, i);
    for (struct run run = { 0 }; next_run(&t, keep_alike, &run);)
        if (run.head->keeps)
            keep_picture(&t, &run);
    for (int i = 0; i < count; i++)
        images[i]->evaluations++;
    compute_pace(c);
}

/* --- joining and leaving --- */

static bool size_is_right(struct compute *c, const struct sampler_size *size) {
    if (compute_ok(c) && (size->images < 1 || size->images > SAMPLER_MAX_IMAGES))
        error_set(&c->error, ERROR_INTERNAL, "a sampler of %d images, 1 to %d are possible",
            size->images, SAMPLER_MAX_IMAGES);
    if (compute_ok(c) && (size->call_images < 1 || size->call_images > UNET_CALL_MAX_IMAGES))
        error_set(&c->error, ERROR_INTERNAL, "%d images in one UNet call, 1 to %d fit",
            size->call_images, UNET_CALL_MAX_IMAGES);
    if (compute_ok(c) && (size->call_rows < 1 || size->call_rows > UNET_CALL_MAX_ROWS ||
                             size->parts < 1 || size->parts > PROMPT_PARTS_MAX))
        error_set(&c->error, ERROR_INTERNAL, "%d rows in one UNet call and %d texts in a prompt",
            size->call_rows, size->parts);
    return compute_ok(c);
}

void sampler_init(struct compute *c, struct sampler *s, const struct unet *unet,
    const struct sampler_size *size) {
    *s = (struct sampler){ .unet = unet, .size = *size };
    if (!size_is_right(c, size))
        return;
    int64_t channels = unet_get_config(unet)->out_channels, h = size->height, w = size->width;
    int64_t images = size->images, call = size->call_images, tokens = size->tokens;
    int64_t rows = recorded_rows(c, size->call_rows), kv = unet_context_channels(unet);
    enum dtype dtype = unet_activation_dtype(unet);
    s->text_kv = compute_tensor_3d(c, dtype, images * (1 + size->parts), tokens, kv);
    s->kv = compute_tensor_3d(c, dtype, rows, tokens, kv);
    s->lengths = compute_tensor_1d(c, DTYPE_I32, rows);
    s->time_table = compute_tensor_2d(
        c, dtype, images * SAMPLER_TIME_LINES, unet_time_channels(unet));
    s->timesteps = compute_tensor_1d(c, DTYPE_F32, SAMPLER_TIME_LINES);
    s->time_ids = compute_tensor_2d(c, DTYPE_I32, rows, unet_time_pieces(unet));
    s->terms[TERM_SAMPLE] = compute_tensor_4d(c, DTYPE_F32, images, h, w, channels);
    for (int slot = 0; slot < SCHEDULER_SLOTS; slot++)
        s->terms[TERM_SLOT + slot] = compute_tensor_4d(c, DTYPE_F32, images, h, w, channels);
    s->drawn = compute_tensor_4d(c, DTYPE_F32, call, channels, h, w);
    s->noise = compute_tensor_4d(c, DTYPE_F32, call, h, w, channels);
    const int64_t in_channels = unet_get_config(unet)->in_channels;
    if (inpaints(s)) {
        s->shown = compute_tensor_4d(c, DTYPE_F32, images, h, w, in_channels - channels);
        s->scaled = compute_tensor_4d(c, DTYPE_F32, rows, h, w, channels);
    } else {
        s->init = compute_tensor_4d(c, DTYPE_F32, images, h, w, channels);
        s->init_noise = compute_tensor_4d(c, DTYPE_F32, images, h, w, channels);
        s->mask = compute_tensor_4d(c, DTYPE_F32, images, h, w, 1);
    }
    s->input = compute_tensor_4d(c, DTYPE_F32, rows, h, w, in_channels);
    s->predicted = compute_tensor_4d(c, DTYPE_F32, rows, h, w, channels);
    s->guided = compute_tensor_4d(c, DTYPE_F32, call, h, w, channels);
    s->difference = compute_tensor_4d(c, DTYPE_F32, call, h, w, channels);
    for (int row = 0; row < UNET_CALL_MAX_ROWS; row++)
        s->kv_texts[row] = -1;
    for (int row = 0; row < SAMPLER_MAX_IMAGES; row++)
        s->time_first[row] = -1;
}

void sampler_move(struct compute *c, struct sampler *s, const struct sampler *from) {
    for (int row = 0; row < from->size.images; row++) {
        s->row_taken[row] = from->row_taken[row];
        if (!s->row_taken[row])
            continue;
        copy_row(c, &from->terms[TERM_SAMPLE], row, &s->terms[TERM_SAMPLE], row);
        for (int slot = TERM_SLOT; slot < TERM_COUNT; slot++)
            copy_row(c, &from->terms[slot], row, &s->terms[slot], row);
        if (inpaints(s)) {
            copy_row(c, &from->shown, row, &s->shown, row);
        } else {
            copy_row(c, &from->init, row, &s->init, row);
            copy_row(c, &from->init_noise, row, &s->init_noise, row);
            copy_row(c, &from->mask, row, &s->mask, row);
        }
        for (int text = 0; text <= from->size.parts; text++) {
            const struct tensor whole = tensor_rows(&from->text_kv, text_place(from, row, text), 1);
            copy(c, &whole, text_row(&s->text_kv, text_place(s, row, text), from->size.tokens));
        }
    }
}

bool sampler_place(struct sampler *s, struct image *image) {
    for (int row = 0; row < s->size.images; row++)
        if (!s->row_taken[row]) {
            s->row_taken[row] = true;
            image->sampler = s;
            image->row = row;
            image->evaluations = 0;
            s->time_first[row] = -1;
            return true;
        }
    return false;
}

void sampler_leave(struct image *image) {
    if (image->sampler)
        image->sampler->row_taken[image->row] = false;
    image->sampler = NULL;
}

/* Marks the rows of `kv` that hold this text of text_kv as out of date. */
static void forget_text(struct sampler *s, int place) {
    for (int row = 0; row < UNET_CALL_MAX_ROWS; row++)
        if (s->kv_texts[row] == place)
            s->kv_texts[row] = -1;
}

static bool text_fits(struct compute *c, const struct sampler *s, int tokens) {
    if (compute_ok(c) && (tokens < 1 || tokens > s->size.tokens))
        error_set(
            &c->error, ERROR_INTERNAL, "a text of %d tokens, 1 to %d fit", tokens, s->size.tokens);
    return compute_ok(c);
}

void sampler_encode_text(struct compute *c, struct sampler *s, struct image *image, int text,
    const struct tensor *context) {
    const int place = text_place(s, image->row, text), tokens = image->text_tokens[text];
    if (!text_fits(c, s, tokens))
        return;
    struct tensor kv = text_row(&s->text_kv, place, tokens);
    forget_text(s, place);
    struct call_overlay overlay = { .rows = { image->overlay } };
    c->overlay = use_overlay(&overlay, 1);
    unet_encode_context(s->unet, c, context, &kv);
    c->overlay = NULL;
}

void sampler_copy_text(
    struct compute *c, struct sampler *s, struct image *image, int text, const struct image *like) {
    const int place = text_place(s, image->row, text), tokens = like->text_tokens[text];
    if (!compute_ok(c))
        return;
    forget_text(s, place);
    const struct tensor from = text_row(&s->text_kv, text_place(s, like->row, text), tokens);
    copy(c, &from, text_row(&s->text_kv, place, tokens));
}

/* Uploads values, [c][h][w] on the host, to row `row` of y. Uses row `at` of `drawn` as scratch. */
static void upload_row(
    const struct tick *t, const float *values, int at, const struct tensor *y, int row) {
    struct tensor drawn = tensor_rows(&t->s->drawn, at, 1), to = tensor_rows(y, row, 1);
    drawn.shape[1] = y->shape[3];
    compute_upload(t->c, values, &drawn);
    op_convert(
        t->c, &(struct convert_args){ .x = &drawn, .layout = LAYOUT_NCHW_TO_NHWC, .y = &to });
}

/* Fills the image's row of `shown`: the mask, then the masked picture. */
static void show_masked(const struct tick *t, const struct image *image, int at) {
    struct tensor masked = tensor_rows(&t->s->noise, at, 1);
    struct tensor mask = tensor_rows(&t->s->guided, at, 1), shown;
    mask.shape[3] = 1;
    upload_row(t, image->start->masked, at, &t->s->noise, at);
    compute_upload(t->c, image->start->mask, &mask);
    shown = tensor_rows(&t->s->shown, image->row, 1);
    op_concat(t->c, &(struct concat_args){ &mask, &masked, &shown });
}

/* Uploads the start that was made from the pictures of image `at` of the call. */
static void start_from_picture(const struct tick *t, int at) {
    const struct sampler *s = t->s;
    const struct image *image = t->images[at];
    upload_row(t, image->start->sample, at, &s->terms[TERM_SAMPLE], image->row);
    if (inpaints(s))
        show_masked(t, image, at);
    if (!image->keeps)
        return;
    struct tensor mask = tensor_rows(&s->mask, image->row, 1);
    upload_row(t, image->start->init, at, &s->init, image->row);
    upload_row(t, image->start->noise, at, &s->init_noise, image->row);
    compute_upload(t->c, image->start->mask, &mask);
}

void sampler_start(struct compute *c, struct sampler *s, struct image *const *images, int count) {
    if (!check_count(c, s, count))
        return;
    const struct tick t = tick_of(c, s, images, count);
    for (struct run run = { 0 }; next_run(&t, start_alike, &run);) {
        if (run.head->start) {
            for (int i = 0; i < run.count; i++)
                start_from_picture(&t, run.first + i);
            continue;
        }
        make_noise(&t, &run, true);
        float sigmas[UNET_CALL_MAX_IMAGES];
        for (int i = 0; i < run.count; i++)
            sigmas[i] = images[run.first + i]->plan->init_noise_sigma;
        struct tensor noise = call_rows(&s->noise, &run);
        struct tensor sample = term_rows(s, TERM_SAMPLE, &run);
        scale(c, &noise, sigmas, &sample);
    }
}

static bool all_finite(const float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* Copies the run's samples to the host as [c][h][w], torch's order, and sets is_finite. */
static void take(const struct tick *t, const struct run *run) {
    struct tensor sample = term_rows(t->s, TERM_SAMPLE, run), drawn = call_rows(&t->s->drawn, run);
    op_convert(
        t->c, &(struct convert_args){ .x = &sample, .layout = LAYOUT_NHWC_TO_NCHW, .y = &drawn });
    const float *latents = compute_view(t->c, &drawn);
    int64_t elements = tensor_elements(&drawn) / run->count;
    for (int i = 0; latents && i < run->count; i++) {
        struct image *image = t->images[run->first + i];
        image->is_finite = all_finite(latents + i * elements, elements);
        memcpy(image->latents, latents + i * elements, sizeof(float) * (size_t)elements);
    }
}

void sampler_finish(struct compute *c, struct sampler *s, struct image *const *images, int count) {
    if (!check_count(c, s, count))
        return;
    const struct tick t = tick_of(c, s, images, count);
    for (struct run run = { 0 }; next_run(&t, always_alike, &run);)
        take(&t, &run);
}
