/* Converts a configuration of deepspeed-diffusers to a job and compares it, key by key, with what
 * deepspeed-diffusers would run. */
#include "train/deepspeed_config.h"

#include "base/text/json.h"
#include "tests/check.h"
#include "train/config.h"
#include "train/optimizer/learning_rate.h"

#include <stdlib.h>

/* The keys of deepspeed-diffusers' cfg/default.json, with values that differ from each other. */
static const char whole[] =
    "{\"num_epochs\": 3, \"validation_epochs\": 10, \"max_train_steps\": 0, "
    "\"lr_warmup_steps\": 500, \"save_interval\": 1000, \"seed\": 42, "
    "\"validation_prompts\": [\"water turtle\"], "
    "\"pretrained_model_name_or_path\": \"model/stable-diffusion-v1-5\", "
    "\"dataset_dir\": \"datasets/pokemon\", \"imagefolder\": false, "
    "\"checkpoint_dir\": \"result/checkpoint\", \"output_dir\": \"result/sd\", "
    "\"use_lora\": {\"action\": true, \"rank\": 32, \"alpha\": 24}, "
    "\"dataloader_num_workers\": 8, \"resume_from_checkpoint\": true, \"use_ema\": false, "
    "\"offline\": true, \"resolution\": 256, \"center_crop\": true, \"random_flip\": true, "
    "\"use_fp16\": {\"enabled\": true, \"auto_cast\": false, \"loss_scale\": 0, "
    "\"initial_scale_power\": 12, \"loss_scale_window\": 1000, \"hysteresis\": 2, "
    "\"consecutive_hysteresis\": false, \"min_loss_scale\": 1}, "
    "\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 32, "
    "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 2e-4, \"betas\": [0.8, 0.99], "
    "\"eps\": 1e-7, \"weight_decay\": 0.02}}, "
    "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 0, "
    "\"warmup_max_lr\": 0.0001, \"warmup_num_steps\": 1000}}, \"wall_clock_breakdown\": false, "
    "\"wandb\": {\"enabled\": false, \"group\": \"ddp\", \"project\": \"p\"}, "
    "\"flops_profiler\": {\"enabled\": false, \"profile_step\": 1, \"output_file\": null}, "
    "\"zero_optimization\": {\"stage\": 1, \"offload_param\": {\"device\": \"auto\"}}}";

static void the_whole_of_it(void) {
    struct error err = { 0 };
    json_t *config = json_parse(whole, strlen(whole), &err), *job, *notes, *note;
    CHECK(deepspeed_config_read(config, "pokemon", &job, &notes, &err), "%s", err.message);
    struct train_config c;
    CHECK(train_config_parse(job, &c, &err), "%s", err.message);
    CHECK(c.method == TRAIN_LORA && c.rank == 32 && c.alpha == 24, "use_lora");
    CHECK(c.num_train_epochs == 3 && c.max_train_steps == 0, "max_train_steps 0 is no limit");
    CHECK(c.lr_scheduler == LEARNING_RATE_WARMUP_LOG && c.lr_warmup_steps == 500, "WarmupLR");
    CHECK(c.learning_rate == 2e-4 && c.adam_beta1 == 0.8 && c.adam_beta2 == 0.99 &&
              c.adam_epsilon == 1e-7 && c.adam_weight_decay == 0.02,
        "optimizer");
    CHECK(c.data_parallel == TRAIN_PARALLEL_MULTIPLY, "each process has its own batches");
    CHECK(c.checkpointing_steps == 1000 && c.seed == 42 && c.validation_epochs == 10, "times");
    CHECK(c.mixed_precision == TRAIN_PRECISION_FP16 && c.initial_scale_power == 12 &&
              c.loss_scale_window == 1000 && c.hysteresis == 2 && c.min_loss_scale == 1,
        "use_fp16");
    CHECK(c.train_batch_size == 2 && c.gradient_accumulation_steps == 32 && c.resolution == 256 &&
              c.center_crop && c.random_flip && c.max_grad_norm == 0 &&
              c.image_interpolation_mode == TRAIN_BILINEAR && c.dataloader_num_workers == 8,
        "the rest");
    CHECK(strcmp(c.dataset, "datasets/pokemon") == 0 && strcmp(c.name, "pokemon") == 0 &&
              c.resume_from_checkpoint && strcmp(c.resume_from_checkpoint, "latest") == 0,
        "texts");
    size_t i;
    json_array_foreach(notes, i, note) printf("%s\n", json_string_value(note));
    CHECK(json_array_size(notes) == 11, "%zu notes", json_array_size(notes));
    train_config_finish(&c);
    json_decref(job);
    json_decref(notes);
    json_decref(config);
}

static void others_are_refused_by_path(void) {
    static const struct {
        const char *json, *param;
    } wrong[] = {
        { "{\"optimizer\": {\"type\": \"Adam\"}}", "optimizer.type" },
        { "{\"optimizer\": {\"params\": {\"amsgrad\": true}}}", "optimizer.params.amsgrad" },
        { "{\"optimizer\": {\"params\": {\"betas\": [0.9]}}}", "optimizer.params.betas" },
        { "{\"scheduler\": {\"type\": \"OneCycle\"}}", "scheduler.type" },
        { "{\"scheduler\": {\"params\": {\"warmup_type\": \"sine\"}}}",
            "scheduler.params.warmup_type" },
        { "{\"scheduler\": {\"params\": {\"warmup_min_lr\": 1e-6}}}",
            "scheduler.params.warmup_min_lr" },
        { "{\"wandb\": {\"enabled\": true}}", "wandb.enabled" },
        { "{\"flops_profiler\": {\"enabled\": true}}", "flops_profiler.enabled" },
        { "{\"use_fp16\": {\"auto_cast\": true}}", "use_fp16.auto_cast" },
        { "{\"use_fp16\": {\"enabled\": 1}}", "use_fp16.enabled" },
        { "{\"use_lora\": {\"action\": true, \"dropout\": 0.1}}", "use_lora.dropout" },
        { "{\"resume_from_checkpoint\": \"x\"}", "resume_from_checkpoint" },
        { "{\"max_train_steps\": \"100\"}", "max_train_steps" },
        { "{\"validation_prompts\": \"a turtle\", \"validation_epochs\": 1}",
            "validation_prompts" },
        { "{\"use_fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}", "bf16.enabled" },
        { "{\"snr_gamma\": 5}", "snr_gamma" },
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct error err = { 0 };
        json_t *config = json_parse(wrong[i].json, strlen(wrong[i].json), &err), *job, *notes;
        CHECK(!deepspeed_config_read(config, "x", &job, &notes, &err), "%s", wrong[i].json);
        CHECK(strcmp(err.param, wrong[i].param) == 0, "%s: %s", wrong[i].json, err.message);
        CHECK(!job && !notes, "nothing is left of a failure");
        json_decref(config);
    }
    struct error err = { 0 };
    json_t *list = json_array(), *job, *notes;
    CHECK(!deepspeed_config_read(list, "x", &job, &notes, &err), "a list was taken");
    json_decref(list);
}

static void small_ones_keep_their_meaning(void) {
    static const char text[] =
        "{\"dataset_dir\": \"d\", \"max_train_steps\": 7, \"bf16\": {\"enabled\": true}, "
        "\"use_lora\": {\"action\": false, \"rank\": 4}, \"scheduler\": {\"params\": "
        "{\"warmup_type\": \"linear\"}}, \"resume_from_checkpoint\": false, "
        "\"use_fp16\": {\"hysteresis\": 2}, \"validation_epochs\": 1}";
    struct error err = { 0 };
    json_t *config = json_parse(text, strlen(text), &err), *job, *notes;
    CHECK(deepspeed_config_read(config, "x", &job, &notes, &err), "%s", err.message);
    struct train_config c;
    CHECK(train_config_parse(job, &c, &err), "%s", err.message);
    CHECK(c.method == TRAIN_FULL && c.mixed_precision == TRAIN_PRECISION_BF16 &&
              c.lr_scheduler == LEARNING_RATE_WARMUP_LINEAR && c.max_train_steps == 7 &&
              !c.resume_from_checkpoint,
        "a full job in bf16");
    static const char *const unused[] = { "use_lora.rank", "use_fp16.hysteresis",
        "validation_epochs" };
    for (size_t i = 0; i < 3; i++) {
        const char *said = json_string_value(json_array_get(notes, i));
        CHECK(said && strstr(said, unused[i]) == said, "%s has no effect: %s", unused[i], said);
    }
    CHECK(json_array_size(notes) == 3, "%zu notes", json_array_size(notes));
    train_config_finish(&c);
    json_decref(job);
    json_decref(notes);
    json_decref(config);
}

int main(void) {
    the_whole_of_it();
    others_are_refused_by_path();
    small_ones_keep_their_meaning();
    return check_done();
}
