/* Batches of other ranks, skipped instead of computed. For jobs with every feature that draws
 * random numbers, one process computes two epochs of batches. Then each of three ranks goes through
 * the same epochs: it computes every third batch and skips the others. After every batch its
 * generators must be in the same state as in the one process, and the batches that it computes must
 * have the same bits.
 *
 * usage: batch_skip_test train_losses.json CHECKPOINT */
#include "base/sha256.h"
#include "tests/train/rule_job.h"
#include "train/data/python_random.h"
#include "train/examples/batch.h"
#include "train/examples/order.h"

#define EPOCHS 2
#define WORLD 3
#define BATCHES_MAX 64
#define SCALE 0.375

/* What a job draws, beside the fields of its configuration. */
struct features {
    const char *name, *fields; /* fields: JSON */
    bool inpainting, two_sizes, v_prediction, ids_only;
    int margin;   /* px by which pictures are larger than their crop */
    int captions; /* of each picture */
    int side;     /* px of a crop */
};

static const struct features cases[] = {
    { "nothing optional", "{}", .side = 24 },
    { "one latent of four numbers", "{\"train_batch_size\": 1}", .side = 8 },
    { "random_flip", "{\"random_flip\": true}", .side = 24 },
    { "caption_dropout", "{\"caption_dropout\": 0.4}", .side = 24 },
    { "noise_offset", "{\"noise_offset\": 0.1}", .side = 24 },
    { "noise_offset, batch 5", "{\"noise_offset\": 0.1, \"train_batch_size\": 5}", .side = 16 },
    { "input_perturbation", "{\"input_perturbation\": 0.1}", .side = 24 },
    { "random crops", "{}", .side = 16, .margin = 9 },
    { "crops drawn once", "{\"cache_latents\": true}", .side = 16, .margin = 9 },
    { "crops to the middle", "{\"center_crop\": true}", .side = 16, .margin = 9 },
    { "several captions", "{}", .side = 16, .captions = 3 },
    { "shuffle_caption", "{\"shuffle_caption\": true}", .side = 16, .captions = 2 },
    { "snr_gamma", "{\"snr_gamma\": 5}", .side = 16 },
    { "snr_gamma, v", "{\"snr_gamma\": 5}", .side = 16, .v_prediction = true },
    { "token ids", "{\"train_text_encoder\": true}", .side = 16, .ids_only = true },
    { "two sizes", "{\"enable_bucket\": true}", .side = 16, .two_sizes = true },
    { "prior preservation",
        "{\"with_prior_preservation\": true, \"class_prompt\": \"a house\", "
        "\"prior_loss_weight\": 0.7, \"random_flip\": true, \"snr_gamma\": 5}",
        .side = 16, .margin = 3 },
    { "random masks", "{\"masks\": \"random\"}", .side = 24, .inpainting = true },
    { "masks in files", "{\"masks\": \"files\"}", .side = 24, .inpainting = true },
    { "all but class pictures",
        "{\"masks\": \"random\", \"random_flip\": true, \"caption_dropout\": 0.3, "
        "\"noise_offset\": 0.05, \"input_perturbation\": 0.2, \"shuffle_caption\": true, "
        "\"snr_gamma\": 3, \"enable_bucket\": true, \"train_batch_size\": 3}",
        .side = 16, .margin = 5, .captions = 3, .inpainting = true, .two_sizes = true },
    { "all but two sizes",
        "{\"masks\": \"random\", \"random_flip\": true, \"caption_dropout\": 0.3, "
        "\"noise_offset\": 0.05, \"input_perturbation\": 0.2, \"shuffle_caption\": true, "
        "\"snr_gamma\": 3, \"with_prior_preservation\": true, \"class_prompt\": \"a house\"}",
        .side = 24, .margin = 5, .captions = 2, .inpainting = true, .v_prediction = true },
};

static struct rule_checkpoint shared;
static struct text_encoder *text_encoder;
static const json_t *recorded; /* train_losses.json */
static char cache_path[] = "/tmp/latentd-skip-XXXXXX";

/* --- pictures --- */

struct pictures {
    struct rule_pictures rule;
    struct placement placements[2];
    int captions;
};

/* With two sizes, every third picture is a wide one. */
static const struct placement *placement_of(void *user, int64_t item) {
    const struct pictures *p = user;
    return &p->placements[item % 3 == 1];
}

static int captions_of(void *user, int64_t item) {
    const struct pictures *p = user;
    return item < p->rule.instances && p->captions ? p->captions : 1;
}

static const char *caption_of(void *user, int64_t item, int which) {
    static const char *const lists[] = { "red, house, tree, door", "blue, boat, night",
        "sea, sand, three trees" };
    struct pictures *p = user;
    return item < p->rule.instances && p->captions ? lists[(item + which) % 3]
                                                   : rule_caption(&p->rule, item, which);
}

static bool pixels_of(
    void *user, int64_t item, const struct crop *crop, float *out, float *mask, struct error *err) {
    struct pictures *p = user;
    p->rule.placement = *placement_of(user, item);
    return rule_pixels(&p->rule, item, crop, out, mask, err);
}

/* The size is in the name too: cases share the cache, and their pictures differ. */
static void name_of(void *user, int64_t item, struct sha256 *to) {
    const struct placement *p = placement_of(user, item);
    sha256_add(to, p, sizeof(*p));
    rule_name(user, item, to);
}

/* --- a job's batches --- */

struct job {
    const struct features *features;
    struct train_config config;
    struct pictures pictures;
    struct train_source source;
    struct shuffle_options shuffle;
    struct encoded *encoded;
    struct batch *batch;
    int32_t buckets[64];
};

/* The state of a job between two batches. */
struct drawn {
    struct noise_generator generator;
    struct mt19937 masks;
};

/* What is compared of a batch. */
struct outcome {
    struct drawn after;
    struct digest input; /* of everything that the pass reads; zeros if it was skipped */
};

static void make_source(struct job *job) {
    const struct features *f = job->features;
    const int side = f->side, full = side + f->margin;
    struct pictures *p = &job->pictures;
    p->rule = rule_pictures_of(recorded, side, side);
    p->rule.class_prompt = job->config.class_prompt;
    p->rule.block = p->rule.mask_block = 1;
    p->captions = f->captions;
    p->placements[0] = (struct placement){ full, full, { side, side }, false };
    p->placements[1] = p->placements[0];
    if (f->two_sizes)
        p->placements[1] = (struct placement){ 2 * side + 1, full, { 2 * side, side }, false };
    job->source = (struct train_source){ .user = p,
        .count = p->rule.instances,
        .class_count = job->config.with_prior_preservation ? 3 : 0,
        .placement = placement_of,
        .name = name_of,
        .captions = captions_of,
        .caption = caption_of,
        .pixels = pixels_of };
    for (int64_t i = 0; i < batch_samples(&job->config, &job->source); i++)
        job->buckets[i] = f->two_sizes && i % 3 == 1;
}

static enum encoded_masks masks_of(const struct job *job) {
    return !job->features->inpainting               ? ENCODED_MASKS_NONE
           : job->config.masks == TRAIN_MASKS_FILES ? ENCODED_MASKS_FILES
                                                    : ENCODED_MASKS_DRAWN;
}

static struct batch_options batch_options_of(const struct job *job) {
    return (struct batch_options){ .config = &job->config,
        .source = &job->source,
        .encoded = job->encoded,
        .vae = shared.vae,
        .alphas_cumprod = shared.noise.alphas_cumprod,
        .num_train_timesteps = shared.noise.num_train_timesteps,
        .v_prediction = job->features->v_prediction,
        .inpainting = job->features->inpainting };
}

static void init(struct job *job, const struct features *f) {
    struct error err = { 0 };
    *job = (struct job){ .features = f };
    json_t *fields = json_loads(f->fields, 0, NULL);
    CHECK(fields, "%s: %s", f->name, f->fields);
    json_object_update_missing_new(
        fields, json_pack("{s:s, s:s, s:i, s:i}", "name", "test", "dataset", "test",
                    "max_train_steps", 1, "train_batch_size", 2));
    must(train_config_parse(fields, &job->config, &err), &err);
    json_decref(fields);
    const struct train_config *c = &job->config;
    make_source(job);
    must(encoded_create(&(struct encoded_options){ .kernels = shared.kernels,
                            .vae = shared.vae,
                            .text_encoder = text_encoder,
                            .tokenizer = shared.tokenizer,
                            .source = &job->source,
                            .cache = cache_path,
                            .masks = masks_of(job),
                            .flipped = c->random_flip,
                            .ids_only = f->ids_only,
                            .center_crop = c->center_crop,
                            .cut_once = c->cache_latents,
                            .seed = 5,
                            .shuffle = c->shuffle_caption ? &job->shuffle : NULL },
             &job->encoded, &err),
        &err);
    const struct batch_options options = batch_options_of(job);
    must(batch_create(&options, &job->batch, &err), &err);
}

static void finish(struct job *job) {
    batch_destroy(job->batch);
    encoded_destroy(job->encoded);
    train_config_finish(&job->config);
}

static struct drawn begin(void) {
    struct drawn drawn;
    noise_init(&drawn.generator, RNG_CPU, 5);
    python_random_seed(&drawn.masks, 5);
    return drawn;
}

static bool same_drawn(const struct drawn *a, const struct drawn *b) {
    const struct noise_generator *x = &a->generator, *y = &b->generator;
    return memcmp(&x->mt, &y->mt, sizeof(x->mt)) == 0 && x->has_cached == y->has_cached &&
           memcmp(&x->cached, &y->cached, sizeof(x->cached)) == 0 && x->offset == y->offset &&
           memcmp(&a->masks, &b->masks, sizeof(a->masks)) == 0;
}

static struct digest digest_of(const struct job *job, const struct pass_batch *in) {
    const struct batch_shape shape = batch_get_shape(job->batch);
    const size_t pixels = (size_t)(shape.rows * shape.height * shape.width) * sizeof(float);
    struct sha256 sha;
    sha256_begin(&sha);
    sha256_add(&sha, &shape, sizeof(shape));
    sha256_add(&sha, in->weights, (size_t)shape.rows * sizeof(*in->weights));
    sha256_add(&sha, in->noisy, pixels * (job->features->inpainting ? 9 : 4));
    sha256_add(&sha, in->target, pixels * 4);
    sha256_add(&sha, in->timesteps, (size_t)shape.rows * sizeof(*in->timesteps));
    sha256_add(&sha, in->context, (size_t)shape.rows * encoded_caption_bytes(job->encoded));
    return sha256_end(&sha);
}

static void compute(struct job *job, int64_t epoch, const int64_t *samples, int64_t count,
    struct drawn *drawn, struct outcome *out) {
    struct error err = { 0 };
    bool done = false;
    batch_begin(job->batch, epoch, samples, count, &drawn->generator, &drawn->masks);
    while (!done)
        must(batch_fetch(job->batch, &done, &err), &err);
    const struct pass_batch in = batch_take(job->batch, &drawn->generator, SCALE);
    out->input = digest_of(job, &in);
    out->after = *drawn;
}

/* Goes through the epochs as rank `rank` of `world`, which computes batch m if m % world is rank.
 * Returns the number of batches. */
static int64_t run(struct job *job, int rank, int world, struct outcome *out) {
    const struct order_options options = { .seed = 5,
        .count = batch_samples(&job->config, &job->source),
        .batch_size = (int)job->config.train_batch_size,
        .world = 1,
        .buckets = job->buckets,
        .bucket_count = job->features->two_sizes ? 2 : 1 };
    struct error err = { 0 };
    struct drawn drawn = begin();
    int64_t at = 0;
    for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
        struct order order = { 0 };
        must(order_init(&options, epoch, &order, &err), &err);
        for (int64_t m = 0; m < order.batches && at < BATCHES_MAX; m++, at++) {
            const int64_t *samples = order.items + order.starts[m];
            const int64_t count = order.starts[m + 1] - order.starts[m];
            if (m % world == rank) {
                compute(job, epoch, samples, count, &drawn, &out[at]);
                continue;
            }
            out[at] = (struct outcome){ 0 };
            batch_skip(job->batch, samples, count, &drawn.generator, &drawn.masks);
            out[at].after = drawn;
        }
        order_finish(&order);
    }
    CHECK(at < BATCHES_MAX, "%lld batches", (long long)at);
    return at;
}

/* Returns whether both have the same bits, as far as `got` was computed. */
static bool is_same(const struct outcome *want, const struct outcome *got, bool computed) {
    return same_drawn(&want->after, &got->after) &&
           (!computed || memcmp(&want->input, &got->input, sizeof(got->input)) == 0);
}

/* A skip with copies of the generators, between the fetches of a batch, changes nothing in it. */
static void a_batch_in_progress_stays(struct job *job) {
    const int64_t samples[] = { 0, 3 }, other[] = { 4, 1 };
    const int64_t count = job->config.train_batch_size < 2 ? 1 : 2;
    struct error err = { 0 };
    struct outcome want = { 0 }, got = { 0 };
    struct drawn drawn = begin();
    compute(job, 0, samples, count, &drawn, &want);
    drawn = begin();
    bool done = false;
    batch_begin(job->batch, 0, samples, count, &drawn.generator, &drawn.masks);
    must(batch_fetch(job->batch, &done, &err), &err);
    struct drawn copy = drawn;
    batch_skip(job->batch, other, count, &copy.generator, &copy.masks);
    CHECK(!same_drawn(&copy, &drawn), "%s: nothing is skipped", job->features->name);
    while (!done)
        must(batch_fetch(job->batch, &done, &err), &err);
    const struct pass_batch in = batch_take(job->batch, &drawn.generator, SCALE);
    got.input = digest_of(job, &in);
    got.after = drawn;
    CHECK(is_same(&want, &got, true), "%s: a skip changes the batch in progress",
        job->features->name);
}

/* A batch may have as many rows as a pass. Fewer samples than train_batch_size make smaller ones.
 */
static void large_batches_are_refused(struct job *job) {
    struct error err = { 0 };
    struct batch *batch = NULL;
    struct train_source many = job->source;
    struct batch_options options = batch_options_of(job);
    const bool prior = job->config.with_prior_preservation;
    const int64_t size = job->config.train_batch_size, most = TRAIN_PASS_ROWS_MAX / (1 + prior);
    char words[80];
    snprintf(words, sizeof(words), "train_batch_size is %d; at most %d", (int)most + 1, (int)most);
    many.count = most + 1;
    options.source = &many;
    job->config.train_batch_size = most + 1;
    CHECK(!batch_create(&options, &batch, &err) && !batch && err.code == ERROR_INVALID,
        "%s: a batch of %lld samples is made", job->features->name, (long long)most + 1);
    CHECK_CONTAINS(err.message, words);
    printf("%s: %s\n", job->features->name, err.message);
    options.source = &job->source;
    must(batch_create(&options, &batch, &err), &err);
    batch_destroy(batch);
    job->config.train_batch_size = size;
}

int main(int argc, char **argv) {
    static struct outcome want[BATCHES_MAX], got[BATCHES_MAX];
    struct error err = { 0 };
    json_t *file = recorded_load(argc, argv);
    if (argc < 3 || !file)
        return 2;
    recorded = file;
    must_make(cache_path);
    rule_checkpoint_open(&shared, argv[2], kernels_cpu());
    const struct weights weights = weights_from_checkpoint(
        shared.checkpoint, COMPONENT_TEXT_ENCODER, shared.kernels, DTYPE_F32);
    must(text_encoder_create(
             checkpoint_text_encoder_config(shared.checkpoint), &weights, &text_encoder, &err),
        &err);
    const int count = sizeof(cases) / sizeof(cases[0]);
    int64_t skipped = 0, computed = 0;
    for (int i = 0; i < count; i++) {
        struct job job;
        init(&job, &cases[i]);
        const int64_t batches = run(&job, 0, 1, want);
        for (int rank = 0; rank < WORLD; rank++) {
            const int64_t also = run(&job, rank, WORLD, got);
            CHECK(also == batches, "%lld batches, not %lld", (long long)also, (long long)batches);
            for (int64_t m = 0; m < batches; m++) {
                const bool own = m % (batches / EPOCHS) % WORLD == rank;
                CHECK(is_same(&want[m], &got[m], own), "%s: rank %d, batch %lld, %s", cases[i].name,
                    rank, (long long)m, own ? "computed" : "skipped");
                computed += own;
                skipped += !own;
            }
        }
        if (!cases[i].two_sizes)
            a_batch_in_progress_stays(&job);
        if (i == 0 || job.config.with_prior_preservation)
            large_batches_are_refused(&job);
        finish(&job);
    }
    printf("%d configurations, %d ranks: after %lld skipped and %lld computed batches the states "
           "are those of one process\n",
        count, WORLD, (long long)skipped, (long long)computed);
    text_encoder_destroy(text_encoder);
    rule_checkpoint_close(&shared);
    remove_folder(cache_path);
    json_decref(file);
    return check_done();
}
