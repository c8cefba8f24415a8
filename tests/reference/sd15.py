"""Stable Diffusion 1.5 as data: its configs, its tensor names in both layouts, and the diffusers
modules that serve as the truth.

Everything here is the architecture as published; no weights are involved. random_sd15.py makes
weights, parity.py and the benchmark's peers run the modules.
"""

import json
import os

COMPONENTS = ("text_encoder", "unet", "vae")
FILES = {
    "text_encoder": "model.safetensors",
    "unet": "diffusion_pytorch_model.safetensors",
    "vae": "diffusion_pytorch_model.safetensors",
}

UNET_CONFIG = {
    "_class_name": "UNet2DConditionModel",
    "sample_size": 64,
    "in_channels": 4,
    "out_channels": 4,
    "center_input_sample": False,
    "flip_sin_to_cos": True,
    "freq_shift": 0,
    "down_block_types": ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"],
    "up_block_types": ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3,
    "block_out_channels": [320, 640, 1280, 1280],
    "layers_per_block": 2,
    "downsample_padding": 1,
    "mid_block_scale_factor": 1,
    "act_fn": "silu",
    "norm_num_groups": 32,
    "norm_eps": 1e-05,
    "cross_attention_dim": 768,
    "attention_head_dim": 8,  # the number of heads, despite its name
}
VAE_CONFIG = {
    "_class_name": "AutoencoderKL",
    "in_channels": 3,
    "out_channels": 3,
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
    "act_fn": "silu",
    "latent_channels": 4,
    "norm_num_groups": 32,
    "sample_size": 512,
    "scaling_factor": 0.18215,
}
TEXT_CONFIG = {
    "architectures": ["CLIPTextModel"],
    "model_type": "clip_text_model",
    "vocab_size": 49408,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-05,
    "projection_dim": 768,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
SCHEDULER_CONFIG = {
    "_class_name": "PNDMScheduler",
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "clip_sample": False,
    "num_train_timesteps": 1000,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "steps_offset": 1,
    "trained_betas": None,
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "CLIPTokenizer",
    "model_max_length": 77,
    "bos_token": "<|startoftext|>",
    "eos_token": "<|endoftext|>",
    "unk_token": "<|endoftext|>",
    "pad_token": "<|endoftext|>",
    "do_lower_case": True,
    "add_prefix_space": False,
    "errors": "replace",
}
MODEL_INDEX = {
    "_class_name": "StableDiffusionPipeline",
    "feature_extractor": [None, None],
    "requires_safety_checker": False,
    "safety_checker": [None, None],
    "scheduler": ["diffusers", "PNDMScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}
CONFIGS = {"text_encoder": TEXT_CONFIG, "unet": UNET_CONFIG, "vae": VAE_CONFIG}


def build(component):
    """Returns the module of one component, on the caller's default device ("meta" takes no
    memory)."""
    if component == "text_encoder":
        from transformers import CLIPTextConfig, CLIPTextModel

        return CLIPTextModel(CLIPTextConfig(**TEXT_CONFIG)).eval()
    import diffusers

    config = dict(CONFIGS[component])
    return getattr(diffusers, config.pop("_class_name"))(**config).eval()


def shapes(component):
    """Returns {diffusers name: shape}. The text encoder's names have "text_model.", as in
    SD-1.5's own files."""
    import torch

    with torch.device("meta"):
        state = build(component).state_dict()
    out = {}
    for name, tensor in state.items():
        if component == "text_encoder" and not name.startswith("text_model."):
            name = "text_model." + name
        out[name] = tuple(tensor.shape)
    return out


# --- the names of the same tensors in a single-file checkpoint ---

_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_UNET_TOP = {
    "conv_in": "input_blocks.0.0",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
_KINDS = ["resnets", "attentions"]  # the order within a block of the file
_VAE_ATTENTION = {
    "group_norm": "norm",
    "to_q": "q",
    "to_k": "k",
    "to_v": "v",
    "to_out.0": "proj_out",
}


def _unet_ldm(name):
    for ours, theirs in _UNET_TOP.items():
        if name.startswith(ours + "."):
            return theirs + name[len(ours) :]
    part = name.split(".")
    if part[0] == "mid_block":
        place = {"resnets0": "middle_block.0", "attentions0": "middle_block.1"}.get(
            part[1] + part[2], "middle_block.2"
        )
        kind, rest = part[1], part[3:]
    else:
        block, kind, layer = int(part[1]), part[2], int(part[3])
        rest = part[4:]
        if part[0] == "down_blocks":
            if kind == "downsamplers":
                return f"input_blocks.{3 * block + 3}.0.op.{rest[-1]}"
            place = f"input_blocks.{3 * block + layer + 1}.{_KINDS.index(kind)}"
        else:
            if kind == "upsamplers":
                return f"output_blocks.{3 * block + 2}.{1 if block == 0 else 2}.conv.{rest[-1]}"
            place = f"output_blocks.{3 * block + layer}.{_KINDS.index(kind)}"
    if kind == "resnets":
        rest[0] = _RESNET[rest[0]]
    return place + "." + ".".join(rest)


def _vae_ldm(name):
    if name.startswith(("quant_conv", "post_quant_conv")):
        return name
    side, rest = name.split(".", 1)
    part = rest.split(".")
    if part[0] in ("conv_in", "conv_out"):
        return name
    if part[0] == "conv_norm_out":
        return f"{side}.norm_out.{part[1]}"
    if part[0] == "mid_block":
        leaf = ".".join(part[3:])
        if part[1] == "resnets":
            return f"{side}.mid.block_{int(part[2]) + 1}.{leaf}"
        module, kind = leaf.rsplit(".", 1)
        return f"{side}.mid.attn_1.{_VAE_ATTENTION[module]}.{kind}"
    level, kind = int(part[1]), part[2]
    # The file numbers the decoder's levels from the finest, diffusers from the coarsest.
    place = f"{side}.down.{level}" if part[0] == "down_blocks" else f"{side}.up.{3 - level}"
    if kind == "resnets":
        leaf = ".".join(part[4:]).replace("conv_shortcut", "nin_shortcut")
        return f"{place}.block.{part[3]}.{leaf}"
    sampler = "downsample" if kind == "downsamplers" else "upsample"
    return f"{place}.{sampler}.conv.{part[-1]}"


def ldm_name(component, name):
    """Returns the name of a diffusers tensor in a single-file (LDM) checkpoint."""
    if component == "text_encoder":
        return "cond_stage_model.transformer." + name
    if component == "unet":
        return "model.diffusion_model." + _unet_ldm(name)
    return "first_stage_model." + _vae_ldm(name)


def ldm_shape(component, name, shape):
    """In the single file the VAE's attention projections are 1x1 convolutions."""
    if component == "vae" and ".attentions.0.to_" in name and len(shape) == 2:
        return (*shape, 1, 1)
    return tuple(shape)


# --- reading a folder back into diffusers ---


def load(folder, component, dtype=None):
    """Returns the diffusers module with the weights of folder/component, in `dtype`
    (torch.float32)."""
    import torch
    from safetensors import safe_open

    dtype = dtype or torch.float32
    with torch.device("meta"):
        module = build(component)
    wanted = module.state_dict()
    state = {}
    with safe_open(os.path.join(folder, component, FILES[component]), "pt") as file:
        for name in file.keys():
            key = name if name in wanted else name.removeprefix("text_model.")
            state[key] = file.get_tensor(name).to(dtype, copy=True)
    module.load_state_dict(state, strict=True, assign=True)
    # Buffers that are not in the file (the text encoder's position ids) are still on "meta".
    for owner in module.modules():
        for key, buffer in list(owner._buffers.items()):
            if buffer is not None and buffer.is_meta:
                if key != "position_ids":
                    raise RuntimeError(f"no value for buffer {key}")
                owner._buffers[key] = torch.arange(buffer.shape[-1]).expand(buffer.shape)
    return module


def write_json(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
