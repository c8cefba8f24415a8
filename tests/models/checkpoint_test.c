/* Both layouts of a checkpoint against the published list of SD-1.5's tensors. The files have their
 * full size but are sparse: every name, shape and offset is real, and the numbers are holes. */
#include "base/file.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/ldm_names.h"
#include "models/checkpoint/safetensors.h"
#include "tests/check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct row {
    enum component component;
    char name[128], ldm_name[160];
    int rank;
    int64_t shape[4];
};

static struct row rows[2000];
static int row_count;
static char folder[] = "/tmp/latentd-test-XXXXXX";

static const char *const ldm_prefixes[] = { "cond_stage_model.transformer.",
    "model.diffusion_model.", "first_stage_model." };

static void add_row(
    const char *component, const char *name, const char *ldm, const char *leaf, const char *shape) {
    struct row *row = &rows[row_count++];
    row->component = component[0] == 'u'   ? COMPONENT_UNET
                     : component[0] == 'v' ? COMPONENT_VAE
                                           : COMPONENT_TEXT_ENCODER;
    snprintf(row->name, sizeof(row->name), "%s.%s", name, leaf);
    snprintf(row->ldm_name, sizeof(row->ldm_name), "%s%s.%s", ldm_prefixes[row->component],
        ldm[0] == '=' ? name : ldm, leaf);
    for (char *at = (char *)shape; *at; at += *at == 'x')
        row->shape[row->rank++] = strtoll(at, &at, 10);
}

static void read_rows(const char *path) {
    char line[512], component[32], name[128], ldm[128], weight[64], bias[64];
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof(line), f)) {
        if (line[0] == '#' ||
            sscanf(line, "%31s %127s %127s %63s %63s", component, name, ldm, weight, bias) != 5)
            continue;
        add_row(component, name, ldm, "weight", weight);
        if (bias[0] != '-')
            add_row(component, name, ldm, "bias", bias);
    }
    if (f)
        fclose(f);
    CHECK(row_count == 1130, "%d rows", row_count);
}

struct made {
    const char *path;
    json_t *header;
    uint64_t offset;
};

static struct made make_start(const char *path) {
    return (struct made){ path, json_object(), 0 };
}

static void make_add_raw(
    struct made *made, const char *name, const char *dtype, int rank, const int64_t *shape) {
    uint64_t bytes = strcmp(dtype, "I64") == 0 ? 8 : strcmp(dtype, "F32") == 0 ? 4 : 2;
    json_t *sizes = json_array();
    for (int i = 0; i < rank; i++) {
        json_array_append_new(sizes, json_integer(shape[i]));
        bytes *= (uint64_t)shape[i];
    }
    json_object_set_new(made->header, name,
        json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype, "shape", sizes, "data_offsets",
            (json_int_t)made->offset, (json_int_t)(made->offset + bytes)));
    made->offset += bytes;
}

/* Writes the header and a hole for the data. A nonzero `tail` replaces the last 8 bytes. */
static void make_finish(struct made *made, int64_t tail) {
    char *text = json_dumps(made->header, JSON_COMPACT);
    uint64_t size = strlen(text);
    FILE *f = fopen(made->path, "wb");
    fwrite(&size, 8, 1, f);
    fwrite(text, 1, size, f);
    fflush(f);
    CHECK(ftruncate(fileno(f), (off_t)(8 + size + made->offset)) == 0, "%s", made->path);
    if (tail) {
        fseek(f, -8, SEEK_END);
        fwrite(&tail, 8, 1, f);
    }
    fclose(f);
    free(text);
    json_decref(made->header);
}

static const char *in_folder(const char *name) {
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static void write_text(const char *path, const char *text) {
    struct file_part part = { text, strlen(text) };
    struct error err = { 0 };
    CHECK(file_write(path, &part, 1, &err), "%s", err.message);
}

static bool nothing_is_left(struct checkpoint *c, enum component component, struct error *err) {
    const struct weights w = weights_from_checkpoint(c, component, kernels_reference(), DTYPE_F32);
    return w.end(w.user, err);
}

/* Every tensor of the list is found by its diffusers name, and the file has no others. */
static void all_rows_are_there(struct checkpoint *c, enum dtype dtype) {
    struct error err = { 0 };
    int found = 0;
    for (int i = 0; i < row_count; i++) {
        struct tensor t;
        bool ok = checkpoint_tensor(
            c, rows[i].component, rows[i].name, rows[i].rank, rows[i].shape, &t, &err);
        CHECK(ok, "%s", err.message);
        found += ok && t.dtype == dtype && t.rank == rows[i].rank;
    }
    CHECK(found == row_count, "%d of %d", found, row_count);
    for (int i = 0; i < 3; i++)
        CHECK(nothing_is_left(c, (enum component)i, &err), "%s", err.message);
    printf("%d of %d tensors under their diffusers names\n", found, row_count);
}

static void sd15_configs(const struct checkpoint *c) {
    const struct unet_config *unet = checkpoint_unet_config(c);
    const struct vae_config *vae = checkpoint_vae_config(c);
    const struct text_encoder_config *text = checkpoint_text_encoder_config(c);
    static const int unet_widths[4] = { 320, 640, 1280, 1280 };
    static const int vae_widths[4] = { 128, 256, 512, 512 };
    CHECK(unet->in_channels == 4 && unet->out_channels == 4 && unet->block_count == 4, "unet");
    CHECK(unet->layers_per_block == 2 && unet->cross_attention_dim == 768 &&
              !unet->use_linear_projection && unet->norm_num_groups == 32,
        "unet");
    CHECK(vae->block_count == 4 && vae->layers_per_block == 2 && vae->latent_channels == 4, "vae");
    CHECK_NEAR(vae->scaling_factor, 0.18215, 1e-7);
    for (int i = 0; i < 4; i++) {
        CHECK(unet->block_out_channels[i] == unet_widths[i], "%d", unet->block_out_channels[i]);
        CHECK(unet->heads[i] == 8, "%d", unet->heads[i]);
        CHECK(unet->down_has_attention[i] == (i < 3), "down %d", i);
        CHECK(unet->up_has_attention[i] == (i > 0), "up %d", i);
        CHECK(vae->block_out_channels[i] == vae_widths[i], "%d", vae->block_out_channels[i]);
    }
    CHECK(text->vocab_size == 49408 && text->hidden_size == 768 && text->num_hidden_layers == 12 &&
              text->num_attention_heads == 12 && text->intermediate_size == 3072 &&
              text->max_position_embeddings == 77 && text->hidden_act == ACTIVATION_QUICK_GELU,
        "text encoder");
}

static struct checkpoint *open_checkpoint(const char *path) {
    struct checkpoint *c = NULL;
    struct error err = { 0 };
    CHECK(checkpoint_open(path, NULL, &c, &err), "%s", err.message);
    return c;
}

static void expect_error(const char *path, const char *words) {
    struct checkpoint *c = NULL;
    struct error err = { 0 };
    CHECK(!checkpoint_open(path, NULL, &c, &err), "opened instead of refused with: %s", words);
    CHECK_CONTAINS(err.message, words);
    checkpoint_close(c);
}

/* The beginning of a file from torch.save: protocol 2, then a long integer that marks torch's
 * files. */
static const char torch_pickle[] = "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.";

/* How a single file differs from the published one. */
struct variation {
    bool short_text_names; /* without "text_model." */
    bool vae_matrices_1x1; /* VAE attention as the original code stores it */
    const char *leave_out; /* a diffusers name */
    const char *extra;     /* a name to add */
    const char *misshapen; /* a diffusers name whose first dimension grows by one */
};

static const char *make_single_file(const struct variation *v) {
    struct made made = make_start(in_folder("sd15.safetensors"));
    for (int i = 0; i < row_count; i++) {
        const struct row *row = &rows[i];
        char name[200];
        int rank = row->rank;
        int64_t shape[4] = { row->shape[0], row->shape[1], row->shape[2], row->shape[3] };
        snprintf(name, sizeof(name), "%s", row->ldm_name);
        if (v->leave_out && strcmp(row->name, v->leave_out) == 0)
            continue;
        if (v->misshapen && strcmp(row->name, v->misshapen) == 0)
            shape[0]++;
        if (v->short_text_names && row->component == COMPONENT_TEXT_ENCODER)
            snprintf(
                name, sizeof(name), "%s%s", ldm_prefixes[0], row->name + strlen("text_model."));
        if (v->vae_matrices_1x1 && row->component == COMPONENT_VAE && rank == 2) {
            rank = 4;
            shape[2] = shape[3] = 1;
        }
        make_add_raw(&made, name, "F16", rank, shape);
    }
    int64_t one = 1;
    make_add_raw(&made, "model_ema.decay", "F32", 0, NULL);
    make_add_raw(&made, "alphas_cumprod", "F32", 1, &one);
    make_add_raw(
        &made, "cond_stage_model.transformer.text_model.embeddings.position_ids", "I64", 1, &one);
    if (v->extra)
        make_add_raw(&made, v->extra, "F16", 1, &one);
    const char *path = made.path;
    make_finish(&made, 0);
    return path;
}

static void single_file_maps_every_tensor(void) {
    static const struct variation variations[] = { { 0 },
        { .short_text_names = true, .vae_matrices_1x1 = true } };
    for (size_t i = 0; i < 2; i++) {
        const char *path = make_single_file(&variations[i]);
        struct checkpoint *c = open_checkpoint(path);
        if (!c)
            return;
        CHECK(checkpoint_is_single_file(c) && !checkpoint_tokenizer_dir(c),
            "the single file is not recognized, or has a tokenizer's folder");
        all_rows_are_there(c, DTYPE_F16);
        sd15_configs(c);
        const json_t *scheduler = checkpoint_scheduler_json(c);
        CHECK_STRING(json_string_value(json_object_get(scheduler, "_class_name")), "PNDMScheduler");
        CHECK_STRING(json_string_value(json_object_get(scheduler, "prediction_type")), "epsilon");
        CHECK(json_integer_value(json_object_get(scheduler, "steps_offset")) == 1, "steps_offset");
        struct checkpoint_stats stats;
        checkpoint_get_stats(c, COMPONENT_UNET, &stats);
        CHECK(stats.parameters == 859520964 && stats.tensors == 686, "%llu",
            (unsigned long long)stats.parameters);
        checkpoint_get_stats(c, COMPONENT_VAE, &stats);
        CHECK(stats.parameters == 83653863, "%llu", (unsigned long long)stats.parameters);
        checkpoint_close(c);
    }
}

/* Checks the translation of the UNet's diffusers names into LDM's. Adapters with LDM's names find
 * their layers through it. */
static void layers_have_ldm_names(void) {
    char layer[128], ldm[160], wanted[160];
    int compared = 0;
    for (int i = 0; i < row_count; i++) {
        const char *leaf = strrchr(rows[i].name, '.');
        if (rows[i].component != COMPONENT_UNET || strcmp(leaf, ".weight") != 0)
            continue;
        snprintf(layer, sizeof(layer), "%.*s", (int)(leaf - rows[i].name), rows[i].name);
        snprintf(wanted, sizeof(wanted), "%s", rows[i].ldm_name + strlen(ldm_prefixes[1]));
        wanted[strlen(wanted) - strlen(leaf)] = 0;
        /* SD-1.5's first up block has no attention. */
        const bool attends = strncmp(layer, "up_blocks.0.", 12) != 0;
        CHECK(ldm_unet_layer(layer, 2, attends, ldm, sizeof(ldm)), "%s", layer);
        CHECK(strcmp(ldm, wanted) == 0, "%s is called %s, not %s", layer, ldm, wanted);
        compared++;
    }
    CHECK(!ldm_unet_layer("text_model.final_layer_norm", 2, false, ldm, sizeof(ldm)), "%s", ldm);
    CHECK(compared == 391, "%d", compared);
    printf("%d layers of the UNet have their LDM names\n", compared);
}

/* A diffusers name must also lead to the right tensor: its bytes are those of the LDM name. */
static void single_file_bytes_follow_names(void) {
    const char *path = make_single_file(&(struct variation){ 0 });
    struct safetensors *file = NULL;
    struct error err = { 0 };
    struct checkpoint *c = open_checkpoint(path);
    CHECK(safetensors_open(path, &file, &err), "%s", err.message);
    if (!c || !file)
        return;
    struct tensor first, a, b;
    ptrdiff_t base = safetensors_find(file, rows[0].ldm_name);
    CHECK(safetensors_view(file, (size_t)base, &first, &err), "%s", err.message);
    struct tensor first_in_checkpoint;
    CHECK(checkpoint_tensor(c, rows[0].component, rows[0].name, rows[0].rank, rows[0].shape,
              &first_in_checkpoint, &err),
        "%s", err.message);
    int same = 0;
    for (int i = 0; i < row_count; i++) {
        ptrdiff_t at = safetensors_find(file, rows[i].ldm_name);
        if (at < 0 || !safetensors_view(file, (size_t)at, &a, &err) ||
            !checkpoint_tensor(
                c, rows[i].component, rows[i].name, rows[i].rank, rows[i].shape, &b, &err))
            continue;
        same += (const char *)a.data - (const char *)first.data ==
                (const char *)b.data - (const char *)first_in_checkpoint.data;
    }
    CHECK(same == row_count, "%d of %d tensors are the file's own", same, row_count);
    safetensors_close(file);
    checkpoint_close(c);
}

static void wrong_tensors_are_named(void) {
    static const char conv_out[] = "conv_out.bias";
    struct tensor t;
    struct error err = { 0 };
    int64_t four = 4;
    struct checkpoint *c = open_checkpoint(
        make_single_file(&(struct variation){ .leave_out = conv_out }));
    CHECK(!checkpoint_tensor(c, COMPONENT_UNET, conv_out, 1, &four, &t, &err),
        "a missing tensor is found");
    CHECK_STRING(err.message, "tensor conv_out.bias [4] is missing");
    CHECK(!nothing_is_left(c, COMPONENT_UNET, &err),
        "tensors that nothing has used are not reported");
    CHECK_CONTAINS(err.message, "685 tensors that the config has no place for: conv_in.bias");
    checkpoint_close(c);
    c = open_checkpoint(make_single_file(&(struct variation){ .misshapen = conv_out }));
    CHECK(!checkpoint_tensor(c, COMPONENT_UNET, conv_out, 1, &four, &t, &err),
        "a tensor of another shape is accepted");
    CHECK_STRING(err.message, "tensor conv_out.bias has the shape [5]; the config asks for "
                              "[4] (in the file: model.diffusion_model.out.2.bias)");
    checkpoint_close(c);
    expect_error(make_single_file(&(struct variation){ .leave_out = "conv_in.weight" }),
        "unet: tensor conv_in.weight is missing");
    expect_error(
        make_single_file(&(struct variation){ .extra = "control_model.zero_convs.0.bias" }),
        "1 tensor of a single-file checkpoint that nothing has a place for: control_model");
    expect_error(
        make_single_file(&(struct variation){ .extra = "model.diffusion_model.input_blocks.x" }),
        "nothing has a place for: model.diffusion_model.input_blocks.x");
    struct made made = make_start(in_folder("lora.safetensors"));
    make_add_raw(&made, "lora_unet_mid.lora_up.weight", "F16", 1, &four);
    make_finish(&made, 0);
    expect_error(in_folder("lora.safetensors"),
        "not a single-file checkpoint: it has no tensors of "
        "the text_encoder (1 tensors in all, for example "
        "lora_unet_mid.lora_up.weight)");
    write_text(in_folder("old.ckpt"), torch_pickle);
    expect_error(
        in_folder("old.ckpt"), "is a pickle, which can run code; only safetensors is read");
    expect_error(in_folder("none.safetensors"), "No such file or directory");
}

/* SD-2: OpenCLIP's stacked q, k, v; linear projections; the last text layer dropped. */
static const char *make_sd2(int64_t global_step, int in_channels) {
    struct made made = make_start(in_folder("sd2.safetensors"));
    const char *clip = "cond_stage_model.model.";
    char name[200];
    for (int i = 0; i < row_count; i++) {
        struct row row = rows[i];
        if (row.component == COMPONENT_TEXT_ENCODER)
            continue;
        if (row.component == COMPONENT_UNET && row.rank == 2 && row.shape[1] == 768)
            row.shape[1] = 1024;
        if (strstr(row.name, ".proj_in.weight") || strstr(row.name, ".proj_out.weight"))
            row.rank = 2;
        if (strcmp(row.name, "conv_in.weight") == 0)
            row.shape[1] = in_channels;
        make_add_raw(&made, row.ldm_name, "F16", row.rank, row.shape);
    }
    static const struct {
        const char *name;
        int rank;
        int64_t shape[2];
    } leafs[] = { { "ln_1.weight", 1, { 1024 } }, { "ln_1.bias", 1, { 1024 } },
        { "ln_2.weight", 1, { 1024 } }, { "ln_2.bias", 1, { 1024 } },
        { "attn.in_proj_weight", 2, { 3072, 1024 } }, { "attn.in_proj_bias", 1, { 3072 } },
        { "attn.out_proj.weight", 2, { 1024, 1024 } }, { "attn.out_proj.bias", 1, { 1024 } },
        { "mlp.c_fc.weight", 2, { 4096, 1024 } }, { "mlp.c_fc.bias", 1, { 4096 } },
        { "mlp.c_proj.weight", 2, { 1024, 4096 } }, { "mlp.c_proj.bias", 1, { 1024 } } },
      plain[] = { { "token_embedding.weight", 2, { 49408, 1024 } },
          { "positional_embedding", 2, { 77, 1024 } }, { "ln_final.weight", 1, { 1024 } },
          { "ln_final.bias", 1, { 1024 } }, { "text_projection", 2, { 1024, 1024 } },
          { "logit_scale", 0, { 0 } } };
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        snprintf(name, sizeof(name), "%s%s", clip, plain[i].name);
        make_add_raw(&made, name, "F16", plain[i].rank, plain[i].shape);
    }
    for (int layer = 0; layer < 24; layer++)
        for (size_t i = 0; i < sizeof(leafs) / sizeof(leafs[0]); i++) {
            snprintf(
                name, sizeof(name), "%stransformer.resblocks.%d.%s", clip, layer, leafs[i].name);
            make_add_raw(&made, name, "F16", leafs[i].rank, leafs[i].shape);
        }
    if (global_step)
        make_add_raw(&made, "global_step", "I64", 0, NULL);
    const char *path = made.path;
    make_finish(&made, global_step);
    return path;
}

static void expect_prediction(int64_t global_step, int in_channels, const char *type) {
    struct checkpoint *c = open_checkpoint(make_sd2(global_step, in_channels));
    if (!c)
        return;
    CHECK_STRING(
        json_string_value(json_object_get(checkpoint_scheduler_json(c), "prediction_type")), type);
    CHECK_CONTAINS(checkpoint_note(c), type);
    CHECK(checkpoint_unet_config(c)->in_channels == in_channels, "in_channels");
    checkpoint_close(c);
}

static void sd2_is_told_by_its_shapes(void) {
    struct checkpoint *c = open_checkpoint(make_sd2(0, 4));
    if (!c)
        return;
    const struct unet_config *unet = checkpoint_unet_config(c);
    const struct text_encoder_config *text = checkpoint_text_encoder_config(c);
    static const int heads[4] = { 5, 10, 20, 20 };
    for (int i = 0; i < 4; i++)
        CHECK(unet->heads[i] == heads[i], "heads %d: %d", i, unet->heads[i]);
    CHECK(unet->use_linear_projection && unet->cross_attention_dim == 1024, "unet");
    CHECK(text->num_hidden_layers == 23 && text->hidden_size == 1024 &&
              text->num_attention_heads == 16 && text->hidden_act == ACTIVATION_GELU,
        "text encoder: %d layers", text->num_hidden_layers);
    struct checkpoint_stats stats;
    checkpoint_get_stats(c, COMPONENT_TEXT_ENCODER, &stats);
    CHECK(stats.parameters == 340387840 && stats.tensors == 372, "%llu parameters, %zu tensors",
        (unsigned long long)stats.parameters, stats.tensors);
    checkpoint_get_stats(c, COMPONENT_UNET, &stats);
    CHECK(stats.parameters == 865910724, "%llu", (unsigned long long)stats.parameters);
    static const char *const parts[] = { "q", "k", "v" };
    static const int64_t matrix[2] = { 1024, 1024 };
    struct tensor t[3];
    struct error err = { 0 };
    for (int i = 0; i < 3; i++) {
        char name[128];
        snprintf(
            name, sizeof(name), "text_model.encoder.layers.22.self_attn.%s_proj.weight", parts[i]);
        CHECK(checkpoint_tensor(c, COMPONENT_TEXT_ENCODER, name, 2, matrix, &t[i], &err), "%s",
            err.message);
    }
    CHECK((char *)t[1].data - (char *)t[0].data == 1024 * 1024 * 2 &&
              (char *)t[2].data - (char *)t[1].data == 1024 * 1024 * 2,
        "q, k and v are not next to each other in memory");
    checkpoint_close(c);
    expect_prediction(0, 4, "v_prediction");
    expect_prediction(110000, 4, "v_prediction");
    expect_prediction(875000, 4, "epsilon");
    expect_prediction(0, 9, "epsilon");
}

static const char *const config_texts[3] = {
    "{\"vocab_size\":49408,\"hidden_size\":768,\"intermediate_size\":3072,"
    "\"num_hidden_layers\":12,\"num_attention_heads\":12,\"hidden_act\":\"quick_gelu\"}",
    "{\"_class_name\":\"UNet2DConditionModel\",\"act_fn\":\"silu\",\"attention_head_dim\":8,"
    "\"block_out_channels\":[320,640,1280,1280],\"center_input_sample\":false,"
    "\"cross_attention_dim\":768,\"down_block_types\":[\"CrossAttnDownBlock2D\","
    "\"CrossAttnDownBlock2D\",\"CrossAttnDownBlock2D\",\"DownBlock2D\"],\"downsample_padding\":1,"
    "\"flip_sin_to_cos\":true,\"freq_shift\":0,\"in_channels\":4,\"layers_per_block\":2,"
    "\"mid_block_scale_factor\":1,\"norm_eps\":1e-05,\"norm_num_groups\":32,\"out_channels\":4,"
    "\"sample_size\":64,\"up_block_types\":[\"UpBlock2D\",\"CrossAttnUpBlock2D\","
    "\"CrossAttnUpBlock2D\",\"CrossAttnUpBlock2D\"]}",
    "{\"_class_name\":\"AutoencoderKL\",\"act_fn\":\"silu\",\"block_out_channels\":[128,256,512,"
    "512],"
    "\"down_block_types\":[\"DownEncoderBlock2D\",\"DownEncoderBlock2D\",\"DownEncoderBlock2D\","
    "\"DownEncoderBlock2D\"],\"latent_channels\":4,\"layers_per_block\":2,\"sample_size\":512,"
    "\"up_block_types\":[\"UpDecoderBlock2D\",\"UpDecoderBlock2D\",\"UpDecoderBlock2D\","
    "\"UpDecoderBlock2D\"]}",
};

/* Turns the names of the VAE's attention into those of 2022. */
static void old_vae_name(char *name, size_t size) {
    static const char *const leafs[][2] = { { ".to_q.", ".query." }, { ".to_k.", ".key." },
        { ".to_v.", ".value." }, { ".to_out.0.", ".proj_attn." } };
    for (int i = 0; i < 4; i++) {
        char *at = strstr(name, leafs[i][0]), rest[64];
        if (!at)
            continue;
        snprintf(rest, sizeof(rest), "%s", at + strlen(leafs[i][0]));
        snprintf(at, size - (size_t)(at - name), "%s%s", leafs[i][1], rest);
    }
}

/* Makes a folder with the text encoder in one file without "text_model.", the UNet in two shards,
 * and the VAE as the fp16 variant. */
static void make_folder(const char *path) {
    char file[600], name[200];
    mkdir(path, 0755);
    for (int i = 0; i < 3; i++) {
        snprintf(file, sizeof(file), "%s/%s", path, component_name((enum component)i));
        mkdir(file, 0755);
        snprintf(file, sizeof(file), "%s/%s/config.json", path, component_name((enum component)i));
        write_text(file, config_texts[i]);
    }
    snprintf(file, sizeof(file), "%s/scheduler", path);
    mkdir(file, 0755);
    snprintf(file, sizeof(file), "%s/scheduler/scheduler_config.json", path);
    write_text(file, "{\"_class_name\":\"DDIMScheduler\"}");
    static const char *const shards[] = { "diffusion_pytorch_model-00001-of-00002.safetensors",
        "diffusion_pytorch_model-00002-of-00002.safetensors" };
    char files[4][600];
    snprintf(files[0], 600, "%s/text_encoder/model.safetensors", path);
    snprintf(files[1], 600, "%s/unet/%s", path, shards[0]);
    snprintf(files[2], 600, "%s/unet/%s", path, shards[1]);
    snprintf(files[3], 600, "%s/vae/diffusion_pytorch_model.fp16.safetensors", path);
    struct made made[4] = { make_start(files[0]), make_start(files[1]), make_start(files[2]),
        make_start(files[3]) };
    json_t *map = json_object();
    for (int i = 0; i < row_count; i++) {
        int which = rows[i].component == COMPONENT_TEXT_ENCODER ? 0
                    : rows[i].component == COMPONENT_VAE        ? 3
                                                                : 1 + i % 2;
        snprintf(name, sizeof(name), "%s", rows[i].name + (which == 0 ? strlen("text_model.") : 0));
        if (which == 3)
            old_vae_name(name, sizeof(name));
        make_add_raw(&made[which], name, "F16", rows[i].rank, rows[i].shape);
        if (which == 1 || which == 2)
            json_object_set_new(map, name, json_string(shards[which - 1]));
    }
    for (int i = 0; i < 4; i++)
        make_finish(&made[i], 0);
    json_t *index = json_pack("{s:o}", "weight_map", map);
    char *text = json_dumps(index, 0);
    snprintf(file, sizeof(file), "%s/unet/diffusion_pytorch_model.safetensors.index.json", path);
    write_text(file, text);
    free(text);
    json_decref(index);
}

static void folder_gives_every_tensor(const char *path) {
    make_folder(path);
    struct checkpoint *c = open_checkpoint(path);
    if (!c)
        return;
    all_rows_are_there(c, DTYPE_F16);
    sd15_configs(c);
    CHECK_STRING(json_string_value(json_object_get(checkpoint_scheduler_json(c), "_class_name")),
        "DDIMScheduler");
    checkpoint_close(c);
}

static void broken_configs_are_named(const char *path) {
    char file[600];
    snprintf(file, sizeof(file), "%s/unet/config.json", path);
    static const struct {
        const char *config, *words;
    } configs[] = {
        { "{\"act_fn\":\"gelu\"}", "unet config: act_fn is \"gelu\"; supported: \"silu\"" },
        { "{\"class_embed_type\":\"timestep\"}",
            "class_embed_type is \"timestep\"; supported: no" },
        { "{\"down_block_types\":[\"SimpleCrossAttnDownBlock2D\",\"DownBlock2D\",\"DownBlock2D\","
          "\"DownBlock2D\"]}",
            "down_block_types is \"SimpleCrossAttnDownBlock2D\"; supported: DownBlock2D" },
        { "{\"block_out_channels\":[]}", "a list of 1 to 8 sizes" },
        { "{\"block_out_channels\":[1,2,3,4,5,6,7,8,9]}", "a list of 1 to 8 sizes" },
        { "{\"block_out_channels\":[320,640,1280,1281]}", "not a multiple of norm_num_groups, 32" },
        { "{\"attention_head_dim\":[8,8]}", "attention_head_dim is [8,8]; one value, or one per" },
        { "{\"attention_head_dim\":7}", "not a multiple of attention_head_dim, 7" },
        { "{\"in_channels\":-1}", "in_channels is -1; an integer from 1 to 1048576 is needed" },
        { "{\"in_channels\":4.5}", "in_channels is 4.5" },
        { "{\"norm_eps\":\"x\"}", "norm_eps is \"x\"; a number from 0 to 1 is needed" },
        { "[]", "the config is not a JSON object" },
    };
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        write_text(file, configs[i].config);
        expect_error(path, configs[i].words);
    }
    write_text(file, config_texts[1]);
    static const struct {
        const char *component, *config, *words;
    } others[] = {
        { "unet", "{\"norm_eps\":1e300}", "e300; a number from 0 to 1 is needed" },
        { "unet", "{\"norm_eps\":-1e-5}", "e-5; a number from 0 to 1 is needed" },
        { "unet", "{\"freq_shift\":1e300}", "freq_shift is 1e300" },
        { "vae", "{\"scaling_factor\":1e300}", "e300; a number from 0.0001 to 10000 is needed" },
        { "vae", "{\"scaling_factor\":1e-300}", "e-300; a number from" },
        { "vae", "{\"scaling_factor\":0}", "scaling_factor is 0" },
        { "text_encoder", "{\"layer_norm_eps\":1e300}", "e300; a number from 0 to 1 is needed" },
        { "text_encoder", "{\"eos_token_id\":49408}",
            "eos_token_id is 49408; a token below vocab_size, 49408, is needed" },
        { "text_encoder", "{\"eos_token_id\":-1}", "eos_token_id is -1; a token" },
        { "text_encoder", "{\"bos_token_id\":\"x\"}", "bos_token_id is \"x\"; a token" },
        { "text_encoder", "{\"pad_token_id\":1.5}", "pad_token_id is 1.5; a token" },
    };
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        const int part = others[i].component[0] == 'u' ? 1 : others[i].component[0] == 'v' ? 2 : 0;
        snprintf(file, sizeof(file), "%s/%s/config.json", path, others[i].component);
        write_text(file, others[i].config);
        expect_error(path, others[i].words);
        write_text(file, config_texts[part]);
    }
}

static void broken_folders_are_named(const char *path) {
    char file[600], other[600];
    snprintf(file, sizeof(file), "%s/unet/diffusion_pytorch_model.safetensors.index.json", path);
    write_text(file, "{\"weight_map\":{\"x\":\"../../etc/passwd\"}}");
    expect_error(path, "\"../../etc/passwd\" is not the name of a file in this folder");
    write_text(
        file, "{\"weight_map\":{\"x\":\"diffusion_pytorch_model-00001-of-00002.safetensors\"}}");
    expect_error(path, "tensor x is not in diffusion_pytorch_model-00001-of-00002.safetensors");
    unlink(file);
    expect_error(path, "unet has no weights: looked for diffusion_pytorch_model.safetensors");
    snprintf(file, sizeof(file), "%s/unet/diffusion_pytorch_model.bin", path);
    write_text(file, "not a pickle, whatever its name");
    expect_error(path, "unet has no weights: looked for diffusion_pytorch_model.safetensors");
    write_text(file, torch_pickle);
    expect_error(path, "unet has its weights as diffusion_pytorch_model.bin, a pickle, which can "
                       "run code; only safetensors is read");
    snprintf(file, sizeof(file), "%s/unet/diffusion_pytorch_model.safetensors", path);
    CHECK(symlink("../blobs/1234", file) == 0, "%s", file);
    expect_error(path, "unet/diffusion_pytorch_model.safetensors is a link to ../blobs/1234, which "
                       "is not there");
    unlink(file);
    snprintf(file, sizeof(file), "%s/model_index.json", path);
    write_text(file, "{\"unet\":[\"diffusers\",\"UNet3DConditionModel\"]}");
    expect_error(path, "unet is a UNet3DConditionModel; supported: UNet2DConditionModel");
    write_text(file, "[1]");
    expect_error(path, "model_index.json is [1]; an object is needed");
    write_text(file, "{\"unet\":5}");
    expect_error(path, "model_index.json: unet is 5; [library, class] is needed");
    write_text(file, "{\"text_encoder_2\":[\"transformers\",\"CLIPTextModelWithProjection\"]}");
    expect_error(path, "text_encoder_2 is a CLIPTextModelWithProjection");
    unlink(file);
    snprintf(file, sizeof(file), "%s/vae", path);
    snprintf(other, sizeof(other), "%s/vae2", path);
    CHECK(rename(file, other) == 0, "%s", other);
    snprintf(file, sizeof(file), "%s/unet/diffusion_pytorch_model.safetensors", path);
    write_text(file, "x");
    expect_error(path, "the file has 1 bytes; a safetensors file has at least 8");
    expect_error(folder, "is not a checkpoint: there is neither a model_index.json nor a folder");
}

int main(int argc, char **argv) {
    if (argc != 2 || !mkdtemp(folder)) {
        fprintf(stderr, "usage: %s SD15_TENSORS.tsv\n", argv[0]);
        return 2;
    }
    char path[300], command[300];
    snprintf(path, sizeof(path), "%s/diffusers", folder);
    read_rows(argv[1]);
    single_file_maps_every_tensor();
    single_file_bytes_follow_names();
    layers_have_ldm_names();
    wrong_tensors_are_named();
    sd2_is_told_by_its_shapes();
    folder_gives_every_tensor(path);
    broken_configs_are_named(path);
    broken_folders_are_named(path);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    CHECK(system(command) == 0, "%s", command);
    return check_done();
}
