/* Ten steps with 8-bit states, compared with bitsandbytes: the maps, the states and the parameters'
 * values. */
#include "train/optimizer/adamw_8bit.h"

#include "tests/train/recorded.h"

#include <stdlib.h>

#define COUNT 600

static void compare_map(const json_t *expected, bool is_signed) {
    float map[256];
    double worst = 0;
    adamw_8bit_map(is_signed, map);
    for (size_t i = 0; i < 256; i++)
        worst = fmax(worst,
            fabs(map[i] - recorded_at(expected, i)) / fmax(1e-30, fabs(recorded_at(expected, i))));
    printf("%s map: worst relative difference %.2g\n", is_signed ? "signed" : "unsigned", worst);
    CHECK(worst <= 2.5e-7, "%.3g", worst);
}

/* Returns the number of quantised states that differ. A value halfway between two codes may be
 * rounded either way, and later steps start from it, so a few codes differ by a little. */
static int others(const uint8_t *places, const json_t *expected) {
    int count = 0;
    for (size_t i = 0; i < COUNT; i++) {
        const int distance = abs(places[i] - (int)recorded_at(expected, i));
        CHECK(distance <= 3, "state %zu is at %d, not at %d", i, places[i],
            (int)recorded_at(expected, i));
        count += distance != 0;
    }
    return count;
}

int main(int argc, char **argv) {
    json_t *file = recorded_load(argc, argv);
    const json_t *content = json_array_get(file, 0), *maps = json_object_get(content, "maps");
    compare_map(json_object_get(maps, "signed"), true);
    compare_map(json_object_get(maps, "unsigned"), false);
    static uint8_t places[2][3 * ADAMW_8BIT_BLOCK];
    static float maxima[2][3];
    const struct adamw_8bit states = { places[0], places[1], maxima[0], maxima[1] };
    float parameters[COUNT], gradients[COUNT];
    for (int i = 0; i < COUNT; i++)
        parameters[i] = (float)cos(0.1 * i);
    /* bitsandbytes starts with code 0 and a block maximum of 0, which are zeros too. */
    for (int step = 1; step <= 10; step++) {
        for (int i = 0; i < COUNT; i++)
            gradients[i] = (float)(sin(0.37 * i + 1.7 * step) * (0.02 + 0.03 * (step % 4)));
        adamw_8bit_step(&states, 0, parameters, gradients, COUNT,
            &(struct adamw_8bit_step){ 1e-2, 0.9, 0.99, 1e-8, 0.1, 1, step, 0 });
    }
    double worst = 0, largest = 0;
    for (size_t i = 0; i < COUNT; i++)
        worst = fmax(
            worst, fabs(parameters[i] - recorded_at(json_object_get(content, "values"), i)));
    for (size_t i = 0; i < 3; i++) {
        largest = fmax(largest,
            fabs(states.m_largest[i] / recorded_at(json_object_get(content, "m_largest"), i) - 1));
        largest = fmax(largest,
            fabs(states.v_largest[i] / recorded_at(json_object_get(content, "v_largest"), i) - 1));
    }
    const int m = others(states.m, json_object_get(content, "m"));
    const int v = others(states.v, json_object_get(content, "v"));
    printf("values within %.2g, %d and %d of %d states a little off, blocks' largest within "
           "%.2g\n",
        worst, m, v, COUNT, largest);
    CHECK(worst <= 1e-3 && m <= 12 && v <= 12 && largest <= 1e-3, "too far");
    json_decref(file);
    return check_done();
}
