/* Our generators against torch's: published values of both generators, and draws recorded with
 * tests/reference/noise.py. What is skipped leaves the state that drawing leaves. */
#include "kernels/random/noise.h"
#include "kernels/random/philox.h"
#include "tests/check.h"

#include <jansson.h>
#include <stdlib.h>

#define LATENT_ELEMENTS (4 * 64 * 64)

static void draws_start_with(
    enum rng_kind kind, uint64_t seed, int count, const float *expected, int known, double tol) {
    float drawn[64];
    struct noise_generator g;
    noise_init(&g, kind, seed);
    noise_draw(&g, drawn, count);
    for (int i = 0; i < known; i++)
        CHECK_NEAR(drawn[i], expected[i], tol);
}

static void published_cpu_values(void) {
    const float small[] = { 1.5410f, -0.2934f, -2.1788f, 0.5684f };
    const float zero[] = { -1.1258f, -1.1524f, -0.2506f, -0.4339f, 0.8487f, 0.6920f, -0.3160f,
        -2.1152f, 0.3223f, -1.2633f, 0.3500f, 0.3081f, 0.1198f, 1.2377f, 1.1168f, -0.2473f };
    const float forty_two[] = { 1.9269f, 1.4873f, 0.9007f, -2.1055f, 0.6784f, -1.2345f, -0.0431f,
        -1.6047f };
    draws_start_with(RNG_CPU, 0, 4, small, 4, 6e-5);
    draws_start_with(RNG_CPU, 0, 16, zero, 16, 6e-5);
    draws_start_with(RNG_CPU, 42, 16, forty_two, 8, 6e-5);
}

static void published_cuda_values(void) {
    const float zero[] = { -0.924662f, -0.425344f, -2.643846f, 0.145184f, -0.120867f, -0.579726f,
        -0.622852f, -0.328387f, -1.074542f, -0.363144f, -1.671050f, 2.265505f };
    const float forty_two[] = { 0.1940f, 2.1614f, -0.1721f, 0.8491f };
    draws_start_with(RNG_CUDA, 0, 12, zero, 12, 2e-6);
    draws_start_with(RNG_CUDA, 42, 12, forty_two, 4, 6e-5);
}

static void integers_of_the_engines(void) {
    /* torch.randint(0, 1000), torch.rand and torch.randperm(10) with seed 0. */
    const uint32_t randint[] = { 44, 239, 933, 760, 963, 379, 427, 503 };
    const double rand[] = { .4963, .7682, .0885, .1320 };
    const int randperm[] = { 4, 1, 7, 5, 3, 9, 0, 8, 6, 2 };
    struct mt19937 mt;
    mt19937_init(&mt, 0);
    for (int i = 0; i < 8; i++) {
        uint32_t drawn = mt19937_next(&mt) % 1000;
        CHECK(drawn == randint[i], "%u is not %u", drawn, randint[i]);
    }
    mt19937_init(&mt, 0);
    for (int i = 0; i < 4; i++)
        CHECK_NEAR((mt19937_next(&mt) & 0xffffff) * 0x1p-24, rand[i], 6e-5);
    int order[10];
    for (int i = 0; i < 10; i++)
        order[i] = i;
    mt19937_init(&mt, 0);
    for (int i = 0; i < 9; i++) {
        int j = i + (int)(mt19937_next(&mt) % (uint32_t)(10 - i));
        int swapped = order[i];
        order[i] = order[j];
        order[j] = swapped;
    }
    CHECK(memcmp(order, randperm, sizeof(order)) == 0, "torch.randperm(10) with seed 0");

    /* Random123's known answers for philox4x32-10. */
    uint32_t words[4];
    philox_4x32_10((const uint32_t[4]){ 0, 0, 0, 0 }, 0, words);
    CHECK(words[0] == 0x6627e8d5 && words[1] == 0xe169c58d && words[2] == 0xbc57ac4c &&
              words[3] == 0x9b00dbd8,
        "%08x %08x %08x %08x", words[0], words[1], words[2], words[3]);
    philox_4x32_10((const uint32_t[4]){ 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
        UINT64_C(0x299f31d0a4093822), words);
    CHECK(words[0] == 0xd16cfe09 && words[1] == 0x94fdcceb && words[2] == 0x5001e420 &&
              words[3] == 0x24126ea1,
        "%08x %08x %08x %08x", words[0], words[1], words[2], words[3]);
}

static void latents_have_torchs_mean_std_and_last(
    enum rng_kind kind, double mean, double std, double last) {
    static float drawn[LATENT_ELEMENTS];
    struct noise_generator g;
    noise_init(&g, kind, 0);
    noise_draw(&g, drawn, LATENT_ELEMENTS);
    double sum = 0, squares = 0;
    for (int i = 0; i < LATENT_ELEMENTS; i++)
        sum += drawn[i];
    sum /= LATENT_ELEMENTS;
    for (int i = 0; i < LATENT_ELEMENTS; i++)
        squares += (drawn[i] - sum) * (drawn[i] - sum);
    squares = sqrt(squares / (LATENT_ELEMENTS - 1));
    printf("%s 1x4x64x64, seed 0: mean %.8f std %.8f last %.6f\n",
        kind == RNG_CUDA ? "cuda" : "cpu", sum, squares, drawn[LATENT_ELEMENTS - 1]);
    CHECK_NEAR(sum, mean, 1e-7);
    CHECK_NEAR(squares, std, 1e-7);
    CHECK_NEAR(drawn[LATENT_ELEMENTS - 1], last, 2e-6);
}

static void recorded_sequences(const char *path) {
    json_error_t why;
    json_t *cases = json_load_file(path, 0, &why);
    CHECK(cases, "%s: %s", path, why.text);
    size_t index, draw_index, i;
    json_t *item, *draw, *value;
    double worst = 0;
    int values = 0;
    json_array_foreach(cases, index, item) {
        struct noise_generator g;
        noise_init(
            &g, RNG_CPU, strtoull(json_string_value(json_object_get(item, "seed")), NULL, 10));
        json_array_foreach(json_object_get(item, "draws"), draw_index, draw) {
            float drawn[128];
            noise_draw(&g, drawn, (int64_t)json_array_size(draw));
            json_array_foreach(draw, i, value) {
                double difference = fabs(drawn[i] - json_number_value(value));
                worst = fmax(worst, difference);
                values++;
                CHECK(difference <= 1e-6, "case %zu draw %zu value %zu: %.8f is not %.8f", index,
                    draw_index, i, drawn[i], json_number_value(value));
            }
        }
    }
    CHECK(values > 300, "%d values", values);
    printf("%d values of torch.randn, worst difference %.2g\n", values, worst);
    json_decref(cases);
}

/* Each recorded draw, after the draws before it were skipped instead of drawn. */
static void recorded_sequences_go_on_after_skips(const char *path) {
    json_error_t why;
    json_t *cases = json_load_file(path, 0, &why);
    CHECK(cases, "%s: %s", path, why.text);
    size_t index, at, i;
    json_t *item, *draw, *value;
    int draws = 0;
    double worst = 0;
    json_array_foreach(cases, index, item) {
        const uint64_t seed = strtoull(json_string_value(json_object_get(item, "seed")), NULL, 10);
        json_array_foreach(json_object_get(item, "draws"), at, draw) {
            float drawn[128];
            struct noise_generator g;
            noise_init(&g, RNG_CPU, seed);
            for (size_t before = 0; before < at; before++)
                noise_skip(&g, (int64_t)json_array_size(
                                   json_array_get(json_object_get(item, "draws"), before)));
            noise_draw(&g, drawn, (int64_t)json_array_size(draw));
            json_array_foreach(draw, i, value) {
                const double difference = fabs(drawn[i] - json_number_value(value));
                worst = fmax(worst, difference);
                CHECK(difference <= 1e-6, "case %zu draw %zu value %zu: %.8f is not %.8f", index,
                    at, i, drawn[i], json_number_value(value));
            }
            draws += at > 0;
        }
    }
    CHECK(draws >= 8, "%d draws", draws);
    printf("%d draws of torch.randn after skipped ones, worst difference %.2g\n", draws, worst);
    json_decref(cases);
}

static bool same_state(const struct noise_generator *a, const struct noise_generator *b) {
    return a->kind == b->kind && memcmp(&a->mt, &b->mt, sizeof(a->mt)) == 0 &&
           a->has_cached == b->has_cached && memcmp(&a->cached, &b->cached, sizeof(double)) == 0 &&
           a->seed == b->seed && a->offset == b->offset;
}

/* Random sequences of normal draws and of single words: randint, rand and bernoulli take one word a
 * value. The counts lie around the sizes of a block, of the twister's state and of the CUDA grid.
 */
static void a_skip_leaves_the_state_of_a_draw(enum rng_kind kind) {
    static const int64_t edges[] = { 0, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 607, 608, 623, 624, 625,
        640, 1248, 4096, 16384 };
    const int64_t large = 4 * 132 * 2048 + 5;
    float *drawn = malloc(sizeof(float) * (size_t)large), next[2][17];
    struct mt19937 choice;
    int64_t values = 0;
    int compared = 0;
    mt19937_init(&choice, 77);
    for (int sequence = 0; sequence < 60; sequence++) {
        struct noise_generator real, skipped;
        noise_init(&real, kind, mt19937_next(&choice));
        skipped = real;
        for (int step = 0; step < 40; step++, compared++) {
            const uint32_t which = mt19937_next(&choice);
            int64_t count = edges[which / 4 % (sizeof(edges) / sizeof(edges[0]))];
            if (kind == RNG_CUDA && step == 0)
                count = large;
            else if (which % 4 == 1)
                count = mt19937_next(&choice) % 2000;
            if (which % 4 == 2) {
                for (int64_t i = 0; i < count; i++)
                    mt19937_next(&real.mt);
                mt19937_skip(&skipped.mt, count);
            } else {
                noise_draw(&real, drawn, count);
                noise_skip(&skipped, count);
            }
            values += count;
            CHECK(same_state(&real, &skipped), "sequence %d, step %d: %lld values, kind %u",
                sequence, step, (long long)count, which % 4);
        }
        for (int64_t count = 1; count <= 17; count += 8) {
            noise_draw(&real, next[0], count);
            noise_draw(&skipped, next[1], count);
            CHECK(memcmp(next[0], next[1], (size_t)count * sizeof(float)) == 0,
                "sequence %d: the next numbers differ", sequence);
        }
    }
    free(drawn);
    printf("%s: %d skips of %lld values leave the state of the draws\n",
        kind == RNG_CUDA ? "cuda" : "cpu", compared, (long long)values);
}

/* If a draw is larger than the grid, each thread continues with its next counter, and the next draw
 * starts behind all counters of this one. Checked with a direct implementation of Philox. */
static void large_cuda_draws_follow_the_grid(void) {
    const int64_t threads = 132 * 2048, count = 4 * threads + 300;
    float *drawn = malloc(sizeof(float) * (size_t)count);
    float next[1];
    struct noise_generator g;
    noise_init(&g, RNG_CUDA, 9);
    noise_draw(&g, drawn, count);
    noise_draw(&g, next, 1);
    const struct {
        uint32_t offset, thread;
        int lane;
        float value;
    } probes[] = { { 0, 17, 0, drawn[17] }, { 0, 17, 1, drawn[threads + 17] },
        { 0, 17, 3, drawn[3 * threads + 17] }, { 1, 17, 0, drawn[4 * threads + 17] },
        { 2, 0, 0, next[0] } };
    for (size_t i = 0; i < sizeof(probes) / sizeof(probes[0]); i++) {
        uint32_t words[4];
        philox_4x32_10((const uint32_t[4]){ probes[i].offset, 0, probes[i].thread, 0 }, 9, words);
        int pair = probes[i].lane / 2 * 2;
        double radius = sqrt(-2 * log((words[pair] + 0.5) * 0x1p-32));
        double angle = 2 * M_PI * (words[pair + 1] + 0.5) * 0x1p-32;
        CHECK_NEAR(probes[i].value, radius * (probes[i].lane % 2 ? cos(angle) : sin(angle)), 5e-6);
    }
    free(drawn);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    published_cpu_values();
    published_cuda_values();
    integers_of_the_engines();
    latents_have_torchs_mean_std_and_last(RNG_CPU, -0.00757526, 1.00420802, -1.078208);
    latents_have_torchs_mean_std_and_last(RNG_CUDA, -0.00694543, 1.00087683, -2.954316);
    recorded_sequences(argv[1]);
    recorded_sequences_go_on_after_skips(argv[1]);
    a_skip_leaves_the_state_of_a_draw(RNG_CPU);
    a_skip_leaves_the_state_of_a_draw(RNG_CUDA);
    large_cuda_draws_follow_the_grid();
    return check_done();
}
