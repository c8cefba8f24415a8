/* Runs single models from the command line, for scripts/parity and scripts/bench-cpu.
 *
 *   model_tool --model PATH --dtype f32|f16|bf16 --component text|unet|vae-decode|vae-encode
 *              [--device cpu|cuda[:N]] --input IN.safetensors --output OUT.safetensors
 *              [--input ... --output ...] [--replays N [--graphs on|off]]
 *   model_tool --model PATH --dtype f32|bf16 --serve
 *
 * --lora FILE:WEIGHT, which may be repeated, changes the UNet as in a request to the daemon.
 *
 * Tensors in files are f32 (ids: i32) and channels-last:
 *   text        ids [n][t]                                       -> context [n][t][c]
 *   unet        latents [n][h][w][c], timesteps [n], context     -> noise_pred [n][h][w][c]
 *   vae-decode  latents                                          -> image [n][8h][8w][3]
 *   vae-encode  image                                            -> moments [n][h][w][2c]
 *
 * --replays calls the model N times more, as the daemon does: recorded and replayed where the
 * device records, unless graphs are off. It fails at the first call whose bits differ.
 *
 * --serve speaks the protocol of bench_peer.py: it loads text encoder, UNet and VAE decoder, then
 * answers each line "text", "step" or "decode" with the seconds that it took. "text" is everything
 * that is done once per prompt, including the keys and values of the cross-attentions.
 */
#include "base/monotonic.h"
#include "engine/adapters/adapters.h"
#include "engine/request/request.h"
#include "kernels/compute/compute.h"
#include "kernels/compute/overlay.h"
#include "kernels/compute/recordings.h"
#include "kernels/devices.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/safetensors.h"
#include "models/text_encoder.h"
#include "models/unet.h"
#include "models/vae.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERVE_ROWS 2 /* unconditional and conditional */
#define SERVE_LATENT 64
#define LORAS_MAX 4
#define ROWS_MAX 16
#define REPLAYS_MAX 100000

enum part { PART_TEXT, PART_UNET, PART_VAE_DECODE, PART_VAE_ENCODE, PART_COUNT };

static const char *const part_names[PART_COUNT] = { "text", "unet", "vae-decode", "vae-encode" };

struct tool {
    struct checkpoint *checkpoint; /* owned */
    struct text_encoder *text;     /* text, unet, vae: owned; NULL if not needed */
    struct unet *unet;
    struct vae *vae;
    struct arena *arena; /* owned */
    struct compute compute;
    enum dtype activation_dtype;
    struct adapters *adapters; /* adapters, set: owned; NULL without --lora */
    struct adapter_set *set;
    const struct row_overlay *overlay_rows[ROWS_MAX];
    struct overlay overlay; /* for all rows of a call */
    int replays;            /* more calls, compared with the first */
    bool no_graphs;
};

/* One call of a model: borrowed inputs, and an output with its own memory. */
struct job {
    struct tool *tool;
    enum part part;
    struct tensor ids, latents, timesteps, context, image;
    struct tensor kv; /* keys and values, if computed once per prompt */
    struct tensor out;
};

static void tool_finish(struct tool *tool) {
    adapter_set_release(tool->set);
    adapters_destroy(tool->adapters);
    text_encoder_destroy(tool->text);
    unet_destroy(tool->unet);
    vae_destroy(tool->vae);
    arena_destroy(tool->arena);
    checkpoint_close(tool->checkpoint);
}

/* The adapters from the command line: files and weights. */
struct loras {
    const char *files[LORAS_MAX];
    struct lora_choice choices[LORAS_MAX];
    int count;
};

/* Makes the adapters change every row of the UNet's calls. The registry takes over the checkpoint
 * and keeps it open. */
static bool tool_change(
    struct tool *tool, const struct loras *loras, enum dtype dtype, struct error *err) {
    static const struct weight_list nothing;
    const struct adapters_options options = { 0 };
    const struct adapters_base base = { .checkpoint = tool->checkpoint,
        .kernels = tool->compute.kernels,
        .dtype = dtype,
        .unet = unet_weights(tool->unet),
        .text_encoder = &nothing };
    if (!adapters_create(&options, &base, &tool->adapters, err))
        return false;
    tool->checkpoint = NULL;
    for (int i = 0; i < loras->count; i++)
        if (!adapters_load_file(tool->adapters, loras->choices[i].name, loras->files[i], NULL, err))
            return false;
    if (!adapters_resolve(tool->adapters, loras->choices, loras->count, true, &tool->set, err))
        return false;
    for (int i = 0; i < ROWS_MAX; i++)
        tool->overlay_rows[i] = adapter_set_unet(tool->set);
    tool->overlay.rows = tool->overlay_rows;
    return true;
}

/* Loads the models for `parts` (bits of enum part) and closes the file, as the daemon does. */
static bool tool_init(struct tool *tool, const char *model, const struct kernels *kernels,
    enum dtype dtype, unsigned parts, const struct loras *loras, struct error *err) {
    if (!checkpoint_open(model, NULL, &tool->checkpoint, err) ||
        !arena_create(kernels->memory, &tool->arena, err)) {
        return false;
    }
    struct checkpoint *c = tool->checkpoint;
    const struct weights text = weights_from_checkpoint(c, COMPONENT_TEXT_ENCODER, kernels, dtype);
    const struct weights unet = weights_from_checkpoint(c, COMPONENT_UNET, kernels, dtype);
    const struct weights vae = weights_from_checkpoint(c, COMPONENT_VAE, kernels, dtype);
    if ((parts & 1u << PART_TEXT) &&
        !text_encoder_create(checkpoint_text_encoder_config(c), &text, &tool->text, err)) {
        return false;
    }
    if ((parts & 1u << PART_UNET) &&
        !unet_create(checkpoint_unet_config(c), &unet, &tool->unet, err)) {
        return false;
    }
    const enum vae_parts vae_parts = (parts & 1u << PART_VAE_DECODE ? VAE_DECODER : 0) |
                                     (parts & 1u << PART_VAE_ENCODE ? VAE_ENCODER : 0);
    if (vae_parts && !vae_create(checkpoint_vae_config(c), &vae, vae_parts, &tool->vae, err)) {
        return false;
    }
    tool->compute = (struct compute){ .kernels = kernels, .arena = tool->arena };
    tool->activation_dtype = kernels->activation_dtype(dtype);
    if (loras->count > 0)
        return tool_change(tool, loras, dtype, err);
    checkpoint_close(c);
    tool->checkpoint = NULL;
    return true;
}

/* kv = the cross-attention keys and values of context (f32). */
static void encode_context(
    struct compute *c, struct tool *tool, const struct tensor *context, struct tensor *kv) {
    struct tensor converted = compute_tensor_3d(
        c, tool->activation_dtype, context->shape[0], context->shape[1], context->shape[2]);
    op_convert(c, &(struct convert_args){ .x = context, .y = &converted });
    unet_encode_context(tool->unet, c, &converted, kv);
}

static void run_text(struct compute *c, struct job *job) {
    struct tool *tool = job->tool;
    struct tensor hidden = compute_tensor_3d(c, tool->activation_dtype, job->ids.shape[0],
        job->ids.shape[1], text_encoder_get_config(tool->text)->hidden_size);
    text_encoder_forward(tool->text, c, &job->ids, 0, &hidden);
    op_convert(c, &(struct convert_args){ .x = &hidden, .y = &job->out });
    if (job->kv.data) {
        unet_encode_context(tool->unet, c, &hidden, &job->kv);
    }
}

static void run_unet(struct compute *c, struct job *job) {
    struct tool *tool = job->tool;
    struct tensor kv = job->kv;
    if (!kv.data) {
        kv = compute_tensor_3d(c, unet_activation_dtype(tool->unet), job->context.shape[0],
            job->context.shape[1], unet_context_channels(tool->unet));
        encode_context(c, tool, &job->context, &kv);
    }
    unet_forward(tool->unet, c, &job->latents, &job->timesteps, &kv, NULL, &job->out);
}

/* Used by compute_plan and for the call itself. Restores the arena afterwards. */
static void run_job(struct compute *c, void *user) {
    struct job *job = user;
    const size_t mark = arena_mark(c->arena);
    switch (job->part) {
    case PART_TEXT:
        run_text(c, job);
        break;
    case PART_UNET:
        run_unet(c, job);
        break;
    case PART_VAE_DECODE:
        vae_decode(job->tool->vae, c, &job->latents, &job->out);
        break;
    case PART_VAE_ENCODE:
        vae_encode(job->tool->vae, c, &job->image, &job->out);
        break;
    case PART_COUNT:
        break;
    }
    arena_release(c->arena, mark);
}

static bool job_plan(struct job *job, struct error *err) {
    struct tool *tool = job->tool;
    if (tool->set && job->part == PART_UNET) {
        if (job->latents.shape[0] > ROWS_MAX)
            return error_set(err, ERROR_INVALID, "with --lora at most %d rows", ROWS_MAX);
        tool->overlay.count = (int)job->latents.shape[0];
        tool->compute.overlay = &tool->overlay;
    }
    return compute_plan(&job->tool->compute, run_job, job, err);
}

static bool job_run(struct job *job, struct error *err) {
    run_job(&job->tool->compute, job);
    if (!compute_ok(&job->tool->compute)) {
        *err = job->tool->compute.error;
        return false;
    }
    return true;
}

static void run_again(struct compute *c, const void *user) {
    run_job(c, (void *)user);
}

/* Calls the model once more and compares the bits with the first output. */
static bool replay_one(struct job *job, const void *first, int call, struct error *err) {
    struct compute *c = &job->tool->compute;
    const int key = (int)job->part; /* enough: the job's tensors stay where they are */
    compute_recorded(c, &key, sizeof(key), run_again, job);
    const unsigned char *seen = compute_view(c, &job->out), *before = first;
    if (!compute_ok(c)) {
        *err = c->error;
        return false;
    }
    for (size_t i = 0; i < tensor_bytes(&job->out); i++)
        if (seen[i] != before[i])
            return error_set(err, ERROR_DEVICE,
                "call %d of %d has other bits than the first, from element %zu on", call + 2,
                job->tool->replays + 1, i / sizeof(float));
    return true;
}

/* Calls the model `replays` times more. `first` is the first call's output. */
static bool job_replay(struct job *job, const void *first, struct error *err) {
    struct tool *tool = job->tool;
    struct recordings_figures figures = { 0 };
    struct recordings *recordings = NULL;
    if (!tool->no_graphs && !recordings_create(tool->compute.kernels, &recordings, err))
        return false;
    tool->compute.recordings = recordings;
    bool ok = true;
    for (int i = 0; ok && i < tool->replays; i++)
        ok = replay_one(job, first, i, err);
    if (recordings)
        recordings_get_figures(recordings, &figures);
    tool->compute.recordings = NULL;
    recordings_destroy(recordings);
    if (ok)
        printf("%d calls with the same bits, %lld of them replayed\n", tool->replays + 1,
            (long long)figures.replayed);
    return ok;
}

/* Allocates zeroed memory for a tensor of this shape; the caller frees its data. */
static bool tensor_own(struct tensor *t, struct error *err) {
    t->data = calloc(1, tensor_bytes(t));
    if (!t->data) {
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu bytes", tensor_bytes(t));
    }
    return true;
}

/* Returns the output's shape, computed from the inputs'. */
static struct tensor output_shape(const struct job *job) {
    const struct tool *tool = job->tool;
    const int64_t *l = job->latents.shape, *i = job->image.shape;
    switch (job->part) {
    case PART_TEXT:
        return tensor_3d(NULL, DTYPE_F32, job->ids.shape[0], job->ids.shape[1],
            text_encoder_get_config(tool->text)->hidden_size);
    case PART_UNET:
        return tensor_4d(
            NULL, DTYPE_F32, l[0], l[1], l[2], unet_get_config(tool->unet)->out_channels);
    case PART_VAE_DECODE:
        return tensor_4d(NULL, DTYPE_F32, l[0], l[1] * vae_scale(tool->vae),
            l[2] * vae_scale(tool->vae), vae_get_config(tool->vae)->out_channels);
    default:
        return tensor_4d(NULL, DTYPE_F32, i[0], i[1] / vae_scale(tool->vae),
            i[2] / vae_scale(tool->vae), 2 * vae_get_config(tool->vae)->latent_channels);
    }
}

static bool find_input(struct safetensors *file, const char *name, int rank, enum dtype dtype,
    struct tensor *out, struct error *err) {
    const ptrdiff_t index = safetensors_find(file, name);
    if (index < 0) {
        return error_set(err, ERROR_INVALID, "the input file has no tensor %s", name);
    }
    if (!safetensors_view(file, (size_t)index, out, err)) {
        return false;
    }
    if (out->rank != rank || out->dtype != dtype) {
        return error_set(
            err, ERROR_INVALID, "%s: rank %d and %s are needed", name, rank, dtype_name(dtype));
    }
    return true;
}

static bool find_inputs(struct safetensors *file, struct job *job, struct error *err) {
    switch (job->part) {
    case PART_TEXT:
        return find_input(file, "ids", 2, DTYPE_I32, &job->ids, err);
    case PART_UNET:
        return find_input(file, "latents", 4, DTYPE_F32, &job->latents, err) &&
               find_input(file, "timesteps", 1, DTYPE_F32, &job->timesteps, err) &&
               find_input(file, "context", 3, DTYPE_F32, &job->context, err);
    case PART_VAE_DECODE:
        return find_input(file, "latents", 4, DTYPE_F32, &job->latents, err);
    default:
        return find_input(file, "image", 4, DTYPE_F32, &job->image, err);
    }
}

/* Allocates device memory for a tensor of this shape, with the contents of `from` unless it is
 * NULL. */
static bool device_tensor(
    const struct kernels *kernels, const void *from, struct tensor *t, struct error *err) {
    t->device = kernels->device;
    return kernels->memory->alloc(MEMORY_ACTIVATIONS, tensor_bytes(t), &t->data, err) &&
           (!from || kernels->memory->upload(t->data, from, tensor_bytes(t), err));
}

/* Makes the calls that --replays asks for. `seen` is a view of the first output, which the next
 * call overwrites. */
static bool job_replays(struct job *job, const struct tensor *seen, struct error *err) {
    if (!job->tool->replays)
        return true;
    void *first = malloc(tensor_bytes(seen));
    if (!first)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu bytes", tensor_bytes(seen));
    memcpy(first, seen->data, tensor_bytes(seen));
    const bool ok = job_replay(job, first, err);
    free(first);
    return ok;
}

static bool run_files(
    struct tool *tool, enum part part, const char *input, const char *output, struct error *err) {
    static const char *const output_names[PART_COUNT] = { "context", "noise_pred", "image",
        "moments" };
    const struct kernels *kernels = tool->compute.kernels;
    struct safetensors *file = NULL;
    struct job job = { .tool = tool, .part = part };
    struct tensor *const inputs[] = { &job.ids, &job.latents, &job.timesteps, &job.context,
        &job.image };
    struct tensor *owned[6];
    int count = 0;
    bool ok = safetensors_open(input, &file, err) && find_inputs(file, &job, err);
    for (int i = 0; ok && i < 5; i++) {
        const void *from = inputs[i]->data;
        if (from) {
            ok = device_tensor(kernels, from, inputs[i], err);
            owned[count++] = inputs[i];
        }
    }
    if (ok) {
        job.out = output_shape(&job);
        ok = device_tensor(kernels, NULL, &job.out, err);
        owned[count++] = &job.out;
    }
    if (ok && job_plan(&job, err) && job_run(&job, err)) {
        struct tensor seen = job.out;
        seen.data = (void *)compute_view(&tool->compute, &job.out);
        seen.device = DEVICE_CPU;
        const struct safetensors_item item = { output_names[part], seen };
        if (seen.data) {
            ok = safetensors_write(output, &item, 1, NULL, err) && job_replays(&job, &seen, err);
        } else {
            *err = tool->compute.error;
            ok = false;
        }
    } else {
        ok = false;
    }
    for (int i = 0; i < count; i++) {
        kernels->memory->release(MEMORY_ACTIVATIONS, owned[i]->data, tensor_bytes(owned[i]));
    }
    safetensors_close(file);
    return ok;
}

/* Fills with numbers of mean 0 and standard deviation 1, approximately normally distributed. */
static void fill_random(struct tensor *t) {
    uint32_t state = 12345;
    float *data = t->data;
    for (int64_t i = 0; i < tensor_elements(t); i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) {
            state = state * 1664525u + 1013904223u;
            sum += (float)(state >> 8) / (float)(1 << 24) - 0.5f;
        }
        data[i] = sum * 1.7320508f;
    }
}

enum { SERVE_TEXT, SERVE_STEP, SERVE_DECODE, SERVE_COUNT };

/* Makes the three jobs of --serve and plans their memory. */
static bool serve_prepare(struct tool *tool, struct job jobs[SERVE_COUNT], struct error *err) {
    const int tokens = text_encoder_get_config(tool->text)->max_position_embeddings;
    const int channels = unet_get_config(tool->unet)->in_channels;
    jobs[SERVE_TEXT] = (struct job){ .tool = tool,
        .part = PART_TEXT,
        .ids = tensor_2d(NULL, DTYPE_I32, SERVE_ROWS, tokens),
        .kv = tensor_3d(NULL, unet_activation_dtype(tool->unet), SERVE_ROWS, tokens,
            unet_context_channels(tool->unet)) };
    jobs[SERVE_STEP] = (struct job){ .tool = tool,
        .part = PART_UNET,
        .latents = tensor_4d(NULL, DTYPE_F32, SERVE_ROWS, SERVE_LATENT, SERVE_LATENT, channels),
        .timesteps = tensor_1d(NULL, DTYPE_F32, SERVE_ROWS) };
    jobs[SERVE_DECODE] = (struct job){ .tool = tool,
        .part = PART_VAE_DECODE,
        .latents = tensor_4d(NULL, DTYPE_F32, 1, SERVE_LATENT, SERVE_LATENT,
            vae_get_config(tool->vae)->latent_channels) };
    struct job *text = &jobs[SERVE_TEXT], *step = &jobs[SERVE_STEP], *decode = &jobs[SERVE_DECODE];
    if (!tensor_own(&text->ids, err) || !tensor_own(&text->kv, err) ||
        !tensor_own(&step->latents, err) || !tensor_own(&step->timesteps, err) ||
        !tensor_own(&decode->latents, err)) {
        return false;
    }
    for (int64_t i = 0; i < tensor_elements(&text->ids); i++) {
        ((int32_t *)text->ids.data)[i] = (int32_t)(i * 7919 %
                                                   text_encoder_get_config(tool->text)->vocab_size);
    }
    fill_random(&step->latents);
    fill_random(&decode->latents);
    for (int i = 0; i < SERVE_ROWS; i++) {
        ((float *)step->timesteps.data)[i] = 801;
    }
    step->kv = text->kv; /* borrowed */
    for (int i = 0; i < SERVE_COUNT; i++) {
        jobs[i].out = output_shape(&jobs[i]);
        if (!tensor_own(&jobs[i].out, err) || !job_plan(&jobs[i], err)) {
            return false;
        }
    }
    return true;
}

static bool serve(struct tool *tool, double started, enum dtype dtype, struct error *err) {
    static const char *const names[SERVE_COUNT] = { "text", "step", "decode" };
    struct job jobs[SERVE_COUNT] = { 0 };
    bool ok = serve_prepare(tool, jobs, err);
    if (ok) {
        printf("{\"event\": \"loaded\", \"seconds\": %.4f, \"software\": \"latentd, %s kernels\", "
               "\"precision\": \"%s weights, %s activations\"}\n",
            monotonic_seconds() - started, tool->compute.kernels->name, dtype_name(dtype),
            dtype_name(tool->activation_dtype));
        fflush(stdout);
    }
    char line[64];
    while (ok && fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = 0;
        int which = 0;
        while (which < SERVE_COUNT && strcmp(line, names[which]) != 0) {
            which++;
        }
        if (which == SERVE_COUNT) {
            ok = error_field(err, "command", line, "text, step or decode");
            break;
        }
        const double begin = monotonic_seconds();
        ok = job_run(&jobs[which], err);
        if (ok) {
            printf("{\"event\": \"%s\", \"seconds\": %.6f}\n", line, monotonic_seconds() - begin);
            fflush(stdout);
        }
    }
    for (int i = 0; i < SERVE_COUNT; i++) {
        free(jobs[i].ids.data);
        free(jobs[i].latents.data);
        free(jobs[i].timesteps.data);
        free(jobs[i].out.data);
    }
    free(jobs[SERVE_TEXT].kv.data);
    return ok;
}

struct options {
    const char *model;
    enum dtype dtype;
    struct device_choice device; /* default: the CPU */
    enum part part;              /* PART_COUNT with --serve */
    struct loras loras;
    int replays;
    bool no_graphs;
};

/* FILE:WEIGHT */
static bool lora_parse(char *value, struct loras *loras, struct error *err) {
    char *colon = strrchr(value, ':'), *end = colon;
    const double weight = colon ? strtod(colon + 1, &end) : 0;
    if (!colon || colon == value || end == colon + 1 || *end || loras->count == LORAS_MAX)
        return error_field(err, "--lora", value, "FILE:WEIGHT, at most %d of them", LORAS_MAX);
    *colon = 0;
    loras->files[loras->count] = value;
    struct lora_choice *choice = &loras->choices[loras->count++];
    *choice = (struct lora_choice){ .weight = weight };
    snprintf(choice->name, sizeof(choice->name), "lora%d", loras->count);
    return true;
}

/* Parses all options except --input and --output, which may be repeated. */
static bool options_parse(int argc, char **argv, struct options *options, struct error *err) {
    *options = (struct options){ .dtype = DTYPE_F32, .part = PART_COUNT };
    bool serve_given = false;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (strcmp(name, "--serve") == 0) {
            serve_given = true;
            continue;
        }
        if (i + 1 == argc) {
            return error_set(err, ERROR_INVALID, "%s needs a value", name);
        }
        char *value = argv[++i];
        if (strcmp(name, "--model") == 0) {
            options->model = value;
        } else if (strcmp(name, "--lora") == 0) {
            if (!lora_parse(value, &options->loras, err)) {
                return false;
            }
        } else if (strcmp(name, "--dtype") == 0) {
            struct dtype_choice choice;
            if (!dtype_choice_parse(value, &choice) || choice.automatic) {
                return error_field(err, name, value, "f32, f16 or bf16");
            }
            options->dtype = choice.dtype;
        } else if (strcmp(name, "--device") == 0) {
            if (!device_choice_parse(value, &options->device)) {
                return error_field(err, name, value, "cpu, cuda or cuda:N");
            }
        } else if (strcmp(name, "--component") == 0) {
            options->part = PART_TEXT;
            while (options->part < PART_COUNT && strcmp(value, part_names[options->part]) != 0) {
                options->part++;
            }
            if (options->part == PART_COUNT) {
                return error_field(err, name, value, "text, unet, vae-decode or vae-encode");
            }
        } else if (strcmp(name, "--replays") == 0) {
            options->replays = (int)strtol(value, NULL, 10);
            if (options->replays < 1 || options->replays > REPLAYS_MAX) {
                return error_field(err, name, value, "1 to %d", REPLAYS_MAX);
            }
        } else if (strcmp(name, "--graphs") == 0) {
            options->no_graphs = strcmp(value, "off") == 0;
            if (!options->no_graphs && strcmp(value, "on") != 0) {
                return error_field(err, name, value, "on or off");
            }
        } else if (strcmp(name, "--input") != 0 && strcmp(name, "--output") != 0) {
            return error_set(err, ERROR_INVALID, "unknown option %s", name);
        }
    }
    if (!options->model || serve_given == (options->part != PART_COUNT)) {
        return error_set(
            err, ERROR_INVALID, "--model and one of --component and --serve are needed");
    }
    return true;
}

static bool run_all_files(
    struct tool *tool, enum part part, int argc, char **argv, struct error *err) {
    const char *input = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--input") == 0) {
            input = argv[i + 1];
        } else if (strcmp(argv[i], "--output") == 0) {
            if (!input) {
                return error_set(err, ERROR_INVALID, "--output before its --input");
            }
            if (!run_files(tool, part, input, argv[i + 1], err)) {
                return false;
            }
        }
    }
    return true;
}

int main(int argc, char **argv) {
    const double started = monotonic_seconds();
    struct error err = { 0 };
    struct options options;
    struct tool tool = { 0 };
    bool ok = options_parse(argc, argv, &options, &err);
    if (ok) {
        const bool serving = options.part == PART_COUNT;
        const unsigned parts = serving ? 1u << PART_TEXT | 1u << PART_UNET | 1u << PART_VAE_DECODE
                                       : 1u << options.part;
        const struct kernels *kernels = devices_open(&options.device, &err);
        if (kernels && serving && kernels->device != DEVICE_CPU) {
            kernels = NULL;
            error_set(&err, ERROR_UNSUPPORTED, "--serve is for the CPU; see latentd bench");
        }
        tool.replays = options.replays;
        tool.no_graphs = options.no_graphs;
        ok = kernels &&
             tool_init(&tool, options.model, kernels, options.dtype, parts, &options.loras, &err) &&
             (serving ? serve(&tool, started, options.dtype, &err)
                      : run_all_files(&tool, options.part, argc, argv, &err));
        tool_finish(&tool);
    }
    if (!ok) {
        fprintf(stderr, "model_tool: %s\n", err.message);
        return 1;
    }
    return 0;
}
