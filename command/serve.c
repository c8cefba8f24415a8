#include "command/command.h"

#include "base/limits.h"
#include "base/log.h"
#include "base/monotonic.h"
#include "engine/engine.h"
#include "command/options.h"
#include "command/tune.h"
#include "server/dialect/generate_answer.h"
#include "server/http/http.h"
#include "server/http/listen.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const struct option_spec table[] = {
    { "model", 0, "PATH", "checkpoint: a diffusers folder or a .safetensors file", true },
    { "tokenizer", 0, "DIR",
        "folder with CLIP's vocab.json and merges.txt (or tokenizer.json);\n"
        "[the checkpoint's own, or CLIP's 49,408 tokens if it brings none]" },
    { "listen", 0, "HOST:PORT",
        "loopback address to listen on [127.0.0.1:8188];\nport 0 takes any free one" },
    OPTION_DEVICE,
    OPTION_DTYPE,
    { "max-queue", 0, "N", "requests that may wait for the one being drawn [64]" },
    { "max-connections", 0, "N",
        "clients connected at a time [256]; idle ones give way to new ones" },
    { "drain-timeout", 0, "SECONDS",
        "when told to stop, cancel what is not done by then [wait for all\nthat was accepted]" },
    { "tune", 0, "MINUTES",
        "before listening, measure the kernels that were never measured on\n"
        "this GPU, for at most so long (see latentd tune) [not at all]" },
    { 0 },
};

static const struct command_help help = {
    "latentd serve --model PATH [options]",
    "Loads a checkpoint once and draws over HTTP until it is told to stop (SIGTERM or Ctrl-C:\n"
    "accepted requests are finished; a second signal stops at once). Its exit status is 70 if the\n"
    "GPU was lost and a restart is worth a try.",
    "  latentd serve --model share/tiny-sd\n"
    "  curl -s localhost:8188/generate -H 'Content-Type: application/json' \\\n"
    "       -H 'Accept: image/png' -d '{\"prompt\": \"a red house by the sea\"}' -o house.png\n"
    "  curl -s localhost:8188/health/ready     200 once the checkpoint is loaded\n"
    "  curl -s localhost:8188/info             model, sizes, limits, queue",
};

/* The second signal. */
static void stop_now(int signal_number) {
    _exit(128 + signal_number);
}

/* SIGTERM and SIGINT are blocked in every thread and taken by sigtimedwait in this one; once the
 * first has come they are let through, to stop_now. */
static void block_signals(sigset_t *set) {
    struct sigaction action = { .sa_handler = stop_now };
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    pthread_sigmask(SIG_BLOCK, set, NULL);
}

/* Until a signal comes; the exit status. A checkpoint that cannot be loaded will not load the next
 * time either, an engine that failed at work may. */
static int wait_for_the_end(struct engine *engine, const sigset_t *set) {
    bool ready = false;
    for (;;) {
        struct error why = { 0 };
        enum engine_state state = engine_get_state(engine, &why);
        if (state == ENGINE_FAILED) {
            log_error("%s", why.message);
            return ready || why.code == ERROR_DEVICE_LOST ? EXIT_ENGINE_FAILED : 1;
        }
        if (state == ENGINE_READY && !ready) {
            ready = true;
            log_info("ready");
        }
        const struct timespec tick = { ready ? 1 : 0, ready ? 0 : 50000000 };
        int got = sigtimedwait(set, NULL, &tick);
        if (got > 0) {
            log_info("%s: finishing what was accepted", strsignal(got));
            return 0;
        }
    }
}

struct limits {
    int connections, drain_s;
};

/* The listener is there, and so is a name for the model. */
static int serve(const struct engine_options *engine_options, const struct listener *listener,
    const struct limits *limits, const char *model_name) {
    sigset_t signals;
    struct error err = { 0 };
    struct engine *engine = NULL;
    struct http_server *server = NULL;
    int status = 1;
    block_signals(&signals); /* before there are threads, which inherit it */
    if (!engine_create(engine_options, &engine, &err))
        goto out;
    const struct http_options http_options = {
        .listen_fd = listener->fd,
        .own_host = listener->host,
        .engine = engine,
        .model_name = model_name,
        .queue_max = engine_options->queue_max,
        .connections_max = limits->connections,
        .drain_timeout_s = limits->drain_s,
    };
    if (!http_server_create(&http_options, &server, &err))
        goto out;
    printf("listening on http://%s:%d\n", listener->host, listener->port);
    if (fflush(stdout) != 0)
        clearerr(stdout); /* serving does without a standard output */
    status = wait_for_the_end(engine, &signals);
    pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
    http_server_drain(server);
out:
    if (err.code != ERROR_NONE)
        log_error("%s", err.message);
    http_server_destroy(server);
    /* Every answer is on its way. What a lost device holds cannot be given back, and asking for it
     * may hang or fault: the process ends here. */
    if (status == EXIT_ENGINE_FAILED)
        _exit(EXIT_ENGINE_FAILED);
    engine_destroy(engine, true);
    if (status == 0)
        log_info("stopped");
    return status;
}

/* What --tune asks for. Serving does without it: a failure is only said. */
static void tune_first(const struct options *options, double minutes) {
    static const char *const passed[] = { "model", "tokenizer", "device", "dtype" };
    char *argv[1 + 2 * 4], names[4][16], command[] = "tune";
    int argc = 0;
    argv[argc++] = command;
    for (int i = 0; i < 4; i++) {
        const char *value = options_get(options, passed[i]);
        if (!value)
            continue;
        snprintf(names[i], sizeof(names[i]), "--%s", passed[i]);
        argv[argc++] = names[i];
        argv[argc++] = (char *)value;
    }
    struct error err = { 0 };
    struct tune t = { .argv = argv, .argc = argc, .only_new = true };
    t.deadline_s = monotonic_seconds() + 60 * minutes;
    if (tune_run(&t, &err))
        log_info("%d of %d kernels were measured before serving", t.measured, t.count);
    else
        log_warning("kernels are not measured: %s", err.message);
    tune_finish(&t);
}

static bool minutes_to_tune(const struct options *options, double *out, struct error *err) {
    *out = 0;
    if (!options_double(options, "tune", out, err))
        return false;
    if (!options_get(options, "tune") || (*out > 0 && *out <= TUNE_MINUTES_MAX))
        return true;
    return error_field(err, "--tune", options_get(options, "tune"), "minutes above 0, at most %g",
        TUNE_MINUTES_MAX);
}

int serve_main(int argc, char **argv) {
    struct options options;
    struct error err = { 0 };
    double minutes;
    struct engine_options engine_options = { .queue_max = QUEUE_MAX_REQUESTS };
    if (!options_parse(table, false, argc, argv, &options, &err))
        return options_usage_error("serve", &err);
    if (options.help) {
        options_print_help(stdout, &help, table);
        return 0;
    }
    struct pipeline_options *pipeline = &engine_options.pipeline;
    pipeline->model_path = options_get(&options, "model");
    pipeline->tokenizer_dir = options_get(&options, "tokenizer");
    const char *address = options_get(&options, "listen");
    struct limits limits = { .connections = HTTP_CONNECTIONS };
    struct listener listener;
    if (!minutes_to_tune(&options, &minutes, &err))
        return options_usage_error("serve", &err);
    if (!options_int(&options, "max-queue", 1, QUEUE_LIMIT_MAX, &engine_options.queue_max, &err) ||
        !options_int(&options, "max-connections", 1, HTTP_CONNECTIONS_LIMIT_MAX,
            &limits.connections, &err) ||
        !options_int(&options, "drain-timeout", 1, DRAIN_TIMEOUT_MAX_S, &limits.drain_s, &err))
        return options_usage_error("serve", &err);
    if (!options_device(&options, &pipeline->device, &err) ||
        !options_dtype(&options, &pipeline->dtype, &err))
        return options_usage_error("serve", &err);
    if (minutes > 0) /* before there is a listener: no request waits for it */
        tune_first(&options, minutes);
    if (!listen_on(address ? address : "127.0.0.1:8188", &listener, &err)) {
        if (err.code == ERROR_INVALID)
            return options_usage_error("serve", &err);
        fprintf(stderr, "latentd serve: %s\n", err.message);
        return 1;
    }
    char *model_name = model_name_of_path(pipeline->model_path);
    int status = model_name ? serve(&engine_options, &listener, &limits, model_name) : 1;
    free(model_name);
    close(listener.fd);
    return status;
}
