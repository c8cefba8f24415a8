/* Times each part of a picture on one checkpoint: load, text encoder, UNet step, VAE decode. Every
 * part is also put against the rate of a large matrix product, measured in the same run with the
 * same code and dtype, because machines differ and neighbours make noise: the share is what
 * travels. */
#include "server/command/command.h"

#include "base/limits.h"
#include "models/checkpoint.h"
#include "models/text_encoder.h"
#include "models/unet.h"
#include "models/vae.h"
#include "server/command/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define BENCH_MAX_STEPS 1000
#define GUIDANCE_ROWS 2 /* classifier-free guidance: unconditional and conditional */

struct bench_options {
    const char *model_path;
    int width, height; /* px; 0 is the model's own */
    int steps;
    enum dtype dtype;
    bool json;
};

/* One timed part: the first run (with its one-time costs), the median of the rest, its work. */
struct measurement {
    const char *name;
    double first_s, median_s, flops;
};

struct bench {
    struct bench_options options;
    const struct kernels *kernels;
    struct compute compute;
    struct text_encoder *text_encoder;
    struct unet *unet;
    struct vae *vae;
    double load_s, peak_flops_per_s, peak_memory_bytes;
    int64_t latent_h, latent_w;
    struct measurement parts[3];
};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Small numbers of both signs; zeros would run faster than real activations. */
static void fill(float *x, int64_t n) {
    uint32_t state = 1;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)state * 0x1p-31f;
    }
}

/* The host tensor [a][b][c][d] in f32 with `fill`ed numbers, or data NULL. The caller frees data.
 */
static struct tensor filled(int64_t a, int64_t b, int64_t c, int64_t d) {
    float *data = malloc((size_t)(a * b * c * d) * sizeof(float));
    if (data)
        fill(data, a * b * c * d);
    return tensor_4d(data, DTYPE_F32, a, b, c, d);
}

/* Runs `run` once to warm up and `repeats` times for the median. */
static bool measure(struct bench *b, const char *name, void (*run)(struct compute *, void *),
    void *user, int repeats, struct measurement *out, struct error *err) {
    double times[BENCH_MAX_STEPS];
    if (!compute_plan(&b->compute, run, user, err))
        return false;
    out->name = name;
    b->compute.flops = 0;
    for (int i = 0; i <= repeats; i++) {
        double begin = now_s();
        run(&b->compute, user);
        if (!compute_ok(&b->compute)) {
            *err = b->compute.error;
            return error_prefix(err, "%s", name);
        }
        double took = now_s() - begin;
        if (i == 0) {
            out->first_s = took;
            out->flops = b->compute.flops;
        } else {
            times[i - 1] = took;
        }
    }
    qsort(times, (size_t)repeats, sizeof(times[0]), compare_doubles);
    out->median_s = times[repeats / 2];
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

/* The best rate of a square matrix product in the dtype under test. */
static bool measure_peak(struct bench *b, struct error *err) {
    const int64_t n = 2048;
    bool ok = false;
    enum dtype activation = b->kernels->activation_dtype(b->options.dtype);
    struct peak_run run = { 0 };
    struct measurement m;
    struct tensor weight = filled(1, 1, n, n), x = filled(1, 1, n, n);
    void *x_data = malloc((size_t)(n * n) * dtype_size(activation));
    void *y_data = malloc((size_t)(n * n) * dtype_size(activation));
    if (!weight.data || !x.data || !x_data || !y_data) {
        error_set(err, ERROR_NO_MEMORY, "no memory for the matrix product of the benchmark");
        goto end;
    }
    convert_elements(x_data, activation, x.data, DTYPE_F32, n * n);
    run.x = tensor_2d(x_data, activation, n, n);
    run.y = tensor_2d(y_data, activation, n, n);
    struct tensor w2 = tensor_view_2d(&weight, n, n);
    if (!linear_pack(b->kernels, "peak", &w2, NULL, false, b->options.dtype, &run.weight, err))
        goto end;
    b->peak_flops_per_s = 0;
    for (int i = 0; i < 5; i++) {
        if (!measure(b, "peak", run_peak, &run, 1, &m, err))
            goto end;
        double rate = 2.0 * (double)(n * n * n) / m.median_s;
        if (rate > b->peak_flops_per_s)
            b->peak_flops_per_s = rate;
    }
    ok = true;
end:
    packed_destroy(run.weight);
    free(weight.data);
    free(x.data);
    free(x_data);
    free(y_data);
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
    struct tensor latents, timesteps, kv, y;
};

static void run_unet(struct compute *c, void *user) {
    struct unet_run *run = user;
    unet_forward(run->bench->unet, c, &run->latents, &run->timesteps, &run->kv, &run->y);
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
    enum dtype activation = b->kernels->activation_dtype(b->options.dtype);
    int32_t *ids = calloc((size_t)(GUIDANCE_ROWS * tokens), sizeof(*ids));
    void *context = malloc(
        (size_t)(GUIDANCE_ROWS * tokens * config->hidden_size) * dtype_size(activation));
    bool ok = false;
    if (!ids || !context) {
        error_set(err, ERROR_NO_MEMORY, "no memory for the text encoder's benchmark");
    } else {
        struct text_run run = { b, tensor_2d(ids, DTYPE_I32, GUIDANCE_ROWS, tokens),
            tensor_3d(context, activation, GUIDANCE_ROWS, tokens, config->hidden_size) };
        ok = measure(b, "text encoder", run_text, &run, 3, &b->parts[0], err);
    }
    free(ids);
    free(context);
    return ok;
}

static bool measure_unet(struct bench *b, struct error *err) {
    const struct unet_config *config = unet_get_config(b->unet);
    int64_t tokens = text_encoder_get_config(b->text_encoder)->max_position_embeddings;
    enum dtype activation = unet_activation_dtype(b->unet);
    float timesteps[GUIDANCE_ROWS] = { 500, 500 };
    struct tensor latents = filled(GUIDANCE_ROWS, b->latent_h, b->latent_w, config->in_channels);
    struct tensor y = filled(GUIDANCE_ROWS, b->latent_h, b->latent_w, config->out_channels);
    struct tensor kv = filled(1, GUIDANCE_ROWS, tokens, unet_context_channels(b->unet));
    bool ok = false;
    if (!latents.data || !y.data || !kv.data) {
        error_set(err, ERROR_NO_MEMORY, "no memory for the UNet's benchmark");
        goto end;
    }
    if (activation == DTYPE_BF16) {
        uint16_t *half = kv.data; /* in place, front to back: each write is behind its read */
        for (int64_t i = 0, n = tensor_elements(&kv); i < n; i++) {
            float value;
            memcpy(&value, (char *)kv.data + (size_t)i * sizeof(float), sizeof(value));
            half[i] = f32_to_bf16(value);
        }
        kv.dtype = DTYPE_BF16;
    }
    struct unet_run run = { b, latents, tensor_1d(timesteps, DTYPE_F32, GUIDANCE_ROWS),
        tensor_view_3d(&kv, GUIDANCE_ROWS, tokens, unet_context_channels(b->unet)), y };
    ok = measure(b, "UNet step", run_unet, &run, b->options.steps, &b->parts[1], err);
end:
    free(latents.data);
    free(y.data);
    free(kv.data);
    return ok;
}

static bool measure_vae(struct bench *b, struct error *err) {
    const struct vae_config *config = vae_get_config(b->vae);
    int64_t scale = vae_scale(b->vae);
    struct tensor latents = filled(1, b->latent_h, b->latent_w, config->latent_channels);
    struct tensor image = filled(1, b->latent_h * scale, b->latent_w * scale, config->out_channels);
    bool ok = false;
    if (!latents.data || !image.data) {
        error_set(err, ERROR_NO_MEMORY, "no memory for the VAE's benchmark");
    } else {
        struct vae_run run = { b, latents, image };
        ok = measure(b, "VAE decode", run_vae, &run, 3, &b->parts[2], err);
    }
    free(latents.data);
    free(image.data);
    return ok;
}

static bool load(struct bench *b, struct error *err) {
    struct checkpoint *checkpoint = NULL;
    double begin = now_s();
    b->kernels = kernels_cpu();
    b->compute.kernels = b->kernels;
    bool ok = arena_create(b->kernels->memory, &b->compute.arena, err) &&
              checkpoint_open(b->options.model_path, NULL, &checkpoint, err) &&
              text_encoder_create(
                  checkpoint, b->kernels, b->options.dtype, &b->text_encoder, err) &&
              unet_create(checkpoint, b->kernels, b->options.dtype, &b->unet, err) &&
              vae_create(checkpoint, b->kernels, b->options.dtype, VAE_DECODER, &b->vae, err);
    checkpoint_close(checkpoint);
    b->load_s = now_s() - begin;
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

static void print_table(const struct bench *b) {
    printf("%s, %s weights, %s activations, %lldx%lld px, %d rows\n", b->kernels->name,
        dtype_name(b->options.dtype), dtype_name(b->kernels->activation_dtype(b->options.dtype)),
        (long long)(b->latent_w * vae_scale(b->vae)), (long long)(b->latent_h * vae_scale(b->vae)),
        GUIDANCE_ROWS);
    printf("%-14s %10s %10s %10s %12s %8s\n", "", "first s", "median s", "GFLOP", "GFLOP/s",
        "of peak");
    printf("%-14s %10.3f\n", "load", b->load_s);
    for (int i = 0; i < 3; i++) {
        const struct measurement *m = &b->parts[i];
        double rate = m->flops / m->median_s;
        printf("%-14s %10.3f %10.3f %10.1f %12.1f %7.0f%%\n", m->name, m->first_s, m->median_s,
            m->flops * 1e-9, rate * 1e-9, 100.0 * rate / b->peak_flops_per_s);
    }
    printf("%-14s %10s %10s %10s %12.1f %7.0f%%\n", "matmul peak", "", "", "",
        b->peak_flops_per_s * 1e-9, 100.0);
    printf("peak memory    %10.2f GB\n", b->peak_memory_bytes * 1e-9);
}

static bool print_json(const struct bench *b) {
    json_t *parts = json_object();
    for (int i = 0; i < 3; i++) {
        const struct measurement *m = &b->parts[i];
        json_object_set_new(parts, m->name,
            json_pack("{s:f, s:f, s:f, s:f, s:f}", "first_s", m->first_s, "median_s", m->median_s,
                "flops", m->flops, "flops_per_s", m->flops / m->median_s, "share_of_peak",
                m->flops / m->median_s / b->peak_flops_per_s));
    }
    int scale = vae_scale(b->vae);
    json_t *report = json_pack("{s:s, s:s, s:s, s:I, s:I, s:i, s:f, s:o, s:f, s:f}", "device",
        b->kernels->name, "dtype", dtype_name(b->options.dtype), "activation_dtype",
        dtype_name(b->kernels->activation_dtype(b->options.dtype)), "width",
        (json_int_t)(b->latent_w * scale), "height", (json_int_t)(b->latent_h * scale), "rows",
        GUIDANCE_ROWS, "load_s", b->load_s, "parts", parts, "matmul_peak_flops_per_s",
        b->peak_flops_per_s, "peak_memory_bytes", b->peak_memory_bytes);
    bool ok = report && json_dumpf(report, stdout, JSON_INDENT(2)) == 0;
    putchar('\n');
    json_decref(report);
    return ok;
}

static const struct option_spec table[] = {
    { "model", 0, "PATH", "a diffusers folder or a single .safetensors file", true },
    { "width", 0, "PX", "picture size, a multiple of 8 [the model's]" },
    { "height", 0, "PX", "picture size, a multiple of 8 [the model's]" },
    { "steps", 0, "N", "UNet steps to take the median of [5]" },
    { "dtype", 0, "auto|f32|bf16", "how weights are held [auto: bf16]" },
    { "json", 0, NULL, "print JSON instead of a table" },
    { 0 },
};

static const struct command_help help = {
    "latentd bench --model PATH [options]",
    "Times the parts of one picture with guidance (two UNet rows) on this machine: checkpoint\n"
    "load, text encoder, UNet step, VAE decode; each also as a share of the rate of a large\n"
    "matrix product that is measured in the same run.",
    "  latentd bench --model share/tiny-sd\n"
    "  latentd bench --model stable-diffusion-v1-5/ --dtype f32 --steps 3 --json",
};

static bool fill_options(
    const struct options *given, struct bench_options *out, struct error *err) {
    out->model_path = options_get(given, "model");
    out->json = options_get(given, "json") != NULL;
    return options_int(given, "width", IMAGE_MIN_PX, IMAGE_MAX_PX, &out->width, err) &&
           options_int(given, "height", IMAGE_MIN_PX, IMAGE_MAX_PX, &out->height, err) &&
           options_int(given, "steps", 1, BENCH_MAX_STEPS, &out->steps, err) &&
           options_dtype(given, &out->dtype, err);
}

static bool run_all(struct bench *b, struct error *err) {
    if (!load(b, err) || !measure_text_encoder(b, err) || !measure_unet(b, err) ||
        !measure_vae(b, err))
        return false;
    /* The peak product comes last: its operands are no part of the picture's memory. */
    b->peak_memory_bytes = peak_memory_bytes();
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
        options_print_help(stdout, &help, table);
        return 0;
    }
    if (!fill_options(&given, &b.options, &err))
        return options_usage_error("bench", &err);
    bool ok = run_all(&b, &err);
    if (!ok)
        fprintf(stderr, "latentd bench: %s\n", err.message);
    vae_destroy(b.vae);
    unet_destroy(b.unet);
    text_encoder_destroy(b.text_encoder);
    arena_destroy(b.compute.arena);
    return ok ? 0 : 1;
}
