/* Times each part of a picture on one checkpoint: load, text encoder, UNet step, VAE decode. Each
 * part's rate is also given as a share of the rate of a large matrix product, measured in the same
 * run with the same code and dtype. Seconds depend on the machine and on its other processes;
 * shares can be compared between machines and runs. */
#include "command/command.h"

#include "base/limits.h"
#include "base/monotonic.h"
#include "command/options/option_forms.h"
#include "command/options/options.h"
#include "engine/loop/implementations.h"
#include "kernels/compute/recordings.h"
#include "kernels/pack.h"
#include "models/checkpoint/checkpoint.h"
#include "models/text_encoder.h"
#include "models/unet.h"
#include "models/vae.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define BENCH_MAX_STEPS 1000
#define GUIDANCE_ROWS 2 /* classifier-free guidance: unconditional and conditional */

struct bench_options {
    const char *model_path;
    int width, height; /* px; 0: the model's default */
    int steps;
    struct device_choice device;
    struct dtype_choice dtype;
    bool json, no_recordings;
};

/* One timed part: the seconds of the first run (with one-time costs), the median seconds of the
 * measured runs, and the floating-point operations of one run. */
struct measurement {
    const char *name;
    double first_s, median_s, flops;
    int launches; /* number of kernels if recorded; else 0 */
};

#define BUFFERS_MAX 5

struct bench {
    struct bench_options options;
    const struct kernels *kernels;
    enum dtype dtype;
    struct compute compute;
    struct recordings *recordings;      /* owned, or NULL */
    struct tensor buffers[BUFFERS_MAX]; /* owned: the operands of the part being timed */
    int buffer_count;
    struct text_encoder *text_encoder;
    struct unet *unet;
    struct vae *vae;
    double load_s, peak_flops_per_s, peak_memory_bytes;
    bool has_figures;
    struct device_figures figures; /* read before measure_peak allocates its operands */
    int64_t latent_h, latent_w;
    struct measurement parts[3];
};

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Fills x with small numbers of both signs, because zeros would run faster than real
 * activations. */
static void fill(float *x, int64_t n) {
    uint32_t state = 1;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)state * 0x1p-31f;
    }
}

/* Allocates a tensor on the device and fills it with `fill`; i32 tensors are zero. Valid until
 * buffers_release. Returns false with an error if memory is short. */
static bool buffer(struct bench *b, struct tensor like, struct tensor *out, struct error *err) {
    const struct device_memory *memory = b->kernels->memory;
    const int64_t n = tensor_elements(&like);
    float *numbers = calloc((size_t)n, sizeof(*numbers));
    void *host = calloc((size_t)n, dtype_size(like.dtype));
    like.device = b->kernels->device;
    bool ok = (numbers && host) || error_set(err, ERROR_NO_MEMORY, "no memory for the benchmark");
    if (ok && b->buffer_count == BUFFERS_MAX)
        ok = error_set(err, ERROR_INTERNAL, "a part has more than %d operands", BUFFERS_MAX);
    if (ok && like.dtype != DTYPE_I32) {
        fill(numbers, n);
        convert_elements(host, like.dtype, numbers, DTYPE_F32, n);
    }
    ok = ok && memory->alloc(MEMORY_ACTIVATIONS, tensor_bytes(&like), &like.data, err);
    if (ok) {
        b->buffers[b->buffer_count++] = like;
        ok = memory->upload(like.data, host, tensor_bytes(&like), err);
    }
    free(numbers);
    free(host);
    *out = like;
    return ok;
}

static void buffers_release(struct bench *b) {
    for (int i = 0; i < b->buffer_count; i++)
        b->kernels->memory->release(
            MEMORY_ACTIVATIONS, b->buffers[i].data, tensor_bytes(&b->buffers[i]));
    b->buffer_count = 0;
}

/* A part as a function and its argument. If the device can record, the second call is recorded and
 * replayed from the third call on. */
struct part {
    void (*run)(struct compute *c, void *user);
    void *user;
};

static void run_part(struct compute *c, const void *user) {
    const struct part *part = user;
    part->run(c, part->user);
}

static bool time_part(
    struct bench *b, const char *name, const struct part *part, double *took, struct error *err) {
    const uintptr_t key[] = { (uintptr_t)part->run, (uintptr_t)part->user };
    double begin = monotonic_seconds();
    compute_recorded(&b->compute, key, sizeof(key), run_part, part);
    compute_synchronize(&b->compute);
    *took = monotonic_seconds() - begin;
    if (compute_ok(&b->compute))
        return true;
    *err = b->compute.error;
    return error_prefix(err, "%s", name);
}

/* Runs `run` once to warm up, or twice if it is recorded. Then runs it `repeats` times for the
 * median. */
static bool measure(struct bench *b, const char *name, void (*run)(struct compute *, void *),
    void *user, int repeats, struct measurement *out, struct error *err) {
    const struct part part = { run, user };
    double times[BENCH_MAX_STEPS], ignored;
    if (!compute_plan(&b->compute, run, user, err))
        return false;
    out->name = name;
    b->compute.flops = 0;
    if (!time_part(b, name, &part, &out->first_s, err))
        return false;
    out->flops = b->compute.flops;
    if (b->recordings && b->kernels->recorder && !time_part(b, name, &part, &ignored, err))
        return false;
    for (int i = 0; i < repeats; i++)
        if (!time_part(b, name, &part, &times[i], err))
            return false;
    qsort(times, (size_t)repeats, sizeof(times[0]), compare_doubles);
    out->median_s = times[repeats / 2];
    struct recordings_figures figures = { 0 };
    if (b->recordings)
        recordings_get_figures(b->recordings, &figures);
    out->launches = figures.launches;
    return true;
}

struct peak_run {
    struct packed *weight;
    struct tensor x, y;
};

static void run_peak(struct compute *c, void *user) {
    struct peak_run *run = user;
    op_linear(c, &(struct linear_args){ .x = &run->x, .weight = run->weight, .y = &run->y });
}

static int64_t peak_size(const struct bench *b) {
    return b->kernels->device == DEVICE_CPU ? 2048 : 8192;
}

/* Measures the rate of a square matrix product in the dtype under test. x has rank 3: one row of n
 * tokens. With rank 2 each token would be a batch row, and batch rows are computed one by one. That
 * would measure n products of one token each, far below the processor's rate. */
static bool measure_peak(struct bench *b, struct error *err) {
    const int64_t n = peak_size(b);
    enum dtype activation = b->kernels->activation_dtype(b->dtype);
    struct peak_run run = { 0 };
    struct measurement m;
    float *numbers = malloc((size_t)(n * n) * sizeof(*numbers));
    bool ok = numbers || error_set(err, ERROR_NO_MEMORY, "no memory for the matrix product");
    if (ok) {
        fill(numbers, n * n);
        const struct tensor weight = tensor_2d(numbers, DTYPE_F32, n, n);
        ok = linear_pack(b->kernels, "peak", &weight, NULL, false, b->dtype, &run.weight, err);
    }
    ok = ok && buffer(b, tensor_3d(NULL, activation, 1, n, n), &run.x, err) &&
         buffer(b, tensor_3d(NULL, activation, 1, n, n), &run.y, err);
    b->peak_flops_per_s = 0;
    for (int i = 0; ok && i < 5; i++) {
        ok = measure(b, "peak", run_peak, &run, 1, &m, err);
        double rate = ok ? 2.0 * (double)(n * n * n) / m.median_s : 0;
        if (rate > b->peak_flops_per_s)
            b->peak_flops_per_s = rate;
    }
    buffers_release(b);
    packed_destroy(run.weight);
    free(numbers);
    return ok;
}

struct text_run {
    struct bench *bench;
    struct tensor ids, context;
};

static void run_text(struct compute *c, void *user) {
    struct text_run *run = user;
    text_encoder_forward(run->bench->text_encoder, c, &run->ids, 0, &run->context);
}

struct unet_run {
    struct bench *bench;
    struct tensor latents, table, ids, kv, y;
};

static void run_unet(struct compute *c, void *user) {
    struct unet_run *run = user;
    unet_forward_timed(
        run->bench->unet, c, &run->latents, &run->table, &run->ids, &run->kv, NULL, &run->y);
}

struct vae_run {
    struct bench *bench;
    struct tensor latents, image;
};

static void run_vae(struct compute *c, void *user) {
    struct vae_run *run = user;
    vae_decode(run->bench->vae, c, &run->latents, &run->image);
}

static bool measure_text_encoder(struct bench *b, struct error *err) {
    const struct text_encoder_config *config = text_encoder_get_config(b->text_encoder);
    int64_t tokens = config->max_position_embeddings;
    enum dtype activation = b->kernels->activation_dtype(b->dtype);
    struct text_run run = { .bench = b };
    bool ok = buffer(b, tensor_2d(NULL, DTYPE_I32, GUIDANCE_ROWS, tokens), &run.ids, err) &&
              buffer(b, tensor_3d(NULL, activation, GUIDANCE_ROWS, tokens, config->hidden_size),
                  &run.context, err) &&
              measure(b, "text encoder", run_text, &run, 3, &b->parts[0], err);
    buffers_release(b);
    return ok;
}

static bool measure_unet(struct bench *b, struct error *err) {
    const struct unet_config *config = unet_get_config(b->unet);
    const int64_t rows = GUIDANCE_ROWS, h = b->latent_h, w = b->latent_w;
    int64_t tokens = text_encoder_get_config(b->text_encoder)->max_position_embeddings;
    struct unet_run run = { .bench = b };
    const int64_t pieces = unet_time_pieces(b->unet);
    enum dtype activation = unet_activation_dtype(b->unet);
    int32_t ids[GUIDANCE_ROWS * UNET_TIME_PIECES_MAX];
    for (int row = 0; row < GUIDANCE_ROWS; row++)
        unet_time_ids(b->unet, 0, ids + row * pieces);
    bool ok =
        buffer(b, tensor_4d(NULL, DTYPE_F32, rows, h, w, config->in_channels), &run.latents, err) &&
        buffer(b, tensor_4d(NULL, DTYPE_F32, rows, h, w, config->out_channels), &run.y, err) &&
        buffer(b, tensor_2d(NULL, activation, 1, unet_time_channels(b->unet)), &run.table, err) &&
        buffer(b, tensor_2d(NULL, DTYPE_I32, rows, pieces), &run.ids, err) &&
        buffer(b, tensor_3d(NULL, activation, rows, tokens, unet_context_channels(b->unet)),
            &run.kv, err) &&
        b->kernels->memory->upload(run.ids.data, ids, tensor_bytes(&run.ids), err) &&
        measure(b, "UNet step", run_unet, &run, b->options.steps, &b->parts[1], err);
    buffers_release(b);
    return ok;
}

static bool measure_vae(struct bench *b, struct error *err) {
    const struct vae_config *config = vae_get_config(b->vae);
    const int64_t scale = vae_scale(b->vae), h = b->latent_h, w = b->latent_w;
    struct vae_run run = { .bench = b };
    bool ok = buffer(b, tensor_4d(NULL, DTYPE_F32, 1, h, w, config->latent_channels), &run.latents,
                  err) &&
              buffer(b, tensor_4d(NULL, DTYPE_F32, 1, h * scale, w * scale, config->out_channels),
                  &run.image, err) &&
              measure(b, "VAE decode", run_vae, &run, 3, &b->parts[2], err);
    buffers_release(b);
    return ok;
}

static bool load_models(struct bench *b, struct checkpoint *c, struct error *err) {
    const struct weights text = weights_from_checkpoint(
        c, COMPONENT_TEXT_ENCODER, b->kernels, b->dtype);
    const struct weights unet = weights_from_checkpoint(c, COMPONENT_UNET, b->kernels, b->dtype);
    const struct weights vae = weights_from_checkpoint(c, COMPONENT_VAE, b->kernels, b->dtype);
    return text_encoder_create(checkpoint_text_encoder_config(c), &text, &b->text_encoder, err) &&
           unet_create(checkpoint_unet_config(c), &unet, &b->unet, err) &&
           vae_create(checkpoint_vae_config(c), &vae, VAE_DECODER, &b->vae, err) &&
           b->kernels->memory->synchronize(err);
}

static bool load(struct bench *b, struct error *err) {
    struct checkpoint *checkpoint = NULL;
    double begin = monotonic_seconds();
    b->kernels = devices_open(&b->options.device, err);
    b->compute.kernels = b->kernels;
    bool ok = b->kernels && devices_choose_dtype(b->kernels, &b->options.dtype, &b->dtype, err) &&
              arena_create(b->kernels->memory, &b->compute.arena, err) &&
              (b->options.no_recordings || recordings_create(b->kernels, &b->recordings, err)) &&
              checkpoint_open(b->options.model_path, NULL, &checkpoint, err) &&
              load_models(b, checkpoint, err);
    checkpoint_close(checkpoint);
    b->compute.recordings = b->recordings;
    b->load_s = monotonic_seconds() - begin;
    if (!ok)
        return false;
    int scale = vae_scale(b->vae), own = unet_get_config(b->unet)->sample_size * scale;
    int width = b->options.width ? b->options.width : own;
    int height = b->options.height ? b->options.height : own;
    if (width % scale || height % scale)
        return error_set(err, ERROR_INVALID,
            "--width and --height: %dx%d is not allowed; multiples of %d", width, height, scale);
    b->latent_w = width / scale;
    b->latent_h = height / scale;
    return true;
}

static double peak_memory_bytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss * 1024.0;
}

/* Returns the part's rate as a share of the matrix product's rate. The operations counted are those
 * of the plain algorithm. A faster algorithm (Winograd) needs fewer, so the share may come out
 * above 1. Such a share would mislead, so -1 is returned instead. */
static double share_of_peak(const struct bench *b, const struct measurement *m) {
    const double share = m->flops / m->median_s / b->peak_flops_per_s;
    return share <= 1 ? share : -1;
}

static void print_table(const struct bench *b) {
    bool all_shares = true;
    printf("%s, %s weights, %s activations, %lldx%lld px, %d rows\n", b->kernels->name,
        dtype_name(b->dtype), dtype_name(b->kernels->activation_dtype(b->dtype)),
        (long long)(b->latent_w * vae_scale(b->vae)), (long long)(b->latent_h * vae_scale(b->vae)),
        GUIDANCE_ROWS);
    implementations_print(implementations_of(b->kernels, b->dtype), stdout);
    printf("%-14s %10s %10s %10s %12s %8s %9s\n", "", "first s", "median s", "GFLOP", "GFLOP/s",
        "of peak", "launches");
    printf("%-14s %10.3f\n", "load", b->load_s);
    for (int i = 0; i < 3; i++) {
        const struct measurement *m = &b->parts[i];
        const double share = share_of_peak(b, m);
        printf("%-14s %10.3f %10.4f %10.1f %12.1f ", m->name, m->first_s, m->median_s,
            m->flops * 1e-9, m->flops / m->median_s * 1e-9);
        if (share >= 0)
            printf("%7.0f%%", 100.0 * share);
        else
            printf("%8s", "-");
        all_shares = all_shares && share >= 0;
        if (m->launches)
            printf(" %9d", m->launches);
        putchar('\n');
    }
    printf("%-14s %10s %10s %10s %12.1f %7.0f%%\n", "matmul peak", "", "", "",
        b->peak_flops_per_s * 1e-9, 100.0);
    if (!all_shares)
        printf("-: faster than the matrix product. Either the algorithm needs fewer operations "
               "than are "
               "counted, or other processes slowed the product\n");
    printf("peak memory    %10.2f GB\n", b->peak_memory_bytes * 1e-9);
    if (b->has_figures)
        printf("%s: weights %.2f GB, activations %.2f GB, %.2f GB in use by all processes\n",
            b->figures.name, (double)b->figures.weight_bytes * 1e-9,
            (double)b->figures.activation_bytes * 1e-9,
            (double)(b->figures.memory_total - b->figures.memory_free) * 1e-9);
}

static bool print_json(const struct bench *b) {
    json_t *parts = json_object();
    for (int i = 0; i < 3; i++) {
        const struct measurement *m = &b->parts[i];
        const double share = share_of_peak(b, m);
        json_object_set_new(parts, m->name,
            json_pack("{s:f, s:f, s:f, s:f, s:o, s:i}", "first_s", m->first_s, "median_s",
                m->median_s, "flops", m->flops, "flops_per_s", m->flops / m->median_s,
                "share_of_peak", share < 0 ? json_null() : json_real(share), "launches",
                m->launches));
    }
    int scale = vae_scale(b->vae);
    json_t *report = json_pack("{s:s, s:s, s:s, s:o, s:I, s:I, s:i, s:f, s:o, s:f, s:[I,I,I], s:f}",
        "device", b->kernels->name, "dtype", dtype_name(b->dtype), "activation_dtype",
        dtype_name(b->kernels->activation_dtype(b->dtype)), "implementations",
        implementations_json(implementations_of(b->kernels, b->dtype)), "width",
        (json_int_t)(b->latent_w * scale), "height", (json_int_t)(b->latent_h * scale), "rows",
        GUIDANCE_ROWS, "load_s", b->load_s, "parts", parts, "matmul_peak_flops_per_s",
        b->peak_flops_per_s, "matmul_peak_shape", (json_int_t)1, (json_int_t)peak_size(b),
        (json_int_t)peak_size(b), "peak_memory_bytes", b->peak_memory_bytes);
    if (report && b->has_figures)
        json_object_set_new(report, "device_figures",
            json_pack("{s:s, s:I, s:I, s:I, s:I}", "name", b->figures.name, "weight_bytes",
                (json_int_t)b->figures.weight_bytes, "activation_bytes",
                (json_int_t)b->figures.activation_bytes, "memory_used_bytes",
                (json_int_t)(b->figures.memory_total - b->figures.memory_free),
                "memory_total_bytes", (json_int_t)b->figures.memory_total));
    bool ok = report && json_dumpf(report, stdout, JSON_INDENT(2)) == 0;
    putchar('\n');
    json_decref(report);
    return ok;
}

static const struct option_spec table[] = {
    OPTION_MODEL_ROW(struct bench_options, model_path),
    OPTION_SIZE_ROW("width", struct bench_options, width),
    OPTION_SIZE_ROW("height", struct bench_options, height),
    { "steps", 0, "N", "number of UNet steps; their median time is printed [5]",
        .to = OPTION_TO_INT(struct bench_options, steps, 1, BENCH_MAX_STEPS) },
    OPTION_DEVICE_ROW(struct bench_options, device),
    OPTION_DTYPE_ROW(struct bench_options, dtype),
    { "no-graphs", 0, NULL, "launch each kernel of a step separately (GPU)",
        .to = OPTION_TO_FLAG(struct bench_options, no_recordings) },
    { "json", 0, NULL, "print JSON instead of a table",
        .to = OPTION_TO_FLAG(struct bench_options, json) },
    { 0 },
};

static const struct command_help help = {
    "latentd bench --model PATH [options]",
    "Times the parts of one picture with guidance (two UNet rows) on this machine: checkpoint\n"
    "load, text encoder, UNet step, VAE decode. Also prints the rate of each part as a share of\n"
    "the rate of a large matrix product, which is measured in the same run.",
    "  latentd bench --model share/tiny-sd\n"
    "  latentd bench --model stable-diffusion-v1-5/ --dtype f32 --steps 3 --json",
};

static bool run_all(struct bench *b, struct error *err) {
    if (!load(b, err) || !measure_text_encoder(b, err) || !measure_unet(b, err) ||
        !measure_vae(b, err))
        return false;
    /* The peak product comes last, so that its operands do not count as the picture's memory. */
    b->peak_memory_bytes = peak_memory_bytes();
    b->has_figures = b->kernels->figures && b->kernels->figures(&b->figures, NULL);
    if (!measure_peak(b, err))
        return false;
    if (!b->options.json) {
        print_table(b);
        return true;
    }
    return print_json(b) || error_set(err, ERROR_IO, "the report could not be written");
}

int bench_main(int argc, char **argv) {
    struct bench b = { .options = { .steps = 5 } };
    struct options given;
    struct error err = { 0 };
    if (!options_parse(table, false, argc, argv, &given, &err))
        return options_usage_error("bench", &err);
    if (given.help) {
        option_forms_print(stdout, given.help, &help, table);
        return 0;
    }
    if (!options_fill(&given, &b.options, &err))
        return options_usage_error("bench", &err);
    bool ok = run_all(&b, &err);
    if (!ok)
        fprintf(stderr, "latentd bench: %s\n", err.message);
    recordings_destroy(b.recordings);
    vae_destroy(b.vae);
    unet_destroy(b.unet);
    text_encoder_destroy(b.text_encoder);
    arena_destroy(b.compute.arena);
    return ok ? 0 : err.code == ERROR_DEVICE_LOST ? EXIT_ENGINE_FAILED : 1;
}
