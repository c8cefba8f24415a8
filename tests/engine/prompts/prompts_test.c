/* Texts with weights, in chunks and with textual inversion: their contexts, and pictures drawn with
 * them, are compared with what AUTOMATIC1111's rules and diffusers give. tests/reference/prompts.py
 * recorded those. Float32 on both sides.
 *
 * usage: prompts_test MODEL_FOLDER LORA_FOLDER FOLDER_OF_PROMPTS */
#include "engine/loop/pipeline.h"
#include "engine/prompts/encode.h"
#include "tests/check.h"
#include "tests/models/small/small_models.h"

#include <stdlib.h>

#define BOUND 1e-3 /* of the norm */
#define CONTEXT_BOUND 1e-5
#define LATENTS (4 * 16 * 16)

static struct safetensors *recording;
static struct checkpoint *checkpoint;
static struct text_encoder *encoder;
static struct tokenizer *tokenizer;
static struct embeddings *embeddings;
static int every;

static const char *text_of(const json_t *item, const char *key) {
    return json_string_value(json_object_get(item, key));
}

static double number_of(const json_t *item, const char *key) {
    return json_number_value(json_object_get(item, key));
}

struct encoded {
    struct text_encoding encoding;
    float *out; /* [tokens][hidden] */
};

static void encode(struct compute *c, void *user) {
    const struct encoded *e = user;
    const int64_t tokens = e->encoding.text->tokens;
    const int64_t width = text_encoder_get_config(encoder)->hidden_size;
    const struct tensor context = compute_tensor_3d(c, DTYPE_F32, 1, tokens, width);
    text_encode(c, &e->encoding, &context);
    const float *values = compute_view(c, &context);
    if (values)
        memcpy(e->out, values, (size_t)(tokens * width) * sizeof(*values));
}

/* Encodes the case's prompt or negative prompt, as a request may send it. The caller frees the
 * values. */
static struct encoded_texts encode_text(const json_t *item, bool negative) {
    const int64_t width = text_encoder_get_config(encoder)->hidden_size;
    struct text *text = NULL;
    int count = 0;
    struct text_extras extras = { 0 };
    struct error err = { 0 };
    struct embedding_set *set = embeddings_take(embeddings);
    struct text_options options = {
        .tokenizer = tokenizer, .embeddings = set, .context_length = 77, .evaluations = 1
    };
    options.syntax = strcmp(text_of(item, "syntax"), "a1111") == 0 ? PROMPT_SYNTAX_A1111
                                                                   : PROMPT_SYNTAX_PLAIN;
    if (!texts_append(&options, negative ? "negative_prompt" : "prompt",
            text_of(item, negative ? "negative" : "prompt"), negative, &text, &count, &extras,
            &err)) {
        CHECK(false, "%s", err.message);
        exit(check_done());
    }
    const bool skips = !negative || options.syntax == PROMPT_SYNTAX_A1111;
    struct encoded e = { .encoding = { .encoder = encoder,
                             .text = text,
                             .embeddings = set,
                             .vectors = text->vectors > 0,
                             .length = 77,
                             .clip_skip = skips ? (int)number_of(item, "clip_skip") : 0 },
        .out = calloc((size_t)(text->tokens * width), sizeof(float)) };
    run_model(kernels_cpu(), encode, &e);
    const struct encoded_texts out = { e.out, 1, text->tokens, width };
    text_finish(text);
    free(text);
    text_extras_finish(&extras);
    embedding_set_release(set);
    return out;
}

/* Compares the numbers that were recorded: every `every`th of each token. */
static double context_matches(const json_t *item, size_t index, bool negative) {
    char name[32];
    snprintf(name, sizeof(name), "%s_%02zu", negative ? "negative" : "context", index);
    struct encoded_texts found = encode_text(item, negative);
    const int64_t count = found.tokens * (found.width / every);
    for (int64_t i = 0; i < count; i++)
        found.values[i] = found.values[i * every];
    const double error = relative_error(found.values, reference_get(recording, name, count), count);
    CHECK(error <= CONTEXT_BOUND, "%s: %g", name, error);
    free(found.values);
    return error;
}

/* Draws the case from its texts, or from their embeddings (`encoded`). */
static double latents_match(
    struct pipeline *pipeline, const json_t *item, size_t index, bool encoded) {
    struct generate_request request;
    struct resolved_request resolved;
    struct generate_result result = { 0 };
    struct error err = { 0 };
    char name[32], *prompt = strdup(text_of(item, "prompt"));
    double error = 0;
    snprintf(name, sizeof(name), "latents_%02zu", index);
    generate_request_init(&request);
    if (encoded) {
        request.prompt_embeds = encode_text(item, false);
        request.negative_prompt_embeds = encode_text(item, true);
    } else {
        request.prompts = &prompt;
        request.prompt_count = 1;
        request.negative_prompt = strdup(text_of(item, "negative"));
        request.clip_skip = (int)number_of(item, "clip_skip");
    }
    CHECK(field_from_text(&generate_fields[GENERATE_prompt_syntax].field, "",
              text_of(item, "syntax"), &request, NULL),
        "syntax");
    request.seed = (uint64_t)number_of(item, "seed");
    request.seed_given = true;
    request.num_inference_steps = (int)number_of(item, "steps");
    request.guidance_scale = number_of(item, "guidance_scale");
    request.scheduler = (struct scheduler_choice){ .has_kind = true, .kind = SCHEDULER_DDIM };
    request.latent_output = true;
    bool ok = pipeline_resolve(pipeline, &request, &resolved, &err);
    if (ok) {
        ok = pipeline_generate(pipeline, &resolved, NULL, &result, &err);
        resolved_request_finish(&resolved);
    }
    CHECK(ok, "%s: %s", name, err.message);
    if (ok) {
        error = relative_error(result.latents, reference_get(recording, name, LATENTS), LATENTS);
        CHECK(error <= BOUND, "%s: %g", name, error);
    }
    generate_result_finish(&result);
    free(request.prompt_embeds.values);
    free(request.negative_prompt_embeds.values);
    free(request.negative_prompt);
    free(prompt);
    return error;
}

static struct pipeline *load(const char *model, const char *loras, const char *folder) {
    const struct pipeline_options options = {
        .model_path = model,
        .dtype = { .dtype = DTYPE_F32 },
        .adapters = { .folder = loras },
        .embeddings_dir = folder,
    };
    struct pipeline *pipeline = NULL;
    struct error err = { 0 };
    CHECK(pipeline_create(&options, &pipeline, &err), "%s", err.message);
    if (!pipeline)
        exit(check_done());
    return pipeline;
}

static void load_encoder(const char *model, const char *folder) {
    struct error err = { 0 };
    bool ok = checkpoint_open(model, NULL, &checkpoint, &err);
    if (ok) {
        const struct weights weights = weights_from_checkpoint(
            checkpoint, COMPONENT_TEXT_ENCODER, kernels_cpu(), DTYPE_F32);
        ok = tokenizer_from_checkpoint(checkpoint, &tokenizer, &err) &&
             text_encoder_create(
                 checkpoint_text_encoder_config(checkpoint), &weights, &encoder, &err) &&
             embeddings_create(folder, tokenizer, text_encoder_get_config(encoder)->hidden_size,
                 &embeddings, &err);
    }
    CHECK(ok, "%s", err.message);
    if (!ok)
        exit(check_done());
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s MODEL_FOLDER LORA_FOLDER FOLDER_OF_PROMPTS\n", argv[0]);
        return 2;
    }
    char path[400];
    snprintf(path, sizeof(path), "%s/prompts.safetensors", argv[3]);
    recording = reference_open(path);
    const json_t *metadata = safetensors_get_header(recording)->metadata;
    json_t *cases = json_loads(text_of(metadata, "cases"), 0, NULL);
    every = atoi(text_of(metadata, "every"));
    snprintf(path, sizeof(path), "%s/embeddings", argv[3]);
    load_encoder(argv[1], path);
    struct pipeline *pipeline = load(argv[1], argv[2], path);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *item = json_array_get(cases, i);
        const bool lora = json_is_array(json_object_get(item, "lora"));
        const double context = lora ? 0 : context_matches(item, i, false);
        const double negative = text_of(item, "negative")[0] && !lora
                                    ? context_matches(item, i, true)
                                    : 0;
        const bool drawn = json_is_true(json_object_get(item, "drawn"));
        const double latents = drawn ? latents_match(pipeline, item, i, false) : 0;
        /* Prompts that change guidance or use an adapter cannot be drawn from contexts alone. */
        const bool again = drawn && !lora && !strstr(text_of(item, "prompt"), " :");
        const double encoded = again ? latents_match(pipeline, item, i, true) : 0;
        printf("%2zu context %.1e, negative %.1e", i, context, negative);
        if (drawn)
            printf(", latents %.1e, encoded before %.1e", latents, encoded);
        printf(" of the norm: %s %.60s\n", text_of(item, "syntax"), text_of(item, "prompt"));
    }
    pipeline_destroy(pipeline);
    embeddings_destroy(embeddings);
    text_encoder_destroy(encoder);
    tokenizer_destroy(tokenizer);
    checkpoint_close(checkpoint);
    json_decref(cases);
    safetensors_close(recording);
    return check_done();
}
