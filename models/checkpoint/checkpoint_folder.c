/* The diffusers folder layout: one folder per component, with its config.json and its weights. The
 * weights are in one safetensors file, in a variant of such a file, or in shards with an index. */
#include "models/checkpoint/checkpoint_internal.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/text/json.h"
#include "models/checkpoint/pickle.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The stem of a component's weight file, and the class that model_index.json may name for it. */
static const struct {
    const char *stem, *classes[3];
} components[COMPONENTS_MAX] = {
    [COMPONENT_TEXT_ENCODER] = { "model", { "CLIPTextModel", "CLIPTextModelWithProjection" } },
    [COMPONENT_UNET] = { "diffusion_pytorch_model", { "UNet2DConditionModel" } },
    [COMPONENT_VAE] = { "diffusion_pytorch_model", { "AutoencoderKL" } },
    [COMPONENT_SAFETY_CHECKER] = { "model", { "StableDiffusionSafetyChecker" } },
};

const char *checkpoint_stem(enum component component) {
    return components[component].stem;
}

/* Variants of weight files, in order of preference. The plain file is first, because the config
 * describes it. */
static const char *const variants[] = { "", ".fp16", ".bf16" };

static json_t *read_json(const char *folder, const char *name, struct error *err) {
    char *path = file_join(folder, name);
    if (!path) {
        error_set(err, ERROR_NO_MEMORY, "no memory for a path");
        return NULL;
    }
    json_t *json = json_parse_python_file(path, CONFIG_MAX_BYTES, err);
    free(path);
    return json;
}

static bool add_all(
    struct checkpoint *c, enum component component, struct safetensors *file, struct error *err) {
    const struct safetensors_header *header = safetensors_get_header(file);
    for (size_t i = 0; i < header->count; i++)
        if (!checkpoint_add_weight(c, component, header->entries[i].name, file, i, 0, 1, err))
            return false;
    return true;
}

/* Opens the shard `name` of an index, unless it is in `opened` already. */
static struct safetensors *open_shard(
    struct checkpoint *c, const char *folder, const char *name, json_t *opened, struct error *err) {
    json_t *known = json_object_get(opened, name);
    if (known)
        return c->files[json_integer_value(known)];
    if (strchr(name, '/') || name[0] == '.' || name[0] == 0) {
        error_set(err, ERROR_INVALID, "\"%.80s\" is not the name of a file in this folder", name);
        return NULL;
    }
    char *path = file_join(folder, name);
    struct safetensors *file = NULL;
    if (!path)
        error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    else
        file = checkpoint_add_file(c, path, err);
    free(path);
    if (file &&
        json_object_set_new(opened, name, json_integer((json_int_t)c->file_count - 1)) != 0) {
        error_set(err, ERROR_NO_MEMORY, "no memory for a list of shards");
        return NULL;
    }
    return file;
}

/* Checks that every tensor is in the shard that the index names, and that the shards contain no
 * other tensors. */
static bool add_shards(struct checkpoint *c, enum component component, const char *folder,
    const json_t *index, struct error *err) {
    json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map))
        return error_set(err, ERROR_INVALID, "there is no \"weight_map\" object in it");
    json_t *opened = json_object();
    if (!opened)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a list of shards");
    size_t first_file = c->file_count, total = 0;
    const char *name;
    json_t *value;
    bool ok = true;
    json_object_foreach(map, name, value) {
        const char *shard = json_string_value(value);
        struct safetensors *file = shard ? open_shard(c, folder, shard, opened, err) : NULL;
        ptrdiff_t entry = file ? safetensors_find(file, name) : -1;
        if (!shard)
            ok = error_set(err, ERROR_INVALID, "weight_map: %.80s has no file name", name);
        else if (!file)
            ok = false;
        else if (entry < 0)
            ok = error_set(err, ERROR_INVALID, "tensor %.80s is not in %.80s", name, shard);
        else
            ok = checkpoint_add_weight(c, component, name, file, (size_t)entry, 0, 1, err);
        if (!ok)
            break;
    }
    json_decref(opened);
    for (size_t i = first_file; ok && i < c->file_count; i++)
        total += safetensors_get_header(c->files[i])->count;
    if (ok && total != json_object_size(map))
        ok = error_set(err, ERROR_INVALID, "it names %zu tensors, but its files hold %zu",
            json_object_size(map), total);
    return ok;
}

/* Reports that there are no weights to read. Says so if there is a pickle instead of a safetensors
 * file. */
static bool nothing_found(const char *folder, const char *stem, struct error *err) {
    char pickle[256] = "";
    DIR *dir = opendir(folder);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
        char *path = file_join(folder, e->d_name);
        if (path && pickle_is_file(path))
            snprintf(pickle, sizeof(pickle), "%s", e->d_name);
        free(path);
    }
    if (dir)
        closedir(dir);
    if (pickle[0])
        return error_set(err, ERROR_UNSUPPORTED,
            "%s has its weights as %s, a pickle, which can run code; only safetensors is read: "
            "convert it to %s.safetensors",
            folder, pickle, stem);
    return error_set(err, ERROR_NOT_FOUND,
        "%s has no weights: looked for %s.safetensors, %s.fp16.safetensors and "
        "%s.safetensors.index.json",
        folder, stem, stem, stem);
}

/* Returns whether the path exists at all, even as a broken link or a device. Opening it then
 * reports what is wrong. */
static bool is_anything(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

/* Tries one candidate: STEM[VARIANT].safetensors, or STEM.safetensors.index[VARIANT].json. */
static bool try_variant(struct checkpoint *c, enum component component, const char *folder,
    const char *variant, bool *found, struct error *err) {
    const char *stem = components[component].stem;
    char *whole = NULL, *index = NULL;
    bool ok = asprintf(&whole, "%s/%s%s.safetensors", folder, stem, variant) >= 0 &&
              asprintf(&index, "%s/%s.safetensors.index%s.json", folder, stem, variant) >= 0;
    *found = false;
    if (!ok) {
        error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    } else if (is_anything(whole)) {
        *found = true;
        struct safetensors *file = checkpoint_add_file(c, whole, err);
        ok = file && add_all(c, component, file, err);
    } else if (is_anything(index)) {
        *found = true;
        json_t *json = json_parse_file(index, CONFIG_MAX_BYTES, err);
        ok = json != NULL;
        if (ok && !add_shards(c, component, folder, json, err))
            ok = error_prefix(err, "%s", index);
        json_decref(json);
    }
    free(whole);
    free(index);
    return ok;
}

static bool open_weights(
    struct checkpoint *c, enum component component, const char *folder, struct error *err) {
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        bool found;
        if (!try_variant(c, component, folder, variants[i], &found, err))
            return false;
        if (found)
            return true;
    }
    return nothing_found(folder, components[component].stem, err);
}

/* Reads the safety checker's config, and that of its preprocessor, which has its own folder. */
static bool parse_safety_checker(struct checkpoint *c, const json_t *json, struct error *err) {
    json_t *preprocessor = read_json(c->folder, "feature_extractor/preprocessor_config.json", err);
    const bool ok = preprocessor &&
                    safety_checker_config_parse(json, preprocessor, &c->safety_checker, err);
    json_decref(preprocessor);
    return ok;
}

static bool parse_config(
    struct checkpoint *c, enum component component, const json_t *json, struct error *err) {
    switch (component) {
    case COMPONENT_TEXT_ENCODER:
        return text_encoder_config_parse(json, &c->text_encoder, err);
    case COMPONENT_UNET:
        return unet_config_parse(json, &c->unet, err);
    case COMPONENT_VAE:
        return vae_config_parse(json, &c->vae, err);
    case COMPONENT_SAFETY_CHECKER:
        return parse_safety_checker(c, json, err);
    }
    return error_set(err, ERROR_INTERNAL, "no such component: %d", (int)component);
}

static bool open_component(
    struct checkpoint *c, const char *path, enum component component, struct error *err) {
    char *folder = file_join(path, component_name(component));
    if (!folder)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    bool ok = file_is_folder(folder);
    if (!ok) {
        error_set(
            err, ERROR_NOT_FOUND, "%s: there is no folder %s", path, component_name(component));
    } else {
        json_t *json = read_json(folder, "config.json", err);
        ok = json != NULL;
        if (ok && !parse_config(c, component, json, err))
            ok = error_prefix(err, "%s/config.json", folder);
        ok = ok && open_weights(c, component, folder, err);
        json_decref(json);
    }
    free(folder);
    return ok;
}

/* Checks the classes that model_index.json names for the components. So the error for a pipeline of
 * another family names its class, not its first unknown tensor. */
static bool check_index(struct checkpoint *c, const char *path, struct error *err) {
    json_t *index = read_json(path, "model_index.json", err);
    if (!index)
        return false;
    char shown[96];
    bool ok = json_is_object(index) ||
              error_set(err, ERROR_INVALID, "%s/model_index.json is %s; an object is needed", path,
                  json_describe(index, shown, sizeof(shown)));
    for (int i = 0; ok && i < COMPONENT_COUNT; i++) {
        const json_t *entry = json_object_get(index, component_name((enum component)i));
        const char *class = json_string_value(json_array_get(entry, 1));
        if (!entry)
            continue;
        if (!class) {
            ok = error_set(err, ERROR_INVALID,
                "%s/model_index.json: %s is %s; [library, class] is needed", path,
                component_name((enum component)i), json_describe(entry, shown, sizeof(shown)));
            break;
        }
        ok = false;
        for (int k = 0; k < 3 && components[i].classes[k]; k++)
            ok = ok || strcmp(class, components[i].classes[k]) == 0;
        if (!ok)
            error_set(err, ERROR_UNSUPPORTED, "%s/model_index.json: %s is a %.60s; supported: %s",
                path, component_name((enum component)i), class, components[i].classes[0]);
    }
    const json_t *checker = json_object_get(index, component_name(COMPONENT_SAFETY_CHECKER));
    c->has_safety_checker = json_is_string(json_array_get(checker, 1));
    const json_t *second = json_array_get(json_object_get(index, "text_encoder_2"), 1);
    if (ok && json_is_string(second))
        ok = error_set(err, ERROR_UNSUPPORTED,
            "%s/model_index.json: text_encoder_2 is a %.60s; Stable Diffusion 1.x and 2.x have one "
            "text encoder",
            path, json_string_value(second));
    json_decref(index);
    return ok;
}

static bool open_scheduler(struct checkpoint *c, const char *path, struct error *err) {
    c->scheduler = read_json(path, "scheduler/scheduler_config.json", err);
    if (!c->scheduler)
        return false;
    return json_is_object(c->scheduler) ||
           error_set(
               err, ERROR_INVALID, "%s/scheduler/scheduler_config.json is not an object", path);
}

bool checkpoint_open_folder(struct checkpoint *c, const char *path, struct error *err) {
    char *index = file_join(path, "model_index.json");
    char *unet = file_join(path, "unet");
    char *tokenizer = file_join(path, "tokenizer");
    char *checker = file_join(path, component_name(COMPONENT_SAFETY_CHECKER));
    c->folder = strdup(path);
    bool ok = index && unet && tokenizer && checker && c->folder;
    c->has_safety_checker = true; /* unless the index says otherwise */
    if (!ok)
        error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    else if (file_exists(index))
        ok = check_index(c, path, err);
    else if (!file_is_folder(unet))
        ok = error_set(err, ERROR_NOT_FOUND,
            "%s is not a checkpoint: there is neither a model_index.json nor a folder unet", path);
    for (int i = 0; ok && i < COMPONENT_COUNT; i++)
        ok = open_component(c, path, (enum component)i, err);
    ok = ok && checkpoint_seal(c, err) && open_scheduler(c, path, err);
    if (ok && file_is_folder(tokenizer)) {
        c->tokenizer_dir = tokenizer;
        tokenizer = NULL;
    }
    c->has_safety_checker = c->has_safety_checker && ok && file_is_folder(checker);
    free(checker);
    free(index);
    free(unet);
    free(tokenizer);
    return ok;
}

bool checkpoint_open_safety_checker(struct checkpoint *c, struct error *err) {
    if (c->tables[COMPONENT_SAFETY_CHECKER].count > 0)
        return true;
    if (!c->folder)
        return error_set(
            err, ERROR_NOT_FOUND, "safety_checker: a checkpoint of a single file has none");
    return open_component(c, c->folder, COMPONENT_SAFETY_CHECKER, err) && checkpoint_seal(c, err);
}
