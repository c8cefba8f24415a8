#include "engine/drawing/picture_check.h"

#include "kernels/compute/recordings.h"

#include <stdlib.h>
#include <string.h>

struct checking {
    const struct safety_checker *checker;
    struct tensor input, positions, embedding;
};

static void run(struct compute *c, const void *user) {
    const struct checking *k = user;
    struct tensor embedding = k->embedding;
    safety_checker_forward(k->checker, c, &k->input, &k->positions, &embedding);
}

void picture_check_run(
    struct compute *c, const struct safety_checker *checker, const float *input, float *embedding) {
    const size_t mark = arena_mark(c->arena);
    const struct safety_checker_config *config = safety_checker_get_config(checker);
    const int64_t numbers = 3 * (int64_t)config->patch_size * config->patch_size;
    const int64_t tokens = safety_checker_input_count(checker) / numbers;
    const struct checking k = {
        .checker = checker,
        .input = compute_tensor_2d(c, DTYPE_F32, tokens, numbers),
        .positions = compute_tensor_2d(c, DTYPE_F32, tokens, config->hidden_size),
        .embedding = compute_tensor_2d(c, DTYPE_F32, 1, config->projection_dim),
    };
    const uintptr_t key[] = { (uintptr_t)checker, (uintptr_t)k.input.data,
        (uintptr_t)k.positions.data, (uintptr_t)k.embedding.data };
    compute_upload(c, input, &k.input);
    compute_upload(c, safety_checker_positions(checker), &k.positions);
    compute_recorded(c, key, sizeof(key), run, &k);
    const float *seen = compute_view(c, &k.embedding);
    if (seen)
        memcpy(embedding, seen, tensor_bytes(&k.embedding));
    arena_release(c->arena, mark);
}

bool picture_check(struct compute *c, const struct safety_checker *checker, uint8_t *pixels,
    int width, int height, struct safety_scores *out, struct error *err) {
    const struct picture picture = {
        .width = width, .height = height, .channels = 3, .pixels = pixels
    };
    const int64_t count = safety_checker_input_count(checker);
    float *input = calloc((size_t)count, sizeof(*input));
    float *embedding = calloc(
        (size_t)safety_checker_get_config(checker)->projection_dim, sizeof(*embedding));
    bool ok = (input && embedding) ||
              error_set(err, ERROR_NO_MEMORY, "no memory to check a picture");
    ok = ok && safety_checker_read(checker, &picture, input, err);
    if (ok)
        picture_check_run(c, checker, input, embedding);
    if (ok && compute_ok(c))
        safety_checker_score(checker, embedding, out);
    if (ok && compute_ok(c) && out->flagged)
        memset(pixels, 0, (size_t)width * (size_t)height * 3);
    free(input);
    free(embedding);
    return ok;
}
