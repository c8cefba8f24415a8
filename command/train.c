/* Runs a fine-tuning job without a daemon. */
#include "command/command.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text/json.h"
#include "base/text/toml.h"
#include "command/options/option_forms.h"
#include "command/options/options.h"
#include "command/progress.h"
#include "command/ranks.h"
#include "engine/training_job/training_job.h"
#include "engine/training_job/validation.h"
#include "train/deepspeed_config.h"
#include "train/kohya/kohya_config.h"
#include "train/ranks/round.h"
#include "train/trainer.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long ranks wait for another one that does not say that it is busy. */
#define CLUSTER_TIMEOUT_S 600

struct train_run {
    const char *model, *tokenizer_dir, *config_path, *deepspeed_path, *name;
    const char *kohya_path, *kohya_dataset_path;
    const char *dataset_root, *out, *cache;
    uint64_t cache_max_bytes;
    struct device_choice device;
    bool quiet;
    const char *cluster;
    int cluster_timeout_s;
    struct ranks ranks;
    struct train_config config;
    bool seeded; /* the configuration says the seed */
    int64_t multiplied_by;
    struct progress progress;
};

static const struct option_spec table[] = {
    OPTION_MODEL_ROW(struct train_run, model),
    { "config", 0, "JOB.json", "what to train: the body of POST /train",
        .to = OPTION_TO_TEXT(struct train_run, config_path) },
    { "deepspeed-config", 0, "CFG.json",
        "a configuration of deepspeed-diffusers instead of --config; each\n"
        "key is used, refused, or reported to have no effect",
        .to = OPTION_TO_TEXT(struct train_run, deepspeed_path) },
    { "kohya-config", 0, "CFG.toml",
        "a file for --config_file of kohya's train_network.py instead of\n"
        "--config; each key is used, refused, or reported to have no effect",
        .to = OPTION_TO_TEXT(struct train_run, kohya_path) },
    { "kohya-dataset", 0, "SET.toml",
        "a file for --dataset_config beside --kohya-config\n"
        "[the one that CFG.toml names]",
        .to = OPTION_TO_TEXT(struct train_run, kohya_dataset_path) },
    { "name", 0, "NAME",
        "name of the adapter, beside --deepspeed-config or --kohya-config\n"
        "[output_name of CFG.toml]",
        .to = OPTION_TO_TEXT(struct train_run, name) },
    { "dataset-root", 0, "FOLDER",
        "folder that contains the job's data set; links in the data set\n"
        "must not lead out of it [none]",
        .to = OPTION_TO_TEXT(struct train_run, dataset_root) },
    { "out", 'o', "FOLDER",
        "where to write the adapter, checkpoints and metrics; if the folder\n"
        "has checkpoints, the job continues from the last one",
        true, OPTION_TO_TEXT(struct train_run, out) },
    { "cache", 0, "FOLDER",
        "where to keep encoded pictures and captions for later jobs\n"
        "[OUT/cache]",
        .to = OPTION_TO_TEXT(struct train_run, cache) },
    { "cache-max-bytes", 0, "N",
        "most bytes of earlier jobs in the cache; the oldest are deleted\n"
        "[21474836480]",
        .to = OPTION_TO_UINT64(struct train_run, cache_max_bytes, 0, INT64_MAX) },
    OPTION_DEVICE_ROW(struct train_run, device),
    { "cluster", 0, "auto|alone|mpi",
        "whether this process is one of several that work on the job\n"
        "[auto: if mpirun or srun started several]",
        .to = OPTION_TO_TEXT(struct train_run, cluster) },
    { "cluster-timeout", 0, "SECONDS",
        "how long processes wait for one that is late, from 10 [600]",
        .to = OPTION_TO_INT(struct train_run, cluster_timeout_s, 10, 86400) },
    OPTION_TOKENIZER_ROW(struct train_run, tokenizer_dir),
    { "quiet", 'q', NULL, "print only warnings and errors",
        .to = OPTION_TO_FLAG(struct train_run, quiet) },
    { 0 },
};

static const struct command_help help = {
    .usage =
        "latentd train --model PATH --config JOB.json --out FOLDER [options]\n"
        "       latentd train --model PATH --deepspeed-config CFG.json --name NAME --out FOLDER "
        "[options]\n"
        "       latentd train --model PATH --kohya-config CFG.toml --out FOLDER [options]\n"
        "       mpirun -n N latentd train ...",
    .summary =
        "Trains an adapter on a folder of pictures with captions and writes it to\n"
        "FOLDER/NAME.safetensors. With method \"full\", trains the whole UNet and writes the\n"
        "checkpoint FOLDER/model, or model.safetensors if PATH is a single file. JOB.json is an\n"
        "object with name, dataset, max_train_steps and so on, named as in diffusers' training\n"
        "scripts. Several processes share the work, and compute what one does.",
    .examples =
        "  latentd train --model share/tiny-sd --config job.json --dataset-root . --out jobs\n",
};

static volatile sig_atomic_t asked_to_stop;

static void on_signal(int number) {
    (void)number;
    asked_to_stop = 1;
}

static void log_notes(const char *path, const json_t *notes) {
    json_t *note;
    size_t i;
    json_array_foreach(notes, i, note) {
        log_info("%s: %s", path, json_string_value(note));
    }
}

/* Converts DeepSpeed's configuration to an object in the form of the body of POST /train. */
static json_t *read_deepspeed(const struct train_run *run, struct error *err) {
    json_t *from = json_parse_file(run->deepspeed_path, TRAIN_CONFIG_MAX_BYTES, err);
    json_t *job = NULL, *notes = NULL;
    if (from && deepspeed_config_read(from, run->name, &job, &notes, err))
        log_notes(run->deepspeed_path, notes);
    json_decref(notes);
    json_decref(from);
    return job;
}

/* Reads a file in TOML, or in JSON if its name says so. */
static json_t *read_settings(const char *path, struct error *err) {
    const char *dot = strrchr(path, '.');
    return dot && strcmp(dot, ".json") == 0 ? json_parse_file(path, TRAIN_CONFIG_MAX_BYTES, err)
                                            : toml_parse_file(path, TRAIN_CONFIG_MAX_BYTES, err);
}

/* Reads the prompts of the file that a kohya config names; *out is malloc'd, or NULL if it names
 * none. */
static bool read_prompts(const json_t *config, char **out, struct error *err) {
    const char *path = kohya_config_path(config, "sample_prompts");
    const char *dot = path ? strrchr(path, '.') : NULL;
    size_t size;
    *out = NULL;
    if (dot && strcmp(dot, ".txt") != 0)
        return error_field(err, "sample_prompts", path, "a .txt file, with a prompt in each line");
    return !path || file_read(path, TRAIN_CONFIG_MAX_BYTES, out, &size, err) ||
           error_prefix(err, "sample_prompts");
}

/* Converts kohya's files to an object in the form of the body of POST /train. */
static json_t *read_kohya(const struct train_run *run, struct error *err) {
    json_t *config = read_settings(run->kohya_path, err), *dataset = NULL;
    json_t *job = NULL, *notes = NULL;
    char *prompts = NULL;
    const char *path = run->kohya_dataset_path ? run->kohya_dataset_path
                                               : kohya_config_path(config, "dataset_config");
    bool ok = config && read_prompts(config, &prompts, err);
    if (ok && path)
        ok = (dataset = read_settings(path, err));
    const struct kohya_files files = { config, dataset, prompts, run->name };
    if (ok && kohya_config_read(&files, &job, &notes, err))
        log_notes(run->kohya_path, notes);
    free(prompts);
    json_decref(notes);
    json_decref(dataset);
    json_decref(config);
    return job;
}

static bool read_config(struct train_run *run, struct error *err) {
    json_t *json = run->deepspeed_path ? read_deepspeed(run, err)
                   : run->kohya_path
                       ? read_kohya(run, err)
                       : json_parse_file(run->config_path, TRAIN_CONFIG_MAX_BYTES, err);
    const bool ok = json && train_config_parse(json, &run->config, err);
    run->seeded = json_is_integer(json_object_get(json, "seed"));
    json_decref(json);
    if (ok && run->config.model)
        return error_field(err, "model", run->config.model, "left out: --model says which it is");
    return ok;
}

/* Checks that exactly one of the configurations is given, and with each only what belongs to it. */
static bool is_said_once(const struct train_run *run, struct error *err) {
    if ((run->config_path != NULL) + (run->deepspeed_path != NULL) + (run->kohya_path != NULL) != 1)
        return error_set(err, ERROR_INVALID,
            "give exactly one of --config JOB.json, --deepspeed-config CFG.json and --kohya-config "
            "CFG.toml");
    if (run->kohya_dataset_path && !run->kohya_path)
        return error_set(
            err, ERROR_INVALID, "give --kohya-dataset SET.toml with --kohya-config only");
    if (run->deepspeed_path ? !run->name : run->config_path && run->name)
        return error_set(err, ERROR_INVALID,
            "give --name NAME with --deepspeed-config, which contains no name, or with "
            "--kohya-config, and only there");
    return true;
}

/* What all ranks take from rank 0. */
struct first {
    int64_t seed, multiplied_by;
};

/* Decides by what gradient_accumulation_steps is multiplied: at the job's first start by the number
 * of ranks, later by the same number. */
static bool find_factor(const struct train_run *run, int64_t *out, struct error *err) {
    *out = 1;
    if (run->config.data_parallel != TRAIN_PARALLEL_MULTIPLY)
        return true;
    if (!trainer_multiplied_by(run->out, &run->config, out, err))
        return false;
    if (*out == 0)
        *out = agreement_world(run->ranks.agreement);
    return true;
}

static bool multiply(struct train_run *run, struct error *err) {
    const bool warmup = run->deepspeed_path != NULL;
    struct train_config *c = &run->config;
    if (c->data_parallel != TRAIN_PARALLEL_MULTIPLY)
        return true;
    if (!train_config_multiply(c, run->multiplied_by, warmup, err))
        return false;
    if (run->multiplied_by > 1)
        log_info("multiplied by the %" PRId64 " processes of the first start: "
                 "gradient_accumulation_steps, to %" PRId64,
            run->multiplied_by, c->gradient_accumulation_steps);
    if (run->multiplied_by > 1 && warmup && c->lr_warmup_steps)
        log_info(
            "and lr_warmup_steps, to %" PRId64 ", as deepspeed-diffusers does", c->lr_warmup_steps);
    return true;
}

static bool compare_configs(struct train_run *run, struct error *err) {
    json_t *json = train_config_to_json(&run->config);
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    const bool ok = text || error_set(err, ERROR_NO_MEMORY, "no memory to compare jobs");
    const bool alike = agreement_meet(run->ranks.agreement, ok, err) &&
                       agreement_compare(run->ranks.agreement, "the configuration", text, err);
    free(text);
    json_decref(json);
    return alike;
}

/* Makes the configuration the same on all ranks, or refuses it. `ok`: it was read. */
static bool settle_config(struct train_run *run, bool ok, struct error *err) {
    struct agreement *ranks = run->ranks.agreement;
    struct first first = { .seed = run->config.seed };
    if (agreement_is_first(ranks))
        ok = ok && find_factor(run, &first.multiplied_by, err);
    if (!agreement_meet(ranks, ok, err) || !agreement_take_first(ranks, &first, sizeof(first), err))
        return false;
    if (!run->seeded)
        run->config.seed = first.seed;
    run->multiplied_by = first.multiplied_by;
    ok = multiply(run, err) &&
         round_suits(run->config.gradient_accumulation_steps, agreement_world(ranks), err);
    if (!agreement_meet(ranks, ok, err))
        return false;
    return !ranks || compare_configs(run, err);
}

static void on_step(void *user, const struct train_record *record, int64_t steps) {
    struct train_run *run = user;
    char note[64];
    snprintf(note, sizeof(note), "loss %.4f", record->loss);
    progress_show(&run->progress, (int)record->step, (int)steps, note);
}

static void on_validated(void *user, int64_t step) {
    struct train_run *run = user;
    struct error err = { 0 };
    (void)step;
    if (!validation_draw_grid(run->out, &err))
        log_warning("the grid of validation pictures: %s", err.message);
}

/* Batch systems announce the end of a job's time by SIGUSR1. A second signal ends the process at
 * once, but not a rank, to which a launcher may send several. */
static void catch_signals(const struct train_run *run) {
    static const int numbers[] = { SIGINT, SIGTERM, SIGUSR1 };
    const struct sigaction action = { .sa_handler = on_signal,
        .sa_flags = run->ranks.agreement ? 0 : SA_RESETHAND };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        sigaction(numbers[i], &action, NULL);
}

/* Ranks stop together, between two steps; one process stops at once. */
static bool must_stop(struct train_run *run, const struct training_job *training) {
    if (!run->ranks.agreement)
        return asked_to_stop;
    if (asked_to_stop)
        agreement_ask_to_stop(run->ranks.agreement);
    return training_job_may_stop(training);
}

/* Trains until the job is done or a signal comes. After a signal the work done so far is kept. */
static bool work(struct train_run *run, struct training_job *training, struct error *err) {
    bool done = false;
    while (!done && !must_stop(run, training))
        if (!training_job_advance(training, &done, err))
            return false;
    if (done)
        return true;
    int64_t step, steps;
    training_job_steps(training, &step, &steps);
    /* No rank ends before rank 0 has written. */
    return agreement_meet(run->ranks.agreement, training_job_keep(training, err), err) &&
           error_set(err, ERROR_CANCELLED,
               "stopped at step %lld of %lld; the same command goes on from there", (long long)step,
               (long long)steps);
}

static const struct kernels *open_device(struct train_run *run, struct error *err) {
    ranks_choose_device(&run->ranks, &run->device);
    const struct kernels *kernels = devices_open(&run->device, err);
    const bool ok = kernels && train_config_fits_device(&run->config, kernels->weight_dtypes,
                                   kernels->device, kernels->name, err);
    return agreement_meet(run->ranks.agreement, ok, err) &&
                   ranks_compute_alike(&run->ranks, kernels, err)
               ? kernels
               : NULL;
}

static bool train(struct train_run *run, struct error *err) {
    const struct kernels *kernels = open_device(run, err);
    if (!kernels)
        return false;
    char *dataset = run->dataset_root ? file_join(run->dataset_root, run->config.dataset)
                                      : strdup(run->config.dataset);
    const char *class_name = run->config.class_data_dir;
    char *class_folder = class_name && run->dataset_root ? file_join(run->dataset_root, class_name)
                         : class_name                    ? strdup(class_name)
                                                         : NULL;
    char *cache = run->cache ? strdup(run->cache) : file_join(run->out, "cache");
    if (!dataset || !cache || (class_name && !class_folder)) {
        free(class_folder);
        free(dataset);
        free(cache);
        error_set(err, ERROR_NO_MEMORY, "no memory for a path");
        agreement_fail(run->ranks.agreement, err);
        return false;
    }
    const struct training_job_options options = {
        .kernels = kernels,
        .model_path = run->model,
        .tokenizer_dir = run->tokenizer_dir,
        .config = &run->config,
        .dataset = dataset,
        .class_dataset = class_folder,
        .dataset_root = run->dataset_root,
        .folder = run->out,
        .cache = cache,
        .cache_max_bytes = run->cache_max_bytes,
        .ranks = run->ranks.agreement,
        .multiplied_by = run->multiplied_by,
        .device_ranks = run->ranks.device_ranks,
        .stepped = on_step,
        .validated = on_validated,
        .user = run,
    };
    struct training_job *training;
    bool ok = training_job_open(&options, &training, err);
    free(dataset);
    free(class_folder);
    free(cache);
    if (!ok)
        return false;
    progress_init(&run->progress, run->quiet, true);
    ok = work(run, training, err);
    progress_finish(&run->progress);
    if (agreement_is_lost(run->ranks.agreement))
        return false; /* what the ranks share cannot be freed: ranks_end ends the process */
    if (ok && !run->quiet)
        printf("%s\n", training_job_result(training));
    training_job_close(training);
    return ok;
}

static int status_of(const struct error *err) {
    return err->code == ERROR_DEVICE_LOST ? EXIT_ENGINE_FAILED
           : err->code == ERROR_CANCELLED ? EXIT_RUN_AGAIN
                                          : 1;
}

int train_main(int argc, char **argv) {
    struct train_run run = { .cache_max_bytes = TRAIN_CACHE_BYTES,
        .cluster = "auto",
        .cluster_timeout_s = CLUSTER_TIMEOUT_S };
    struct options given;
    struct error err = { 0 };
    if (!options_parse(table, false, argc, argv, &given, &err))
        return options_usage_error("train", &err);
    if (given.help) {
        option_forms_print(stdout, given.help, &help, table);
        return 0;
    }
    if (!options_fill(&given, &run, &err) || !is_said_once(&run, &err))
        return options_usage_error("train", &err);
    if (run.quiet)
        log_set_level(LOG_LEVEL_WARNING);
    bool ok = ranks_start(run.cluster, run.cluster_timeout_s, &run.ranks, &err);
    const bool first = !run.ranks.cluster || run.ranks.cluster->place.rank == 0;
    if (!ok && (err.code == ERROR_TIMEOUT || err.code == ERROR_PEER_LOST))
        cluster_fail(run.ranks.cluster, &err);
    if (ok) {
        catch_signals(&run); /* from here on a rank that ends alone leaves the others waiting */
        run.quiet = run.quiet || !first;
        ok = settle_config(&run, read_config(&run, &err), &err) && train(&run, &err);
    }
    train_config_finish(&run.config);
    ranks_end(&run.ranks, &err);
    if (!ok && first)
        fprintf(stderr, "latentd train: %s\n", err.message);
    return ok ? 0 : status_of(&err);
}
