/* `latentd tune`: measures which kernels are the fastest (tune_run.c, in processes of their own:
 * tune_worker.c) and prints the table. */
#include "command/tune/tune.h"

#include "base/limits.h"
#include "base/monotonic.h"
#include "command/command.h"
#include "command/options/option_forms.h"
#include "command/options/options.h"
#include "engine/loop/implementations.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define MINUTES 10.0

struct command {
    struct tune_options options;
    const char *worker;
    double minutes;
    bool json;
};

static const struct option_spec table[] = {
    OPTION_MODEL_ROW(struct command, options.pipeline.model_path),
    OPTION_TOKENIZER_ROW(struct command, options.pipeline.tokenizer_dir),
    OPTION_DEVICE_ROW(struct command, options.pipeline.device),
    OPTION_DTYPE_ROW(struct command, options.pipeline.dtype),
    OPTION_SIZE_ROW("width", struct command, options.width),
    OPTION_SIZE_ROW("height", struct command, options.height),
    { "minutes", 0, "N", "stop after this many minutes; finished measurements are kept [10]",
        .to = OPTION_TO_DOUBLE(struct command, minutes, 0, TUNE_MINUTES_MAX) },
    { "json", 0, NULL, "print JSON instead of a table",
        .to = OPTION_TO_FLAG(struct command, json) },
    { "worker", 0, "asked|all",
        "for internal use: try kernels in this process. asked: those that\n"
        "standard input names; all: every candidate once (for a sanitizer)",
        .to = OPTION_TO_TEXT(struct command, worker) },
    { 0 },
};

static const struct command_help help = {
    "latentd tune --model PATH [options]",
    "Measures which of the GPU's kernels is the fastest for each operation of a picture. Each\n"
    "kernel is first compared with the plainest one on random data, in a separate process, so\n"
    "that a wrong or faulting kernel is found here and never used. The choices are stored in\n"
    "$XDG_CACHE_HOME/latentd (or in the file LATENTD_TUNER_CACHE). Every later start on the same\n"
    "GPU with the same driver and kernels uses them. Operations that were never measured come\n"
    "first, and for each operation the kernels that should be fastest. If a run is cut short,\n"
    "nothing is lost and the next run continues. On the CPU there is nothing to measure; the\n"
    "command then prints which implementation computes each operation.",
    "  latentd tune --model stable-diffusion-v1-5/\n"
    "  latentd tune --model stable-diffusion-v1-5/ --width 768 --json > tuned.json",
};

static double untuned_us(const struct tune_problem *p) {
    return p->candidates[0].state == TUNE_RIGHT ? p->candidates[0].us : 0;
}

static double tflops(const struct tune_problem *p, double us) {
    return us > 0 ? p->flops / us * 1e-6 : 0;
}

static int wrong_count(const struct tune_problem *p) {
    return tune_count(p, TUNE_WRONG) + tune_count(p, TUNE_FAULTED);
}

static int tried_count(const struct tune_problem *p) {
    return tune_count(p, TUNE_RIGHT) + wrong_count(p);
}

static void print_table(const struct tune *t) {
    double before = 0, after = 0;
    int skipped = 0, untried = 0;
    printf("%s\n%-58s %-28s %9s %9s %8s %7s %6s\n", t->cache.identity, "problem", "chosen", "us",
        "untuned", "TFLOP/s", "tried", "wrong");
    for (int i = 0; i < t->count; i++) {
        const struct tune_problem *p = &t->problems[i];
        const struct tune_candidate *best = tune_best(p);
        skipped += tune_count(p, TUNE_SKIPPED);
        untried += tune_count(p, TUNE_UNTRIED);
        if (!best) {
            printf("%-58s %-28s %9s %9s %8s %3d/%-3d %6d\n", p->key,
                tried_count(p) ? "(none)" : "(not tried)", "-", "-", "-", tried_count(p), p->count,
                wrong_count(p));
            continue;
        }
        printf("%-58s %-28s %9.1f %9.1f %8.1f %3d/%-3d %6d\n", p->key, best->name, best->us,
            untuned_us(p), tflops(p, best->us), tried_count(p), p->count, wrong_count(p));
        before += untuned_us(p) > 0 ? untuned_us(p) : best->us;
        after += best->us;
    }
    printf(
        "%d of %d problems were measured. Sum of one call of each: %.0f us untuned, %.0f us tuned. "
        "Stored in %s\n",
        t->measured, t->count, before, after, t->path);
    if (skipped)
        printf(
            "%d candidates could not be tried or were left out after faults, see above\n", skipped);
    if (untried)
        printf("%d candidates were not tried for want of time: run it again, or with more "
               "--minutes\n",
            untried);
}

/* Lists the candidates: right ones with time and error, wrong, faulted and skipped ones with the
 * reason. Untried ones are left out. */
static json_t *trials_json(const struct tune_problem *p) {
    static const char *const states[] = { "untried", "right", "wrong", "faulted", "skipped" };
    json_t *trials = json_array();
    for (int i = 0; i < p->count; i++) {
        const struct tune_candidate *c = &p->candidates[i];
        if (c->state == TUNE_RIGHT)
            json_array_append_new(
                trials, json_pack("{s:s, s:s, s:f, s:f}", "name", c->name, "state",
                            states[c->state], "us", c->us, "error", c->error));
        else if (c->state != TUNE_UNTRIED)
            json_array_append_new(trials, json_pack("{s:s, s:s, s:s}", "name", c->name, "state",
                                              states[c->state], "why", c->why));
    }
    return trials;
}

static json_t *problem_json(const struct tune_problem *p) {
    const struct tune_candidate *best = tune_best(p);
    return json_pack("{s:s, s:s?, s:s, s:f, s:f, s:f, s:i, s:i, s:i, s:i, s:o}", "problem", p->key,
        "chosen", best ? best->name : NULL, "untuned", p->candidates[0].name, "us",
        best ? best->us : 0.0, "untuned_us", untuned_us(p), "tflops",
        tflops(p, best ? best->us : 0.0), "candidates", tried_count(p), "wrong", wrong_count(p),
        "skipped", tune_count(p, TUNE_SKIPPED), "untried", tune_count(p, TUNE_UNTRIED), "trials",
        trials_json(p));
}

/* Takes it. */
static bool print_report(json_t *report, struct error *err) {
    bool ok = report && json_dumpf(report, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) == 0;
    putchar('\n');
    json_decref(report);
    return ok || error_set(err, ERROR_IO, "the report could not be written");
}

static bool print_json(const struct tune *t, struct error *err) {
    json_t *problems = json_array();
    for (int i = 0; i < t->count; i++)
        json_array_append_new(problems, problem_json(&t->problems[i]));
    return print_report(json_pack("{s:s, s:s, s:i, s:o}", "device", t->cache.identity, "cache",
                            t->path, "measured", t->measured, "problems", problems),
        err);
}

/* Prints the implementations of a device that has only one for each layer. */
static bool print_untuned(const struct command *command, struct error *err) {
    const struct pipeline_options *p = &command->options.pipeline;
    const struct kernels *kernels = devices_open(&p->device, err);
    enum dtype dtype;
    if (!kernels || !devices_choose_dtype(kernels, &p->dtype, &dtype, err))
        return false;
    const struct implementation *list = implementations_of(kernels, dtype);
    if (!command->json) {
        printf("%s, %s weights: there is nothing to choose between\n", kernels->name,
            dtype_name(dtype));
        implementations_print(list, stdout);
        return true;
    }
    return print_report(
        json_pack("{s:s, s:s, s:o, s:[]}", "device", kernels->name, "dtype", dtype_name(dtype),
            "implementations", implementations_json(list), "problems"),
        err);
}

int tune_main(int argc, char **argv) {
    struct options given;
    struct error err = { 0 };
    struct command command = { .minutes = MINUTES };
    if (!options_parse(table, false, argc, argv, &given, &err))
        return options_usage_error("tune", &err);
    if (given.help) {
        option_forms_print(stdout, given.help, &help, table);
        return 0;
    }
    if (!options_fill(&given, &command, &err))
        return options_usage_error("tune", &err);
    const char *worker = command.worker;
    if (worker && strcmp(worker, "asked") != 0 && strcmp(worker, "all") != 0) {
        options_refuse("worker", worker, "asked or all", &err);
        return options_usage_error("tune", &err);
    }
    if (worker)
        return tune_work(&command.options, strcmp(worker, "all") == 0);
    struct tune t = { .options = command.options };
    t.deadline_s = monotonic_seconds() + 60 * command.minutes;
    bool ok = tune_run(&t, &err);
    if (ok && command.json)
        ok = print_json(&t, &err);
    else if (ok)
        print_table(&t);
    else if (err.code == ERROR_UNSUPPORTED)
        ok = print_untuned(&command, &err);
    if (!ok)
        fprintf(stderr, "latentd tune: %s\n", err.message);
    tune_finish(&t);
    return ok ? 0 : 1;
}
