#include "command/tune/tune.h"

#include "base/limits.h"
#include "command/command.h"

#include <stdio.h>
#include <stdlib.h>

/* Makes a dry run of one picture, and one of UNET_CALL_MAX_IMAGES pictures. They tell the tuner
 * about every operation and the number of rows that it is called on. Nothing is computed. */
static bool note_everything(const struct tune_options *options, struct error *err) {
    char text[1] = "";
    char *prompts[1] = { text };
    struct generate_request request;
    struct pipeline *pipeline = NULL;
    generate_request_init(&request);
    request.prompts = prompts;
    request.prompt_count = 1;
    request.num_inference_steps = 1;
    request.scheduler.has_kind = true;
    request.scheduler.kind = SCHEDULER_DDIM;
    request.width = options->width;
    request.height = options->height;
    bool ok = pipeline_create(&options->pipeline, &pipeline, err) &&
              pipeline_note(pipeline, &request, err);
    request.num_images = UNET_CALL_MAX_IMAGES;
    ok = ok && pipeline_note(pipeline, &request, err);
    pipeline_destroy(pipeline);
    return ok;
}

static void list_everything(const struct tuner *tuner) {
    char text[TUNER_IDENTITY_BYTES], key[TUNER_KEY_BYTES], name[TUNER_NAME_BYTES];
    tuner->identity(text);
    printf("identity\t%s\n", text);
    for (int problem = 0; problem < tuner->problem_count(); problem++) {
        tuner->problem_key(problem, key);
        printf("problem\t%s\n", key);
        for (int c = 0, count = tuner->candidate_count(problem); c < count; c++) {
            tuner->candidate_name(problem, c, name);
            printf("candidate\t%s\n", name);
        }
    }
    printf("ready\n");
    fflush(stdout);
}

static bool try_one(const struct tuner *tuner, int problem, int candidate, struct error *err) {
    struct tuner_result r;
    if (!tuner->try_candidate(problem, candidate, &r, err))
        return false;
    if (r.verdict == TUNER_RIGHT)
        printf("right\t%.3f\t%.3g\t%.6g\n", r.us, r.error, r.flops);
    else
        printf("%s\t%s\n", r.verdict == TUNER_WRONG ? "wrong" : "skipped", r.why);
    fflush(stdout);
    return true;
}

static bool try_all(const struct tuner *tuner, struct error *err) {
    for (int problem = 0; problem < tuner->problem_count(); problem++)
        for (int c = 0, count = tuner->candidate_count(problem); c < count; c++)
            if (!try_one(tuner, problem, c, err))
                return false;
    return true;
}

/* Answers requests until standard input ends. */
static bool try_what_is_asked(const struct tuner *tuner, struct error *err) {
    char line[64];
    int problem, candidate;
    while (fgets(line, sizeof(line), stdin)) {
        if (sscanf(line, "%d\t%d", &problem, &candidate) != 2 || problem < 0 ||
            problem >= tuner->problem_count() || candidate < 0 ||
            candidate >= tuner->candidate_count(problem))
            return error_set(err, ERROR_INTERNAL, "there is no candidate %s", line);
        if (!try_one(tuner, problem, candidate, err))
            return false;
    }
    return true;
}

int tune_work(const struct tune_options *options, bool all) {
    struct error err = { 0 };
    struct tune_options plain = *options;
    plain.pipeline.device.untuned = true;
    const struct kernels *kernels = devices_open(&plain.pipeline.device, &err);
    bool ok = kernels != NULL;
    if (ok && !kernels->tuner) {
        printf("nothing\t%s\n", kernels->name);
        return 0;
    }
    ok = ok && note_everything(&plain, &err);
    if (ok) {
        list_everything(kernels->tuner);
        ok = all ? try_all(kernels->tuner, &err) : try_what_is_asked(kernels->tuner, &err);
        kernels->tuner->end();
    }
    if (!ok)
        fprintf(stderr, "latentd tune: %s\n", err.message);
    return ok ? 0 : err.code == ERROR_DEVICE_LOST ? EXIT_ENGINE_FAILED : 1;
}
