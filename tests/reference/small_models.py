"""Writes tests/models/data/small_models.safetensors: the outputs of diffusers and transformers for
small models that together use every branch of ours (see CASES below;
tests/models/small/small_models.c has the same list).

Only the outputs are stored: weights and inputs are generated from their names by a rule, `number`,
which the tests repeat in C.

usage: python tests/reference/small_models.py
(torch 2.15.0, diffusers 0.42.1, transformers 5.23.0)
"""

import math
import pathlib

import numpy
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPTextModel

MASK = (1 << 64) - 1


def number(name, count):
    """Returns `count` doubles in [-1, 1): splitmix64, seeded with the name's FNV-1a hash."""
    seed = 14695981039346656037
    for byte in name.encode():
        seed = ((seed ^ byte) * 1099511628211) & MASK
    with numpy.errstate(over="ignore"):
        z = numpy.uint64(seed) + numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        z = z ^ (z >> numpy.uint64(31))
    return (z >> numpy.uint64(40)).astype(numpy.float64) / (1 << 23) - 1


def weight(name, shape, gain):
    """Returns a parameter's values. Weights of norms are near 1, biases near 0. Matrices keep
    the variance of their input, times gain squared. Matrices of queries and keys are larger,
    so that attention is not uniform."""
    values = number(name, math.prod(shape))
    if len(shape) == 1:
        is_norm_weight = "norm" in name.split(".")[-2] and name.endswith(".weight")
        values = 1 + 0.25 * values if is_norm_weight else 0.125 * values
    elif "embedding." in name and name.startswith("text_model."):
        values = gain * values
    else:
        scale = gain * math.sqrt(3 / math.prod(shape[1:]))
        if any(part in name for part in ("to_q", "to_k", "q_proj", "k_proj")):
            scale *= 2
        values = scale * values
    return torch.from_numpy(values.astype(numpy.float32)).reshape(shape)


def signal(name, shape):
    """Returns an input of variance 1."""
    values = math.sqrt(3) * number(name, math.prod(shape))
    return torch.from_numpy(values.astype(numpy.float32)).reshape(shape)


def fill(model, prefix, gain):
    """Sets every parameter. `prefix` is put in front of the module's names that lack it, because
    the names in a file begin with it."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            name = name if name.startswith(prefix) else prefix + name
            parameter.copy_(weight(name, tuple(parameter.shape), gain))
    return model.eval()


def relative_error(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).float()


def run(model, forward):
    """Returns the output in float32, and the relative error of the same model in bfloat16."""
    with torch.no_grad():
        exact = forward(model, torch.float32)
        rough = forward(model.to(torch.bfloat16), torch.bfloat16)
    return exact.contiguous(), relative_error(rough, exact).reshape(1)


TEXT = {
    "text_clip": dict(hidden_size=32, intermediate_size=96, num_hidden_layers=3,
                      num_attention_heads=4, hidden_act="quick_gelu", layer_norm_eps=1e-5),
    "text_openclip": dict(hidden_size=48, intermediate_size=64, num_hidden_layers=2,
                          num_attention_heads=3, hidden_act="gelu", layer_norm_eps=1e-3),
}
TEXT_GAIN = 0.5
IDS = [[49, 3, 17, 3, 40, 0, 48, 48, 48, 48, 48], [49, 8, 21, 30, 5, 11, 2, 33, 44, 10, 48]]


def text_cases(out):
    for case, values in TEXT.items():
        config = CLIPTextConfig(vocab_size=50, max_position_embeddings=11, projection_dim=16,
                                attn_implementation="eager", **values)
        for skip in range(values["num_hidden_layers"]):
            model = fill(CLIPTextModel(config), "text_model.", TEXT_GAIN)

            def forward(m, dtype):
                states = m(torch.tensor(IDS), output_hidden_states=True).hidden_states
                return m.final_layer_norm(states[-(skip + 1)])

            out[f"{case}.skip{skip}"], out[f"{case}.skip{skip}.bf16"] = run(model, forward)
        model = fill(CLIPTextModel(config), "text_model.", TEXT_GAIN)
        with torch.no_grad():
            last = model(torch.tensor(IDS)).last_hidden_state
        assert torch.equal(last, out[f"{case}.skip0"])


CROSS, PLAIN = "CrossAttnDownBlock2D", "DownBlock2D"
UNET = {
    # SD-1.5: one number of heads, 1x1 convolutions as projections
    "unet_sd1": dict(gain=0.7, size=(8, 12), config=dict(
        in_channels=4, block_out_channels=(16, 32, 48), down=(CROSS, CROSS, PLAIN),
        layers_per_block=2, attention_head_dim=4, norm_num_groups=8, norm_eps=1e-5)),
    # SD-2: a list of heads, linear projections, and the other kind of sinusoid
    "unet_sd2": dict(gain=0.35, size=(8, 8), config=dict(
        in_channels=4, block_out_channels=(16, 32), down=(CROSS, PLAIN), layers_per_block=1,
        attention_head_dim=(2, 4), norm_num_groups=4, norm_eps=1e-5, use_linear_projection=True,
        upcast_attention=True, flip_sin_to_cos=False, freq_shift=1)),
    # inpainting at a size that is odd at every level, with an eps large enough to show
    "unet_inpaint": dict(gain=0.5, size=(13, 7), config=dict(
        in_channels=9, block_out_channels=(16, 16, 32, 32), down=(CROSS, CROSS, CROSS, PLAIN),
        layers_per_block=1, attention_head_dim=2, norm_num_groups=8, norm_eps=1e-2)),
    # InstructPix2Pix's channels, and attention in other blocks
    "unet_pix2pix": dict(gain=0.7, size=(6, 10), config=dict(
        in_channels=8, block_out_channels=(16, 32), down=(PLAIN, CROSS), layers_per_block=2,
        attention_head_dim=(1, 8), norm_num_groups=16, norm_eps=1e-5)),
}
CONTEXT_DIM, TOKENS = 24, 5
TIMESTEPS = [1.0, 500.25, 999.0]


def unet_cases(out):
    for case, values in UNET.items():
        config = dict(values["config"])
        down = config.pop("down")
        up = [block.replace("Down", "Up") for block in reversed(down)]
        h, w = values["size"]
        latents = signal("latents", (3, h, w, config["in_channels"])).permute(0, 3, 1, 2)
        context = signal("context", (3, TOKENS, CONTEXT_DIM))
        model = UNet2DConditionModel(
            sample_size=h, out_channels=4, cross_attention_dim=CONTEXT_DIM, down_block_types=down,
            up_block_types=up, **config)
        model = fill(model, "", values["gain"])

        def forward(m, dtype):
            y = m(latents.to(dtype), torch.tensor(TIMESTEPS), context.to(dtype)).sample
            return y.permute(0, 2, 3, 1)

        out[case], out[case + ".bf16"] = run(model, forward)


VAE = {
    "vae_two_layers": dict(gain=0.3, latent=(3, 4), config=dict(
        block_out_channels=(16, 32, 32), layers_per_block=2, latent_channels=4,
        norm_num_groups=8, scaling_factor=0.18215)),
    "vae_one_layer": dict(gain=0.5, latent=(5, 7), config=dict(
        block_out_channels=(8, 8, 16, 24), layers_per_block=1, latent_channels=3,
        norm_num_groups=4, scaling_factor=0.5)),
}


def vae_cases(out):
    for case, values in VAE.items():
        config = values["config"]
        count, (h, w) = len(config["block_out_channels"]), values["latent"]
        scale, channels = 2 ** (count - 1), config["latent_channels"]
        latents = signal("latents", (2, h, w, channels)).permute(0, 3, 1, 2)
        image = signal("image", (2, h * scale, w * scale, 3)).permute(0, 3, 1, 2) / 2

        def make():
            return fill(AutoencoderKL(
                down_block_types=["DownEncoderBlock2D"] * count,
                up_block_types=["UpDecoderBlock2D"] * count, **config), "", values["gain"])

        def decode(m, dtype):
            z = (latents / config["scaling_factor"]).to(dtype)
            return m.decode(z).sample.permute(0, 2, 3, 1)

        def encode(m, dtype):
            return m.encode(image.to(dtype)).latent_dist.parameters.permute(0, 2, 3, 1)

        out[case + ".decode"], out[case + ".decode.bf16"] = run(make(), decode)
        out[case + ".encode"], out[case + ".encode.bf16"] = run(make(), encode)


def main():
    torch.set_num_threads(1)
    out = {}
    text_cases(out)
    unet_cases(out)
    vae_cases(out)
    path = pathlib.Path(__file__).parents[1] / "models/data/small_models.safetensors"
    path.parent.mkdir(exist_ok=True)
    save_file({name: tensor.float() for name, tensor in out.items()}, path)
    for name, tensor in out.items():
        if name.endswith(".bf16"):
            print(f"{name} {tensor.item():.3e}")
        else:
            print(f"{name} {tuple(tensor.shape)} rms {tensor.square().mean().sqrt():.3f}")


if __name__ == "__main__":
    main()
