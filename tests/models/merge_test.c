/* A checkpoint with two adapters merged into it, with weights 0.7 and -0.3, against diffusers'
 * fuse_lora (tests/reference/lora_latents.py). All other tensors and files must stay unchanged.
 *
 * usage: merge_test MODEL_FOLDER LORA_FOLDER LATENTS.safetensors */
#include "base/file.h"
#include "models/checkpoint/checkpoint_internal.h"
#include "models/checkpoint/checkpoint_merge.h"
#include "tests/check.h"
#include "tests/models/merged.h"
#include "tests/models/small/small_models.h"

#include <stdlib.h>
#include <unistd.h>

/* Some weights are nearly halfway between two float16 values, so f32 sums that differ slightly can
 * be rounded to different float16 values. */
#define FUSED_BOUND 1e-5

static struct safetensors *recording;

/* Multiplies the rows of every merged weight with fixed random numbers, and compares the products
 * with those of diffusers' fused weight. */
static void weights_match_fused(struct checkpoint *c) {
    const struct safetensors_header *header = safetensors_get_header(recording);
    struct error err = { 0 };
    double worst = 0;
    int compared = 0;
    for (size_t i = 0; i < header->count; i++) {
        char component[32], layer[200], name[220];
        if (sscanf(header->entries[i].name, "fused/%31[^/]/%199s", component, layer) != 2)
            continue;
        const enum component which = component[0] == 'u' ? COMPONENT_UNET : COMPONENT_TEXT_ENCODER;
        const int64_t n = header->entries[i].shape[0];
        const float *fused = reference_get(recording, header->entries[i].name, n);
        int64_t shape[4];
        struct tensor t;
        snprintf(name, sizeof(name), "%s.weight", layer);
        const struct weight *weight = checkpoint_find(c, which, name);
        CHECK(weight &&
                  checkpoint_tensor(c, which, name, weight_shape(weight, shape), shape, &t, &err),
            "%s: %s", name, err.message);
        const int64_t columns = tensor_elements(&t) / n;
        CHECK(t.dtype == DTYPE_F16, "%s is not f16 any more", name);
        double *probe = malloc((size_t)columns * sizeof(*probe));
        float *weights = malloc((size_t)(n * columns) * sizeof(*weights));
        convert_elements(weights, DTYPE_F32, t.data, t.dtype, n * columns);
        float *rows = calloc((size_t)n, sizeof(*rows));
        rule_numbers("probe", columns, probe);
        for (int64_t row = 0; row < n; row++) {
            double sum = 0;
            for (int64_t k = 0; k < columns; k++)
                sum += (double)weights[row * columns + k] * probe[k];
            rows[row] = (float)sum;
        }
        const double error = relative_error(rows, fused, n);
        CHECK(error <= FUSED_BOUND, "%s: %g", name, error);
        worst = error > worst ? error : worst;
        compared++;
        free(weights);
        free(rows);
        free(probe);
    }
    CHECK(compared > 20, "%d weights compared", compared);
    printf("%d merged weights: their products differ by at most %.1e from those of diffusers\n",
        compared, worst);
}

static bool same_file(const char *a, const char *b, const char *name) {
    struct error err = { 0 };
    char *paths[2] = { file_join(a, name), file_join(b, name) }, *bytes[2] = { NULL, NULL };
    size_t sizes[2];
    bool ok = true;
    for (int i = 0; ok && i < 2; i++)
        ok = file_read(paths[i], 1u << 30, &bytes[i], &sizes[i], &err);
    CHECK(ok, "%s", err.message);
    const bool same = ok && sizes[0] == sizes[1] && memcmp(bytes[0], bytes[1], sizes[0]) == 0;
    for (int i = 0; i < 2; i++) {
        free(bytes[i]);
        free(paths[i]);
    }
    return same;
}

/* Tensors that no adapter names keep their bits, and files without weights stay the same. */
static void the_rest_is_as_it_was(const char *model, struct checkpoint *merged, const char *out) {
    static const char *const files[] = { "model_index.json", "unet/config.json",
        "scheduler/scheduler_config.json", "tokenizer/vocab.json", "text_encoder/config.json" };
    struct error err = { 0 };
    struct checkpoint *c;
    size_t same = 0, changed = 0;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        CHECK(same_file(model, out, files[i]), "%s differs", files[i]);
    CHECK(checkpoint_open(model, NULL, &c, &err), "%s", err.message);
    for (int component = 0; component < COMPONENT_COUNT; component++)
        for (size_t i = 0; i < c->tables[component].count; i++) {
            const struct weight *weight = &c->tables[component].items[i];
            struct tensor own, other;
            int64_t shape[TENSOR_MAX_RANK];
            const int rank = weight_shape(weight, shape);
            const enum component which = (enum component)component;
            char golden[300];
            if (!checkpoint_tensor(c, which, weight->name, rank, shape, &own, &err) ||
                !checkpoint_tensor(merged, which, weight->name, rank, shape, &other, &err)) {
                CHECK(false, "%s", err.message);
                continue;
            }
            snprintf(golden, sizeof(golden), "fused/%s/%.*s", component_name(which),
                (int)(strlen(weight->name) - strlen(".weight")), weight->name);
            const bool is_same = memcmp(own.data, other.data, tensor_bytes(&own)) == 0;
            CHECK(is_same != (safetensors_find(recording, golden) >= 0), "%s is %s", weight->name,
                is_same ? "as it was" : "changed");
            *(is_same ? &same : &changed) += 1;
        }
    checkpoint_close(c);
    printf("%zu tensors changed, %zu as they were\n", changed, same);
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/latentd-test-XXXXXX", out[64], command[300];
    struct error err = { 0 };
    struct checkpoint *merged;
    if (argc != 4 || !mkdtemp(folder)) {
        fprintf(stderr, "usage: %s MODEL_FOLDER LORA_FOLDER LATENTS.safetensors\n", argv[0]);
        return 2;
    }
    recording = reference_open(argv[3]);
    const json_t *metadata = safetensors_get_header(recording)->metadata;
    json_t *cases = json_loads(json_string_value(json_object_get(metadata, "cases")), 0, NULL);
    const char *fused = json_string_value(json_object_get(metadata, "fused"));
    const json_t *item = json_array_get(cases, strtoul(fused, NULL, 10));
    snprintf(out, sizeof(out), "%s/merged", folder);
    make_merged(argv[1], argv[2], json_object_get(item, "loras"), out);
    CHECK(checkpoint_open(out, NULL, &merged, &err), "%s", err.message);
    weights_match_fused(merged);
    the_rest_is_as_it_was(argv[1], merged, out);
    checkpoint_close(merged);
    json_decref(cases);
    safetensors_close(recording);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    CHECK(system(command) == 0, "%s", command);
    return check_done();
}
