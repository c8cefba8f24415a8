/* Splits the names of adapters' tensors, as kohya's scripts, diffusers, peft and LyCORIS write
 * them, into module and part. */
#include "models/adapter/adapter_names.h"
#include "tests/check.h"

static void names_come_apart(void) {
    static const struct {
        const char *name, *module;
        enum adapter_part part;
        enum adapter_kind kind;
    } cases[] = {
        { "lora_unet_mid_block_attentions_0_proj_in.lora_down.weight",
            "lora_unet_mid_block_attentions_0_proj_in", ADAPTER_DOWN, ADAPTER_LORA },
        { "lora_te_text_model_encoder_layers_0_mlp_fc1.alpha",
            "lora_te_text_model_encoder_layers_0_mlp_fc1", ADAPTER_ALPHA, ADAPTER_ANY },
        { "unet.mid_block.attentions.0.proj_in.lora_A.weight",
            "unet.mid_block.attentions.0.proj_in", ADAPTER_DOWN, ADAPTER_LORA },
        { "base_model.model.mid_block.attentions.0.proj_in.lora_B.weight",
            "base_model.model.mid_block.attentions.0.proj_in", ADAPTER_UP, ADAPTER_LORA },
        { "unet.mid_block.attentions.0.proj_in.lora.up.weight",
            "unet.mid_block.attentions.0.proj_in", ADAPTER_UP, ADAPTER_LORA },
        { "text_encoder.text_model.encoder.layers.0.self_attn.q_proj.lora_linear_layer.down.weight",
            "text_encoder.text_model.encoder.layers.0.self_attn.q_proj", ADAPTER_DOWN,
            ADAPTER_LORA },
        { "mid_block.attentions.0.transformer_blocks.0.attn1.processor.to_q_lora.down.weight",
            "mid_block.attentions.0.transformer_blocks.0.attn1.processor.to_q", ADAPTER_DOWN,
            ADAPTER_LORA },
        { "lora_unet_conv_in.hada_w1_b", "lora_unet_conv_in", ADAPTER_W1_B, ADAPTER_LOHA },
        { "lora_unet_conv_in.lokr_w1", "lora_unet_conv_in", ADAPTER_W1, ADAPTER_LOKR },
        { "lora_unet_conv_in.dora_scale", "lora_unet_conv_in", ADAPTER_DORA_SCALE, ADAPTER_ANY },
        { "lora_unet_conv_in.diff_b", "lora_unet_conv_in", ADAPTER_DIFF_B, ADAPTER_FULL },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct adapter_name name = { 0 };
        CHECK(adapter_name_parse(cases[i].name, &name), "%s", cases[i].name);
        CHECK(name.module_length == strlen(cases[i].module) &&
                  strncmp(cases[i].name, cases[i].module, name.module_length) == 0 &&
                  strcmp(name.suffix, cases[i].name + name.module_length) == 0,
            "%s: the module is its first %zu bytes", cases[i].name, name.module_length);
        CHECK(name.part == cases[i].part, "%s: part %d", cases[i].name, (int)name.part);
        CHECK(name.kind == cases[i].kind, "%s: kind %d", cases[i].name, (int)name.kind);
    }
    printf("%zu names taken apart\n", sizeof(cases) / sizeof(cases[0]));
}

static void other_names_are_no_adapters(void) {
    static const char *const names[] = { "", "latents", "conv_in.weight", "lora_unet_conv_in",
        "mid_block.attentions.0.proj_in.lora_A", ".lora_A.weight" };
    struct adapter_name name;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        CHECK(!adapter_name_parse(names[i], &name), "\"%s\"", names[i]);
}

int main(void) {
    names_come_apart();
    other_names_are_no_adapters();
    return check_done();
}
