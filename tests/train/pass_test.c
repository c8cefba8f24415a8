/* A training pass on the small UNets. The losses must be the mean squared errors of the UNet's own
 * forward pass, and the gradients must match central differences of the f32 losses. Also a forward
 * pass alone, short pieces, and a second batch. tests/models/gradients_test.c compares the
 * gradients with torch's. */
#include "train/pass.h"

#include "tests/check.h"
#include "tests/models/find_weight.h"
#include "tests/models/small/small_models.h"

#include <stdlib.h>

#define ROWS 2
#define PAIRS 3
#define RANK 4

static const char *const targets[PAIRS] = {
    "mid_block.attentions.0.transformer_blocks.0.attn1.to_q",
    "mid_block.attentions.0.transformer_blocks.0.attn2.to_v", "conv_in"
};

static void must(bool ok, const struct error *err) {
    if (ok)
        return;
    printf("the test cannot run: %s\n", err->message);
    exit(1);
}

struct rig {
    struct unet *unet;
    struct row_overlay *overlay;
    struct low_rank_pair *pairs[PAIRS];
    float *gradients[PAIRS][2];
    struct tape_parameter parameters[PAIRS];
    int64_t h, w;
    struct pass_batch batch;
};

static const int32_t timesteps[ROWS] = { 981, 3 };
static const float weights[ROWS] = { 0.5f, 0.25f };

/* Fills the factors with numbers from the rule; the padding lanes get 0. */
static void fill(float *floats, int64_t count, int64_t lanes, const char *name, double size) {
    double *numbers = malloc((size_t)count * sizeof(*numbers));
    rule_numbers(name, count, numbers);
    for (int64_t i = 0; i < count; i++)
        floats[i] = i % LOW_RANK_PANEL < lanes ? (float)(size * numbers[i]) : 0;
    free(numbers);
}

static void set_up(struct rig *r) {
    struct error err = { 0 };
    const struct small_unet *small = &small_unets[0];
    *r = (struct rig){
        .unet = small_unet(small, kernels_cpu(), DTYPE_F32), .h = small->h, .w = small->w
    };
    must(row_overlay_create(&r->overlay, &err), &err);
    for (int i = 0; i < PAIRS; i++) {
        const struct named_weight *target = weight_list_find(unet_weights(r->unet), targets[i]);
        if (!target)
            must(false, &(struct error){ .message = "a target is missing" });
        must(low_rank_pair_create_zeros(
                 target->name, target->packed, target->n, RANK, NULL, &r->pairs[i], &err) &&
                 row_overlay_add_low_rank(
                     r->overlay, target->packed, target->first, r->pairs[i], 1.0f, &err),
            &err);
        const struct low_rank_factors f = low_rank_pair_factors(r->pairs[i]);
        fill(f.down, f.down_floats, RANK, targets[i], 0.3);
        fill(f.up, f.up_floats, f.n < LOW_RANK_PANEL ? f.n : LOW_RANK_PANEL, targets[i], 0.2);
        r->gradients[i][0] = calloc((size_t)f.down_floats, sizeof(float));
        r->gradients[i][1] = calloc((size_t)f.up_floats, sizeof(float));
        r->parameters[i] = (struct tape_parameter){ .kind = TAPE_PAIR,
            .what = r->pairs[i],
            .gradient = { r->gradients[i][0], r->gradients[i][1] } };
    }
    const int64_t pixels = ROWS * r->h * r->w;
    const struct unet_config *config = unet_get_config(r->unet);
    r->batch = (struct pass_batch){
        .noisy = rule_signal("noisy", pixels * config->in_channels),
        .target = rule_signal("target", pixels * config->out_channels),
        .timesteps = timesteps,
        .context = rule_signal("context", ROWS * SMALL_TOKENS * SMALL_CONTEXT_DIM),
        .weights = weights,
    };
}

static void tear_down(struct rig *r) {
    free((void *)r->batch.noisy);
    free((void *)r->batch.target);
    free((void *)r->batch.context);
    for (int i = 0; i < PAIRS; i++) {
        low_rank_pair_destroy(r->pairs[i]);
        free(r->gradients[i][0]);
        free(r->gradients[i][1]);
    }
    row_overlay_destroy(r->overlay);
    unet_destroy(r->unet);
}

static struct pass_options options_of(const struct rig *r, bool checkpointing) {
    return (struct pass_options){
        .kernels = kernels_cpu(),
        .unet = r->unet,
        .overlay = r->overlay,
        .parameters = r->parameters,
        .parameter_count = PAIRS,
        .rows = ROWS,
        .height = r->h,
        .width = r->w,
        .tokens = SMALL_TOKENS,
        .checkpointing = checkpointing,
    };
}

/* Runs one pass. Returns the number of pieces it took. */
static int run(const struct rig *r, struct pass *pass, bool backward, float losses[ROWS]) {
    struct error err = { 0 };
    int pieces = 0;
    bool done = false;
    must(pass_begin(pass, &r->batch, &err), &err);
    for (; !done; pieces++)
        must(backward ? pass_advance(pass, &done, losses, &err)
                      : pass_advance_forward(pass, &done, losses, &err),
            &err);
    return pieces;
}

struct model_call {
    const struct rig *r;
    float *out;
};

static void forward(struct compute *c, void *user) {
    const struct model_call *m = user;
    const struct rig *r = m->r;
    const struct row_overlay *rows[ROWS] = { r->overlay, r->overlay };
    const struct overlay overlay = { rows, ROWS };
    const struct unet_config *config = unet_get_config(r->unet);
    float t[ROWS] = { timesteps[0], timesteps[1] };
    const struct tensor context = tensor_3d(
        (void *)r->batch.context, DTYPE_F32, ROWS, SMALL_TOKENS, SMALL_CONTEXT_DIM);
    const struct tensor noisy = tensor_4d(
        (void *)r->batch.noisy, DTYPE_F32, ROWS, r->h, r->w, config->in_channels);
    const struct tensor times = tensor_1d(t, DTYPE_F32, ROWS);
    struct tensor out = tensor_4d(m->out, DTYPE_F32, ROWS, r->h, r->w, config->out_channels);
    c->overlay = &overlay;
    struct tensor kv = compute_tensor_3d(
        c, DTYPE_F32, ROWS, SMALL_TOKENS, unet_context_channels(r->unet));
    unet_encode_context(r->unet, c, &context, &kv);
    unet_forward(r->unet, c, &noisy, &times, &kv, NULL, &out);
    c->overlay = NULL;
}

static void losses_are_the_mean_squared_errors(const struct rig *r, const float losses[ROWS]) {
    const int64_t each = r->h * r->w * unet_get_config(r->unet)->out_channels;
    struct model_call call = { r, malloc(sizeof(float) * (size_t)(ROWS * each)) };
    run_model(kernels_cpu(), forward, &call);
    for (int row = 0; row < ROWS; row++) {
        double sum = 0;
        for (int64_t i = row * each; i < (row + 1) * each; i++)
            sum += pow((double)call.out[i] - (double)r->batch.target[i], 2);
        printf("row %d: loss %.8g\n", row, losses[row]);
        CHECK_NEAR(losses[row] / (sum / (double)each), 1, 1e-6);
    }
    free(call.out);
}

static double loss_of(const struct rig *r, struct pass *pass) {
    float losses[ROWS];
    (void)run(r, pass, false, losses);
    return weights[0] * (double)losses[0] + weights[1] * (double)losses[1];
}

/* Moves one factor along its own gradient: the slope of the loss must be the gradient's squared
 * norm. */
static void gradients_are_the_losses_own(const struct rig *r, struct pass *pass) {
    for (int i = 0; i < PAIRS; i++) {
        const struct low_rank_factors f = low_rank_pair_factors(r->pairs[i]);
        float *const factors[2] = { f.down, f.up };
        const int64_t counts[2] = { f.down_floats, f.up_floats };
        for (int part = 0; part < 2; part++) {
            const float *g = r->gradients[i][part];
            float *before = malloc(sizeof(float) * (size_t)counts[part]);
            memcpy(before, factors[part], sizeof(float) * (size_t)counts[part]);
            double square = 0, change[2];
            for (int64_t k = 0; k < counts[part]; k++)
                square += (double)g[k] * (double)g[k];
            const double step = 2e-2 / sqrt(square);
            for (int side = 0; side < 2; side++) {
                for (int64_t k = 0; k < counts[part]; k++)
                    factors[part][k] = before[k] + (float)((side ? -step : step) * (double)g[k]);
                change[side] = loss_of(r, pass);
            }
            memcpy(factors[part], before, sizeof(float) * (size_t)counts[part]);
            free(before);
            const double slope = (change[0] - change[1]) / (2 * step);
            printf("%s, %s: slope %.6g, gradient %.6g\n", targets[i], part ? "up" : "down",
                slope / sqrt(square), sqrt(square));
            CHECK_NEAR(slope / square, 1, 2e-3);
        }
    }
}

int main(void) {
    struct rig r;
    struct error err = { 0 };
    struct pass *pass, *again;
    float losses[ROWS], other[ROWS];
    set_up(&r);
    struct pass_options options = options_of(&r, false);
    must(pass_create(&options, &pass, &err), &err);
    const int pieces = run(&r, pass, true, losses);
    printf("%zu bytes, %d pieces\n", pass_bytes(pass), pieces);
    CHECK(pieces > 20, "%d pieces", pieces);
    losses_are_the_mean_squared_errors(&r, losses);
    gradients_are_the_losses_own(&r, pass);
    /* A pass after a forward pass alone and after an unfinished pass adds the same gradients
     * again. */
    float *first = malloc(sizeof(float) * (size_t)low_rank_pair_factors(r.pairs[0]).down_floats);
    const size_t count = (size_t)low_rank_pair_factors(r.pairs[0]).down_floats;
    memcpy(first, r.gradients[0][0], count * sizeof(float));
    bool done;
    must(pass_begin(pass, &r.batch, &err) && pass_advance(pass, &done, other, &err), &err);
    (void)run(&r, pass, true, other);
    int differ = 0;
    for (size_t i = 0; i < count; i++)
        differ += r.gradients[0][0][i] != 2 * first[i];
    CHECK(!differ && memcmp(losses, other, sizeof(losses)) == 0, "%d gradients differ", differ);
    /* Gradient checkpointing changes no bit. */
    options = options_of(&r, true);
    must(pass_create(&options, &again, &err), &err);
    memset(r.gradients[0][0], 0, count * sizeof(float));
    (void)run(&r, again, true, other);
    CHECK(memcmp(losses, other, sizeof(losses)) == 0 &&
              memcmp(first, r.gradients[0][0], count * sizeof(float)) == 0,
        "checkpointing changes bits");
    pass_destroy(again);
    options.rows = 1000;
    CHECK(!pass_create(&options, &again, &err) && !again, "1000 rows");
    CHECK_CONTAINS(err.message, "1000 pictures");
    free(first);
    pass_destroy(pass);
    tear_down(&r);
    return check_done();
}
