/* Training jobs for tests: a checkpoint, and pictures made by a rule in the same way as in
 * train_losses.py and full_losses.py. */
#ifndef TESTS_TRAIN_RULE_JOB_H
#define TESTS_TRAIN_RULE_JOB_H

#include "engine/scheduler/noise_schedule.h"
#include "models/checkpoint/checkpoint.h"
#include "tests/models/small/small_models.h"
#include "tests/train/recorded.h"
#include "train/trainer.h"

#include <stdlib.h>

#define STEPS 20
#define EXPECTED_MAX 8

static inline void must(bool ok, const struct error *err) {
    if (ok)
        return;
    printf("the test cannot run: %s\n", err->message);
    exit(1);
}

static inline void must_make(char *folder) {
    must(mkdtemp(folder), &(struct error){ .message = "no temporary folder" });
}

static inline void remove_folder(const char *path) {
    char command[64];
    snprintf(command, sizeof(command), "rm -r %s", path);
    CHECK(system(command) == 0, "%s is left", path);
}

/* --- the checkpoint without the trained models --- */

struct rule_checkpoint {
    const struct kernels *kernels;
    struct checkpoint *checkpoint;
    struct vae *vae; /* its encoder */
    struct tokenizer *tokenizer;
    struct noise_schedule noise;
};

static inline void rule_checkpoint_open(
    struct rule_checkpoint *r, const char *path, const struct kernels *kernels) {
    struct error err = { 0 };
    struct scheduler_config config;
    const struct scheduler_choice none = { 0 };
    *r = (struct rule_checkpoint){ .kernels = kernels };
    must(checkpoint_open(path, NULL, &r->checkpoint, &err), &err);
    struct checkpoint *c = r->checkpoint;
    const struct weights vae = weights_from_checkpoint(c, COMPONENT_VAE, kernels, DTYPE_F32);
    must(vae_create(checkpoint_vae_config(c), &vae, VAE_ENCODER, &r->vae, &err) &&
             tokenizer_from_checkpoint(c, &r->tokenizer, &err) &&
             scheduler_config_resolve(checkpoint_scheduler_json(c), &none, &config, &err) &&
             noise_schedule_init(&config, &r->noise, &err),
        &err);
}

static inline void rule_checkpoint_close(struct rule_checkpoint *r) {
    noise_schedule_finish(&r->noise);
    tokenizer_destroy(r->tokenizer);
    vae_destroy(r->vae);
    checkpoint_close(r->checkpoint);
}

/* Returns a trainer's models with this UNet and text encoder, borrowed. */
static inline struct trainer_models rule_checkpoint_models(
    const struct rule_checkpoint *r, struct unet *unet, struct text_encoder *text_encoder) {
    return (struct trainer_models){ .kernels = r->kernels,
        .unet = unet,
        .text_encoder = text_encoder,
        .vae = r->vae,
        .tokenizer = r->tokenizer,
        .alphas_cumprod = r->noise.alphas_cumprod,
        .num_train_timesteps = r->noise.num_train_timesteps };
}

/* --- pictures by the rule --- */

struct rule_pictures {
    const json_t *captions;
    const char *class_prompt;
    int block, mask_block, instances;
    int reads; /* of pixels */
    /* Reads that were announced and have not been made yet: at most `expected_max`, which is at
     * most EXPECTED_MAX. If it is 0, announcements are refused. */
    struct rule_expected {
        int64_t item;
        struct crop crop;
        bool with_mask;
    } expected[EXPECTED_MAX];
    int expected_count, expected_max, foretold; /* foretold: reads that came as announced */
    bool is_broken;                             /* the first pixel is NAN */
    struct placement placement;
};

static inline const struct placement *rule_placement(void *user, int64_t item) {
    (void)item;
    return &((const struct rule_pictures *)user)->placement;
}

static inline void rule_name(void *user, int64_t item, struct sha256 *to) {
    (void)user;
    sha256_add(to, &item, sizeof(item));
}

static inline int rule_captions(void *user, int64_t item) {
    (void)user, (void)item;
    return 1;
}

static inline const char *rule_caption(void *user, int64_t item, int which) {
    (void)which;
    const struct rule_pictures *p = user;
    return item < p->instances ? json_string_value(json_array_get(p->captions, (size_t)item))
                               : p->class_prompt;
}

/* Makes [height / block][width / block][channels] numbers by the rule, enlarges each to a block,
 * and crops the result. */
static inline void rule_blocks(const struct rule_pictures *p, const char *kind, int64_t item,
    int block, int channels, const struct crop *crop, float *out) {
    const struct placement *place = &p->placement;
    const int across = place->resized_width / block, down = place->resized_height / block;
    char name[40];
    double *rough = malloc(sizeof(double) * (size_t)(down * across * channels));
    const bool is_class = item >= p->instances;
    snprintf(name, sizeof(name), "%s.%s%lld", kind, is_class ? "class." : "",
        (long long)(is_class ? item - p->instances : item));
    rule_numbers(name, down * across * channels, rough);
    for (int y = 0; y < place->bucket.height; y++)
        for (int x = 0; x < place->bucket.width; x++) {
            const int column = crop->left + (crop->flip ? place->bucket.width - 1 - x : x);
            const double *from = rough +
                                 ((y + crop->top) / block * across + column / block) * channels;
            for (int c = 0; c < channels; c++)
                *out++ = (float)from[c];
        }
    free(rough);
}

static inline bool rule_is_same(const struct rule_expected *a, const struct rule_expected *b) {
    return a->item == b->item && a->crop.top == b->crop.top && a->crop.left == b->crop.left &&
           a->crop.flip == b->crop.flip && a->with_mask == b->with_mask;
}

static inline bool rule_expect(void *user, int64_t item, const struct crop *crop, bool with_mask) {
    struct rule_pictures *p = user;
    if (p->expected_count >= p->expected_max)
        return false;
    p->expected[p->expected_count++] = (struct rule_expected){ item, *crop, with_mask };
    return true;
}

static inline bool rule_expects(void *user) {
    return ((const struct rule_pictures *)user)->expected_count;
}

static inline bool rule_pixels(
    void *user, int64_t item, const struct crop *crop, float *out, float *mask, struct error *err) {
    (void)err;
    struct rule_pictures *p = user;
    p->reads++;
    const struct rule_expected read = { item, *crop, mask };
    if (p->expected_count && rule_is_same(&p->expected[0], &read)) {
        p->foretold++;
        memmove(p->expected, p->expected + 1, sizeof(read) * (size_t)--p->expected_count);
    } else {
        p->expected_count = 0;
    }
    rule_blocks(p, "picture", item, p->block, 3, crop, out);
    if (p->is_broken)
        out[0] = NAN;
    if (!mask)
        return true;
    rule_blocks(p, "mask", item, p->mask_block, 1, crop, mask);
    for (int i = 0; i < p->placement.bucket.width * p->placement.bucket.height; i++)
        mask[i] = mask[i] > 0 ? 1.0f : 0.0f;
    return true;
}

/* Returns the pictures of a recorded file, made `height` x `width` and cropped to the file's
 * "size". */
static inline struct rule_pictures rule_pictures_of(const json_t *file, int height, int width) {
    const int size = (int)recorded_integer(file, "size");
    const json_t *captions = json_object_get(file, "captions");
    return (struct rule_pictures){ .captions = captions,
        .block = (int)recorded_integer(file, "block"),
        .mask_block = (int)recorded_integer(file, "mask_block"),
        .instances = (int)json_array_size(captions),
        .placement = { width, height, { size, size }, false } };
}

static inline struct train_source rule_source_of(struct rule_pictures *pictures) {
    return (struct train_source){ .user = pictures,
        .count = pictures->instances,
        .placement = rule_placement,
        .name = rule_name,
        .captions = rule_captions,
        .caption = rule_caption,
        .pixels = rule_pixels,
        .expect = rule_expect,
        .expects = rule_expects };
}

/* --- the recorded steps --- */

struct rule_steps {
    double losses[STEPS], norms[STEPS], rates[STEPS];
    int count;
};

/* The `stepped` of struct trainer_options; `user`: a struct rule_steps. */
static inline void rule_stepped(void *user, const struct train_record *record) {
    struct rule_steps *steps = user;
    if (steps->count == STEPS)
        return;
    steps->losses[steps->count] = record->loss;
    steps->rates[steps->count] = record->learning_rate;
    steps->norms[steps->count++] = record->grad_norm;
}

/* Returns the largest relative differences of the first `count` losses and norms from the
 * reference. */
static inline void rule_steps_compare(
    const struct rule_steps *steps, const json_t *record, int count, double *loss, double *norm) {
    const json_t *losses = json_object_get(record, "losses");
    const json_t *norms = json_object_get(record, "grad_norms");
    *loss = *norm = 0;
    CHECK(steps->count >= count, "%d steps", steps->count);
    for (int i = 0; i < count; i++) {
        *loss = fmax(*loss, fabs(steps->losses[i] / recorded_at(losses, (size_t)i) - 1));
        *norm = fmax(*norm, fabs(steps->norms[i] / recorded_at(norms, (size_t)i) - 1));
    }
}

#endif
