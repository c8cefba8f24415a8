#include "train/kohya/keys.h"

#include <string.h>

/* Places. */
#define F KOHYA_FILE
#define D KOHYA_DATASET
#define S KOHYA_SUBSET

#define TAKEN(places_, name_, field_)                                                              \
    { .name = #name_, .use = KOHYA_TAKEN, .places = places_, .field = #field_ }
#define TAKEN_WITH(needs_, places_, name_, field_)                                                 \
    { .name = #name_, .use = KOHYA_TAKEN, .places = places_, .field = #field_, .needs = #needs_ }
#define READ(places_, name_, about_)                                                               \
    { .name = #name_, .use = KOHYA_READ, .places = places_, .about = about_ }
#define NOTED(places_, name_, about_)                                                              \
    { .name = #name_, .use = KOHYA_NOTED, .places = places_, .about = about_ }
#define REFUSED(places_, name_, values_, about_)                                                   \
    { .name = #name_, .use = KOHYA_REFUSED, .places = places_, .values = values_, .about = about_ }

#define UNSENT "nothing is sent anywhere"
#define METADATA "the adapter's metadata is that of latentd's jobs"
#define WHOLE_MODEL "each process keeps the whole model; the numbers are the same"
#define NOT_READ "train_network.py does not read it"
#define NO_FP8 "there are no operations on fp8"
#define FROM_ZERO "a job begins at step 0, or goes on from a checkpoint in its own folder"
#define OTHER_LOSS "this loss is not implemented"
#define OTHER_NOISE "this noise is not implemented"
#define NO_MASKED_LOSS "losses are not masked"
#define PLAIN_CAPTIONS "captions are used as they are in the files, apart from shuffle_caption"
#define NO_ADAPTER_TO_START "an adapter starts from the values of its kind"
#define ONLY_SHAPE "a picture is resized, cropped and mirrored only"
#define HUBER "it belongs to loss_type huber and smooth_l1"

/* In the order of train_network.py's parser (setup_parser), then the keys that only a
 * --dataset_config has, then those that kohya_ss's page writes beside them. */
const struct kohya_key kohya_keys[] = {
    /* add_logging_arguments */
    NOTED(F, console_log_level, "latentd has its own log"),
    NOTED(F, console_log_file, "latentd has its own log"),
    NOTED(F, console_log_simple, "latentd has its own log"),
    /* add_sd_models_arguments */
    NOTED(F, v2, "the checkpoint itself says so"),
    READ(F, v_parameterization, "prediction_type: true \"v_prediction\", false \"epsilon\""),
    NOTED(F, pretrained_model_name_or_path, "the checkpoint of --model is trained"),
    NOTED(F, tokenizer_cache_dir, "the tokenizer is built in"),
    /* add_model_spec_arguments */
    NOTED(F, metadata_title, METADATA),
    NOTED(F, metadata_author, METADATA),
    NOTED(F, metadata_description, METADATA),
    NOTED(F, metadata_license, METADATA),
    NOTED(F, metadata_tags, METADATA),
    NOTED(F, metadata_usage_hint, METADATA),
    NOTED(F, metadata_thumbnail, METADATA),
    NOTED(F, metadata_merged_from, METADATA),
    NOTED(F, metadata_trigger_phrase, METADATA),
    NOTED(F, metadata_preprocessor, METADATA),
    NOTED(F, metadata_is_negative_embedding, METADATA),
    /* add_dataset_arguments */
    TAKEN(F, train_data_dir, dataset),
    NOTED(F | D | S, cache_info, "the files' heads are read each time, which is quick"),
    TAKEN(F | D | S, shuffle_caption, shuffle_caption),
    TAKEN_WITH(shuffle_caption, F | D | S, caption_separator, caption_separator),
    READ(F | D | S, caption_extension,
        "\".txt\" or \".caption\": both are read, with a caption in each line"),
    READ(F, caption_extention, "as caption_extension"),
    TAKEN_WITH(shuffle_caption, F | D | S, keep_tokens, keep_tokens),
    TAKEN_WITH(shuffle_caption, F | D | S, keep_tokens_separator, keep_tokens_separator),
    REFUSED(F | D | S, secondary_separator, "[]", PLAIN_CAPTIONS),
    REFUSED(F | D | S, enable_wildcard, "[false]", PLAIN_CAPTIONS),
    REFUSED(F | D | S, caption_prefix, "[]", PLAIN_CAPTIONS),
    REFUSED(F | D | S, caption_suffix, "[]", PLAIN_CAPTIONS),
    REFUSED(F | D | S, color_aug, "[false]", ONLY_SHAPE),
    TAKEN(F | D | S, flip_aug, random_flip),
    REFUSED(F | D | S, face_crop_aug_range, "[]", ONLY_SHAPE),
    READ(F | D | S, random_crop, "center_crop, its opposite"),
    REFUSED(F, debug_dataset, "[false]", "GET /datasets/NAME and dataset.json show a data set"),
    READ(F | D, resolution, "resolution: N, \"N\", \"N,N\" or [N, N]"),
    TAKEN(F, cache_latents, cache_latents),
    NOTED(F, vae_batch_size, "pictures are encoded one by one, once"),
    NOTED(F, cache_latents_to_disk, "what is encoded is kept on disk always"),
    NOTED(F, skip_cache_check, "kept files are found by what they were made from"),
    TAKEN(F | D, enable_bucket, enable_bucket),
    TAKEN_WITH(enable_bucket, F | D, min_bucket_reso, min_bucket_reso),
    TAKEN_WITH(enable_bucket, F | D, max_bucket_reso, max_bucket_reso),
    TAKEN_WITH(enable_bucket, F | D, bucket_reso_steps, bucket_reso_steps),
    TAKEN_WITH(enable_bucket, F | D, bucket_no_upscale, bucket_no_upscale),
    TAKEN(F | D | S, resize_interpolation, image_interpolation_mode),
    NOTED(F | D | S, token_warmup_min, "it belongs to token_warmup_step"),
    REFUSED(F | D | S, token_warmup_step, "[0]", PLAIN_CAPTIONS),
    REFUSED(F | S, alpha_mask, "[false]", NO_MASKED_LOSS),
    REFUSED(F, dataset_class, "[]", "latentd runs no Python; docs/datasets.md lists what it reads"),
    TAKEN(F | D | S, caption_dropout_rate, caption_dropout),
    REFUSED(F | D | S, caption_dropout_every_n_epochs, "[0]", "use caption_dropout_rate"),
    REFUSED(F | D | S, caption_tag_dropout_rate, "[0]", PLAIN_CAPTIONS),
    REFUSED(F, reg_data_dir, "[]",
        "use a subset with is_reg and class_tokens in the file of --dataset_config"),
    REFUSED(F, in_json, "[]", "captions are in .txt or .caption files, or in a metadata.jsonl"),
    READ(F, dataset_repeats, "as num_repeats, with a --dataset_config"),
    /* add_training_arguments */
    NOTED(F, output_dir, "--out says where a job's files go"),
    READ(F, output_name, "name, unless --name is given"),
    NOTED(F, huggingface_repo_id, UNSENT),
    NOTED(F, huggingface_repo_type, UNSENT),
    NOTED(F, huggingface_path_in_repo, UNSENT),
    NOTED(F, huggingface_token, UNSENT),
    NOTED(F, huggingface_repo_visibility, UNSENT),
    NOTED(F, save_state_to_huggingface, UNSENT),
    REFUSED(F, resume_from_huggingface, "[false]", "nothing is downloaded"),
    NOTED(F, async_upload, UNSENT),
    READ(F, save_precision, "save_precision: \"float\" is \"fp32\""),
    READ(F, save_every_n_epochs, "checkpointing_epochs"),
    READ(F, save_every_n_steps, "checkpointing_steps"),
    REFUSED(F, save_n_epoch_ratio, "[]", "use save_every_n_epochs"),
    READ(F, save_last_n_epochs, "checkpoints_total_limit"),
    NOTED(F, save_last_n_epochs_state, "a checkpoint is kept or removed as a whole"),
    READ(F, save_last_n_steps, "checkpoints_total_limit"),
    NOTED(F, save_last_n_steps_state, "a checkpoint is kept or removed as a whole"),
    NOTED(F, save_state, "each checkpoint has the optimizer's states"),
    NOTED(F, save_state_on_train_end, "each checkpoint has the optimizer's states"),
    REFUSED(F, resume, "[]", FROM_ZERO),
    TAKEN(F, train_batch_size, train_batch_size),
    REFUSED(F, max_token_length, "[75]", "a caption has at most 75 tokens"),
    NOTED(F, mem_eff_attn, "attention never keeps its scores"),
    NOTED(F, torch_compile, "there is no torch"),
    NOTED(F, dynamo_backend, "there is no torch"),
    NOTED(F, xformers, "attention never keeps its scores"),
    NOTED(F, sdpa, "attention never keeps its scores"),
    REFUSED(F, vae, "[]", "the VAE is the checkpoint's"),
    READ(F, max_train_steps, "max_train_steps; 1600 if neither it nor max_train_epochs is given"),
    READ(F, max_train_epochs, "num_train_epochs, times num_repeats"),
    READ(F, max_data_loader_n_workers, "dataloader_num_workers"),
    NOTED(F, persistent_data_loader_workers, "threads that decode stay always"),
    TAKEN(F, seed, seed),
    TAKEN(F, gradient_checkpointing, gradient_checkpointing),
    TAKEN(F, gradient_accumulation_steps, gradient_accumulation_steps),
    TAKEN(F, mixed_precision, mixed_precision),
    REFUSED(F, full_fp16, "[false]", "what is trained has 32 bits"),
    REFUSED(F, full_bf16, "[false]", "what is trained has 32 bits"),
    REFUSED(F, fp8_base, "[false]", NO_FP8),
    NOTED(F, ddp_timeout, WHOLE_MODEL),
    NOTED(F, ddp_gradient_as_bucket_view, WHOLE_MODEL),
    NOTED(F, ddp_static_graph, WHOLE_MODEL),
    REFUSED(F, clip_skip, "[1]", "captions are encoded by the text encoder's last layer"),
    NOTED(F, logging_dir, "event files for TensorBoard are in the job's folder"),
    REFUSED(F, log_with, "[\"tensorboard\"]", UNSENT),
    NOTED(F, log_prefix, "event files for TensorBoard are in the job's folder"),
    NOTED(F, log_tracker_name, UNSENT),
    NOTED(F, wandb_run_name, UNSENT),
    NOTED(F, log_tracker_config, UNSENT),
    NOTED(F, wandb_api_key, UNSENT),
    NOTED(F, log_config, "config.json in the job's folder has it"),
    TAKEN(F, noise_offset, noise_offset),
    REFUSED(F, noise_offset_random_strength, "[false]", OTHER_NOISE),
    REFUSED(F, multires_noise_iterations, "[0]", OTHER_NOISE),
    TAKEN(F, ip_noise_gamma, input_perturbation),
    REFUSED(F, ip_noise_gamma_random_strength, "[false]", OTHER_NOISE),
    NOTED(F, multires_noise_discount, "it belongs to multires_noise_iterations"),
    REFUSED(F, adaptive_noise_scale, "[0]", OTHER_NOISE),
    REFUSED(F, zero_terminal_snr, "[false]", "the noise schedule is the checkpoint's"),
    REFUSED(F, min_timestep, "[0]", "timesteps are drawn from all of the schedule"),
    REFUSED(F, max_timestep, "[1000]", "timesteps are drawn from all of the schedule"),
    REFUSED(F, loss_type, "[\"l2\"]", OTHER_LOSS),
    NOTED(F, huber_schedule, HUBER),
    NOTED(F, huber_c, HUBER),
    NOTED(F, huber_scale, HUBER),
    NOTED(F, lowram, "weights are where they are used"),
    NOTED(F, highvram, "weights are where they are used"),
    READ(F, sample_every_n_steps, "validation_steps"),
    NOTED(F, sample_at_first, "pictures are drawn after steps"),
    READ(F, sample_every_n_epochs, "validation_epochs, times num_repeats"),
    READ(F, sample_prompts, "validation_prompts and their fields, from the lines of a text file"),
    READ(F, sample_sampler, "validation_scheduler"),
    NOTED(F, config_file, "one file is read"),
    REFUSED(F, output_config, "[false]", "no such file is written"),
    TAKEN_WITH(with_prior_preservation, F, prior_loss_weight, prior_loss_weight),
    /* add_masked_loss_arguments */
    REFUSED(F | S, conditioning_data_dir, "[]", "this is no training of a ControlNet"),
    REFUSED(F, masked_loss, "[false]", NO_MASKED_LOSS),
    /* add_deepspeed_arguments */
    NOTED(F, deepspeed, WHOLE_MODEL),
    NOTED(F, zero_stage, WHOLE_MODEL),
    NOTED(F, offload_optimizer_device, WHOLE_MODEL),
    NOTED(F, offload_optimizer_nvme_path, WHOLE_MODEL),
    NOTED(F, offload_param_device, WHOLE_MODEL),
    NOTED(F, offload_param_nvme_path, WHOLE_MODEL),
    NOTED(F, zero3_init_flag, WHOLE_MODEL),
    NOTED(F, zero3_save_16bit_model, WHOLE_MODEL),
    REFUSED(F, fp16_master_weights_and_gradients, "[false]", "what is trained has 32 bits"),
    /* add_optimizer_arguments */
    READ(F, optimizer_type, "optimizer and use_8bit_adam"),
    READ(F, use_8bit_adam, "as optimizer_type \"AdamW8bit\""),
    READ(F, use_lion_optimizer, "as optimizer_type \"Lion\""),
    READ(F, learning_rate, "learning_rate; 2e-6 if not given"),
    TAKEN(F, max_grad_norm, max_grad_norm),
    READ(F, optimizer_args,
        "the optimizer's own fields, of which missing ones have the defaults "
        "of its package"),
    REFUSED(F, lr_scheduler_type, "[]", "lr_scheduler names one; latentd runs no Python"),
    REFUSED(F, lr_scheduler_args, "[]", "lr_scheduler names one; latentd runs no Python"),
    READ(F, lr_scheduler, "lr_scheduler"),
    READ(F, lr_warmup_steps, "lr_warmup_steps; a number with a point is lr_warmup_ratio"),
    REFUSED(F, lr_decay_steps, "[0]", "it belongs to a schedule that is not implemented"),
    READ(F, lr_scheduler_num_cycles, "lr_num_cycles"),
    READ(F, lr_scheduler_power, "lr_power"),
    NOTED(F, fused_backward_pass, "it saves memory of SDXL; the numbers are the same"),
    REFUSED(F, lr_scheduler_timescale, "[]", "it belongs to a schedule that is not implemented"),
    REFUSED(F, lr_scheduler_min_lr_ratio, "[]", "it belongs to a schedule that is not implemented"),
    /* add_config_arguments */
    READ(F, dataset_config, "the file is read, unless --kohya-dataset names another"),
    /* add_custom_train_arguments */
    TAKEN(F, min_snr_gamma, snr_gamma),
    REFUSED(F, scale_v_pred_loss_like_noise_pred, "[false]", OTHER_LOSS),
    REFUSED(F, v_pred_like_loss, "[0]", OTHER_LOSS),
    REFUSED(F, debiased_estimation_loss, "[false]", OTHER_LOSS),
    REFUSED(F, weighted_captions, "[false]", PLAIN_CAPTIONS),
    /* setup_parser itself */
    NOTED(F, cpu_offload_checkpointing, "checkpointed activations are computed again"),
    NOTED(F, no_metadata, METADATA),
    REFUSED(F, save_model_as, "[\"safetensors\"]", "an adapter is a safetensors file"),
    READ(F, unet_lr, "learning_rate"),
    READ(F, text_encoder_lr, "text_encoder_learning_rate; 0: the text encoder is not trained"),
    REFUSED(F, fp8_base_unet, "[false]", NO_FP8),
    REFUSED(F, network_weights, "[]", NO_ADAPTER_TO_START),
    READ(F, network_module,
        "adapter_type and target_modules: \"networks.lora\" or \"lycoris.kohya\""),
    READ(F, network_dim, "rank; 4 if not given"),
    READ(F, network_alpha, "alpha; 1 if not given"),
    REFUSED(F, network_dropout, "[0]", "dropout here drops an adapter's inputs, not its rank"),
    READ(F, network_args, "conv_dim, conv_alpha and the words of LyCORIS"),
    READ(F, network_train_unet_only, "train_text_encoder, its opposite"),
    REFUSED(F, network_train_text_encoder_only, "[false]", "the UNet is always trained"),
    NOTED(F, training_comment, METADATA),
    REFUSED(F, dim_from_weights, "[false]", NO_ADAPTER_TO_START),
    REFUSED(F, scale_weight_norms, "[0]", "weights are not rescaled"),
    REFUSED(F, base_weights, "[]", "merge them into the checkpoint: latentd lora"),
    REFUSED(F, base_weights_multiplier, "[]", "merge them into the checkpoint: latentd lora"),
    NOTED(F, no_half_vae, "pictures are encoded in 32 bits always"),
    REFUSED(F, skip_until_initial_step, "[false]", FROM_ZERO),
    REFUSED(F, initial_epoch, "[1]", FROM_ZERO),
    REFUSED(F, initial_step, "[0]", FROM_ZERO),
    NOTED(F | D, validation_seed, "held-out pictures are chosen by seed and their names"),
    READ(F | D, validation_split, "validation_share"),
    READ(F, validate_every_n_steps, "validation_steps, with validation_split"),
    READ(F, validate_every_n_epochs, "validation_epochs, with validation_split"),
    NOTED(F, max_validation_steps, "all held-out pictures are measured"),
    /* of --dataset_config only */
    READ(D, batch_size, "train_batch_size"),
    READ(D | S, num_repeats, "kohya's epoch has each picture so many times: more epochs here"),
    REFUSED(D, network_multiplier, "[1]", "an adapter is trained with weight 1"),
    REFUSED(D | S, custom_attributes, "[{}]", "there are none"),
    READ(D | S, class_tokens, "instance_prompt; with is_reg, class_prompt"),
    READ(S, image_dir, "dataset; with is_reg, class_data_dir"),
    READ(S, is_reg, "with_prior_preservation"),
    REFUSED(
        S, metadata_file, "[]", "captions are in .txt or .caption files, or in a metadata.jsonl"),
    /* of kohya_ss's page */
    NOTED(F, epoch, NOT_READ),
    NOTED(F, noise_offset_type, NOT_READ),
};

const size_t kohya_key_count = sizeof(kohya_keys) / sizeof(kohya_keys[0]);

const struct kohya_key *kohya_key_named(const char *name) {
    for (size_t i = 0; i < kohya_key_count; i++)
        if (strcmp(kohya_keys[i].name, name) == 0)
            return &kohya_keys[i];
    return NULL;
}
