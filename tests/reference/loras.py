"""Writes tests/models/data/loras/: adapter files for a small model, made by peft, diffusers and LyCORIS,
and tests/models/data/loras.safetensors: the model's weights with each adapter, as the same
libraries compute them. The model's own weights are generated from their names
(tests/reference/small_models.py;
tests/models/adapter_test.c has the same configs).

A golden is called FILE/COMPONENT/LAYER and has the shape of the layer's weight; a changed bias is
called FILE/COMPONENT/LAYER.bias.

usage: python tests/reference/loras.py
(torch 2.15.0, diffusers 0.42.1, transformers 5.23.0, peft 0.21.2, lycoris-lora 4.1.3)
"""

import json
import math
import pathlib
import shutil

import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from diffusers.training_utils import _collate_lora_metadata
from diffusers.utils import convert_state_dict_to_diffusers
from lycoris.modules.full import FullModule
from lycoris.modules.locon import LoConModule
from lycoris.modules.loha import LohaModule
from lycoris.modules.lokr import LokrModule
from lycoris.modules.norms import NormModule
from peft import LoHaConfig, LoKrConfig, LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from small_models import CROSS, PLAIN, fill, number
from transformers import CLIPTextConfig, CLIPTextModel

FOLDER = pathlib.Path(__file__).parents[2] / "tests/models/data/loras"
UNET = dict(sample_size=8, in_channels=4, out_channels=4, block_out_channels=(8, 16),
            down_block_types=(CROSS, PLAIN), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            layers_per_block=1, attention_head_dim=2, norm_num_groups=4, cross_attention_dim=12)
TEXT = dict(vocab_size=50, max_position_embeddings=11, projection_dim=16, hidden_size=12,
            intermediate_size=20, num_hidden_layers=2, num_attention_heads=2,
            hidden_act="quick_gelu", layer_norm_eps=1e-5)
ATTENTION = "down_blocks.0.attentions.0"
BLOCK = f"{ATTENTION}.transformer_blocks.0"
LINEAR = [f"{BLOCK}.attn1.to_q", f"{BLOCK}.attn2.to_k", f"{BLOCK}.attn1.to_out.0",
          f"{BLOCK}.ff.net.0.proj", f"{ATTENTION}.proj_in", "mid_block.resnets.1.time_emb_proj",
          "up_blocks.1.attentions.0.transformer_blocks.0.ff.net.2"]
CONV = ["conv_in", "down_blocks.0.resnets.0.conv1", "down_blocks.0.downsamplers.0.conv",
        "up_blocks.1.resnets.1.conv_shortcut"]
LAYERS = LINEAR + CONV
TEXT_LAYERS = ["encoder.layers.0.self_attn.q_proj", "encoder.layers.1.self_attn.out_proj",
               "encoder.layers.1.mlp.fc1"]
goldens = {}


def unet():
    return fill(UNet2DConditionModel(**UNET), "", 0.7)


def text_encoder():
    return fill(CLIPTextModel(CLIPTextConfig(**TEXT)), "text_model.", 0.5)


def randomize(name, tensors):
    """Fills tensors with values that depend only on the names, so that another run writes the
    same file."""
    with torch.no_grad():
        for key, tensor in tensors:
            values = torch.from_numpy(number(f"{name}/{key}", tensor.numel())).float()
            if "magnitude" in key or "dora_scale" in key:
                tensor.mul_(1 + 0.5 * values.reshape(tensor.shape))
            else:
                size = 0.8 if "hada_" in key or "lokr_" in key else 0.3  # larger, because several factors are multiplied
                tensor.copy_(size * values.reshape(tensor.shape))


def adapter_parameters(model):
    return [(k, p) for k, p in model.named_parameters()
            if any(part in k for part in ("lora_", "hada_", "lokr_"))]


def expect(file, component, layer, weight, bias=None):
    if component == "text_encoder":
        layer = "text_model." + layer
    goldens[f"{file}/{component}/{layer}"] = weight.detach().float().clone().contiguous()
    if bias is not None:
        goldens[f"{file}/{component}/{layer}.bias"] = bias.detach().float().clone().contiguous()


def expect_merged(file, component, model, layers):
    """Records the weights of a model into which peft merged its adapter. The layers may still be
    wrapped."""
    for layer in layers:
        module = model.get_submodule(layer)
        expect(file, component, layer, getattr(module, "base_layer", module).weight)


def peft_folder(file, config, layers):
    model = get_peft_model(unet(), config)
    randomize(file, adapter_parameters(model))
    model.save_pretrained(FOLDER / file)
    (FOLDER / file / "README.md").unlink()
    path = FOLDER / file / "adapter_config.json"
    written = json.loads(path.read_text())
    written["target_modules"].sort()  # a set, whose order varies
    path.write_text(json.dumps(written, indent=1) + "\n")
    expect_merged(file, "unet", model.merge_and_unload(), layers)


def peft_folders():
    pattern = dict(rank_pattern={"attn1.to_q": 2, "^conv_in": 4},
                   alpha_pattern={"to_k|proj_in": 5, f"{BLOCK}.ff.net.0.proj": 1})
    peft_folder("peft", LoraConfig(r=3, lora_alpha=6, target_modules=LAYERS, **pattern), LAYERS)
    peft_folder("peft_rslora", LoraConfig(r=4, lora_alpha=3, use_rslora=True,
                                          target_modules=LINEAR[:2]), LINEAR[:2])
    peft_folder("peft_dora", LoraConfig(r=2, lora_alpha=3, use_dora=True,
                                        target_modules=LINEAR[:4] + CONV[:3]),
                LINEAR[:4] + CONV[:3])
    few = [LINEAR[0], LINEAR[3], CONV[1], CONV[3]]
    peft_folder("peft_loha", LoHaConfig(r=3, alpha=2, target_modules=few), few)
    peft_folder("peft_loha_tucker", LoHaConfig(r=2, alpha=3, target_modules=few,
                                               use_effective_conv2d=True), few)
    peft_folder("peft_lokr", LoKrConfig(r=1, alpha=2, target_modules=few, decompose_both=True,
                                        decompose_factor=4), few)
    peft_folder("peft_lokr_tucker", LoKrConfig(r=1, alpha=3, target_modules=few,
                                               use_effective_conv2d=True), few)
    peft_folder("peft_lokr_whole", LoKrConfig(r=100, alpha=50, target_modules=few[:3]), few[:3])


def with_adapters(file, alpha):
    """Returns both models with a peft adapter each, as in diffusers' training scripts."""
    models = {"unet": unet(), "text_encoder": text_encoder()}
    for component, layers in (("unet", LAYERS), ("text_encoder", TEXT_LAYERS)):
        models[component].add_adapter(LoraConfig(r=2, lora_alpha=alpha, target_modules=layers))
        randomize(file + component, adapter_parameters(models[component]))
    return models


def save_diffusers(name, state_dicts, metadata):
    StableDiffusionPipeline.save_lora_weights(
        FOLDER, unet_lora_layers=state_dicts["unet"],
        text_encoder_lora_layers=state_dicts["text_encoder"], weight_name=name, **metadata)


def expect_loaded(file, name):
    """Records the weights that diffusers itself computes from the file."""
    models = {"unet": unet(), "text_encoder": text_encoder()}
    pipe = StableDiffusionPipeline(
        vae=None, tokenizer=None, scheduler=DDIMScheduler(), safety_checker=None,
        feature_extractor=None, requires_safety_checker=False, **models)
    pipe.load_lora_weights(FOLDER, weight_name=name)
    pipe.fuse_lora(components=["unet", "text_encoder"])
    for component, model in models.items():
        layers = [k for k, m in model.named_modules() if hasattr(m, "base_layer")]
        assert layers, f"{file}: diffusers finds nothing for {component}"
        expect_merged(file, component, model, layers)


def diffusers_files():
    models = with_adapters("diffusers", 3)
    state = {k: get_peft_model_state_dict(m) for k, m in models.items()}
    save_diffusers("diffusers.safetensors", state, _collate_lora_metadata(models))
    expect_loaded("diffusers", "diffusers.safetensors")

    models = with_adapters("diffusers_old", 2)
    state = {k: convert_state_dict_to_diffusers(get_peft_model_state_dict(m))
             for k, m in models.items()}
    state["unet"] = {k.replace(".lora_A.", ".lora.down.").replace(".lora_B.", ".lora.up."): v
                     for k, v in state["unet"].items()}
    save_diffusers("diffusers_old.safetensors", state, {})
    expect_loaded("diffusers_old", "diffusers_old.safetensors")

    # The format of diffusers in 2023: attention processors, and no text encoder.
    old = {}
    for key, tensor in get_peft_model_state_dict(models["unet"]).items():
        if ".attn" in key:
            key = key.replace(".to_out.0.", ".to_out.")
            attention, leaf, factor = key.split(".to_")[0], *key.split(".to_")[1].split(".")[:2]
            part = {"lora_A": "down", "lora_B": "up"}[factor]
            old[f"{attention}.processor.to_{leaf}_lora.{part}.weight"] = tensor.half()
    save_file(old, FOLDER / "attn_procs.safetensors", metadata={"format": "pt"})
    for layer in LAYERS[:3]:
        module = models["unet"].get_submodule(layer)
        a, b = (m["default"].weight.half().double() for m in (module.lora_A, module.lora_B))
        expect("attn_procs", "unet", layer, module.base_layer.weight.double() + b @ a)


def kohya_name(component, layer):
    prefix = {"unet": "lora_unet_", "text_encoder": "lora_te_text_model_"}[component]
    return prefix + layer.replace(".", "_")


def merged(module, weight, bias):
    """Returns the layer's weights with the module. For LoHa and LoKr, get_merged_weight of
    LyCORIS 4.1.3 multiplies the change by its scale twice, unlike its forward, so it is not
    used."""
    if not isinstance(module, (LohaModule, LokrModule)):
        new, new_bias = module.get_merged_weight(1, weight.shape)
        return new, bias if new_bias is None else new_bias
    new = weight + module.get_weight(weight.shape)
    return (module.apply_weight_decompose(new) if module.wd else new), bias


def check_forward(module, origin, weight, bias):
    """Asserts that LyCORIS's forward computes with these weights."""
    convolution = weight.dim() == 4
    shape = (2, weight.shape[1], 6, 6) if convolution else (5, weight.shape[1])
    x = torch.from_numpy(number("x", math.prod(shape))).float().reshape(shape)
    options = dict(stride=origin.stride, padding=origin.padding) if convolution else {}
    operation = torch.nn.functional.conv2d if convolution else torch.nn.functional.linear
    right = operation(x, weight, bias, **options)
    module.eval().apply_to()
    error = ((origin(x) - right).norm() / right.norm()).item()
    assert error < 1e-5, f"{module.lora_name}: {error}"


class Kohya:
    """A file of LyCORIS modules with kohya's names."""

    def __init__(self, file, name=kohya_name, dtype=torch.float32):
        self.file, self.name, self.dtype, self.tensors = file, name, dtype, {}
        self.models = {"unet": unet(), "text_encoder": text_encoder()}

    def add(self, kind, component, layer, rank=2, alpha=1.0, **options):
        origin = self.models[component].get_submodule(layer)
        name = self.name(component, layer)
        module = kind(name, origin, 1.0, lora_dim=rank, alpha=alpha, **options)
        randomize(self.file + name, module.named_parameters())
        module.to(self.dtype).float()
        state = module.custom_state_dict()
        if kind is FullModule:
            state = {"diff": module.weight, "diff_b": module.bias}
            state = {k: v for k, v in state.items() if v is not None}
        for key, tensor in state.items():
            dtype = torch.float32 if key == "dora_scale" else self.dtype
            self.tensors[f"{name}.{key}"] = tensor.detach().to(dtype).clone()
        weight, bias = merged(module, origin.weight.detach(), origin.bias)
        check_forward(module, origin, weight, bias)
        expect(self.file, component, layer, weight, bias if kind is FullModule else None)

    def save(self, **metadata):
        path = FOLDER / f"{self.file}.safetensors"
        save_file(self.tensors, path, metadata={"ss_network_module": "lycoris.kohya"} | metadata)


def ldm_name(component, layer):
    table = pathlib.Path(__file__).parents[2] / "tests/models/data/ldm_names.tsv"
    names = {row[1]: row[2] for row in map(str.split, open(table)) if row[0] == "unet"}
    # SD-1.5 has two layers per block and four levels. The small model has one layer per block and
    # two levels.
    blocks = {"down_blocks.0.": "input_blocks.1", "mid_block.": "middle_block"}
    assert any(layer.startswith(b) for b in blocks), layer
    return "lora_unet_" + names[layer].replace(".", "_")


def lycoris_files():
    # diffusers 0.42.1 ignores the alpha of an attention layer if it differs from the most common
    # alpha. So all attention layers have the same alpha here.
    f = Kohya("kohya")
    for layer in LAYERS:
        f.add(LoConModule, "unet", layer, rank=3, alpha=1.0 if layer in LINEAR else 4.0)
    for layer in TEXT_LAYERS:
        f.add(LoConModule, "text_encoder", layer, rank=4, alpha=1.0)
    f.save(ss_base_model_version="sd_v1", ss_network_dim="3")
    check_with_diffusers("kohya")

    for file, dtype in (("kohya_f16", torch.float16), ("kohya_bf16", torch.bfloat16)):
        f = Kohya(file, dtype=dtype)
        for index, layer in enumerate(LAYERS[:5] + CONV[:1]):
            f.add(LoConModule, "unet", layer, rank=2 + index % 2, alpha=1.0 + index % 3)
        f.save()

    f = Kohya("ldm_names", name=ldm_name)
    for layer in (LAYERS[0], LAYERS[4], CONV[1], "mid_block.resnets.1.conv2"):
        f.add(LoConModule, "unet", layer, alpha=3.0)
    f.save()

    f = Kohya("tucker")
    for layer in CONV[:3]:
        f.add(LoConModule, "unet", layer, rank=3, alpha=2.0, use_tucker=True)
    f.save()

    f = Kohya("loha")
    for layer in (LINEAR[0], CONV[1]):
        f.add(LohaModule, "unet", layer, rank=2, alpha=1.0)
    f.add(LohaModule, "unet", CONV[2], rank=2, alpha=1.0, use_tucker=True)
    f.add(LohaModule, "text_encoder", TEXT_LAYERS[0], rank=3, alpha=5.0)
    f.save()

    f = Kohya("lokr")
    f.add(LokrModule, "unet", LINEAR[0], rank=1, alpha=2.0, decompose_both=True, factor=4)
    f.add(LokrModule, "unet", LINEAR[1], rank=100, alpha=7.0)  # no factor is decomposed, so alpha is ignored
    f.add(LokrModule, "unet", LINEAR[3], rank=2, alpha=3.0, factor=2)
    f.add(LokrModule, "unet", LINEAR[6], rank=2, alpha=3.0, unbalanced_factorization=True)
    f.add(LokrModule, "unet", CONV[1], rank=1, alpha=2.0)
    f.add(LokrModule, "unet", CONV[2], rank=1, alpha=2.0, use_tucker=True)
    f.add(LokrModule, "unet", "mid_block.resnets.1.conv1", rank=1, alpha=0.5, decompose_both=True,
          factor=4, use_tucker=True)
    f.add(LokrModule, "text_encoder", TEXT_LAYERS[2], rank=1, alpha=3.0)
    f.save()

    for file, outputs in (("dora", True), ("dora_inputs", False)):
        f = Kohya(file)
        options = dict(weight_decompose=True, wd_on_out=outputs)
        for layer in (LINEAR[0], LINEAR[3], CONV[1]):
            f.add(LoConModule, "unet", layer, rank=2, alpha=3.0, **options)
        f.add(LohaModule, "unet", LINEAR[1], rank=2, alpha=3.0, **options)
        f.add(LokrModule, "unet", LINEAR[2], rank=1, alpha=3.0, factor=4, **options)
        f.add(LoConModule, "text_encoder", TEXT_LAYERS[0], rank=2, alpha=3.0, **options)
        f.save()

    f = Kohya("full")
    for layer in (LINEAR[0], LINEAR[4], CONV[0]):
        f.add(FullModule, "unet", layer)
    f.add(FullModule, "text_encoder", TEXT_LAYERS[0])
    for component, layer in (("unet", "conv_norm_out"), ("unet", f"{BLOCK}.norm2"),
                             ("text_encoder", "encoder.layers.1.layer_norm2")):
        name = kohya_name(component, layer)
        norm = NormModule(name, f.models[component].get_submodule(layer))
        randomize(f"full/{layer}", norm.named_parameters())
        f.tensors |= {f"{name}.{k}": p.detach() for k, p in norm.named_parameters()}
        expect("full", component, layer, *norm.get_merged_weight())
    f.save()


def check_with_diffusers(file):
    """Replaces the recorded weights, which LyCORIS computed, by those that diffusers computes
    from the file. Asserts that the two agree."""
    lycoris = {k: goldens.pop(k) for k in list(goldens) if k.startswith(file + "/")}
    expect_loaded(file, f"{file}.safetensors")
    loaded = {k: v for k, v in goldens.items() if k.startswith(file + "/")}
    worst = max(((v - lycoris[k]).norm() / v.norm()).item() for k, v in loaded.items())
    print(f"{file}: diffusers' weights and LyCORIS's differ by {worst:.1e}")
    assert worst < 1e-6 and loaded.keys() == lycoris.keys(), loaded.keys() ^ lycoris.keys()


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    peft_folders()
    diffusers_files()
    lycoris_files()
    base = {"unet": unet(), "text_encoder": text_encoder()}
    for key, value in goldens.items():
        component, layer = key.split("/")[1:]
        if component == "text_encoder":
            layer = layer.removeprefix("text_model.")
        name = layer if layer.endswith(".bias") else layer + ".weight"
        own = base[component].get_parameter(name)
        assert (value - own).norm() > 1e-3 * own.norm(), f"{key} is unchanged"
    save_file(goldens, FOLDER.with_suffix(".safetensors"))
    size = sum(p.stat().st_size for p in FOLDER.rglob("*") if p.is_file())
    print(f"{len(goldens)} weights, {FOLDER.with_suffix('.safetensors').stat().st_size} bytes; "
          f"files of {size} bytes")


if __name__ == "__main__":
    main()
