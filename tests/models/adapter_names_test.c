/* Splits the names of adapters' tensors, as kohya's scripts, diffusers, peft and LyCORIS write
 * them, into module and part. Reads trigger words from metadata as these programs write it. */
#include "models/adapter/adapter_internal.h"
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

static void metadata_tells_trigger_words(void) {
    static const struct {
        const char *metadata, *expected;
    } rows[] = {
        { "{}", "" },
        { "{\"modelspec.trigger_phrase\": \" sks dog, \", \"trigger\": \"b\"}", "sks dog," },
        { "{\"trigger\": \"in the\\nsnow\", \"ss_tag_frequency\": \"{}\"}", "in the snow" },
        { "{\"modelspec.trigger_phrase\": \"\", \"trigger\": \"b\"}", "b" },
        /* kohya's: {FOLDER: {TAG: COUNT}}; the words stand in every caption */
        { "{\"ss_tag_frequency\": \"{\\\"10_dog\\\": {\\\"grass\\\": 4, \\\"sks\\\": 9,"
          " \\\"dog\\\": 9}}\"}",
            "sks, dog" },
        { "{\"ss_tag_frequency\": \"{\\\"a\\\": {\\\"x\\\": 3, \\\"y\\\": 4},"
          " \\\"b\\\": {\\\"x\\\": 2}}\"}",
            "x" },
        /* whole sentences, of which each occurs once */
        { "{\"ss_tag_frequency\": \"{\\\"a\\\": {\\\"x\\\": 1}}\"}", "" },
        { "{\"ss_tag_frequency\": \"{\\\"a\\\": {\\\"u\\\": 2, \\\"v\\\": 2, \\\"w\\\": 2,"
          " \\\"x\\\": 2, \\\"y\\\": 2, \\\"z\\\": 2}}\"}",
            "" },
        /* not what kohya's scripts write */
        { "{\"ss_tag_frequency\": \"{\"}", "" },
        { "{\"ss_tag_frequency\": \"[1]\"}", "" },
        { "{\"ss_tag_frequency\": \"{\\\"a\\\": 3, \\\"b\\\": {\\\"x\\\": \\\"9\\\","
          " \\\"y\\\": 1e308, \\\"z\\\": 1e308}, \\\"c\\\": {\\\"y\\\": 1e308}}\"}",
            "y, z" },
        { "{\"trigger\": 3}", "" },
    };
    char found[ADAPTER_TRIGGER_MAX_BYTES + 1];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *metadata = json_loads(rows[i].metadata, 0, NULL);
        CHECK(metadata, "%s", rows[i].metadata);
        adapter_trigger_read(metadata, found);
        CHECK(strcmp(found, rows[i].expected) == 0, "%s: \"%s\"", rows[i].metadata, found);
        json_decref(metadata);
    }
    adapter_trigger_read(NULL, found);
    CHECK(found[0] == 0, "\"%s\" of no metadata", found);
    /* 200 times two bytes: cut between two letters */
    char letters[401] = "";
    for (int i = 0; i < 200; i++)
        strcat(letters, "\xc3\xbc");
    json_t *metadata = json_pack("{s:s}", "trigger", letters);
    adapter_trigger_read(metadata, found);
    CHECK(strlen(found) == 254 && strncmp(found, letters, 254) == 0, "%zu bytes", strlen(found));
    json_decref(metadata);
    printf("%zu files' metadata\n", sizeof(rows) / sizeof(rows[0]));
}

int main(void) {
    names_come_apart();
    other_names_are_no_adapters();
    metadata_tells_trigger_words();
    return check_done();
}
