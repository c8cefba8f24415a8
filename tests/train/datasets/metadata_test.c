/* metadata.jsonl, metadata.csv and captions in text files. */
#include "base/limits.h"
#include "tests/check.h"
#include "train/data/metadata/metadata.h"

#include <stdlib.h>
#include <sys/resource.h>

static bool parse_columns(bool csv, const char *text, size_t size,
    const struct metadata_columns *columns, struct metadata *out, struct error *err) {
    char *copy = malloc(size + 1); /* exact size, for the sanitizer */
    memcpy(copy, text, size);
    copy = realloc(copy, size ? size : 1);
    const bool ok = csv ? metadata_parse_csv(copy, size, columns, out, err)
                        : metadata_parse_jsonl(copy, size, columns, out, err);
    free(copy);
    return ok;
}

static bool parse(bool csv, const char *text, size_t size, const char *column, struct metadata *out,
    struct error *err) {
    return parse_columns(
        csv, text, size, &(struct metadata_columns){ .caption = column }, out, err);
}

static void row_is(const struct metadata *m, size_t row, const char *name, int count,
    const char *first, const char *last) {
    CHECK(row < m->count, "%zu rows", m->count);
    if (row >= m->count)
        return;
    const struct metadata_row *r = &m->rows[row];
    CHECK_STRING(r->file_name, name);
    CHECK(r->count == count, "%s: %d captions", r->file_name, r->count);
    if (r->count == count && count > 0) {
        CHECK_STRING(r->captions[0], first);
        CHECK_STRING(r->captions[count - 1], last);
    }
}

/* The same data set as metadata.jsonl and as metadata.csv. */
static void both_kinds_say_the_same(void) {
    static const char jsonl[] =
        "\xef\xbb\xbf{\"file_name\": \"b/2.png\", \"text\": \"two, or \\\"deux\\\"\"}\r\n"
        "\n"
        "{\"file_name\": \"a.png\", \"text\": [\"one\", \"eins\", \"\"], \"artist\": {\"x\": "
        "[1]}}\n"
        "{\"file_name\": \"c.png\", \"text\": null, \"mask_file_name\": \"masks/c.png\"}\n"
        "{\"file_name\": \"b/2.png\", \"text\": \"two\\nlines\"}\n"
        "{\"file_name\": \"d.png\"}";
    static const char csv[] = "\xef\xbb\xbf"
                              "artist,file_name,text,mask_file_name\r\n"
                              ",b/2.png,\"two, or \"\"deux\"\"\",\r\n"
                              "x,a.png,one,\n"
                              "x,a.png,eins,\n"
                              "x,a.png,\"\",\n"
                              "x,c.png,,masks/c.png\n"
                              "x,b/2.png,\"two\nlines\",\n"
                              "x,d.png,,";
    for (int kind = 0; kind < 2; kind++) {
        struct metadata m;
        struct error err = { 0 };
        CHECK(parse(kind, kind ? csv : jsonl, kind ? sizeof(csv) - 1 : sizeof(jsonl) - 1, NULL, &m,
                  &err),
            "%s", err.message);
        CHECK(m.count == 4, "%zu rows", m.count);
        row_is(&m, 0, "a.png", 3, "one", "");
        row_is(&m, 1, "b/2.png", 2, "two, or \"deux\"", "two\nlines");
        row_is(&m, 2, "c.png", 0, NULL, NULL);
        row_is(&m, 3, "d.png", 0, NULL, NULL);
        if (m.count == 4)
            CHECK_STRING(m.rows[2].mask_file_name, "masks/c.png");
        metadata_finish(&m);
    }
}

static void a_column_can_be_asked_for(void) {
    static const char *const texts[] = {
        "{\"file_name\": \"a.png\", \"text\": \"t\", \"caption\": \"c\", \"long\": \"l\"}",
        "file_name,text,caption,long\na.png,t,c,l\n",
    };
    for (int kind = 0; kind < 2; kind++) {
        struct metadata m;
        struct error err = { 0 };
        CHECK(parse(kind, texts[kind], strlen(texts[kind]), "long", &m, &err), "%s", err.message);
        row_is(&m, 0, "a.png", 1, "l", "l");
        metadata_finish(&m);
        CHECK(!parse(kind, texts[kind], strlen(texts[kind]), "short", &m, &err), "taken");
        CHECK_STRING(err.param, "caption_column");
        CHECK(!parse(kind, texts[kind], strlen(texts[kind]), NULL, &m, &err), "taken");
        CHECK_CONTAINS(err.message, "say which with caption_column");
    }
}

static void pictures_can_have_a_column_of_their_own(void) {
    static const char *const texts[] = {
        "{\"photo\": \"b.png\", \"file_name\": \"a.png\", \"text\": \"t\", \"long\": \"l\"}",
        "text,photo,file_name,long\nt,b.png,a.png,l\n",
    };
    for (int kind = 0; kind < 2; kind++) {
        struct metadata m;
        struct error err = { 0 };
        const size_t size = strlen(texts[kind]);
        CHECK(parse_columns(
                  kind, texts[kind], size, &(struct metadata_columns){ "photo", "long" }, &m, &err),
            "%s", err.message);
        row_is(&m, 0, "b.png", 1, "l", "l");
        metadata_finish(&m);
        CHECK(!parse_columns(
                  kind, texts[kind], size, &(struct metadata_columns){ "image", NULL }, &m, &err),
            "taken");
        CHECK_STRING(err.param, "image_column");
        CHECK_STRING(err.value, "image");
    }
}

static void wrong_files_are_refused_with_their_line(void) {
    static const struct {
        bool csv;
        const char *text, *words;
    } rows[] = {
        { false, "", "no rows" },
        { false, "\n\n  \n", "no rows" },
        { false, "{\"file_name\": \"a.png\"}\n[1]\n", "line 2: [1] is no object" },
        { false, "{\"file_name\": \"a.png\"}\n{\"file_name\": \"b\n", "line 2: " },
        { false, "{\"text\": \"x\"}", "line 1: its file_name is (missing)" },
        { false, "{\"file_name\": 7, \"text\": \"x\"}", "its file_name is 7" },
        { false, "{\"file_name\": \"a.png\", \"text\": 7}", "its caption is 7" },
        { false, "{\"file_name\": \"a.png\", \"text\": [\"x\", 7]}", "its caption 1 is 7" },
        { false, "{\"file_name\": \"a.png\", \"mask_file_name\": []}", "its mask_file_name is []" },
        { false, "{\"file_name\": \"a.png\", \"file_name\": \"b.png\"}", "file_name" },
        { false, "{\"file_name\": \"\", \"text\": \"x\"}", "a file name of 0 bytes" },
        { false, "{\"file_name\": \"/etc/passwd\"}", "/etc/passwd is absolute" },
        { false, "{\"file_name\": \"../a.png\"}", "leads out of its folder" },
        { false, "{\"file_name\": \"x/../../a.png\"}", "leads out of its folder" },
        { false, "{\"file_name\": \"x//a.png\"}", "has an empty part" },
        { false, "{\"file_name\": \"x/\"}", "has an empty part" },
        { false, "{\"file_name\": \"a\\nb\"}", "control character 0a" },
        { false, "{\"file_name\": \"a.png\", \"mask_file_name\": \"../m.png\"}", "leads out" },
        { false,
            "{\"file_name\": \"a.png\", \"mask_file_name\": \"m\"}\n"
            "{\"file_name\": \"a.png\", \"mask_file_name\": \"n\"}",
            "line 2: a.png has two masks, m and n" },
        { true, "", "no rows" },
        { true, "file_name,text\n", "no rows" },
        { true, "name,text\na.png,x\n", "line 1: its first line names no column file_name" },
        { true, "file_name,text\na.png\n", "line 2: 1 fields; the first line names 2" },
        { true, "file_name,text\n\na.png,x,y\n", "line 3: 3 fields" },
        { true, "file_name,text\n,x\n", "line 2: it has no file_name" },
        { true, "file_name,text\na.png,\"x", "are not closed" },
        { true, "file_name,text\na.png,\"x\"y\n", "line 2: a quote where none may be" },
        { true, "file_name,text\na.png,x\"y\n", "line 2: a quote where none may be" },
        { true, "file_name,text,text\na.png,x,y\n", "the column text comes again" },
        { true, "file_name,file_name\na.png,x\n", "the column file_name comes again" },
        { true, "file_name,text\n../a.png,x\n", "line 2: the file name ../a.png leads out" },
        { true, "file_name,text\na.png,\xff\n", "not UTF-8, at its byte 0" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct metadata m;
        struct error err = { 0 };
        CHECK(!parse(rows[i].csv, rows[i].text, strlen(rows[i].text), NULL, &m, &err),
            "%s is taken", rows[i].text);
        CHECK_CONTAINS(err.message, rows[i].words);
        CHECK(err.code == ERROR_INVALID && !m.rows, "%s: code %d", rows[i].text, err.code);
        printf("%s\n", err.message);
    }
}

static void captions_have_ceilings(void) {
    struct metadata m;
    struct error err = { 0 };
    char *text = malloc(CAPTIONS_PER_PICTURE_MAX * 8 + PROMPT_MAX_BYTES + 100);
    size_t length = (size_t)sprintf(text, "file_name,text\n");
    for (int i = 0; i <= CAPTIONS_PER_PICTURE_MAX; i++)
        length += (size_t)sprintf(text + length, "a.png,x\n");
    CHECK(!parse(true, text, length, NULL, &m, &err), "taken");
    CHECK_CONTAINS(err.message, "line 66: a.png has more than 64 captions");
    length = (size_t)sprintf(text, "file_name,text\na.png,");
    memset(text + length, 'x', PROMPT_MAX_BYTES + 1);
    CHECK(parse(true, text, length + PROMPT_MAX_BYTES, NULL, &m, &err), "%s", err.message);
    metadata_finish(&m);
    CHECK(!parse(true, text, length + PROMPT_MAX_BYTES + 1, NULL, &m, &err), "taken");
    CHECK_CONTAINS(err.message, "a caption of 16385 bytes");
    CHECK(!parse(true, "file_name,text\na.png,x\0y\n", 26, NULL, &m, &err), "taken");
    CHECK_CONTAINS(err.message, "NUL");
    free(text);
}

/* A file of less than 1 MB can hold 200,000 captions of a picture whose name has 1,000 bytes.
 * Reading it must not copy the name for each caption. */
static void a_name_is_kept_once(void) {
    char *text = malloc(2 << 20);
    size_t length = (size_t)sprintf(text, "{\"file_name\": \"");
    for (int i = 0; i < 1000; i++)
        text[length++] = i % 100 == 99 ? '/' : 'a';
    length += (size_t)sprintf(text + length, "a.png\", \"text\": [\"a\"");
    for (int i = 1; i < 200000; i++)
        length += (size_t)sprintf(text + length, ",\"a\"");
    length += (size_t)sprintf(text + length, "]}");
    struct metadata m;
    struct error err = { 0 };
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    CHECK(!parse(false, text, length, NULL, &m, &err), "taken");
    CHECK_CONTAINS(err.message, "has more than 64 captions");
    getrusage(RUSAGE_SELF, &after);
    const long more_kib = after.ru_maxrss - before.ru_maxrss;
    CHECK(more_kib < 120 << 10, "%ld KiB", more_kib);
    printf("%zu bytes of 200000 captions: %ld KiB\n", length, more_kib);
    free(text);
}

static void text_files_have_a_caption_a_line(void) {
    static const char text[] = "\xef\xbb\xbf  a cat \t\r\n\r\n \na dog, sitting";
    const char *captions[2];
    struct texts texts = { 0 };
    struct error err = { 0 };
    int count;
    CHECK(captions_parse(text, sizeof(text) - 1, &texts, captions, 2, &count, &err), "%s",
        err.message);
    CHECK(count == 2, "%d captions", count);
    CHECK_STRING(captions[0], "a cat");
    CHECK_STRING(captions[1], "a dog, sitting");
    CHECK(!captions_parse(text, sizeof(text) - 1, &texts, captions, 1, &count, &err), "taken");
    CHECK(captions_parse("\n \n", 3, &texts, captions, 2, &count, &err) && count == 0, "%d", count);
    CHECK(!captions_parse("a\nb\xc3(", 5, &texts, captions, 2, &count, &err), "taken");
    CHECK_CONTAINS(err.message, "not UTF-8, at its byte 1");
    texts_finish(&texts);
}

int main(void) {
    both_kinds_say_the_same();
    a_column_can_be_asked_for();
    pictures_can_have_a_column_of_their_own();
    wrong_files_are_refused_with_their_line();
    captions_have_ceilings();
    a_name_is_kept_once();
    text_files_have_a_caption_a_line();
    return check_done();
}
