#include "train/kohya/kohya_config.h"

#include "base/text/json.h"
#include "train/kohya/keys.h"
#include "train/kohya/translation.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- what the parts share --- */

json_t *kohya_take(struct translation *t, const char *key) {
    json_t *value = json_incref(json_object_get(t->from, key));
    json_object_del(t->from, key);
    return value;
}

void kohya_set(struct translation *t, const char *field, json_t *value) {
    json_object_set(t->job, field, value);
}

void kohya_set_new(struct translation *t, const char *field, json_t *value) {
    json_object_set_new(t->job, field, value);
}

void kohya_note(struct translation *t, const char *key, const char *why) {
    json_array_append_new(t->notes, json_sprintf("%s has no effect: %s", key, why));
}

bool kohya_refuse(
    struct translation *t, const char *key, const json_t *value, const char *why, ...) {
    char shown[100], text[ERROR_ALLOWED_BYTES];
    va_list arguments;
    va_start(arguments, why);
    vsnprintf(text, sizeof(text), why, arguments);
    va_end(arguments);
    return error_field(t->err, key, json_describe(value, shown, sizeof(shown)), "%s", text);
}

static bool are_equal(const json_t *a, const json_t *b) {
    return json_equal(a, b) ||
           (json_is_number(a) && json_is_number(b) && json_number_value(a) == json_number_value(b));
}

bool kohya_is_one_of(const json_t *value, const char *list) {
    json_t *values = json_loads(list, 0, NULL), *one;
    bool found = false;
    size_t i;
    json_array_foreach(values, i, one) {
        found = found || are_equal(value, one);
    }
    json_decref(values);
    return found;
}

bool kohya_take_flag(struct translation *t, const char *key, bool *out) {
    json_t *value = kohya_take(t, key);
    const bool ok = !value || json_is_boolean(value) ||
                    kohya_refuse(t, key, value, "true or false");
    if (value)
        *out = json_is_true(value);
    json_decref(value);
    return ok;
}

bool kohya_take_integer(
    struct translation *t, const char *key, json_int_t least, json_int_t *out, bool *given) {
    json_t *value = kohya_take(t, key);
    int64_t number;
    if (given)
        *given = value;
    if (!value)
        return true;
    const bool ok = (json_exact_integer(value, &number) && number >= least &&
                        number <= INT32_MAX) ||
                    kohya_refuse(t, key, value, "an integer from %lld", (long long)least);
    if (ok)
        *out = number;
    json_decref(value);
    return ok;
}

/* --- one object of all keys --- */

/* Whether a value counts as not given: scripts and pages write such values for options that are
 * not set. */
static bool is_nothing(const json_t *value) {
    return json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

static bool unknown(struct translation *t, const char *key, const json_t *value, unsigned place) {
    return kohya_refuse(t, key, value, "%s",
        place == KOHYA_FILE      ? "it is no key that train_network.py has"
        : place == KOHYA_DATASET ? "it is no key of [general] or [[datasets]] in a --dataset_config"
                                 : "it is no key of [[datasets.subsets]] in a --dataset_config");
}

/* Adds the keys of a table that may stand at `place`, under the names that they have in a
 * --config_file; they replace earlier ones. `except`: a key that is left out; may be NULL. */
static bool join(
    struct translation *t, const json_t *table, unsigned place, const char *except, json_t *out) {
    static const char *const names[][2] = { { "batch_size", "train_batch_size" },
        { "num_repeats", "dataset_repeats" }, { "image_dir", "train_data_dir" } };
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)table, key, value) {
        const struct kohya_key *known = kohya_key_named(key);
        const char *name = key;
        if (except && strcmp(key, except) == 0)
            continue;
        if (!known || !(known->places & place))
            return unknown(t, key, value, place);
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
            if (strcmp(key, names[i][0]) == 0)
                name = names[i][1];
        if (is_nothing(value))
            json_object_del(out, name);
        else
            json_object_set(out, name, value);
    }
    return true;
}

/* Joins the sections of a --config_file, whose names mean nothing. */
static bool join_sections(struct translation *t, const json_t *config) {
    const char *key, *inner;
    json_t *value, *item;
    json_t *all = json_object();
    bool ok = all;
    json_object_foreach((json_t *)config, key, value) {
        if (!json_is_object(value)) {
            ok = ok && (!json_object_get(all, key) ||
                           kohya_refuse(t, key, value, "one value: it stands in a section too"));
            json_object_set(all, key, value);
            continue;
        }
        json_object_foreach(value, inner, item) {
            ok = ok && (!json_object_get(all, inner) ||
                           kohya_refuse(t, inner, item, "one value: it stands in two sections"));
            json_object_set(all, inner, item);
        }
    }
    ok = ok && join(t, all, KOHYA_FILE, NULL, t->from);
    json_decref(all);
    return ok;
}

/* --- the data set --- */

/* Returns the only table of a list, borrowed; NULL and an error if there is not just one. */
static const json_t *only_table(
    struct translation *t, const json_t *list, const char *key, const char *advice) {
    const json_t *one = json_array_get(list, 0);
    if (json_array_size(list) == 1 && json_is_object(one))
        return one;
    kohya_refuse(t, key, list, "one table: %s", advice);
    return NULL;
}

/* Reads the subset of the class. Its own options must be those of the other pictures, because a job
 * has one of each. */
static bool read_class(struct translation *t, const json_t *subset) {
    static const char *const own[] = { "image_dir", "class_tokens", "is_reg", "num_repeats",
        "caption_extension" };
    const json_t *folder = json_object_get(subset, "image_dir");
    const json_t *tokens = json_object_get(subset, "class_tokens");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)subset, key, value) {
        const struct kohya_key *known = kohya_key_named(key);
        bool is_own = false;
        for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
            is_own = is_own || strcmp(own[i], key) == 0;
        if (!known || !(known->places & KOHYA_SUBSET))
            return unknown(t, key, value, KOHYA_SUBSET);
        if (!is_own && !are_equal(value, json_object_get(t->from, key)))
            return kohya_refuse(t, key, value, "the value that the other pictures have");
    }
    if (!json_is_string(folder))
        return kohya_refuse(t, "image_dir", folder, "a folder, in each subset");
    if (!json_is_string(tokens))
        return kohya_refuse(t, "class_tokens", tokens, "a text, in a subset with is_reg");
    kohya_set_new(t, "with_prior_preservation", json_true());
    kohya_set(t, "class_data_dir", (json_t *)folder);
    kohya_set(t, "class_prompt", (json_t *)tokens);
    kohya_set_new(t, "num_class_images", json_integer(1)); /* none is drawn if there are any */
    json_array_append_new(t->notes,
        json_string("is_reg: each batch has as many pictures of the class after its own, all with "
                    "class_tokens as their caption, in place of a mixture"));
    return true;
}

/* Reads a --dataset_config over the keys of the --config_file. */
static bool read_dataset(struct translation *t, const json_t *dataset) {
    static const char folders[] =
        "put the pictures into one folder, with subfolders REPEATS_NAME if they differ";
    const json_t *general = json_object_get(dataset, "general"), *class = NULL, *pictures = NULL;
    const char *key;
    json_t *value;
    size_t i;
    json_object_foreach((json_t *)dataset, key, value) {
        if (strcmp(key, "general") != 0 && strcmp(key, "datasets") != 0)
            return kohya_refuse(t, key, value, "[general] and [[datasets]] are what there is");
    }
    if (general && !json_is_object(general))
        return kohya_refuse(t, "general", general, "a table");
    const json_t *set = only_table(t, json_object_get(dataset, "datasets"), "datasets", folders);
    const json_t *subsets = json_object_get(set, "subsets");
    if (!set)
        return false;
    json_array_foreach(subsets, i, value) {
        const bool is_class = json_is_true(json_object_get(value, "is_reg"));
        const json_t **which = is_class ? &class : &pictures;
        if (!json_is_object(value) || *which)
            return kohya_refuse(
                t, "subsets", subsets, "one table%s: %s", is_class ? " with is_reg" : "", folders);
        *which = value;
    }
    if (!pictures)
        return kohya_refuse(t, "subsets", subsets, "a table without is_reg");
    if (!json_is_string(json_object_get(pictures, "image_dir")))
        return kohya_refuse(
            t, "image_dir", json_object_get(pictures, "image_dir"), "a folder, in each subset");
    return join(t, general, KOHYA_DATASET, NULL, t->from) &&
           join(t, set, KOHYA_DATASET, "subsets", t->from) &&
           join(t, pictures, KOHYA_SUBSET, NULL, t->from) && (!class || read_class(t, class));
}

static bool read_resolution(struct translation *t) {
    json_t *value = kohya_take(t, "resolution");
    const json_t *sides[2] = { value, value };
    const char *text = json_string_value(value);
    int64_t numbers[2] = { 0, 0 };
    bool ok;
    if (json_is_array(value) && json_array_size(value) == 2)
        for (size_t i = 0; i < 2; i++)
            sides[i] = json_array_get(value, i);
    if (text) {
        char *end;
        numbers[0] = numbers[1] = strtol(text, &end, 10);
        if (*end == ',')
            numbers[1] = strtol(end + 1, &end, 10);
        ok = end != text && !*end;
    } else {
        ok = !value || (json_exact_integer(sides[0], &numbers[0]) &&
                           json_exact_integer(sides[1], &numbers[1]));
    }
    ok = (ok && numbers[0] == numbers[1]) ||
         kohya_refuse(t, "resolution", value, "a side in px, or twice the same side");
    if (ok && value)
        kohya_set_new(t, "resolution", json_integer(numbers[0]));
    json_decref(value);
    return ok;
}

static bool read_extension(struct translation *t, const char *key) {
    json_t *value = kohya_take(t, key);
    const bool ok = !value ||
                    kohya_is_one_of(value, "[\".txt\", \"txt\", \".caption\", \"caption\"]") ||
                    kohya_refuse(t, key, value, "\".txt\" or \".caption\"");
    json_decref(value);
    return ok;
}

/* Reads what a kohya job does with its pictures. */
static bool read_pictures(struct translation *t, bool has_dataset) {
    bool random_crop = false, given;
    json_int_t repeats = 1;
    if (!read_resolution(t) || !read_extension(t, "caption_extention") ||
        !read_extension(t, "caption_extension") ||
        !kohya_take_flag(t, "random_crop", &random_crop) ||
        !kohya_take_integer(t, "dataset_repeats", 1, &repeats, &given))
        return false;
    kohya_set_new(t, "center_crop", json_boolean(!random_crop));
    if (!json_object_get(t->from, "resize_interpolation"))
        json_array_append_new(t->notes,
            json_string("resize_interpolation: pictures are resized by Lanczos; the scripts' "
                        "default, OpenCV's area, is not implemented"));
    json_array_append_new(t->notes,
        json_string("captions: each line of a picture's file is a caption here, and one of them is "
                    "drawn each time; the scripts read the first line"));
    if (given && !has_dataset)
        kohya_note(t, "dataset_repeats", "there is no --dataset_config");
    t->repeats = has_dataset ? repeats : 1;
    if (t->repeats > 1)
        json_array_append_new(t->notes,
            json_sprintf("num_repeats: an epoch with %lld times each picture is %lld epochs here",
                (long long)t->repeats, (long long)t->repeats));
    json_t *tokens = kohya_take(t, "class_tokens"), *is_class = kohya_take(t, "is_reg");
    const bool ok = !tokens || json_is_string(tokens) ||
                    kohya_refuse(t, "class_tokens", tokens, "a text");
    if (ok && tokens)
        kohya_set(t, "instance_prompt", tokens);
    json_decref(tokens);
    json_decref(is_class);
    return ok;
}

/* --- the loop --- */

static bool read_length(struct translation *t) {
    json_int_t steps = 1600, epochs = 0;
    bool has_steps, has_epochs;
    if (!kohya_take_integer(t, "max_train_steps", 1, &steps, &has_steps) ||
        !kohya_take_integer(t, "max_train_epochs", 1, &epochs, &has_epochs))
        return false;
    if (has_epochs && has_steps)
        kohya_note(t, "max_train_steps", "max_train_epochs is given too");
    if (has_epochs)
        kohya_set_new(t, "num_train_epochs", json_integer(epochs * t->repeats));
    else
        kohya_set_new(t, "max_train_steps", json_integer(steps));
    return true;
}

/* Reads when checkpoints are saved, and how many are kept. */
static bool read_saving(struct translation *t) {
    json_int_t steps = 0, epochs = 0, last_steps = 0, last_epochs = 0;
    bool by_steps, by_epochs, has_last_steps, has_last_epochs;
    if (!kohya_take_integer(t, "save_every_n_steps", 1, &steps, &by_steps) ||
        !kohya_take_integer(t, "save_every_n_epochs", 1, &epochs, &by_epochs) ||
        !kohya_take_integer(t, "save_last_n_steps", 1, &last_steps, &has_last_steps) ||
        !kohya_take_integer(t, "save_last_n_epochs", 1, &last_epochs, &has_last_epochs))
        return false;
    if (by_steps || by_epochs)
        kohya_set_new(t, "checkpointing_steps", json_integer(steps));
    if (by_epochs)
        kohya_set_new(t, "checkpointing_epochs", json_integer(epochs * t->repeats));
    if (has_last_epochs && !by_epochs)
        kohya_note(t, "save_last_n_epochs", "there is no save_every_n_epochs");
    if (has_last_steps && !by_steps)
        kohya_note(t, "save_last_n_steps", "there is no save_every_n_steps");
    const json_int_t kept = by_steps && has_last_steps ? last_steps / steps + 1 : 0;
    const json_int_t kept_epochs = by_epochs && has_last_epochs ? last_epochs : 0;
    if (by_steps && by_epochs && (kept || kept_epochs)) {
        json_t *limit = json_integer(kept ? last_steps : last_epochs);
        kohya_refuse(t, kept ? "save_last_n_steps" : "save_last_n_epochs", limit,
            "nothing beside both save_every_n_steps and save_every_n_epochs: a job has one number "
            "of checkpoints, which counts both kinds");
        json_decref(limit);
        return false;
    }
    if (kept || kept_epochs)
        kohya_set_new(t, "checkpoints_total_limit", json_integer(kept ? kept : kept_epochs));
    return true;
}

static bool read_precision(struct translation *t) {
    json_t *value = kohya_take(t, "save_precision");
    const char *word = json_string_value(value);
    const bool is_float = word && strcmp(word, "float") == 0;
    const bool ok = !value || is_float || kohya_is_one_of(value, "[\"fp16\", \"bf16\"]") ||
                    kohya_refuse(t, "save_precision", value, "\"float\", \"fp16\" or \"bf16\"");
    if (ok && value)
        kohya_set_new(t, "save_precision", json_string(is_float ? "fp32" : word));
    json_decref(value);
    return ok;
}

/* Reads the keys that need a conversion of a line or two. */
static bool read_values(struct translation *t) {
    json_int_t workers = 0;
    bool v = false, says_v = json_object_get(t->from, "v_parameterization"), given;
    if (!kohya_take_flag(t, "v_parameterization", &v) ||
        !kohya_take_integer(t, "max_data_loader_n_workers", 0, &workers, &given))
        return false;
    if (says_v)
        kohya_set_new(t, "prediction_type", json_string(v ? "v_prediction" : "epsilon"));
    if (workers)
        kohya_set_new(t, "dataloader_num_workers", json_integer(workers));
    else if (given)
        kohya_note(t, "max_data_loader_n_workers", "pictures are decoded by threads of their own");
    return read_precision(t);
}

static bool is_set(const struct translation *t, const char *flag) {
    return json_is_true(json_object_get(t->job, flag));
}

/* Does what the table says with all keys that are still there. */
static bool read_rest(struct translation *t) {
    for (size_t i = 0; i < kohya_key_count; i++) {
        const struct kohya_key *key = &kohya_keys[i];
        json_t *value = kohya_take(t, key->name);
        bool ok = true;
        if (value && key->use == KOHYA_TAKEN && key->needs && !is_set(t, key->needs)) {
            char why[100];
            snprintf(why, sizeof(why), "%s is not set", key->needs);
            kohya_note(t, key->name, why);
        } else if (value && key->use == KOHYA_TAKEN) {
            kohya_set(t, key->field, value);
        } else if (value && key->use == KOHYA_NOTED) {
            kohya_note(t, key->name, key->about);
        } else if (value && key->use == KOHYA_REFUSED && !kohya_is_one_of(value, key->values)) {
            const bool none = strcmp(key->values, "[]") == 0;
            ok = kohya_refuse(t, key->name, value, "%.*s: %s",
                none ? 14 : (int)strlen(key->values) - 2, none ? "to be left out" : key->values + 1,
                key->about);
        } else if (value && key->use == KOHYA_READ) {
            ok = error_set(t->err, ERROR_INTERNAL, "%s was not read", key->name);
        }
        json_decref(value);
        if (!ok)
            return false;
    }
    return true;
}

/* --- the whole --- */

static bool read_name(struct translation *t, const char *name) {
    json_t *own = kohya_take(t, "output_name");
    if (name)
        kohya_set_new(t, "name", json_string(name));
    else if (own)
        kohya_set(t, "name", own);
    if (name && own)
        kohya_note(t, "output_name", "--name is given");
    json_decref(own);
    return name || own || kohya_refuse(t, "output_name", NULL, "a name for the adapter, or --name");
}

/* The caller has read the file that `dataset_config` names. */
static bool drop_path(struct translation *t, bool has_dataset) {
    json_t *path = kohya_take(t, "dataset_config");
    const bool ok = !path || has_dataset ||
                    kohya_refuse(t, "dataset_config", path, "the path of a file that is read");
    json_decref(path);
    return ok;
}

static bool translate(struct translation *t, const struct kohya_files *files) {
    return join_sections(t, files->config) && drop_path(t, files->dataset) &&
           (!files->dataset || read_dataset(t, files->dataset)) && read_name(t, files->name) &&
           read_pictures(t, files->dataset) && read_length(t) && read_saving(t) && read_values(t) &&
           kohya_read_network(t) && kohya_read_optimizer(t) && kohya_read_samples(t) &&
           read_rest(t);
}

bool kohya_config_read(
    const struct kohya_files *files, json_t **job, json_t **notes, struct error *err) {
    struct translation t = { json_object(), json_object(), json_array(), files->prompts, 1, err };
    bool ok = t.from && t.job && t.notes;
    if (!ok)
        error_set(err, ERROR_NO_MEMORY, "no memory to read a configuration");
    else if (!json_is_object(files->config) || (files->dataset && !json_is_object(files->dataset)))
        ok = error_set(err, ERROR_INVALID, "a configuration is a TOML file or a JSON object");
    else
        ok = translate(&t, files);
    json_decref(t.from);
    if (!ok) {
        json_decref(t.job);
        json_decref(t.notes);
        t.job = t.notes = NULL;
    }
    *job = t.job;
    *notes = t.notes;
    return ok;
}

const char *kohya_config_path(const json_t *config, const char *key) {
    const json_t *value = json_object_get(config, key);
    const char *section;
    json_t *table;
    json_object_foreach((json_t *)config, section, table) {
        if (!value && json_is_object(table))
            value = json_object_get(table, key);
    }
    return json_is_string(value) && json_string_length(value) ? json_string_value(value) : NULL;
}

bool kohya_config_line(size_t index, struct kohya_line *out) {
    static const char *const does[] = { "used", "used", "reported", "refused" };
    if (index >= kohya_key_count)
        return false;
    const struct kohya_key *key = &kohya_keys[index];
    *out = (struct kohya_line){ .name = key->name, .does = does[key->use] };
    if (key->use == KOHYA_TAKEN)
        snprintf(out->about, sizeof(out->about), "`%s`%s%s%s", key->field,
            key->needs ? ", with `" : "", key->needs ? key->needs : "", key->needs ? "`" : "");
    else if (key->use == KOHYA_REFUSED && strcmp(key->values, "[]") != 0)
        snprintf(out->about, sizeof(out->about), "unless %.*s: %s", (int)strlen(key->values) - 2,
            key->values + 1, key->about);
    else
        snprintf(out->about, sizeof(out->about), "%s", key->about);
    static const struct {
        unsigned place;
        const char *name;
    } places[] = { { KOHYA_FILE, "file" }, { KOHYA_DATASET, "dataset" },
        { KOHYA_SUBSET, "subset" } };
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const size_t used = strlen(out->where);
        if (key->places & places[i].place)
            snprintf(out->where + used, sizeof(out->where) - used, "%s%s", used ? ", " : "",
                places[i].name);
    }
    return true;
}
