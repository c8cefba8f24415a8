/* Tests how models are created from a checkpoint. A model asks for exactly the names and shapes of
 * Stable Diffusion 1.5. A folder gives the same bits as weights passed directly. An error names
 * what is wrong in a file. */
#include "models/checkpoint/checkpoint.h"
#include "tests/check.h"
#include "tests/models/find_weight.h"
#include "tests/models/small/small_models.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the published list of SD-1.5's tensors ---- */

#define MAX_LINES 2000

static struct {
    char text[160]; /* "unet<TAB>conv_in.weight<TAB>320x4x3x3" */
    int asked;
} list[MAX_LINES];
static int list_count;

static void read_list(const char *path) {
    FILE *file = fopen(path, "r");
    CHECK(file, "%s", path);
    while (file && list_count < MAX_LINES && fgets(list[list_count].text, 160, file)) {
        list[list_count].text[strcspn(list[list_count].text, "\n")] = 0;
        list_count++;
    }
    if (file)
        fclose(file);
}

/* Zeros for the largest tensor, in pages that take no memory. */
struct zeros {
    const char *component;
    void *data;
    size_t bytes;
};

static bool zeros_get(void *user, const char *name, int rank, const int64_t *shape,
    struct tensor *out, struct error *err) {
    const struct zeros *zeros = user;
    char line[160];
    int at = snprintf(line, sizeof(line), "%s\t%s\t", zeros->component, name);
    for (int i = 0; i < rank; i++) {
        at += snprintf(
            line + at, sizeof(line) - (size_t)at, "%s%lld", i ? "x" : "", (long long)shape[i]);
    }
    for (int i = 0; i < list_count; i++) {
        /* Where the model asks for a matrix, the list may have SD-1.x's 1x1 convolution. */
        const size_t length = strlen(line);
        if (strncmp(list[i].text, line, length) == 0 &&
            (!list[i].text[length] || (rank == 2 && strcmp(list[i].text + length, "x1x1") == 0))) {
            list[i].asked++;
            *out = (struct tensor){ .data = zeros->data, .dtype = DTYPE_F32, .rank = rank };
            memcpy(out->shape, shape, (size_t)rank * sizeof(*shape));
            CHECK(tensor_bytes(out) <= zeros->bytes, "%s is too large", name);
            return true;
        }
    }
    return error_set(err, ERROR_INVALID, "%s is not in the list", line);
}

/* The model's own list contains each matrix and convolution of the published list exactly once,
 * under its layer's name and with its sizes, and nothing else. */
static void names_exactly_sd15(const char *component, const struct weight_list *weights) {
    size_t matrices = 0;
    for (int i = 0; i < list_count; i++) {
        char of[16], name[128], shape[32];
        if (sscanf(list[i].text, "%15s %127s %31s", of, name, shape) != 3 ||
            strcmp(of, component) != 0 || !strchr(shape, 'x') || strstr(name, "embeddings."))
            continue;
        matrices++;
        char *end = strrchr(name, '.');
        CHECK(end && strcmp(end, ".weight") == 0, "%s", name);
        *end = 0;
        const struct named_weight *found = NULL;
        int times = 0;
        for (size_t k = 0; k < weights->count; k++)
            if (strcmp(weights->items[k].name, name) == 0) {
                found = &weights->items[k];
                times++;
            }
        CHECK(times == 1, "%s %s is named %d times", component, name, times);
        long long n = 0, k = 0, size = 1;
        sscanf(shape, "%lldx%lldx%lld", &n, &k, &size);
        CHECK(found && found->n == n && found->k == k, "%s %s is not %s", component, name, shape);
        const bool is_3x3 = found && found->is_conv && found->kind != CONV_1X1;
        CHECK(is_3x3 == (size == 3), "%s %s is not %s", component, name, shape);
        CHECK(found == weight_list_find(weights, name), "%s", name);
    }
    CHECK(weights->count == matrices, "%s: %zu names, %zu matrices", component, weights->count,
        matrices);
    printf("%s: %zu matrices, each named once\n", component, matrices);
}

static void asks_for_exactly_sd15(const char *path) {
    static const struct text_encoder_config text = {
        .vocab_size = 49408,
        .hidden_size = 768,
        .intermediate_size = 3072,
        .num_hidden_layers = 12,
        .num_attention_heads = 12,
        .max_position_embeddings = 77,
    };
    static const struct unet_config unet = {
        .in_channels = 4,
        .out_channels = 4,
        .block_count = 4,
        .block_out_channels = { 320, 640, 1280, 1280 },
        .down_has_attention = { true, true, true, false },
        .up_has_attention = { false, true, true, true },
        .layers_per_block = 2,
        .heads = { 8, 8, 8, 8 },
        .cross_attention_dim = 768,
        .norm_num_groups = 32,
    };
    static const struct vae_config vae = {
        .in_channels = 3,
        .out_channels = 3,
        .latent_channels = 4,
        .block_count = 4,
        .block_out_channels = { 128, 256, 512, 512 },
        .layers_per_block = 2,
        .norm_num_groups = 32,
    };
    struct error err = { 0 };
    struct zeros zeros = { .bytes = (size_t)49408 * 768 * sizeof(float) };
    zeros.data = mmap(NULL, zeros.bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(zeros.data != MAP_FAILED, "no address space");
    const struct weights w = { .get = zeros_get,
        .user = &zeros,
        .kernels = kernels_reference(),
        .dtype = DTYPE_BF16,
        .check_only = true };
    struct text_encoder *e = NULL;
    struct unet *u = NULL;
    struct vae *v = NULL;
    read_list(path);
    zeros.component = "text_encoder";
    CHECK(text_encoder_create(&text, &w, &e, &err), "%s", err.message);
    zeros.component = "unet";
    CHECK(unet_create(&unet, &w, &u, &err), "%s", err.message);
    zeros.component = "vae";
    CHECK(vae_create(&vae, &w, VAE_BOTH, &v, &err), "%s", err.message);
    int once = 0;
    for (int i = 0; i < list_count; i++) {
        CHECK(list[i].asked == 1, "%s was asked for %d times", list[i].text, list[i].asked);
        once += list[i].asked == 1;
    }
    CHECK(once == 1130, "%d tensors, SD-1.5 has 1130", once);
    printf("asked once for each of SD-1.5's %d tensors\n", once);
    names_exactly_sd15("text_encoder", text_encoder_weights(e));
    names_exactly_sd15("unet", unet_weights(u));
    names_exactly_sd15("vae", vae_weights(v));
    text_encoder_destroy(e);
    unet_destroy(u);
    vae_destroy(v);
    munmap(zeros.data, zeros.bytes);
}

/* ---- a small checkpoint on disk ---- */

static const struct {
    const char *component, *file, *config;
} parts[3] = {
    { "text_encoder", "model.safetensors",
        "{\"vocab_size\": 50, \"hidden_size\": 24, \"intermediate_size\": 48,"
        " \"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"max_position_embeddings\": 7}" },
    { "unet", "diffusion_pytorch_model.safetensors",
        "{\"sample_size\": 4, \"in_channels\": 4, \"out_channels\": 4,"
        " \"block_out_channels\": [8, 16], \"layers_per_block\": 1, \"attention_head_dim\": 2,"
        " \"down_block_types\": [\"CrossAttnDownBlock2D\", \"DownBlock2D\"],"
        " \"up_block_types\": [\"UpBlock2D\", \"CrossAttnUpBlock2D\"],"
        " \"cross_attention_dim\": 24, \"norm_num_groups\": 4}" },
    { "vae", "diffusion_pytorch_model.safetensors",
        "{\"block_out_channels\": [8, 16], \"layers_per_block\": 1, \"latent_channels\": 4,"
        " \"norm_num_groups\": 4, \"in_channels\": 3, \"out_channels\": 3, \"sample_size\": 8,"
        " \"down_block_types\": [\"DownEncoderBlock2D\", \"DownEncoderBlock2D\"],"
        " \"up_block_types\": [\"UpDecoderBlock2D\", \"UpDecoderBlock2D\"]}" },
};

struct models {
    struct text_encoder *text;
    struct unet *unet;
    struct vae *vae;
};

static void models_finish(struct models *m) {
    text_encoder_destroy(m->text);
    unet_destroy(m->unet);
    vae_destroy(m->vae);
    *m = (struct models){ 0 };
}

static char root[] = "/tmp/latentd-create-XXXXXX";

static const char *in_root(const char *folder, const char *name) {
    static char path[256];
    snprintf(path, sizeof(path), "%s/%s%s%s", root, folder, name[0] ? "/" : "", name);
    return path;
}

static void write_text(const char *folder, const char *name, const char *text) {
    FILE *file = fopen(in_root(folder, name), "w");
    CHECK(file && fputs(text, file) >= 0, "%s/%s", folder, name);
    if (file)
        fclose(file);
}

static void write_weights(int part, const struct safetensors_item *items, size_t count) {
    struct error err = { 0 };
    const char *path = in_root(parts[part].component, parts[part].file);
    CHECK(safetensors_write(path, items, count, NULL, &err), "%s", err.message);
}

static struct checkpoint *open_checkpoint(void) {
    struct error err = { 0 };
    struct checkpoint *checkpoint = NULL;
    CHECK(checkpoint_open(root, NULL, &checkpoint, &err), "%s", err.message);
    return checkpoint;
}

/* Runs all three models: from a prompt to an image, and from the image to moments. */
struct run {
    const struct models *models;
    float image[8 * 8 * 3], moments[4 * 4 * 8];
};

static void forward(struct compute *c, void *user) {
    static int32_t ids[7] = { 3, 1, 4, 1, 5, 9, 2 };
    static float noise[4 * 4 * 4], time = 321.0f;
    struct run *run = user;
    const struct models *m = run->models;
    const struct tensor tokens = tensor_2d(ids, DTYPE_I32, 1, 7);
    const struct tensor latents = tensor_4d(noise, DTYPE_F32, 1, 4, 4, 4);
    const struct tensor timesteps = tensor_1d(&time, DTYPE_F32, 1);
    for (int i = 0; i < 64; i++)
        noise[i] = (float)(i % 7) - 3;
    struct tensor context = compute_tensor_3d(c, text_encoder_activation_dtype(m->text), 1, 7, 24);
    struct tensor kv = compute_tensor_3d(
        c, unet_activation_dtype(m->unet), 1, 7, unet_context_channels(m->unet));
    struct tensor noise_pred = compute_tensor_4d(c, DTYPE_F32, 1, 4, 4, 4);
    struct tensor image = tensor_4d(run->image, DTYPE_F32, 1, 8, 8, 3);
    struct tensor moments = tensor_4d(run->moments, DTYPE_F32, 1, 4, 4, 8);
    text_encoder_forward(m->text, c, &tokens, 0, &context);
    unet_encode_context(m->unet, c, &context, &kv);
    unet_forward(m->unet, c, &latents, &timesteps, &kv, NULL, &noise_pred);
    vae_decode(m->vae, c, &noise_pred, &image);
    vae_encode(m->vae, c, &image, &moments);
}

/* Loads one of the three models; `part` is its index in `parts`. */
static bool load_part(struct checkpoint *checkpoint, int part, const struct kernels *kernels,
    enum dtype dtype, struct models *out, struct error *err) {
    const struct weights w = weights_from_checkpoint(
        checkpoint, (enum component)part, kernels, dtype);
    if (part == 0)
        return text_encoder_create(checkpoint_text_encoder_config(checkpoint), &w, &out->text, err);
    if (part == 1)
        return unet_create(checkpoint_unet_config(checkpoint), &w, &out->unet, err);
    return vae_create(checkpoint_vae_config(checkpoint), &w, VAE_BOTH, &out->vae, err);
}

static void a_folder_gives_the_same_bits(
    const struct kernels *kernels, enum dtype dtype, const struct rule_source kinds[3]) {
    struct rule_source sources[3] = { kinds[0], kinds[1], kinds[2] };
    struct error err = { 0 };
    struct models direct = { 0 }, loaded = { 0 };
    struct weights w[3];
    for (int i = 0; i < 3; i++)
        w[i] = rule_weights(&sources[i], kernels, dtype);
    struct checkpoint *checkpoint = open_checkpoint();
    CHECK(text_encoder_create(
              checkpoint_text_encoder_config(checkpoint), &w[0], &direct.text, &err) &&
              unet_create(checkpoint_unet_config(checkpoint), &w[1], &direct.unet, &err) &&
              vae_create(checkpoint_vae_config(checkpoint), &w[2], VAE_BOTH, &direct.vae, &err),
        "%s", err.message);
    CHECK(load_part(checkpoint, 0, kernels, dtype, &loaded, &err) &&
              load_part(checkpoint, 1, kernels, dtype, &loaded, &err) &&
              load_part(checkpoint, 2, kernels, dtype, &loaded, &err),
        "%s", err.message);
    checkpoint_close(checkpoint); /* the models no longer need the checkpoint */

    static struct run from_rule, from_folder;
    from_rule.models = &direct;
    from_folder.models = &loaded;
    run_model(kernels, forward, &from_rule);
    run_model(kernels, forward, &from_folder);
    double sum = 0;
    for (int i = 0; i < 8 * 8 * 3; i++)
        sum += fabs((double)from_rule.image[i]);
    CHECK(sum > 1 && isfinite(sum), "the image is %g", sum);
    CHECK(memcmp(from_rule.image, from_folder.image, sizeof(from_rule.image)) == 0 &&
              memcmp(from_rule.moments, from_folder.moments, sizeof(from_rule.moments)) == 0,
        "%s, %s: the model made by a rule and the one from its folder compute different bits",
        kernels->name, dtype_name(dtype));
    printf("%s %s: the folder gives the same bits\n", kernels->name, dtype_name(dtype));
    models_finish(&direct);
    models_finish(&loaded);
    for (int i = 0; i < 3; i++)
        rule_source_finish(&sources[i]);
}

/* Loads a part from the current file and expects an error. */
static void fails_with(int part, const char *first, const char *second) {
    struct error err = { 0 };
    struct models m = { 0 };
    struct checkpoint *checkpoint = open_checkpoint();
    const bool ok = load_part(checkpoint, part, kernels_reference(), DTYPE_F32, &m, &err);
    CHECK(!ok && !m.text && !m.unet && !m.vae, "%s: a wrong file was accepted", first);
    CHECK_CONTAINS(err.message, first);
    CHECK_CONTAINS(err.message, second);
    char prefix[32];
    const int length = snprintf(prefix, sizeof(prefix), "%s: ", parts[part].component);
    CHECK(
        strncmp(err.message, prefix, (size_t)length) == 0 && !strstr(err.message + length, prefix),
        "the error does not name the component exactly once: %s", err.message);
    printf("%s\n", err.message);
    checkpoint_close(checkpoint);
}

/* For each part: one tensor missing, one too many, one with another shape. */
static void a_wrong_file_fails_by_name(struct rule_source sources[3]) {
    for (int part = 0; part < 3; part++) {
        const struct rule_source *source = &sources[part];
        struct safetensors_item *items = calloc(source->count + 1, sizeof(*items));
        const size_t last = source->count - 1;
        memcpy(items, source->items, source->count * sizeof(*items));
        write_weights(part, items, last);
        fails_with(part, items[last].name, "missing");

        float extra = 0;
        items[last + 1] = (struct safetensors_item){ "one.too_many",
            tensor_1d(&extra, DTYPE_F32, 1) };
        write_weights(part, items, last + 2);
        fails_with(part, "one.too_many", "no place for");

        items[last].tensor = tensor_1d(&extra, DTYPE_F32, 1);
        write_weights(part, items, last + 1);
        fails_with(part, items[last].name, "has the shape [1]");
        write_weights(part, source->items, source->count);
        free(items);
    }
}

/* The file is truncated between opening and reading. */
static void a_file_cut_while_read_fails(struct rule_source sources[3]) {
    struct error err = { 0 };
    struct models m = { 0 };
    struct checkpoint *checkpoint = open_checkpoint();
    struct stat before;
    const char *path = in_root(parts[1].component, parts[1].file);
    CHECK(stat(path, &before) == 0 && truncate(path, before.st_size / 2) == 0, "%s", path);
    CHECK(!load_part(checkpoint, 1, kernels_cpu(), DTYPE_F32, &m, &err) && !m.unet,
        "half a file was accepted");
    CHECK_CONTAINS(err.message, path);
    CHECK_CONTAINS(err.message, "it changed while it was read");
    printf("%s\n", err.message);
    checkpoint_close(checkpoint);
    write_weights(1, sources[1].items, sources[1].count);
}

static void write_folder(struct rule_source sources[3]) {
    /* The file gets exactly the tensors that the model asks for. */
    struct models m = { 0 };
    struct error err = { 0 };
    CHECK(mkdtemp(root), "%s", root);
    CHECK(mkdir(in_root("scheduler", ""), 0700) == 0, "scheduler");
    write_text("scheduler", "scheduler_config.json", "{}");
    json_t *json[3];
    struct text_encoder_config text;
    struct unet_config unet;
    struct vae_config vae;
    struct weights w[3];
    for (int i = 0; i < 3; i++) {
        CHECK(mkdir(in_root(parts[i].component, ""), 0700) == 0, "%s", parts[i].component);
        write_text(parts[i].component, "config.json", parts[i].config);
        json[i] = json_loads(parts[i].config, 0, NULL);
        w[i] = rule_weights(&sources[i], kernels_reference(), DTYPE_F32);
    }
    CHECK(text_encoder_config_parse(json[0], &text, &err) &&
              unet_config_parse(json[1], &unet, &err) && vae_config_parse(json[2], &vae, &err) &&
              text_encoder_create(&text, &w[0], &m.text, &err) &&
              unet_create(&unet, &w[1], &m.unet, &err) &&
              vae_create(&vae, &w[2], VAE_BOTH, &m.vae, &err),
        "%s", err.message);
    for (int i = 0; i < 3; i++) {
        write_weights(i, sources[i].items, sources[i].count);
        json_decref(json[i]);
    }
    models_finish(&m);
}

static void remove_folder(void) {
    unlink(in_root("scheduler", "scheduler_config.json"));
    rmdir(in_root("scheduler", ""));
    for (int i = 0; i < 3; i++) {
        unlink(in_root(parts[i].component, "config.json"));
        unlink(in_root(parts[i].component, parts[i].file));
        rmdir(in_root(parts[i].component, ""));
    }
    rmdir(root);
}

int main(int argc, char **argv) {
    /* A file may have any of the three dtypes. */
    static const struct rule_source kinds[3] = {
        { .gain = 0.7 },
        { .gain = 0.7, .dtype = DTYPE_F16 },
        { .gain = 0.7, .dtype = DTYPE_BF16 },
    };
    struct rule_source sources[3] = { kinds[0], kinds[1], kinds[2] };
    asks_for_exactly_sd15(argc > 1 ? argv[1] : "sd15_tensors.tsv");
    write_folder(sources);
    a_folder_gives_the_same_bits(kernels_reference(), DTYPE_F32, kinds);
    a_folder_gives_the_same_bits(kernels_cpu(), DTYPE_BF16, kinds);
    a_wrong_file_fails_by_name(sources);
    a_file_cut_while_read_fails(sources);
    remove_folder();
    for (int k = 0; k < 3; k++)
        rule_source_finish(&sources[k]);
    return check_done();
}
