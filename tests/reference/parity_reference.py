"""The inputs of scripts/parity and what diffusers makes of them, kept on disk.

These are not in parity.py, so that changes to its table or its error limits keep the cache: the
cache key is a hash of this file, sd15.py, random_sd15.py and the versions of torch, diffusers and
transformers.
"""

import hashlib
import os
import sys
import time

import torch
from safetensors.torch import load_file, save_file

import sd15

HERE = os.path.dirname(os.path.abspath(__file__))

# name, component, (width, height) in px or None, rows
CASES = (
    ("text", "text", None, 2),
    ("unet 512x512", "unet", (512, 512), 2),
    ("unet 768x512", "unet", (768, 512), 1),
    ("unet 520x456", "unet", (520, 456), 2),
    ("vae-decode 512x512", "vae-decode", (512, 512), 1),
    ("vae-decode 520x456", "vae-decode", (520, 456), 1),
    ("vae-encode 512x512", "vae-encode", (512, 512), 1),
    ("vae-encode 520x456", "vae-encode", (520, 456), 1),
)
# Cases that diffusers also computes in bf16, with one row each. A processor without bf16
# instructions runs them at a tenth of its speed, so it gets the small sizes.
BF16_CASES = (
    ("text bf16", "text", None, 1),
    ("unet 512x512 bf16", "unet", (512, 512), 1),
    ("vae-decode 512x512 bf16", "vae-decode", (512, 512), 1),
    ("vae-encode 512x512 bf16", "vae-encode", (512, 512), 1),
)
BF16_CASES_SLOW = (
    ("text bf16", "text", None, 1),
    ("unet 256x256 bf16", "unet", (256, 256), 1),
    ("vae-decode 128x128 bf16", "vae-decode", (128, 128), 1),
    ("vae-encode 128x128 bf16", "vae-encode", (128, 128), 1),
)
OUTPUTS = {
    "text": "context",
    "unet": "noise_pred",
    "vae-decode": "image",
    "vae-encode": "moments",
}
TORCH = {"f32": torch.float32, "bf16": torch.bfloat16}


def make_inputs(component, size, rows):
    """Inputs in diffusers' layout (channels first), float32 and int32."""
    generator = torch.Generator().manual_seed(rows * 7919 + sum(size or (77,)))

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    if component == "text":
        ids = torch.full((rows, 77), 49407, dtype=torch.int32)
        ids[:, 0] = 49406
        for row in range(rows):  # one short and one full prompt
            count = 75 if row else 9
            words = torch.randint(0, 49406, (count,), generator=generator, dtype=torch.int32)
            ids[row, 1 : count + 1] = words
        return {"ids": ids}
    width, height = size
    if component == "vae-encode":
        # A picture has structure at all scales: enlarged noise plus finer noise.
        coarse = normal(rows, 3, height // 8, width // 8)
        image = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
        return {"image": (0.4 * image + 0.1 * normal(rows, 3, height, width)).clamp(-1, 1)}
    latents = normal(rows, 4, height // 8, width // 8)
    if component == "vae-decode":
        return {"latents": latents}
    return {
        "latents": latents,
        "timesteps": torch.tensor([801.0, 41.0])[:rows],  # another one for each row
        "context": normal(rows, 77, 768),
    }


def bf16_cases():
    """Returns BF16_CASES, or the small ones if this processor cannot multiply bf16."""
    native = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return BF16_CASES if native else BF16_CASES_SLOW


def channels_last(tensor):
    return tensor.permute(0, 2, 3, 1).contiguous() if tensor.ndim == 4 else tensor


def run_diffusers(module, component, inputs, dtype):
    """Returns the output as float32, channels last."""
    with torch.inference_mode():
        if component == "text":
            return module(inputs["ids"].long()).last_hidden_state.float().clone()
        if component == "unet":
            latents, context = inputs["latents"].to(dtype), inputs["context"].to(dtype)
            out = module(latents, inputs["timesteps"], encoder_hidden_states=context).sample
        elif component == "vae-decode":
            scale = sd15.VAE_CONFIG["scaling_factor"]
            out = module.decode((inputs["latents"] / scale).to(dtype)).sample
        else:
            out = module.quant_conv(module.encoder(inputs["image"].to(dtype)))
        return channels_last(out.float()).clone()


class Reference:
    """diffusers' outputs, read from the cache on disk or computed. Holds at most one module."""

    def __init__(self, folder, weights):
        self.folder, self.weights = folder, weights
        self.held = (None, None)
        digest = hashlib.sha256()
        for name in ("sd15.py", "random_sd15.py", "parity_reference.py"):
            with open(os.path.join(HERE, name), "rb") as file:
                digest.update(file.read())
        import diffusers
        import transformers

        for version in (torch.__version__, diffusers.__version__, transformers.__version__):
            digest.update(version.encode())
        self.key = digest.hexdigest()[:16]

    def drop(self):
        self.held = (None, None)

    def _module(self, component, dtype_name):
        part = {"text": "text_encoder", "unet": "unet"}.get(component, "vae")
        if self.held[0] != (part, dtype_name):
            self.drop()
            self.held = (
                (part, dtype_name),
                sd15.load(self.weights, part, TORCH[dtype_name]),
            )
        return self.held[1]

    def output(self, name, component, inputs, dtype_name):
        path = os.path.join(
            self.folder, f"{name.replace(' ', '-')}-{dtype_name}-{self.key}.safetensors"
        )
        if not os.path.exists(path):
            start = time.monotonic()
            module = self._module(component, dtype_name)
            out = run_diffusers(module, component, inputs, TORCH[dtype_name])
            save_file({"out": out}, path + ".part")
            os.replace(path + ".part", path)
            note(f"diffusers {dtype_name} {name}: {time.monotonic() - start:.0f} s")
        return load_file(path)["out"]


def note(text):
    print(text, file=sys.stderr, flush=True)
