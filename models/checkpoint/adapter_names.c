#include "models/checkpoint/adapter_names.h"

#include "kernels/tensor.h"

#include <stdlib.h>
#include <string.h>

/* How a tensor's name goes on after its module's, and what that says. */
enum part { PART_DOWN, PART_UP, PART_ALPHA, PART_OTHER };

struct suffix {
    const char *text, *kind; /* kind NULL: plain LoRA */
    enum part part;          /* DOWN: the rank is its first dimension */
};

static const struct suffix suffixes[] = {
    { ".lora_down.weight", NULL, PART_DOWN },
    { ".lora_up.weight", NULL, PART_UP },
    { ".lora_mid.weight", "LoCon with Tucker factors", PART_OTHER },
    { ".lora_A.weight", NULL, PART_DOWN },
    { ".lora_B.weight", NULL, PART_UP },
    { ".lora.down.weight", NULL, PART_DOWN },
    { ".lora.up.weight", NULL, PART_UP },
    { ".lora_linear_layer.down.weight", NULL, PART_DOWN },
    { ".lora_linear_layer.up.weight", NULL, PART_UP },
    { "_lora.down.weight", NULL, PART_DOWN },
    { "_lora.up.weight", NULL, PART_UP },
    { ".alpha", NULL, PART_ALPHA },
    { ".dora_scale", "DoRA", PART_OTHER },
    { ".lora_magnitude_vector", "DoRA", PART_OTHER },
    { ".hada_w1_a", "LyCORIS LoHa", PART_OTHER },
    { ".hada_w1_b", "LyCORIS LoHa", PART_DOWN },
    { ".hada_w2_a", "LyCORIS LoHa", PART_OTHER },
    { ".hada_w2_b", "LyCORIS LoHa", PART_OTHER },
    { ".hada_t1", "LyCORIS LoHa", PART_OTHER },
    { ".hada_t2", "LyCORIS LoHa", PART_OTHER },
    { ".lokr_w1", "LyCORIS LoKr", PART_OTHER },
    { ".lokr_w1_a", "LyCORIS LoKr", PART_OTHER },
    { ".lokr_w1_b", "LyCORIS LoKr", PART_DOWN },
    { ".lokr_w2", "LyCORIS LoKr", PART_OTHER },
    { ".lokr_w2_a", "LyCORIS LoKr", PART_OTHER },
    { ".lokr_w2_b", "LyCORIS LoKr", PART_DOWN },
    { ".lokr_t2", "LyCORIS LoKr", PART_OTHER },
    { ".diff", "LyCORIS full difference", PART_OTHER },
    { ".diff_b", "LyCORIS full difference", PART_OTHER },
    { ".w_norm", "LyCORIS norm", PART_OTHER },
    { ".b_norm", "LyCORIS norm", PART_OTHER },
    { ".on_input", "LyCORIS IA3", PART_OTHER },
    { ".oft_blocks", "LyCORIS OFT", PART_OTHER },
    { ".oft_diag", "LyCORIS OFT", PART_OTHER },
    { ".a1.weight", "LyCORIS GLoRA", PART_OTHER },
    { ".a2.weight", "LyCORIS GLoRA", PART_OTHER },
    { ".b1.weight", "LyCORIS GLoRA", PART_OTHER },
    { ".b2.weight", "LyCORIS GLoRA", PART_OTHER },
};

/* The layers that adapters hang on, longest names first among those with a common end. */
static const char *const leafs[] = { "to_out_0", "to_out", "to_q", "to_k", "to_v", "ff_net_0_proj",
    "ff_net_2", "time_emb_proj", "proj_in", "proj_out", "conv_shortcut", "samplers_0_conv", "conv1",
    "conv2", "conv_in", "conv_out", "q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2",
    "other" };
#define LEAF_COUNT (sizeof(leafs) / sizeof(leafs[0]))

#define DISTINCT_MAX 16

struct value_count {
    double value;
    size_t count;
};

struct summary {
    const char *format;
    struct value_count ranks[DISTINCT_MAX], alphas[DISTINCT_MAX];
    size_t rank_count, alpha_count;
    const char *kinds[8];
    size_t kind_count;
    size_t unet, text_encoder, leaf_counts[LEAF_COUNT];
    size_t unknown; /* tensors that are no part of an adapter */
};

static bool ends_with(const char *text, size_t length, const char *end) {
    size_t n = strlen(end);
    return length >= n && memcmp(text + length - n, end, n) == 0;
}

static const struct suffix *find_suffix(const char *name) {
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++)
        if (ends_with(name, length, suffixes[i].text))
            return &suffixes[i];
    return NULL;
}

static void count_value(struct value_count *values, size_t *count, double value) {
    for (size_t i = 0; i < *count; i++)
        if (values[i].value == value) {
            values[i].count++;
            return;
        }
    if (*count < DISTINCT_MAX)
        values[(*count)++] = (struct value_count){ value, 1 };
}

static void add_kind(struct summary *s, const char *kind) {
    for (size_t i = 0; i < s->kind_count; i++)
        if (strcmp(s->kinds[i], kind) == 0)
            return;
    if (s->kind_count < sizeof(s->kinds) / sizeof(s->kinds[0]))
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
static bool counts_module(const struct suffix *suffix) {
    static const char *const first[] = { ".lokr_w2", ".lokr_w2_a", ".diff", ".w_norm", ".on_input",
        ".oft_blocks", ".oft_diag", ".a1.weight" };
    if (suffix->part == PART_DOWN && !strstr(suffix->text, "lokr"))
        return true;
    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++)
        if (strcmp(suffix->text, first[i]) == 0)
            return true;
    return false;
}

static void count_module(struct summary *s, const char *name, size_t length) {
    char flat[SAFETENSORS_MAX_NAME_BYTES + 1];
    memcpy(flat, name, length);
    flat[length] = 0;
    for (char *at = flat; *at; at++)
        if (*at == '.')
            *at = '_';
    bool text = strncmp(flat, "lora_te", 7) == 0 || strstr(flat, "text_encoder") ||
                strstr(flat, "text_model") || strstr(flat, "self_attn");
    *(text ? &s->text_encoder : &s->unet) += 1;
    size_t leaf = 0;
    while (leaf + 1 < LEAF_COUNT && !ends_with(flat, length, leafs[leaf]))
        leaf++;
    s->leaf_counts[leaf]++;
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

static void summarize(struct safetensors *file, struct summary *s) {
    const struct safetensors_header *header = safetensors_get_header(file);
    for (size_t i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        const struct suffix *suffix = find_suffix(entry->name);
        if (!suffix) {
            s->unknown++;
            continue;
        }
        if (!s->format)
            s->format = format_of(entry->name);
        if (suffix->kind)
            add_kind(s, suffix->kind);
        else if (suffix->part == PART_DOWN)
            add_kind(s,
                entry->rank == 4 && entry->shape[2] > 1 ? "LoCon (LoRA on convolutions)" : "LoRA");
        if (suffix->part == PART_DOWN && entry->rank > 0)
            count_value(s->ranks, &s->rank_count, (double)entry->shape[0]);
        if (suffix->part == PART_ALPHA)
            count_value(s->alphas, &s->alpha_count, scalar(file, i));
        if (counts_module(suffix))
            count_module(s, entry->name, strlen(entry->name) - strlen(suffix->text));
    }
}

static void print_values(
    FILE *out, const char *label, const struct value_count *values, size_t count) {
    fprintf(out, "  %-12s", label);
    for (size_t i = 0; i < count; i++)
        fprintf(out, "%s%g (%zu)", i ? ", " : "", values[i].value, values[i].count);
    fprintf(out, "%s\n", count == DISTINCT_MAX ? ", ..." : "");
}

bool inspect_adapter(FILE *out, struct safetensors *file) {
    struct summary s = { 0 };
    summarize(file, &s);
    size_t modules = s.unet + s.text_encoder;
    if (!s.format || (modules == 0 && s.kind_count == 0))
        return false;
    fprintf(out, "adapter\n  %-12s%s\n  %-12s", "format", s.format, "kind");
    for (size_t i = 0; i < s.kind_count; i++)
        fprintf(out, "%s%s", i ? ", " : "", s.kinds[i]);
    fprintf(out, "\n");
    if (s.rank_count)
        print_values(out, "rank", s.ranks, s.rank_count);
    if (s.alpha_count)
        print_values(out, "alpha", s.alphas, s.alpha_count);
    else
        fprintf(out, "  %-12snot stored: the same as the rank\n", "alpha");
    fprintf(out, "  %-12s%zu (%zu of the unet, %zu of the text encoder)\n", "modules", modules,
        s.unet, s.text_encoder);
    fprintf(out, "  %-12s", "targets");
    for (size_t i = 0, shown = 0; i < LEAF_COUNT; i++)
        if (s.leaf_counts[i])
            fprintf(out, "%s%s (%zu)", shown++ ? ", " : "", leafs[i], s.leaf_counts[i]);
    fprintf(out, "\n");
    if (s.unknown)
        fprintf(out, "  %-12s%zu tensors are no part of an adapter\n", "beside it", s.unknown);
    return true;
}
