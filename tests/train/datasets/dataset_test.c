/* Data sets of every layout: their contents, the pixels that are read, and the held-out
 * pictures. */
#include "base/text/json.h"
#include "tests/check.h"
#include "tests/train/datasets/folder_rig.h"
#include "train/data/dataset.h"
#include "train/data/read_ahead.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define SIDE 64

static const char *pictures;

static struct dataset_options plain(void) {
    return (struct dataset_options){ .buckets = { .resolution = SIDE }, .prompt = "a photo" };
}

static struct dataset *open_set(const char *path, const struct dataset_options *options) {
    struct dataset *set = NULL;
    struct error err = { 0 };
    CHECK(dataset_open(rig_path(path), options, &set, &err), "%s", err.message);
    return set;
}

/* Checks all items, one per line: "path: caption|caption xREPEATS". */
static void contents_are(const struct dataset *set, const char *wanted) {
    char text[2048] = "", *at = text;
    for (size_t i = 0; set && i < dataset_count(set); i++) {
        const struct dataset_item *item = dataset_item(set, i);
        at += sprintf(at, "%s: ", item->path);
        for (int c = 0; c < item->caption_count; c++)
            at += sprintf(at, "%s%s", c ? "|" : "", item->captions[c]);
        at += sprintf(at, " x%d%s\n", item->repeats, item->has_mask ? " mask" : "");
    }
    CHECK(strcmp(text, wanted) == 0, "%s is not %s", text, wanted);
}

/* Returns a number of the report, `section`.`key`. */
static int64_t told(const json_t *report, const char *section, const char *key) {
    const json_t *in = section ? json_object_get(report, section) : report;
    CHECK(json_is_integer(json_object_get(in, key)), "the report has no %s", key);
    return json_integer_value(json_object_get(in, key));
}

static bool names(const json_t *report, const char *key, const char *name) {
    size_t i;
    json_t *value;
    json_array_foreach(json_object_get(report, key), i,
        value) if (json_is_string(value) &&
                   strcmp(json_string_value(value), name) == 0) return true;
    return false;
}

static void flat_folders(void) {
    rig_begin(pictures);
    rig_picture("b.JPG", "jpeg420.jpg");
    rig_picture("a.png", "rgb.png");
    rig_text("a.txt", "a boat\nthe boat\n");
    rig_picture("c.png", "grey.png");
    rig_text("c.caption", "\n");
    rig_picture("c.mask.png", "grey.png");
    rig_picture("w.webp", "../../../fuzz/picture/corpus/turned6_marked.webp");
    rig_text("w.txt", "a turned boat");
    rig_picture("deep/d.png", "rgb.png");
    rig_text("notes.txt", "not a caption");
    rig_text("picture.gif", "RIFF....WEBP");
    rig_text(".hidden.png", "x");
    const struct dataset_options options = plain();
    struct dataset *set = open_set("", &options);
    contents_are(set, "a.png: a boat|the boat x1\nb.JPG: a photo x1\nc.png: a photo x1\n"
                      "w.webp: a turned boat x1\n");
    json_t *report = dataset_report(set);
    CHECK_STRING(json_string_value(json_object_get(report, "layout")), "flat");
    CHECK(told(report, NULL, "pictures") == 4 && told(report, NULL, "samples") == 4, "-");
    CHECK(told(report, "captions", "pictures_with_several") == 1, "-");
    CHECK(told(report, NULL, "passed_over") == 4, "%d passed over",
        (int)told(report, NULL, "passed_over"));
    CHECK(names(report, "passed_over_names", "deep") &&
              names(report, "passed_over_names", "notes.txt") &&
              names(report, "passed_over_names", "picture.gif") &&
              names(report, "passed_over_names", "c.mask.png"),
        "not all are named");
    json_decref(report);
    dataset_destroy(set);
    rig_end();
}

static void metadata_folders(void) {
    for (int csv = 0; csv < 2; csv++) {
        rig_begin(pictures);
        rig_picture("train/b/2.png", "rgb.png");
        rig_picture("train/a.jpg", "turned6.jpg");
        rig_picture("train/unlisted.png", "rgb.png");
        if (csv)
            rig_text("train/metadata.csv", "file_name,text\nb/2.png,two\na.jpg,one\na.jpg,eins\n");
        else
            rig_text("train/metadata.jsonl",
                "{\"file_name\": \"b/2.png\", \"text\": \"two\"}\n"
                "{\"file_name\": \"a.jpg\", \"text\": [\"one\", \"eins\"]}\n");
        const struct dataset_options options = plain();
        struct dataset *set = open_set("", &options);
        contents_are(set, "a.jpg: one|eins x1\nb/2.png: two x1\n");
        json_t *report = dataset_report(set);
        CHECK_STRING(json_string_value(json_object_get(report, "layout")),
            csv ? "metadata.csv" : "metadata.jsonl");
        CHECK(names(report, "passed_over_names", "unlisted.png"), "-");
        CHECK(dataset_item(set, 0)->width == 27 && dataset_item(set, 0)->height == 37,
            "EXIF's orientation is not in the size");
        json_decref(report);
        dataset_destroy(set);
        rig_end();
    }
}

static void repeated_folders(void) {
    rig_begin(pictures);
    rig_picture("3_a cat/1.png", "rgb.png");
    rig_picture("3_a cat/2.png", "grey.png");
    rig_text("3_a cat/2.txt", "a grey cat");
    rig_picture("1_dog_run/1.png", "rgb.png");
    rig_picture("other/1.png", "rgb.png");
    struct dataset_options options = plain();
    options.prompt = NULL;
    struct dataset *set = open_set("", &options);
    contents_are(set, "1_dog_run/1.png: dog_run x1\n3_a cat/1.png: a cat x3\n"
                      "3_a cat/2.png: a grey cat x3\n");
    size_t count;
    const int32_t *samples = dataset_samples(set, &count);
    static const int32_t wanted[] = { 0, 1, 1, 1, 2, 2, 2 };
    CHECK(count == 7 && memcmp(samples, wanted, sizeof(wanted)) == 0, "%zu samples", count);
    json_t *report = dataset_report(set);
    CHECK(names(report, "passed_over_names", "other"), "-");
    json_decref(report);
    dataset_destroy(set);
    rig_end();
}

static char *recorded(const char *name, size_t *size) {
    FILE *file;
    char path[512], *bytes = calloc(1, 1 << 20);
    snprintf(path, sizeof(path), "%s/%s", pictures, name);
    file = fopen(path, "rb");
    CHECK(file, "no %s", path);
    *size = file ? fread(bytes, 1, 1 << 20, file) : 0;
    if (file)
        fclose(file);
    return bytes;
}

/* Resize, crop, flip, ToTensor and Normalize, compared with results of Pillow and numpy. */
static void pixels_are_torchvisions(void) {
    size_t size;
    float *pixels = malloc(SIDE * SIDE * 3 * sizeof(float));
    float *expected = (float *)recorded("transformed.bin", &size);
    struct error err = { 0 };
    rig_begin(pictures);
    rig_picture("photo.png", "photo.png");
    const struct dataset_options options = plain();
    struct dataset *set = open_set("", &options);
    const struct crop crops[] = { placement_centre(&dataset_item(set, 0)->placement),
        { 0, 3, true } };
    CHECK(size == sizeof(float) * SIDE * SIDE * 3 * 2, "%zu bytes", size);
    for (int i = 0; i < 2; i++) {
        CHECK(dataset_read(set, 0, &crops[i], pixels, NULL, &err), "%s", err.message);
        CHECK(memcmp(pixels, expected + i * SIDE * SIDE * 3, SIDE * SIDE * 3 * sizeof(float)) == 0,
            "crop %d: %.9g, not %.9g", i, pixels[0], expected[i * SIDE * SIDE * 3]);
    }
    CHECK(!dataset_read(set, 0, &(struct crop){ 1, 0, false }, pixels, NULL, &err),
        "a crop outside of the picture is taken");
    rig_picture("photo.png", "rgb.png");
    CHECK(!dataset_read(set, 0, &crops[0], pixels, NULL, &err), "a changed file is taken");
    CHECK_CONTAINS(err.message, "photo.png: the file has changed since");
    dataset_destroy(set);
    rig_end();
    free(pixels);
    free(expected);
}

/* A grey picture is its own mask: the mask must be 1 exactly where the pixels are at least one
 * half, with the same crop and flip. */
static void masks_go_the_way_of_their_pictures(void) {
    static float pixels[SIDE * SIDE * 3], mask[SIDE * SIDE];
    struct error err = { 0 };
    rig_begin(pictures);
    rig_picture("a.png", "grey.png");
    rig_picture("a.mask.png", "grey.png");
    struct dataset_options options = plain();
    options.masks = DATASET_MASKS_FILES;
    struct dataset *set = open_set("", &options);
    contents_are(set, "a.png: a photo x1 mask\n");
    CHECK(
        dataset_read(set, 0, &(struct crop){ 0, 5, true }, pixels, mask, &err), "%s", err.message);
    int ones = 0, wrong = 0;
    for (int i = 0; i < SIDE * SIDE; i++) {
        ones += mask[i] == 1;
        wrong += mask[i] != (pixels[3 * i] >= 0);
    }
    printf("mask: %d of %d are 1\n", ones, SIDE * SIDE);
    CHECK(wrong == 0 && ones > 100 && ones < SIDE * SIDE - 100, "%d are wrong", wrong);
    dataset_destroy(set);
    rig_end();
}

static void buckets_are_collected(void) {
    rig_begin(pictures);
    rig_picture("wide.png", "photo.png");
    rig_picture("wide2.png", "photo.png");
    rig_picture("tall.png", "turned6.png");
    struct dataset_options options = plain();
    options.buckets = (struct bucket_options){
        .resolution = 128, .enabled = true, .min_px = 64, .max_px = 256, .step_px = 32
    };
    struct dataset *set = open_set("", &options);
    const struct bucket tall = dataset_item(set, 0)->placement.bucket;
    const struct bucket wide = dataset_item(set, 1)->placement.bucket;
    printf("buckets of 128^2 px: 19x27 px in %dx%d, 60x45 in %dx%d\n", tall.width, tall.height,
        wide.width, wide.height);
    CHECK(tall.width == 96 && tall.height == 160 && wide.width == 128 && wide.height == 128, "-");
    for (size_t i = 0; i < 3; i++)
        CHECK(dataset_item(set, i)->bucket == (i > 0), "picture %zu", i);
    dataset_destroy(set);
    rig_end();
}

static void fill_with(int count) {
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof(name), "%03d.png", i);
        rig_picture(name, i % 2 ? "one_pixel.png" : "grey1.png");
    }
}

/* Writes the paths of the held-out pictures to `text`. Each picture must be held out or trained on,
 * not both. */
static void held_out_of(const struct dataset_options *options, char text[1024], size_t *held_out) {
    struct dataset *set = open_set("", options);
    size_t rest, both[200] = { 0 };
    const int32_t *out = dataset_held_out(set, held_out), *in = dataset_samples(set, &rest);
    text[0] = 0;
    for (size_t i = 0; i < *held_out; i++) {
        strcat(text, dataset_item(set, (size_t)out[i])->path);
        both[out[i]]++;
    }
    for (size_t i = 0; i < rest; i++)
        both[in[i]]++;
    for (size_t i = 0; i < dataset_count(set); i++)
        CHECK(both[i] == 1, "picture %zu is there %zu times", i, both[i]);
    dataset_destroy(set);
}

static void held_out_pictures_are_the_seeds(void) {
    char first[1024], again[1024], other[1024], larger[1024];
    size_t count;
    struct dataset_options options = plain();
    rig_begin(pictures);
    fill_with(60);
    options.held_out_share = 0.1;
    options.seed = 7;
    options.threads = 3;
    held_out_of(&options, first, &count);
    CHECK(count == 6, "%zu of 60", count);
    options.threads = 1;
    held_out_of(&options, again, &count);
    CHECK(strcmp(first, again) == 0, "%s, then %s", first, again);
    options.held_out_share = 0.2;
    held_out_of(&options, larger, &count);
    options.held_out_share = 0.1;
    for (size_t i = 0; i + 7 <= strlen(first); i += 7) {
        char name[8] = "";
        memcpy(name, first + i, 7);
        CHECK(count == 12 && strstr(larger, name), "%s is not among a fifth", name);
    }
    options.seed = 8;
    held_out_of(&options, other, &count);
    CHECK(strcmp(first, other) != 0, "another seed holds out the same");
    printf("held out: %s; with another seed %s\n", first, other);
    options.held_out_share = 0.001;
    held_out_of(&options, other, &count);
    CHECK(count == 1, "%zu of a thousandth", count);
    options.held_out_share = 0.999;
    held_out_of(&options, other, &count);
    CHECK(count == 59, "%zu: none is left", count);
    options.held_out_share = 0;
    options.max_pictures = 10;
    struct dataset *set = open_set("", &options);
    CHECK(dataset_count(set) == 10, "%zu pictures", dataset_count(set));
    for (size_t i = 1; i < dataset_count(set); i++)
        CHECK(strcmp(dataset_item(set, i - 1)->path, dataset_item(set, i)->path) < 0, "unsorted");
    dataset_destroy(set);
    rig_end();
}

/* Returns whether an expected picture is read before it is asked for. After a pause its file is
 * deleted. If the picture can still be read, it was read ahead. Each new try has a longer pause. */
static bool is_read_before_it_is_wanted(const struct dataset *set, struct read_ahead *reader) {
    static float pixels[SIDE * SIDE * 3];
    const struct crop crop = { 0 };
    struct error err = { 0 };
    bool ok = false;
    for (int waited_ms = 1; !ok && waited_ms < 10000; waited_ms *= 2) {
        const struct timespec pause = { waited_ms / 1000, waited_ms % 1000 * 1000000 };
        CHECK(read_ahead_expect(reader, set, 3, &crop, false), "no room");
        nanosleep(&pause, NULL);
        unlink(rig_path("03.png"));
        ok = read_ahead_read(reader, set, 3, &crop, pixels, NULL, &err);
        if (!ok)
            CHECK_CONTAINS(err.message, "03.png");
        rig_picture("03.png", "photo.png");
    }
    return ok;
}

/* The pixels read must not depend on the announcements: some reads were not expected, and some
 * expected pictures are never read. Large and small pictures are mixed, so that threads overtake
 * each other. */
static void pixels_do_not_depend_on_what_was_expected(void) {
    enum { READ = 60 };
    static float wanted[SIDE * SIDE * 3], pixels[SIDE * SIDE * 3];
    struct error err = { 0 };
    rig_begin(pictures);
    for (int i = 0; i < 12; i++) {
        char name[32];
        snprintf(name, sizeof(name), "%02d.png", i);
        rig_picture(name, i % 3 ? "one_pixel.png" : i % 2 ? "photo.png" : "rgb16.png");
    }
    const struct dataset_options options = plain();
    struct dataset *set = open_set("", &options);
    for (int threads = 1; threads <= 4; threads += 3) {
        struct read_ahead *reader;
        const struct crop plain_crop = { 0 };
        int equal = 0, expected = 0, room = 0;
        CHECK(read_ahead_create(threads, &reader, &err), "%s", err.message);
        while (room < READ && read_ahead_expect(reader, set, 0, &plain_crop, false))
            room++;
        CHECK(room == 2 * threads, "%d threads have room for %d", threads, room);
        for (int read = 0; read < READ; read++) {
            while (expected < READ && read_ahead_expect(reader, set, (size_t)(expected * 7 % 12),
                                          &(struct crop){ 0, 0, expected % 2 }, false))
                expected += expected % 9 == 7 ? 2 : 1;
            if (read % 15 == 4)
                continue;
            const struct crop crop = { 0, 0, read % 2 };
            const size_t index = (size_t)(read * 7 % 12);
            memset(pixels, 0, sizeof(pixels));
            CHECK(dataset_read(set, index, &crop, wanted, NULL, &err) &&
                      read_ahead_read(reader, set, index, &crop, pixels, NULL, &err),
                "%s", err.message);
            equal += memcmp(pixels, wanted, sizeof(wanted)) == 0;
        }
        printf("%d threads: %d of %d pictures are the right ones\n", threads, equal, READ - 4);
        CHECK(equal == READ - 4, "-");
        CHECK(!read_ahead_expects(reader), "one too many");
        const struct crop mirrored = { 0, 0, true };
        CHECK(read_ahead_expect(reader, set, 3, &mirrored, false) &&
                  dataset_read(set, 3, &plain_crop, wanted, NULL, &err) &&
                  read_ahead_read(reader, set, 3, &plain_crop, pixels, NULL, &err) &&
                  memcmp(pixels, wanted, sizeof(wanted)) == 0,
            "its mirror image was expected, and came: %s", err.message);
        CHECK(is_read_before_it_is_wanted(set, reader), "no picture is read ahead");
        CHECK(read_ahead_expect(reader, set, 3, &plain_crop, false), "no room"); /* never read */
        read_ahead_destroy(reader);
    }
    dataset_destroy(set);
    rig_end();
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    pictures = argv[1];
    flat_folders();
    metadata_folders();
    repeated_folders();
    pixels_are_torchvisions();
    masks_go_the_way_of_their_pictures();
    buckets_are_collected();
    held_out_pictures_are_the_seeds();
    pixels_do_not_depend_on_what_was_expected();
    return check_done();
}
