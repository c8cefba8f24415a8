/* Buckets, sizes, crops, masks and Python's random numbers, compared with records of
 * tests/reference/datasets.py. */
#include "base/hash.h"
#include "base/limits.h"
#include "base/text/json.h"
#include "tests/check.h"
#include "train/data/bucket.h"
#include "train/data/mask.h"
#include "train/data/python_random.h"

#include <stdlib.h>

static int number(const json_t *array, size_t index) {
    return (int)json_integer_value(json_array_get(array, index));
}

static struct bucket_options options_of(const json_t *array) {
    return (struct bucket_options){ .enabled = true,
        .resolution = number(array, 0),
        .min_px = number(array, 1),
        .max_px = number(array, 2),
        .step_px = number(array, 3) };
}

static void lists_are_kohyas(const json_t *lists) {
    size_t i, j;
    json_t *entry, *size;
    json_array_foreach(lists, i, entry) {
        const struct bucket_options o = options_of(entry);
        struct error err = { 0 };
        struct bucket buckets[DATASET_BUCKETS_MAX];
        const json_t *sizes = json_array_get(entry, 4);
        const int count = bucket_list(&o, buckets), wanted = number(entry, 5);
        const size_t given = json_array_size(sizes);
        CHECK(bucket_options_check(&o, &err), "%s", err.message);
        CHECK(count == wanted, "%d px: %d buckets, not %d", o.resolution, count, wanted);
        json_array_foreach(sizes, j, size) { /* of long lists only both ends are recorded */
            const size_t at = j < given / 2 ? j : (size_t)count - given + j;
            CHECK(buckets[at].width == number(size, 0) && buckets[at].height == number(size, 1),
                "bucket %zu is %dx%d, not %dx%d", at, buckets[at].width, buckets[at].height,
                number(size, 0), number(size, 1));
        }
        printf("%d px: %d buckets\n", o.resolution, count);
    }
}

static void places_are_kohyas(const json_t *places) {
    size_t i;
    json_t *p;
    int small = 0;
    json_array_foreach(places, i, p) {
        struct bucket_options o = options_of(p);
        struct placement place;
        struct error err = { 0 };
        const int width = number(p, 5), height = number(p, 6);
        o.no_upscale = number(p, 4);
        const bool ok = bucket_place(&o, width, height, &place, &err);
        if (number(p, 7) == 0 || number(p, 8) == 0) { /* kohya would go on with an empty picture */
            CHECK(!ok && strstr(err.message, "less than one"), "%dx%d is taken", width, height);
            small++;
            continue;
        }
        CHECK(ok, "%s", err.message);
        CHECK(place.bucket.width == number(p, 7) && place.bucket.height == number(p, 8) &&
                  place.resized_width == number(p, 9) && place.resized_height == number(p, 10),
            "%dx%d to %dx%d in %dx%d, not %dx%d in %dx%d", width, height, place.resized_width,
            place.resized_height, place.bucket.width, place.bucket.height, number(p, 9),
            number(p, 10), number(p, 7), number(p, 8));
        CHECK(placement_tops(&place) >= 1 && placement_lefts(&place) >= 1, "%dx%d is not covered",
            width, height);
        const struct crop middle = placement_centre(&place);
        CHECK(middle.top == (placement_tops(&place) - 1) / 2 &&
                  middle.left == (placement_lefts(&place) - 1) / 2,
            "%d, %d", middle.top, middle.left);
    }
    printf("%zu pictures to their buckets, %d too small for one\n", json_array_size(places), small);
}

static void plain_sizes_are_torchvisions(const json_t *rows) {
    size_t i;
    json_t *r;
    json_array_foreach(rows, i, r) {
        const struct bucket_options o = { .resolution = number(r, 0) };
        struct placement place;
        struct error err = { 0 };
        CHECK(bucket_place(&o, number(r, 1), number(r, 2), &place, &err), "%s", err.message);
        const struct crop middle = placement_centre(&place);
        CHECK(place.resized_width == number(r, 3) && place.resized_height == number(r, 4),
            "%dx%d, not %dx%d", place.resized_width, place.resized_height, number(r, 3),
            number(r, 4));
        CHECK(middle.top == number(r, 5) && middle.left == number(r, 6), "%d, %d, not %d, %d",
            middle.top, middle.left, number(r, 5), number(r, 6));
        CHECK(place.bucket.width == o.resolution && place.bucket.height == o.resolution, "-");
    }
    printf("%zu sizes and centres\n", json_array_size(rows));
}

static void masks_are_the_scripts(const json_t *masks) {
    size_t i, j;
    json_t *entry, *shape;
    json_array_foreach(masks, i, entry) {
        const int width = number(entry, 1), height = number(entry, 2);
        struct mt19937 mt;
        size_t covered = 0;
        python_random_seed(&mt, strtoull(json_string_value(json_array_get(entry, 0)), NULL, 10));
        json_array_foreach(json_array_get(entry, 3), j, shape) {
            const json_t *n = json_array_get(shape, 0);
            const char *wanted = json_string_value(json_array_get(shape, 1));
            const struct mask_shape s = mask_draw(&mt, width, height);
            CHECK(s.left == number(n, 0) && s.top == number(n, 1) && s.right == number(n, 2) &&
                      s.bottom == number(n, 3) && s.is_ellipse == number(n, 4),
                "mask %zu: %d %d %d %d %d", j, s.left, s.top, s.right, s.bottom, s.is_ellipse);
            const size_t count = (size_t)width * (size_t)height;
            float *mask = malloc(count * sizeof(*mask));
            uint8_t *bytes = malloc(count);
            char sum[17];
            mask_fill(&s, width, height, mask);
            for (size_t k = 0; k < count; k++)
                covered += bytes[k] = (uint8_t)mask[k];
            snprintf(sum, sizeof(sum), "%016llx", (unsigned long long)hash_fnv1a(bytes, count));
            CHECK(strcmp(sum, wanted) == 0, "mask %zu (%s) of %dx%d: %s, not %s", j,
                s.is_ellipse ? "ellipse" : "rectangle", width, height, sum, wanted);
            free(bytes);
            free(mask);
        }
        printf("40 masks of %dx%d, %.2f of it covered\n", width, height,
            (double)covered / (40.0 * width * height));
    }
}

static void choices_are_pythons(const json_t *rows) {
    static const int counts[] = { 1, 2, 3, 5, 7, 100, 1000, 1 << 20, INT32_MAX };
    size_t i, j;
    json_t *entry, *value;
    json_array_foreach(rows, i, entry) {
        struct mt19937 mt;
        const char *seed = json_string_value(json_array_get(entry, 0));
        python_random_seed(&mt, strtoull(seed, NULL, 10));
        json_array_foreach(json_array_get(entry, 1), j, value) {
            const int drawn = python_random_below(&mt, counts[j % 9]);
            CHECK(drawn == json_integer_value(value), "seed %s, draw %zu: %d", seed, j, drawn);
        }
    }
}

static void refuses(struct bucket_options o, const char *param) {
    struct error err = { 0 };
    CHECK(!bucket_options_check(&o, &err), "%s is taken", param);
    CHECK_STRING(err.param, param);
}

static void wrong_options_are_refused_by_name(void) {
    struct error err = { 0 };
    struct placement place;
    const struct bucket_options plain = { .resolution = 512 };
    refuses((struct bucket_options){ .resolution = 500 }, "resolution");
    refuses((struct bucket_options){ .resolution = 4096 }, "resolution");
    struct bucket_options o = BUCKET_OPTIONS_DEFAULT;
    o.enabled = true;
    CHECK(bucket_options_check(&o, &err), "%s", err.message);
    o.step_px = 0;
    refuses(o, "bucket_reso_steps");
    o.step_px = 64;
    o.min_px = 520;
    refuses(o, "min_bucket_reso");
    o.min_px = 256;
    o.max_px = 504;
    refuses(o, "max_bucket_reso");
    o.max_px = 1024;
    o.no_upscale = true;
    CHECK(!bucket_place(&o, 300, 40, &place, &err), "a picture of no steps is taken");
    CHECK_CONTAINS(err.message, "300x40 px are less than one bucket_reso_steps (64)");
    CHECK(!bucket_place(&plain, 1, 16384, &place, &err), "a line of pixels is taken");
    CHECK_CONTAINS(err.message, "512x8388608");
}

int main(int argc, char **argv) {
    struct error err = { 0 };
    json_t *recorded = argc == 2 ? json_parse_file(argv[1], 1 << 20, &err) : NULL;
    CHECK(recorded, "%s", err.message);
    lists_are_kohyas(json_object_get(recorded, "lists"));
    places_are_kohyas(json_object_get(recorded, "places"));
    plain_sizes_are_torchvisions(json_object_get(recorded, "plain"));
    masks_are_the_scripts(json_object_get(recorded, "masks"));
    choices_are_pythons(json_object_get(recorded, "choices"));
    wrong_options_are_refused_by_name();
    json_decref(recorded);
    return check_done();
}
