#include "train/examples/held_out.h"

#include "train/data/python_random.h"

#include <stdlib.h>

struct held_out {
    struct held_out_options options;
    struct batch *batch; /* owned */
    struct pass *pass;   /* owned; for one picture of shape.height x shape.width */
    struct batch_shape shape;
    struct noise_generator generator;
    struct mt19937 masks;
    int64_t taken; /* draws done, summed over all pictures */
    bool in_batch, in_pass;
    double loss; /* their sum */
};

/* Makes a pass for pictures of this size, unless the current pass has this size. */
static bool make_pass(struct held_out *h, const struct batch_shape *shape, struct error *err) {
    if (h->pass && h->shape.height == shape->height && h->shape.width == shape->width)
        return true;
    struct pass_options options = h->options.pass;
    options.parameters = NULL;
    options.parameter_count = 0;
    options.checkpointing = false;
    options.rows = 1;
    options.height = shape->height;
    options.width = shape->width;
    pass_destroy(h->pass);
    h->pass = NULL;
    h->shape = *shape;
    return pass_create(&options, &h->pass, err);
}

static bool make_largest_pass(struct held_out *h, struct error *err) {
    const struct train_source *s = h->options.batch.source;
    struct batch_shape largest = { .rows = 1 };
    for (int64_t i = s->count; i < s->count + s->held_out; i++) {
        const struct encoded_size size = encoded_size(h->options.batch.encoded, i);
        if (size.height * size.width > largest.height * largest.width)
            largest = (struct batch_shape){ 1, size.height, size.width };
    }
    return make_pass(h, &largest, err);
}

bool held_out_create(
    const struct held_out_options *options, struct held_out **out, struct error *err) {
    *out = NULL;
    struct held_out *h = calloc(1, sizeof(*h));
    if (!h)
        return error_set(err, ERROR_NO_MEMORY, "no memory for held-out pictures");
    h->options = *options;
    if (batch_create(&options->batch, &h->batch, err) && make_largest_pass(h, err)) {
        *out = h;
        return true;
    }
    held_out_destroy(h);
    return false;
}

void held_out_destroy(struct held_out *h) {
    if (!h)
        return;
    pass_destroy(h->pass);
    batch_destroy(h->batch);
    free(h);
}

size_t held_out_bytes(const struct held_out *h) {
    return h ? pass_bytes(h->pass) : 0;
}

/* Begins the next draw of a picture, in two pieces: the first fetches its latents, the second
 * begins its pass. */
static bool begin(struct held_out *h, struct error *err) {
    const struct train_source *s = h->options.batch.source;
    bool ready;
    if (h->taken == 0 && !h->in_batch) {
        noise_init(&h->generator, RNG_CPU, h->options.seed);
        python_random_seed(&h->masks, h->options.seed);
        h->loss = 0;
    }
    if (!h->in_batch) {
        const int64_t item = s->count + h->taken / HELD_OUT_DRAWS;
        batch_begin_plain(h->batch, &item, 1, &h->masks);
        h->in_batch = true;
        return batch_fetch(h->batch, &ready, err);
    }
    const struct batch_shape shape = batch_get_shape(h->batch);
    const struct pass_batch batch = batch_take(h->batch, &h->generator, 1);
    h->in_pass = make_pass(h, &shape, err) && pass_begin(h->pass, &batch, err);
    return h->in_pass;
}

bool held_out_advance(struct held_out *h, bool *done, double *loss, struct error *err) {
    const int64_t draws = h->options.batch.source->held_out * HELD_OUT_DRAWS;
    bool taken;
    float row;
    *done = false;
    if (!h->in_pass)
        return begin(h, err);
    if (!pass_advance_forward(h->pass, &taken, &row, err))
        return false;
    if (!taken)
        return true;
    h->in_pass = h->in_batch = false;
    h->loss += (double)row;
    *done = ++h->taken == draws;
    if (*done) {
        *loss = h->loss / (double)draws;
        h->taken = 0;
    }
    return true;
}
