#include "command/command.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/monotonic.h"
#include "command/access.h"
#include "command/jobs.h"
#include "command/options/option_forms.h"
#include "command/options/options.h"
#include "command/service.h"
#include "command/tune/tune.h"
#include "engine/loop/engine.h"
#include "engine/loop/model_folder.h"
#include "engine/request/defaults.h"
#include "server/daemon.h"
#include "server/generation/generate_answer.h"
#include "server/sdapi/styles.h"
#include "train/data/store.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct settings {
    struct engine_options engine;
    struct generate_request defaults; /* of --default */
    int connections_max, drain_timeout_s, heartbeat_s, lora_memory_mb;
    uint64_t lora_max_bytes;
    struct access_options access;
    const char *config, *state_dir, *dataset_root, *styles;
    uint64_t dataset_max_bytes, cache_max_bytes;
    double training_share, results_max_hours;
    uint64_t results_max_bytes;
    enum log_level log_level;
    double tune_minutes;                               /* 0: no tuning */
    const char *served_names[OPTIONS_REPEATS_MAX + 1]; /* ends with NULL */
};

static const struct option_spec table[] = {
    OPTION_MODEL_ROW(struct settings, engine.pipeline.model_path),
    { "model-root", 0, "FOLDER",
        "checkpoints that PUT /model can switch to by name: all diffusers\n"
        "folders and .safetensors files in this folder or below it [none]",
        .to = OPTION_TO_TEXT(struct settings, engine.model_root) },
    { "served-model-name", 0, "NAME",
        "another name of the loaded checkpoint in OpenAI's routes, such as\n"
        "dall-e-2; may be repeated",
        .repeats = true },
    OPTION_TOKENIZER_ROW(struct settings, engine.pipeline.tokenizer_dir),
    { "config", 0, "FILE",
        "JSON file with options; keys are the names without dashes.\n"
        "Options on the command line override the file",
        .to = OPTION_TO_TEXT(struct settings, config), .holds_options = true },
    ACCESS_OPTION_ROWS(struct settings, access),
    OPTION_DEVICE_ROW(struct settings, engine.pipeline.device),
    OPTION_DTYPE_ROW(struct settings, engine.pipeline.dtype),
    OPTION_SAFETY_CHECKER_ROW(struct settings, engine.pipeline.safety_checker),
    OPTION_VAE_TILING_ROW(struct settings, engine.pipeline.vae_tiling),
    { "default", 0, "FIELD=VALUE",
        "value of a field that a request leaves out, such as\n"
        "guidance_scale=5; overrides the checkpoint's own default; may be\n"
        "repeated",
        .repeats = true },
    { "max-queue", 0, "N", "how many requests may wait to be drawn [64]",
        .to = OPTION_TO_INT(struct settings, engine.queue_max, 1, QUEUE_LIMIT_MAX) },
    { "max-batch-rows", 0, "N",
        "most rows in one UNet call, over all requests: two per picture,\n"
        "one without guidance [as many as make the device faster]",
        .to = OPTION_TO_INT(
            struct settings, engine.pipeline.max_batch_rows, 1, UNET_CALL_MAX_ROWS) },
    { "max-connections", 0, "N",
        "most open connections [256]; idle ones are closed for new clients",
        .to = OPTION_TO_INT(struct settings, connections_max, 1, HTTP_CONNECTIONS_LIMIT_MAX) },
    { "lora-dir", 0, "FOLDER",
        "folder of adapters NAME.safetensors that requests can name;\n"
        "PUT /loras/NAME adds to it [none]",
        .to = OPTION_TO_TEXT(struct settings, engine.pipeline.adapters.folder) },
    { "embeddings-dir", 0, "FOLDER",
        "folder of textual inversions NAME.safetensors, which prompts can\n"
        "name [none]",
        .to = OPTION_TO_TEXT(struct settings, engine.pipeline.embeddings_dir) },
    { "styles", 0, "FILE", "prompt styles for AUTOMATIC1111's API, in its styles.csv [none]",
        .to = OPTION_TO_TEXT(struct settings, styles) },
    { "lora-memory", 0, "MB",
        "most memory for loaded adapters and weights computed from them;\n"
        "the least recently used are unloaded first [no limit]",
        .to = OPTION_TO_INT(struct settings, lora_memory_mb, 1, LORA_MEMORY_MAX_MB),
        .needs = { "lora-dir" } },
    { "lora-max-bytes", 0, "N", "largest adapter file that a client may upload [4294967296]",
        .to = OPTION_TO_UINT64(struct settings, lora_max_bytes, 1, ADAPTER_FILE_MAX_BYTES),
        .needs = { "lora-dir" } },
    { "dataset-root", 0, "FOLDER",
        "folder with one folder per training data set; PUT /datasets/NAME\n"
        "adds one. POST /train needs this and --state-dir [none]",
        .to = OPTION_TO_TEXT(struct settings, dataset_root) },
    { "dataset-max-bytes", 0, "N",
        "largest archive that a client may upload, also limits the total\n"
        "size of the files in it [274877906944]",
        .to = OPTION_TO_UINT64(struct settings, dataset_max_bytes, 1, DATASET_MAX_BYTES),
        .needs = { "dataset-root" } },
    { "merge-loras", 0, NULL,
        "merge adapters into copies of the weights instead of adding them\n"
        "in each step: faster while requests use the same adapters, slower\n"
        "when the adapters change",
        .to = OPTION_TO_FLAG(struct settings, engine.pipeline.adapters.merge),
        .needs = { "lora-dir" } },
    { "state-dir", 0, "FOLDER", "where jobs are stored; accepted jobs survive a restart [no jobs]",
        .to = OPTION_TO_TEXT(struct settings, state_dir) },
    { "cache-max-bytes", 0, "N",
        "largest size of STATE-DIR/cache, which keeps encoded pictures and\n"
        "captions for later jobs; the oldest are deleted [21474836480]",
        .to = OPTION_TO_UINT64(struct settings, cache_max_bytes, 0, INT64_MAX),
        .needs = { "state-dir", "dataset-root" } },
    { "results-max-age", 0, "HOURS", "how long the pictures of jobs are kept [24]",
        .to = OPTION_TO_DOUBLE(struct settings, results_max_hours, 0, RESULTS_MAX_HOURS),
        .needs = { "state-dir" } },
    { "results-max-bytes", 0, "N",
        "largest size of all pictures of jobs; the oldest are deleted\n"
        "[10737418240]",
        .to = OPTION_TO_UINT64(struct settings, results_max_bytes, 0, INT64_MAX),
        .needs = { "state-dir" } },
    { "training-share", 0, "X",
        "share of the engine's time that training gets while requests are\n"
        "being drawn, 0 to 0.9; training always gets idle time [0]",
        .to = OPTION_TO_SHARE(struct settings, training_share, 0.9),
        .needs = { "state-dir", "dataset-root" } },
    { "heartbeat", 0, "SECONDS", "interval of keep-alive messages on a stream of events [15]",
        .to = OPTION_TO_INT(struct settings, heartbeat_s, 1, HTTP_HEARTBEAT_MAX_S) },
    { "one-at-a-time", 0, NULL,
        "draw requests one after the other, in the order of arrival; for\n"
        "comparisons",
        .to = OPTION_TO_FLAG(struct settings, engine.pipeline.one_at_a_time) },
    { "drain-timeout", 0, "SECONDS",
        "after a signal to stop, cancel requests that are not done within\n"
        "this time [wait for all accepted requests]",
        .to = OPTION_TO_INT(struct settings, drain_timeout_s, 1, DRAIN_TIMEOUT_MAX_S) },
    { "log-level", 0, "LEVEL", "debug, info, warning or error [info]" },
    { "tune", 0, "MINUTES",
        "before listening, measure kernels that were never measured on this\n"
        "GPU, for at most this long (see latentd tune) [no measuring]",
        .to = OPTION_TO_DOUBLE(struct settings, tune_minutes, 0, TUNE_MINUTES_MAX) },
    { 0 },
};

static const struct command_help help = {
    "latentd serve --model PATH [options]",
    "Loads a checkpoint once and serves requests over HTTP. After SIGTERM, SIGHUP or Ctrl-C it\n"
    "finishes the accepted requests and ends; a second signal ends it at once. The exit status\n"
    "is 70 if the GPU was lost, or the engine failed after it was ready: a restart may help.",
    "  latentd serve --model share/tiny-sd\n"
    "  curl -s localhost:8188/generate -H 'Content-Type: application/json' \\\n"
    "       -H 'Accept: image/png' -d '{\"prompt\": \"a red house by the sea\"}' -o house.png\n"
    "  curl -s localhost:8188/health/ready     200 once the checkpoint is loaded\n"
    "  curl -s localhost:8188/info             model, sizes, limits, queue",
};

/* Handles the second signal: ends the process at once. */
static void stop_now(int signal_number) {
    _exit(128 + signal_number);
}

/* Blocks the signals that stop the daemon, in this thread and in all threads that it starts. This
 * thread receives the first signal with sigtimedwait. After that the signals are unblocked, so a
 * second one calls stop_now. A SIGHUP that was ignored when the daemon started (nohup) stays
 * ignored. SIGUSR1 comes from wake_main: the engine has changed. */
static void block_signals(sigset_t *set) {
    sigset_t own;
    sigemptyset(&own);
    sigaddset(&own, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &own, NULL);
    static const int stops[] = { SIGTERM, SIGINT, SIGHUP };
    sigemptyset(set);
    for (size_t i = 0; i < sizeof(stops) / sizeof(stops[0]); i++) {
        struct sigaction action = { .sa_handler = stop_now }, before;
        sigaction(stops[i], NULL, &before);
        if (stops[i] == SIGHUP && before.sa_handler == SIG_IGN)
            continue;
        sigaction(stops[i], &action, NULL);
        sigaddset(set, stops[i]);
    }
    const struct sigaction ignore = { .sa_handler = SIG_IGN };
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore, NULL); /* a write beyond the file size limit then fails */
    pthread_sigmask(SIG_BLOCK, set, NULL);
}

/* A listener of the engine. */
static void wake_main(void *main_thread) {
    pthread_kill(*(const pthread_t *)main_thread, SIGUSR1);
}

enum wait_end { WAIT_OVER, WAIT_SIGNAL, WAIT_FAILED };

/* Waits for a signal or a change of the engine, up to `ms` (0: no limit). */
static enum wait_end wait_once(
    struct engine *engine, const sigset_t *set, int ms, struct error *why) {
    const struct timespec limit = { ms / 1000, ms % 1000 * 1000000L };
    sigset_t all = *set;
    sigaddset(&all, SIGUSR1);
    if (engine_get_state(engine, why) == ENGINE_FAILED)
        return WAIT_FAILED;
    const int got = sigtimedwait(&all, NULL, ms ? &limit : NULL);
    if (got <= 0 || got == SIGUSR1)
        return WAIT_OVER;
    log_info("%s: finishing what was accepted", strsignal(got));
    return WAIT_SIGNAL;
}

/* Waits until the device and the checkpoint's headers have been checked, so that a wrong --model or
 * --dtype ends the daemon before it says that it listens. Returns true if they are right; otherwise
 * *status is the exit status. */
static bool wait_for_opening(struct engine *engine, const sigset_t *set, int *status) {
    while (!engine_is_opened(engine)) {
        struct error why = { 0 };
        const enum wait_end end = wait_once(engine, set, 0, &why);
        if (end == WAIT_OVER)
            continue;
        if (end == WAIT_FAILED)
            log_error("%s", why.message);
        *status = end == WAIT_SIGNAL ? 0 : why.code == ERROR_DEVICE_LOST ? EXIT_ENGINE_FAILED : 1;
        return false;
    }
    return true;
}

/* Waits for a signal or a failure of the engine, and returns the exit status. After a signal it is
 * 0. If the device was lost, or the engine failed after it was ready, it is EXIT_ENGINE_FAILED,
 * because a restart may help. Otherwise it is 1, because a restart would not help. */
static int wait_for_the_end(
    struct engine *engine, struct http_server *server, const sigset_t *set) {
    const int watchdog_ms = service_watchdog_ms();
    bool ready = false;
    for (;;) {
        struct error why = { 0 };
        if (!ready && engine_get_state(engine, NULL) == ENGINE_READY) {
            ready = true;
            log_info("ready");
            service_notify("READY=1\nSTATUS=ready to draw");
        }
        if (ready && watchdog_ms) {
            /* Sent in every state, also while another checkpoint is loaded. Reading the state takes
             * the locks of server and engine, so it shows that neither is stuck. */
            (void)server_state(server);
            service_notify("WATCHDOG=1");
        }
        const enum wait_end end = wait_once(engine, set, ready ? watchdog_ms : 0, &why);
        if (end == WAIT_SIGNAL)
            return 0;
        if (end == WAIT_FAILED) {
            log_error("%s", why.message);
            return ready || why.code == ERROR_DEVICE_LOST ? EXIT_ENGINE_FAILED : 1;
        }
    }
}

/* The caller finishes settings->defaults, also after a failure. */
static bool read_defaults(
    const struct options *given, struct settings *settings, struct error *err) {
    generate_request_init(&settings->defaults);
    settings->engine.pipeline.defaults = &settings->defaults;
    for (int i = 0; i < options_count(given, "default"); i++)
        if (!generate_defaults_set(
                "--default", options_get_nth(given, "default", i), &settings->defaults, err))
            return false;
    return true;
}

/* Returns the name of the checkpoint in --model: its name below --model-root, or the last part of
 * its path. malloc'd. */
static char *model_name(const struct settings *settings, struct error *err) {
    const char *root = settings->engine.model_root, *path = settings->engine.pipeline.model_path;
    if (root && !file_is_folder(root)) {
        error_set(err, ERROR_NOT_FOUND, "--model-root: %s is not a folder", root);
        return NULL;
    }
    char *name = root ? model_folder_name_of(root, path) : NULL;
    if (!name)
        name = model_name_of_path(path);
    if (!name)
        error_set(err, ERROR_NO_MEMORY, "no memory for the model's name");
    return name;
}

/* Returns what else has this name; NULL: nothing. */
static const char *other_owner(const struct settings *settings, const char *name) {
    const char *root = settings->engine.model_root;
    const char *folder = settings->engine.pipeline.adapters.folder;
    char *path = NULL, file[ADAPTER_NAME_MAX_BYTES + sizeof(".safetensors")];
    if (strcmp(name, "sd15") == 0 || strcmp(name, settings->engine.model_name) == 0)
        return "the checkpoint has this name already";
    if (root && model_folder_find(root, name, &path, NULL)) {
        free(path);
        return "a checkpoint in --model-root has this name";
    }
    const int length = snprintf(file, sizeof(file), "%s.safetensors", name);
    path = folder && length < (int)sizeof(file) ? file_join(folder, file) : NULL;
    const bool is_adapter = path && file_exists(path);
    free(path);
    return is_adapter ? "an adapter in --lora-dir has this name" : NULL;
}

/* Reads --served-model-name. settings->engine.model_name is known. A colon separates a model's name
 * from an adapter's. */
static bool read_served_names(
    const struct options *given, struct settings *settings, struct error *err) {
    static const char option[] = "served-model-name";
    for (int i = 0; i < options_count(given, option); i++) {
        const char *name = options_get_nth(given, option, i);
        const size_t length = strlen(name);
        bool plain = length > 0 && length <= MODEL_NAME_MAX_BYTES && name[0] != ' ' &&
                     name[length - 1] != ' ';
        for (const char *c = name; *c; c++)
            plain = plain && *c >= ' ' && *c < 0x7f && *c != ':';
        if (!plain)
            return options_refuse(
                option, name, "a name of 1 to 255 ASCII characters without a colon", err);
        const char *owner = other_owner(settings, name);
        for (int k = 0; !owner && k < i; k++)
            if (strcmp(name, settings->served_names[k]) == 0)
                owner = "it is given twice";
        if (owner) {
            char allowed[96];
            snprintf(allowed, sizeof(allowed), "a name that nothing else has: %s", owner);
            return options_refuse(option, name, allowed, err);
        }
        settings->served_names[i] = name;
    }
    return true;
}

/* Serves until a signal comes or the engine fails. Call it when the listener and the model's name
 * are ready. Returns the exit status. */
static int serve(const struct settings *settings, const struct access *access) {
    const struct listener *listener = &access->listener;
    sigset_t signals;
    struct error err = { 0 };
    struct engine *engine = NULL;
    pthread_t self = pthread_self();
    struct engine_listener listens = { .changed = wake_main, .user = &self };
    struct http_server *server = NULL;
    struct jobs jobs = { 0 };
    struct dataset_store *datasets = NULL;
    struct sdapi_styles *styles = NULL;
    struct training_options training = {
        .folder = settings->state_dir,
        .cache_max_bytes = settings->cache_max_bytes,
        .dataset_root = settings->dataset_root,
        .tokenizer_dir = settings->engine.pipeline.tokenizer_dir,
        .share = settings->training_share,
        .defaults = settings->engine.pipeline.defaults,
    };
    int status = 1;
    block_signals(&signals); /* before any thread: threads inherit the mask */
    if (settings->styles && !sdapi_styles_load(settings->styles, &styles, &err)) {
        error_prefix(&err, "--styles");
        goto out;
    }
    if (settings->dataset_root &&
        !dataset_store_open(settings->dataset_root, settings->dataset_max_bytes, &datasets, &err))
        goto out;
    if (!engine_create(&settings->engine, &engine, &err))
        goto out;
    engine_listen(engine, &listens);
    if (!wait_for_opening(engine, &signals, &status))
        goto out;
    training.engine = engine;
    if (!jobs_open(&jobs, &training, &err))
        goto out;
    const struct http_options http_options = {
        .listen_fd = listener->fd,
        .listen_is_inherited = listener->inherited,
        .own_host = listener->host[0] ? listener->host : NULL,
        .hosts = access->hosts,
        .public_url = settings->access.public_url,
        .origins = access->origins[0] ? access->origins : NULL,
        .keys = access->keys,
        .access_log = access->log,
        .engine = engine,
        .queue_max = settings->engine.queue_max,
        .connections_max = settings->connections_max,
        .queue = jobs.queue,
        .state_folder = settings->state_dir,
        .results_max_age_s = (int64_t)(settings->results_max_hours * 3600),
        .results_max_bytes = settings->results_max_bytes,
        .dispatcher = jobs.dispatcher,
        .no_queue = jobs.none,
        .heartbeat_s = settings->heartbeat_s,
        .drain_timeout_s = settings->drain_timeout_s,
        .served_names = settings->served_names,
        .lora_dir = settings->engine.pipeline.adapters.folder,
        .lora_max_bytes = settings->lora_max_bytes,
        .datasets = datasets,
        .styles = styles,
        .dataset_max_bytes = settings->dataset_max_bytes,
    };
    if (!http_server_create(&http_options, &server, &err))
        goto out;
    printf("listening on %s\n", listener->url);
    if (fflush(stdout) != 0)
        clearerr(stdout); /* serving needs no standard output */
    service_notify("STATUS=loading the checkpoint");
    status = wait_for_the_end(engine, server, &signals);
    service_notify("STOPPING=1\nSTATUS=finishing what was accepted");
    pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
    jobs_stop(&jobs);
    http_server_drain(server);
out:
    /* If the start has failed, the signals are still blocked. From here on a signal ends the
     * process at once. */
    pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
    if (err.code != ERROR_NONE)
        log_error("%s", err.message);
    http_server_destroy(server);
    /* Every answer has been sent. The memory of a lost device cannot be released, and trying to may
     * hang or fault, so the process ends here. */
    if (status == EXIT_ENGINE_FAILED)
        _exit(EXIT_ENGINE_FAILED);
    jobs_close(&jobs);
    dataset_store_close(datasets);
    sdapi_styles_destroy(styles);
    engine_destroy(engine, true);
    if (status == 0)
        log_info("stopped");
    return status;
}

/* Measures kernels for --tune. Serving does not need it, so a failure is only a warning. */
static void tune_first(const struct settings *settings) {
    struct error err = { 0 };
    struct tune t = { .options.pipeline = settings->engine.pipeline, .only_new = true };
    t.deadline_s = monotonic_seconds() + 60 * settings->tune_minutes;
    if (tune_run(&t, &err))
        log_info("%d of %d kernels were measured before serving", t.measured, t.count);
    else
        log_warning("kernels are not measured: %s", err.message);
    tune_finish(&t);
}

static bool log_level(const struct options *options, enum log_level *out, struct error *err) {
    const char *text = options_get(options, "log-level");
    return !text || log_level_from_name(text, out) ||
           options_refuse("log-level", text, "debug, info, warning or error", err);
}

static int refuse(struct options *given, const struct error *err) {
    options_finish(given);
    return options_usage_error("serve", err);
}

int serve_main(int argc, char **argv) {
    struct options given;
    struct error err = { 0 };
    struct settings settings = {
        .engine.queue_max = QUEUE_MAX_REQUESTS,
        .connections_max = HTTP_CONNECTIONS,
        .heartbeat_s = HTTP_HEARTBEAT_S,
        .lora_max_bytes = ADAPTER_FILE_MAX_BYTES,
        .dataset_max_bytes = DATASET_MAX_BYTES,
        .cache_max_bytes = TRAIN_CACHE_BYTES,
        .results_max_hours = RESULTS_HOURS,
        .results_max_bytes = RESULTS_BYTES,
        .log_level = LOG_LEVEL_INFO,
    };
    service_begin();
    if (!options_parse(table, false, argc, argv, &given, &err))
        return refuse(&given, &err);
    if (given.help) {
        option_forms_print(stdout, given.help, &help, table);
        return 0;
    }
    if (!options_fill(&given, &settings, &err) || !log_level(&given, &settings.log_level, &err) ||
        !read_defaults(&given, &settings, &err)) {
        generate_request_finish(&settings.defaults);
        return refuse(&given, &err);
    }
    settings.engine.pipeline.adapters.memory_bytes = (size_t)settings.lora_memory_mb << 20;
    log_set_level(settings.log_level);
    if (settings.tune_minutes > 0) /* before there is a listener: no request has to wait */
        tune_first(&settings);
    struct access access;
    char *name = NULL;
    int status = 1;
    if (access_init(&access, &settings.access, &given, &err) &&
        (settings.engine.model_name = name = model_name(&settings, &err)) &&
        read_served_names(&given, &settings, &err))
        status = serve(&settings, &access);
    else if (err.code == ERROR_INVALID)
        status = options_usage_error("serve", &err);
    else
        fprintf(stderr, "latentd serve: %s\n", err.message);
    free(name);
    access_finish(&access);
    options_finish(&given);
    generate_request_finish(&settings.defaults);
    return status;
}
