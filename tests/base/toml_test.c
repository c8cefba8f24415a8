/* Reads TOML, and compares it with the JSON that Python's tomllib makes of the same text. */
#include "base/text/toml.h"

#include "tests/check.h"

static json_t *parse(const char *text, struct error *err) {
    return toml_parse(text, strlen(text), err);
}

/* The JSON texts are json.dumps(tomllib.loads(text)) of Python 3.11. */
static void what_is_read_is_tomllibs(void) {
    static const struct {
        const char *toml, *json;
    } right[] = {
        { "", "{}" },
        { "# only a comment\n\n  \t\n", "{}" },
        { "a = 1\nb=-2 # two\r\n\"c d\" = +3\n'e' = 1_000\n0-1_x = 0",
            "{\"a\": 1, \"b\": -2, \"c d\": 3, \"e\": 1000, \"0-1_x\": 0}" },
        { "a = 1e-4\nb = 6.5\nc = -1.5E+3\nd = 1_0.2_5\ne = 1E4",
            "{\"a\": 0.0001, \"b\": 6.5, \"c\": -1500.0, \"d\": 10.25, \"e\": 10000.0}" },
        { "a = true\nb = false", "{\"a\": true, \"b\": false}" },
        { "a = \"x\\t\\\"y\\\\ \\u00e9 \\U0001F431\"\nb = 'C:\\hoge'\nc = ''",
            "{\"a\": \"x\\t\\\"y\\\\ \\u00e9 \\ud83d\\udc31\", \"b\": \"C:\\\\hoge\", \"c\": "
            "\"\"}" },
        { "a = [1, 2, # two\n 3,\n]\nb = []\nc = [[1], ['x', \"y\"]]",
            "{\"a\": [1, 2, 3], \"b\": [], \"c\": [[1], [\"x\", \"y\"]]}" },
        { "a.b = 1\na.c.d = 2\na . e = 3", "{\"a\": {\"b\": 1, \"c\": {\"d\": 2}, \"e\": 3}}" },
        { "[fruit]\napple.color = 1\n[fruit.apple.texture]\nx = 2",
            "{\"fruit\": {\"apple\": {\"color\": 1, \"texture\": {\"x\": 2}}}}" },
        { "a.b.c = 1\n[a.b.d]\nx = 2\n[a.e]",
            "{\"a\": {\"b\": {\"c\": 1, \"d\": {\"x\": 2}}, \"e\": {}}}" },
        { "a = { b = 1, c.d = 'x' }\ne = {}",
            "{\"a\": {\"b\": 1, \"c\": {\"d\": \"x\"}}, \"e\": {}}" },
        { "top = 0\n[a]\nx = 1\n[ b . \"c\" ] # c\ny = 2\n[a.d]\nz = 3\n[b]\nw = 4",
            "{\"top\": 0, \"a\": {\"x\": 1, \"d\": {\"z\": 3}}, \"b\": {\"c\": {\"y\": 2}, \"w\": "
            "4}}" },
        { "[general]\nshuffle_caption = true\n\n[[datasets]]\nresolution = 512\n"
          "  [[datasets.subsets]]\n  image_dir = 'C:\\a'\n  [[datasets.subsets]]\n"
          "  image_dir = 'C:\\b'\n[[datasets]]\nresolution = [768, 768]\n[datasets.more]\nx = 1\n",
            "{\"general\": {\"shuffle_caption\": true}, \"datasets\": [{\"resolution\": 512, "
            "\"subsets\": [{\"image_dir\": \"C:\\\\a\"}, {\"image_dir\": \"C:\\\\b\"}]}, "
            "{\"resolution\": [768, 768], \"more\": {\"x\": 1}}]}" },
    };
    const size_t count = sizeof(right) / sizeof(right[0]);
    for (size_t i = 0; i < count; i++) {
        struct error err = { 0 };
        json_t *got = parse(right[i].toml, &err);
        json_t *wanted = json_loads(right[i].json, 0, NULL);
        char *text = json_dumps(got, JSON_SORT_KEYS);
        CHECK(wanted && json_equal(got, wanted), "%s\ngave %s, %s", right[i].toml,
            text ? text : "(nothing)", err.message);
        free(text);
        json_decref(got);
        json_decref(wanted);
    }
    printf("%zu texts are as tomllib reads them\n", count);
}

static void wrong_files_are_refused_by_line(void) {
    static const struct {
        const char *toml, *words;
    } wrong[] = {
        { "a = 1\na = 2", "line 2: a is given twice" },
        { "[a]\n[b]\n[a]", "line 3: a is given twice" },
        { "a = 1\n[a]", "line 2: a is given twice" },
        { "[a.b]\n[a]\nb = 1", "line 3: b is given twice" },
        { "a = {}\n[a.b]", "line 2: a is no table" },
        { "a = {}\na.b = 1", "line 2: a is no table" },
        { "[a]\n[b]\n[a.c]\n[b]", "line 4: b is given twice" },
        { "a.b = 1\n[a]", "line 2: a is given twice" },
        { "a.b.c = 1\n[a.b]", "line 2: b is given twice" },
        { "a = [1]\n[[a]]", "line 2: a is no array of tables" },
        { "a = [{}]\n[a.b]", "line 2: a is an array of values" },
        { "[[a]]\n[a]", "line 2: a is given twice" },
        { "a = 1 b = 2", "line 1: more than one value" },
        { "[a] x", "line 1: more than one value" },
        { "a", "line 1: a: = and a value" },
        { "= 1", "line 1: a key is expected" },
        { "\"\" = 1", "line 1: a key is expected" },
        { "a. = 1", "line 1: a key is expected" },
        { "[a", "line 1: a header ends with ]" },
        { "[[a]", "line 1: a header ends with ]" },
        { "[]", "line 1: a key is expected" },
        { "a =", "line 1:  is none of these" },
        { "a = yes", "line 1: yes is none of these" },
        { "a = 01", "01 is none of these" },
        { "a = 1.", "1. is none of these" },
        { "a = .5", ".5 is none of these" },
        { "a = 1__0", "1__0 is none of these" },
        { "a = 0x10", "0x10 is none of these" },
        { "a = inf", "inf is none of these" },
        { "a = 1e999", "1e999 is none of these" },
        { "a = 9223372036854775808", "9223372036854775808 is none of these" },
        { "a = 1979-05-27", "1979-05-27 is none of these" },
        { "\na = \"\"\"x\"\"\"", "line 2: strings of several lines" },
        { "a = '''x'''", "line 1: strings of several lines" },
        { "a = 'x", "line 1: a string does not end" },
        { "a = \"x\ny\"", "line 1: a string does not end" },
        { "a = \"x\\", "line 1: a string does not end" },
        { "a = \"\\q\"", "line 1: an escape" },
        { "a = \"\\u12\"", "line 1: \\u needs 4" },
        { "a = \"\\ud800\"", "line 1: an escape" },
        { "a = \"\\u0000\"", "line 1: an escape" },
        { "a = 'x\x01'", "line 1: a control character" },
        { "a = [1 2]", "line 1: a list goes on" },
        { "a = [1,,2]", "is none of these" },
        { "a = {b = 1 c = 2}", "line 1: a table in a line" },
        { "a = {b = 1,}", "line 1: a key is expected" },
        { "a = 'x\xff'", "not UTF-8" },
        { "a = [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]", "nested deeper" },
        { "[a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a]", "nested deeper" },
    };
    const size_t count = sizeof(wrong) / sizeof(wrong[0]);
    for (size_t i = 0; i < count; i++) {
        struct error err = { 0 };
        json_t *got = parse(wrong[i].toml, &err);
        CHECK(!got, "%s was taken", wrong[i].toml);
        CHECK(strstr(err.message, wrong[i].words) && err.code == ERROR_INVALID,
            "%s: \"%s\" does not say \"%s\"", wrong[i].toml, err.message, wrong[i].words);
        json_decref(got);
    }
    struct error err = { 0 };
    CHECK(!toml_parse("a = 1\0", 6, &err) && strstr(err.message, "NUL"), "%s", err.message);
    CHECK(!toml_parse_file("/nowhere/x.toml", 100, &err) && err.code == ERROR_NOT_FOUND &&
              strstr(err.message, "/nowhere/x.toml"),
        "%s", err.message);
    printf("%zu wrong texts, each with its line and reason\n", count);
}

int main(void) {
    what_is_read_is_tomllibs();
    wrong_files_are_refused_by_line();
    return check_done();
}
