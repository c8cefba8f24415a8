#!/usr/bin/env python3
"""One peer of scripts/bench-cpu, as a separate process: diffusers on torch, or OpenVINO.

    bench_peer.py diffusers --dtype bf16 --model FOLDER --threads 2
    bench_peer.py openvino  --dtype bf16 --model IR_FOLDER --threads 2
    bench_peer.py prepare-openvino --model FOLDER --out IR_FOLDER

Speaks the same protocol as `model_tool --serve`. It loads text encoder, UNet and VAE decoder, and
says so in one line of JSON. Then it reads lines with the word "text", "step" or "decode", and
answers each with one line of JSON that contains the seconds it took. It ends when the input ends. A
step is the UNet with two
rows (CFG) at 512x512 and 77 tokens a row; a decode is one 512x512 picture.
"""

import argparse
import json
import os
import sys
import time

import sd15

ROWS, TOKENS, LATENT = 2, 77, 64


def say(**fields):
    print(json.dumps(fields), flush=True)


def serve(actions, started, **about):
    """Answers commands until the input ends."""
    say(event="loaded", seconds=time.monotonic() - started, **about)
    for line in sys.stdin:
        name = line.strip()
        begin = time.perf_counter()
        actions[name]()
        say(event=name, seconds=time.perf_counter() - begin)


def numpy_inputs():
    import numpy as np

    random = np.random.default_rng(0)
    ids = random.integers(0, 49406, (ROWS, TOKENS))
    ids[:, 0], ids[:, -1] = 49406, 49407
    return {
        "ids": ids,
        "latents": random.standard_normal((ROWS, 4, LATENT, LATENT), dtype=np.float32),
        "context": random.standard_normal((ROWS, TOKENS, 768), dtype=np.float32),
        "timesteps": np.full((ROWS,), 801.0, dtype=np.float32),
        "decoder_latents": random.standard_normal((1, 4, LATENT, LATENT), dtype=np.float32),
    }


def run_diffusers(options, started):
    import diffusers
    import torch

    torch.set_num_threads(options.threads)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[options.dtype]
    last = torch.channels_last
    text = sd15.load(options.model, "text_encoder", dtype)
    unet = sd15.load(options.model, "unet", dtype).to(memory_format=last)
    vae = sd15.load(options.model, "vae", dtype).to(memory_format=last)
    vae.encoder = vae.quant_conv = None  # the other peers have no encoder either
    inputs = {name: torch.from_numpy(value) for name, value in numpy_inputs().items()}
    latents = inputs["latents"].to(dtype, memory_format=last)
    context = inputs["context"].to(dtype)
    decoder_latents = inputs["decoder_latents"].to(dtype, memory_format=last)

    def no_grad(function):
        def call():
            with torch.inference_mode():
                function()

        return call

    # This is how torch tells whether the processor has bf16 instructions.
    native = torch.ops.mkldnn._is_mkldnn_bf16_supported() if options.dtype == "bf16" else True
    serve(
        {
            "text": no_grad(lambda: text(inputs["ids"])),
            "step": no_grad(
                lambda: unet(latents, inputs["timesteps"], encoder_hidden_states=context)
            ),
            "decode": no_grad(lambda: vae.decode(decoder_latents)),
        },
        started,
        software=f"diffusers {diffusers.__version__}, torch {torch.__version__}, channels_last",
        precision=options.dtype if native else f"{options.dtype}, no instructions for it",
    )


IR_PARTS = ("text_encoder", "unet", "vae_decoder")


def run_openvino(options, started):
    import openvino as ov

    core = ov.Core()
    hint = {"f32": ov.Type.f32, "bf16": ov.Type.bf16}[options.dtype]
    config = {
        "INFERENCE_PRECISION_HINT": hint,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": options.threads,
        "NUM_STREAMS": 1,
    }
    requests, precision = {}, set()
    for part in IR_PARTS:
        compiled = core.compile_model(os.path.join(options.model, part + ".xml"), "CPU", config)
        requests[part] = compiled.create_infer_request()
        precision.add(str(compiled.get_property("INFERENCE_PRECISION_HINT")))
    inputs = numpy_inputs()
    step = [inputs["latents"], inputs["timesteps"], inputs["context"]]
    serve(
        {
            "text": lambda: requests["text_encoder"].infer([inputs["ids"]]),
            "step": lambda: requests["unet"].infer(step, share_inputs=True),
            "decode": lambda: requests["vae_decoder"].infer(
                [inputs["decoder_latents"]], share_inputs=True
            ),
        },
        started,
        software=f"OpenVINO {ov.__version__.split('-')[0]}, static shapes, LATENCY",
        precision="/".join(sorted(precision)) + " (as the compiled model says)",
    )


def prepare_openvino(options):
    """Traces the diffusers modules. Writes IR with static shapes and f16 weights."""
    import gc

    import openvino as ov
    import torch

    class Text(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, ids):
            return self.module(ids).last_hidden_state

    class Unet(Text):
        def forward(self, latents, timesteps, context):
            return self.module(latents, timesteps, context, return_dict=False)[0]

    class Decoder(Text):
        def forward(self, latents):
            return self.module.decode(latents, return_dict=False)[0]

    torch.set_num_threads(1)
    inputs = {name: torch.from_numpy(value) for name, value in numpy_inputs().items()}
    parts = {
        "text_encoder": ("text_encoder", Text, ("ids",)),
        "unet": ("unet", Unet, ("latents", "timesteps", "context")),
        "vae_decoder": ("vae", Decoder, ("decoder_latents",)),
    }
    os.makedirs(options.out, exist_ok=True)
    for part, (component, wrapper, names) in parts.items():
        path = os.path.join(options.out, part + ".xml")
        if os.path.exists(path):
            continue
        module = wrapper(sd15.load(options.model, component)).eval()
        shapes = [tuple(inputs[name].shape) for name in names]
        # Tracing with small latents takes only a second and gives the same graph; reshape then sets
        # the benchmark's shapes.
        example = tuple(
            value[..., :16, :16].contiguous() if value.ndim == 4 else value
            for value in (inputs[name] for name in names)
        )
        with torch.no_grad():
            model = ov.convert_model(module, example_input=example)
        model.reshape({port: shape for port, shape in zip(model.inputs, shapes)})
        out_shape = tuple(model.outputs[0].get_partial_shape().to_shape())
        print(f"{part}: {shapes} -> {out_shape}", file=sys.stderr)
        ov.save_model(model, os.path.join(options.out, "part.xml"), compress_to_fp16=True)
        del model, module
        gc.collect()
        os.replace(os.path.join(options.out, "part.bin"), path[:-3] + "bin")
        os.replace(os.path.join(options.out, "part.xml"), path)
        print(f"wrote {path}", file=sys.stderr)


def main():
    started = time.monotonic()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("diffusers", "openvino", "prepare-openvino"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.what == "prepare-openvino":
        prepare_openvino(options)
    elif options.what == "diffusers":
        run_diffusers(options, started)
    else:
        run_openvino(options, started)


if __name__ == "__main__":
    main()
