/* The body of POST /generate. Whatever it is, parsing it ends in a request or an error; and a
 * request that is accepted is within its ranges, and its parameters, as we report them, are a
 * request with the same parameters. */
#include "server/dialect/generate_answer.h"
#include "server/dialect/generate_json.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* What an SD-1.5 checkpoint says. */
static json_t *scheduler_json(void) {
    return json_pack("{s:s, s:f, s:f, s:s, s:i, s:b, s:b, s:i, s:b, s:n}", "_class_name",
        "PNDMScheduler", "beta_start", 0.00085, "beta_end", 0.012, "beta_schedule", "scaled_linear",
        "num_train_timesteps", 1000, "set_alpha_to_one", 0, "skip_prk_steps", 1, "steps_offset", 1,
        "clip_sample", 0, "trained_betas");
}

/* The parameters of a body as text, or NULL if it is refused. */
static char *parameters_text(const char *body, size_t size, const struct pipeline_info *info) {
    struct generate_request request;
    struct error err = { 0 };
    if (!generate_json_parse(body, size, &request, &err)) {
        if (err.code == ERROR_NONE || !err.message[0])
            abort(); /* a refusal says why */
        return NULL;
    }
    if (!generate_request_check(&request, &err))
        abort();
    json_t *parameters = generate_parameters(&request, info, &err);
    char *text = parameters ? json_dumps(parameters, JSON_REAL_PRECISION(15)) : NULL;
    json_decref(parameters);
    generate_request_finish(&request);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static json_t *scheduler; /* for the whole run */
    if (!scheduler)
        scheduler = scheduler_json();
    const struct pipeline_info info = {
        .default_width = 512, .default_height = 512, .scheduler_json = scheduler
    };
    char *first = parameters_text((const char *)data, size, &info);
    if (first) {
        char *second = parameters_text(first, strlen(first), &info);
        if (!second || strcmp(first, second) != 0)
            abort();
        free(second);
    }
    free(first);
    return 0;
}
