/* Drawings of a small model that begin in other ways than with a seed's noise. A noise that a
 * subseed or another size varies draws the same bits as this noise sent as init_latents. A picture
 * of the right size draws the same bits whether its latents may be resized or not. What a mask
 * keeps does not depend on the masked part's latents. */
#include "pictures/png_encode.h"
#include "tests/check.h"
#include "tests/engine/open_pipeline.h"
#include "tests/models/small/small_folder.h"

#include <stdlib.h>
#include <unistd.h>

#define ELEMENTS (4 * 8 * 8)

static struct generate_request new_request(void) {
    struct generate_request r;
    generate_request_init(&r);
    r.prompts = calloc(1, sizeof(*r.prompts));
    r.prompts[0] = strdup("a boat");
    r.prompt_count = 1;
    r.width = r.height = 64;
    r.num_inference_steps = 3;
    r.seed = 5, r.seed_given = true;
    r.latent_output = true;
    r.scheduler = (struct scheduler_choice){ .has_kind = true, .kind = SCHEDULER_DDIM };
    return r;
}

/* Draws the request and finishes it. Returns the latents of image `index`. */
static bool draw(
    struct pipeline *pipeline, struct generate_request *asked, int index, float latents[ELEMENTS]) {
    struct resolved_request r;
    struct generate_result result;
    struct error err = { 0 };
    bool ok = pipeline_resolve(pipeline, asked, &r, &err);
    CHECK(ok, "%s", err.message);
    if (ok) {
        ok = pipeline_generate(pipeline, &r, NULL, &result, &err);
        CHECK(ok, "%s", err.message);
        resolved_request_finish(&r);
    }
    if (ok) {
        memcpy(latents, result.latents + (size_t)index * ELEMENTS, sizeof(float) * ELEMENTS);
        generate_result_finish(&result);
    }
    generate_request_finish(asked);
    return ok;
}

static void variations_draw_as_their_noise(struct pipeline *pipeline) {
    static const struct {
        double strength;
        int width, height; /* px, of another size; 0: none */
        enum rng_kind rng;
    } rows[] = { { 0.3, 0, 0, RNG_CPU }, { 1, 0, 0, RNG_CUDA }, { 0, 128, 72, RNG_CPU },
        { 0.7, 64, 96, RNG_CUDA } };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct latent_shape shape = { 4, 8, 8 };
        const int index = rows[i].strength > 0; /* image 1 of two has the same seed */
        const struct noise_variation variation = { rows[i].rng, 5, rows[i].strength,
            9 + (uint64_t)index, rows[i].height / 8, rows[i].width / 8 };
        float varied[ELEMENTS], sent[ELEMENTS] = { 0 }, plain[ELEMENTS];
        struct noise_generator generator;
        struct error err = { 0 };
        struct generate_request r = new_request();
        r.num_images = 1 + index;
        r.rng = rows[i].rng;
        r.subseed = 9, r.subseed_given = true;
        r.subseed_strength = rows[i].strength;
        r.seed_resize_from_w = rows[i].width;
        r.seed_resize_from_h = rows[i].height;
        draw(pipeline, &r, index, varied);
        r = new_request();
        r.rng = rows[i].rng;
        r.init_latents = (struct init_latents){ malloc(sizeof(float) * ELEMENTS), 1, 4, 8, 8 };
        noise_init(&generator, rows[i].rng, 5);
        noise_draw(&generator, r.init_latents.values, ELEMENTS);
        CHECK(noise_vary(&variation, &shape, r.init_latents.values, &err), "%s", err.message);
        draw(pipeline, &r, 0, sent);
        CHECK(memcmp(varied, sent, sizeof(sent)) == 0, "row %zu: other bits than its noise", i);
        r = new_request();
        r.rng = rows[i].rng;
        draw(pipeline, &r, 0, plain);
        CHECK(memcmp(varied, plain, sizeof(plain)) != 0, "row %zu: as without a variation", i);
    }
    printf("%zu variations draw as their noise\n", sizeof(rows) / sizeof(rows[0]));
}

/* Makes a picture; with `half`, its left half is white and its right half black. */
static struct picture_file make_file(int width, int height, bool half) {
    static uint8_t rgb[128 * 128 * 3];
    uint8_t *bytes = NULL;
    struct picture_file file = { 0 };
    struct error err = { 0 };
    for (int i = 0; i < width * height * 3; i++)
        rgb[i] = half ? (uint8_t)(i / 3 % width < width / 2 ? 255 : 0) : (uint8_t)(i * 7 % 251);
    CHECK(png_encode(rgb, width, height, NULL, 0, &bytes, &file.size, &err), "%s", err.message);
    file.bytes = bytes;
    return file;
}

static void latents_of_its_own_size_are_not_resized(struct pipeline *pipeline) {
    float latents[2][ELEMENTS] = { { 0 } }, other[ELEMENTS];
    for (int i = 0; i < 2; i++) {
        struct generate_request r = new_request();
        r.init_image = make_file(64, 64, false);
        r.resize_mode = i ? RESIZE_MODE_LATENT : RESIZE_MODE_NONE;
        draw(pipeline, &r, 0, latents[i]);
    }
    CHECK(memcmp(latents[0], latents[1], sizeof(latents[0])) == 0, "other bits");
    struct generate_request r = new_request();
    r.init_image = make_file(128, 96, false);
    r.resize_mode = RESIZE_MODE_LATENT;
    CHECK(draw(pipeline, &r, 0, other), "a picture of another size");
    CHECK(memcmp(latents[0], other, sizeof(other)) != 0, "as the picture of this size");
}

/* The mask's left half, columns 0 to 3, is drawn anew. */
static void masks_keep_the_rest(struct pipeline *pipeline) {
    float latents[3][ELEMENTS] = { { 0 } };
    for (int content = MASKED_ORIGINAL; content <= MASKED_NOTHING; content++) {
        struct generate_request r = new_request();
        r.init_image = make_file(64, 64, false);
        r.mask_image = make_file(64, 64, true);
        r.strength = 0.7, r.strength_given = true;
        r.masked_content = (enum masked_content)content;
        draw(pipeline, &r, 0, latents[content]);
    }
    for (int a = 0; a < 3; a++) {
        const float *x = latents[a], *y = latents[(a + 1) % 3];
        int kept = 0, drawn = 0;
        for (int i = 0; i < ELEMENTS; i++) {
            kept += i % 8 >= 4 && x[i] == y[i];
            drawn += i % 8 < 4 && x[i] != y[i];
        }
        CHECK(kept == ELEMENTS / 2 && drawn > ELEMENTS / 4, "%d kept, %d drawn anew", kept, drawn);
    }
}

int main(void) {
    static const struct small_folder small = {
        .latent_channels = 4, .vae_blocks = 4, .sample_size = 8
    };
    char folder[] = "/tmp/starts_test_XXXXXX", path[64];
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof(path), "%s/small", folder);
    small_folder_write(path, &small);
    const struct pipeline_options options = {
        .model_path = path, .device = { .kind = DEVICE_CPU }, .dtype = { .dtype = DTYPE_F32 }
    };
    struct pipeline *pipeline = open_pipeline(&options);
    variations_draw_as_their_noise(pipeline);
    latents_of_its_own_size_are_not_resized(pipeline);
    masks_keep_the_rest(pipeline);
    pipeline_destroy(pipeline);
    small_folder_remove(path);
    rmdir(folder);
    return check_done();
}
