/* The safety checker against diffusers' (tests/reference/safety_checker.py): its scores for
 * pictures of many proportions, with both activations; and damaged files. usage:
 * safety_checker_test FOLDER */
#include "models/safety_checker.h"

#include "base/file.h"
#include "base/text/json.h"
#include "models/checkpoint/safetensors.h"
#include "tests/check.h"
#include "tests/models/small/small_models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SCORE_TOLERANCE 1e-3 /* scores are rounded to three decimals */

static const char *folder;

static json_t *read(const char *name) {
    char path[4096];
    struct error err = { 0 };
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    json_t *json = json_parse_file(path, CONFIG_MAX_BYTES, &err);
    if (!json)
        printf("%s\n", err.message);
    return json;
}

/* Gives weights from a file's tensors. */
static bool get(void *user, const char *name, int rank, const int64_t *shape, struct tensor *out,
    struct error *err) {
    struct safetensors *file = user;
    char own[SAFETENSORS_MAX_NAME_BYTES];
    ptrdiff_t entry = safetensors_find(file, name);
    if (entry < 0) { /* the name before transformers 5 */
        snprintf(own, sizeof(own), "vision_model.%s", name);
        entry = safetensors_find(file, own);
    }
    if (entry < 0 || !safetensors_view(file, (size_t)entry, out, err))
        return error_set(err, ERROR_INVALID, "tensor %s is missing", name);
    for (int i = 0; i < rank; i++)
        if (out->shape[i] != shape[i])
            return error_set(err, ERROR_INVALID, "tensor %s is misshapen", name);
    return true;
}

static void draw(int index, struct picture *out) {
    for (int y = 0; y < out->height; y++)
        for (int x = 0; x < out->width; x++)
            for (int c = 0; c < 3; c++) {
                const int slopes = (x * (3 + index) + y * (7 - index) + c * 40 * index) % 256;
                const int positive = slopes < 0 ? slopes + 256 : slopes;
                const int stripes = (x / (2 + index) + y / 5 + c) % 2 * 90;
                out->pixels[(y * out->width + x) * 3 + c] = (uint8_t)((positive + stripes) % 256);
            }
}

struct run {
    const struct safety_checker *checker;
    const float *input;
    float embedding[64];
};

static void forward(struct compute *c, void *user) {
    struct run *run = user;
    const struct safety_checker_config *config = safety_checker_get_config(run->checker);
    const int64_t side = config->image_size / config->patch_size, tokens = 1 + side * side;
    const int64_t numbers = 3 * config->patch_size * config->patch_size;
    struct tensor input = compute_tensor_2d(c, DTYPE_F32, tokens, numbers);
    struct tensor positions = compute_tensor_2d(c, DTYPE_F32, tokens, config->hidden_size);
    struct tensor embedding = compute_tensor_2d(c, DTYPE_F32, 1, config->projection_dim);
    compute_upload(c, run->input, &input);
    compute_upload(c, safety_checker_positions(run->checker), &positions);
    safety_checker_forward(run->checker, c, &input, &positions, &embedding);
    const float *seen = compute_view(c, &embedding);
    if (seen)
        memcpy(run->embedding, seen, tensor_bytes(&embedding));
}

static struct safety_checker *load(struct safetensors *file,
    const struct safety_checker_config *config, const struct kernels *kernels, enum dtype dtype) {
    struct safety_checker *checker = NULL;
    struct error err = { 0 };
    const struct weights w = { .get = get, .user = file, .kernels = kernels, .dtype = dtype };
    CHECK(safety_checker_create(config, &w, &checker, &err), "%s", err.message);
    return checker;
}

static double worst_of(const json_t *told, const double *scores, double worst) {
    size_t i;
    json_t *value;
    json_array_foreach(told, i, value)
        worst = fmax(worst, fabs(json_real_value(value) - scores[i]));
    return worst;
}

/* Compares the scores of every picture. Returns the largest difference. */
static double compare(const struct safety_checker *checker, const struct kernels *kernels,
    const json_t *sizes, const json_t *told, int *flagged, int *wrong) {
    double worst = 0;
    float *input = calloc((size_t)safety_checker_input_count(checker), sizeof(*input));
    for (size_t i = 0; i < json_array_size(sizes); i++) {
        const json_t *size = json_array_get(sizes, i), *expected = json_array_get(told, i);
        struct picture picture;
        struct safety_scores scores;
        struct error err = { 0 };
        struct run run = { .checker = checker, .input = input };
        CHECK(picture_create((int)json_integer_value(json_array_get(size, 0)),
                  (int)json_integer_value(json_array_get(size, 1)), 3, &picture, &err),
            "%s", err.message);
        draw((int)i, &picture);
        CHECK(safety_checker_read(checker, &picture, input, &err), "%s", err.message);
        run_model(kernels, forward, &run);
        safety_checker_score(checker, run.embedding, &scores);
        worst = worst_of(json_object_get(expected, "special"), scores.special, worst);
        worst = worst_of(json_object_get(expected, "concepts"), scores.concepts, worst);
        *wrong += scores.flagged != json_is_true(json_object_get(expected, "flagged"));
        *flagged += scores.flagged;
        picture_finish(&picture);
    }
    free(input);
    return worst;
}

static void matches_diffusers(
    struct safetensors *file, struct safety_checker_config config, const json_t *reference) {
    static const struct {
        const char *name;
        enum activation hidden_act;
    } cases[] = { { "quick_gelu", ACTIVATION_QUICK_GELU }, { "gelu", ACTIVATION_GELU } };
    const struct kernels *all[] = { kernels_reference(), kernels_cpu() };
    const json_t *sizes = json_object_get(reference, "sizes");
    for (size_t i = 0; i < 4; i++) {
        const struct kernels *kernels = all[i / 2];
        int flagged = 0, wrong = 0, rough_flagged = 0, rough_wrong = 0;
        config.hidden_act = cases[i % 2].hidden_act;
        struct safety_checker *checker = load(file, &config, kernels, DTYPE_F32);
        struct safety_checker *rough = load(file, &config, kernels, DTYPE_BF16);
        const json_t *told = json_object_get(reference, cases[i % 2].name);
        const double worst = compare(checker, kernels, sizes, told, &flagged, &wrong);
        const double bf16 = compare(rough, kernels, sizes, told, &rough_flagged, &rough_wrong);
        printf("%s, %s: scores of %zu pictures differ by %.4f at most, allowed %g; %d flagged, %d "
               "wrongly or not (bf16: %.4f, %d)\n",
            cases[i % 2].name, kernels->name, json_array_size(sizes), worst, SCORE_TOLERANCE,
            flagged, wrong, bf16, rough_wrong);
        CHECK(worst <= SCORE_TOLERANCE + 1e-6 && wrong == 0,
            "scores or flags differ from transformers'");
        CHECK(flagged > 0 && flagged < (int)json_array_size(sizes),
            "not exactly some of the pictures are flagged, so this test proves little");
        safety_checker_destroy(checker);
        safety_checker_destroy(rough);
    }
}

static void pixels_are_the_processors(
    struct safetensors *file, const struct safety_checker_config *config, const json_t *reference) {
    struct safety_checker *checker = load(file, config, kernels_reference(), DTYPE_F32);
    const json_t *size = json_array_get(json_object_get(reference, "sizes"), 1);
    float *input = calloc((size_t)safety_checker_input_count(checker), sizeof(*input));
    struct picture picture;
    struct error err = { 0 };
    double worst = 0;
    CHECK(picture_create((int)json_integer_value(json_array_get(size, 0)),
              (int)json_integer_value(json_array_get(size, 1)), 3, &picture, &err),
        "%s", err.message);
    draw(1, &picture);
    CHECK(safety_checker_read(checker, &picture, input, &err), "%s", err.message);
    for (int k = 0; k < 12; k++) { /* row 3, columns 5 to 8, across two patches */
        const int c = k / 4, x = 5 + k % 4, patch = 1 + x / 8;
        const float own = input[((patch * 3 + c) * 8 + 3) * 8 + x % 8];
        const json_t *told = json_array_get(json_object_get(reference, "pixels"), (size_t)k);
        worst = fmax(worst, fabs((double)own - json_real_value(told)));
    }
    printf("pixels differ by %.1e\n", worst);
    CHECK(worst <= 1e-5, "the image encoder's input pixels differ from transformers'");
    picture_finish(&picture);
    free(input);
    safety_checker_destroy(checker);
}

/* The file's tensors, with all thresholds replaced. */
struct thresholds {
    struct safetensors *file;
    float all[SAFETY_CONCEPTS];
};

static bool get_with_thresholds(void *user, const char *name, int rank, const int64_t *shape,
    struct tensor *out, struct error *err) {
    struct thresholds *t = user;
    if (!get(t->file, name, rank, shape, out, err))
        return false;
    if (strstr(name, "embeds_weights"))
        *out = tensor_1d(t->all, DTYPE_F32, shape[0]);
    return true;
}

/* diffusers flags scores above 0. If an embedding equals a concept, their cosine is 1. */
static void a_score_of_0_is_not_flagged(
    struct safetensors *file, const struct safety_checker_config *config) {
    static const struct {
        float threshold;
        double score;
        bool flagged;
    } rows[] = { { 1.002f, -0.002, false }, { 1, 0, false }, { 0.9996f, 0, false },
        { 0.998f, 0.002, true } };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct thresholds thresholds = { .file = file };
        struct safety_checker *checker = NULL;
        struct safety_scores scores;
        struct tensor concepts;
        struct error err = { 0 };
        float embedding[64];
        for (int k = 0; k < SAFETY_CONCEPTS; k++)
            thresholds.all[k] = rows[i].threshold;
        const struct weights w = { .get = get_with_thresholds,
            .user = &thresholds,
            .kernels = kernels_reference(),
            .dtype = DTYPE_F32 };
        const int64_t shape[2] = { SAFETY_CONCEPTS, config->projection_dim };
        CHECK(safety_checker_create(config, &w, &checker, &err) &&
                  get(file, "concept_embeds", 2, shape, &concepts, &err),
            "%s", err.message);
        if (!checker)
            return;
        convert_elements(
            embedding, DTYPE_F32, concepts.data, concepts.dtype, config->projection_dim);
        safety_checker_score(checker, embedding, &scores);
        printf("a threshold of %g: a score of %g, %sflagged\n", (double)rows[i].threshold,
            scores.concepts[0], scores.flagged ? "" : "not ");
        CHECK(fabs(scores.concepts[0] - rows[i].score) < 1e-9 && scores.flagged == rows[i].flagged,
            "a threshold of %g: a score of %g", (double)rows[i].threshold, scores.concepts[0]);
        safety_checker_destroy(checker);
    }
}

static bool parses(const char *config, const char *preprocessor, struct error *err) {
    struct safety_checker_config out;
    json_t *first = json_loads(config, 0, NULL), *second = json_loads(preprocessor, 0, NULL);
    const bool ok = safety_checker_config_parse(first, second, &out, err);
    json_decref(first);
    json_decref(second);
    return ok;
}

static void wrong_configs_are_named(void) {
    static const char vision[] = "{\"vision_config\": {\"image_size\": 224, \"patch_size\": 14}}";
    static const struct {
        const char *config, *preprocessor, *words;
    } wrong[] = {
        { "{}", "{}", "vision_config" },
        { "[]", "{}", "not a JSON object" },
        { "{\"vision_config\": {\"hidden_act\": \"relu\"}}", "{}", "relu" },
        { "{\"vision_config\": {\"num_channels\": 1}}", "{}", "num_channels" },
        { "{\"vision_config\": {\"hidden_size\": 100}}", "{}", "num_attention_heads" },
        { "{\"vision_config\": {\"image_size\": 4096}}", "{}", "image_size" },
        { "{\"vision_config\": {\"image_size\": 8, \"patch_size\": 14}}", "{}", "image_size" },
        { "{\"vision_config\": {\"patch_size\": -1}}", "{}", "patch_size" },
        { vision, "[]", "not a JSON object" },
        { vision, "{\"crop_size\": 336}", "image_size is 224" },
        { vision, "{\"crop_size\": {\"height\": 224, \"width\": 200}}", "a square" },
        { vision, "{\"size\": \"big\"}", "size" },
        { vision, "{\"resample\": 2}", "resample" },
        { vision, "{\"do_center_crop\": false}", "do_center_crop" },
        { vision, "{\"image_mean\": [0.5]}", "image_mean" },
        { vision, "{\"image_std\": [0.5, 0, 0.5]}", "image_std" },
    };
    struct error err;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        err = (struct error){ 0 };
        CHECK(!parses(wrong[i].config, wrong[i].preprocessor, &err), "%s", wrong[i].words);
        CHECK_CONTAINS(err.message, wrong[i].words);
    }
    /* Older files have numbers where newer ones have objects. */
    CHECK(parses(vision, "{\"crop_size\": 224, \"size\": 224, \"resample\": 3}", &err), "old");
    CHECK(parses(vision, "{\"size\": {\"shortest_edge\": 224}}", &err), "new");
}

int main(int argc, char **argv) {
    struct safety_checker_config config;
    struct error err = { 0 };
    char path[4096];
    folder = argc > 1 ? argv[1] : "data/safety_checker";
    json_t *json = read("safety_checker/config.json"), *reference = read("scores.json");
    json_t *preprocessor = read("feature_extractor/preprocessor_config.json");
    CHECK(safety_checker_config_parse(json, preprocessor, &config, &err), "%s", err.message);
    snprintf(path, sizeof(path), "%s/safety_checker/model.safetensors", folder);
    struct safetensors *file = reference_open(path);
    matches_diffusers(file, config, reference);
    pixels_are_the_processors(file, &config, reference);
    a_score_of_0_is_not_flagged(file, &config);
    wrong_configs_are_named();
    safetensors_close(file);
    json_decref(json);
    json_decref(preprocessor);
    json_decref(reference);
    return check_done();
}
