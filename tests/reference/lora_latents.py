"""Writes tests/engine/data/loras/: adapter files for the bundled checkpoint, and
tests/engine/data/lora_latents.safetensors: what diffusers' StableDiffusionPipeline draws with them, in
float32 on the CPU. kohya's and diffusers' files are loaded by diffusers itself. It does not read
LoHa, LoKr and DoRA. For these, LyCORIS computes the adapted weight W'', and the model gets W + s
(W'' - W) at weight s.

The file also has the weights that diffusers' fuse_lora computes for one case, each multiplied by a
known vector (`fused`).

The cases are stored as JSON in the file's metadata, together with `weights_sum`
(tests/reference/latents.py). Each case has its distance from the same drawing without adapters,
relative to that drawing's norm.

usage: python tests/reference/lora_latents.py
(torch 2.15.0, diffusers 0.42.1, transformers 5.23.0, peft 0.21.2, lycoris-lora 4.1.3)
"""

import json
import os
import shutil

# torch reads these when it is loaded.
os.environ |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
               "MKL_ENABLE_INSTRUCTIONS": "AVX2"}

import torch
from diffusers import DDIMScheduler, StableDiffusionPipeline
from diffusers.training_utils import _collate_lora_metadata
from latents import ROOT, weights_sum
from loras import adapter_parameters, kohya_name, merged, randomize
from lycoris.modules.locon import LoConModule
from lycoris.modules.loha import LohaModule
from lycoris.modules.lokr import LokrModule
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from small_models import number

FOLDER = ROOT / "tests/engine/data/loras"
MODEL = ROOT / "share/tiny-sd"
BLOCKS = ("down_blocks.1.attentions.0", "mid_block.attentions.0", "up_blocks.2.attentions.1")
ATTENTION = [f"{b}.transformer_blocks.0.{a}" for b in BLOCKS
             for a in ("attn1.to_q", "attn1.to_out.0", "attn2.to_k", "attn2.to_v")]
CONV = ["conv_in", "down_blocks.0.resnets.0.conv1", "down_blocks.1.downsamplers.0.conv",
        "up_blocks.2.upsamplers.0.conv", "up_blocks.3.resnets.0.conv_shortcut"]
OTHER = [f"{BLOCKS[0]}.proj_in", f"{BLOCKS[1]}.transformer_blocks.0.ff.net.0.proj"]
TEXT = ["encoder.layers.0.self_attn.q_proj", "encoder.layers.1.self_attn.v_proj",
        "encoder.layers.2.mlp.fc1"]
CASES = [
    [], [("kohya", 1.0)], [("kohya", -0.5)], [("kohya", 0.0, 1.0)], [("kohya", 0.8, 0.0)],
    [("diffusers", 0.6)], [("kohya", 0.7), ("diffusers", -0.3)], [("loha", 0.8)], [("lokr", 0.8)],
    [("dora", 1.0)], [("dora", 0.5)],
]
FUSED = 6


def pipeline():
    pipe = StableDiffusionPipeline.from_pretrained(MODEL, dtype=torch.float32)
    pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def random_module(module, strength):
    """Makes a change whose norm is `strength` of the layer's own weights."""
    randomize("lora_latents/" + module.lora_name, module.named_parameters())
    with torch.no_grad():
        own = module.org_weight
        norm = (merged(module, own, None)[0] - own).norm()
        factor = {"lora_up.weight", "hada_w2_a", "lokr_w2", "lokr_w2_a"}
        for name, parameter in module.named_parameters():
            if name in factor:
                parameter.mul_(strength * own.norm() / norm)


def lycoris_file(name, modules):
    """Writes a file of LyCORIS modules. Returns {component: {layer: W''}}, where W'' is the
    layer's weight with the adapter, alpha and DoRA's scale included."""
    pipe, tensors, weights = pipeline(), {}, {"unet": {}, "text_encoder": {}}
    for kind, component, layer, options in modules:
        origin = getattr(pipe, component).get_submodule(layer)
        key = kohya_name(component, layer)
        module = kind(key, origin, 1.0, **options)
        wd, module.wd = module.wd, False
        random_module(module, 0.3)
        module.wd = wd
        module.half().float()
        if wd:
            module.dora_scale.data *= 1.1
        state = module.custom_state_dict()
        tensors |= {f"{key}.{k}": (t.detach().half() if t.dim() else t.detach()).clone()
                    for k, t in state.items()}
        if wd:
            tensors[f"{key}.dora_scale"] = module.dora_scale.detach().float().clone()
        weights[component][layer] = merged(module, origin.weight.detach(), None)[0].detach()
    save_file(tensors, FOLDER / f"{name}.safetensors", metadata={"ss_base_model_version": "sd_v1"})
    return weights


def make_files():
    """Writes all files. Returns the adapted weights of the files that diffusers does not read.
    For the files that it reads, returns only the text encoder's adapted weights."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    kohya = lycoris_file("kohya", [
        (LoConModule, component, layer, dict(lora_dim=2, alpha=1.0))
        for component, layers in (("unet", ATTENTION + OTHER + CONV), ("text_encoder", TEXT))
        for layer in layers])
    pipe = pipeline()
    models = {"unet": pipe.unet, "text_encoder": pipe.text_encoder}
    for component, layers in (("unet", ATTENTION), ("text_encoder", TEXT)):
        models[component].add_adapter(LoraConfig(r=2, lora_alpha=6, target_modules=layers))
        randomize("lora_latents/" + component, adapter_parameters(models[component]))
        for key, parameter in adapter_parameters(models[component]):
            parameter.data = (0.35 * parameter.data).half().float()
    state = {k: {n: t.half() for n, t in get_peft_model_state_dict(m).items()}
             for k, m in models.items()}
    StableDiffusionPipeline.save_lora_weights(
        FOLDER, unet_lora_layers=state["unet"], text_encoder_lora_layers=state["text_encoder"],
        weight_name="diffusers.safetensors", **_collate_lora_metadata(models))
    few = [("unet", layer) for layer in ATTENTION[:4] + ATTENTION[8:10] + CONV[1:2]]
    few.append(("text_encoder", TEXT[0]))
    own_weights = {
        "loha": lycoris_file("loha", [(LohaModule, *where, dict(lora_dim=2, alpha=1.0))
                                      for where in few]),
        "lokr": lycoris_file("lokr", [(LokrModule, *where, dict(lora_dim=2, alpha=1.0, factor=8))
                                      for where in few]),
        "dora": lycoris_file("dora", [(LoConModule, *where, dict(
            lora_dim=2, alpha=3.0, weight_decompose=True)) for where in few]),
    }
    return own_weights, {"kohya": kohya["text_encoder"], "diffusers": fuse("diffusers")}


def strengths(choice):
    return choice[1], choice[2] if len(choice) > 2 else choice[1]


def fuse(name):
    """Returns the text encoder's {layer: weight} that diffusers computes from this file alone,
    at weight 1."""
    pipe = pipeline()
    pipe.load_lora_weights(FOLDER, weight_name=f"{name}.safetensors")
    pipe.fuse_lora(components=["unet", "text_encoder"])
    layers = {k: m.base_layer.weight.detach() for k, m in pipe.text_encoder.named_modules()
              if hasattr(m, "base_layer")}
    assert sorted(layers) == sorted(TEXT), layers.keys()
    return layers


def put(model, layers, strength):
    """Adds s (W'' - W) to the model's current weights."""
    base = pipeline()
    base = base.unet if hasattr(model, "conv_in") else base.text_encoder
    for layer, weight in layers.items():
        own = base.get_submodule(layer).weight.data
        model.get_submodule(layer).weight.data += strength * (weight - own)


def load(pipe, choices, text_weights):
    """Lets diffusers load the files and apply them to the UNet with their weights. If a kohya
    file has no out_proj, diffusers 0.42.1 drops the text encoder's attention. So the text
    encoder is built here from the adapted weights in `text_weights`."""
    text_encoder = pipeline().text_encoder
    for name, *weights in choices:
        pipe.load_lora_weights(FOLDER, weight_name=f"{name}.safetensors", adapter_name=name)
        put(text_encoder, text_weights[name], weights[-1])
    if choices:
        pipe.unet.set_adapters([c[0] for c in choices], [c[1] for c in choices])
    pipe.text_encoder = text_encoder


def fused(case, text_weights):
    """Returns {fused/COMPONENT/LAYER: vector}: diffusers' fused weight, rounded to float16 as in
    the checkpoint, multiplied by the vector number("probe")."""
    pipe, out = pipeline(), {}
    load(pipe, case, text_weights)
    pipe.unet.fuse_lora(adapter_names=[c[0] for c in case])
    layers = {f"unet/{k}": m.base_layer for k, m in pipe.unet.named_modules()
              if hasattr(m, "base_layer")}
    layers |= {f"text_encoder/text_model.{k}": pipe.text_encoder.get_submodule(k) for k in TEXT}
    for name, module in layers.items():
        rows = module.weight.detach().half().double().flatten(1)
        probe = torch.from_numpy(number("probe", rows.shape[1]))
        out[f"fused/{name}"] = (rows @ probe).float()
    return out


def draw(case, own_weights, text_weights):
    pipe = pipeline()
    load(pipe, [c for c in case if c[0] not in own_weights], text_weights)
    for choice in case:
        for component, layers in own_weights.get(choice[0], {}).items():
            put(getattr(pipe, component), layers, strengths(choice)[component == "text_encoder"])
    return pipe("a red house on green hills at sunset", negative_prompt="night",
                num_inference_steps=10, guidance_scale=3.0, output_type="latent",
                generator=torch.Generator().manual_seed(7)).images.contiguous()


def main():
    torch.set_num_threads(1)  # for small tensors one thread is faster
    own_weights, text_weights = make_files()
    tensors, listed = {}, []
    for index, case in enumerate(CASES):
        tensors[f"latents_{index:02}"] = latents = draw(case, own_weights, text_weights)
        base = tensors["latents_00"]
        distance = ((latents - base).norm() / base.norm()).item()
        listed.append({"distance": distance, "loras": [
            {"name": c[0], "weight": strengths(c)[0], "text_encoder_weight": strengths(c)[1]}
            for c in case]})
        print(case, f"moves by {distance:.3f}")
        assert not case or 0.01 < distance < 3, case
    tensors |= fused(CASES[FUSED], text_weights)
    path = FOLDER.parent / "lora_latents.safetensors"
    save_file(tensors, path, metadata={"cases": json.dumps(listed),
                                       "fused": str(FUSED),
                                       "weights_sum": str(weights_sum(MODEL))})
    print(f"{sum(p.stat().st_size for p in FOLDER.iterdir())} bytes of adapters, "
          f"{path.stat().st_size} of latents")


if __name__ == "__main__":
    main()
