"""Writes tests/models/data/gradients.safetensors for tests/models/gradients_test.c: gradients of
diffusers' and transformers' models, computed by torch's autograd in float64. Trained are either all
weights or peft's adapters.

A case is a model, what is trained in it, and a number of rows. A case without a text encoder also
has the relative error, over all gradients together, of the same model in bfloat16. The loss is
<output, "d_out">. For the gradient g of each parameter, sorted by name, the case keeps |g|, and the
products <g, v> with four random vectors v. The mean square of <error, v> is |error|^2, so every
error shows. One gradient of each case is kept
whole. Inputs, factors and v are generated from their names (small_models.py), and so are the small
models' weights. A checkpoint in FOLDER has its own weights.

usage: python tests/reference/gradients.py                               the committed cases
       python tests/reference/gradients.py FOLDER OUT.safetensors WHAT...  by hand, of any checkpoint
WHAT: attention, everything, full; a number of rows may follow behind a colon (full:4). Then
`gradients_test OUT.safetensors FOLDER` compares. With SD-1.5 of random weights (random_sd15.py),
64x64 px, in float32 on both sides, the largest errors of 352, 708 and 882 gradients are 2.1e-5,
2.3e-5 and 2.9e-5. `full` takes 13 GB of memory.
(torch 2.15.0, diffusers 0.42.1, transformers 5.23.0, peft 0.21.2)
"""

import math
import pathlib
import sys

import numpy
import torch
from diffusers import UNet2DConditionModel
from peft import LoraConfig
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import save_file
from small_models import CONTEXT_DIM, TIMESTEPS, TOKENS, UNET, fill, number, signal
from transformers import CLIPTextModel

ROOT = pathlib.Path(__file__).parents[2]
PROJECTIONS = 4
RANK = {"attention": 17, "everything": 4}
SCALE = 1.5
ALL_TIMESTEPS = TIMESTEPS + [250.0]
ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "q_proj", "k_proj", "v_proj", "out_proj")
vectors = [numpy.zeros(0)] * PROJECTIONS


def project(gradient):
    """Returns |g| and the products with the vectors."""
    g = gradient.detach().double().reshape(-1).numpy()
    if len(vectors[0]) < len(g):
        for i in range(PROJECTIONS):
            vectors[i] = math.sqrt(3) * number(f"v{i}", len(g))
    return [float(numpy.linalg.norm(g))] + [float(g @ v[: len(g)]) for v in vectors]


def is_target(name, module, what):
    if not isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)):
        return False
    return what == "everything" or name.endswith(ATTENTION)


def add_factors(model, prefix, what):
    """Adds peft's layers, whose factors are generated from the layers' names. Returns their
    parameters by name."""
    targets = [name for name, module in model.named_modules() if is_target(name, module, what)]
    config = LoraConfig(r=RANK[what], lora_alpha=SCALE * RANK[what], target_modules=targets)
    model.add_adapter(config)
    found = {}
    for name, module in model.named_modules():
        if not isinstance(module, BaseTunerLayer):
            continue
        for which in ("lora_A", "lora_B"):
            parameter = getattr(module, which)["default"].weight
            full = f"{name}.{which}.weight"
            full = full if full.startswith(prefix) else prefix + full
            inputs = math.prod(parameter.shape[1:])
            values = math.sqrt(1 / inputs) * number(full, parameter.numel())
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(values.astype(numpy.float32))
                                .reshape(parameter.shape))
            found[full] = parameter
    return found


def trained_parameters(model, prefix, what):
    if what == "full":
        found = dict(model.named_parameters())
    else:
        found = add_factors(model, prefix, what)
    return {name if name.startswith(prefix) else prefix + name: p for name, p in found.items()}


def gradients(trained, dtype, rows, unet, text_encoder, size):
    """Returns the gradients of the trained parameters by name, and the context's if there is no
    text encoder."""
    channels, (h, w) = unet.config.in_channels, size
    d_out = signal("d_out", (rows, h, w, unet.config.out_channels)).permute(0, 3, 1, 2)
    latents = signal("latents", (rows, h, w, channels)).permute(0, 3, 1, 2)
    unet = unet.to(dtype).eval()
    if text_encoder:
        config = text_encoder.config
        ids = number("ids", rows * config.max_position_embeddings)
        ids = torch.from_numpy(((ids + 1) / 2 * config.vocab_size).astype(numpy.int64))
        context = text_encoder.to(dtype).eval()(
            ids.reshape(rows, -1)).last_hidden_state
    else:
        context = signal("context", (rows, TOKENS, CONTEXT_DIM)).to(dtype).requires_grad_()
        trained = trained | {"context": context}
    y = unet(latents.to(dtype), torch.tensor(ALL_TIMESTEPS[:rows]), context).sample
    (y * d_out.to(dtype)).sum().backward()
    found = {name: p.grad for name, p in trained.items()}
    for p in trained.values():
        p.grad = None
    return found


def record(out, case, what, rows, unet, text_encoder, size):
    trained = trained_parameters(unet, "", what)
    if text_encoder:
        trained |= trained_parameters(text_encoder, "text_model.", what)
    # A full-size checkpoint does not fit in memory in float64.
    exact = torch.float64 if unet.num_parameters() < 1e8 else torch.float32
    found = gradients(trained, exact, rows, unet, text_encoder, size)
    names = sorted(found)
    numbers = [project(found[name]) for name in names]
    out[case] = torch.tensor(numbers, dtype=torch.float32)
    if not text_encoder:
        rough = gradients(trained, torch.bfloat16, rows, unet, None, size)
        error = sum((rough[name].double() - found[name]).square().sum() for name in names)
        square = sum(found[name].square().sum() for name in names)
        out[f"{case}/bf16"] = (error / square).sqrt().float().reshape(1)
    small = [name for name in names if 100 < found[name].numel() < 2000]
    whole = small[len(small) // 2] if small else min(names, key=lambda n: found[n].numel())
    out[f"{case}/{whole}"] = found[whole].reshape(-1).float()
    print(f"{case}: {len(names)} parameters, |g| {min(n[0] for n in numbers):.2e} to "
          f"{max(n[0] for n in numbers):.2e}, {whole} is kept", flush=True)


def small_unet(values):
    config = dict(values["config"])
    down = config.pop("down")
    up = [block.replace("Down", "Up") for block in reversed(down)]
    model = UNet2DConditionModel(
        sample_size=8, out_channels=4, cross_attention_dim=CONTEXT_DIM, down_block_types=down,
        up_block_types=up, **config)
    return fill(model, "", values["gain"])


def folder_cases(out, name, folder, whats):
    for what in whats:
        kind, _, rows = what.partition(":")
        unet = UNet2DConditionModel.from_pretrained(folder / "unet", torch_dtype=torch.float32)
        text = CLIPTextModel.from_pretrained(folder / "text_encoder", torch_dtype=torch.float32)
        record(out, f"{name}.{kind}.{rows or 1}", kind, int(rows or 1), unet, text, (8, 8))


def main():
    torch.set_num_threads(1)
    out = {}
    if len(sys.argv) > 1:
        folder_cases(out, "folder", pathlib.Path(sys.argv[1]), sys.argv[3:])
        save_file(out, sys.argv[2])
        return
    for name in ("unet_sd1", "unet_sd2", "unet_inpaint"):
        for what in ("everything", "full"):
            unet = small_unet(UNET[name])
            record(out, f"{name}.{what}.3", what, 3, unet, None, UNET[name]["size"])
    folder_cases(out, "tiny-sd", ROOT / "share/tiny-sd",
                 ["attention:1", "attention:4", "everything:4", "full:1", "full:4"])
    save_file(out, ROOT / "tests/models/data/gradients.safetensors")


if __name__ == "__main__":
    main()
