#include "models/checkpoint/adapter_names.h"

#include "kernels/tensor.h"

#include <string.h>

struct suffix {
    const char *text, *kind; /* kind NULL: plain LoRA */
    enum adapter_part part;
};

static const struct suffix suffixes[] = {
    { ".lora_down.weight", NULL, ADAPTER_DOWN },
    { ".lora_up.weight", NULL, ADAPTER_UP },
    { ".lora_mid.weight", "LoCon with Tucker factors", ADAPTER_OTHER },
    { ".lora_A.weight", NULL, ADAPTER_DOWN },
    { ".lora_B.weight", NULL, ADAPTER_UP },
    { ".lora.down.weight", NULL, ADAPTER_DOWN },
    { ".lora.up.weight", NULL, ADAPTER_UP },
    { ".lora_linear_layer.down.weight", NULL, ADAPTER_DOWN },
    { ".lora_linear_layer.up.weight", NULL, ADAPTER_UP },
    { "_lora.down.weight", NULL, ADAPTER_DOWN },
    { "_lora.up.weight", NULL, ADAPTER_UP },
    { ".alpha", NULL, ADAPTER_ALPHA },
    { ".dora_scale", "DoRA", ADAPTER_OTHER },
    { ".lora_magnitude_vector", "DoRA", ADAPTER_OTHER },
    { ".hada_w1_a", "LyCORIS LoHa", ADAPTER_OTHER },
    { ".hada_w1_b", "LyCORIS LoHa", ADAPTER_DOWN },
    { ".hada_w2_a", "LyCORIS LoHa", ADAPTER_OTHER },
    { ".hada_w2_b", "LyCORIS LoHa", ADAPTER_OTHER },
    { ".hada_t1", "LyCORIS LoHa", ADAPTER_OTHER },
    { ".hada_t2", "LyCORIS LoHa", ADAPTER_OTHER },
    { ".lokr_w1", "LyCORIS LoKr", ADAPTER_OTHER },
    { ".lokr_w1_a", "LyCORIS LoKr", ADAPTER_OTHER },
    { ".lokr_w1_b", "LyCORIS LoKr", ADAPTER_DOWN },
    { ".lokr_w2", "LyCORIS LoKr", ADAPTER_OTHER },
    { ".lokr_w2_a", "LyCORIS LoKr", ADAPTER_OTHER },
    { ".lokr_w2_b", "LyCORIS LoKr", ADAPTER_DOWN },
    { ".lokr_t2", "LyCORIS LoKr", ADAPTER_OTHER },
    { ".diff", "LyCORIS full difference", ADAPTER_OTHER },
    { ".diff_b", "LyCORIS full difference", ADAPTER_OTHER },
    { ".w_norm", "LyCORIS norm", ADAPTER_OTHER },
    { ".b_norm", "LyCORIS norm", ADAPTER_OTHER },
    { ".on_input", "LyCORIS IA3", ADAPTER_OTHER },
    { ".oft_blocks", "LyCORIS OFT", ADAPTER_OTHER },
    { ".oft_diag", "LyCORIS OFT", ADAPTER_OTHER },
    { ".a1.weight", "LyCORIS GLoRA", ADAPTER_OTHER },
    { ".a2.weight", "LyCORIS GLoRA", ADAPTER_OTHER },
    { ".b1.weight", "LyCORIS GLoRA", ADAPTER_OTHER },
    { ".b2.weight", "LyCORIS GLoRA", ADAPTER_OTHER },
};

/* The layers that adapters hang on, longest names first among those with a common end. */
static const char *const leafs[] = { "to_out_0", "to_out", "to_q", "to_k", "to_v", "ff_net_0_proj",
    "ff_net_2", "time_emb_proj", "proj_in", "proj_out", "conv_shortcut", "samplers_0_conv", "conv1",
    "conv2", "conv_in", "conv_out", "q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2",
    "other" };
#define LEAF_COUNT (sizeof(leafs) / sizeof(leafs[0]))
_Static_assert(LEAF_COUNT <= ADAPTER_TARGETS_MAX, "a summary has room for every layer");

static bool ends_with(const char *text, size_t length, const char *end) {
    size_t n = strlen(end);
    return length >= n && memcmp(text + length - n, end, n) == 0;
}

bool adapter_name_parse(const char *name, struct adapter_name *out) {
    const size_t length = strlen(name);
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        const struct suffix *suffix = &suffixes[i];
        if (!ends_with(name, length, suffix->text))
            continue;
        *out = (struct adapter_name){ suffix->part, suffix->kind, suffix->text,
            length - strlen(suffix->text) };
        return true;
    }
    return false;
}

static void count_value(struct adapter_value *values, size_t *count, double value) {
    for (size_t i = 0; i < *count; i++)
        if (values[i].value == value) {
            values[i].count++;
            return;
        }
    if (*count < ADAPTER_VALUES_MAX)
        values[(*count)++] = (struct adapter_value){ value, 1 };
}

static void add_kind(struct adapter_summary *s, const char *kind) {
    for (size_t i = 0; i < s->kind_count; i++)
        if (strcmp(s->kinds[i], kind) == 0)
            return;
    if (s->kind_count < ADAPTER_KINDS_MAX)
        s->kinds[s->kind_count++] = kind;
}

static const char *format_of(const char *name) {
    bool kohya_prefix = strncmp(name, "lora_unet_", 10) == 0 || strncmp(name, "lora_te", 7) == 0;
    if (strstr(name, ".processor.") || strstr(name, "to_q_lora.down") ||
        strstr(name, "to_out_lora.down"))
        return "attn-procs (diffusers of 2023)";
    if (strncmp(name, "base_model.model.", 17) == 0)
        return "PEFT directory";
    if (strstr(name, ".lora_A."))
        return "peft (lora_A, lora_B)";
    if (strstr(name, ".lora.down.") || strstr(name, ".lora_linear_layer."))
        return "diffusers (lora.down, lora.up)";
    if (kohya_prefix)
        return "kohya";
    return NULL;
}

/* A module is counted once, by the tensor that tells its rank, or by the first of its kind. */
static bool counts_module(const struct adapter_name *name) {
    static const char *const first[] = { ".lokr_w2", ".lokr_w2_a", ".diff", ".w_norm", ".on_input",
        ".oft_blocks", ".oft_diag", ".a1.weight" };
    if (name->part == ADAPTER_DOWN && !strstr(name->suffix, "lokr"))
        return true;
    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++)
        if (strcmp(name->suffix, first[i]) == 0)
            return true;
    return false;
}

/* counts: [LEAF_COUNT] */
static void count_module(
    struct adapter_summary *s, size_t *counts, const char *name, size_t length) {
    char flat[SAFETENSORS_MAX_NAME_BYTES + 1];
    memcpy(flat, name, length);
    flat[length] = 0;
    for (char *at = flat; *at; at++)
        if (*at == '.')
            *at = '_';
    bool text = strncmp(flat, "lora_te", 7) == 0 || strstr(flat, "text_encoder") ||
                strstr(flat, "text_model") || strstr(flat, "self_attn");
    *(text ? &s->text_encoder_modules : &s->unet_modules) += 1;
    size_t leaf = 0;
    while (leaf + 1 < LEAF_COUNT && !ends_with(flat, length, leafs[leaf]))
        leaf++;
    counts[leaf]++;
}

static double scalar(struct safetensors *file, size_t index) {
    struct tensor t;
    float value = 0;
    if (!safetensors_view(file, index, &t, NULL) || tensor_elements(&t) != 1)
        return 0;
    if (t.dtype != DTYPE_F32 && t.dtype != DTYPE_F16 && t.dtype != DTYPE_BF16)
        return 0;
    convert_elements(&value, DTYPE_F32, t.data, t.dtype, 1);
    return (double)value;
}

static void add_tensor(
    struct adapter_summary *s, size_t *counts, struct safetensors *file, size_t i) {
    const struct safetensors_entry *entry = &safetensors_get_header(file)->entries[i];
    struct adapter_name name;
    if (!adapter_name_parse(entry->name, &name)) {
        s->other_tensors++;
        return;
    }
    if (!s->format)
        s->format = format_of(entry->name);
    const bool wide = entry->rank == 4 && entry->shape[2] > 1;
    if (name.kind)
        add_kind(s, name.kind);
    else if (name.part == ADAPTER_DOWN)
        add_kind(s, wide ? "LoCon (LoRA on convolutions)" : "LoRA");
    if (name.part == ADAPTER_DOWN && entry->rank > 0)
        count_value(s->ranks, &s->rank_count, (double)entry->shape[0]);
    if (name.part == ADAPTER_ALPHA)
        count_value(s->alphas, &s->alpha_count, scalar(file, i));
    if (counts_module(&name))
        count_module(s, counts, entry->name, name.module_length);
}

bool adapter_summarize(struct safetensors *file, struct adapter_summary *out) {
    size_t counts[LEAF_COUNT] = { 0 };
    *out = (struct adapter_summary){ 0 };
    for (size_t i = 0; i < safetensors_get_header(file)->count; i++)
        add_tensor(out, counts, file, i);
    for (size_t i = 0; i < LEAF_COUNT; i++)
        if (counts[i])
            out->targets[out->target_count++] = (struct adapter_target){ leafs[i], counts[i] };
    return out->format && (out->target_count > 0 || out->kind_count > 0);
}
