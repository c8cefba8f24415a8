/* What `latentd inspect` prints about adapters of every format, with tensor names as each format's
 * own tools write them, and about files that are not adapters. */
#include "command/inspect_checkpoint.h"
#include "models/checkpoint/safetensors.h"
#include "tests/check.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/latentd-test-XXXXXX";
static char path[300];

/* Returns what inspect prints for a file of f32 tensors with these names: all zeros, except that
 * each alpha is 8. */
static const char *inspect(const char *const *names, int rank, const char *key, const char *value) {
    static char text[8192];
    static float zeros[64 * 64], eight = 8;
    struct safetensors_item items[16];
    size_t count = 0;
    struct error err = { 0 };
    for (; names[count]; count++) {
        const char *name = names[count];
        struct tensor *t = &items[count].tensor;
        bool down = strstr(name, "down") || strstr(name, "lora_A") || strstr(name, "w1_b");
        memset(t, 0, sizeof(*t));
        items[count].name = name;
        t->dtype = DTYPE_F32;
        t->data = zeros;
        t->rank = 2;
        t->shape[0] = down ? rank : 16;
        t->shape[1] = down ? 16 : rank;
        if (strstr(name, ".alpha")) {
            t->rank = 0;
            t->data = &eight;
        }
    }
    json_t *metadata = key ? json_pack("{s:s}", key, value) : NULL;
    CHECK(safetensors_write(path, items, count, metadata, &err), "%s", err.message);
    json_decref(metadata);
    FILE *out = fmemopen(text, sizeof(text), "w");
    CHECK(inspect_print(out, path, &err), "%s", err.message);
    fclose(out);
    return text;
}

static void adapter_formats_are_told_apart(void) {
    static const struct {
        const char *names[8], *words[4];
    } cases[] = {
        { { "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q.lora_down.weight",
              "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q.lora_up.weight",
              "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q.alpha",
              "lora_te_text_model_encoder_layers_0_mlp_fc1.lora_down.weight",
              "lora_te_text_model_encoder_layers_0_mlp_fc1.lora_up.weight",
              "lora_te_text_model_encoder_layers_0_mlp_fc1.alpha" },
            { "format      kohya\n", "rank        4 (2)\n", "alpha       8 (2)\n",
                "2 (1 of the unet, 1 of the text encoder)" } },
        { { "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_out.0.lora_A.weight",
              "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_out.0.lora_B.weight" },
            { "format      peft (lora_A, lora_B)\n", "alpha       not stored", "kind        LoRA\n",
                "targets     to_out_0 (1)\n" } },
        { { "base_model.model.mid_block.attentions.0.proj_in.lora_A.weight",
              "base_model.model.mid_block.attentions.0.proj_in.lora_B.weight",
              "base_model.model.mid_block.attentions.0.proj_in.lora_magnitude_vector" },
            { "format      PEFT directory\n", "DoRA", "proj_in (1)", "1 of the unet" } },
        { { "unet.mid_block.attentions.0.transformer_blocks.0.attn2.to_k.lora.down.weight",
              "unet.mid_block.attentions.0.transformer_blocks.0.attn2.to_k.lora.up.weight",
              "text_encoder.text_model.encoder.layers.0.self_attn.q_proj.lora_linear_layer.down."
              "weight",
              "text_encoder.text_model.encoder.layers.0.self_attn.q_proj.lora_linear_layer.up."
              "weight" },
            { "format      diffusers (lora.down, lora.up)\n", "to_k (1)", "q_proj (1)",
                "1 of the unet, 1 of the text" } },
        { { "down_blocks.0.attentions.0.transformer_blocks.0.attn1.processor.to_out_lora.down."
            "weight",
              "down_blocks.0.attentions.0.transformer_blocks.0.attn1.processor.to_out_lora.up."
              "weight" },
            { "format      attn-procs", "to_out (1)", "rank        4 (1)", "1 of the unet" } },
        { { "lora_unet_mid_block_resnets_0_conv1.hada_w1_a",
              "lora_unet_mid_block_resnets_0_conv1.hada_w1_b",
              "lora_unet_mid_block_resnets_0_conv1.alpha" },
            { "kohya", "LyCORIS LoHa", "conv1 (1)", "rank        4 (1)" } },
        { { "lora_unet_mid_block_resnets_0_conv1.lokr_w1",
              "lora_unet_mid_block_resnets_0_conv1.lokr_w2",
              "lora_unet_mid_block_resnets_0_conv1.dora_scale" },
            { "kohya", "LyCORIS LoKr", "DoRA", "conv1 (1)" } },
        { { "lora_unet_conv_in.diff", "lora_unet_conv_in.diff_b", "else" },
            { "full difference", "conv_in (1)", "1 tensors are no part", "1 of the unet" } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *text = inspect(cases[i].names, 4, "ss_network_dim", "4");
        for (int k = 0; k < 4; k++)
            CHECK_CONTAINS(text, cases[i].words[k]);
        CHECK_CONTAINS(text, "metadata\n  ss_network_dim: 4\n");
    }
}

static void other_files_are_listed(void) {
    static const char *const names[] = { "latents", NULL };
    const char *text = inspect(names, 4, "note", "two\nlines \x1b[31m");
    CHECK_CONTAINS(text, "  1 tensors, 64 numbers");
    CHECK_CONTAINS(text, "latents: F32 [16][4]");
    CHECK_CONTAINS(text, "note: two lines  [31m\n");
}

static void errors_say_what_is_wrong(void) {
    struct error err = { 0 };
    CHECK(!inspect_print(stdout, "/nowhere/x.safetensors", &err), "absent");
    CHECK_CONTAINS(err.message, "cannot open /nowhere/x.safetensors");
    CHECK(!inspect_print(stdout, folder, &err), "an empty folder is accepted");
    CHECK_CONTAINS(err.message, "is not a checkpoint");
    CHECK(!inspect_print(stdout, "/dev/null", &err), "a device");
    CHECK_CONTAINS(err.message, "/dev/null is a device");
}

int main(void) {
    if (!mkdtemp(folder))
        return 2;
    snprintf(path, sizeof(path), "%s/made.safetensors", folder);
    adapter_formats_are_told_apart();
    other_files_are_listed();
    unlink(path);
    errors_say_what_is_wrong();
    CHECK(rmdir(folder) == 0, "files were left in %s", folder);
    return check_done();
}
