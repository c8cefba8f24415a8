/* Command lines for a table with every kind of option: what is accepted, where values are stored,
 * what is refused and with which message. Numbers are compared with C's strtoll and strtod. */
#include "command/options/options.h"
#include "tests/check.h"

#include <stdlib.h>

struct target {
    const char *model;
    bool loud;
    int steps;
    uint64_t seed;
    double scale, minutes;
    struct device_choice device;
    struct dtype_choice dtype;
};

static const struct option_spec table[] = {
    OPTION_MODEL_ROW(struct target, model),
    { "out", 'o', "FILE", "nowhere" },
    { "loud", 'l', NULL, "a flag", .to = OPTION_TO_FLAG(struct target, loud) },
    { "steps", 0, "N", "broken\nlines", .to = OPTION_TO_INT(struct target, steps, 1, 1000) },
    { "seed", 0, "N", "", .to = OPTION_TO_UINT64(struct target, seed, 0, INT64_MAX) },
    { "scale", 0, "X", "", .to = OPTION_TO_DOUBLE(struct target, scale, -1, 1000) },
    { "minutes", 0, "X", "", .to = OPTION_TO_DOUBLE(struct target, minutes, 0, 60) },
    { "often", 0, "WORD", "again and again", .repeats = true },
    OPTION_DEVICE_ROW(struct target, device),
    OPTION_DTYPE_ROW(struct target, dtype),
    { 0 },
};

static struct options parsed;

/* Parses up to six words after the command's name. */
static bool parse(bool takes_argument, const char *const words[], struct error *err) {
    char name[] = "command";
    char *argv[8] = { name };
    int argc = 1;
    for (; argc < 7 && words[argc - 1]; argc++)
        argv[argc] = (char *)words[argc - 1];
    memset(err, 0, sizeof(*err));
    return options_parse(table, takes_argument, argc, argv, &parsed, err);
}

static void what_is_given_goes_where_its_row_says(void) {
    struct error err;
    struct target t = { .steps = 25, .scale = 7.5, .minutes = 10 };
    const char *const words[] = { "--model", "m", "--steps=3", "-l", "-o", "x=y", NULL };
    CHECK(parse(false, words, &err) && options_fill(&parsed, &t, &err), "%s", err.message);
    CHECK_STRING(t.model, "m");
    CHECK_STRING(options_get(&parsed, "out"), "x=y");
    CHECK(t.loud && t.steps == 3, "loud %d, steps %d", t.loud, t.steps);
    CHECK(t.scale == 7.5 && t.minutes == 10 && t.seed == 0,
        "an option that was not given has changed its target");
    CHECK(t.device.automatic && t.dtype.automatic, "device and dtype are not chosen automatically");
    CHECK(
        !options_get(&parsed, "steps") || strcmp(options_get(&parsed, "steps"), "3") == 0, "text");
    CHECK(!options_get(&parsed, "seed"), "an option that was not given is found");
    const char *const more[] = { "--model=", "--seed", "9223372036854775807", "--scale", "-0.5",
        "--dtype=f16", NULL };
    CHECK(parse(false, more, &err) && options_fill(&parsed, &t, &err), "%s", err.message);
    CHECK_STRING(t.model, "");
    CHECK(t.seed == INT64_MAX && t.scale == -0.5, "%llu %g", (unsigned long long)t.seed, t.scale);
    CHECK(!t.dtype.automatic && t.dtype.dtype == DTYPE_F16, "%d", t.dtype.dtype);
}

static void what_repeats_is_kept_in_order(void) {
    struct error err;
    struct target t = { 0 };
    const char *const words[] = { "--often", "b", "--model=m", "--often=a", "--often", "", NULL };
    CHECK(parse(false, words, &err) && options_fill(&parsed, &t, &err), "%s", err.message);
    CHECK(options_count(&parsed, "often") == 3, "%d", options_count(&parsed, "often"));
    CHECK_STRING(options_get_nth(&parsed, "often", 0), "b");
    CHECK_STRING(options_get_nth(&parsed, "often", 1), "a");
    CHECK_STRING(options_get_nth(&parsed, "often", 2), "");
    CHECK(!options_get_nth(&parsed, "often", 3) && options_count(&parsed, "out") == 0,
        "more values are found than were given");
    char name[] = "command", model[] = "--model=m", often[] = "--often=x";
    char *argv[OPTIONS_REPEATS_MAX + 3] = { name, model };
    for (int i = 0; i <= OPTIONS_REPEATS_MAX; i++)
        argv[2 + i] = often;
    CHECK(options_parse(table, false, 2 + OPTIONS_REPEATS_MAX, argv, &parsed, &err), "%s",
        err.message);
    CHECK(!options_parse(table, false, 3 + OPTIONS_REPEATS_MAX, argv, &parsed, &err),
        "more repeats than allowed are accepted");
    CHECK_STRING(err.message, "--often is given more than 64 times");
}

static void command_lines_are_read_strictly(void) {
    static const struct {
        bool takes_argument;
        const char *words[6];
        const char *message; /* NULL: accepted */
    } rows[] = {
        { false, { "--model", "m" }, NULL },
        { true, { "--model", "m", "path" }, NULL },
        { true, { "-", "--model", "m" }, NULL },  /* "-" is an argument, as POSIX has it */
        { false, { "--model", "--loud" }, NULL }, /* the next word is always the option's value */
        { false, { "--help" }, NULL },
        { false, { "--nonsense", "--help" }, "there is no option --nonsense" },
        { false, { "--model", "m", "-h", "--nonsense" }, NULL },
        { false, { NULL }, "--model PATH is required" },
        { false, { "--model" }, "--model needs a value: PATH" },
        { false, { "--model", "a", "--model=b" }, "--model is given twice" },
        { false, { "-l", "--loud" }, "--loud is given twice" },
        { false, { "--loud=yes" }, "--loud takes no value" },
        { false, { "--mode", "m" }, "there is no option --mode" },
        { false, { "--modelx", "m" }, "there is no option --modelx" },
        { false, { "-model", "m" }, "there is no option -model" },
        { false, { "-lo" }, "there is no option -lo" },
        { false, { "--" }, "there is no option --" },
        { false, { "--=x" }, "there is no option --=x" },
        { false, { "--model", "m", "path" }, "unexpected argument \"path\"" },
        { true, { "--model", "m", "a", "b" }, "unexpected argument \"b\"" },
        { false, { "" }, "unexpected argument \"\"" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct error err;
        const bool ok = parse(rows[i].takes_argument, rows[i].words, &err);
        CHECK(ok == !rows[i].message, "row %zu: %s", i, err.message);
        if (rows[i].message)
            CHECK(strcmp(err.message, rows[i].message) == 0, "row %zu: %s", i, err.message);
    }
}

static void values_are_whole_and_in_range(void) {
    static const struct {
        const char *name, *value, *allowed; /* NULL: accepted */
    } rows[] = {
        { "steps", "1", NULL },
        { "steps", "1000", NULL },
        { "steps", "007", NULL },
        { "steps", "+7", NULL },
        { "steps", "0", "an integer from 1 to 1000" },
        { "steps", "1001", "an integer from 1 to 1000" },
        { "steps", "4294967297", "an integer from 1 to 1000" }, /* 2^32 + 1 */
        { "steps", "99999999999999999999", "an integer from 1 to 1000" },
        { "steps", "", "an integer from 1 to 1000" },
        { "steps", "3.0", "an integer from 1 to 1000" },
        { "steps", "3 ", "an integer from 1 to 1000" },
        { "steps", " 3", "an integer from 1 to 1000" },
        { "steps", "0x3", "an integer from 1 to 1000" },
        { "seed", "-1", "an integer from 0 to 9223372036854775807" },
        { "seed", "9223372036854775808", "an integer from 0 to 9223372036854775807" },
        { "scale", "1e3", NULL },
        { "scale", "nan", "a number above -1, at most 1000" },
        { "scale", "inf", "a number above -1, at most 1000" },
        { "scale", "1e400", "a number above -1, at most 1000" },
        { "scale", "", "a number above -1, at most 1000" },
        { "scale", " 1", "a number above -1, at most 1000" },
        { "scale", "1,5", "a number above -1, at most 1000" },
        { "minutes", "60", NULL },
        { "minutes", "1e-9", NULL },
        { "minutes", "0", "a number above 0, at most 60" },
        { "minutes", "60.1", "a number above 0, at most 60" },
        { "minutes", "nan", "a number above 0, at most 60" },
        { "device", "cuda:1", NULL },
        { "device", "gpu", "auto, cpu, cuda or cuda:N" },
        { "dtype", "f64", "auto, f32, f16 or bf16" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct error err;
        struct target t = { 0 };
        char word[80], param[32];
        snprintf(word, sizeof(word), "--%s=%s", rows[i].name, rows[i].value);
        snprintf(param, sizeof(param), "--%s", rows[i].name);
        const char *const words[] = { "--model=m", word, NULL };
        const bool ok = parse(false, words, &err) && options_fill(&parsed, &t, &err);
        CHECK(ok == !rows[i].allowed, "%s: %s", word, err.message);
        if (rows[i].allowed)
            CHECK(strcmp(err.param, param) == 0 && strcmp(err.allowed, rows[i].allowed) == 0,
                "%s: %s", word, err.message);
    }
}

/* The help shows each option with its letter and value. All help texts start in the same column. */
static void help_has_every_option(void) {
    const struct command_help help = { "latentd command", "What it does.", "  an example" };
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    options_print_help(out, &help, table);
    fclose(out);
    CHECK_CONTAINS(text, "usage: latentd command\n\nWhat it does.\n\noptions:\n");
    CHECK_CONTAINS(text, "  --model PATH                  checkpoint: ");
    CHECK_CONTAINS(text, " file (required)\n");
    CHECK_CONTAINS(text, "  -o, --out FILE                nowhere\n");
    CHECK_CONTAINS(
        text, "  --steps N                     broken\n                                lines\n");
    CHECK_CONTAINS(text, "\nexamples:\n  an example\n");
    free(text);
}

int main(void) {
    what_is_given_goes_where_its_row_says();
    what_repeats_is_kept_in_order();
    command_lines_are_read_strictly();
    values_are_whole_and_in_range();
    help_has_every_option();
    return check_done();
}
