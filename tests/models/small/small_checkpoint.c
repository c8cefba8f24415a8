/* Writes a small random checkpoint in both layouts: SD-1.5's blocks and layers with narrow
 * channels, and VOCAB_SIZE tokens.
 *
 * usage: small_checkpoint LDM_NAMES.tsv VOCAB_SIZE OUT
 *
 * OUT/ becomes a diffusers folder without a tokenizer, OUT.safetensors the same weights under the
 * names of the original single file, which data/ldm_names.tsv lists. */
#include "models/checkpoint/checkpoint.h"
#include "tests/models/small/small_models.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_TENSORS 2000

static const struct {
    const char *name, *file, *ldm_prefix;
    const char *config; /* the first one is completed with VOCAB_SIZE */
} parts[3] = {
    { "text_encoder", "model.safetensors", "cond_stage_model.transformer.",
        "{\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2,"
        " \"num_attention_heads\": 1, \"hidden_act\": \"quick_gelu\", \"vocab_size\": " },
    { "unet", "diffusion_pytorch_model.safetensors", "model.diffusion_model.",
        "{\"block_out_channels\": [32, 64, 96, 96], \"attention_head_dim\": 8,"
        " \"cross_attention_dim\": 64, \"sample_size\": 64}" },
    { "vae", "diffusion_pytorch_model.safetensors", "first_stage_model.",
        "{\"block_out_channels\": [32, 64, 96, 96], \"layers_per_block\": 2, \"sample_size\": 512,"
        " \"down_block_types\": [\"DownEncoderBlock2D\", \"DownEncoderBlock2D\","
        " \"DownEncoderBlock2D\", \"DownEncoderBlock2D\"],"
        " \"up_block_types\": [\"UpDecoderBlock2D\", \"UpDecoderBlock2D\", \"UpDecoderBlock2D\","
        " \"UpDecoderBlock2D\"]}" },
};

/* SD-1.5's own scheduler; single files get the same one. */
static const char scheduler[] =
    "{\"_class_name\": \"PNDMScheduler\", \"beta_start\": 0.00085, \"beta_end\": 0.012,"
    " \"beta_schedule\": \"scaled_linear\", \"num_train_timesteps\": 1000, \"clip_sample\": false,"
    " \"set_alpha_to_one\": false, \"skip_prk_steps\": true, \"steps_offset\": 1}";

static void must(bool ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "small_checkpoint: %s\n", what);
        exit(1);
    }
}

static const char *path_of(const char *out, const char *folder, const char *file) {
    static char path[1024];
    snprintf(path, sizeof(path), "%s/%s/%s", out, folder, file);
    return path;
}

static void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    must(file && fputs(text, file) >= 0 && fclose(file) == 0, path);
}

/* Collects the tensors that the model asks for: its file will hold exactly these. */
static void collect(int part, const char *config_text, struct rule_source *source) {
    json_t *json = json_loads(config_text, 0, NULL);
    struct weights w = rule_weights(source, kernels_reference(), DTYPE_F32);
    struct error err = { 0 };
    struct text_encoder_config text;
    struct unet_config unet;
    struct vae_config vae;
    struct text_encoder *text_model = NULL;
    struct unet *unet_model = NULL;
    struct vae *vae_model = NULL;
    w.check_only = true;
    const bool ok = part == 0 ? text_encoder_config_parse(json, &text, &err) &&
                                    text_encoder_create(&text, &w, &text_model, &err)
                    : part == 1 ? unet_config_parse(json, &unet, &err) &&
                                      unet_create(&unet, &w, &unet_model, &err)
                                : vae_config_parse(json, &vae, &err) &&
                                      vae_create(&vae, &w, VAE_BOTH, &vae_model, &err);
    must(ok, err.message);
    text_encoder_destroy(text_model);
    unet_destroy(unet_model);
    vae_destroy(vae_model);
    json_decref(json);
}

/* Returns the single file's name of a component's module, or NULL. */
static const char *ldm_module(FILE *table, const char *component, const char *module) {
    static char ldm[160];
    char line[512], of[32], name[160];
    rewind(table);
    while (fgets(line, sizeof(line), table))
        if (line[0] != '#' && sscanf(line, "%31s %159s %159s", of, name, ldm) == 3 &&
            strcmp(of, component) == 0 && strcmp(name, module) == 0)
            return ldm[0] == '=' ? module : ldm;
    return NULL;
}

/* Whether the original code has a 1x1 convolution where ours has a matrix. */
static bool is_1x1(int part, const char *name) {
    return (part == 1 && (strstr(name, ".proj_in.weight") || strstr(name, ".proj_out.weight"))) ||
           (part == 2 && strstr(name, ".attentions."));
}

static struct safetensors_item ldm_item(
    FILE *table, int part, const struct safetensors_item *item) {
    char module[SAFETENSORS_MAX_NAME_BYTES], *name = NULL;
    snprintf(module, sizeof(module), "%s", item->name);
    char *leaf = strrchr(module, '.');
    *leaf++ = 0;
    const char *ldm = ldm_module(table, parts[part].name, module);
    must(ldm != NULL, item->name);
    must(asprintf(&name, "%s%s.%s", parts[part].ldm_prefix, ldm, leaf) > 0, "no memory");
    struct tensor t = item->tensor;
    if (t.rank == 2 && is_1x1(part, item->name)) {
        t.rank = 4;
        t.shape[2] = t.shape[3] = 1;
    }
    return (struct safetensors_item){ name, t };
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s LDM_NAMES.tsv VOCAB_SIZE OUT\n", argv[0]);
        return 2;
    }
    const char *out = argv[3];
    static struct safetensors_item single[MAX_TENSORS];
    size_t count = 0;
    struct rule_source sources[3];
    struct error err = { 0 };
    FILE *table = fopen(argv[1], "r");
    must(table != NULL, argv[1]);
    must(mkdir(out, 0755) == 0 && mkdir(path_of(out, "scheduler", ""), 0755) == 0, out);
    write_text(path_of(out, "scheduler", "scheduler_config.json"), scheduler);
    for (int part = 0; part < 3; part++) {
        char config[512];
        snprintf(config, sizeof(config), "%s%s%s", parts[part].config, part == 0 ? argv[2] : "",
            part == 0 ? "}" : "");
        sources[part] = (struct rule_source){ .gain = 0.7, .dtype = DTYPE_F16 };
        collect(part, config, &sources[part]);
        must(mkdir(path_of(out, parts[part].name, ""), 0755) == 0, parts[part].name);
        write_text(path_of(out, parts[part].name, "config.json"), config);
        must(safetensors_write(path_of(out, parts[part].name, parts[part].file),
                 sources[part].items, sources[part].count, NULL, &err),
            err.message);
        must(count + sources[part].count <= MAX_TENSORS, "too many tensors");
        for (size_t i = 0; i < sources[part].count; i++)
            single[count++] = ldm_item(table, part, &sources[part].items[i]);
    }
    char path[1024];
    snprintf(path, sizeof(path), "%s.safetensors", out);
    must(safetensors_write(path, single, count, NULL, &err), err.message);
    printf("%zu tensors in %s and %s\n", count, out, path);
    for (size_t i = 0; i < count; i++)
        free((char *)single[i].name);
    for (int part = 0; part < 3; part++)
        rule_source_finish(&sources[part]);
    fclose(table);
    return 0;
}
