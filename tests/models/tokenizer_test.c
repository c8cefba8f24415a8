/* Token ids compared with transformers' CLIPTokenizer 5.23.0, for a small vocabulary of our own and
 * for CLIP's, which is built into the program. */
#include "base/file.h"
#include "base/text/json.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/check.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *data; /* path of tests/models/data */

static void expect_ids(const struct tokenizer *t, const char *text, const int *ids, size_t count) {
    int32_t *found = NULL;
    size_t found_count = 0;
    struct error err = { 0 };
    CHECK(tokenizer_encode(t, text, &found, &found_count, &err), "%s", err.message);
    CHECK(found_count == count, "\"%s\": %zu ids, not %zu", text, found_count, count);
    for (size_t i = 0; i < count && i < found_count; i++)
        CHECK(found[i] == ids[i], "\"%s\": id %zu is %d, not %d", text, i, found[i], ids[i]);
    free(found);
}
#define EXPECT(t, text, ...)                                                                       \
    expect_ids(                                                                                    \
        (t), (text), (const int[]){ __VA_ARGS__ }, sizeof((int[]){ __VA_ARGS__ }) / sizeof(int))

static struct tokenizer *open_or_fail(const char *dir) {
    struct tokenizer *t = NULL;
    struct error err = { 0 };
    CHECK(tokenizer_create(dir, &t, &err), "%s", err.message);
    return t;
}

static struct tokenizer *open_clip(enum clip_padding padding) {
    struct tokenizer *t = NULL;
    struct error err = { 0 };
    CHECK(tokenizer_create_clip(padding, &t, &err), "%s", err.message);
    return t;
}

static void small_vocabulary_gives_transformers_ids(const char *name) {
    char dir[512];
    snprintf(dir, sizeof(dir), "%s/%s", data, name);
    struct tokenizer *t = open_or_fail(dir);
    if (!t)
        return;
    CHECK(tokenizer_vocab_size(t) == 522, "%zu", tokenizer_vocab_size(t));
    expect_ids(t, "", NULL, 0);
    expect_ids(t, " \t\n\xe3\x80\x80", NULL, 0);
    EXPECT(t, "the cat", 511, 513);
    EXPECT(t, "abc", 516);
    EXPECT(t, "abcabc abc", 514, 512, 515, 516);
    EXPECT(t, "aaaaaaa", 518, 519);
    EXPECT(t, "aaaaaaaaaaaa a", 518, 518, 517, 64, 319, 319);
    EXPECT(t, "a~b ~", 319, 521, 320, 521); /* no '~' in the vocabulary: the unknown token */
    EXPECT(t, "The CAT's <|endoftext|> 42!", 511, 513, 6, 337, 521, 274, 272, 255);
    EXPECT(t, "<|ENDOFTEXT|>", 27, 346, 68, 77, 67, 78, 69, 83, 68, 87, 338, 91, 284);
    EXPECT(t,
        "\xc3\x80"
        "B c\xcc\x81",
        126, 253, 320, 127, 483);
    EXPECT(t, "thethe the~", 510, 68, 511, 511, 521);
    tokenizer_destroy(t);
}

static void bad_utf8_is_refused(const struct tokenizer *t) {
    static const char *const texts[] = { "a\xff", "\xc3", "\xc0\x80", "\xed\xa0\x80",
        "\xf4\x90\x80\x80", "ab\xe2\x82" };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct error err = { 0 };
        int32_t *ids;
        size_t count;
        CHECK(!tokenizer_encode(t, texts[i], &ids, &count, &err), "text %zu", i);
        CHECK_CONTAINS(err.message, "the text is not UTF-8: byte ");
        CHECK(err.code == ERROR_INVALID, "%d", err.code);
    }
}

static void padding_is_begin_tokens_end_pad(const struct tokenizer *t) {
    static const int wanted[8] = { 520, 511, 513, 516, 521, 521, 521, 521 };
    int32_t ids[8];
    char *cut;
    struct error err = { 0 };
    CHECK(tokenizer_encode_padded(t, "the cat abc", 8, ids, &cut, &err), "%s", err.message);
    CHECK(!cut, "a short text is reported as cut");
    for (int i = 0; i < 8; i++)
        CHECK(ids[i] == wanted[i], "%d: %d", i, ids[i]);
    CHECK(tokenizer_encode_padded(t, "the cat abc THE \xc3\x89t ~", 5, ids, &cut, &err), "%s",
        err.message);
    CHECK(ids[0] == 520 && ids[3] == 516 && ids[4] == 521,
        "the end mark is not at its place, where the id is %d", ids[4]);
    CHECK_STRING(cut, "the \xc3\xa9t <|endoftext|>");
    free(cut);
}

/* A word as long as the longest prompt. Its time must grow as n log n, otherwise this test would
 * seem to hang. */
static void long_words_take_no_time(const struct tokenizer *t) {
    char *word = malloc(16385);
    int32_t *ids;
    size_t count;
    struct error err = { 0 };
    memset(word, 'a', 16384);
    word[16384] = 0;
    for (int i = 0; i < 20; i++) {
        CHECK(tokenizer_encode(t, word, &ids, &count, &err), "%s", err.message);
        CHECK(count > 1000 && count < 16384, "%zu", count);
        free(ids);
    }
    for (int i = 0; i < 16384; i += 2)
        memcpy(word + i, i % 4 ? "\xcc\xa7" : "\xcc\x81", 2); /* marks that must be reordered */
    CHECK(tokenizer_encode(t, word, &ids, &count, &err), "%s", err.message);
    free(ids);
    free(word);
}

static void write_text(const char *dir, const char *name, const char *text) {
    char *path = file_join(dir, name);
    struct file_part part = { text, strlen(text) };
    struct error err = { 0 };
    CHECK(file_write(path, &part, 1, &err), "%s", err.message);
    free(path);
}

static void link_from_data(const char *dir, const char *name) {
    char target[512], path[512];
    snprintf(target, sizeof(target), "%s/small_tokenizer/%s", data, name);
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    CHECK(symlink(target, path) == 0, "%s", path);
}

/* SD-2 pads with "!", so "!" is a special token. SD-2's special_tokens_map.json declares begin and
 * end as normalized, so they are found in upper and lower case. */
static void sd2_special_tokens(const char *dir) {
    link_from_data(dir, "vocab.json");
    link_from_data(dir, "merges.txt");
    write_text(dir, "special_tokens_map.json",
        "{\"bos_token\":{\"content\":\"<|startoftext|>\",\"normalized\":true},"
        "\"eos_token\":{\"content\":\"<|endoftext|>\",\"normalized\":true},"
        "\"unk_token\":{\"content\":\"<|endoftext|>\",\"normalized\":true},\"pad_token\":\"!\"}");
    struct tokenizer *t = open_or_fail(dir);
    EXPECT(t, "a!b", 319, 0, 320);
    EXPECT(t, "<|ENDOFTEXT|>a", 521, 319);
    EXPECT(t, "the", 511);
    static const int wanted[6] = { 520, 511, 521, 0, 0, 0 };
    int32_t ids[6];
    char *cut;
    struct error err = { 0 };
    CHECK(tokenizer_encode_padded(t, "the", 6, ids, &cut, &err), "%s", err.message);
    for (int i = 0; i < 6; i++)
        CHECK(ids[i] == wanted[i], "%d: %d", i, ids[i]);
    tokenizer_destroy(t);
}

static void expect_error(const char *dir, const char *words) {
    struct tokenizer *t = NULL;
    struct error err = { 0 };
    CHECK(!tokenizer_create(dir, &t, &err), "accepted instead of refused with: %s", words);
    CHECK_CONTAINS(err.message, words);
}

static void remove_from(const char *dir, const char *name) {
    char *path = file_join(dir, name);
    unlink(path);
    free(path);
}

static void broken_folders_are_named(const char *dir) {
    static const char head[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":";
    static const struct {
        const char *rest, *words;
    } cases[] = {
        { "3}}", "merges: not a list" },
        { "[\"a\"]}}", "merges: number 0 is \"a\", not two tokens" },
        { "[\"b a\"]}}", "joins \"b\" and \"a\", which are not both in the vocabulary" },
        { "[]}}", "merges: there are none" },
        { "[\"a b\"]}}", "bos_token is \"<|startoftext|>\", which is not in the vocabulary" },
        { "[\"a b\"]},\"added_tokens\":[{\"id\":3,\"content\":\"x\",\"lstrip\":true}]}",
            "added token \"x\": lstrip is not supported" },
        { "[\"a b\"]},\"added_tokens\":[{\"id\":1,\"content\":\"a\"}]}",
            "added token \"a\" has the id 1, but 0 in the vocabulary" },
        { "[\"a b\"]},\"added_tokens\":[{\"content\":\"a\"}]}", "no valid id" },
        { "[\"a b\"]},\"added_tokens\":\"x\"}", "added_tokens is \"x\"; a list is needed" },
        { "[\"a b\"]},\"added_tokens\":{}}", "added_tokens is {}; a list is needed" },
    };
    char text[512];
    remove_from(dir, "special_tokens_map.json");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(text, sizeof(text), "%s%s", head, cases[i].rest);
        write_text(dir, "tokenizer.json", text);
        expect_error(dir, cases[i].words);
    }
    write_text(dir, "tokenizer.json", "{\"model\":{\"type\":\"Unigram\"}}");
    expect_error(dir, "its model is not CLIP's: type BPE");
    write_text(dir, "tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1}}}");
    expect_error(dir, "the id of \"a\" is -1; an integer from 0 to 1048575");
    write_text(dir, "tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":1}}}");
    expect_error(dir, "have the same id, 1");
    write_text(dir, "tokenizer.json", "{");
    expect_error(dir, "tokenizer.json: not valid JSON");
    remove_from(dir, "tokenizer.json");
    static const char *const empty[] = { "", "#version: 0.2\n", "\n\n" };
    for (size_t i = 0; i < sizeof(empty) / sizeof(empty[0]); i++) {
        remove_from(dir, "merges.txt");
        write_text(dir, "merges.txt", empty[i]);
        expect_error(dir, "merges.txt: merges: there are none");
    }
    remove_from(dir, "merges.txt");
    link_from_data(dir, "merges.txt");
    write_text(dir, "tokenizer_config.json", "{\"added_tokens_decoder\":[\"x\"]}");
    expect_error(dir, "added_tokens_decoder is [\"x\"]; an object is needed");
    expect_error("/nowhere", "/nowhere holds no tokenizer: neither tokenizer.json nor vocab.json");
}

/* The first lines are the vectors published in SEMANTICS; the rest is a sample of the 10,000 random
 * strings of tests/reference/tokenizer.py. */
static void real_vocabulary_gives_transformers_ids(void) {
    static const char *const files[] = { "clip_vectors.json", "clip_ids.json" };
    struct tokenizer *t = open_clip(CLIP_PADS_WITH_END);
    struct error err = { 0 };
    size_t texts = 0;
    for (size_t f = 0; t && f < 2; f++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/%s", data, files[f]);
        json_t *cases = json_parse_file(path, 1 << 20, &err);
        CHECK(json_array_size(cases) > 0, "%s", err.message);
        for (size_t i = 0; i < json_array_size(cases); i++, texts++) {
            const json_t *ids = json_array_get(json_array_get(cases, i), 1);
            int wanted[4096];
            size_t count = json_array_size(ids);
            for (size_t k = 0; k < count && k < 4096; k++)
                wanted[k] = (int)json_integer_value(json_array_get(ids, k));
            expect_ids(
                t, json_string_value(json_array_get(json_array_get(cases, i), 0)), wanted, count);
        }
        json_decref(cases);
    }
    printf("%zu strings with CLIP's vocabulary\n", texts);
    CHECK(tokenizer_vocab_size(t) == 49408 && tokenizer_end_id(t) == 49407, "%zu tokens, end %d",
        tokenizer_vocab_size(t), tokenizer_end_id(t));
    tokenizer_destroy(t);
}

/* SD-1.x pads with the end token, 49407; SD-2.x with "!", 0. */
static void clip_pads_as_each_family_does(void) {
    static const int pads[] = { [CLIP_PADS_WITH_END] = 49407, [CLIP_PADS_WITH_0] = 0 };
    for (int padding = 0; padding < 2; padding++) {
        struct tokenizer *t = open_clip((enum clip_padding)padding);
        struct error err = { 0 };
        int32_t ids[77];
        char *cut;
        CHECK(
            tokenizer_encode_padded(t, "a photo of a cat", 77, ids, &cut, &err), "%s", err.message);
        CHECK(ids[0] == 49406 && ids[1] == 320 && ids[5] == 2368 && ids[6] == 49407, "%d %d",
            ids[0], ids[6]);
        for (int i = 7; i < 77; i++)
            CHECK(ids[i] == pads[padding], "%d: %d", i, ids[i]);
        tokenizer_destroy(t);
    }
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s DATA_FOLDER\n", argv[0]);
        return 2;
    }
    data = realpath(argv[1], NULL); /* links to it must work from any folder */
    if (!data)
        return 2;
    char dir[] = "/tmp/latentd-test-XXXXXX", command[64];
    if (!mkdtemp(dir))
        return 2;
    small_vocabulary_gives_transformers_ids("small_tokenizer");
    small_vocabulary_gives_transformers_ids("small_tokenizer_json");
    char small[512];
    snprintf(small, sizeof(small), "%s/small_tokenizer", data);
    struct tokenizer *t = open_or_fail(small);
    bad_utf8_is_refused(t);
    padding_is_begin_tokens_end_pad(t);
    long_words_take_no_time(t);
    tokenizer_destroy(t);
    real_vocabulary_gives_transformers_ids();
    clip_pads_as_each_family_does();
    sd2_special_tokens(dir);
    broken_folders_are_named(dir);
    snprintf(command, sizeof(command), "rm -r %s", dir);
    CHECK(system(command) == 0, "%s", command);
    return check_done();
}
