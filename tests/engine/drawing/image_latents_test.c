/* Drawings that begin with a picture, compared with diffusers: image to image and both kinds of
 * inpainting, with every scheduler that diffusers has. tests/reference/image_latents.py recorded
 * them from the bundled checkpoint. Float32 on both sides.
 *
 * usage: image_latents_test MODEL_FOLDER LATENTS.safetensors */
#include "engine/loop/pipeline.h"
#include "models/checkpoint/safetensors.h"
#include "pictures/png_encode.h"
#include "tests/check.h"
#include "tests/kernels/cpu/level.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOLERANCE 1e-4 /* a share of the latents' norm */
#define MOVES 10       /* a multiple of `moved`; see latents_test.c */
#define BAR 1e-3       /* never more */

static double number(const json_t *item, const char *key) {
    return json_number_value(json_object_get(item, key));
}

static const char *text(const json_t *item, const char *key) {
    return json_string_value(json_object_get(item, key));
}

static int side(const json_t *item, const char *key, size_t i) {
    return (int)json_integer_value(json_array_get(json_object_get(item, key), i));
}

/* --- an inpainting checkpoint --- */

/* Writes the bundled UNet's tensors. Widens conv_in from [48][4][3][3] to [48][9][3][3] in the same
 * way as the reference script. */
static bool write_wide_unet(const char *from, const char *to) {
    struct safetensors *file;
    struct error err = { 0 };
    if (!safetensors_open(from, &file, &err))
        return false;
    const struct safetensors_header *header = safetensors_get_header(file);
    struct safetensors_item *items = calloc(header->count, sizeof(*items));
    static float wide[48 * 9 * 9], narrow[48 * 4 * 9], more[48 * 5 * 9];
    struct noise_generator generator;
    noise_init(&generator, RNG_CPU, 9);
    noise_draw(&generator, more, 48 * 5 * 9);
    bool ok = true;
    for (size_t i = 0; i < header->count && ok; i++) {
        items[i].name = header->entries[i].name;
        ok = safetensors_view(file, i, &items[i].tensor, &err);
        if (strcmp(items[i].name, "conv_in.weight") != 0)
            continue;
        convert_elements(
            narrow, DTYPE_F32, items[i].tensor.data, items[i].tensor.dtype, 48 * 4 * 9);
        for (int n = 0; n < 48; n++) {
            memcpy(wide + n * 81, narrow + n * 36, 36 * sizeof(float));
            for (int k = 0; k < 45; k++)
                wide[n * 81 + 36 + k] = more[n * 45 + k] * 0.05f;
        }
        items[i].tensor = tensor_4d(wide, DTYPE_F32, 48, 9, 3, 3);
    }
    ok = ok && safetensors_write(to, items, header->count, NULL, &err);
    CHECK(ok, "%s", err.message);
    free(items);
    safetensors_close(file);
    return ok;
}

/* Makes the folder `to`. The other parts of the bundled checkpoint are linked into it. */
static bool write_inpainting_checkpoint(const char *bundled, const char *to) {
    static const char *const parts[] = { "text_encoder", "vae", "scheduler", "tokenizer" };
    char from_path[512], to_path[512];
    if (mkdir(to, 0755) != 0)
        return false;
    for (int i = 0; i < 4; i++) {
        snprintf(from_path, sizeof(from_path), "%s/%s", bundled, parts[i]);
        snprintf(to_path, sizeof(to_path), "%s/%s", to, parts[i]);
        if (symlink(from_path, to_path) != 0)
            return false;
    }
    snprintf(to_path, sizeof(to_path), "%s/unet", to);
    if (mkdir(to_path, 0755) != 0)
        return false;
    snprintf(from_path, sizeof(from_path), "%s/unet/config.json", bundled);
    snprintf(to_path, sizeof(to_path), "%s/unet/config.json", to);
    json_t *config = json_load_file(from_path, 0, NULL);
    json_object_set_new(config, "in_channels", json_integer(9));
    const bool ok = json_dump_file(config, to_path, 0) == 0;
    json_decref(config);
    snprintf(from_path, sizeof(from_path), "%s/unet/diffusion_pytorch_model.safetensors", bundled);
    snprintf(to_path, sizeof(to_path), "%s/unet/diffusion_pytorch_model.safetensors", to);
    return ok && write_wide_unet(from_path, to_path);
}

static void remove_inpainting_checkpoint(const char *folder) {
    static const char *const names[] = { "text_encoder", "vae", "scheduler", "tokenizer",
        "unet/config.json", "unet/diffusion_pytorch_model.safetensors" };
    char path[512];
    for (int i = 0; i < 6; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    snprintf(path, sizeof(path), "%s/unet", folder);
    rmdir(path);
    rmdir(folder);
}

/* --- a case --- */

static void encode(const uint8_t *rgb, int width, int height, struct picture_file *out) {
    struct error err = { 0 };
    uint8_t *bytes = NULL;
    CHECK(png_encode(rgb, width, height, NULL, 0, &bytes, &out->size, &err), "%s", err.message);
    out->bytes = bytes;
}

static void fill_pictures(const json_t *item, struct generate_request *request) {
    const int width = side(item, "picture", 0), height = side(item, "picture", 1);
    uint8_t *rgb = malloc((size_t)(width * height) * 3);
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            uint8_t *p = rgb + 3 * (y * width + x);
            p[0] = (uint8_t)(x * 5);
            p[1] = (uint8_t)(y * 3);
            p[2] = (uint8_t)(x * y / 16);
        }
    encode(rgb, width, height, &request->init_image);
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            const int dx = x - width / 2, dy = y - height / 3;
            memset(rgb + 3 * (y * width + x), dx * dx + dy * dy <= 18 * 18 ? 255 : 0, 3);
        }
    if (strcmp(text(item, "kind"), "img2img") != 0)
        encode(rgb, width, height, &request->mask_image);
    free(rgb);
}

static void parse_request(const json_t *item, struct generate_request *request) {
    struct error err = { 0 };
    generate_request_init(request);
    request->prompts = calloc(1, sizeof(*request->prompts));
    request->prompts[0] = strdup(text(item, "prompt"));
    request->prompt_count = 1;
    request->negative_prompt = strdup(text(item, "negative_prompt"));
    request->seed = (uint64_t)number(item, "seed");
    request->seed_given = true;
    request->num_images = (int)number(item, "num_images");
    request->num_inference_steps = (int)number(item, "steps");
    request->guidance_scale = number(item, "guidance_scale");
    request->guidance_scale_given = true;
    request->width = side(item, "size", 0);
    request->height = side(item, "size", 1);
    request->latent_output = true;
    request->strength_given = json_is_number(json_object_get(item, "strength"));
    request->strength = number(item, "strength");
    CHECK(field_from_text(&generate_fields[GENERATE_resize_mode].field, "",
              text(item, "resize_mode"), request, NULL),
        "resize_mode");
    json_t *choice = json_copy(json_object_get(item, "options"));
    json_object_set(choice, "name", json_object_get(item, "scheduler"));
    CHECK(scheduler_choice_from_json(choice, &request->scheduler, &err), "%s", err.message);
    json_decref(choice);
    fill_pictures(item, request);
}

/* |result - expected| / |expected|, infinity where the shapes differ. */
static double distance(const struct generate_result *r, const struct tensor *expected) {
    const int64_t *s = expected->shape;
    if (expected->rank != 4 || s[0] != r->image_count || s[1] != r->latent_channels ||
        s[2] != r->latent_height || s[3] != r->latent_width)
        return INFINITY;
    const float *values = expected->data;
    double off = 0, whole = 0;
    for (int64_t i = 0; i < tensor_elements(expected); i++) {
        off += ((double)r->latents[i] - values[i]) * ((double)r->latents[i] - values[i]);
        whole += (double)values[i] * values[i];
    }
    return sqrt(off / whole);
}

static void case_matches_diffusers(
    struct pipeline *pipeline, struct safetensors *file, size_t index, const json_t *item) {
    struct generate_request request;
    struct resolved_request resolved = { 0 };
    struct generate_result result = { 0 };
    struct tensor expected = { 0 };
    struct error err = { 0 };
    char name[32];
    snprintf(name, sizeof(name), "latents_%02zu", index);
    parse_request(item, &request);
    const ptrdiff_t at = safetensors_find(file, name);
    const bool ok = at >= 0 && safetensors_view(file, (size_t)at, &expected, &err) &&
                    pipeline_resolve(pipeline, &request, &resolved, &err) &&
                    pipeline_generate(pipeline, &resolved, NULL, &result, &err);
    CHECK(ok, "%s: %s", name, err.message);
    if (ok) {
        const double off = distance(&result, &expected);
        const double bound = fmin(BAR, fmax(TOLERANCE, MOVES * number(item, "moved")));
        printf("%s %-8s %-16s strength %g, %d calls: %.2g of the norm, at most %.2g; diffusers "
               "moves by %.2g\n",
            name, text(item, "kind"), text(item, "scheduler"), resolved.asked.strength,
            result.timings.steps, off, bound, number(item, "moved"));
        CHECK(off <= bound, "%s %s %s: %g", name, text(item, "kind"), text(item, "scheduler"), off);
    }
    generate_result_finish(&result);
    resolved_request_finish(&resolved);
    generate_request_finish(&request);
}

/* --- outside of the mask --- */

/* With a UNet of 4 input channels, the final latents outside of the mask are the picture's own. */
static void masked_latents_are_kept(struct pipeline *pipeline, const json_t *item) {
    struct generate_result drawn[2] = { 0 };
    struct error err = { 0 };
    for (int i = 0; i < 2; i++) {
        struct generate_request request;
        struct resolved_request resolved = { 0 };
        parse_request(item, &request);
        free(request.prompts[0]);
        request.prompts[0] = strdup(i ? "a boat on the sea" : "a cat");
        CHECK(pipeline_resolve(pipeline, &request, &resolved, &err) &&
                  pipeline_generate(pipeline, &resolved, NULL, &drawn[i], &err),
            "%s", err.message);
        resolved_request_finish(&resolved);
        generate_request_finish(&request);
    }
    int same = 0, other = 0;
    for (int i = 0; drawn[0].latents && drawn[1].latents && i < 4 * 8 * 8; i++) {
        same += drawn[0].latents[i] == drawn[1].latents[i];
        other += drawn[0].latents[i] != drawn[1].latents[i];
    }
    printf("two prompts, one mask: %d latents are the picture's, %d are drawn\n", same, other);
    /* The mask is sampled at 64 pixels. The circle of radius 18 px around (32, 21) covers 16 of
     * them. */
    CHECK(same == 4 * (64 - 16) && other == 4 * 16, "%d kept, %d drawn", same, other);
    generate_result_finish(&drawn[0]);
    generate_result_finish(&drawn[1]);
}

static struct pipeline *load(const char *path) {
    struct pipeline *pipeline = NULL;
    struct error err = { 0 };
    const struct pipeline_options options = { .model_path = path, .dtype = { .dtype = DTYPE_F32 } };
    CHECK(pipeline_create(&options, &pipeline, &err), "%s", err.message);
    return pipeline;
}

int main(int argc, char **argv) {
    struct error err = { 0 };
    struct safetensors *file = NULL;
    char wide[64];
    if (argc != 3)
        return 2;
    if (level_is_missing())
        return 77; /* skipped */
    snprintf(wide, sizeof(wide), "/tmp/image_latents_test.%d", (int)getpid());
    CHECK(safetensors_open(argv[2], &file, &err), "%s", err.message);
    CHECK(write_inpainting_checkpoint(argv[1], wide), "%s", wide);
    struct pipeline *narrow = load(argv[1]), *inpaints = load(wide);
    remove_inpainting_checkpoint(wide);
    if (!file || !narrow || !inpaints)
        return check_done();
    const json_t *metadata = safetensors_get_header(file)->metadata;
    json_t *cases = json_loads(text(metadata, "cases"), 0, NULL), *item;
    size_t index;
    bool kept = false;
    json_array_foreach(cases, index, item) {
        const char *kind = text(item, "kind");
        case_matches_diffusers(
            strcmp(kind, "inpaint9") == 0 ? inpaints : narrow, file, index, item);
        if (!kept && strcmp(kind, "inpaint") == 0) {
            masked_latents_are_kept(narrow, item);
            kept = true;
        }
    }
    CHECK(index >= 70, "%zu cases", index);
    json_decref(cases);
    pipeline_destroy(narrow);
    pipeline_destroy(inpaints);
    safetensors_close(file);
    return check_done();
}
