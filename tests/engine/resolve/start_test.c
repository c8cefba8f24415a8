/* The noise and the latents with which an image begins, compared with torch: noise that a subseed
 * or another size varies, pictures whose masked part is replaced, and pictures whose latents are
 * resized. tests/reference/starts.py recorded them.
 *
 * usage: start_test STARTS.json */
#include "base/text/json.h"
#include "engine/resolve/source.h"
#include "tests/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOLERANCE 2e-6 /* values reach 4 */
#define SCALE 8        /* px per latent */

struct case_ {
    struct latent_shape shape;
    struct noise_variation variation;
    int64_t latents[2]; /* of the picture */
    enum masked_content content;
    bool masked, begins;
    const json_t *values, *json;
};

static int64_t item(const json_t *list, size_t i, int64_t otherwise) {
    return json_is_array(list) ? json_integer_value(json_array_get(list, i)) : otherwise;
}

static struct case_ read_case(const json_t *json) {
    const json_t *shape = json_object_get(json, "shape"), *from = json_object_get(json, "from");
    const json_t *latents = json_object_get(json, "latents");
    const char *content = json_string_value(json_object_get(json, "content"));
    struct case_ c = {
        .shape = { item(shape, 0, 0), item(shape, 1, 0), item(shape, 2, 0) },
        .variation = {
            .kind = RNG_CPU,
            .seed = (uint64_t)json_integer_value(json_object_get(json, "seed")),
            .strength = json_number_value(json_object_get(json, "strength")),
            .subseed = (uint64_t)json_integer_value(json_object_get(json, "subseed")),
            .height = item(from, 0, 0),
            .width = item(from, 1, 0),
        },
        .masked = content != NULL,
        .begins = json_is_true(json_object_get(json, "begins")),
        .values = json_object_get(json, "values"),
        .json = json,
    };
    c.content = !content || strcmp(content, "original") == 0 ? MASKED_ORIGINAL
                : strcmp(content, "noise") == 0              ? MASKED_NOISE
                                                             : MASKED_NOTHING;
    c.latents[0] = item(latents, 0, c.shape.height);
    c.latents[1] = item(latents, 1, c.shape.width);
    return c;
}

static int64_t elements(const struct case_ *c) {
    return c->shape.channels * c->shape.height * c->shape.width;
}

/* Returns the first noise of the case, malloc'd. */
static float *make_noise(const struct case_ *c) {
    struct noise_generator generator;
    struct error err = { 0 };
    float *noise = malloc((size_t)elements(c) * sizeof(*noise));
    noise_init(&generator, c->variation.kind, c->variation.seed);
    noise_draw(&generator, noise, elements(c));
    CHECK(noise_vary(&c->variation, &c->shape, noise, &err), "%s", err.message);
    return noise;
}

/* Returns the sample with which a picture begins, malloc'd. */
static float *make_start(const struct case_ *c) {
    const int64_t count = 2 * c->shape.channels * c->latents[0] * c->latents[1];
    float *moments = malloc((size_t)count * sizeof(*moments));
    struct source source = {
        .latent_height = c->latents[0], .latent_width = c->latents[1], .content = c->content
    };
    struct image_start start;
    struct noise_generator generator;
    struct error err = { 0 };
    for (int64_t i = 0; i < count; i++)
        moments[i] = (float)(i * 37 % 101) / 25 - 2;
    if (c->masked && picture_create((int)c->shape.width * SCALE, (int)c->shape.height * SCALE, 1,
                         &source.mask, &err))
        for (int y = 0; y < source.mask.height; y++)
            for (int x = 0; x < source.mask.width; x++)
                source.mask.pixels[y * source.mask.width + x] = (x / SCALE + 2 * (y / SCALE)) % 3 ==
                                                                0;
    const struct image_start_options options = { &source, moments, c->shape, c->variation, 0.18215f,
        0.6f, 0.8f, 1 };
    noise_init(&generator, RNG_CPU, c->variation.seed);
    CHECK(image_start_create(&options, &generator, &start, &err), "%s", err.message);
    float *sample = start.sample;
    start.sample = NULL;
    image_start_finish(&start);
    picture_finish(&source.mask);
    free(moments);
    return sample;
}

static void compare(const json_t *json, double *largest) {
    const struct case_ c = read_case(json);
    float *made = c.begins ? make_start(&c) : make_noise(&c);
    double most = 0;
    CHECK((int64_t)json_array_size(c.values) == elements(&c), "%zu values",
        json_array_size(c.values));
    for (int64_t i = 0; i < elements(&c); i++)
        most = fmax(
            most, fabs(json_number_value(json_array_get(c.values, (size_t)i)) - (double)made[i]));
    char *text = json_dumps(c.json, JSON_COMPACT);
    CHECK(most <= TOLERANCE, "%g away: %.160s", most, text);
    *largest = fmax(*largest, most);
    free(text);
    free(made);
}

/* What torch's CUDA generator draws is varied in the same way: at a strength of 1 it is the
 * subseed's noise. */
static void both_generators_are_varied(void) {
    struct case_ c = { .shape = { 4, 8, 8 },
        .variation = { .kind = RNG_CUDA, .seed = 3, .strength = 1, .subseed = 9 } };
    float *noise = make_noise(&c);
    struct case_ plain = c;
    plain.variation.seed = 9;
    plain.variation.strength = 0;
    float *other = make_noise(&plain);
    for (int i = 0; i < 256; i++)
        CHECK_NEAR(noise[i], other[i], 1e-6);
    free(noise);
    free(other);
}

/* A noise turned towards itself stays what it is. */
static void its_own_subseed_changes_nothing(void) {
    struct case_ c = { .shape = { 4, 8, 8 },
        .variation = { .kind = RNG_CPU, .seed = 3, .strength = 0.3, .subseed = 3 } };
    float *noise = make_noise(&c);
    c.variation.strength = 0;
    float *plain = make_noise(&c);
    for (int i = 0; i < 256; i++)
        CHECK_NEAR(noise[i], plain[i], 1e-6);
    free(noise);
    free(plain);
}

int main(int argc, char **argv) {
    struct error err;
    json_t *cases = argc == 2 ? json_parse_file(argv[1], 1 << 20, &err) : NULL;
    double largest = 0;
    CHECK(json_array_size(cases) > 20, "no cases");
    for (size_t i = 0; i < json_array_size(cases); i++)
        compare(json_array_get(cases, i), &largest);
    printf("%zu starts are torch's within %g\n", json_array_size(cases), largest);
    json_decref(cases);
    both_generators_are_varied();
    its_own_subseed_changes_nothing();
    return check_done();
}
