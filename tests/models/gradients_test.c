/* Gradients of whole models, computed by the tape, against torch's autograd with diffusers,
 * transformers and peft (tests/reference/gradients.py): every parameter of a UNet and of its text
 * encoder, and the factors of LoRAs on the attention layers and on all layers. Checkpointing must
 * not change a bit, nor must weights that are poisoned between a tape's hooks.
 *
 * usage: gradients_test GOLDENS.safetensors [FOLDER | cuda]   FOLDER: the model for cases that use
 * no small model; cuda: one LoRA case and one full case on a CUDA device
 */
#include "kernels/compute/overlay.h"
#include "kernels/devices.h"
#include "kernels/tape/plan.h"
#include "models/checkpoint/checkpoint.h"
#include "tests/check.h"
#include "tests/kernels/tape/hook_watch.h"
#include "tests/models/small/small_models.h"

#include <stdlib.h>

#define PROJECTIONS 4
#define MOST_ROWS 4
#define LORA_SCALE 1.5f
static const float timesteps[MOST_ROWS] = { 1, 500.25f, 999, 250 };

static void must(bool ok, const struct error *err) {
    if (ok)
        return;
    printf("the test cannot run: %s\n", err->message);
    exit(1);
}

static void *zeros(int64_t count, size_t size) {
    void *p = calloc((size_t)count + 1, size);
    must(p, &(struct error){ .message = "no memory" });
    return p;
}

/* Allocates device memory with these contents, or zeros. */
static void *resident(const struct kernels *k, const void *from, size_t bytes) {
    struct error err = { 0 };
    void *p;
    must(k->memory->alloc(MEMORY_WEIGHTS, bytes, &p, &err) &&
             (from ? k->memory->upload(p, from, bytes, &err) : k->memory->zero(p, bytes, &err)),
        &err);
    return p;
}

/* Moves a tensor to the device and frees its host memory. */
static struct tensor resident_tensor(const struct kernels *k, struct tensor t) {
    void *host = t.data;
    t.data = resident(k, host, tensor_bytes(&t));
    t.device = k->device;
    free(host);
    return t;
}

static void release(const struct kernels *k, const struct tensor *t) {
    k->memory->release(MEMORY_WEIGHTS, t->data, tensor_bytes(t));
}

/* Returns a copy of device memory; freed by the caller. */
static float *fetched(const struct kernels *k, const void *from, size_t bytes) {
    struct error err = { 0 };
    float *copy = zeros((int64_t)bytes, 1);
    const void *host = k->memory->view(from, bytes, &err);
    must(host, &err);
    memcpy(copy, host, bytes);
    return copy;
}

/* --- what is trained --- */

/* One tensor of a parameter, with torch's shape: [outer][inner][taps]. */
struct trained {
    char name[SAFETENSORS_MAX_NAME_BYTES + 24];
    int parameter; /* index in subject.parameters */
    int part;
    int64_t first; /* its first output in the packed weight */
    int64_t outer, inner, taps;
    bool panels;
};

struct subject {
    const struct kernels *kernels;
    enum dtype dtype; /* of the weights */
    struct unet *unet;
    struct text_encoder *text; /* NULL: the context is an input */
    const char *what;
    int64_t rows, h, w;

    struct trained *trained;
    struct tape_parameter *parameters;
    int64_t *sizes[2]; /* floats of each parameter's gradients */
    int trained_count, parameter_count, room;
    struct low_rank_pair **pairs;
    int pair_count;
    struct row_overlay *changes;
    struct hook_watch *watch; /* of the next pass; NULL: a pass without hooks */

    float *d_out;
    /* On the device. `context` is used without a text encoder, `ids` with one. */
    struct tensor latents, context, times, out, ids;
};

static int64_t taps_of(const struct named_weight *w) {
    return w->is_conv && w->kind != CONV_1X1 ? 9 : 1;
}

static int parameter_of(struct subject *s, enum tape_parameter_kind kind, const void *what,
    int64_t first_floats, int64_t second_floats) {
    for (int i = 0; i < s->parameter_count; i++)
        if (s->parameters[i].kind == kind && s->parameters[i].what == what)
            return i;
    const int64_t floats[2] = { first_floats, second_floats };
    struct tape_parameter *p = &s->parameters[s->parameter_count];
    *p = (struct tape_parameter){ .kind = kind, .what = what };
    for (int i = 0; i < 2; i++) {
        s->sizes[i][s->parameter_count] = floats[i];
        p->gradient[i] = floats[i] ? resident(s->kernels, NULL, (size_t)floats[i] * sizeof(float))
                                   : NULL;
    }
    return s->parameter_count++;
}

static void add_trained(struct subject *s, struct trained t, const char *name, const char *leaf) {
    snprintf(t.name, sizeof(t.name), "%s%s", name, leaf);
    s->trained[s->trained_count++] = t;
}

static void train_all(struct subject *s, const struct weight_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        const struct named_weight *w = &list->items[i];
        const int64_t taps = taps_of(w);
        const int p = parameter_of(
            s, TAPE_WEIGHT, w->packed, w->packed->n * w->k * taps, w->packed->n);
        add_trained(s,
            (struct trained){
                .parameter = p, .first = w->first, .outer = w->n, .inner = w->k, .taps = taps },
            w->name, ".weight");
        if (w->has_bias)
            add_trained(s,
                (struct trained){ .parameter = p,
                    .part = 1,
                    .first = w->first,
                    .outer = w->n,
                    .inner = 1,
                    .taps = 1 },
                w->name, ".bias");
    }
    for (size_t i = 0; i < list->resident_count; i++) {
        const struct named_resident *r = &list->residents[i];
        const int64_t count = tensor_elements(&r->weight);
        const bool is_norm = r->bias.data != NULL;
        const int p = parameter_of(
            s, is_norm ? TAPE_NORM : TAPE_TABLE, r->weight.data, count, is_norm ? count : 0);
        struct trained t = { .parameter = p, .outer = count, .inner = 1, .taps = 1 };
        add_trained(s, t, r->name, ".weight");
        t.part = 1;
        if (is_norm)
            add_trained(s, t, r->name, ".bias");
    }
}

static bool is_target(const struct subject *s, const char *name) {
    static const char *const leaves[] = { "to_q", "to_k", "to_v", "to_out.0", "q_proj", "k_proj",
        "v_proj", "out_proj" };
    bool ends = strcmp(s->what, "everything") == 0;
    for (size_t i = 0; i < sizeof(leaves) / sizeof(leaves[0]); i++) {
        const size_t length = strlen(name), leaf = strlen(leaves[i]);
        ends = ends || (length >= leaf && strcmp(name + length - leaf, leaves[i]) == 0);
    }
    return ends;
}

/* Makes the numbers of a factor as the reference does. */
static struct tensor factor(const char *layer, const char *leaf, struct tensor shape) {
    char name[SAFETENSORS_MAX_NAME_BYTES + 24];
    const int64_t count = tensor_elements(&shape);
    double *numbers = zeros(count, sizeof(double));
    float *values = zeros(count, sizeof(float));
    snprintf(name, sizeof(name), "%s%s", layer, leaf);
    rule_numbers(name, count, numbers);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(sqrt(1 / (double)(count / shape.shape[0])) * numbers[i]);
    free(numbers);
    shape.data = values;
    return shape;
}

static void train_factors(struct subject *s, const struct weight_list *list) {
    const int64_t rank = strcmp(s->what, "attention") == 0 ? 17 : 4;
    struct error err = { 0 };
    for (size_t i = 0; i < list->count; i++) {
        const struct named_weight *w = &list->items[i];
        const int64_t side = taps_of(w) == 9 ? 3 : 1;
        if (!is_target(s, w->name))
            continue;
        const struct tensor down = factor(
            w->name, ".lora_A.weight", tensor_4d(NULL, DTYPE_F32, rank, w->k, side, side));
        const struct tensor up = factor(
            w->name, ".lora_B.weight", tensor_2d(NULL, DTYPE_F32, w->n, rank));
        struct low_rank_pair **pair = &s->pairs[s->pair_count++];
        must(low_rank_pair_create(w->name, w->packed, w->n, &down, &up, pair, &err) &&
                 row_overlay_add_low_rank(s->changes, w->packed, w->first, *pair, LORA_SCALE, &err),
            &err);
        free(down.data);
        free(up.data);
        const struct low_rank_factors f = low_rank_pair_factors(*pair);
        struct trained t = { .parameter = parameter_of(
                                 s, TAPE_PAIR, *pair, f.down_floats, f.up_floats),
            .outer = rank,
            .inner = w->k,
            .taps = side * side,
            .panels = true };
        add_trained(s, t, w->name, ".lora_A.weight");
        t = (struct trained){ .parameter = t.parameter,
            .part = 1,
            .outer = w->n,
            .inner = rank,
            .taps = 1,
            .panels = true };
        add_trained(s, t, w->name, ".lora_B.weight");
    }
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct trained *)a)->name, ((const struct trained *)b)->name);
}

static void find_trained(struct subject *s) {
    const struct weight_list *lists[] = { unet_weights(s->unet),
        s->text ? text_encoder_weights(s->text) : NULL };
    struct error err = { 0 };
    for (int i = 0; i < 2; i++)
        s->room += lists[i] ? (int)(lists[i]->count + lists[i]->resident_count) : 1;
    s->trained = zeros(2 * s->room, sizeof(*s->trained));
    s->parameters = zeros(2 * s->room, sizeof(*s->parameters));
    s->sizes[0] = zeros(2 * s->room, sizeof(int64_t));
    s->sizes[1] = zeros(2 * s->room, sizeof(int64_t));
    s->pairs = zeros(s->room, sizeof(struct low_rank_pair *));
    must(row_overlay_create(&s->changes, &err), &err);
    for (int i = 0; i < 2; i++)
        if (lists[i])
            (strcmp(s->what, "full") == 0 ? train_all : train_factors)(s, lists[i]);
    if (!s->text)
        add_trained(s,
            (struct trained){ .parameter = parameter_of(s, TAPE_INPUT, &s->context, 0, 0),
                .outer = tensor_elements(&s->context),
                .inner = 1,
                .taps = 1 },
            "context", "");
    qsort(s->trained, (size_t)s->trained_count, sizeof(*s->trained), by_name);
}

/* --- the subject's forward --- */

static void start(struct subject *s) {
    const struct unet_config *config = unet_get_config(s->unet);
    const int64_t pixels = s->rows * s->h * s->w;
    struct tensor host = tensor_4d(rule_signal("latents", pixels * config->in_channels), DTYPE_F32,
        s->rows, s->h, s->w, config->in_channels);
    s->latents = resident_tensor(s->kernels, host);
    s->d_out = rule_signal("d_out", pixels * config->out_channels);
    host = tensor_4d(zeros(pixels * config->out_channels, sizeof(float)), DTYPE_F32, s->rows, s->h,
        s->w, config->out_channels);
    s->out = resident_tensor(s->kernels, host);
    host = tensor_1d(zeros(s->rows, sizeof(float)), DTYPE_F32, s->rows);
    memcpy(host.data, timesteps, tensor_bytes(&host));
    s->times = resident_tensor(s->kernels, host);
    if (s->text) {
        const struct text_encoder_config *text = text_encoder_get_config(s->text);
        const int64_t count = s->rows * text->max_position_embeddings;
        double *numbers = zeros(count, sizeof(double));
        int32_t *ids = zeros(count, sizeof(int32_t));
        rule_numbers("ids", count, numbers);
        for (int64_t i = 0; i < count; i++)
            ids[i] = (int32_t)((numbers[i] + 1) / 2 * text->vocab_size);
        free(numbers);
        host = tensor_2d(ids, DTYPE_I32, s->rows, text->max_position_embeddings);
        s->ids = resident_tensor(s->kernels, host);
    } else {
        host = tensor_3d(rule_signal("context", s->rows * SMALL_TOKENS * SMALL_CONTEXT_DIM),
            DTYPE_F32, s->rows, SMALL_TOKENS, SMALL_CONTEXT_DIM);
        s->context = resident_tensor(s->kernels, host);
    }
    find_trained(s);
}

static void forward(struct compute *c, void *user) {
    const struct subject *s = user;
    const size_t mark = arena_mark(c->arena);
    struct tensor context = s->context, out = s->out;
    if (s->text) {
        const struct text_encoder_config *text = text_encoder_get_config(s->text);
        context = compute_tensor_3d(c, text_encoder_activation_dtype(s->text), s->rows,
            text->max_position_embeddings, text->hidden_size);
        text_encoder_forward(s->text, c, &s->ids, 0, &context);
    } else if (unet_activation_dtype(s->unet) != DTYPE_F32) {
        context = compute_tensor_3d(
            c, unet_activation_dtype(s->unet), s->rows, context.shape[1], context.shape[2]);
        op_convert(c, &(struct convert_args){ .x = &s->context, .y = &context });
    }
    struct tensor kv = compute_tensor_3d(
        c, context.dtype, s->rows, context.shape[1], unet_context_channels(s->unet));
    unet_encode_context(s->unet, c, &context, &kv);
    unet_forward(s->unet, c, &s->latents, &s->times, &kv, NULL, &out);
    arena_release(c->arena, mark);
}

static void go_on(struct tape *tape, enum tape_point point) {
    enum tape_point reached = TAPE_BETWEEN;
    struct error err = { 0 };
    while (reached == TAPE_BETWEEN)
        must(tape_advance(tape, &reached, &err), &err);
    CHECK(reached == point, "point %d, not %d", (int)reached, (int)point);
}

static const struct device_memory *counted; /* the memory that counting_alloc uses */
static size_t taken;                        /* bytes of activations allocated so far */

static bool counting_alloc(enum memory_pool pool, size_t bytes, void **out, struct error *err) {
    taken += pool == MEMORY_ACTIVATIONS ? bytes : 0;
    return counted->alloc(pool, bytes, out, err);
}

/* Runs one pass and adds its gradients to the parameters' gradients. If the context is an input,
 * its gradient goes to d_context. */
static struct tape_figures run_pass(struct subject *s, bool checkpointing, float *d_context) {
    const struct row_overlay *rows[MOST_ROWS] = { s->changes, s->changes, s->changes, s->changes };
    const struct overlay overlay = { rows, (int)s->rows };
    const struct compute like = { .kernels = s->kernels, .overlay = &overlay };
    const struct tape_options options = { s->parameters, s->parameter_count, checkpointing, NULL,
        s->watch ? hook_watch_call : NULL, s->watch };
    struct tape *tape;
    struct error err = { 0 };
    taken = 0;
    must(tape_create(&like, forward, s, &s->out, &options, &tape, &err), &err);
    const size_t bytes_taken = taken;
    if (s->watch)
        hook_watch_begin(s->watch, tape);
    CHECK(taken == tape_bytes(tape), "tape_bytes says %zu bytes, the tape takes %zu",
        tape_bytes(tape), taken);
    tape_begin(tape);
    go_on(tape, TAPE_MIDDLE);
    const struct tensor seed = tape_gradient(tape, &s->out);
    must(s->kernels->memory->upload(seed.data, s->d_out, tensor_bytes(&seed), &err), &err);
    go_on(tape, TAPE_END);
    if (s->watch)
        hook_watch_end(s->watch, s->what);
    if (!s->text) {
        const size_t bytes = tensor_bytes(&s->context);
        float *got = fetched(s->kernels, tape_gradient(tape, &s->context).data, bytes);
        memcpy(d_context, got, bytes);
        free(got);
    }
    CHECK(bytes_taken == taken, "%zu bytes more were taken in the pass", taken - bytes_taken);
    const struct tape_figures figures = tape->figures;
    CHECK(figures.advance_flops <= fmax(figures.call_flops, figures.forward_flops / 32),
        "one advance of the backward pass computes %.3g FLOP", figures.advance_flops);
    tape_destroy(tape);
    return figures;
}

/* --- against the reference --- */

/* Returns a gradient in torch's order. */
static float *gradient_of(const struct subject *s, const struct trained *t, const float *context) {
    const struct tape_parameter *p = &s->parameters[t->parameter];
    float *got = p->kind == TAPE_INPUT
                     ? NULL
                     : fetched(s->kernels, p->gradient[t->part],
                           (size_t)s->sizes[t->part][t->parameter] * sizeof(float));
    const float *from = got ? got : context;
    const int64_t row = t->taps * t->inner;
    float *to = zeros(t->outer * row, sizeof(float));
    for (int64_t o = 0; o < t->outer; o++)
        for (int64_t i = 0; i < t->inner; i++)
            for (int64_t tap = 0; tap < t->taps; tap++) {
                const int64_t at = tap * t->inner + i;
                to[(o * t->inner + i) * t->taps + tap] =
                    t->panels ? from[(o / LOW_RANK_PANEL * row + at) * LOW_RANK_PANEL +
                                     o % LOW_RANK_PANEL]
                              : from[(t->first + o) * row + at];
            }
    free(got);
    return to;
}

static double *vectors[PROJECTIONS];
static int64_t vector_count;

static void need_vectors(int64_t count) {
    if (count <= vector_count)
        return;
    for (int i = 0; i < PROJECTIONS; i++) {
        char name[8];
        snprintf(name, sizeof(name), "v%d", i);
        free(vectors[i]);
        vectors[i] = zeros(count, sizeof(double));
        rule_numbers(name, count, vectors[i]);
    }
    vector_count = count;
}

/* Returns a gradient's error, estimated from its projections, relative to the expected gradient's
 * length. If the expected gradient is zero, returns the computed gradient's length relative to a
 * hundredth of the largest gradient's. */
static double projected_error(
    const float *gradient, int64_t count, const float *want, double largest) {
    double square = 0, error = 0;
    need_vectors(count);
    for (int64_t i = 0; i < count; i++)
        square += (double)gradient[i] * (double)gradient[i];
    if ((double)want[0] < 1e-9 * largest)
        return sqrt(square) / (1e-2 * largest);
    for (int k = 0; k < PROJECTIONS; k++) {
        double product = 0;
        for (int64_t i = 0; i < count; i++)
            product += (double)gradient[i] * sqrt(3) * vectors[k][i];
        error += (product - (double)want[1 + k]) * (product - (double)want[1 + k]) / PROJECTIONS;
    }
    return fmax(sqrt(error), fabs(sqrt(square) - (double)want[0])) / (double)want[0];
}

/* With weights and activations in bf16, the error of all gradients together must not exceed torch's
 * by more than a tenth. */
static void compare_bf16(const struct subject *s, struct safetensors *goldens, const char *name,
    const float *d_context) {
    char golden[96];
    snprintf(golden, sizeof(golden), "%s/bf16", name);
    const float *want = reference_get(goldens, name, s->trained_count * (1 + PROJECTIONS));
    const double allowed = (double)*reference_get(goldens, golden, 1);
    double error = 0, square = 0;
    for (int i = 0; i < s->trained_count; i++, want += 1 + PROJECTIONS) {
        const struct trained *t = &s->trained[i];
        float *gradient = gradient_of(s, t, d_context);
        const double size = (double)want[0],
                     off = projected_error(gradient, t->outer * t->inner * t->taps, want, 0);
        error += off * off * size * size;
        square += size * size;
        free(gradient);
    }
    error = sqrt(error / square);
    CHECK(error <= 1.1 * allowed, "%s, %s: in bf16 the gradients are off by %.1e, torch's by %.1e",
        s->kernels->name, name, error, allowed);
    printf("%s, %s: in bf16 all gradients together are off by %.1e, torch's by %.1e\n",
        s->kernels->name, name, error, allowed);
}

static void compare(const struct subject *s, struct safetensors *goldens, const char *name,
    const float *d_context, const struct tape_figures *figures) {
    const float *want = reference_get(goldens, name, s->trained_count * (1 + PROJECTIONS));
    double largest = 0, worst = 0, whole = -1;
    const char *worst_name = "";
    for (int i = 0; i < s->trained_count; i++)
        largest = fmax(largest, (double)want[i * (1 + PROJECTIONS)]);
    for (int i = 0; i < s->trained_count; i++) {
        const struct trained *t = &s->trained[i];
        const int64_t count = t->outer * t->inner * t->taps;
        float *gradient = gradient_of(s, t, d_context);
        const double error = projected_error(
            gradient, count, want + (int64_t)i * (1 + PROJECTIONS), largest);
        CHECK(error <= 1e-4, "%s, %s: %s is off by %.1e of %.3g", s->kernels->name, name, t->name,
            error, (double)want[(int64_t)i * (1 + PROJECTIONS)]);
        if (!(error <= worst)) {
            worst = error;
            worst_name = t->name;
        }
        char golden[2 * SAFETENSORS_MAX_NAME_BYTES];
        snprintf(golden, sizeof(golden), "%s/%s", name, t->name);
        if (safetensors_find(goldens, golden) >= 0) {
            whole = relative_error(gradient, reference_get(goldens, golden, count), count);
            CHECK(
                whole <= 1e-4, "%s, %s: %s is off by %.1e", s->kernels->name, name, t->name, whole);
        }
        free(gradient);
    }
    CHECK(whole >= 0, "%s: no whole gradient was compared", name);
    printf("%s, %s: %d gradients, the worst off by %.1e (%s), a whole one by %.1e; %d calls, %d "
           "adjoints, %zu KiB saved\n",
        s->kernels->name, name, s->trained_count, worst, worst_name, whole, figures->calls,
        figures->adjoints, figures->saved_bytes >> 10);
}

/* --- cases --- */

static void finish(struct subject *s) {
    for (int i = 0; i < s->parameter_count; i++)
        for (int part = 0; part < 2; part++)
            s->kernels->memory->release(MEMORY_WEIGHTS, s->parameters[i].gradient[part],
                (size_t)s->sizes[part][i] * sizeof(float));
    row_overlay_destroy(s->changes);
    for (int i = 0; i < s->pair_count; i++)
        low_rank_pair_destroy(s->pairs[i]);
    free(s->trained);
    free(s->parameters);
    free(s->sizes[0]);
    free(s->sizes[1]);
    free(s->pairs);
    free(s->d_out);
    release(s->kernels, &s->latents);
    release(s->kernels, &s->times);
    release(s->kernels, &s->out);
    release(s->kernels, s->text ? &s->ids : &s->context);
    unet_destroy(s->unet);
    text_encoder_destroy(s->text);
}

static size_t gradient_bytes(const void *user, int parameter, int part) {
    const struct subject *s = user;
    return (size_t)s->sizes[part][parameter] * sizeof(float);
}

/* Runs the pass again, with checkpointing if `checkpointing`, with hooks if `hooks`. Every gradient
 * must have the same bits. With hooks, the weights are poisoned while they are not needed. */
static struct tape_figures has_the_same_bits(
    struct subject *s, const char *name, const float *d_context, bool checkpointing, bool hooks) {
    const size_t context_bytes = s->text ? 0 : tensor_bytes(&s->context);
    float *again = zeros((int64_t)context_bytes, 1);
    struct error err = { 0 };
    bool same = true;
    float **kept = zeros(2 * s->parameter_count, sizeof(float *));
    for (int i = 0; i < s->parameter_count; i++)
        for (int part = 0; part < 2; part++) {
            const size_t bytes = gradient_bytes(s, i, part);
            if (!bytes)
                continue;
            kept[2 * i + part] = fetched(s->kernels, s->parameters[i].gradient[part], bytes);
            must(s->kernels->memory->zero(s->parameters[i].gradient[part], bytes, &err), &err);
        }
    struct hook_watch watch = { .kernels = s->kernels,
        .parameters = s->parameters,
        .count = s->parameter_count,
        .gradient_bytes = gradient_bytes,
        .user = s };
    s->watch = hooks ? &watch : NULL;
    const struct tape_figures figures = run_pass(s, checkpointing, again);
    s->watch = NULL;
    for (int i = 0; i < s->parameter_count; i++)
        for (int part = 0; part < 2; part++) {
            const size_t bytes = gradient_bytes(s, i, part);
            if (!bytes)
                continue;
            float *now = fetched(s->kernels, s->parameters[i].gradient[part], bytes);
            same = same && memcmp(kept[2 * i + part], now, bytes) == 0;
            free(kept[2 * i + part]);
            free(now);
        }
    same = same && memcmp(again, d_context, context_bytes) == 0;
    CHECK(same, "%s, %s: checkpointing %d, hooks %d change bits", s->kernels->name, name,
        checkpointing, hooks);
    if (hooks)
        printf("%s, %s: the same bits with %d hooks, %d weights needed %d times\n",
            s->kernels->name, name, watch.hooks, watch.weight_count, watch.runs);
    free(again);
    free(kept);
    return figures;
}

static void checkpointing_changes_no_bits(
    struct subject *s, const char *name, const float *d_context, const struct tape_figures *whole) {
    const struct tape_figures cut = has_the_same_bits(s, name, d_context, true, false);
    CHECK(cut.segments > 1 && cut.saved_bytes < whole->saved_bytes,
        "%s: checkpointing in segments saves no memory: %zu bytes in %d segments", name,
        cut.saved_bytes, cut.segments);
    printf("%s, %s: the same bits in %d segments, %d calls again, %zu KiB saved\n",
        s->kernels->name, name, cut.segments, cut.again, cut.saved_bytes >> 10);
}

static void open_folder(struct subject *s, const char *folder) {
    struct checkpoint *c;
    struct error err = { 0 };
    must(checkpoint_open(folder, NULL, &c, &err), &err);
    const struct weights unet = weights_from_checkpoint(c, COMPONENT_UNET, s->kernels, s->dtype);
    const struct weights text = weights_from_checkpoint(
        c, COMPONENT_TEXT_ENCODER, s->kernels, s->dtype);
    must(unet_create(checkpoint_unet_config(c), &unet, &s->unet, &err) &&
             text_encoder_create(checkpoint_text_encoder_config(c), &text, &s->text, &err),
        &err);
    checkpoint_close(c);
    s->h = s->w = 8;
}

/* With more rows the number of calls stays the same, because every operation takes the whole batch.
 * Compares cases whose names differ only in the rows. */
static void has_as_many_calls(const char *name, const struct tape_figures *figures) {
    static char last[64];
    static int calls;
    const size_t length = (size_t)(strrchr(name, '.') - name);
    if (strlen(last) == length && strncmp(last, name, length) == 0)
        CHECK(figures->calls == calls, "%s: %d calls, with other rows %d", name, figures->calls,
            calls);
    snprintf(last, sizeof(last), "%.*s", (int)length, name);
    calls = figures->calls;
}

/* name: MODEL.WHAT.ROWS */
static void run_case(const struct kernels *kernels, enum dtype dtype, struct safetensors *goldens,
    const char *name, const char *folder) {
    struct subject s = { .kernels = kernels, .dtype = dtype };
    char model[32], what[32];
    int rows;
    if (sscanf(name, "%31[^.].%31[^.].%d", model, what, &rows) != 3 || rows > MOST_ROWS)
        must(false, &(struct error){ .message = "a case that is no MODEL.WHAT.ROWS" });
    s.rows = rows;
    s.what = what;
    for (int i = 0; i < SMALL_UNETS; i++)
        if (strcmp(small_unets[i].name, model) == 0) {
            s.unet = small_unet(&small_unets[i], kernels, dtype);
            s.h = small_unets[i].h;
            s.w = small_unets[i].w;
        }
    if (!s.unet)
        open_folder(&s, folder);
    start(&s);
    float *d_context = zeros(s.text ? 0 : tensor_elements(&s.context), sizeof(float));
    const struct tape_figures figures = run_pass(&s, false, d_context);
    if (s.text)
        has_as_many_calls(name, &figures);
    if (dtype == DTYPE_BF16)
        compare_bf16(&s, goldens, name, d_context);
    else
        compare(&s, goldens, name, d_context, &figures);
    checkpointing_changes_no_bits(&s, name, d_context, &figures);
    /* A weight in bf16 is not always packed again to the same bits from what it unpacks to. */
    for (int checkpointing = 0; dtype == DTYPE_F32 && checkpointing < 2; checkpointing++)
        (void)has_the_same_bits(&s, name, d_context, checkpointing, true);
    free(d_context);
    finish(&s);
}

/* The operations of a CUDA device, tested with the smallest model. Returns main's return value. */
static int run_on_cuda(struct safetensors *goldens) {
    struct error err = { 0 };
    const struct kernels *device = devices_open(
        &(struct device_choice){ .kind = DEVICE_CUDA }, &err);
    if (!device)
        return check_no_device(err.message);
    struct device_memory counting = *device->memory;
    struct kernels cuda = *device;
    counted = device->memory;
    counting.alloc = counting_alloc;
    cuda.memory = &counting;
    run_case(&cuda, DTYPE_F32, goldens, "unet_sd2.everything.3", NULL);
    run_case(&cuda, DTYPE_F32, goldens, "unet_sd2.full.3", NULL);
    return check_done();
}

int main(int argc, char **argv) {
    struct safetensors *goldens = reference_open(argc > 1 ? argv[1] : "gradients.safetensors");
    const struct safetensors_header *header = safetensors_get_header(goldens);
    if (argc > 2 && strcmp(argv[2], "cuda") == 0) {
        const int status = run_on_cuda(goldens);
        for (int i = 0; i < PROJECTIONS; i++)
            free(vectors[i]);
        safetensors_close(goldens);
        return status;
    }
    struct device_memory counting = host_memory;
    counted = &host_memory;
    struct kernels cpu = *kernels_cpu(), reference = *kernels_reference();
    counting.alloc = counting_alloc;
    cpu.memory = reference.memory = &counting;
    for (size_t i = 0; i < header->count; i++) {
        const char *name = header->entries[i].name;
        const bool small = strncmp(name, "unet_", 5) == 0;
        if (strchr(name, '/') || (argc <= 2 && !small))
            continue;
        run_case(&cpu, DTYPE_F32, goldens, name, argc > 2 ? argv[2] : NULL);
        if (small)
            run_case(&cpu, DTYPE_BF16, goldens, name, NULL);
        if (strncmp(name, "unet_sd2", 8) == 0) /* the reference is slow on the others */
            run_case(&reference, DTYPE_F32, goldens, name, NULL);
    }
    for (int i = 0; i < PROJECTIONS; i++)
        free(vectors[i]);
    safetensors_close(goldens);
    return check_done();
}
