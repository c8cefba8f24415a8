/* Training checkpoints are read back bit for bit. Damaged, cut and half-written ones are detected,
 * and the last good one is used. There are never more than the limit. */
#include "train/checkpoint.h"

#include "base/file.h"
#include "tests/check.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Replace the C library's functions (-Wl,--wrap). They can emulate a file system that cannot
 * exchange names, and one where renaming a finished checkpoint fails. */
static bool exchanges = true, refuses;
int __real_renameat2(int from, const char *a, int to, const char *b, unsigned flags);
int __wrap_renameat2(int from, const char *a, int to, const char *b, unsigned flags);
int __wrap_renameat2(int from, const char *a, int to, const char *b, unsigned flags) {
    if (exchanges && !refuses)
        return __real_renameat2(from, a, to, b, flags);
    errno = exchanges ? EIO : EINVAL;
    return -1;
}
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to) {
    const char *suffix = strstr(from, ".writing");
    if (!refuses || !suffix || strcmp(suffix, ".writing") != 0)
        return __real_rename(from, to);
    errno = EIO;
    return -1;
}

static char folder[64];
static float values[1000], read_values[1000];
static int32_t words[7], read_words[7];

static void write_step(int64_t step, int64_t limit) {
    for (int i = 0; i < 1000; i++)
        values[i] = (float)i * 0.1f + (float)step;
    for (int i = 0; i < 7; i++)
        words[i] = (int32_t)step * 31 + i;
    const struct checkpoint_part parts[] = { { "values", values, sizeof(values), NULL },
        { "generator", words, sizeof(words), NULL } };
    struct checkpoint_state state = { parts, 2,
        json_pack("{s:I, s:f}", "step", (json_int_t)step, "scale", 0.1) };
    struct error err = { 0 };
    CHECK(checkpoint_write(folder, step, &state, limit, NULL, NULL, &err), "%s", err.message);
    json_decref(state.numbers);
}

/* Returns the step that is read, -1 if there is none, -2 on an error. */
static int64_t read_last(struct error *err) {
    const struct checkpoint_part parts[] = { { "values", read_values, sizeof(values), NULL },
        { "generator", read_words, sizeof(words), NULL } };
    struct checkpoint_state state = { parts, 2, NULL };
    int64_t step;
    if (!checkpoint_read_last(folder, &state, &step, err))
        return -2;
    if (step < 0)
        return -1;
    CHECK(json_integer_value(json_object_get(state.numbers, "step")) == step &&
              json_real_value(json_object_get(state.numbers, "scale")) == 0.1,
        "numbers of step %lld", (long long)step);
    bool same = true;
    for (int i = 0; i < 1000; i++)
        same = same && read_values[i] == (float)i * 0.1f + (float)step;
    for (int i = 0; i < 7; i++)
        same = same && read_words[i] == (int32_t)step * 31 + i;
    CHECK(same, "step %lld came back changed", (long long)step);
    json_decref(state.numbers);
    return step;
}

static void expect_last(int64_t step, const char *what) {
    struct error err = { 0 };
    const int64_t got = read_last(&err);
    CHECK(got == step, "%s: step %lld was read, not %lld; %s", what, (long long)got,
        (long long)step, err.message);
    printf("%s: step %lld\n", what, (long long)got);
}

static void expect_steps(const char *expected) {
    int64_t *steps;
    size_t count;
    struct error err = { 0 };
    char text[100] = "";
    CHECK(checkpoint_list(folder, &steps, &count, &err), "%s", err.message);
    for (size_t i = 0; i < count; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%lld ", (long long)steps[i]);
    CHECK(strcmp(text, expected) == 0, "steps %s, not %s", text, expected);
    free(steps);
}

static void state_path(int64_t step, char *path, size_t size) {
    snprintf(path, size, "%s/checkpoint-%lld/state.safetensors", folder, (long long)step);
}

/* Flips a bit of the file, `back` bytes before its end. */
static void flip(int64_t step, long back) {
    char path[200];
    state_path(step, path, sizeof(path));
    FILE *f = fopen(path, "r+b");
    fseek(f, -back, SEEK_END);
    const int byte = fgetc(f);
    fseek(f, -back, SEEK_END);
    fputc(byte ^ 1, f);
    fclose(f);
}

static void damage_is_told(void) {
    char path[200];
    write_step(10, 0);
    write_step(20, 0);
    write_step(30, 0);
    expect_last(30, "three good ones");
    flip(30, 1);
    expect_last(20, "the last has one bit wrong at its end");
    flip(30, 1);
    flip(30, 2000);
    expect_last(20, "in its middle");
    flip(30, 2000);
    expect_last(30, "mended");
    char *text;
    size_t size;
    struct error err = { 0 };
    state_path(30, path, sizeof(path));
    CHECK(file_read(path, 1 << 20, &text, &size, &err), "%s", err.message);
    const char *scale = strstr(text + 8, "0.1");
    CHECK(scale, "the numbers are in the header");
    flip(30, (long)(size - (size_t)(scale + 2 - text)));
    expect_last(20, "a number wrong");
    state_path(20, path, sizeof(path));
    CHECK(truncate(path, 1500) == 0, "truncate");
    expect_last(10, "the second is cut short");
    state_path(10, path, sizeof(path));
    CHECK(truncate(path, 0) == 0, "truncate");
    CHECK(read_last(&err) == -2 && strstr(err.message, "none of its 3 checkpoints"), "%s",
        err.message);
    printf("all damaged: %s\n", err.message);
    free(text);
    write_step(30, 1);
    expect_last(30, "written anew");
    expect_steps("30 ");
}

static bool fails(void *user, const char *path, struct error *err) {
    (void)user;
    CHECK(file_is_folder(path), "%s", path);
    return error_set(err, ERROR_IO, "No space left on device");
}

static bool puts_a_file(void *user, const char *path, struct error *err) {
    char *name = file_join(path, user);
    const bool ok = file_write(name, &(struct file_part){ "x", 1 }, 1, err);
    free(name);
    return ok;
}

static void a_failure_leaves_the_last_one(void) {
    struct checkpoint_state state = { NULL, 0, json_object() };
    struct error err = { 0 };
    CHECK(!checkpoint_write(folder, 40, &state, 1, fails, NULL, &err) &&
              strstr(err.message, "No space"),
        "%s", err.message);
    expect_last(30, "a full disk");
    expect_steps("30 ");
    char path[200];
    snprintf(path, sizeof(path), "%s/checkpoint-50.writing", folder);
    CHECK(mkdir(path, 0777) == 0, "mkdir"); /* as left by a kill */
    expect_last(30, "one was being written");
    CHECK(checkpoint_write(folder, 50, &state, 2, puts_a_file, (char[]){ "adapter" }, &err), "%s",
        err.message);
    expect_steps("30 50 ");
    snprintf(path, sizeof(path), "%s/checkpoint-50/adapter", folder);
    CHECK(file_exists(path), "%s is missing", path);
    expect_last(30, "of another job");
    CHECK(!checkpoint_write("/nowhere", 1, &state, 0, NULL, NULL, &err) &&
              strstr(err.message, "/nowhere"),
        "%s", err.message);
    json_decref(state.numbers);
}

/* Writes the same step again, as after a resume. The old checkpoint must stay until the new one has
 * its name, also on file systems that cannot exchange names. */
static void one_takes_the_place_of_another(void) {
    for (int i = 0; i < 2; i++) {
        struct checkpoint_state state = { NULL, 0, json_object() };
        struct error err = { 0 };
        exchanges = i == 0;
        write_step(55, 0);
        expect_last(55, exchanges ? "names are exchanged" : "names are not exchanged");
        refuses = true;
        CHECK(!checkpoint_write(folder, 55, &state, 0, NULL, NULL, &err) &&
                  strstr(err.message, "checkpoint-55: Input/output error"),
            "%s", err.message);
        refuses = false;
        expect_last(55, "the last one could not be replaced");
        CHECK(checkpoint_write(folder, 55, &state, 0, puts_a_file, (char[]){ "adapter" }, &err),
            "%s", err.message);
        char path[200];
        snprintf(path, sizeof(path), "%s/checkpoint-55/adapter", folder);
        CHECK(file_exists(path), "%s is missing", path);
        json_decref(state.numbers);
        expect_steps("30 50 55 ");
    }
    exchanges = true;
}

static void limits_hold(void) {
    for (int64_t step = 60; step <= 120; step += 20)
        write_step(step, 3);
    expect_steps("80 100 120 ");
    write_step(100, 3); /* again, after resuming from an earlier step */
    expect_steps("80 100 120 ");
    expect_last(120, "three of seven are kept");
}

static void read_step(int64_t step, bool there, const char *said) {
    const struct checkpoint_part parts[] = { { "values", read_values, sizeof(values), NULL },
        { "generator", read_words, sizeof(read_words), NULL } };
    struct checkpoint_state state = { parts, 2, NULL };
    struct error err = { 0 };
    const bool ok = checkpoint_read_step(folder, step, &state, &err);
    CHECK(ok == there && strstr(err.message, said), "step %lld: %s", (long long)step, err.message);
    printf("step %lld: %s\n", (long long)step, ok ? "read" : err.message);
    json_decref(state.numbers);
}

/* The numbers alone: of a step, of the last one that can be read, or of none. */
static void numbers_are_read_alone(void) {
    struct error err = { 0 };
    static const struct {
        const char *folder;
        int64_t step, expected;
    } cases[] = { { folder, 80, 80 }, { folder, -1, 120 }, { folder, 90, -1 },
        { "/tmp/checkpoint_test_nowhere", -1, -1 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *numbers;
        CHECK(checkpoint_read_numbers(cases[i].folder, cases[i].step, &numbers, &err), "%s",
            err.message);
        const json_t *step = json_object_get(numbers, "step");
        CHECK((step ? json_integer_value(step) : -1) == cases[i].expected, "case %zu", i);
        json_decref(numbers);
    }
}

static void one_can_be_named(void) {
    struct error err = { 0 };
    CHECK(checkpoint_step("checkpoint-50") == 50 && checkpoint_step("checkpoint-") == -1 &&
              checkpoint_step("checkpoint-5.aside") == -1 && checkpoint_step("latest") == -1,
        "steps of names");
    read_step(80, true, "");
    CHECK(read_values[0] == 80, "another one's values");
    read_step(90, false, "checkpoint-80, checkpoint-100, checkpoint-120");
    flip(80, 1);
    read_step(80, false, "damaged"); /* no other checkpoint is read instead */
    flip(80, 1);
    for (int i = 0; i < 2; i++) { /* in round two, one is already put aside */
        CHECK(checkpoint_put_aside(folder, 80, &err), "%s", err.message);
        expect_steps("80 ");
        write_step(100, 0);
        expect_steps("80 100 ");
    }
    char path[200];
    snprintf(path, sizeof(path), "%s/checkpoint-120.aside/state.safetensors", folder);
    CHECK(file_exists(path), "%s is missing", path);
}

int main(void) {
    snprintf(folder, sizeof(folder), "/tmp/checkpoint_test_XXXXXX");
    CHECK(mkdtemp(folder), "no temporary folder");
    struct error err = { 0 };
    CHECK(read_last(&err) == -1, "an empty folder has none: %s", err.message);
    damage_is_told();
    a_failure_leaves_the_last_one();
    one_takes_the_place_of_another();
    limits_hold();
    numbers_are_read_alone();
    one_can_be_named();
    char command[100];
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    CHECK(system(command) == 0, "%s", command);
    return check_done();
}
