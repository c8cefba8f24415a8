/* Data sets that are wrong in different ways, and the words of their errors. */
#include "base/limits.h"
#include "tests/check.h"
#include "tests/train/datasets/folder_rig.h"
#include "train/data/dataset.h"

#include <stdlib.h>
#include <unistd.h>

static const char *pictures;
static int refused;

static struct dataset_options plain(void) {
    return (struct dataset_options){ .buckets = { .resolution = 64 }, .prompt = "a photo" };
}

static void refuse_at(const char *path, const struct dataset_options *options, enum error_code code,
    const char *words) {
    struct dataset *set;
    struct error err = { 0 };
    CHECK(!dataset_open(rig_path(path), options, &set, &err), "taken, where wanted: %s", words);
    CHECK(!set, "a data set is left");
    CHECK_CONTAINS(err.message, words);
    CHECK(err.code == code, "%s: code %d", err.message, err.code);
    printf("%s\n", err.message);
    refused++;
}

static void refuse(const char *words) {
    const struct dataset_options options = plain();
    refuse_at("", &options, ERROR_INVALID, words);
    rig_end();
}

static void begin(void) {
    rig_begin(pictures);
}

static void folders_without_pictures(void) {
    const struct dataset_options options = plain();
    begin();
    refuse_at("no_such", &options, ERROR_NOT_FOUND, "no_such: No such file");
    rig_text("file", "x");
    refuse_at("file", &options, ERROR_INVALID, "is not a folder");
    rig_end();
    begin();
    refuse("the data set has no PNG, JPEG or WebP files: its folder is empty");
    begin();
    rig_text("a.gif", "x");
    refuse("the data set has no PNG, JPEG or WebP files: a.gif is none of these, nor metadata");
    begin();
    rig_picture("cats/a.png", "rgb.png");
    refuse("for those in its folder cats name that");
    begin();
    rig_text("3_cats/a.txt", "x");
    refuse("the data set has no PNG, JPEG or WebP files");
}

/* Paths that lead out of the root, and names that are not files. */
static void what_is_no_file_of_the_folder(void) {
    struct dataset_options options = plain();
    begin();
    rig_picture("outside/a.png", "rgb.png");
    rig_picture("root/in/a.png", "rgb.png");
    rig_link("root/out", "../outside");
    rig_link("root/set/a.png", "../in/a.png"); /* stays inside the root */
    rig_link("root/set_out/a.png", "../../outside/a.png");
    rig_picture("root/set_text/a.png", "rgb.png");
    rig_text("outside/a.txt", "a secret");
    rig_link("root/set_text/a.txt", "../../outside/a.txt");
    rig_text("outside/m.jsonl", "{\"file_name\": \"a.png\"}");
    rig_link("root/set_meta/metadata.jsonl", "../../outside/m.jsonl");
    rig_link("root/set_dir/2_x", "../../outside");
    rig_link("root/set_dangling/a.png", "nowhere.png");
    char root[512];
    snprintf(root, sizeof(root), "%s", rig_path("root"));
    options.root = root;
    refuse_at("outside", &options, ERROR_INVALID, "lies outside of the folder of data sets");
    refuse_at("root/out", &options, ERROR_INVALID, "lies outside of the folder of data sets");
    refuse_at(
        "root/../outside", &options, ERROR_INVALID, "lies outside of the folder of data sets");
    refuse_at("root/set_out", &options, ERROR_INVALID,
        "the first is a.png: a symbolic link leads out of the folder of data sets");
    refuse_at("root/set_text", &options, ERROR_INVALID, "a.txt: a symbolic link leads out");
    refuse_at(
        "root/set_meta", &options, ERROR_INVALID, "metadata.jsonl: a symbolic link leads out");
    refuse_at("root/set_dir", &options, ERROR_INVALID, "2_x/a.txt: a symbolic link leads out");
    refuse_at("root/set_dangling", &options, ERROR_INVALID, "a.png: cannot open");
    struct dataset *set;
    struct error err = { 0 };
    CHECK(dataset_open(rig_path("root/set"), &options, &set, &err), "%s", err.message);
    dataset_destroy(set);
    options.root = NULL;
    CHECK(dataset_open(rig_path("root/set_out"), &options, &set, &err), "%s", err.message);
    dataset_destroy(set);
    rig_end();
    begin();
    rig_fifo("a.png");
    refuse("a.png is not a regular file");
    begin();
    rig_link("a.png", "/dev/zero");
    refuse("a.png is not a regular file");
    begin();
    rig_picture("a.png", "rgb.png");
    rig_fifo("a.txt");
    refuse("a.txt is not a regular file");
}

static void wrong_captions(void) {
    struct dataset_options options = plain();
    begin();
    rig_picture("a.png", "rgb.png");
    rig_text("a.txt", "x");
    rig_text("a.caption", "x");
    refuse("a.txt and a.caption are there both");
    begin();
    rig_picture("a.png", "rgb.png");
    rig_text("a.txt", "caf\xe9");
    refuse("a.txt: a caption that is not UTF-8, at its byte 3");
    begin();
    rig_picture("a.png", "rgb.png");
    char *large = calloc(CAPTION_FILE_MAX_BYTES + 1, 1);
    rig_write("a.txt", large, CAPTION_FILE_MAX_BYTES + 1);
    refuse_at("", &options, ERROR_TOO_LARGE, "a.txt: 1048577 bytes");
    rig_end();
    free(large);
    begin();
    rig_picture("a.png", "rgb.png");
    rig_picture("b.png", "rgb.png");
    rig_text("a.txt", "x");
    options.prompt = NULL;
    refuse_at("", &options, ERROR_INVALID, "1 of 2 pictures have no caption, the first is b.png");
    options.prompt = "\xff";
    refuse_at("", &options, ERROR_INVALID, "instance_prompt: a caption that is not UTF-8");
    rig_end();
    begin();
    rig_picture("0_cat/a.png", "rgb.png");
    refuse("the folder 0_cat: its pictures can be repeated 1 to");
    begin();
    rig_picture("99999999999999999999_cat/a.png", "rgb.png");
    refuse("_cat: its pictures can be repeated 1 to");
}

static void wrong_metadata(void) {
    struct dataset_options options = plain();
    begin();
    rig_text("metadata.jsonl", "{\"file_name\": \"a.png\"}");
    rig_text("metadata.csv", "file_name\na.png\n");
    refuse("metadata.jsonl and metadata.csv are there both");
    begin();
    rig_text("metadata.jsonl", "");
    refuse("metadata.jsonl: it has no rows");
    begin();
    rig_text("metadata.jsonl", "{\"file_name\": \"../a.png\"}");
    refuse("metadata.jsonl: line 1: the file name ../a.png leads out of its folder");
    begin();
    rig_text("metadata.csv", "file_name,text\nmissing.png,x\n");
    refuse("the first is missing.png: cannot open");
    begin();
    rig_text("metadata.csv", "file_name,text\na.mask.png,x\n");
    refuse("a.mask.png is no picture's name");
    begin();
    rig_text("metadata.csv", "file_name,text\nlist,x\n");
    refuse("list is no picture's name");
    begin();
    rig_text("metadata.csv", "file_name,text\n3_cat,x\n");
    refuse("3_cat is no picture's name");
    begin();
    rig_text("metadata.csv", "file_name,text\na.png,x\n");
    options.caption_column = "long";
    refuse_at("", &options, ERROR_INVALID, "caption_column: long is not allowed");
    rig_end();
    begin();
    rig_picture("a.png", "rgb.png");
    refuse_at("", &options, ERROR_INVALID, "has neither metadata.jsonl nor metadata.csv");
    options.image_column = "photo";
    refuse_at("", &options, ERROR_INVALID, "image_column: photo is not allowed");
    rig_end();
    options.image_column = NULL;
    begin();
    rig_picture("a.png", "rgb.png");
    rig_text("metadata.csv", "file_name,text\na.png,\n");
    options = plain();
    options.prompt = NULL;
    refuse_at("", &options, ERROR_INVALID, "1 of 1 pictures have no caption");
    rig_end();
}

static void wrong_pictures(void) {
    struct dataset_options options = plain();
    begin();
    rig_picture("a.png", "rgb.png");
    rig_picture("b.png", "broken_cut.png");
    refuse("1 of 2 pictures cannot be used; the first is b.png: the PNG is cut short");
    begin();
    rig_picture("a.jpg", "broken_gif.png");
    refuse("a.jpg: this is a GIF");
    begin();
    rig_text("a.png", "");
    refuse("a.png: this is an empty file");
    begin();
    rig_picture("a.png", "broken_huge.png");
    refuse("a.png: 60000x60000 px; at most");
    begin();
    rig_text("a.png", "");
    CHECK(truncate(rig_path("a.png"), (off_t)PICTURE_FILE_MAX_BYTES + (1 << 20)) == 0, "-");
    refuse("a.png: a file of 257 MiB; at most 256");
    begin();
    rig_picture("a.png", "one_pixel.png");
    options.buckets = (struct bucket_options){ .resolution = 128,
        .enabled = true,
        .min_px = 64,
        .max_px = 256,
        .step_px = 64,
        .no_upscale = true };
    refuse_at("", &options, ERROR_INVALID, "a.png: its 1x1 px are less than one bucket_reso_steps");
    options.buckets.resolution = 100;
    refuse_at("", &options, ERROR_INVALID, "resolution: 100 is not allowed");
    options = plain();
    options.held_out_share = 1;
    refuse_at("", &options, ERROR_INVALID, "a held-out share of 1");
    rig_end();
}

static void wrong_masks(void) {
    struct dataset_options options = plain();
    options.masks = DATASET_MASKS_FILES;
    begin();
    rig_picture("a.png", "rgb.png");
    refuse_at("", &options, ERROR_INVALID, "a.png: it has no mask (NAME.mask.png");
    rig_picture("a.mask.png", "turned6.png");
    refuse_at("", &options, ERROR_INVALID, "its mask a.mask.png has 19x27 px, the picture 27x19");
    rig_picture("a.mask.png", "broken_cut.png");
    refuse_at("", &options, ERROR_INVALID, "its mask a.mask.png: the PNG is cut short");
    rig_text("metadata.csv", "file_name,mask_file_name\na.png,none.png\n");
    refuse_at("", &options, ERROR_INVALID, "its mask none.png: cannot open");
    rig_end();
}

static void broken_pictures_can_be_left_out(void) {
    struct dataset_options options = plain();
    struct dataset *set;
    struct error err = { 0 };
    begin();
    rig_picture("a.png", "broken_cut.png");
    rig_picture("b.png", "rgb.png");
    rig_picture("c.jpg", "broken_cut.jpg");
    options.skip_broken = true;
    options.threads = 2;
    CHECK(dataset_open(rig_path(""), &options, &set, &err), "%s", err.message);
    CHECK(dataset_count(set) == 1, "%zu pictures", dataset_count(set));
    CHECK_STRING(dataset_item(set, 0)->path, "b.png");
    json_t *report = dataset_report(set);
    char *text = json_dumps(report, JSON_COMPACT);
    CHECK_CONTAINS(text, "\"broken\":2");
    CHECK_CONTAINS(text, "{\"path\":\"a.png\",\"error\":\"the PNG is cut short");
    CHECK_CONTAINS(text, "{\"path\":\"c.jpg\",\"error\":\"the JPEG is cut short");
    printf("%s\n", text);
    free(text);
    json_decref(report);
    dataset_destroy(set);
    rig_picture("b.png", "broken_sum.png");
    refuse_at(
        "", &options, ERROR_INVALID, "none of the 3 pictures can be used; the first is a.png");
    rig_end();
}

/* A data set opened for its report alone needs no captions and decodes no pictures. A picture
 * counts as broken only if its header is wrong. */
static void a_report_alone_refuses_less(void) {
    struct dataset_options options = plain();
    struct dataset *set;
    struct error err = { 0 };
    static float pixels[64 * 64 * 3];
    begin();
    rig_picture("a.png", "broken_sum.png");
    rig_picture("b.png", "rgb.png");
    rig_picture("c.jpg", "broken_gif.png");
    options.report_only = true;
    options.prompt = NULL;
    CHECK(dataset_open(rig_path(""), &options, &set, &err), "%s", err.message);
    json_t *report = dataset_report(set);
    char *text = json_dumps(report, JSON_COMPACT);
    CHECK_CONTAINS(text, "\"broken\":1");
    CHECK_CONTAINS(text, "\"missing\":2,\"missing_names\":[\"a.png\",\"b.png\"]");
    CHECK(!dataset_read(set, 0, &(struct crop){ 0 }, pixels, NULL, &err), "it is read from");
    free(text);
    json_decref(report);
    dataset_destroy(set);
    rig_end();
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    pictures = argv[1];
    folders_without_pictures();
    what_is_no_file_of_the_folder();
    wrong_captions();
    wrong_metadata();
    wrong_pictures();
    wrong_masks();
    broken_pictures_can_be_left_out();
    a_report_alone_refuses_less();
    printf("%d data sets refused\n", refused);
    return check_done();
}
