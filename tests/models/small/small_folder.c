#include "tests/models/small/small_folder.h"

#include "tests/models/small/small_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 600

static const char *const folders[] = { "text_encoder", "unet", "vae", "scheduler" };

static void must(bool ok, const char *what) {
    if (!ok) {
        printf("the test cannot run: %s\n", what);
        exit(1);
    }
}

/* Writes the JSON and returns it. The caller's reference is passed through. */
static json_t *write_json(const char *path, const char *folder, const char *name, json_t *json) {
    char file[PATH_BYTES];
    snprintf(file, sizeof(file), "%s/%s", path, folder);
    must(mkdir(file, 0755) == 0, file);
    snprintf(file, sizeof(file), "%s/%s/%s", path, folder, name);
    must(json && json_dump_file(json, file, 0) == 0, file);
    return json;
}

/* Writes the tensors that a model asked the source for. */
static void write_weights(const char *path, const char *folder, struct rule_source *source) {
    struct error err = { 0 };
    char file[PATH_BYTES];
    snprintf(file, sizeof(file), "%s/%s/%s.safetensors", path, folder,
        strcmp(folder, "text_encoder") == 0 ? "model" : "diffusion_pytorch_model");
    must(safetensors_write(file, source->items, source->count, NULL, &err), err.message);
    rule_source_finish(source);
}

static void write_text_encoder(const char *path) {
    json_t *json = write_json(path, folders[0], "config.json",
        json_pack("{s:i, s:i, s:i, s:i, s:i, s:i}", "vocab_size", 833, "hidden_size", 32,
            "intermediate_size", 64, "num_hidden_layers", 2, "num_attention_heads", 2,
            "max_position_embeddings", 77));
    struct error err = { 0 };
    struct text_encoder_config config;
    struct text_encoder *model = NULL;
    struct rule_source source = { .gain = 1 };
    const struct weights w = rule_weights(&source, kernels_reference(), DTYPE_F32);
    must(text_encoder_config_parse(json, &config, &err) &&
             text_encoder_create(&config, &w, &model, &err),
        err.message);
    text_encoder_destroy(model);
    json_decref(json);
    write_weights(path, folders[0], &source);
}

static void write_unet(const char *path, const struct small_folder *checkpoint) {
    int channels = checkpoint->latent_channels;
    json_t *json = write_json(path, folders[1], "config.json",
        json_pack("{s:i, s:i, s:i, s:[i,i], s:[s,s], s:[s,s], s:i, s:i, s:i, s:i}", "sample_size",
            checkpoint->sample_size, "in_channels",
            checkpoint->in_channels ? checkpoint->in_channels : channels, "out_channels", channels,
            "block_out_channels", 16, 32, "down_block_types", "CrossAttnDownBlock2D", "DownBlock2D",
            "up_block_types", "UpBlock2D", "CrossAttnUpBlock2D", "layers_per_block", 1,
            "attention_head_dim", 2, "cross_attention_dim", 32, "norm_num_groups", 8));
    struct error err = { 0 };
    struct unet_config config;
    struct unet *model = NULL;
    struct rule_source source = { .gain = 1 };
    const struct weights w = rule_weights(&source, kernels_reference(), DTYPE_F32);
    must(unet_config_parse(json, &config, &err) && unet_create(&config, &w, &model, &err),
        err.message);
    unet_destroy(model);
    json_decref(json);
    write_weights(path, folders[1], &source);
}

static void write_vae(const char *path, const struct small_folder *checkpoint) {
    json_t *channels = json_array(), *down = json_array(), *up = json_array();
    for (int i = 0; i < checkpoint->vae_blocks; i++) {
        json_array_append_new(channels, json_integer(8));
        json_array_append_new(down, json_string("DownEncoderBlock2D"));
        json_array_append_new(up, json_string("UpDecoderBlock2D"));
    }
    json_t *json = write_json(path, folders[2], "config.json",
        json_pack("{s:i, s:o, s:o, s:o, s:i, s:i}", "latent_channels", checkpoint->latent_channels,
            "block_out_channels", channels, "down_block_types", down, "up_block_types", up,
            "layers_per_block", 1, "norm_num_groups", 4));
    struct error err = { 0 };
    struct vae_config config;
    struct vae *model = NULL;
    struct rule_source source = { .gain = 1 };
    const struct weights w = rule_weights(&source, kernels_reference(), DTYPE_F32);
    must(vae_config_parse(json, &config, &err) && vae_create(&config, &w, VAE_BOTH, &model, &err),
        err.message);
    vae_destroy(model);
    json_decref(json);
    write_weights(path, folders[2], &source);
}

void small_folder_write(const char *path, const struct small_folder *checkpoint) {
    char file[PATH_BYTES];
    must(mkdir(path, 0755) == 0, path);
    write_text_encoder(path);
    write_unet(path, checkpoint);
    write_vae(path, checkpoint);
    json_decref(write_json(path, folders[3], "scheduler_config.json",
        json_pack("{s:s, s:f, s:f, s:s}", "_class_name", "DDIMScheduler", "beta_start", 0.00085,
            "beta_end", 0.012, "beta_schedule", "scaled_linear")));
    snprintf(file, sizeof(file), "%s/tokenizer", path);
    must(symlink(BUNDLED_TOKENIZER, file) == 0, file);
}

void small_folder_remove(const char *path) {
    static const char *const files[] = { "model.safetensors", "diffusion_pytorch_model.safetensors",
        "config.json", "scheduler_config.json" };
    char file[PATH_BYTES];
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 4; k++) {
            snprintf(file, sizeof(file), "%s/%s/%s", path, folders[i], files[k]);
            unlink(file);
        }
        snprintf(file, sizeof(file), "%s/%s", path, folders[i]);
        rmdir(file);
    }
    snprintf(file, sizeof(file), "%s/tokenizer", path);
    unlink(file);
    rmdir(path);
}
