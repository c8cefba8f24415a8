/* Adapter files written by peft, diffusers and LyCORIS (tests/reference/loras.py). The changed
 * weights are compared with those that each of these libraries computes for the same model and
 * file. */
#include "kernels/compute/compute.h"
#include "models/adapter/adapter.h"
#include "tests/check.h"
#include "tests/models/small/small_models.h"

#include <stdlib.h>

static const struct unet_config unet_config = {
    .in_channels = 4,
    .out_channels = 4,
    .block_count = 2,
    .block_out_channels = { 8, 16 },
    .down_has_attention = { true, false },
    .up_has_attention = { false, true },
    .layers_per_block = 1,
    .heads = { 2, 2 },
    .cross_attention_dim = 12,
    .norm_num_groups = 4,
    .norm_eps = 1e-5f,
    .flip_sin_to_cos = true,
};
static const struct text_encoder_config text_config = {
    .vocab_size = 50,
    .hidden_size = 12,
    .intermediate_size = 20,
    .num_hidden_layers = 2,
    .num_attention_heads = 2,
    .max_position_embeddings = 11,
    .hidden_act = ACTIVATION_QUICK_GELU,
    .layer_norm_eps = 1e-5f,
};

static struct rule_source sources[2] = { { .gain = 0.5 },
    { .gain = 0.7 } }; /* indexed by component */
static struct unet *unet;
static struct text_encoder *text_encoder;
static struct adapter_targets targets;
static struct safetensors *goldens;
static const char *folder;
static size_t goldens_compared;

static int64_t weights_of(const struct named_weight *w) {
    return w->n * w->k * adapter_target_taps(w);
}

/* Returns the model's own tensor, f32. */
static const float *pristine(enum component component, const char *layer, const char *leaf) {
    char name[300];
    const struct rule_source *source = &sources[component];
    snprintf(name, sizeof(name), "%s.%s", layer, leaf);
    for (size_t i = 0; i < source->count; i++)
        if (strcmp(source->items[i].name, name) == 0)
            return source->items[i].tensor.data;
    printf("the model has no %s\n", name);
    exit(1);
}

static float *copy(const float *from, int64_t count) {
    float *to = malloc((size_t)count * sizeof(*to));
    memcpy(to, from, (size_t)count * sizeof(*to));
    return to;
}

static struct adapter *open_adapter(const char *file) {
    char path[512];
    struct error err = { 0 };
    struct adapter *adapter = NULL;
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    CHECK(adapter_open(path, &targets, &adapter, &err), "%s", err.message);
    if (!adapter)
        exit(check_done());
    return adapter;
}

/* Returns the layer's weights after the module's change. The caller frees them. */
static float *changed(const struct adapter_module *m, float strength) {
    struct error err = { 0 };
    const float *own = pristine(m->component, m->target->name, "weight");
    float *weights = copy(own, weights_of(m->target));
    CHECK(!m->has_weight || adapter_module_add(m, own, strength, weights, &err), "%s", err.message);
    return weights;
}

static double compare_module(const char *golden, const struct adapter_module *m) {
    char name[400];
    snprintf(name, sizeof(name), "%s/%s/%s", golden, component_name(m->component), m->target->name);
    const int64_t count = weights_of(m->target);
    float *weights = changed(m, 1);
    double worst = relative_error(weights, reference_get(goldens, name, count), count);
    goldens_compared++;
    free(weights);
    if (m->has_bias) {
        float *bias = copy(pristine(m->component, m->target->name, "bias"), m->target->n);
        adapter_module_add_bias(m, 1, bias);
        snprintf(name + strlen(name), sizeof(name) - strlen(name), ".bias");
        const double error = relative_error(
            bias, reference_get(goldens, name, m->target->n), m->target->n);
        worst = error > worst ? error : worst;
        goldens_compared++;
        free(bias);
    }
    return worst;
}

static const struct {
    const char *file, *golden, *format, *kind;
    size_t unet, text_encoder, leftovers;
} files[] = {
    { "peft", "peft", "PEFT directory", "LoRA", 11, 0, 0 },
    { "peft_rslora", "peft_rslora", "PEFT directory", "LoRA", 2, 0, 0 },
    { "peft_dora", "peft_dora", "PEFT directory", "DoRA", 7, 0, 0 },
    { "peft_loha", "peft_loha", "PEFT directory", "LyCORIS LoHa", 4, 0, 0 },
    { "peft_loha_tucker", "peft_loha_tucker", "PEFT directory", "LyCORIS LoHa", 4, 0, 0 },
    { "peft_lokr", "peft_lokr", "PEFT directory", "LyCORIS LoKr", 4, 0, 0 },
    { "peft_lokr_tucker", "peft_lokr_tucker", "PEFT directory", "LyCORIS LoKr", 4, 0, 0 },
    { "peft_lokr_whole", "peft_lokr_whole", "PEFT directory", "LyCORIS LoKr", 3, 0, 0 },
    { "diffusers.safetensors", "diffusers", "peft (lora_A, lora_B)", "LoRA", 11, 3, 0 },
    { "diffusers_old.safetensors", "diffusers_old", "diffusers (lora.down, lora.up)", "LoRA", 11, 3,
        0 },
    { "attn_procs.safetensors", "attn_procs", "attn-procs (diffusers of 2023)", "LoRA", 3, 0, 0 },
    { "kohya.safetensors", "kohya", "kohya", "LoCon (LoRA on convolutions)", 11, 3, 0 },
    { "kohya_f16.safetensors", "kohya_f16", "kohya", "LoRA", 6, 0, 0 },
    { "kohya_bf16.safetensors", "kohya_bf16", "kohya", "LoRA", 6, 0, 0 },
    { "ldm_names.safetensors", "ldm_names", "kohya", "LoRA", 4, 0, 0 },
    { "tucker.safetensors", "tucker", "kohya", "LoCon with Tucker factors", 3, 0, 0 },
    { "loha.safetensors", "loha", "kohya", "LyCORIS LoHa", 3, 1, 0 },
    { "lokr.safetensors", "lokr", "kohya", "LyCORIS LoKr", 7, 1, 0 },
    { "dora.safetensors", "dora", "kohya", "DoRA", 5, 1, 0 },
    { "dora_inputs.safetensors", "dora_inputs", "kohya", "DoRA", 5, 1, 0 },
    { "full.safetensors", "full", "kohya", "LyCORIS full difference", 5, 2, 0 },
};
#define FILE_COUNT (sizeof(files) / sizeof(files[0]))

static bool has_kind(const struct adapter_summary *s, const char *kind) {
    for (size_t i = 0; i < s->kind_count; i++)
        if (strcmp(s->kinds[i], kind) == 0)
            return true;
    return false;
}

static void weights_are_their_makers(size_t which) {
    struct adapter *adapter = open_adapter(files[which].file);
    const struct adapter_summary *summary = adapter_get_summary(adapter);
    struct error err = { 0 };
    size_t count, leftovers, of_unet = 0;
    const struct adapter_module *modules = adapter_modules(adapter, &count);
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        const double error = compare_module(files[which].golden, &modules[i]);
        CHECK(error <= 1e-5, "%s, %s: %g", files[which].file, modules[i].target->name, error);
        worst = error > worst ? error : worst;
        of_unet += modules[i].component == COMPONENT_UNET;
    }
    adapter_leftovers(adapter, &leftovers);
    CHECK(of_unet == files[which].unet && count - of_unet == files[which].text_encoder,
        "%s: %zu modules of the UNet and %zu of the text encoder", files[which].file, of_unet,
        count - of_unet);
    CHECK(leftovers == files[which].leftovers, "%s: %zu leftovers", files[which].file, leftovers);
    CHECK_STRING(summary->format, files[which].format);
    CHECK(has_kind(summary, files[which].kind), "%s: no %s", files[which].file, files[which].kind);
    CHECK(adapter_intact(adapter, &err), "%s", err.message);
    printf("%-26s %2zu layers, worst relative error %.1e\n", files[which].file, count, worst);
    adapter_close(adapter);
}

/* The scaled product of the factors up and down is the change that adapter_module_add makes.
 * Tucker's core is contained in down. */
static void factors_make_the_change(const char *file) {
    struct adapter *adapter = open_adapter(file);
    struct error err = { 0 };
    size_t count;
    const struct adapter_module *modules = adapter_modules(adapter, &count);
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        const struct adapter_module *m = &modules[i];
        const int64_t n = m->target->n, columns = m->target->k * adapter_target_taps(m->target);
        float *weights = changed(m, 1);
        float *down = malloc((size_t)(m->rank * columns) * sizeof(*down));
        float *up = malloc((size_t)(n * m->rank) * sizeof(*up));
        float *product = copy(pristine(m->component, m->target->name, "weight"), n * columns);
        CHECK(m->low_rank, "%s is low-rank", m->target->name);
        CHECK(adapter_module_factors(m, down, up, &err), "%s", err.message);
        for (int64_t row = 0; row < n; row++)
            for (int64_t column = 0; column < columns; column++)
                for (int64_t r = 0; r < m->rank; r++)
                    product[row * columns + column] += m->scale * up[row * m->rank + r] *
                                                       down[r * columns + column];
        const double error = relative_error(product, weights, n * columns);
        worst = error > worst ? error : worst;
        free(product);
        free(up);
        free(down);
        free(weights);
    }
    CHECK(worst <= 1e-6, "%s: %g", file, worst);
    printf("%-26s factors and differences agree to %.1e\n", file, worst);
    adapter_close(adapter);
}

/* Strength s gives W + s (W'' - W), where W'' is the weight that the library computed. So strength
 * -1 makes the opposite of the change that strength 1 makes. */
static void strength_scales_the_change(const char *file, const char *golden) {
    static const float strengths[] = { 0, 0.5f, -1, 2 };
    struct adapter *adapter = open_adapter(file);
    size_t count;
    const struct adapter_module *modules = adapter_modules(adapter, &count);
    double worst = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < sizeof(strengths) / sizeof(strengths[0]); k++) {
            const struct named_weight *target = modules[i].target;
            const int64_t numbers = weights_of(target);
            char name[400];
            snprintf(name, sizeof(name), "%s/%s/%s", golden, component_name(modules[i].component),
                target->name);
            const float *own = pristine(modules[i].component, target->name, "weight");
            const float *whole = reference_get(goldens, name, numbers);
            float *weights = changed(&modules[i], strengths[k]), *right = copy(own, numbers);
            for (int64_t j = 0; j < numbers; j++)
                right[j] += strengths[k] * (whole[j] - own[j]);
            const double error = relative_error(weights, right, numbers);
            worst = error > worst ? error : worst;
            if (strengths[k] == 0)
                CHECK(memcmp(weights, own, (size_t)numbers * sizeof(*own)) == 0,
                    "%s: strength 0 changes weights", target->name);
            free(right);
            free(weights);
        }
    CHECK(worst <= 1e-5, "%s: %g", file, worst);
    printf("%-26s strengths agree to %.1e\n", file, worst);
    adapter_close(adapter);
}

static void open_models(void) {
    struct error err = { 0 };
    struct weights w = rule_weights(&sources[COMPONENT_UNET], kernels_cpu(), DTYPE_F32);
    w.check_only = true;
    CHECK(unet_create(&unet_config, &w, &unet, &err), "%s", err.message);
    w.user = &sources[COMPONENT_TEXT_ENCODER];
    CHECK(text_encoder_create(&text_config, &w, &text_encoder, &err), "%s", err.message);
    targets.unet = unet_weights(unet);
    targets.text_encoder = text_encoder_weights(text_encoder);
}

static void close_models(void) {
    text_encoder_destroy(text_encoder);
    unet_destroy(unet);
    for (int i = 0; i < 2; i++)
        rule_source_finish(&sources[i]);
    safetensors_close(goldens);
}

/* peft computes (B (A x) + b) scaling, so b is scaled like the product. None of peft's files here
 * has a b, so the test adds one to the factors of a file. */
static void scale_scales_the_bias(void) {
    static const float scales[] = { 1, 0.5f, 3 };
    struct adapter *adapter = open_adapter("peft");
    size_t count, compared = 0;
    const struct adapter_module *modules = adapter_modules(adapter, &count);
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        struct adapter_module m = modules[i];
        const int64_t n = m.target->n;
        if (!m.target->has_bias)
            continue;
        float *b = malloc((size_t)n * sizeof(*b)), *bias = malloc((size_t)n * sizeof(*bias));
        for (int64_t k = 0; k < n; k++)
            b[k] = (float)(k + 1) / (float)n;
        m.factors[ADAPTER_UP_BIAS] = (struct adapter_factor){ "b", tensor_1d(b, DTYPE_F32, n) };
        for (int s = 0; s < 3; s++, compared++) {
            m.scale = scales[s];
            for (int64_t k = 0; k < n; k++)
                bias[k] = 10;
            adapter_module_add_bias(&m, 0.25f, bias);
            for (int64_t k = 0; k < n; k++)
                worst = fmax(worst, fabs((double)bias[k] - 10 - 0.25 * (double)(scales[s] * b[k])));
        }
        free(b);
        free(bias);
    }
    printf("%zu biases, with scales of 1, 0.5 and 3: %.2g away\n", compared, worst);
    CHECK(compared > 0 && worst <= 2e-6, "%zu biases, %g", compared, worst);
    adapter_close(adapter);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s DATA_FOLDER\n", argv[0]);
        return 2;
    }
    char path[512], loras[512];
    snprintf(path, sizeof(path), "%s/loras.safetensors", argv[1]);
    snprintf(loras, sizeof(loras), "%s/loras", argv[1]);
    goldens = reference_open(path);
    folder = loras;
    open_models();
    for (size_t i = 0; i < FILE_COUNT; i++)
        weights_are_their_makers(i);
    CHECK(goldens_compared == safetensors_get_header(goldens)->count, "%zu of %zu weights compared",
        goldens_compared, safetensors_get_header(goldens)->count);
    factors_make_the_change("kohya.safetensors");
    factors_make_the_change("tucker.safetensors");
    strength_scales_the_change("peft_dora", "peft_dora");
    strength_scales_the_change("dora_inputs.safetensors", "dora_inputs");
    strength_scales_the_change("lokr.safetensors", "lokr");
    scale_scales_the_bias();
    close_models();
    return check_done();
}
