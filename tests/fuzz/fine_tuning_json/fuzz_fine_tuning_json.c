/* Arbitrary bodies of POST /v1/fine_tuning/jobs. Each becomes a training job or an error in
 * OpenAI's terms. For an accepted job, the answer repeats what the body asked for. */
#include "base/text/json.h"
#include "server/openai/fine_tuning_json.h"
#include "tests/fuzz/fuzz.h"
#include "train/config.h"

#include <stdlib.h>
#include <string.h>

static void check_refusal(struct error *err) {
    promise(err->code != ERROR_NONE && err->message[0]);
    fine_tuning_rename(err);
    promise(err->code != ERROR_NONE && err->message[0]);
    promise(strcmp(err->param, "dataset") != 0 && strcmp(err->param, "name") != 0);
}

/* Stores the job as the daemon does, and checks the answer about it. */
static void check_answer(const struct train_config *config, const json_t *body) {
    json_t *request = train_config_to_json(config), *metadata = json_object_get(body, "metadata");
    struct job job = { .state = JOB_SUCCEEDED };
    job.request = json_dumps(request, JSON_COMPACT | JSON_REAL_PRECISION(17));
    job.body = json_dumps(body, JSON_COMPACT);
    promise(job.request && job.body);
    json_t *answer = fine_tuning_job_json(&job, "tiny-sd");
    promise(json_equal(
        json_object_get(answer, "training_file"), json_object_get(body, "training_file")));
    promise(!json_is_object(metadata) || json_equal(json_object_get(answer, "metadata"), metadata));
    json_decref(answer);
    json_decref(request);
    free(job.request);
    free(job.body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct openai_models models = { "tiny-sd", NULL };
    struct train_config config = { 0 };
    struct error err = { 0 };
    json_t *body = json_parse((const char *)data, size, &err);
    json_t *order = body ? fine_tuning_config(body, &models, &err) : NULL;
    if (order && train_config_parse(order, &config, &err))
        check_answer(&config, body);
    else
        check_refusal(&err);
    train_config_finish(&config);
    json_decref(order);
    json_decref(body);
    return 0;
}
