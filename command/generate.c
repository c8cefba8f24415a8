#include "command/command.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/log.h"
#include "command/latents_file.h"
#include "command/options/lora_flags.h"
#include "command/options/option_forms.h"
#include "command/options/options.h"
#include "command/options/request_flags.h"
#include "command/options/scheduler_flags.h"
#include "command/outputs.h"
#include "command/progress.h"
#include "engine/loop/pipeline.h"
#include "server/generation/generate_answer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPEAT_MAX 1000

/* The parsed command line. */
struct run {
    struct pipeline_options load;
    struct generate_request request;
    struct lora_flags loras;
    struct outputs outputs;
    const char *init_latents, *prompt_embeds; /* paths, or NULL */
    const char *init_image, *mask_image;      /* likewise */
    int repeat;
    bool quiet;
};

/* request_flags() and scheduler_flags() come after these. */
static const struct option_spec own_options[] = {
    OPTION_MODEL_ROW(struct run, load.model_path),
    { "prompt", 0, "TEXT", "the prompt; - reads it from standard input" },
    { "prompt-file", 0, "FILE", "read the prompt from a file" },
    { "out", 'o', "FILE.png",
        "file to write: JPEG for .jpg, WebP for .webp, else PNG. Several\n"
        "pictures go to FILE-0.png, FILE-1.png, ...; - is standard output" },
    { "lora", 0, "NAME|FILE[:W[:TW]]",
        "an adapter: a file, or a name in --lora-dir. W is its weight [1],\n"
        "TW its weight for the text encoder [W]; may be repeated",
        .repeats = true },
    { "lora-dir", 0, "FOLDER", "folder of adapters NAME.safetensors",
        .to = OPTION_TO_TEXT(struct run, load.adapters.folder) },
    OPTION_DTYPE_ROW(struct run, load.dtype),
    OPTION_SAFETY_CHECKER_ROW(struct run, load.safety_checker),
    OPTION_DEVICE_ROW(struct run, load.device),
    OPTION_TOKENIZER_ROW(struct run, load.tokenizer_dir),
    { "save-latents", 0, "FILE", "write the final latents as safetensors; - as with -o" },
    { "init-latents", 0, "FILE", "start from the tensor \"latents\" of this safetensors file",
        .to = OPTION_TO_TEXT(struct run, init_latents) },
    { "prompt-embeds", 0, "FILE",
        "use the tensor \"prompt_embeds\" of this safetensors file instead of\n"
        "a prompt, and \"negative_prompt_embeds\" if the file has it",
        .to = OPTION_TO_TEXT(struct run, prompt_embeds) },
    { "embeddings-dir", 0, "FOLDER",
        "folder of textual inversions NAME.safetensors, which prompts can\n"
        "name",
        .to = OPTION_TO_TEXT(struct run, load.embeddings_dir) },
    { "init-image", 0, "FILE", "start from this PNG, JPEG or WebP; - is standard input",
        .to = OPTION_TO_TEXT(struct run, init_image) },
    { "mask-image", 0, "FILE", "draw only the part that is white in it; - is standard input",
        .to = OPTION_TO_TEXT(struct run, mask_image) },
    { "repeat", 0, "N", "draw the same request N times and print the time of each [1]",
        .to = OPTION_TO_INT(struct run, repeat, 1, REPEAT_MAX) },
    { "quiet", 'q', NULL, "print only warnings and errors",
        .to = OPTION_TO_FLAG(struct run, quiet) },
    { 0 },
};

_Static_assert(
    sizeof(own_options) / sizeof(own_options[0]) + REQUEST_FLAGS_MAX + SCHEDULER_FLAGS_MAX <=
        OPTIONS_MAX,
    "options_append has room for all of them");

static const struct command_help help = {
    "latentd generate --model PATH --prompt TEXT -o FILE.png [options]",
    "Loads a checkpoint, draws, writes the pictures and ends. (latentd serve keeps the\n"
    "checkpoint loaded.)",
    "  latentd generate --model share/tiny-sd --prompt 'a red house on green hills' \\\n"
    "      --guidance-scale 2.5 -o house.png\n"
    "  latentd generate --model sd15.safetensors --prompt 'a cat' --steps 30 \\\n"
    "      --scheduler ddim --eta 0.5 --seed 7 --num-images 4 -o cat.png\n"
    "  echo 'a blue boat at night' | latentd generate --model share/tiny-sd --prompt - -o - "
    ">boat.png",
};

static bool copy_text(const char *text, char **out, struct error *err) {
    *out = strdup(text);
    return *out || error_set(err, ERROR_NO_MEMORY, "no memory for a text");
}

/* Reads a text from a file or from standard input ("-"), without the end of its last line;
 * malloc'd. */
static bool read_prompt(const char *path, char **out, struct error *err) {
    size_t size;
    if (!file_read_stream(path, PROMPT_MAX_BYTES, out, &size, err))
        return false;
    if (strlen(*out) != size)
        return error_set(err, ERROR_INVALID, "the prompt in %s holds a zero byte", path);
    if (size && (*out)[size - 1] == '\n')
        (*out)[--size] = 0;
    if (size && (*out)[size - 1] == '\r')
        (*out)[--size] = 0;
    return true;
}

static bool fill_prompt(const struct options *o, char **out, struct error *err) {
    const char *text = options_get(o, "prompt"), *file = options_get(o, "prompt-file");
    if (!text == !file)
        return error_set(err, ERROR_INVALID,
            "one of --prompt TEXT, --prompt-file FILE and --prompt-embeds FILE is required");
    if (text && strcmp(text, "-") != 0)
        return copy_text(text, out, err);
    return read_prompt(file ? file : "-", out, err);
}

/* Sets the prompt, or the encoded prompts of a file. */
static bool fill_prompts(
    const struct options *o, struct generate_request *request, struct error *err) {
    const char *encoded = options_get(o, "prompt-embeds");
    if (encoded && !options_get(o, "prompt") && !options_get(o, "prompt-file"))
        return embeds_load(encoded, &request->prompt_embeds, &request->negative_prompt_embeds, err);
    request->prompts = calloc(1, sizeof(*request->prompts));
    if (!request->prompts)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the prompt");
    request->prompt_count = 1;
    if (encoded)
        return options_refuse(
            "prompt-embeds", encoded, "no --prompt and no --prompt-file beside it", err);
    return fill_prompt(o, &request->prompts[0], err);
}

/* Reads a picture file. `path` NULL: there is none. */
static bool read_picture(const char *path, struct picture_file *out, struct error *err) {
    char *bytes;
    if (!path)
        return true;
    if (!file_read_stream(path, HTTP_BODY_MAX_BYTES, &bytes, &out->size, err))
        return false;
    out->bytes = bytes;
    return true;
}

/* Fills in the request from the options. Its ranges are the same as over HTTP. */
static bool fill_run(const struct options *o, struct run *run, struct error *err) {
    const char *out = options_get(o, "out"), *quality = options_get(o, "quality");
    struct generate_request *request = &run->request;
    generate_request_init(request);
    request->latent_output = !out;
    request->format = out ? picture_format_of_path(out) : PICTURE_PNG;
    if (quality && request->format == PICTURE_PNG)
        return options_refuse("quality", quality, "only where -o ends in .jpg or .webp", err);
    return fill_prompts(o, request, err) && options_fill(o, run, err) &&
           read_picture(run->init_image, &request->init_image, err) &&
           read_picture(run->mask_image, &request->mask_image, err) &&
           scheduler_flags_read(o, &request->scheduler, err) &&
           lora_flags_fill(o, request, &run->loras, err) && generate_request_check(request, err) &&
           outputs_init(&run->outputs, out, generate_request_texts(request) * request->num_images,
               options_get(o, "save-latents"), err);
}

static bool write_pictures(
    const struct generate_answer *answer, const struct run *run, struct error *err) {
    const struct generate_result *result = answer->result;
    for (int i = 0; i < run->outputs.picture_count; i++) {
        uint8_t *file = NULL;
        size_t size = 0;
        bool ok = generate_answer_picture(answer, i, &file, &size, err);
        const struct file_part part = { file, size };
        ok = ok && file_write(run->outputs.pictures[i], &part, 1, err);
        free(file);
        if (!ok)
            return false;
        if (!run->quiet)
            fprintf(run->outputs.report, "%s: %dx%d, seed %" PRIu64 "\n", run->outputs.pictures[i],
                result->width, result->height, result->seeds[i]);
    }
    return true;
}

static bool on_progress(int step, int steps, void *user) {
    progress_show(user, step, steps, NULL);
    return true;
}

static void print_timings(const struct run *run, const struct generate_timings *timings) {
    if (!run->quiet)
        fprintf(run->outputs.report, "%.4f s: text encoder %.4f, UNet %.4f (%d calls), VAE %.4f\n",
            timings->total_s, timings->text_encoder_s, timings->unet_s, timings->steps,
            timings->vae_s);
}

/* Draws one request, from tokens to pictures in host memory. `turn` counts the draws of the same
 * request; only the pictures of turn 0 are written. */
static bool draw(struct pipeline *pipeline, const struct run *run,
    const struct resolved_request *request, int turn, struct error *err) {
    struct pipeline_info info;
    pipeline_get_info(pipeline, &info);
    struct generate_result result = { 0 };
    struct progress progress;
    progress_init(&progress, run->quiet, false);
    const struct generate_hooks hooks = { on_progress, &progress };
    char *model_name = model_name_of_path(info.model_path);
    bool ok = model_name || error_set(err, ERROR_NO_MEMORY, "no memory for the model's name");
    ok = ok && pipeline_generate(pipeline, request, &hooks, &result, err);
    progress_finish(&progress);
    const struct generate_answer answer = {
        .model_name = model_name, .request = request, .result = &result
    };
    const char *latents = run->outputs.latents;
    if (turn == 0)
        ok = ok && write_pictures(&answer, run, err) &&
             (!latents || latents_save(latents, &result, err));
    if (ok)
        print_timings(run, &result.timings);
    free(model_name);
    generate_result_finish(&result);
    return ok;
}

static bool draw_all(struct pipeline *pipeline, const struct run *run, struct error *err) {
    struct resolved_request request;
    if (!pipeline_resolve(pipeline, &run->request, &request, err))
        return false;
    for (int i = 0; i < request.warning_count; i++)
        fprintf(stderr, "warning: %s\n", request.warnings[i]);
    bool ok = true;
    for (int turn = 0; ok && turn < run->repeat; turn++)
        ok = draw(pipeline, run, &request, turn, err);
    resolved_request_finish(&request);
    if (!ok)
        return false;
    struct device_figures figures;
    if (!run->quiet && pipeline_get_figures(pipeline, &figures))
        fprintf(run->outputs.report,
            "%s: weights %.3f GB, activations %.3f GB, %.3f GB in use by all processes\n",
            figures.name, (double)figures.weight_bytes * 1e-9,
            (double)figures.activation_bytes * 1e-9,
            (double)(figures.memory_total - figures.memory_free) * 1e-9);
    return true;
}

int generate_main(int argc, char **argv) {
    struct options options;
    struct error err = { 0 };
    struct run run = { .repeat = 1 };
    struct pipeline *pipeline = NULL;
    struct option_spec table[OPTIONS_MAX + 1] = { 0 };
    options_append(table, own_options);
    options_append(table, request_flags(offsetof(struct run, request)));
    options_append(table, scheduler_flags());
    if (!options_parse(table, false, argc, argv, &options, &err))
        return options_usage_error("generate", &err);
    if (options.help) {
        option_forms_print(stdout, options.help, &help, table);
        return 0;
    }
    const bool understood = fill_run(&options, &run, &err);
    if (run.quiet)
        log_set_level(LOG_LEVEL_WARNING);
    const bool ok =
        understood &&
        (!run.init_latents || latents_load(run.init_latents, &run.request.init_latents, &err)) &&
        pipeline_create(&run.load, &pipeline, &err) &&
        lora_flags_load(&run.loras, &run.request, pipeline_get_adapters(pipeline), &err) &&
        draw_all(pipeline, &run, &err);
    pipeline_destroy(pipeline);
    generate_request_finish(&run.request);
    lora_flags_finish(&run.loras);
    outputs_finish(&run.outputs);
    if (!understood && err.code == ERROR_INVALID)
        return options_usage_error("generate", &err);
    if (!ok)
        fprintf(stderr, "latentd generate: %s\n", err.message);
    return ok ? 0 : err.code == ERROR_DEVICE_LOST ? EXIT_ENGINE_FAILED : 1;
}
