/* Tests the file of choices: where it is (the XDG base directory specification), what it contains,
 * and when it is ignored. tests/command/tune.py tests it by running `latentd tune`. */
#include "kernels/tuner_cache.h"

#include "base/file.h"
#include "base/limits.h"
#include "tests/check.h"

#include <stdlib.h>
#include <unistd.h>

static char folder[] = "/tmp/tuner_cache_test.XXXXXX";
static char path[64];

#define IDENTITY "chip, build 1"
/* Contains FNV-1a of the lines before it, computed by another implementation. */
#define LAST_LINE "end\t2\ta5429c93b978343f\n"
static const char text[] = "latentd-tuner 1\t" IDENTITY "\n"
                           "conv 3x3\tmma 128\t20.500\t50.000\t5\t3\n"
                           "linear\tsimt\t1.000\t0.000\t2\t1\n" LAST_LINE;

static void set(const char *name, const char *value) {
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

/* "All paths set in these environment variables must be absolute. If an implementation encounters a
 * relative path [...] it should consider the path invalid and ignore it." */
static void the_path_follows_the_specification(void) {
    static const struct {
        const char *own, *xdg, *home, *path;
    } rows[] = {
        { "x/t", "/c", "/h", "x/t" },
        { NULL, "/c", "/h", "/c/latentd/tuner-f28881910b44586f.txt" },
        { "", "/c", "/h", "/c/latentd/tuner-f28881910b44586f.txt" },
        { NULL, NULL, "/h", "/h/.cache/latentd/tuner-f28881910b44586f.txt" },
        { NULL, "", "/h", "/h/.cache/latentd/tuner-f28881910b44586f.txt" },
        { NULL, "c", "/h", "/h/.cache/latentd/tuner-f28881910b44586f.txt" },
        { NULL, NULL, NULL, NULL },
        { NULL, "c", "h", NULL },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char got[128] = "";
        set("LATENTD_TUNER_CACHE", rows[i].own);
        set("XDG_CACHE_HOME", rows[i].xdg);
        set("HOME", rows[i].home);
        const bool found = tuner_cache_path(IDENTITY, got, sizeof(got));
        CHECK(found == (rows[i].path != NULL), "row %zu: %s", i, got);
        if (found && rows[i].path)
            CHECK(strcmp(got, rows[i].path) == 0, "%s, not %s", got, rows[i].path);
    }
    char small[8];
    set("LATENTD_TUNER_CACHE", "/a/longer/path");
    CHECK(!tuner_cache_path(IDENTITY, small, sizeof(small)), "cut to %s", small);
}

static void what_is_put_is_written_and_read(void) {
    const struct tuner_entry conv = { "conv 3x3", "mma 128", 20.5, 50, 5, 3 };
    const struct tuner_entry first = { "linear", "mma 64", 9, 9, 1, 0 };
    const struct tuner_entry linear = { "linear", "simt", 1, 0, 2, 1 };
    struct tuner_cache cache, again;
    struct error err = { 0 };
    char *got = NULL;
    size_t size = 0;
    tuner_cache_init(&cache, IDENTITY);
    CHECK(tuner_cache_put(&cache, &conv, &err) && tuner_cache_put(&cache, &first, &err) &&
              tuner_cache_put(&cache, &linear, &err),
        "%s", err.message);
    CHECK(cache.count == 2, "an entry of the same key is replaced: %d", cache.count);
    snprintf(path, sizeof(path), "%s/a/b/tuner.txt", folder);
    CHECK(tuner_cache_store(&cache, path, &err), "%s", err.message);
    CHECK(file_read(path, 1000, &got, &size, &err), "%s", err.message);
    CHECK(strcmp(got, text) == 0, "\"%s\"", got);
    free(got);
    tuner_cache_init(&again, IDENTITY);
    tuner_cache_load(&again, path);
    const struct tuner_entry *entry = tuner_cache_find(&again, "linear");
    CHECK(again.count == 2 && entry, "%d entries", again.count);
    if (entry) {
        CHECK(strcmp(entry->name, "simt") == 0, "%s", entry->name);
        CHECK(entry->us == 1 && entry->default_us == 0, "%g %g", entry->us, entry->default_us);
        CHECK(
            entry->candidates == 2 && entry->wrong == 1, "%d %d", entry->candidates, entry->wrong);
    }
    CHECK(!tuner_cache_find(&again, "linea"), "a part of a key is found");
    tuner_cache_finish(&again);
    tuner_cache_finish(&cache);
}

/* With a changed byte or a missing end, the whole file is ignored, never used in part. */
static void a_damaged_file_counts_as_empty(void) {
    struct tuner_cache cache;
    struct error err = { 0 };
    int accepted = 0;
    fflush(stderr);
    const int kept = dup(STDERR_FILENO);
    CHECK(freopen("/dev/null", "w", stderr), "a log line for each is too much");
    for (size_t i = 0; i < 2 * (sizeof(text) - 1); i += 3) {
        char damaged[sizeof(text)];
        memcpy(damaged, text, sizeof(text));
        const bool cut = i >= sizeof(text) - 1;
        const size_t at = i % (sizeof(text) - 1);
        damaged[at] = (char)(damaged[at] ^ 1);
        const struct file_part part = { damaged, cut ? at : sizeof(text) - 1 };
        CHECK(file_write(path, &part, 1, &err), "%s", err.message);
        tuner_cache_init(&cache, IDENTITY);
        tuner_cache_load(&cache, path);
        accepted += cache.count != 0;
        tuner_cache_finish(&cache);
    }
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    CHECK(accepted == 0, "%d damaged files are used", accepted);
}

/* Loads the file and returns in `said` what was printed to standard error. */
static void load_and_listen(struct tuner_cache *cache, char *said, size_t size) {
    char name[80];
    snprintf(name, sizeof(name), "%s.log", path);
    fflush(stderr);
    const int kept = dup(STDERR_FILENO);
    CHECK(freopen(name, "w+", stderr), "%s", name);
    tuner_cache_load(cache, path);
    rewind(stderr);
    said[fread(said, 1, size - 1, stderr)] = 0;
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    unlink(name);
}

/* The message names the parts of the identity that differ, the file's and ours. */
static void another_identity_is_refused_by_name(void) {
    static const struct {
        const char *ours, *said;
    } rows[] = {
        { IDENTITY, "" },
        { "another chip, build 1", "measured with chip; this is another chip\n" },
        { "chip, build 2", "measured with build 1; this is build 2\n" },
        { "chip, build", "measured with build 1; this is build\n" },
        { "chip, build 1, a.cu 9", "measured without a.cu 9\n" },
        { "c, b", "measured with chip, build 1; this is c, b\n" },
    };
    const struct file_part whole = { text, sizeof(text) - 1 };
    struct error err = { 0 };
    CHECK(file_write(path, &whole, 1, &err), "%s", err.message);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tuner_cache cache;
        char said[512];
        tuner_cache_init(&cache, rows[i].ours);
        load_and_listen(&cache, said, sizeof(said));
        printf("%s: %d choices%s%s", rows[i].ours, cache.count, *said ? ", " : "\n",
            *said ? strstr(said, "ignored") : "");
        CHECK(cache.count == (*rows[i].said ? 0 : 2), "%d choices", cache.count);
        CHECK(*rows[i].said ? strstr(said, rows[i].said) != NULL : !*said, "%s", said);
        tuner_cache_finish(&cache);
    }
}

static void there_is_a_ceiling(void) {
    struct tuner_cache cache;
    struct error err = { 0 };
    tuner_cache_init(&cache, IDENTITY);
    bool ok = true;
    for (int i = 0; ok && i < TUNER_SHAPES_MAX; i++) {
        struct tuner_entry entry = { .name = "x" };
        snprintf(entry.key, sizeof(entry.key), "%d", i);
        ok = tuner_cache_put(&cache, &entry, &err);
    }
    const struct tuner_entry more = { "one more", "x", 1, 1, 1, 0 },
                             known = { "7", "y", 1, 1, 1, 0 };
    CHECK(ok, "%s", err.message);
    CHECK(!tuner_cache_put(&cache, &more, &err), "one more than %d", TUNER_SHAPES_MAX);
    CHECK(tuner_cache_put(&cache, &known, &err), "one that is there: %s", err.message);
    tuner_cache_finish(&cache);
}

static int chosen;

static bool choose(const char *key, const char *name) {
    chosen++;
    return strcmp(key, "known") == 0 && strcmp(name, "good") == 0;
}

static void choices_are_given_to_the_tuner(void) {
    const struct tuner tuner = { .choose = choose };
    const struct tuner_entry known = { "known", "good", 1, 1, 1, 0 };
    const struct tuner_entry other = { "other", "good", 1, 1, 1, 0 };
    struct tuner_cache cache;
    struct error err = { 0 };
    tuner_cache_init(&cache, IDENTITY);
    CHECK(tuner_cache_put(&cache, &known, &err) && tuner_cache_put(&cache, &other, &err), "%s",
        err.message);
    const int applied = tuner_cache_apply(&cache, &tuner);
    CHECK(applied == 1 && chosen == 2, "%d of %d", applied, chosen);
    tuner_cache_finish(&cache);
}

int main(void) {
    if (!mkdtemp(folder))
        return 1;
    the_path_follows_the_specification();
    what_is_put_is_written_and_read();
    a_damaged_file_counts_as_empty();
    another_identity_is_refused_by_name();
    there_is_a_ceiling();
    choices_are_given_to_the_tuner();
    char command[64];
    snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command) != 0 ? 1 : check_done();
}
