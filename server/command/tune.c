/* `latentd tune`: starts workers (tune_worker.c) until one comes to the end, keeps the fastest
 * right candidate of every problem in the tuner's cache, and prints the table. This process never
 * opens the device: a candidate that faults or hangs takes a worker with it and nothing else. */
#include "server/command/tune.h"

#include "base/limits.h"
#include "kernels/tuner_cache.h"
#include "server/command/command.h"
#include "server/command/options.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAULTS_MAX 40
#define SILENCE_MAX_S 120 /* loading a checkpoint is the longest that a worker says nothing */
#define LINE_MAX_BYTES 1024

static const struct option_spec table[] = {
    { "model", 0, "PATH", "checkpoint: a diffusers folder or a .safetensors file", true },
    { "tokenizer", 0, "DIR", "as for latentd serve" },
    OPTION_DEVICE,
    OPTION_DTYPE,
    { "width", 0, "PX", "of the pictures to tune for [the model's]" },
    { "height", 0, "PX", "of the pictures to tune for [the model's]" },
    { "json", 0, NULL, "print JSON instead of a table" },
    { "worker", 0, "N", "used by tune itself: try the candidates from the Nth on" },
    { 0 },
};

static const struct command_help help = {
    "latentd tune --model PATH [options]",
    "Measures, for every operation of a picture, which of the GPU's kernels is the fastest: each "
    "is\n"
    "first compared with the plainest one on random data, in a process of its own, so that a\n"
    "wrong or faulting kernel is found here and never used. What is chosen is kept in\n"
    "$XDG_CACHE_HOME/latentd (or LATENTD_TUNER_CACHE, a file) and used by every later start on\n"
    "the same GPU with the same driver and build.",
    "  latentd tune --model stable-diffusion-v1-5/\n"
    "  latentd tune --model stable-diffusion-v1-5/ --width 768 --json > tuned.json",
};

/* One problem while its candidates come in. */
struct current {
    bool any;
    struct tuner_entry entry;
    char default_name[TUNER_NAME_BYTES];
    double flops;
};

struct tune {
    char **argv;
    int argc;
    struct tuner_cache cache;
    char path[4096]; /* of the cache */
    struct current current;
    /* What the worker said last. */
    int trying; /* the number, or -1 */
    char trying_name[TUNER_NAME_BYTES];
    bool ended;
    int faults;
    json_t *json; /* owned: the table */
};

/* --- what workers say --- */

static bool problem_finish(struct tune *t, struct error *err) {
    struct current *c = &t->current;
    if (!c->any)
        return true;
    const struct tuner_entry *e = &c->entry;
    json_array_append_new(
        t->json, json_pack("{s:s, s:s, s:s, s:f, s:f, s:f, s:i, s:i}", "problem", e->key, "chosen",
                     e->name, "untuned", c->default_name, "us", e->us, "untuned_us", e->default_us,
                     "tflops", e->us > 0 ? c->flops / e->us * 1e-6 : 0.0, "candidates",
                     e->candidates, "wrong", e->wrong));
    bool ok = !e->name[0] ||
              (tuner_cache_put(&t->cache, e, err) && tuner_cache_store(&t->cache, t->path, err));
    if (!e->name[0])
        fprintf(stderr, "latentd tune: %s: no candidate is right\n", e->key);
    memset(c, 0, sizeof(*c));
    return ok;
}

static bool on_identity(struct tune *t, const char *text, struct error *err) {
    if (t->cache.identity[0])
        return strcmp(t->cache.identity, text) == 0 ||
               error_set(err, ERROR_DEVICE, "the device changed while it was tuned: %.200s", text);
    tuner_cache_init(&t->cache, text);
    if (!tuner_cache_path(text, t->path, sizeof(t->path)))
        return error_set(err, ERROR_INVALID,
            "there is no place for the tuner's file: set HOME, XDG_CACHE_HOME or "
            "LATENTD_TUNER_CACHE");
    tuner_cache_load(&t->cache, t->path); /* other sizes and models stay known */
    return true;
}

static bool on_trying(
    struct tune *t, int number, const char *key, const char *name, struct error *err) {
    struct current *c = &t->current;
    if (c->any && strcmp(c->entry.key, key) != 0 && !problem_finish(t, err))
        return false;
    if (!c->any) {
        c->any = true;
        snprintf(c->entry.key, sizeof(c->entry.key), "%s", key);
        snprintf(c->default_name, sizeof(c->default_name), "%s", name);
    }
    t->trying = number;
    snprintf(t->trying_name, sizeof(t->trying_name), "%s", name);
    c->entry.candidates++;
    return true;
}

static void on_right(struct tune *t, double us, double flops) {
    struct current *c = &t->current;
    if (strcmp(t->trying_name, c->default_name) == 0)
        c->entry.default_us = us;
    if (!c->entry.name[0] || us < c->entry.us) {
        c->entry.us = us;
        snprintf(c->entry.name, sizeof(c->entry.name), "%s", t->trying_name);
    }
    c->flops = flops;
    t->trying = -1;
}

static void on_wrong(struct tune *t, const char *why) {
    fprintf(stderr, "latentd tune: %s: %s is wrong and will not be used: %s\n",
        t->current.entry.key, t->trying_name, why);
    t->current.entry.wrong++;
    t->trying = -1;
}

static bool on_line(struct tune *t, const char *line, struct error *err) {
    char key[TUNER_KEY_BYTES], name[TUNER_NAME_BYTES], text[TUNER_IDENTITY_BYTES];
    int number;
    double us, error, flops;
    if (sscanf(line, "identity\t%255[^\n]", text) == 1)
        return on_identity(t, text, err);
    if (sscanf(line, "trying\t%d\t%127[^\t]\t%63[^\n]", &number, key, name) == 3)
        return on_trying(t, number, key, name, err);
    if (sscanf(line, "right\t%d\t%lf\t%lf\t%lf", &number, &us, &error, &flops) == 4)
        on_right(t, us, flops);
    else if (sscanf(line, "wrong\t%d\t%255[^\n]", &number, text) == 2)
        on_wrong(t, text);
    else if (strcmp(line, "end") == 0)
        t->ended = true;
    return true;
}

/* --- workers --- */

/* This program again, from candidate `first` on, its standard output to read from. */
static bool worker_start(
    const struct tune *t, int first, pid_t *pid, int *from, struct error *err) {
    int ends[2];
    char number[16], *argv[OPTIONS_MAX + 8];
    int argc = 0;
    snprintf(number, sizeof(number), "%d", first);
    for (; argc < t->argc && argc < OPTIONS_MAX; argc++)
        argv[argc] = t->argv[argc];
    char program[] = "latentd", option[] = "--worker";
    memmove(argv + 1, argv, sizeof(argv[0]) * (size_t)argc);
    argv[0] = program;
    argv[++argc] = option;
    argv[++argc] = number;
    argv[++argc] = NULL;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return error_set(err, ERROR_IO, "a pipe: %s", strerror(errno));
    *pid = fork();
    if (*pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    close(ends[1]);
    *from = ends[0];
    if (*pid > 0)
        return true;
    close(ends[0]);
    return error_set(err, ERROR_IO, "a process: %s", strerror(errno));
}

/* Reads lines until the worker closes its end or is silent for too long. */
static bool worker_listen(struct tune *t, int from, bool *silent, struct error *err) {
    char line[LINE_MAX_BYTES];
    size_t used = 0;
    *silent = false;
    for (;;) {
        struct pollfd wait = { from, POLLIN, 0 };
        int ready = poll(&wait, 1, SILENCE_MAX_S * 1000);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0) {
            *silent = true;
            return true;
        }
        char byte;
        ssize_t got = read(from, &byte, 1);
        if (got <= 0)
            return true;
        if (byte != '\n') {
            if (used < sizeof(line) - 1)
                line[used++] = byte;
            continue;
        }
        line[used] = 0;
        used = 0;
        if (!on_line(t, line, err))
            return false;
    }
}

/* What became of a worker that did not come to the end: the candidate it was trying did it. */
static bool blame(struct tune *t, bool silent, int status, int *first, struct error *err) {
    char why[64];
    if (t->trying < 0)
        return error_set(err, ERROR_DEVICE,
            "the process that measures ended before it tried a kernel (status %d)",
            WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    if (++t->faults > FAULTS_MAX)
        return error_set(err, ERROR_DEVICE, "%d candidates fault: giving up", t->faults);
    if (silent)
        snprintf(why, sizeof(why), "it hangs");
    else if (WIFSIGNALED(status))
        snprintf(why, sizeof(why), "it ends the process with signal %d", WTERMSIG(status));
    else
        snprintf(why, sizeof(why), "it ends the process with status %d", WEXITSTATUS(status));
    *first = t->trying + 1;
    on_wrong(t, why);
    return true;
}

static bool tune_all(struct tune *t, struct error *err) {
    int first = 0;
    while (!t->ended) {
        pid_t pid = -1;
        int from = -1, status = 0;
        bool silent;
        t->trying = -1;
        if (!worker_start(t, first, &pid, &from, err))
            return false;
        bool ok = worker_listen(t, from, &silent, err);
        close(from);
        if (silent || !ok)
            kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        if (!ok || (!t->ended && !blame(t, silent, status, &first, err)))
            return false;
    }
    return problem_finish(t, err);
}

/* --- the table --- */

static void print_table(const struct tune *t) {
    size_t i;
    json_t *row;
    double before = 0, after = 0;
    printf("%-56s %-30s %9s %9s %9s %6s\n", t->cache.identity, "chosen", "us", "untuned", "TFLOP/s",
        "wrong");
    json_array_foreach(t->json, i, row) {
        double us = json_number_value(json_object_get(row, "us"));
        double untuned = json_number_value(json_object_get(row, "untuned_us"));
        printf("%-56s %-30s %9.1f %9.1f %9.1f %3d/%d\n",
            json_string_value(json_object_get(row, "problem")),
            json_string_value(json_object_get(row, "chosen")), us, untuned,
            json_number_value(json_object_get(row, "tflops")),
            (int)json_integer_value(json_object_get(row, "wrong")),
            (int)json_integer_value(json_object_get(row, "candidates")));
        before += untuned;
        after += us;
    }
    printf("%zu problems, each once: %.0f us untuned, %.0f us tuned; kept in %s\n",
        json_array_size(t->json), before, after, t->path);
}

static bool print_json(const struct tune *t) {
    json_t *report = json_pack(
        "{s:s, s:s, s:O}", "device", t->cache.identity, "cache", t->path, "problems", t->json);
    bool ok = report && json_dumpf(report, stdout, JSON_INDENT(2)) == 0;
    putchar('\n');
    json_decref(report);
    return ok;
}

static bool fill_options(
    const struct options *given, struct tune_options *out, int *first, struct error *err) {
    out->pipeline.model_path = options_get(given, "model");
    out->pipeline.tokenizer_dir = options_get(given, "tokenizer");
    return options_int(given, "width", IMAGE_MIN_PX, IMAGE_MAX_PX, &out->width, err) &&
           options_int(given, "height", IMAGE_MIN_PX, IMAGE_MAX_PX, &out->height, err) &&
           options_int(given, "worker", 0, 1 << 20, first, err) &&
           options_device(given, &out->pipeline.device, err) &&
           options_dtype(given, &out->pipeline.dtype, err);
}

int tune_main(int argc, char **argv) {
    struct options given;
    struct error err = { 0 };
    struct tune_options options = { 0 };
    int first = 0;
    if (!options_parse(table, false, argc, argv, &given, &err))
        return options_usage_error("tune", &err);
    if (given.help) {
        options_print_help(stdout, &help, table);
        return 0;
    }
    if (!fill_options(&given, &options, &first, &err))
        return options_usage_error("tune", &err);
    if (options_get(&given, "worker"))
        return tune_work(&options, first);
    struct tune t = { .argv = argv, .argc = argc, .trying = -1, .json = json_array() };
    bool ok = t.json || error_set(&err, ERROR_NO_MEMORY, "no memory for a table");
    ok = ok && tune_all(&t, &err);
    if (ok && options_get(&given, "json"))
        ok = print_json(&t) || error_set(&err, ERROR_IO, "the report could not be written");
    else if (ok)
        print_table(&t);
    if (!ok)
        fprintf(stderr, "latentd tune: %s\n", err.message);
    json_decref(t.json);
    tuner_cache_finish(&t.cache);
    return ok ? 0 : 1;
}
