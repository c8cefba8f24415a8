/* AutoencoderKL. Encoder and decoder are both made of resnets at several sizes, and one attention
 * at the smallest size.
 *
 * At full size one tensor of the last level is 134 MB in f32 (512x512 pixels, 128 channels), so
 * memory decides the order here: resnets work in place, group norms overwrite what is not read
 * again, and all levels of the decoder share two buffers. Decoding needs up to four such tensors:
 * the last level's input (which counts as two, with twice as many channels), its output and one in
 * between. Encoding needs up to three.
 */
#include "models/vae.h"

#include "models/image_attention.h"
#include "models/resnet.h"

#include <stdio.h>
#include <stdlib.h>

/* Constant in diffusers for every norm of the VAE. */
static const float norm_eps = 1e-6f;

struct level {
    int64_t channels;
    int layers;
    struct resnet *resnets; /* owned: layers */
    struct packed *sampler; /* to the next level's size; NULL in the last level */
};

/* The encoder or the decoder. `levels` are in the order in which they run. */
struct half {
    struct packed *conv_in;
    struct level levels[CONFIG_MAX_BLOCKS];
    struct resnet mid_resnets[2];
    struct image_attention mid_attention;
    struct norm conv_norm_out;
    struct packed *conv_out;
    struct packed *quant_conv; /* after the encoder, before the decoder */
};

struct vae {
    struct vae_config config;
    enum dtype activation_dtype;
    enum vae_parts parts;
    struct half encoder, decoder;
    struct weight_list weights; /* owned */
};

static bool load_resnet(const struct weights *w, const struct vae_config *config,
    const char *prefix, int64_t c_in, int64_t c_out, struct resnet *out, struct error *err) {
    const struct resnet_shape shape = {
        .c_in = c_in, .c_out = c_out, .groups = config->norm_num_groups, .eps = norm_eps
    };
    return resnet_load(w, prefix, &shape, out, err);
}

/* `blocks` is "encoder.down_blocks" or "decoder.up_blocks". `sampler` is the name of its
 * resampler. */
struct level_shape {
    const char *blocks, *sampler;
    enum conv_kind kind;
    int index, layers;
    int64_t c_in, channels;
    bool is_last;
};

static bool load_level(const struct weights *w, const struct vae_config *config,
    const struct level_shape *shape, struct level *out, struct error *err) {
    char prefix[64];
    out->channels = shape->channels;
    out->resnets = calloc((size_t)shape->layers, sizeof(*out->resnets));
    if (!out->resnets)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %d layers", shape->layers);
    out->layers = shape->layers;
    for (int j = 0; j < shape->layers; j++) {
        snprintf(prefix, sizeof(prefix), "%s.%d.resnets.%d", shape->blocks, shape->index, j);
        if (!load_resnet(w, config, prefix, j ? shape->channels : shape->c_in, shape->channels,
                &out->resnets[j], err))
            return false;
    }
    snprintf(prefix, sizeof(prefix), "%s.%d.%s.0", shape->blocks, shape->index, shape->sampler);
    return shape->is_last || conv_load(w, prefix, "conv", shape->kind, shape->channels,
                                 shape->channels, &out->sampler, err);
}

/* Loads the middle block and the last layers, which encoder and decoder both have. */
static bool load_rest(const struct weights *w, const struct vae_config *config, const char *name,
    int64_t c_last, int64_t c_out, struct half *out, struct error *err) {
    const int64_t channels = config->block_out_channels[config->block_count - 1];
    const struct image_attention_shape attention = {
        .channels = channels, .heads = 1, .groups = config->norm_num_groups, .eps = norm_eps
    };
    char prefix[3][64];
    snprintf(prefix[0], sizeof(prefix[0]), "%s.mid_block.resnets.0", name);
    snprintf(prefix[1], sizeof(prefix[1]), "%s.mid_block.attentions.0", name);
    snprintf(prefix[2], sizeof(prefix[2]), "%s.mid_block.resnets.1", name);
    return load_resnet(w, config, prefix[0], channels, channels, &out->mid_resnets[0], err) &&
           image_attention_load(w, prefix[1], &attention, &out->mid_attention, err) &&
           load_resnet(w, config, prefix[2], channels, channels, &out->mid_resnets[1], err) &&
           norm_load(w, name, "conv_norm_out", c_last, &out->conv_norm_out, err) &&
           conv_load(w, name, "conv_out", CONV_3X3, c_out, c_last, &out->conv_out, err);
}

static bool load_encoder(
    const struct weights *w, const struct vae_config *config, struct half *out, struct error *err) {
    const int last = config->block_count - 1, latent = config->latent_channels;
    if (!conv_load(w, "encoder", "conv_in", CONV_3X3, config->block_out_channels[0],
            config->in_channels, &out->conv_in, err))
        return false;
    for (int i = 0; i <= last; i++) {
        const struct level_shape shape = {
            .blocks = "encoder.down_blocks",
            .sampler = "downsamplers",
            .kind = CONV_3X3_DOWN_RIGHT,
            .index = i,
            .layers = config->layers_per_block,
            .c_in = config->block_out_channels[i ? i - 1 : 0],
            .channels = config->block_out_channels[i],
            .is_last = i == last,
        };
        if (!load_level(w, config, &shape, &out->levels[i], err))
            return false;
    }
    return load_rest(
               w, config, "encoder", config->block_out_channels[last], 2 * latent, out, err) &&
           conv_load(w, "", "quant_conv", CONV_1X1, 2 * latent, 2 * latent, &out->quant_conv, err);
}

static bool load_decoder(
    const struct weights *w, const struct vae_config *config, struct half *out, struct error *err) {
    const int last = config->block_count - 1, latent = config->latent_channels;
    if (!conv_load(w, "", "post_quant_conv", CONV_1X1, latent, latent, &out->quant_conv, err) ||
        !conv_load(w, "decoder", "conv_in", CONV_3X3, config->block_out_channels[last], latent,
            &out->conv_in, err))
        return false;
    for (int i = 0; i <= last; i++) {
        const struct level_shape shape = {
            .blocks = "decoder.up_blocks",
            .sampler = "upsamplers",
            .kind = CONV_3X3_UP,
            .index = i,
            .layers = config->layers_per_block + 1,
            .c_in = config->block_out_channels[i ? last - i + 1 : last],
            .channels = config->block_out_channels[last - i],
            .is_last = i == last,
        };
        if (!load_level(w, config, &shape, &out->levels[i], err))
            return false;
    }
    return load_rest(
        w, config, "decoder", config->block_out_channels[0], config->out_channels, out, err);
}

bool vae_create(const struct vae_config *config, const struct weights *w, enum vae_parts parts,
    struct vae **out, struct error *err) {
    for (int i = 0; i < config->block_count; i++) {
        if (config->block_out_channels[i] % config->norm_num_groups) {
            return error_set(err, ERROR_INVALID,
                "vae: block_out_channels[%d] = %d is not a multiple of norm_num_groups %d", i,
                config->block_out_channels[i], config->norm_num_groups);
        }
    }
    struct vae *vae = calloc(1, sizeof(*vae));
    if (!vae)
        return error_set(err, ERROR_NO_MEMORY, "vae: no memory");
    vae->config = *config;
    vae->activation_dtype = w->kernels->activation_dtype(w->dtype);
    vae->parts = parts;
    /* The part that is not kept is checked too: a file with only one part is wrong. */
    struct weights encoder = *w, decoder = *w;
    encoder.list = decoder.list = &vae->weights;
    encoder.check_only |= !(parts & VAE_ENCODER);
    decoder.check_only |= !(parts & VAE_DECODER);
    if (!load_encoder(&encoder, config, &vae->encoder, err) ||
        !load_decoder(&decoder, config, &vae->decoder, err) || !weights_end(w, err)) {
        vae_destroy(vae);
        return error_prefix(err, "vae");
    }
    *out = vae;
    return true;
}

static void half_finish(struct half *half) {
    packed_destroy(half->conv_in);
    for (int i = 0; i < CONFIG_MAX_BLOCKS; i++) {
        struct level *level = &half->levels[i];
        for (int j = 0; j < level->layers; j++)
            resnet_finish(&level->resnets[j]);
        free(level->resnets);
        packed_destroy(level->sampler);
    }
    resnet_finish(&half->mid_resnets[0]);
    resnet_finish(&half->mid_resnets[1]);
    image_attention_finish(&half->mid_attention);
    norm_finish(&half->conv_norm_out);
    packed_destroy(half->conv_out);
    packed_destroy(half->quant_conv);
}

void vae_drop_weights(struct vae *vae) {
    half_finish(&vae->encoder);
    half_finish(&vae->decoder);
    weight_list_finish(&vae->weights);
    vae->encoder = vae->decoder = (struct half){ 0 };
}

void vae_swap(struct vae *a, struct vae *b) {
    const struct vae kept = *a;
    *a = *b;
    *b = kept;
}

void vae_destroy(struct vae *vae) {
    if (vae)
        vae_drop_weights(vae);
    free(vae);
}

const struct vae_config *vae_get_config(const struct vae *vae) {
    return &vae->config;
}

int vae_scale(const struct vae *vae) {
    return 1 << (vae->config.block_count - 1);
}

const struct weight_list *vae_weights(const struct vae *vae) {
    return &vae->weights;
}

/* Returns an image [n][h][w][channels] in the activation dtype. */
static struct tensor new_image(
    const struct vae *vae, struct compute *c, int64_t n, int64_t h, int64_t w, int64_t channels) {
    return compute_tensor_4d(c, vae->activation_dtype, n, h, w, channels);
}

/* x [n][h][w][c], in place. */
static void mid_block(const struct half *half, struct compute *c, struct tensor *x) {
    resnet_forward(&half->mid_resnets[0], c, x, RESNET_OVERWRITE_INPUT, NULL, x);
    image_attention_forward(&half->mid_attention, c, x);
    resnet_forward(&half->mid_resnets[1], c, x, RESNET_OVERWRITE_INPUT, NULL, x);
}

/* Overwrites x. */
static void norm_out(
    const struct vae *vae, const struct half *half, struct compute *c, struct tensor *x) {
    op_group_norm(c, &(struct group_norm_args){
                         .x = x,
                         .gamma = &half->conv_norm_out.gamma,
                         .beta = &half->conv_norm_out.beta,
                         .groups = vae->config.norm_num_groups,
                         .eps = norm_eps,
                         .silu = true,
                         .y = x,
                     });
}

/* y = latents / scaling_factor, f32 */
static void unscale(
    const struct vae *vae, struct compute *c, const struct tensor *latents, struct tensor *y) {
    const float coefficient = 1.0f / vae->config.scaling_factor;
    for (int64_t i = 0; i < latents->shape[0]; i++) {
        const struct tensor row = tensor_rows(latents, i, 1);
        struct tensor out = tensor_rows(y, i, 1);
        op_combine(c, &(struct combine_args){
                          .terms = { &row }, .count = 1, .coefficients = &coefficient, .y = &out });
    }
}

/* Everything before the levels: latents [n][h][w][latent_channels] to y [n][h][w][c]. */
static void decoder_start(
    const struct vae *vae, struct compute *c, const struct tensor *latents, struct tensor *y) {
    const struct half *half = &vae->decoder;
    const size_t mark = arena_mark(c->arena);
    const int64_t n = latents->shape[0], h = latents->shape[1], w = latents->shape[2];
    const int64_t channels = vae->config.latent_channels;
    struct tensor unscaled = compute_tensor_4d(c, DTYPE_F32, n, h, w, channels);
    unscale(vae, c, latents, &unscaled);
    const struct tensor input = layer_to_dtype(c, &unscaled, vae->activation_dtype);
    struct tensor z = new_image(vae, c, n, h, w, channels);
    layer_conv(c, &input, half->quant_conv, &z);
    layer_conv(c, &z, half->conv_in, y);
    mid_block(half, c, y);
    arena_release(c->arena, mark);
}

/* Allocates memory for the input of any level of the decoder, or for the result of its resnets. */
static struct tensor level_memory(
    const struct vae *vae, struct compute *c, const struct tensor *latents, bool input) {
    int64_t largest = 0; /* channels * 4^i: level i has 4^i times the latents' pixels */
    for (int i = 0; i < vae->config.block_count; i++) {
        const struct level *level = &vae->decoder.levels[i];
        const int64_t channels = input ? level->resnets[0].c_in : level->channels;
        largest = channels << (2 * i) > largest ? channels << (2 * i) : largest;
    }
    return new_image(vae, c, latents->shape[0], latents->shape[1], latents->shape[2], largest);
}

/* Returns an image [n][h][w][channels] in memory that is large enough for it. */
static struct tensor image_in(
    const struct tensor *memory, int64_t n, int64_t h, int64_t w, int64_t channels) {
    struct tensor t = tensor_4d(memory->data, memory->dtype, n, h, w, channels);
    t.device = memory->device;
    return t;
}

/* Runs the levels: latents [n][h][w][latent_channels] to x_memory [n][h*scale][w*scale][c]. A level
 * reads `input`, leaves the result of its resnets in `x`, and upsamples `x` into the `input` of the
 * next level. */
static void decode_levels(const struct vae *vae, struct compute *c, const struct tensor *latents,
    struct tensor *x_memory) {
    const struct level *levels = vae->decoder.levels;
    const int last = vae->config.block_count - 1;
    const int64_t n = latents->shape[0], h = latents->shape[1], w = latents->shape[2];
    const size_t mark = arena_mark(c->arena);

    struct tensor input_memory = level_memory(vae, c, latents, true);
    struct tensor input = image_in(&input_memory, n, h, w, levels[0].resnets[0].c_in);
    decoder_start(vae, c, latents, &input);
    for (int i = 0; i <= last; i++) {
        struct tensor x = image_in(x_memory, n, h << i, w << i, levels[i].channels);
        resnet_forward(&levels[i].resnets[0], c, &input, RESNET_OVERWRITE_INPUT, NULL, &x);
        if (i == last)
            arena_release(c->arena, mark);
        for (int j = 1; j < levels[i].layers; j++)
            resnet_forward(&levels[i].resnets[j], c, &x, RESNET_OVERWRITE_INPUT, NULL, &x);
        if (i < last) {
            input = image_in(&input_memory, n, h << (i + 1), w << (i + 1), levels[i].channels);
            layer_conv(c, &x, levels[i].sampler, &input);
        }
    }
}

/* Returns false, with the error set, if the VAE was created without this part. */
static bool has_part(const struct vae *vae, struct compute *c, enum vae_parts part) {
    if (!compute_ok(c))
        return false;
    if (!(vae->parts & part)) {
        return error_set(&c->error, ERROR_INTERNAL, "vae: the %s was not loaded",
            part == VAE_ENCODER ? "encoder" : "decoder");
    }
    return true;
}

void vae_decode(
    const struct vae *vae, struct compute *c, const struct tensor *latents, struct tensor *image) {
    if (!has_part(vae, c, VAE_DECODER))
        return;
    const struct level *levels = vae->decoder.levels;
    const size_t mark = arena_mark(c->arena);
    const int last = vae->config.block_count - 1;
    const int64_t n = latents->shape[0], h = latents->shape[1], w = latents->shape[2];

    struct tensor x_memory = level_memory(vae, c, latents, false);
    decode_levels(vae, c, latents, &x_memory);
    struct tensor x = image_in(&x_memory, n, h << last, w << last, levels[last].channels);
    norm_out(vae, &vae->decoder, c, &x);
    layer_conv_to_dtype(c, &x, vae->decoder.conv_out, image);
    arena_release(c->arena, mark);
}

/* Computes the level's output from its input x, including the downsampler if there is one. */
static struct tensor encode_level(
    const struct vae *vae, struct compute *c, const struct level *level, struct tensor x) {
    const int64_t n = x.shape[0], h = x.shape[1], w = x.shape[2];
    struct tensor y = x; /* in place if the channels stay the same */
    if (level->resnets[0].c_in != level->channels)
        y = new_image(vae, c, n, h, w, level->channels);
    resnet_forward(&level->resnets[0], c, &x, RESNET_OVERWRITE_INPUT, NULL, &y);
    for (int j = 1; j < level->layers; j++)
        resnet_forward(&level->resnets[j], c, &y, RESNET_OVERWRITE_INPUT, NULL, &y);
    if (!level->sampler)
        return y;
    struct tensor smaller = new_image(vae, c, n, conv_out_size(CONV_3X3_DOWN_RIGHT, h),
        conv_out_size(CONV_3X3_DOWN_RIGHT, w), level->channels);
    layer_conv(c, &y, level->sampler, &smaller);
    return smaller;
}

void vae_encode(
    const struct vae *vae, struct compute *c, const struct tensor *image, struct tensor *moments) {
    if (!has_part(vae, c, VAE_ENCODER))
        return;
    const struct half *half = &vae->encoder;
    const size_t mark = arena_mark(c->arena);
    const struct tensor input = layer_to_dtype(c, image, vae->activation_dtype);
    struct tensor x = new_image(vae, c, image->shape[0], image->shape[1], image->shape[2],
        vae->config.block_out_channels[0]);
    layer_conv(c, &input, half->conv_in, &x);
    for (int i = 0; i < vae->config.block_count; i++)
        x = encode_level(vae, c, &half->levels[i], x);
    mid_block(half, c, &x);
    norm_out(vae, half, c, &x);
    struct tensor z = new_image(
        vae, c, x.shape[0], x.shape[1], x.shape[2], 2 * vae->config.latent_channels);
    layer_conv(c, &x, half->conv_out, &z);
    layer_conv_to_dtype(c, &z, half->quant_conv, moments);
    arena_release(c->arena, mark);
}
