#include "models/adapter/adapter_names.h"

#include "kernels/tensor.h"
#include "models/adapter/adapter_internal.h"

#include <string.h>

struct suffix {
    const char *text;
    enum adapter_kind kind;
    enum adapter_part part;
};

static const struct suffix suffixes[] = {
    { ".lora_down.weight", ADAPTER_LORA, ADAPTER_DOWN },
    { ".lora_up.weight", ADAPTER_LORA, ADAPTER_UP },
    { ".lora_mid.weight", ADAPTER_LORA, ADAPTER_MID },
    { ".lora_A.weight", ADAPTER_LORA, ADAPTER_DOWN },
    { ".lora_B.weight", ADAPTER_LORA, ADAPTER_UP },
    { ".lora_B.bias", ADAPTER_LORA, ADAPTER_UP_BIAS },
    { ".lora.down.weight", ADAPTER_LORA, ADAPTER_DOWN },
    { ".lora.up.weight", ADAPTER_LORA, ADAPTER_UP },
    { ".lora_linear_layer.down.weight", ADAPTER_LORA, ADAPTER_DOWN },
    { ".lora_linear_layer.up.weight", ADAPTER_LORA, ADAPTER_UP },
    { "_lora.down.weight", ADAPTER_LORA, ADAPTER_DOWN },
    { "_lora.up.weight", ADAPTER_LORA, ADAPTER_UP },
    { ".alpha", ADAPTER_ANY, ADAPTER_ALPHA },
    { ".dora_scale", ADAPTER_ANY, ADAPTER_DORA_SCALE },
    { ".lora_magnitude_vector", ADAPTER_ANY, ADAPTER_MAGNITUDE },
    { ".lora_magnitude_vector.weight", ADAPTER_ANY, ADAPTER_MAGNITUDE },
    { ".hada_w1_a", ADAPTER_LOHA, ADAPTER_W1_A },
    { ".hada_w1_b", ADAPTER_LOHA, ADAPTER_W1_B },
    { ".hada_w2_a", ADAPTER_LOHA, ADAPTER_W2_A },
    { ".hada_w2_b", ADAPTER_LOHA, ADAPTER_W2_B },
    { ".hada_t1", ADAPTER_LOHA, ADAPTER_T1 },
    { ".hada_t2", ADAPTER_LOHA, ADAPTER_T2 },
    { ".lokr_w1", ADAPTER_LOKR, ADAPTER_W1 },
    { ".lokr_w1_a", ADAPTER_LOKR, ADAPTER_W1_A },
    { ".lokr_w1_b", ADAPTER_LOKR, ADAPTER_W1_B },
    { ".lokr_w2", ADAPTER_LOKR, ADAPTER_W2 },
    { ".lokr_w2_a", ADAPTER_LOKR, ADAPTER_W2_A },
    { ".lokr_w2_b", ADAPTER_LOKR, ADAPTER_W2_B },
    { ".lokr_t2", ADAPTER_LOKR, ADAPTER_T2 },
    { ".diff", ADAPTER_FULL, ADAPTER_DIFF },
    { ".diff_b", ADAPTER_FULL, ADAPTER_DIFF_B },
    { ".w_norm", ADAPTER_NORM, ADAPTER_DIFF },
    { ".b_norm", ADAPTER_NORM, ADAPTER_DIFF_B },
    { ".on_input", ADAPTER_IA3, ADAPTER_OTHER },
    { ".oft_blocks", ADAPTER_OFT, ADAPTER_OTHER },
    { ".oft_diag", ADAPTER_OFT, ADAPTER_OTHER },
    { ".a1.weight", ADAPTER_GLORA, ADAPTER_OTHER },
    { ".a2.weight", ADAPTER_GLORA, ADAPTER_OTHER },
    { ".b1.weight", ADAPTER_GLORA, ADAPTER_OTHER },
    { ".b2.weight", ADAPTER_GLORA, ADAPTER_OTHER },
};

static const char *const kind_names[] = {
    [ADAPTER_LORA] = "LoRA",
    [ADAPTER_LOHA] = "LyCORIS LoHa",
    [ADAPTER_LOKR] = "LyCORIS LoKr",
    [ADAPTER_FULL] = "LyCORIS full difference",
    [ADAPTER_NORM] = "LyCORIS norm",
    [ADAPTER_IA3] = "LyCORIS IA3",
    [ADAPTER_OFT] = "LyCORIS OFT",
    [ADAPTER_GLORA] = "LyCORIS GLoRA",
};

const char *adapter_kind_name(enum adapter_kind kind) {
    return kind_names[kind];
}

/* The layers that adapters change. Among names with the same end, the longest comes first. */
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
        if (!ends_with(name, length, suffix->text) || length == strlen(suffix->text))
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
    if (strncmp(name, "diffusion_model.", 16) == 0)
        return "ComfyUI";
    if (strncmp(name, "lycoris_", 8) == 0)
        return "LyCORIS";
    return NULL;
}

/* Returns whether the tensor's first dimension is counted as a rank in the summary. LoHa's second
 * product has the same rank as the first, and is not counted. */
static bool tells_rank(const struct adapter_name *name) {
    return name->part == ADAPTER_DOWN || name->part == ADAPTER_W1_B ||
           (name->part == ADAPTER_W2_B && name->kind == ADAPTER_LOKR);
}

/* Returns whether the module is counted at this tensor. Each module is counted once, at a tensor
 * that every module of its kind has. */
static bool counts_module(const struct adapter_name *name) {
    static const char *const first[] = { ".hada_w1_b", ".lokr_w2", ".lokr_w2_a", ".diff", ".w_norm",
        ".on_input", ".oft_blocks", ".oft_diag", ".a1.weight" };
    if (name->part == ADAPTER_DOWN)
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

static void add_tensor(struct adapter_summary *s, size_t *counts, struct safetensors *file,
    bool reads_alphas, size_t i) {
    const struct safetensors_entry *entry = &safetensors_get_header(file)->entries[i];
    struct adapter_name name;
    if (!adapter_name_parse(entry->name, &name)) {
        s->other_tensors++;
        return;
    }
    if (!s->format)
        s->format = format_of(entry->name);
    const bool wide = entry->rank == 4 && entry->shape[2] > 1;
    if (name.part == ADAPTER_DORA_SCALE || name.part == ADAPTER_MAGNITUDE)
        add_kind(s, "DoRA");
    else if (name.part == ADAPTER_MID)
        add_kind(s, "LoCon with Tucker factors");
    else if (name.part == ADAPTER_DOWN && wide)
        add_kind(s, "LoCon (LoRA on convolutions)");
    else if (name.part == ADAPTER_DOWN || (name.kind != ADAPTER_LORA && name.kind != ADAPTER_ANY))
        add_kind(s, adapter_kind_name(name.kind));
    if (tells_rank(&name) && entry->rank > 0)
        count_value(s->ranks, &s->rank_count, (double)entry->shape[0]);
    if (name.part == ADAPTER_ALPHA && reads_alphas)
        count_value(s->alphas, &s->alpha_count, scalar(file, i));
    if (counts_module(&name))
        count_module(s, counts, entry->name, name.module_length);
}

bool adapter_summarize(struct safetensors *file, bool reads_alphas, struct adapter_summary *out) {
    size_t counts[LEAF_COUNT] = { 0 };
    *out = (struct adapter_summary){ 0 };
    adapter_trigger_read(safetensors_get_header(file)->metadata, out->trigger);
    for (size_t i = 0; i < safetensors_get_header(file)->count; i++)
        add_tensor(out, counts, file, reads_alphas, i);
    for (size_t i = 0; i < LEAF_COUNT; i++)
        if (counts[i])
            out->targets[out->target_count++] = (struct adapter_target){ leafs[i], counts[i] };
    return out->format && (out->target_count > 0 || out->kind_count > 0);
}
