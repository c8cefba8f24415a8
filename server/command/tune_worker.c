#include "server/command/tune.h"

#include "server/command/command.h"

#include <stdio.h>
#include <stdlib.h>

/* Draws one step, so that every operation of a picture is called once and known to the tuner. */
static bool call_everything(const struct tune_options *options, struct error *err) {
    char text[1] = "";
    char *prompts[1] = { text };
    struct generate_request request;
    struct generate_result result = { 0 };
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
              pipeline_generate(pipeline, &request, NULL, &result, err);
    generate_result_finish(&result);
    pipeline_destroy(pipeline);
    return ok;
}

static bool try_all(const struct tuner *tuner, int first, struct error *err) {
    int number = 0;
    for (int problem = 0; problem < tuner->problem_count(); problem++) {
        char key[TUNER_KEY_BYTES], name[TUNER_NAME_BYTES];
        tuner->problem_key(problem, key);
        for (int c = 0, count = tuner->candidate_count(problem); c < count; c++, number++) {
            if (number < first)
                continue;
            struct tuner_result result;
            tuner->candidate_name(problem, c, name);
            printf("trying\t%d\t%s\t%s\n", number, key, name);
            fflush(stdout);
            if (!tuner->try_candidate(problem, c, &result, err))
                return false;
            if (result.right)
                printf(
                    "right\t%d\t%.3f\t%.3g\t%.6g\n", number, result.us, result.error, result.flops);
            else
                printf("wrong\t%d\t%s\n", number, result.why);
            fflush(stdout);
        }
    }
    printf("end\n");
    return true;
}

int tune_work(const struct tune_options *options, int first) {
    struct error err = { 0 };
    struct tune_options plain = *options;
    char identity[TUNER_IDENTITY_BYTES];
    plain.pipeline.device.untuned = true;
    const struct kernels *kernels = devices_open(&plain.pipeline.device, &err);
    bool ok = kernels != NULL;
    if (ok && !kernels->tuner)
        ok = error_set(
            &err, ERROR_UNSUPPORTED, "there is nothing to choose between on the %s", kernels->name);
    if (ok) {
        kernels->tuner->identity(identity);
        printf("identity\t%s\n", identity);
        fflush(stdout);
    }
    ok = ok && call_everything(&plain, &err) && try_all(kernels->tuner, first, &err);
    if (!ok)
        fprintf(stderr, "latentd tune: %s\n", err.message);
    return ok ? 0 : err.code == ERROR_DEVICE_LOST ? EXIT_ENGINE_FAILED : 1;
}
