/* Wrong adapter files. Each is refused with its own message, which names the tensor, its dtype and
 * shape, and what would be right. The files are made up so that each has only one mistake. */
#include "base/file.h"
#include "tests/check.h"
#include "tests/models/small/small_targets.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define TENSORS_MAX 12
#define Q "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
#define K "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k"
#define CONV "lora_unet_down_blocks_0_resnets_0_conv1"
#define PAIR(module) module ".lora_down.weight f32 2,8", module ".lora_up.weight f32 8,2"

static char folder[] = "/tmp/latentd-test-XXXXXX";
static int refused;

/* "NAME DTYPE SHAPE [VALUE]", where SHAPE is 2,8 or () */
static struct safetensors_item make_tensor(const char *text) {
    static char names[TENSORS_MAX][256];
    static int next;
    char dtype[8], shape[64];
    double value = 0.5;
    char *name = names[next++ % TENSORS_MAX];
    struct tensor t = { .rank = 0 };
    CHECK(sscanf(text, "%255s %7s %63s %lf", name, dtype, shape, &value) >= 3, "%s", text);
    t.dtype = dtype[0] == 'i' ? DTYPE_I64 : dtype[1] == '1' ? DTYPE_F16 : DTYPE_F32;
    for (char *at = shape; *at && *at != '('; at += *at == ',')
        t.shape[t.rank++] = strtoll(at, &at, 10);
    if (t.rank == 0)
        t.shape[t.rank++] = 1;
    const int64_t count = tensor_elements(&t);
    t.data = malloc((size_t)count * 8);
    for (int64_t i = 0; i < count; i++) {
        const float number = (float)value;
        if (t.dtype == DTYPE_I64)
            ((int64_t *)t.data)[i] = (int64_t)value;
        else
            convert_elements(
                (char *)t.data + i * (int64_t)dtype_size(t.dtype), t.dtype, &number, DTYPE_F32, 1);
    }
    return (struct safetensors_item){ name, t };
}

static const char *make_file(const char *name, const char *const *tensors, const char *metadata) {
    static char path[256];
    struct safetensors_item items[TENSORS_MAX];
    struct error err = { 0 };
    size_t count = 0;
    json_t *object = json_object();
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    for (; tensors[count]; count++)
        items[count] = make_tensor(tensors[count]);
    if (metadata)
        json_object_set_new(object, "lora_adapter_metadata", json_string(metadata));
    CHECK(safetensors_write(path, items, count, metadata ? object : NULL, &err), "%s", err.message);
    for (size_t i = 0; i < count; i++)
        free(items[i].tensor.data);
    json_decref(object);
    return path;
}

static void expect_error(const char *path, enum error_code code, const char *const *words) {
    struct adapter *adapter = NULL;
    struct error err = { 0 };
    CHECK(!adapter_open(path, &small_targets, &adapter, &err),
        "accepted instead of refused with: %s", words[0]);
    CHECK(err.code == code, "%s: %s", error_code_name(err.code), err.message);
    CHECK_CONTAINS(err.message, path);
    for (int i = 0; words[i]; i++)
        CHECK_CONTAINS(err.message, words[i]);
    printf("  %s\n", err.message + strlen(folder) + 1);
    adapter_close(adapter);
    refused++;
}

static const struct {
    enum error_code code;
    const char *words[4], *tensors[TENSORS_MAX], *metadata;
} cases[] = {
    /* other model families */
    { ERROR_UNSUPPORTED, { "Stable Diffusion XL", "Stable Diffusion 1.x", "lora_te2_" },
        { PAIR("lora_te2_text_model_encoder_layers_0_mlp_fc1") } },
    { ERROR_UNSUPPORTED, { "Stable Diffusion XL", "transformer_blocks_1_attn1" },
        { PAIR("lora_unet_input_blocks_4_1_transformer_blocks_1_attn1_to_q") } },
    { ERROR_UNSUPPORTED, { "Flux", "Stable Diffusion 1.x" },
        { PAIR("lora_unet_double_blocks_0_img_attn_qkv") } },
    { ERROR_UNSUPPORTED, { "Flux" },
        { "transformer.single_transformer_blocks.0.attn.to_q.lora_A.weight f32 2,8" } },
    { ERROR_UNSUPPORTED, { "Stable Diffusion 3" },
        { PAIR("lora_unet_joint_blocks_0_x_block_attn_qkv") } },
    { ERROR_UNSUPPORTED, { "a diffusion transformer" },
        { "transformer.blocks.0.attn.to_q.lora_A.weight f32 2,8" } },
    { ERROR_UNSUPPORTED, { "Stable Diffusion 2.x", "1024 inputs", "Stable Diffusion 1.x (768)" },
        { K ".lora_down.weight f32 2,1024", K ".lora_up.weight f32 8,2" } },
    { ERROR_UNSUPPORTED, { "Stable Diffusion XL", "2048 inputs" },
        { K ".hada_w1_a f32 8,2", K ".hada_w1_b f32 2,2048", K ".hada_w2_a f32 8,2",
            K ".hada_w2_b f32 2,2048" } },
    /* unsupported kinds of adapters */
    { ERROR_UNSUPPORTED, { "OFT", "LoRA, LoCon, LoHa" }, { Q ".oft_blocks f32 2,4,4" } },
    { ERROR_UNSUPPORTED, { "IA3" }, { K ".weight f32 8,1", K ".on_input f32 1,1" } },
    { ERROR_UNSUPPORTED, { "GLoRA" }, { Q ".a1.weight f32 8,2", Q ".a2.weight f32 2,8" } },
    /* not an adapter at all */
    { ERROR_INVALID, { "part of an adapter", "conv_in.weight" }, { "conv_in.weight f32 8,4,3,3" } },
    { ERROR_INVALID, { "none of the adapter's 1 modules", "lora_unet_nowhere", "no such layer" },
        { PAIR("lora_unet_nowhere") } },
    /* norms */
    { ERROR_INVALID, { "lora_unet_conv_norm_out.w_norm", "[7]", "conv_norm_out needs [8]" },
        { "lora_unet_conv_norm_out.w_norm f32 7" } },
    { ERROR_INVALID, { "lora_unet_conv_norm_out.w_norm", "[8][1]", "needs [8]" },
        { "lora_unet_conv_norm_out.w_norm f32 8,1" } },
    { ERROR_INVALID, { "lora_unet_conv_norm_out.b_norm", "[9]", "needs [8]" },
        { "lora_unet_conv_norm_out.w_norm f32 8", "lora_unet_conv_norm_out.b_norm f32 9" } },
    { ERROR_INVALID, { "of the kind LoRA", "conv_norm_out is a norm" },
        { PAIR("lora_unet_conv_norm_out") } },
    { ERROR_INVALID, { "a norm's scale and shift", "is none" }, { Q ".w_norm f32 8" } },
    { ERROR_INVALID, { "a norm's scale and shift", "is none" }, { Q ".b_norm f32 8" } },
    /* missing, duplicate and mixed parts */
    { ERROR_INVALID, { "lora_up.weight is there, but its down factor" },
        { Q ".lora_up.weight f32 8,2" } },
    { ERROR_INVALID, { "lora_down.weight is there, but its up factor", Q },
        { Q ".lora_down.weight f32 2,8" } },
    { ERROR_INVALID, { Q ".alpha stands alone" }, { Q ".alpha f32 ()", PAIR(CONV) } },
    { ERROR_INVALID, { "dora_scale stands alone" }, { Q ".dora_scale f32 8,1" } },
    { ERROR_INVALID, { "neither a down nor an up" }, { CONV ".lora_mid.weight f32 2,2,3,3" } },
    { ERROR_INVALID, { "the same thing twice" },
        { PAIR(Q), Q ".lora_A.weight f32 2,8", Q ".lora_B.weight f32 8,2" } },
    { ERROR_INVALID, { "two kinds" }, { PAIR(Q), Q ".diff f32 8,8" } },
    { ERROR_INVALID, { "change the same layer", "attn1.to_q" },
        { PAIR(Q), PAIR("unet." SMALL_BLOCK "attn1.to_q") } },
    { ERROR_INVALID, { "hada_w2_b is there, but w1_a" },
        { Q ".hada_w1_b f32 2,8", Q ".hada_w2_a f32 8,2", Q ".hada_w2_b f32 2,8" } },
    { ERROR_INVALID, { "hada_t1 is there, but t2" },
        { CONV ".hada_w1_a f32 2,8", CONV ".hada_w1_b f32 2,8", CONV ".hada_w2_a f32 2,8",
            CONV ".hada_w2_b f32 2,8", CONV ".hada_t1 f32 2,2,3,3" } },
    { ERROR_INVALID, { "needs lokr_w1 and lokr_w2" }, { Q ".lokr_w1 f32 2,2" } },
    { ERROR_INVALID, { "needs lokr_w1 and lokr_w2" },
        { Q ".lokr_w1 f32 2,2", Q ".lokr_w2 f32 4,4", Q ".lokr_w2_a f32 4,1",
            Q ".lokr_w2_b f32 1,4" } },
    /* shapes */
    { ERROR_INVALID, { "lora_up.weight has the shape [8][3]", "needs [8][2]", "attn1.to_q" },
        { Q ".lora_down.weight f32 2,8", Q ".lora_up.weight f32 8,3" } },
    { ERROR_INVALID, { "lora_down.weight has the shape [2][9]", "needs [2][8]", "8 inputs" },
        { Q ".lora_down.weight f32 2,9", Q ".lora_up.weight f32 8,2" } },
    { ERROR_INVALID, { "[2][8][1][1]", "needs [2][8][3][3]", "3x3" },
        { CONV ".lora_down.weight f32 2,8,1,1", CONV ".lora_up.weight f32 8,2,1,1" } },
    { ERROR_INVALID, { "[2][3][3][8]", "needs [2][8][3][3]" },
        { CONV ".lora_down.weight f32 2,3,3,8", CONV ".lora_up.weight f32 8,2,1,1" } },
    { ERROR_INVALID, { "[2][8][3][3]", "needs [2][8]" },
        { Q ".lora_down.weight f32 2,8,3,3", Q ".lora_up.weight f32 8,2,1,1" } },
    { ERROR_INVALID, { "has the shape [16]", "needs [16][8]" },
        { Q ".lora_down.weight f32 16", Q ".lora_up.weight f32 8,16" } },
    { ERROR_INVALID, { "lora_mid.weight has the shape [2][3][3][3]", "needs [2][2][3][3]" },
        { CONV ".lora_down.weight f32 2,8,1,1", CONV ".lora_up.weight f32 8,2,1,1",
            CONV ".lora_mid.weight f32 2,3,3,3" } },
    { ERROR_INVALID, { "sides divide", "[3][2]", "8 outputs" },
        { Q ".lokr_w1 f32 3,2", Q ".lokr_w2 f32 4,4" } },
    { ERROR_INVALID, { "lokr_w2 has the shape [4][3]", "needs [4][4]" },
        { Q ".lokr_w1 f32 2,2", Q ".lokr_w2 f32 4,3" } },
    { ERROR_INVALID, { "has rank 1, but the module's second product has rank 2" },
        { Q ".lokr_w1_a f32 2,1", Q ".lokr_w1_b f32 1,2", Q ".lokr_w2_a f32 4,2",
            Q ".lokr_w2_b f32 2,4" } },
    { ERROR_INVALID, { "diff has the shape [8][9]", "needs [8][8]" }, { Q ".diff f32 8,9" } },
    { ERROR_INVALID, { "attn1.to_q has no bias" }, { Q ".diff_b f32 8" } },
    { ERROR_INVALID, { "diff_b has the shape [4]", "needs [8]" },
        { "lora_unet_conv_in.diff_b f32 4" } },
    { ERROR_INVALID, { "dora_scale has the shape [1][4]", "[8][1]", "[1][8]" },
        { PAIR(Q), Q ".dora_scale f32 1,4" } },
    { ERROR_INVALID, { "lora_magnitude_vector has the shape [9]" },
        { PAIR("unet." SMALL_BLOCK "attn1.to_q"),
            "unet." SMALL_BLOCK "attn1.to_q.lora_magnitude_vector f32 9" } },
    { ERROR_TOO_LARGE, { "rank 5000", "4096" },
        { Q ".lora_down.weight f16 5000,8", Q ".lora_up.weight f16 8,5000" } },
    /* numbers */
    { ERROR_INVALID, { "lora_up.weight holds a value that is not finite" },
        { Q ".lora_down.weight f32 2,8", Q ".lora_up.weight f32 8,2 nan" } },
    { ERROR_INVALID, { "lora_down.weight holds a value that is not finite" },
        { Q ".lora_down.weight f16 2,8 inf", Q ".lora_up.weight f16 8,2" } },
    { ERROR_INVALID, { "alpha is inf" }, { PAIR(Q), Q ".alpha f32 () inf" } },
    { ERROR_INVALID, { "alpha has 2 numbers" }, { PAIR(Q), Q ".alpha f32 2" } },
    { ERROR_UNSUPPORTED, { "its dtype is i64" },
        { Q ".lora_down.weight i64 2,8", Q ".lora_up.weight f32 8,2" } },
    /* configurations */
    { ERROR_INVALID, { "lora_adapter_metadata" }, { PAIR(Q) }, "{" },
    { ERROR_INVALID, { "not a JSON object" }, { PAIR(Q) }, "[]" },
    { ERROR_UNSUPPORTED, { "pissa", "path_initial_model" }, { PAIR(Q) },
        "{\"unet.init_lora_weights\": \"pissa_niter_4\"}" },
    { ERROR_INVALID, { "lora_alpha is \"x\"" }, { PAIR(Q) },
        "{\"unet.r\": 2, \"unet.lora_alpha\": \"x\"}" },
    { ERROR_INVALID, { "alpha_pattern", "(", "no regular expression" }, { PAIR(Q) },
        "{\"unet.r\": 2, \"unet.alpha_pattern\": {\"(\": 1}}" },
    { ERROR_INVALID, { "rank_pattern", "takes too long" }, { PAIR(Q) },
        "{\"unet.r\": 2, \"unet.rank_pattern\": {\"(([a-z_.0-9]+)+)+[!#]\": 1}}" },
    { ERROR_INVALID, { "alpha 3e+38 is too large" }, { Q ".lokr_w1 f32 2,2", Q ".lokr_w2 f32 4,4" },
        "{\"unet.r\": 1e-30, \"unet.lora_alpha\": 3e38}" },
};

static void wrong_files_say_why(void) {
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_error(make_file("wrong.safetensors", cases[i].tensors, cases[i].metadata),
            cases[i].code, cases[i].words);
}

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "wb");
    fwrite(text, 1, strlen(text), f);
    fclose(f);
}

/* Valid files cut at every length, and files that are not safetensors. */
static void cut_files_say_why(void) {
    static const char *const tensors[] = { PAIR(Q), Q ".alpha f32 ()", NULL };
    const char *path = make_file("cut.safetensors", tensors, NULL);
    struct adapter *adapter;
    struct error err = { 0 };
    struct stat st;
    CHECK(adapter_open(path, &small_targets, &adapter, &err), "%s", err.message);
    adapter_close(adapter);
    CHECK(stat(path, &st) == 0, "%s", path);
    for (off_t size = st.st_size - 1; size >= 0; size--) {
        CHECK(truncate(path, size) == 0, "%s", path);
        adapter = NULL;
        CHECK(!adapter_open(path, &small_targets, &adapter, &err), "%lld bytes", (long long)size);
        CHECK_CONTAINS(err.message, path);
        adapter_close(adapter);
    }
    write_text(path, "PK\003\004 not a safetensors file at all");
    expect_error(path, ERROR_INVALID, (const char *[]){ "not a safetensors file", NULL });
    write_text(path, "\x80\x02}q\x00(X\x05\x00\x00\x00hello");
    expect_error(path, ERROR_UNSUPPORTED, (const char *[]){ "pickle", NULL });
    expect_error("/nonexistent", ERROR_NOT_FOUND, (const char *[]){ "/nonexistent", NULL });
}

static void wrong_folders_say_why(void) {
    static const char *const tensors[] = { "base_model.model." SMALL_BLOCK
                                           "attn1.to_q.lora_A.weight f32 2,8",
        "base_model.model." SMALL_BLOCK "attn1.to_q.lora_B.weight f32 8,2", NULL };
    static const struct {
        const char *config, *words;
        enum error_code code;
    } configs[] = {
        { "{\"peft_type\": \"OFT\"}", "peft_type is \"OFT\"", ERROR_UNSUPPORTED },
        { "nonsense", "adapter_config.json", ERROR_INVALID },
        { "{\"peft_type\": \"LORA\", \"lora_alpha\": true}", "lora_alpha is true", ERROR_INVALID },
    };
    char path[300];
    make_file("adapter_model.safetensors", tensors, NULL);
    snprintf(path, sizeof(path), "%s/adapter_config.json", folder);
    expect_error(folder, ERROR_NOT_FOUND, (const char *[]){ "adapter_config.json", NULL });
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        write_text(path, configs[i].config);
        expect_error(folder, configs[i].code, (const char *[]){ configs[i].words, NULL });
    }
}

/* The number of names and patterns is limited: each of them is tried on every layer, so without a
 * limit this could take hours. */
static void patterns_are_bounded(void) {
    static const struct {
        const char *before, *sign, *words;
        int most;
    } rows[] = { { "", "+", "257 regular expressions; at most 256", 256 },
        { "", "", "8193 patterns; at most 8192", 8192 },
        { "^", "", "8193 patterns; at most 8192",
            8192 } }; /* diffusers writes whole names like this */
    static const char *const tensors[] = { PAIR(Q), NULL };
    char *metadata = malloc(200000);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int more = 0; more <= 1; more++) {
            struct adapter *adapter = NULL;
            struct error err = { 0 };
            int used = sprintf(metadata, "{\"unet.r\": 2, \"unet.rank_pattern\": {");
            for (int k = 0; k < rows[i].most + more; k++)
                used += sprintf(metadata + used, "%s\"%sa%d%s\": 1", k ? ", " : "", rows[i].before,
                    k, rows[i].sign);
            sprintf(metadata + used, "}}");
            const char *path = make_file("patterns.safetensors", tensors, metadata);
            if (more)
                expect_error(path, ERROR_TOO_LARGE, (const char *[]){ rows[i].words, NULL });
            else
                CHECK(adapter_open(path, &small_targets, &adapter, &err), "%s", err.message);
            adapter_close(adapter);
        }
    free(metadata);
}

/* Alphas found in real files: missing, 0, integers. Unknown modules beside a valid one are accepted
 * and listed as leftovers. */
static void alphas_are_read(void) {
    static const struct {
        const char *alpha;
        float scale;
    } alphas[] = { { "x.unused f32 ()", 1 }, { Q ".alpha f32 () 0", 1 },
        { Q ".alpha f16 () 3", 1.5f }, { Q ".alpha i64 () -4", -2 }, { Q ".alpha f32 1 1", 0.5f } };
    for (size_t i = 0; i < sizeof(alphas) / sizeof(alphas[0]); i++) {
        const char *const tensors[] = { PAIR(Q), PAIR("lora_unet_nowhere"), alphas[i].alpha, NULL };
        const char *path = make_file("alpha.safetensors", tensors, NULL);
        struct adapter *adapter = NULL;
        struct error err = { 0 };
        size_t count, leftovers;
        CHECK(adapter_open(path, &small_targets, &adapter, &err), "%s", err.message);
        if (!adapter)
            continue;
        const struct adapter_module *m = adapter_modules(adapter, &count);
        const struct adapter_leftover *left = adapter_leftovers(adapter, &leftovers);
        CHECK(count == 1 && m->scale == alphas[i].scale && m->rank == 2, "%s: %g", alphas[i].alpha,
            (double)m->scale);
        CHECK(leftovers == (i == 0 ? 2 : 1), "%zu leftovers", leftovers);
        CHECK_STRING(left[leftovers - 1].name, "lora_unet_nowhere");
        adapter_close(adapter);
    }
}

int main(void) {
    if (!mkdtemp(folder))
        return 2;
    wrong_files_say_why();
    cut_files_say_why();
    wrong_folders_say_why();
    patterns_are_bounded();
    alphas_are_read();
    char command[300];
    snprintf(command, sizeof(command), "rm -r %s", folder);
    CHECK(system(command) == 0, "%s", command);
    printf("%d files refused, each with its reason\n", refused);
    return check_done();
}
