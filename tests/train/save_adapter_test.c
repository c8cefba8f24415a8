/* Adapters saved with the names of diffusers and of kohya's scripts, and read back by the adapter
 * reader. */
#include "train/save_adapter.h"

#include "models/adapter/adapter.h"
#include "models/text_encoder.h"
#include "models/unet.h"
#include "tests/models/small/small_models.h"
#include "tests/train/recorded.h"
#include "tests/train/small_job.h"

#include <stdlib.h>
#include <unistd.h>

static struct small_job job;
static const struct adapter_facts facts = { "tiny", 12, 3, 20, false, false, false };

/* Returns whether diffusers' name is that of an attention projection. `peft`: the same tensor's
 * name in peft. */
static bool is_attention(const char *name, char *peft, size_t size) {
    static const char *const words[][2] = { { ".lora.down.", ".lora_A." },
        { ".lora.up.", ".lora_B." }, { ".lora_linear_layer.down.", ".lora_A." },
        { ".lora_linear_layer.up.", ".lora_B." } };
    snprintf(peft, size, "%s", name);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const char *at = strstr(name, words[i][0]);
        if (at) {
            snprintf(peft, size, "%.*s%sweight", (int)(at - name), name, words[i][1]);
            return true;
        }
    }
    return false;
}

/* The file must have every tensor that diffusers writes, with its name and shape, and no other.
 * Since transformers 5 the text encoder's names have no "text_model." in memory; files still have
 * it. */
static void names_are_diffusers(
    const json_t *recorded, struct safetensors *file, bool attention_alone) {
    const struct safetensors_header *header = safetensors_get_header(file);
    const char *name;
    json_t *shape;
    size_t count = 0;
    json_object_foreach(json_object_get(recorded, "tensors"), name, shape) {
        char full[300], peft[256];
        static const char prefix[] = "text_encoder.";
        if (!is_attention(name, peft, sizeof(peft)) && attention_alone)
            continue;
        const char *wanted = attention_alone ? name : peft;
        const bool is_text = strncmp(name, prefix, sizeof(prefix) - 1) == 0;
        snprintf(full, sizeof(full), "%s%s%s", is_text ? prefix : "", is_text ? "text_model." : "",
            is_text ? wanted + sizeof(prefix) - 1 : wanted);
        const ptrdiff_t at = safetensors_find(file, full);
        CHECK(at >= 0, "%s is missing", full);
        count++;
        if (at < 0)
            continue;
        const struct safetensors_entry *entry = &header->entries[at];
        bool same = (size_t)entry->rank == json_array_size(shape);
        for (size_t i = 0; same && i < json_array_size(shape); i++)
            same = entry->shape[i] == (int64_t)recorded_at(shape, i);
        CHECK(same && entry->dtype == SAFETENSORS_F32, "%s has another shape", full);
    }
    CHECK(header->count == count && count > 40, "%zu tensors, not %zu", header->count, count);
    printf("%zu tensors as diffusers names them\n", count);
}

static void configuration_is_pefts(const json_t *recorded, struct safetensors *file) {
    const struct safetensors_header *header = safetensors_get_header(file);
    const char *text = json_string_value(
        json_object_get(header->metadata, "lora_adapter_metadata"));
    json_t *peft = json_loads(text ? text : "", 0, NULL);
    const char *key;
    json_t *value;
    CHECK(json_object_size(peft) == 14, "%zu entries", json_object_size(peft));
    json_object_foreach(peft, key, value) {
        json_t *expected = json_object_get(json_object_get(recorded, "metadata"), key);
        if (strstr(key, "target_modules")) /* a set there */
            CHECK(json_array_size(expected) == json_array_size(value), "%s", key);
        else
            CHECK(json_equal(expected, value), "%s: %s", key, json_string_value(expected));
    }
    json_decref(peft);
    CHECK_STRING(json_string_value(json_object_get(header->metadata, "format")), "pt");
}

static double read_back(const char *path, float scale) {
    const struct adapter_targets targets = { unet_weights(job.unet),
        text_encoder_weights(job.text_encoder) };
    struct adapter *adapter;
    struct error err = { 0 };
    CHECK(adapter_open(path, &targets, &adapter, &err), "%s", err.message);
    size_t count, leftovers;
    const struct adapter_module *modules = adapter_modules(adapter, &count);
    adapter_leftovers(adapter, &leftovers);
    CHECK(count == job.parameters->count && leftovers == 0, "%zu modules, %zu left over", count,
        leftovers);
    double worst = 0;
    for (size_t i = 0; i < job.parameters->count; i++) {
        const struct trained_module *m = &job.parameters->modules[i];
        size_t at = 0;
        while (at < count && modules[at].target != m->target)
            at++;
        CHECK(at < count && modules[at].scale == scale, "%s: its scale", m->target->name);
        if (at == count)
            continue;
        float down[2][8192], up[2][1024];
        const int64_t taps = adapter_target_taps(m->target);
        CHECK(adapter_module_factors(&modules[at], down[0], up[0], &err), "%s", err.message);
        parameters_plain(m, job.config.rank, job.parameters->values, down[1], up[1]);
        for (int64_t k = 0; k < job.config.rank * m->target->k * taps; k++)
            worst = fmax(worst, fabs(down[0][k] - down[1][k]));
        for (int64_t k = 0; k < job.config.rank * m->target->n; k++)
            worst = fmax(worst, fabs(up[0][k] - up[1][k]));
    }
    adapter_close(adapter);
    return worst;
}

static void save(const char *path, enum train_save_format format) {
    struct error err = { 0 };
    CHECK(save_adapter(
              path, format, job.parameters, job.parameters->values, &job.config, &facts, &err),
        "%s", err.message);
}

static void kohya(const char *path) {
    struct safetensors *file;
    struct error err = { 0 };
    save(path, TRAIN_SAVE_KOHYA);
    printf("kohya: factors within %.2g\n", read_back(path, 2));
    CHECK(safetensors_open(path, &file, &err), "%s", err.message);
    static const char *const some[] = {
        "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_out_0.lora_down.weight",
        "lora_unet_mid_block_resnets_1_conv1.lora_up.weight",
        "lora_unet_up_blocks_1_attentions_1_transformer_blocks_0_ff_net_2.alpha",
        "lora_te_text_model_encoder_layers_1_self_attn_q_proj.lora_down.weight",
    };
    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++)
        CHECK(safetensors_find(file, some[i]) >= 0, "%s is missing", some[i]);
    const struct safetensors_header *header = safetensors_get_header(file);
    CHECK(header->count == 3 * job.parameters->count, "%zu tensors", header->count);
    static const struct {
        const char *key, *value;
    } said[] = { { "ss_network_dim", "4" }, { "ss_network_alpha", "8" },
        { "ss_network_module", "networks.lora" }, { "ss_output_name", "n" },
        { "ss_resolution", "(512, 512)" }, { "ss_steps", "12" }, { "ss_v2", "False" },
        { "ss_base_model_version", "sd_v1" }, { "ss_optimizer", "AdamW" },
        { "ss_learning_rate", "0.0001" } };
    for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++)
        CHECK_STRING(
            json_string_value(json_object_get(header->metadata, said[i].key)), said[i].value);
    safetensors_close(file);
}

static char *metadata_of(const char *path, const char *key) {
    struct safetensors *file;
    struct error err = { 0 };
    CHECK(safetensors_open(path, &file, &err), "%s", err.message);
    const json_t *metadata = safetensors_get_header(file)->metadata;
    const char *value = json_string_value(json_object_get(metadata, key));
    char *copy = strdup(value ? value : "(missing)");
    safetensors_close(file);
    return copy;
}

static void says(const char *path, const char *key, const char *expected) {
    char *value = metadata_of(path, key);
    CHECK(strcmp(value, expected) == 0, "%s is %s, not %s", key, value, expected);
    free(value);
}

/* If the file had a lora_dropout above 0, diffusers would make dropout layers and leave them in
 * training mode, where they drop values. So the file says 0. */
static void dropout_is_told_where_nothing_drops(const char *path) {
    job.config.dropout = 0.2;
    save(path, TRAIN_SAVE_DIFFUSERS);
    char *text = metadata_of(path, "lora_adapter_metadata");
    json_t *peft = json_loads(text, 0, NULL);
    static const char *const keys[] = { "unet.lora_dropout", "text_encoder.lora_dropout" };
    for (size_t i = 0; i < 2; i++) {
        const json_t *said = json_object_get(peft, keys[i]);
        CHECK(json_is_real(said) && json_real_value(said) == 0, "%s: %g", keys[i],
            json_number_value(said));
    }
    json_decref(peft);
    free(text);
    says(path, "ss_network_dropout", "0.2");
    save(path, TRAIN_SAVE_KOHYA);
    says(path, "ss_network_dropout", "0.2");
    job.config.dropout = 0;
    printf("a dropout of 0.2 is in ss_network_dropout, lora_dropout is 0\n");
}

/* The metadata use the words of kohya's scripts (get_model_version_str_for_sd1_sd2,
 * sai_model_spec). */
static void the_prediction_type_is_that_of_the_job(const char *path) {
    static const struct {
        enum train_prediction job;
        bool checkpoint, is_sd2;
        const char *predicts, *version;
    } cases[] = {
        { TRAIN_PREDICTION_OF_MODEL, false, false, "epsilon", "sd_v1" },
        { TRAIN_PREDICTION_OF_MODEL, true, true, "v", "sd_v2_v" },
        { TRAIN_PREDICTION_V, false, false, "v", "sd_v1_v" },
        { TRAIN_PREDICTION_EPSILON, true, true, "epsilon", "sd_v2" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct adapter_facts f = facts;
        struct error err = { 0 };
        f.v_prediction = cases[i].checkpoint;
        f.is_sd2 = cases[i].is_sd2;
        job.config.prediction_type = (int)cases[i].job;
        for (int format = TRAIN_SAVE_DIFFUSERS; format <= TRAIN_SAVE_KOHYA; format++) {
            CHECK(save_adapter(path, (enum train_save_format)format, job.parameters,
                      job.parameters->values, &job.config, &f, &err),
                "%s", err.message);
            says(path, "modelspec.prediction_type", cases[i].predicts);
        }
        says(path, "ss_base_model_version", cases[i].version);
        printf("%s: %s\n", cases[i].version, cases[i].predicts);
    }
    job.config.prediction_type = TRAIN_PREDICTION_OF_MODEL;
}

/* alpha 8 and rank 4: a scale of 8 / sqrt(4). Readers of kohya's format divide alpha by the rank;
 * peft's configuration names use_rslora. */
static void rslora_has_its_scale(const char *path) {
    small_job_parameters_finish(&job);
    job.config = small_job_config(", \"rank\": 4, \"use_rslora\": true");
    small_job_parameters(&job, 11);
    for (int format = TRAIN_SAVE_DIFFUSERS; format <= TRAIN_SAVE_KOHYA; format++) {
        save(path, (enum train_save_format)format);
        CHECK(read_back(path, 4) == 0, "factors changed");
        if (format == TRAIN_SAVE_KOHYA)
            break;
        char *text = metadata_of(path, "lora_adapter_metadata");
        json_t *peft = json_loads(text, 0, NULL);
        CHECK(json_is_true(json_object_get(peft, "unet.use_rslora")) &&
                  json_is_true(json_object_get(peft, "text_encoder.use_rslora")) &&
                  json_integer_value(json_object_get(peft, "unet.lora_alpha")) == 8,
            "%s", text);
        json_decref(peft);
        free(text);
    }
    says(path, "ss_network_alpha", "8");
    says(path, "ss_network_args", "{\"rs_lora\": \"True\"}");
    printf("rsLoRA: a scale of 4 in both formats\n");
}

static void attention_alone(const char *path, const json_t *recorded) {
    struct safetensors *file;
    struct error err = { 0 };
    small_job_parameters_finish(&job);
    job.config = small_job_config(
        ", \"rank\": 4, \"target_modules\": [\"to_k\", \"to_q\", \"to_v\", \"to_out.0\"], "
        "\"text_encoder_target_modules\": [\"q_proj\", \"v_proj\"]");
    small_job_parameters(&job, 11);
    save(path, TRAIN_SAVE_DIFFUSERS);
    CHECK(safetensors_open(path, &file, &err), "%s", err.message);
    names_are_diffusers(recorded, file, true);
    safetensors_close(file);
}

int main(int argc, char **argv) {
    char path[] = "/tmp/save_adapter_XXXXXX";
    const int fd = mkstemp(path);
    CHECK(fd >= 0, "no temporary file");
    close(fd);
    small_job_init(&job, ", \"rank\": 4");
    /* Makes the up factors nonzero. */
    for (size_t i = 0; i < job.parameters->count; i++) {
        const struct trained_module *m = &job.parameters->modules[i];
        float *up = job.parameters->values + m->at + m->down_floats;
        for (int64_t k = 0; k < m->up_floats; k++)
            if ((k / 16 / job.config.rank) * 16 + k % 16 < m->target->n)
                up[k] = (float)sin(0.1 * (double)(k + (int64_t)i));
    }
    json_t *cases = recorded_load(argc, argv);
    struct safetensors *file;
    struct error err = { 0 };
    save(path, TRAIN_SAVE_DIFFUSERS);
    printf("diffusers: factors within %.2g\n", read_back(path, 2));
    CHECK(read_back(path, 2) == 0, "factors changed");
    CHECK(safetensors_open(path, &file, &err), "%s", err.message);
    names_are_diffusers(json_array_get(cases, 0), file, false);
    configuration_is_pefts(json_array_get(cases, 0), file);
    safetensors_close(file);
    kohya(path);
    dropout_is_told_where_nothing_drops(path);
    the_prediction_type_is_that_of_the_job(path);
    job.config.save_precision = TRAIN_SAVE_F16;
    save(path, TRAIN_SAVE_DIFFUSERS);
    const double rounded = read_back(path, 2);
    printf("fp16: factors within %.2g\n", rounded);
    CHECK(rounded > 0 && rounded < 1e-3, "%.3g", rounded);
    CHECK(!save_adapter("/nowhere/x.safetensors", TRAIN_SAVE_KOHYA, job.parameters,
              job.parameters->values, &job.config, &facts, &err) &&
              strstr(err.message, "/nowhere"),
        "%s", err.message);
    attention_alone(path, json_array_get(cases, 0));
    rslora_has_its_scale(path);
    json_decref(cases);
    small_job_finish(&job);
    unlink(path);
    return check_done();
}
