/* The tuner's policy: which candidate is tried next, in which process, and what the end of that
 * process means. This process never opens the device. So if a candidate faults or hangs, only a
 * worker is lost. */
#include "command/tune/tune.h"

#include "base/list.h"
#include "base/monotonic.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The candidates of each problem that the first round tries; the second round tries the others if
 * time is left. Candidates are sorted by a model of the chip, fastest first. If a library has
 * candidates (at most eight), they come before these. */
#define FIRST_CANDIDATES 20
/* If a kernel with some tile faults for two shapes, it is not tried on other shapes. If a problem
 * has three candidates that fault, no more of its candidates are tried. */
#define FAMILY_FAULTS_MAX 2
#define PROBLEM_FAULTS_MAX 3
#define FAULTS_MAX 40
#define SILENCE_MAX_S 120 /* a worker is silent while it loads a checkpoint */
/* A trial counts as hanging if it takes longer than TRIAL_MAX_S and longer than TRIAL_MAX_LONGEST
 * times the longest trial so far. Before any trial has ended, the limit is FIRST_TRIAL_MAX_S,
 * because the first one also loads kernels. No trial may end later than TRIAL_MAX_S after the
 * deadline. */
#define TRIAL_MAX_S 5
#define TRIAL_MAX_LONGEST 10
#define FIRST_TRIAL_MAX_S 30
#define END_MAX_S 5 /* wait for a killed worker: the driver may hold it */
#define LINE_MAX_BYTES 1024
#define WORKER_ARGUMENTS_MAX 20

struct worker {
    pid_t pid;    /* -1: none */
    int from, to; /* pipes: its output and its input */
    char line[LINE_MAX_BYTES];
    bool silent;
};

int tune_count(const struct tune_problem *problem, int state) {
    int count = 0;
    for (int i = 0; i < problem->count; i++)
        count += (int)problem->candidates[i].state == state;
    return count;
}

const struct tune_candidate *tune_best(const struct tune_problem *problem) {
    const struct tune_candidate *best = NULL;
    for (int i = 0; i < problem->count; i++) {
        const struct tune_candidate *c = &problem->candidates[i];
        if (c->state == TUNE_RIGHT && (!best || c->us < best->us))
            best = c;
    }
    return best;
}

void tune_finish(struct tune *t) {
    for (int i = 0; i < t->count; i++)
        free(t->problems[i].candidates);
    free(t->problems);
    tuner_cache_finish(&t->cache);
}

/* --- processes --- */

struct worker_arguments {
    char *argv[WORKER_ARGUMENTS_MAX];
    int count;
    char texts[WORKER_ARGUMENTS_MAX][32]; /* arguments that were made here */
};

static void add_argument(struct worker_arguments *a, const char *option, const char *value) {
    if (!value || a->count + 3 > WORKER_ARGUMENTS_MAX)
        return;
    a->argv[a->count++] = (char *)option;
    a->argv[a->count++] = (char *)value;
    a->argv[a->count] = NULL;
}

static void add_number(struct worker_arguments *a, const char *option, const char *prefix, int n) {
    char *text = a->texts[a->count];
    snprintf(text, sizeof(a->texts[0]), "%s%d", prefix, n);
    add_argument(a, option, text);
}

/* Makes the command line of `latentd tune --worker asked` with these options. */
static void make_arguments(const struct tune_options *options, struct worker_arguments *a) {
    const struct pipeline_options *p = &options->pipeline;
    *a = (struct worker_arguments){ .count = 0 };
    add_argument(a, "latentd", "tune");
    add_argument(a, "--model", p->model_path);
    add_argument(a, "--tokenizer", p->tokenizer_dir);
    if (!p->device.automatic && p->device.kind == DEVICE_CPU)
        add_argument(a, "--device", "cpu");
    else if (!p->device.automatic)
        add_number(a, "--device", "cuda:", p->device.index);
    if (!p->dtype.automatic)
        add_argument(a, "--dtype", dtype_name(p->dtype.dtype));
    if (options->width)
        add_number(a, "--width", "", options->width);
    if (options->height)
        add_number(a, "--height", "", options->height);
    add_argument(a, "--worker", "asked");
}

/* Starts this program again as a worker. The worker is killed if this process ends, also while it
 * waits for the device. */
static bool worker_start(const struct tune *t, struct worker *w, struct error *err) {
    int out[2], in[2];
    struct worker_arguments arguments;
    make_arguments(&t->options, &arguments);
    if (pipe2(out, O_CLOEXEC) != 0)
        return error_set(err, ERROR_IO, "a pipe: %s", strerror(errno));
    if (pipe2(in, O_CLOEXEC) != 0) {
        close(out[0]);
        close(out[1]);
        return error_set(err, ERROR_IO, "a pipe: %s", strerror(errno));
    }
    const pid_t parent = getpid();
    w->pid = fork();
    if (w->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        signal(SIGPIPE, SIG_DFL);
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        execv("/proc/self/exe", arguments.argv);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    w->to = in[1];
    w->from = out[0];
    w->silent = false;
    if (w->pid > 0)
        return true;
    close(w->to);
    close(w->from);
    return error_set(err, ERROR_IO, "a process: %s", strerror(errno));
}

/* Reads the worker's next line. Returns false if the worker has ended, or is silent for `most_s`
 * seconds. */
static bool worker_read(struct worker *w, double most_s) {
    size_t used = 0;
    for (;;) {
        struct pollfd wait = { w->from, POLLIN, 0 };
        const int ready = poll(&wait, 1, (int)(most_s * 1000));
        char byte;
        if (ready < 0 && errno == EINTR)
            continue;
        w->silent = ready <= 0;
        if (w->silent || read(w->from, &byte, 1) <= 0)
            return false;
        if (byte == '\n') {
            w->line[used] = 0;
            return true;
        }
        if (used < sizeof(w->line) - 1)
            w->line[used++] = byte;
    }
}

/* Ends the worker if it still runs. Returns its exit status in the form of waitpid. */
static int worker_end(struct worker *w, bool at_once) {
    int status = 0;
    close(w->to);
    const bool killed = at_once || w->silent;
    if (killed)
        kill(w->pid, SIGKILL);
    close(w->from);
    const double begun = monotonic_seconds();
    while (waitpid(w->pid, &status, killed ? WNOHANG : 0) == 0 &&
           monotonic_seconds() - begun < END_MAX_S)
        (void)usleep(1000);
    w->pid = -1;
    return status;
}

static void describe_end(const struct worker *w, int status, char *why, size_t size) {
    if (w->silent)
        snprintf(why, size, "it hangs");
    else if (WIFSIGNALED(status))
        snprintf(why, size, "it ends the process with signal %d", WTERMSIG(status));
    else
        snprintf(why, size, "it ends the process with status %d", WEXITSTATUS(status));
}

/* --- the list of a worker --- */

static bool on_identity(struct tune *t, const char *text, struct error *err) {
    if (t->cache.identity[0])
        return strcmp(t->cache.identity, text) == 0 ||
               error_set(err, ERROR_DEVICE, "the device changed while it was tuned: %.200s", text);
    tuner_cache_init(&t->cache, text);
    if (!tuner_cache_path(text, t->path, sizeof(t->path)))
        return error_set(err, ERROR_INVALID,
            "there is no place for the tuner's file: set HOME, XDG_CACHE_HOME or "
            "LATENTD_TUNER_CACHE");
    tuner_cache_load(&t->cache, t->path); /* keeps entries of other sizes and models */
    return true;
}

static bool add_problem(struct tune *t, const char *key, struct error *err) {
    if (!LIST_ROOM(t->problems, t->count, "a list of kernels", err))
        return false;
    struct tune_problem *p = &t->problems[t->count++];
    *p = (struct tune_problem){ .was_known = tuner_cache_find(&t->cache, key) != NULL };
    snprintf(p->key, sizeof(p->key), "%s", key);
    return true;
}

static bool add_candidate(struct tune_problem *p, const char *name, struct error *err) {
    if (!LIST_ROOM(p->candidates, p->count, "a list of kernels", err))
        return false;
    struct tune_candidate *added = &p->candidates[p->count++];
    *added = (struct tune_candidate){ .state = TUNE_UNTRIED };
    snprintf(added->name, sizeof(added->name), "%s", name);
    return true;
}

/* Reads all lines up to `ready`. A later worker must list the same problems as the first one. */
static bool worker_list(struct tune *t, struct worker *w, struct error *err) {
    const bool again = t->count > 0;
    char text[TUNER_IDENTITY_BYTES], key[TUNER_KEY_BYTES], name[TUNER_NAME_BYTES], why[64];
    int listed = 0;
    while (worker_read(w, SILENCE_MAX_S)) {
        if (sscanf(w->line, "identity\t%767[^\n]", text) == 1) {
            if (!on_identity(t, text, err))
                return false;
        } else if (sscanf(w->line, "nothing\t%159[^\n]", name) == 1) {
            return error_set(
                err, ERROR_UNSUPPORTED, "there is nothing to choose between on the %s", name);
        } else if (sscanf(w->line, "problem\t%127[^\n]", key) == 1) {
            listed++;
            if (!again && !add_problem(t, key, err))
                return false;
            if (listed > t->count || strcmp(t->problems[listed - 1].key, key) != 0)
                return error_set(err, ERROR_INTERNAL, "problem %d is suddenly %s", listed, key);
        } else if (sscanf(w->line, "candidate\t%159[^\n]", name) == 1) {
            if (!again && t->count && !add_candidate(&t->problems[t->count - 1], name, err))
                return false;
        } else if (strcmp(w->line, "ready") == 0) {
            for (int i = 0; i < t->count; i++)
                if (t->problems[i].count == 0)
                    return error_set(
                        err, ERROR_INTERNAL, "%s has no candidates", t->problems[i].key);
            return t->cache.identity[0] != 0 ||
                   error_set(err, ERROR_INTERNAL, "the device did not say what it is");
        }
    }
    describe_end(w, worker_end(w, false), why, sizeof(why));
    return error_set(
        err, ERROR_DEVICE, "the process that measures ended before it tried a kernel: %s", why);
}

/* --- candidates --- */

static bool time_is_up(const struct tune *t) {
    return monotonic_seconds() >= t->deadline_s;
}

/* Returns the faults of a candidate's family. "mma 128x160x32 split 2" is of the family "mma
 * 128x160x32". */
static int *family_faults(struct tune *t, const char *name) {
    static int too_many;
    const char *split = strstr(name, " split ");
    const size_t length = split ? (size_t)(split - name) : strlen(name);
    for (int i = 0; i < t->family_count; i++)
        if (strlen(t->families[i].name) == length && memcmp(t->families[i].name, name, length) == 0)
            return &t->families[i].faults;
    if (t->family_count == TUNE_FAMILIES_MAX) {
        too_many = 0;
        return &too_many;
    }
    memcpy(t->families[t->family_count].name, name, length);
    return &t->families[t->family_count++].faults;
}

static void say(const struct tune_problem *p, const struct tune_candidate *c, const char *what,
    const char *why) {
    fprintf(stderr, "latentd tune: %s: %s %s: %s\n", p->key, c->name, what, why);
}

/* Marks a candidate that has no time, and says why. */
static void give_up(
    const struct tune_problem *p, struct tune_candidate *c, int state, const char *why) {
    c->state = state;
    snprintf(c->why, sizeof(c->why), "%s", why);
    say(p, c, state == TUNE_SKIPPED ? "could not be tried" : "is wrong and will not be used", why);
}

static double trial_limit(const struct tune *t) {
    const double limit = TRIAL_MAX_LONGEST * t->longest_s;
    return t->longest_s == 0 ? FIRST_TRIAL_MAX_S : limit < TRIAL_MAX_S ? TRIAL_MAX_S : limit;
}

/* Handles a worker that gave no answer, which counts as a fault of the candidate. If the deadline
 * only cut the trial short, the candidate stays untried. */
static bool on_fault(struct tune *t, struct worker *w, struct tune_problem *p,
    struct tune_candidate *c, double asked_s, struct error *err) {
    char why[64];
    const bool in_time = asked_s < trial_limit(t);
    const int status = worker_end(w, false);
    if (w->silent && in_time)
        return true;
    describe_end(w, status, why, sizeof(why));
    give_up(p, c, TUNE_FAULTED, why);
    p->faults++;
    int *faults = family_faults(t, c->name);
    if (++*faults == FAMILY_FAULTS_MAX)
        say(p, c, "faulted before", "its tile is not tried on other shapes");
    if (++t->faults < FAULTS_MAX)
        return true;
    return error_set(err, ERROR_DEVICE, "%d candidates fault: giving up", t->faults);
}

static void on_answer(struct tune_problem *p, struct tune_candidate *c, const char *line) {
    double us, error, flops;
    char why[256] = "its answer cannot be understood";
    if (sscanf(line, "right\t%lf\t%lf\t%lf", &us, &error, &flops) == 3) {
        c->state = TUNE_RIGHT;
        c->us = us;
        c->error = error;
        p->flops = flops;
    } else if (sscanf(line, "skipped\t%255[^\n]", why) == 1) {
        give_up(p, c, TUNE_SKIPPED, why);
    } else {
        (void)sscanf(line, "wrong\t%255[^\n]", why);
        give_up(p, c, TUNE_WRONG, why);
    }
}

/* Tries one candidate, in the running worker or in a new one. Returns false if nothing more can be
 * tried. */
static bool try_one(
    struct tune *t, struct worker *w, int problem, int candidate, struct error *err) {
    struct tune_problem *p = &t->problems[problem];
    struct tune_candidate *c = &p->candidates[candidate];
    if (*family_faults(t, c->name) >= FAMILY_FAULTS_MAX || p->faults >= PROBLEM_FAULTS_MAX) {
        c->state = TUNE_SKIPPED;
        snprintf(c->why, sizeof(c->why), "left out after faults");
        return true;
    }
    if (w->pid < 0 && (!worker_start(t, w, err) || !worker_list(t, w, err)))
        return false;
    const double begin = monotonic_seconds();
    const double limit = trial_limit(t), left = t->deadline_s - begin + TRIAL_MAX_S;
    const double asked = limit < left ? limit : left;
    if (dprintf(w->to, "%d\t%d\n", problem, candidate) < 0 || !worker_read(w, asked))
        return on_fault(t, w, p, c, asked, err);
    const double took = monotonic_seconds() - begin;
    t->longest_s = took > t->longest_s ? took : t->longest_s;
    on_answer(p, c, w->line);
    return true;
}

/* Tries the candidates `first` to `end` - 1. If none of them is right, tries the next ones until
 * one is. *whole: there was time for all of these trials. */
static bool try_range(struct tune *t, struct worker *w, int problem, int first, int end,
    bool *whole, struct error *err) {
    struct tune_problem *p = &t->problems[problem];
    *whole = true;
    for (int i = first; i < p->count && (i < end || !tune_best(p)); i++) {
        if (p->candidates[i].state != TUNE_UNTRIED)
            continue;
        *whole = !time_is_up(t);
        if (!*whole)
            return true;
        if (!try_one(t, w, problem, i, err))
            return false;
    }
    return true;
}

/* --- choices --- */

/* Keeps the fastest right candidate. If there was no time for all candidates (not `whole`), a
 * faster choice of an earlier run is not replaced. */
static bool keep(struct tune *t, int problem, bool whole, struct error *err) {
    const struct tune_problem *p = &t->problems[problem];
    const struct tune_candidate *best = tune_best(p);
    const struct tuner_entry *old = tuner_cache_find(&t->cache, p->key);
    struct tuner_entry entry = { .us = best ? best->us : 0 };
    if (!best) {
        if (whole)
            fprintf(stderr, "latentd tune: %s: no candidate is right\n", p->key);
        return true;
    }
    if (!whole && old && old->us <= best->us)
        return true;
    snprintf(entry.key, sizeof(entry.key), "%s", p->key);
    snprintf(entry.name, sizeof(entry.name), "%s", best->name);
    entry.default_us = p->candidates[0].state == TUNE_RIGHT ? p->candidates[0].us : 0;
    entry.wrong = tune_count(p, TUNE_WRONG) + tune_count(p, TUNE_FAULTED);
    entry.candidates = tune_count(p, TUNE_RIGHT) + entry.wrong;
    return tuner_cache_put(&t->cache, &entry, err) && tuner_cache_store(&t->cache, t->path, err);
}

/* Handles problems for which no candidate is known to be right. If the untuned choice of such a
 * problem is wrong, or its family has faulted on other shapes, the plainest candidate is chosen.
 * That is the one with which all others are compared. */
static bool keep_plainest(struct tune *t, struct error *err) {
    for (int i = 0; i < t->count; i++) {
        const struct tune_problem *p = &t->problems[i];
        const struct tune_candidate *untuned = &p->candidates[0], *last = untuned + p->count - 1;
        if (tune_best(p) || tuner_cache_find(&t->cache, p->key) || last == untuned ||
            last->state == TUNE_WRONG || last->state == TUNE_FAULTED ||
            (untuned->state != TUNE_WRONG && untuned->state != TUNE_FAULTED &&
                *family_faults(t, untuned->name) == 0))
            continue;
        const int wrong = tune_count(p, TUNE_WRONG) + tune_count(p, TUNE_FAULTED);
        struct tuner_entry entry = { .candidates = wrong, .wrong = wrong };
        snprintf(entry.key, sizeof(entry.key), "%s", p->key);
        snprintf(entry.name, sizeof(entry.name), "%s", last->name);
        say(p, last, "is used", "the plainest, though it was not measured");
        if (!tuner_cache_put(&t->cache, &entry, err) || !tuner_cache_store(&t->cache, t->path, err))
            return false;
    }
    return true;
}

static void show_progress(const struct tune *t, int problem) {
    const struct tune_problem *p = &t->problems[problem];
    const struct tune_candidate *best = tune_best(p);
    if (best)
        fprintf(stderr, "latentd tune: %d of %d: %s: %s, %.1f us\n", t->measured, t->count, p->key,
            best->name, best->us);
}

/* Tries the first candidates of each problem. Problems that no earlier run has measured come
 * first. */
static bool first_round(struct tune *t, struct worker *w, struct error *err) {
    for (int known = 0; known < 2; known++)
        for (int i = 0; i < t->count && !time_is_up(t); i++) {
            bool whole;
            if (t->problems[i].was_known != known || (known && t->only_new))
                continue;
            if (!try_range(t, w, i, 0, FIRST_CANDIDATES, &whole, err) || !keep(t, i, whole, err))
                return false;
            t->measured += whole;
            if (whole)
                show_progress(t, i);
        }
    return true;
}

static bool second_round(struct tune *t, struct worker *w, struct error *err) {
    for (int i = 0; i < t->count && !time_is_up(t); i++) {
        bool whole;
        const struct tune_candidate *before = tune_best(&t->problems[i]);
        if (tune_count(&t->problems[i], TUNE_UNTRIED) == 0 ||
            (t->problems[i].was_known && t->only_new))
            continue;
        if (!try_range(t, w, i, FIRST_CANDIDATES, t->problems[i].count, &whole, err) ||
            !keep(t, i, true, err))
            return false;
        if (tune_best(&t->problems[i]) != before)
            show_progress(t, i);
    }
    return true;
}

bool tune_run(struct tune *t, struct error *err) {
    struct worker w = { .pid = -1 };
    void (*before)(int) = signal(SIGPIPE, SIG_IGN); /* writing to a dead worker must not kill us */
    bool ok = worker_start(t, &w, err) && worker_list(t, &w, err) && first_round(t, &w, err) &&
              second_round(t, &w, err) && keep_plainest(t, err);
    if (w.pid > 0)
        (void)worker_end(&w, !ok);
    signal(SIGPIPE, before);
    return ok;
}
