/* The UNet is a list of down blocks, one middle block and the same number of up blocks. Each result
 * on the way down is kept, and passed to a resnet on the way up, the last one first. So these skip
 * connections are a stack, both when loading (their channels) and when running (their tensors). */
#include "models/unet.h"

#include "models/layers.h"
#include "models/resnet.h"
#include "models/transformer.h"

#include <stdio.h>
#include <stdlib.h>

/* The most skip connections: conv_in, and for each block its layers and a downsampler. */
#define MAX_SKIPS (1 + CONFIG_MAX_BLOCKS * (UNET_MAX_LAYERS_PER_BLOCK + 1))

struct block {
    int64_t channels;
    int layers;
    struct resnet *resnets;         /* owned: layers */
    struct transformer *attentions; /* owned: layers; NULL: no attention */
    struct packed *sampler;         /* to the next block's size; NULL in the last */
};

struct unet {
    struct unet_config config;
    enum dtype activation_dtype;
    struct packed *conv_in;
    struct packed *time_linear_1, *time_linear_2;
    struct block down[CONFIG_MAX_BLOCKS], up[CONFIG_MAX_BLOCKS];
    struct resnet mid_resnets[2];
    struct transformer mid_attention;
    struct norm conv_norm_out;
    struct packed *conv_out;
    /* to_k and to_v of every cross-attention, as one layer */
    struct packed *context;
    int64_t context_channels;
    /* time_emb_proj of every resnet, as one layer */
    struct packed *time_add;
    int64_t time_add_channels;
    struct weight_list weights; /* owned */
};

/* The state of loading. */
struct builder {
    struct unet *unet;
    struct weights w;                  /* its list is the model's */
    struct linear_part *context_parts; /* owned: two for each cross-attention */
    int context_part_count;
    struct linear_part *time_parts; /* owned: one for each resnet */
    int time_part_count;
    int64_t skips[MAX_SKIPS]; /* channels of the skip connections on the stack */
    int skip_count;
    struct error *err;
};

static bool build_resnet(
    struct builder *b, const char *prefix, int64_t c_in, int64_t c_out, struct resnet *out) {
    const struct unet_config *config = &b->unet->config;
    const struct resnet_shape shape = {
        .c_in = c_in,
        .c_out = c_out,
        .groups = config->norm_num_groups,
        .eps = config->norm_eps,
        .time_offset = b->unet->time_add_channels,
    };
    b->unet->time_add_channels += c_out;
    return resnet_time_part(prefix, c_out, &b->time_parts[b->time_part_count++], b->err) &&
           resnet_load(&b->w, prefix, &shape, out, b->err);
}

static bool build_attention(
    struct builder *b, const char *prefix, int64_t channels, int heads, struct transformer *out) {
    const struct transformer_shape shape = {
        .channels = channels,
        .heads = heads,
        .groups = b->unet->config.norm_num_groups,
        .context_offset = b->unet->context_channels,
    };
    struct linear_part *parts = b->context_parts + b->context_part_count;
    b->context_part_count += 2;
    b->unet->context_channels += 2 * channels;
    return transformer_context_parts(prefix, channels, parts, b->err) &&
           transformer_load(&b->w, prefix, &shape, out, b->err);
}

static bool block_alloc(
    struct builder *b, struct block *block, int64_t channels, int layers, bool has_attention) {
    block->channels = channels;
    block->resnets = calloc((size_t)layers, sizeof(*block->resnets));
    block->attentions = has_attention ? calloc((size_t)layers, sizeof(*block->attentions)) : NULL;
    if (!block->resnets || (has_attention && !block->attentions))
        return error_set(b->err, ERROR_NO_MEMORY, "no memory for a block of %d layers", layers);
    block->layers = layers;
    return true;
}

static bool build_down_block(struct builder *b, int i) {
    const struct unet_config *config = &b->unet->config;
    struct block *block = &b->unet->down[i];
    const int64_t channels = config->block_out_channels[i];
    int64_t c_in = i ? config->block_out_channels[i - 1] : channels;
    char prefix[64];
    if (!block_alloc(b, block, channels, config->layers_per_block, config->down_has_attention[i]))
        return false;
    for (int j = 0; j < block->layers; j++) {
        snprintf(prefix, sizeof(prefix), "down_blocks.%d.resnets.%d", i, j);
        if (!build_resnet(b, prefix, c_in, channels, &block->resnets[j]))
            return false;
        snprintf(prefix, sizeof(prefix), "down_blocks.%d.attentions.%d", i, j);
        if (block->attentions &&
            !build_attention(b, prefix, channels, config->heads[i], &block->attentions[j]))
            return false;
        c_in = channels;
        b->skips[b->skip_count++] = channels;
    }
    if (i == config->block_count - 1)
        return true;
    b->skips[b->skip_count++] = channels;
    snprintf(prefix, sizeof(prefix), "down_blocks.%d.downsamplers.0", i);
    return conv_load(
        &b->w, prefix, "conv", CONV_3X3_DOWN, channels, channels, &block->sampler, b->err);
}

static bool build_mid_block(struct builder *b) {
    struct unet *u = b->unet;
    const int last = u->config.block_count - 1;
    const int64_t channels = u->config.block_out_channels[last];
    return build_resnet(b, "mid_block.resnets.0", channels, channels, &u->mid_resnets[0]) &&
           build_attention(
               b, "mid_block.attentions.0", channels, u->config.heads[last], &u->mid_attention) &&
           build_resnet(b, "mid_block.resnets.1", channels, channels, &u->mid_resnets[1]);
}

/* Loads up block i, which mirrors down block `count - 1 - i` and has one layer more. */
static bool build_up_block(struct builder *b, int i) {
    const struct unet_config *config = &b->unet->config;
    const int mirrored = config->block_count - 1 - i;
    struct block *block = &b->unet->up[i];
    const int64_t channels = config->block_out_channels[mirrored];
    int64_t hidden = i ? b->unet->up[i - 1].channels : channels;
    char prefix[64];
    if (!block_alloc(b, block, channels, config->layers_per_block + 1, config->up_has_attention[i]))
        return false;
    for (int j = 0; j < block->layers; j++) {
        const int64_t skip = b->skips[--b->skip_count];
        snprintf(prefix, sizeof(prefix), "up_blocks.%d.resnets.%d", i, j);
        if (!build_resnet(b, prefix, hidden + skip, channels, &block->resnets[j]))
            return false;
        snprintf(prefix, sizeof(prefix), "up_blocks.%d.attentions.%d", i, j);
        if (block->attentions &&
            !build_attention(b, prefix, channels, config->heads[mirrored], &block->attentions[j]))
            return false;
        hidden = channels;
    }
    snprintf(prefix, sizeof(prefix), "up_blocks.%d.upsamplers.0", i);
    return mirrored == 0 || conv_load(&b->w, prefix, "conv", CONV_3X3_UP, channels, channels,
                                &block->sampler, b->err);
}

static bool build_all(struct builder *b) {
    struct unet *u = b->unet;
    const struct unet_config *config = &u->config;
    const int64_t c0 = config->block_out_channels[0];
    const struct linear_shape time_1 = { .n = 4 * c0, .k = c0, .bias = true };
    const struct linear_shape time_2 = { .n = 4 * c0, .k = 4 * c0, .bias = true };
    if (!conv_load(&b->w, "", "conv_in", CONV_3X3, c0, config->in_channels, &u->conv_in, b->err) ||
        !linear_load(&b->w, "time_embedding", "linear_1", time_1, &u->time_linear_1, b->err) ||
        !linear_load(&b->w, "time_embedding", "linear_2", time_2, &u->time_linear_2, b->err))
        return false;
    b->skips[b->skip_count++] = c0;
    for (int i = 0; i < config->block_count; i++)
        if (!build_down_block(b, i))
            return false;
    if (!build_mid_block(b))
        return false;
    for (int i = 0; i < config->block_count; i++)
        if (!build_up_block(b, i))
            return false;
    return norm_load(&b->w, "", "conv_norm_out", c0, &u->conv_norm_out, b->err) &&
           conv_load(
               &b->w, "", "conv_out", CONV_3X3, config->out_channels, c0, &u->conv_out, b->err) &&
           linear_load_stacked(
               &b->w, b->time_parts, b->time_part_count, 4 * c0, true, &u->time_add, b->err) &&
           linear_load_stacked(&b->w, b->context_parts, b->context_part_count,
               config->cross_attention_dim, false, &u->context, b->err) &&
           weights_end(&b->w, b->err);
}

static bool check_config(const struct unet_config *config, struct error *err) {
    if (config->layers_per_block > UNET_MAX_LAYERS_PER_BLOCK) {
        return error_set(err, ERROR_UNSUPPORTED, "layers_per_block %d is more than %d",
            config->layers_per_block, UNET_MAX_LAYERS_PER_BLOCK);
    }
    for (int i = 0; i < config->block_count; i++) {
        const int channels = config->block_out_channels[i];
        if (channels % config->norm_num_groups || channels % config->heads[i]) {
            return error_set(err, ERROR_INVALID,
                "block_out_channels[%d] = %d is not a multiple of both norm_num_groups %d "
                "and the block's %d heads",
                i, channels, config->norm_num_groups, config->heads[i]);
        }
    }
    return true;
}

bool unet_create(const struct unet_config *config, const struct weights *w, struct unet **out,
    struct error *err) {
    if (!check_config(config, err))
        return error_prefix(err, "unet");
    int attentions = 1, resnets = 2; /* in the middle block */
    for (int i = 0; i < config->block_count; i++) {
        resnets += 2 * config->layers_per_block + 1;
        attentions += config->down_has_attention[i] ? config->layers_per_block : 0;
        attentions += config->up_has_attention[i] ? config->layers_per_block + 1 : 0;
    }
    struct builder b = {
        .unet = calloc(1, sizeof(struct unet)),
        .w = *w,
        .context_parts = calloc(2 * (size_t)attentions, sizeof(struct linear_part)),
        .time_parts = calloc((size_t)resnets, sizeof(struct linear_part)),
        .err = err,
    };
    bool ok;
    if (b.unet && b.context_parts && b.time_parts) {
        b.unet->config = *config;
        b.unet->activation_dtype = w->kernels->activation_dtype(w->dtype);
        b.w.list = &b.unet->weights;
        ok = build_all(&b);
    } else {
        ok = error_set(err, ERROR_NO_MEMORY, "no memory");
    }
    free(b.context_parts);
    free(b.time_parts);
    if (!ok) {
        unet_destroy(b.unet);
        return error_prefix(err, "unet");
    }
    *out = b.unet;
    return true;
}

static void block_finish(struct block *block) {
    for (int j = 0; j < block->layers; j++) {
        resnet_finish(&block->resnets[j]);
        if (block->attentions)
            transformer_finish(&block->attentions[j]);
    }
    free(block->resnets);
    free(block->attentions);
    packed_destroy(block->sampler);
}

void unet_destroy(struct unet *unet) {
    if (!unet)
        return;
    for (int i = 0; i < CONFIG_MAX_BLOCKS; i++) {
        block_finish(&unet->down[i]);
        block_finish(&unet->up[i]);
    }
    resnet_finish(&unet->mid_resnets[0]);
    resnet_finish(&unet->mid_resnets[1]);
    transformer_finish(&unet->mid_attention);
    norm_finish(&unet->conv_norm_out);
    packed_destroy(unet->conv_in);
    packed_destroy(unet->time_linear_1);
    packed_destroy(unet->time_linear_2);
    packed_destroy(unet->conv_out);
    packed_destroy(unet->context);
    packed_destroy(unet->time_add);
    weight_list_finish(&unet->weights);
    free(unet);
}

const struct unet_config *unet_get_config(const struct unet *unet) {
    return &unet->config;
}

enum dtype unet_activation_dtype(const struct unet *unet) {
    return unet->activation_dtype;
}

const struct weight_list *unet_weights(const struct unet *unet) {
    return &unet->weights;
}

int64_t unet_context_channels(const struct unet *unet) {
    return unet->context_channels;
}

void unet_encode_context(
    const struct unet *unet, struct compute *c, const struct tensor *context, struct tensor *kv) {
    layer_linear(c, context, unet->context, kv);
}

/* The skip connections of one forward pass, and the other inputs that every block needs. */
struct pass {
    const struct unet *unet;
    struct compute *c;
    const struct tensor *time_add; /* [n][time_add_channels] */
    struct transformer_context context;
    struct tensor skips[MAX_SKIPS];
    int skip_count;
};

/* Returns an image [n][h][w][channels] from the arena. */
static struct tensor new_image(
    const struct pass *p, int64_t n, int64_t h, int64_t w, int64_t channels) {
    return compute_tensor_4d(p->c, p->unet->activation_dtype, n, h, w, channels);
}

int64_t unet_time_channels(const struct unet *unet) {
    return unet->time_add_channels;
}

/* Returns the largest number of pieces that divides the channels. On a GPU each piece is the work
 * of one thread block. */
int unet_time_pieces(const struct unet *unet) {
    int pieces = UNET_TIME_PIECES_MAX;
    while (unet->time_add_channels % pieces != 0)
        pieces--;
    return pieces;
}

void unet_time_ids(const struct unet *unet, int line, int32_t *ids) {
    const int pieces = unet_time_pieces(unet);
    for (int i = 0; i < pieces; i++)
        ids[i] = line * pieces + i;
}

/* Applies two linear layers to the sinusoid, each followed by SiLU: the second SiLU is the one with
 * which each resnet begins its projection of the embedding. Then applies the projections of all
 * resnets. y [n][time_add_channels]. */
void unet_encode_timesteps(
    const struct unet *unet, struct compute *c, const struct tensor *timesteps, struct tensor *y) {
    const size_t mark = arena_mark(c->arena);
    const int64_t n = timesteps->shape[0], c0 = unet->config.block_out_channels[0];
    struct tensor sinusoid = compute_tensor_2d(c, unet->activation_dtype, n, c0);
    struct tensor hidden = compute_tensor_2d(c, unet->activation_dtype, n, 4 * c0);
    struct tensor silu_temb = compute_tensor_2d(c, unet->activation_dtype, n, 4 * c0);
    op_timestep_embedding(c, &(struct timestep_embedding_args){
                                 .timesteps = timesteps,
                                 .flip_sin_to_cos = unet->config.flip_sin_to_cos,
                                 .freq_shift = unet->config.freq_shift,
                                 .y = &sinusoid,
                             });
    op_linear(c, &(struct linear_args){
                     .x = &sinusoid,
                     .weight = unet->time_linear_1,
                     .activation = ACTIVATION_SILU,
                     .y = &hidden,
                 });
    op_linear(c, &(struct linear_args){
                     .x = &hidden,
                     .weight = unet->time_linear_2,
                     .activation = ACTIVATION_SILU,
                     .y = &silu_temb,
                 });
    layer_linear(c, &silu_temb, unet->time_add, y);
    arena_release(c->arena, mark);
}

/* Runs a down block. Every result is a skip connection and is not overwritten. */
static void down_block(struct pass *p, const struct block *block) {
    for (int j = 0; j < block->layers; j++) {
        struct tensor *x = &p->skips[p->skip_count - 1]; /* [n][h][w][..] */
        struct tensor *y = &p->skips[p->skip_count++];   /* [n][h][w][channels] */
        *y = new_image(p, x->shape[0], x->shape[1], x->shape[2], block->channels);
        resnet_forward(&block->resnets[j], p->c, x, RESNET_KEEP_INPUT, p->time_add, y);
        if (block->attentions)
            transformer_forward(&block->attentions[j], p->c, y, &p->context);
    }
    if (block->sampler) {
        const struct tensor *x = &p->skips[p->skip_count - 1];
        struct tensor *y = &p->skips[p->skip_count++]; /* [n][h/2, rounded up][..][channels] */
        *y = new_image(p, x->shape[0], conv_out_size(CONV_3X3_DOWN, x->shape[1]),
            conv_out_size(CONV_3X3_DOWN, x->shape[2]), block->channels);
        layer_conv(p->c, x, block->sampler, y);
    }
}

/* Resizes hidden [n][h][w][..] to the size of the next block, which is that of the next skip
 * connection. */
static struct tensor up_block(
    struct pass *p, const struct block *block, const struct tensor *hidden) {
    const int64_t n = hidden->shape[0], h = hidden->shape[1], w = hidden->shape[2];
    struct tensor out = { 0 };
    if (block->sampler) {
        const struct tensor *next = &p->skips[p->skip_count - 1 - block->layers];
        out = new_image(p, n, next->shape[1], next->shape[2], block->channels);
    }
    const size_t mark = arena_mark(p->c->arena);

    /* x: [n][h][w][channels], the input and the output of a resnet. */
    struct tensor x = new_image(p, n, h, w, block->channels);
    for (int j = 0; j < block->layers; j++) {
        const struct tensor *skip = &p->skips[--p->skip_count];
        const struct tensor *before = j ? &x : hidden;
        resnet_forward_joined(&block->resnets[j], p->c, before, skip, p->time_add, &x);
        if (block->attentions)
            transformer_forward(&block->attentions[j], p->c, &x, &p->context);
    }
    if (!block->sampler)
        return x;
    layer_conv(p->c, &x, block->sampler, &out);
    arena_release(p->c->arena, mark);
    return out;
}

/* time_add [n][time_add_channels] */
static void forward(const struct unet *unet, struct compute *c, const struct tensor *latents,
    const struct tensor *time_add, const struct tensor *kv, const struct tensor *lengths,
    struct tensor *y) {
    const struct unet_config *config = &unet->config;
    const int64_t n = latents->shape[0], h = latents->shape[1], w = latents->shape[2];
    const int64_t c0 = config->block_out_channels[0];
    struct pass p = { .unet = unet, .c = c, .time_add = time_add, .context = { kv, lengths } };

    const struct tensor input = layer_to_dtype(c, latents, unet->activation_dtype);
    p.skips[0] = new_image(&p, n, h, w, c0);
    p.skip_count = 1;
    layer_conv(c, &input, unet->conv_in, &p.skips[0]);
    for (int i = 0; i < config->block_count; i++)
        down_block(&p, &unet->down[i]);

    struct tensor *last = &p.skips[p.skip_count - 1];
    struct tensor x = new_image(&p, n, last->shape[1], last->shape[2], last->shape[3]);
    resnet_forward(&unet->mid_resnets[0], c, last, RESNET_KEEP_INPUT, time_add, &x);
    transformer_forward(&unet->mid_attention, c, &x, &p.context);
    resnet_forward(&unet->mid_resnets[1], c, &x, RESNET_KEEP_INPUT, time_add, &x);

    for (int i = 0; i < config->block_count; i++)
        x = up_block(&p, &unet->up[i], &x);

    op_group_norm(c, &(struct group_norm_args){
                         .x = &x,
                         .gamma = &unet->conv_norm_out.gamma,
                         .beta = &unet->conv_norm_out.beta,
                         .groups = config->norm_num_groups,
                         .eps = config->norm_eps,
                         .silu = true,
                         .y = &x,
                     });
    layer_conv_to_dtype(c, &x, unet->conv_out, y);
}

void unet_forward(const struct unet *unet, struct compute *c, const struct tensor *latents,
    const struct tensor *timesteps, const struct tensor *kv, const struct tensor *lengths,
    struct tensor *y) {
    const size_t mark = arena_mark(c->arena);
    struct tensor time_add = compute_tensor_2d(
        c, unet->activation_dtype, latents->shape[0], unet->time_add_channels);
    unet_encode_timesteps(unet, c, timesteps, &time_add);
    forward(unet, c, latents, &time_add, kv, lengths, y);
    arena_release(c->arena, mark);
}

void unet_forward_timed(const struct unet *unet, struct compute *c, const struct tensor *latents,
    const struct tensor *table, const struct tensor *ids, const struct tensor *kv,
    const struct tensor *lengths, struct tensor *y) {
    const size_t mark = arena_mark(c->arena);
    const int64_t n = latents->shape[0], channels = unet->time_add_channels;
    const int64_t pieces = unet_time_pieces(unet);
    struct tensor time_add = compute_tensor_2d(c, unet->activation_dtype, n, channels);
    struct tensor lines = tensor_2d(
        table->data, table->dtype, table->shape[0] * pieces, channels / pieces);
    struct tensor taken = tensor_3d(time_add.data, time_add.dtype, n, pieces, channels / pieces);
    lines.device = table->device;
    taken.device = time_add.device;
    op_embedding(c, &(struct embedding_args){ .ids = ids, .table = &lines, .y = &taken });
    forward(unet, c, latents, &time_add, kv, lengths, y);
    arena_release(c->arena, mark);
}
