/* DoRA, LoHa and LoKr as files: names and shapes are those of peft and LyCORIS
 * (tests/reference/training.py), and the adapter reader computes from each file the weights that
 * training computed with. And their gradients, which a step of the optimizer gets from those of the
 * weights. */
#include "train/optimizer/products.h"

#include "models/adapter/adapter.h"
#include "tests/train/recorded.h"
#include "tests/train/small_job.h"
#include "train/save_adapter.h"

#include <stdlib.h>
#include <unistd.h>

static const struct adapter_facts facts = { "tiny", 12, 3, 20, false, false, false };
static char path[] = "/tmp/save_products_XXXXXX";

static const struct {
    const char *name, *fields;
    enum train_save_format format;
    double allowed; /* difference to the reader, which adds up norms in another order */
} kinds[] = {
    { "dora", ", \"rank\": 4, \"use_dora\": true", TRAIN_SAVE_DIFFUSERS, 1e-6 },
    { "dora_kohya", ", \"rank\": 4, \"use_dora\": true", TRAIN_SAVE_KOHYA, 1e-6 },
    { "loha", ", \"rank\": 4, \"adapter_type\": \"loha\"", TRAIN_SAVE_DIFFUSERS, 1e-6 },
    { "lokr", ", \"rank\": 2, \"adapter_type\": \"lokr\"", TRAIN_SAVE_DIFFUSERS, 1e-6 },
    { "lokr_both",
        ", \"rank\": 1, \"adapter_type\": \"lokr\", \"lokr_factor\": 6, "
        "\"lokr_decompose_both\": true",
        TRAIN_SAVE_DIFFUSERS, 1e-6 },
    { "lokr_whole", ", \"rank\": 64, \"adapter_type\": \"lokr\", \"lokr_factor\": 4",
        TRAIN_SAVE_DIFFUSERS, 1e-6 },
};

/* Makes the adapter of the UNet, with numbers that are all nonzero. */
static struct parameters *create(struct small_job *job) {
    struct error err = { 0 };
    struct parameters *p;
    const struct weights source = rule_weights(&job->source, kernels_reference(), DTYPE_F32);
    const struct trained_model unet = { unet_weights(job->unet), &source };
    noise_init(&job->generator, RNG_CPU, 11);
    CHECK(products_create(
              kernels_reference(), &job->config, &unet, NULL, &job->generator, NULL, &p, &err),
        "%s", err.message);
    for (int64_t i = 0; i < p->floats; i++)
        p->values[i] += (float)(0.05 * sin(0.7 * (double)i));
    CHECK(products_apply(p, &err), "%s", err.message);
    return p;
}

static void names_and_shapes_are_theirs(const json_t *recorded) {
    struct safetensors *file;
    struct error err = { 0 };
    const char *name;
    json_t *shape;
    CHECK(safetensors_open(path, &file, &err), "%s", err.message);
    const struct safetensors_header *header = safetensors_get_header(file);
    const json_t *tensors = json_object_get(recorded, "tensors");
    json_object_foreach((json_t *)tensors, name, shape) {
        const ptrdiff_t at = safetensors_find(file, name);
        CHECK(at >= 0, "%s is missing", name);
        if (at < 0)
            continue;
        const struct safetensors_entry *entry = &header->entries[at];
        bool same = (size_t)entry->rank == json_array_size(shape);
        for (size_t i = 0; same && i < json_array_size(shape); i++)
            same = entry->shape[i] == (int64_t)recorded_at(shape, i);
        CHECK(same, "%s has %d dimensions, the first %lld", name, entry->rank,
            (long long)entry->shape[0]);
    }
    CHECK(header->count == json_object_size(tensors), "%zu tensors, not %zu", header->count,
        json_object_size(tensors));
    const char *text = json_string_value(
        json_object_get(header->metadata, "lora_adapter_metadata"));
    json_t *peft = text ? json_loads(text, 0, NULL) : NULL;
    const char *module = json_string_value(json_object_get(header->metadata, "ss_network_module"));
    CHECK((text != NULL) != (module && strcmp(module, "lycoris.kohya") == 0),
        "peft's metadata or LyCORIS's: %s", module ? module : "none");
    if (json_object_get(recorded, "metadata"))
        CHECK(json_is_true(json_object_get(peft, "unet.use_dora")), "%s", text);
    json_decref(peft);
    safetensors_close(file);
}

/* Returns the greatest difference between the weights that the reader computes for a layer and
 * those of the model, and adds up how far the layer's weights have moved. */
static double layer_difference(const struct products *s, const struct product_module *m,
    const struct adapter_module *read, const float *weights, double *moved) {
    const struct trained_tensor *t = &s->whole->tensors[m->tensor];
    const size_t bytes = (size_t)(t->n * t->taps * t->k) * sizeof(float);
    float *base = malloc(bytes), *own = malloc(bytes), *got = malloc(bytes);
    struct error err = { 0 };
    double worst = 0;
    trained_tensor_turn(t, s->base + t->at, true, base);
    trained_tensor_turn(t, weights + t->at, true, own);
    memcpy(got, base, bytes);
    CHECK(adapter_module_add(read, base, 1, got, &err), "%s", err.message);
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        worst = fmax(worst, fabs((double)got[i] - (double)own[i]));
        *moved = fmax(*moved, fabs((double)base[i] - (double)own[i]));
    }
    free(base);
    free(own);
    free(got);
    return worst;
}

static void the_reader_computes_the_same_weights(
    const struct small_job *job, struct parameters *p, const char *name, double allowed) {
    const struct adapter_targets targets = { unet_weights(job->unet),
        text_encoder_weights(job->text_encoder) };
    struct adapter *adapter;
    struct error err = { 0 };
    size_t count, leftovers;
    double worst = 0, moved = 0;
    CHECK(adapter_open(path, &targets, &adapter, &err), "%s", err.message);
    const struct adapter_module *modules = adapter_modules(adapter, &count);
    adapter_leftovers(adapter, &leftovers);
    const float *weights = parameters_gather(p->products->whole, &err);
    CHECK(weights && count == p->products->count && leftovers == 0, "%s: %zu layers, %zu left over",
        name, count, leftovers);
    for (size_t i = 0; i < p->products->count; i++) {
        size_t at = 0;
        while (at < count && modules[at].target != p->products->modules[i].target)
            at++;
        CHECK(at < count, "%s is missing", p->products->modules[i].target->name);
        if (at < count)
            worst = fmax(worst, layer_difference(p->products, &p->products->modules[i],
                                    &modules[at], weights, &moved));
    }
    printf("%s: %zu layers, weights within %.2g of the reader's, moved by up to %.2g\n", name,
        count, worst, moved);
    CHECK(worst <= allowed && moved > 1e-3, "%s: %g, moved by %g", name, worst, moved);
    adapter_close(adapter);
}

/* What a pull leaves in zeros, it adds to other numbers once, as a whole (kernels/backward.h). */
static void gradients_are_added_once(struct parameters *p, const char *name) {
    struct error err = { 0 };
    float *whole = p->products->whole->gradients;
    float *first = malloc((size_t)p->floats * sizeof(float));
    int64_t wrong = 0, nonzero = 0;
    for (int64_t i = 0; i < p->products->whole->floats; i++)
        whole[i] = (float)sin(0.3 * (double)i);
    CHECK(first && products_pull(p, &err), "%s", err.message);
    for (int64_t i = 0; first && i < p->floats; i++) {
        first[i] = p->gradients[i];
        nonzero += first[i] != 0;
        p->gradients[i] = (float)cos(1.1 * (double)i);
    }
    CHECK(products_pull(p, &err), "%s", err.message);
    for (int64_t i = 0; first && i < p->floats; i++)
        wrong += p->gradients[i] != (float)cos(1.1 * (double)i) + first[i];
    printf("%s: %lld of %lld gradients are not 0, all of them added once\n", name,
        (long long)nonzero, (long long)p->floats);
    CHECK(wrong == 0 && nonzero > 0, "%s: %lld of %lld gradients were added in parts", name,
        (long long)wrong, (long long)p->floats);
    CHECK(parameters_clear_gradients(p, &err), "%s", err.message);
    free(first);
}

static void check_kind(size_t i, const json_t *recorded) {
    struct small_job job = { 0 };
    struct error err = { 0 };
    CHECK_STRING(json_string_value(json_object_get(recorded, "name")), kinds[i].name);
    small_job_models(&job, kernels_reference());
    job.config = small_job_config(kinds[i].fields);
    job.config.train_text_encoder = false;
    job.parameters = create(&job);
    CHECK(save_adapter(path, kinds[i].format, job.parameters, job.parameters->values, &job.config,
              &facts, &err),
        "%s", err.message);
    names_and_shapes_are_theirs(recorded);
    the_reader_computes_the_same_weights(&job, job.parameters, kinds[i].name, kinds[i].allowed);
    gradients_are_added_once(job.parameters, kinds[i].name);
    small_job_finish(&job);
}

/* What factorization() of lycoris-lora 4.1.3 returns. */
static void dimensions_are_factorized_as_lycoris_does(void) {
    static const struct {
        int64_t dimension, factor, small, large;
    } examples[] = { { 127, -1, 1, 127 }, { 128, -1, 8, 16 }, { 128, 4, 4, 32 },
        { 250, -1, 10, 25 }, { 250, 4, 2, 125 }, { 250, 8, 5, 50 }, { 360, -1, 18, 20 },
        { 360, 16, 15, 24 }, { 512, 16, 16, 32 }, { 1024, 8, 8, 128 } };
    for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
        int64_t small, large;
        products_factorize(examples[i].dimension, examples[i].factor, &small, &large);
        CHECK(small == examples[i].small && large == examples[i].large, "%lld, %lld: %lld x %lld",
            (long long)examples[i].dimension, (long long)examples[i].factor, (long long)small,
            (long long)large);
    }
}

int main(int argc, char **argv) {
    json_t *cases = recorded_load(argc, argv);
    const int fd = mkstemp(path);
    CHECK(fd >= 0, "no temporary file");
    close(fd);
    CHECK(json_array_size(cases) == sizeof(kinds) / sizeof(kinds[0]), "%zu cases",
        json_array_size(cases));
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        check_kind(i, json_array_get(cases, i));
    dimensions_are_factorized_as_lycoris_does();
    json_decref(cases);
    unlink(path);
    return check_done();
}
