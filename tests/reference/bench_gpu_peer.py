"""The parts of scripts/bench-gpu that need torch, in a separate process. Prints each result at once
as a line of JSON; the lines together are the whole result.

    bench_gpu_peer.py model    --model FOLDER                    writes a random SD-1.5
    bench_gpu_peer.py parity   --model FOLDER --tool MODEL_TOOL
    bench_gpu_peer.py shapes   --model FOLDER --shapes FILE
    bench_gpu_peer.py eager|compiled|compile --model FOLDER [--compile-mode MODE]

parity: each model of latentd on the GPU against diffusers in float32 (TF32 off) on the same inputs:
relative errors, and diffusers' own in bf16 and f16. shapes: torch's fastest way to compute each
shape of kcheck --bench. eager, compiled: seconds of a step with guidance, of a decode and of
pictures, for diffusers in bf16 with channels-last weights; compiled by torch.compile(max-autotune, or
MODE) with fused QKV. compile: only compiles what one picture needs, into torch's cache. --wheels
FOLDER: the packages to import if the system has no diffusers. --device cpu
--size N: the same on the CPU with N x N latents, to test this file.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
F32_BAR = 1e-4
LOW_FACTOR = 1.1
WORST = 1e30


def say(**fields):
    print(json.dumps(fields), flush=True)


def add_wheels(folder, unpacked):
    """Adds the folder's wheels to the path, after the system's own packages."""
    if not folder or not os.path.isdir(folder):
        return
    if not os.path.isdir(unpacked):
        part = tempfile.mkdtemp(dir=os.path.dirname(unpacked))
        for name in sorted(os.listdir(folder)):
            if name.endswith(".whl"):
                with zipfile.ZipFile(os.path.join(folder, name)) as wheel:
                    wheel.extractall(part)
        os.rename(part, unpacked)
    sys.path.append(unpacked)


# --- the model ---


def random_values(torch, device, name, shape, fan_in):
    """Returns f16 numbers, scaled as in tests/reference/random_sd15.py."""
    generator = torch.Generator(device).manual_seed(zlib.crc32(name.encode()))
    uniform = torch.rand(shape, generator=generator, device=device) * 2 - 1
    if "norm" in name.rsplit(".", 2)[-2]:
        value = 1 + 0.3 * uniform if name.endswith(".weight") else 0.15 * uniform
    elif "embedding" in name and name.startswith("text_model."):
        value = 0.035 * uniform
    else:
        gain = 2.0 if re.search(r"(to_q|to_k|q_proj|k_proj)\.weight$", name) else 1.0
        value = uniform * gain / math.sqrt(fan_in)
    return value.half().cpu().contiguous()


def fan_in_of(shapes, name):
    return math.prod(shapes[name.rsplit(".", 1)[0] + ".weight"][1:]) or 1


def write_model(options):
    """Writes a model with the names and shapes of SD-1.5's tensors. model_index.json is written
    last."""
    import torch

    import sd15

    shapes = {}
    path = os.path.join(ROOT, "tests/models/data/sd15_tensors.tsv")
    with open(path, encoding="utf-8") as f:
        for line in f:
            component, name, size = line.rstrip("\n").split("\t")
            shapes.setdefault(component, {})[name] = tuple(map(int, size.split("x")))
    folder = options.model
    sd15.write_json(os.path.join(folder, "scheduler/scheduler_config.json"), sd15.SCHEDULER_CONFIG)
    for component, tensors in shapes.items():
        header, offset = {}, 0
        for name, shape in tensors.items():
            end = offset + 2 * math.prod(shape)
            header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [offset, end]}
            offset = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        sd15.write_json(os.path.join(folder, component, "config.json"), sd15.CONFIGS[component])
        with open(os.path.join(folder, component, sd15.FILES[component]), "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text)
            for name, shape in tensors.items():
                values = random_values(torch, options.device, name, shape, fan_in_of(tensors, name))
                f.write(values.numpy().tobytes())
    sd15.write_json(os.path.join(folder, "model_index.json"), sd15.MODEL_INDEX)


def load(options, part, dtype):
    """Loads a part of a diffusers folder of any size, with its weights on the device."""
    import torch
    from safetensors.torch import load_file

    import sd15

    folder = os.path.join(options.model, part)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    if part == "text_encoder":
        from transformers import CLIPTextConfig, CLIPTextModel

        known = {key: value for key, value in config.items() if key[0] != "_" and
                 key not in ("architectures", "model_type", "torch_dtype", "dtype")}
        make = lambda: CLIPTextModel(CLIPTextConfig(**known))  # noqa: E731
    else:
        import diffusers

        make = lambda: getattr(diffusers, config["_class_name"]).from_config(config)  # noqa: E731
    with torch.device("meta"):
        module = make().eval()
    wanted = module.state_dict()
    state = load_file(os.path.join(folder, sd15.FILES[part]), device=options.device)
    state = {name if name in wanted else name.removeprefix("text_model."): value.to(dtype)
             for name, value in state.items()}
    module.load_state_dict(state, strict=True, assign=True)
    for owner in module.modules():  # position ids are not in the file
        for key, value in list(owner._buffers.items()):
            if value is not None and value.is_meta:
                owner._buffers[key] = torch.arange(
                    value.shape[-1], device=options.device).expand(value.shape)
    return module


# --- parity ---


def relative_error(ours, theirs):
    ours, theirs = ours.double(), theirs.double()
    error = ((ours - theirs).norm() / theirs.norm()).item()
    return error if math.isfinite(error) else WORST  # NaN must count as a large error


def inputs_of(options, component, configs):
    """Makes parity_reference's inputs, reduced to the size of a smaller model."""
    from parity_reference import make_inputs

    px = options.size * 8
    inputs = make_inputs(component, None if component == "text" else (px, px),
                         1 if component == "vae-decode" else 2)
    if "ids" in inputs:
        text = configs["text_encoder"]
        inputs["ids"] = inputs["ids"][:, :text["max_position_embeddings"]] % text["vocab_size"]
    if "context" in inputs:
        inputs["context"] = inputs["context"][:, :, :configs["unet"]["cross_attention_dim"]].contiguous()
    return inputs


def run_tool(options, component, files, dtype):
    libraries = (os.environ.get("LD_LIBRARY_PATH"), os.environ.get("LATENTD_BENCH_LIBRARIES"))
    environment = dict(os.environ, LD_LIBRARY_PATH=os.pathsep.join(filter(None, libraries)))
    done = subprocess.run(
        [options.tool, "--model", options.model, "--dtype", dtype, "--device", "cuda", "--component",
         component, "--input", files[0], "--output", files[1]], env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"model_tool {dtype}: status {done.returncode}: {done.stderr[-300:]}")


def parity_of(options, component, configs):
    import torch
    from safetensors.torch import load_file, save_file

    import sd15
    from parity_reference import OUTPUTS, channels_last, run_diffusers

    sd15.VAE_CONFIG["scaling_factor"] = configs["vae"]["scaling_factor"]  # run_diffusers reads it there
    part = {"text": "text_encoder", "unet": "unet"}.get(component, "vae")
    inputs = inputs_of(options, component, configs)
    on_device = {key: value.to(options.device) for key, value in inputs.items()}
    row, truth = {}, None
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16), ("f16", torch.float16)):
        result = run_diffusers(load(options, part, dtype), component, on_device, dtype).cpu()
        if truth is None:
            truth = result
        else:
            row[f"diffusers_{name}"] = relative_error(result, truth)
    with tempfile.TemporaryDirectory() as folder:
        files = os.path.join(folder, "in.st"), os.path.join(folder, "out.st")
        save_file({key: channels_last(value) for key, value in inputs.items()}, files[0])
        for dtype in ("f32", "bf16", "f16"):
            try:
                run_tool(options, component, files, dtype)
                row[f"latentd_{dtype}"] = relative_error(
                    load_file(files[1])[OUTPUTS[component]], truth)
            except (RuntimeError, KeyError) as e:
                row[f"latentd_{dtype}"] = WORST
                row["error"] = str(e)
    row["met"] = row["latentd_f32"] <= F32_BAR and all(
        row[f"latentd_{dtype}"] < WORST and
        row[f"latentd_{dtype}"] <= LOW_FACTOR * row[f"diffusers_{dtype}"] for dtype in ("bf16", "f16"))
    return row


def parity(options):
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    configs = {}
    for part in ("text_encoder", "unet", "vae"):
        with open(os.path.join(options.model, part, "config.json"), encoding="utf-8") as f:
            configs[part] = json.load(f)
    missed = []
    for component in ("unet", "vae-decode", "text"):
        row = parity_of(options, component, configs)
        say(**{component: row})
        missed += [] if row["met"] else [component]
        if options.device == "cuda":
            torch.cuda.empty_cache()
    if missed:
        say(wrong="parity missed by " + ", ".join(missed))


# --- shapes ---


def calls_of(torch, device, operation):
    """Returns [(library or backend, a function without arguments)]: torch's ways to compute the
    operation's products. If latentd fuses more into the operation (GEGLU, residual,
    enlarging), torch computes only the product with its bias."""
    functional, words, values = torch.nn.functional, operation["words"], operation["values"]
    dtype = getattr(torch, operation["dtype"])

    def normal(*shape):
        return torch.randn(shape, device=device, dtype=dtype)

    if operation["kind"] == "linear":
        rows, m, n, k = values
        x, weight = normal(rows * m, k), normal(n, k)
        bias = normal(n) if "bias" in words else None
        return [("cuBLASLt", lambda: functional.linear(x, weight, bias))]
    if operation["kind"] == "conv2d":
        kind, rows, h, w, c_in, c_out = values
        if kind == "3x3 up":
            h, w = 2 * h, 2 * w
        taps = int(kind[0])
        x = normal(rows, c_in, h, w).to(memory_format=torch.channels_last)
        weight = normal(c_out, c_in, taps, taps).to(memory_format=torch.channels_last)
        bias = normal(c_out) if "bias" in words else None
        stride, padding = 2 if "down" in kind else 1, 1 if taps == 3 else 0
        return [("cuDNN", lambda: functional.conv2d(x, weight, bias, stride, padding))]
    if operation["kind"] == "norm":
        name, rows, h, w, c, groups = values
        weight, bias = normal(c), normal(c)
        if name == "layer_norm":
            x = normal(rows, h * w, c)
            return [("torch", lambda: functional.layer_norm(x, (c,), weight, bias))]
        x = normal(rows, c, h, w).to(memory_format=torch.channels_last)
        silu = functional.silu if "silu" in words else lambda y: y
        return [("torch", lambda: silu(functional.group_norm(x, groups, weight, bias)))]
    rows, tq, tk, heads, d = values
    q, k, v = (normal(rows, t, heads, d).transpose(1, 2) for t in (tq, tk, tk))
    calls = []
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def attend(backend):
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(q, k, v, is_causal="causal" in words)

    for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"):
        backend = getattr(SDPBackend, name)
        calls.append((f"SDPA {name.split('_')[0].lower()}", lambda b=backend: attend(b)))
    return calls


def ms_of(torch, device, call):
    """Returns the milliseconds of one call after a warm-up. On the GPU a graph of 20 calls is
    replayed and its time divided by 20."""
    for _ in range(3):
        call()
    if device != "cuda":
        begun = time.perf_counter()
        call()
        return (time.perf_counter() - begun) * 1e3
    torch.cuda.synchronize()
    graph, count = torch.cuda.CUDAGraph(), 20
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    times = []
    for _ in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / count)
    return sorted(times[1:])[3]


def shapes(options):
    import torch

    import bench_gpu_shapes

    torch.backends.cudnn.benchmark = True
    device, times, problems = options.device, {}, []
    n = 8192 if device == "cuda" else 256
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    say(matmul_peak_tflops=2e-9 * n ** 3 / ms_of(torch, device, lambda: a @ b))
    with open(options.shapes, encoding="utf-8") as f:
        names = f.read().splitlines()
    with torch.inference_mode():
        for name in names:
            operation = bench_gpu_shapes.understand(name)
            for whose, call in calls_of(torch, device, operation) if operation else []:
                try:
                    ms = ms_of(torch, device, call)
                except Exception as e:  # this way does not support the shape
                    problems.append(f"{name}, {whose}: {str(e).splitlines()[0][:120]}")
                    continue
                if name not in times or ms < times[name]["ms"]:
                    times[name] = {"ms": ms, "by": whose}
            say(times=times)
    say(problems=problems)


# --- pictures ---


class Peer:
    """diffusers, unchanged or compiled, draws the same pictures as latentd: the same models,
    sizes, rows and sampler."""

    def __init__(self, options):
        import torch

        self.torch, self.options, self.device = torch, options, options.device
        torch.backends.cudnn.benchmark = True
        modules = {part: load(options, part, torch.bfloat16)
                   for part in ("text_encoder", "unet", "vae")}
        self.text = modules["text_encoder"]
        self.unet, self.vae = (modules[part].to(memory_format=torch.channels_last)
                               for part in ("unet", "vae"))
        self.decode = self.vae.decode
        from diffusers import DDIMScheduler

        import sd15
        self.scheduler = DDIMScheduler(**{
            key: value for key, value in sd15.SCHEDULER_CONFIG.items()
            if key[0] != "_" and key != "skip_prk_steps"})
        vocabulary = self.text.config.vocab_size
        self.ids = torch.full((2, self.text.config.max_position_embeddings), vocabulary - 1,
                              device=self.device)

    def compile(self):
        mode = self.options.compile_mode if self.device == "cuda" else "default"
        say(compile_mode=mode)
        self.unet.fuse_qkv_projections()
        # dynamic=False compiles separate code for each number of images, as a careful user would
        # do.
        self.unet = self.torch.compile(self.unet, mode=mode, fullgraph=True, dynamic=False)
        self.decode = self.torch.compile(self.vae.decode, mode=mode, fullgraph=True, dynamic=False)

    def normal(self, images):
        size = self.options.size
        return self.torch.randn((images, 4, size, size), device=self.device,
                                dtype=self.torch.bfloat16)

    def step(self, latents, t, context):
        both = self.torch.cat([latents, latents]).to(memory_format=self.torch.channels_last)
        noise = self.unet(both, t, encoder_hidden_states=context, return_dict=False)[0]
        unconditional, conditional = noise.chunk(2)
        return unconditional + 7.5 * (conditional - unconditional)

    def context(self, images):
        rows = self.text(self.ids).last_hidden_state
        return rows.repeat_interleave(images, dim=0)

    def picture(self, images, steps):
        """Draws from tokens to 8-bit pixels on the host. Images are decoded one by one, as
        latentd does."""
        self.scheduler.set_timesteps(steps, device=self.device)
        context, latents = self.context(images), self.normal(images)
        for t in self.scheduler.timesteps:
            latents = self.scheduler.step(self.step(latents, t, context), t, latents,
                                          return_dict=False)[0]
        out = []
        for k in range(images):
            pixels = self.decode((latents[k:k + 1] / self.vae.config.scaling_factor).to(
                memory_format=self.torch.channels_last), return_dict=False)[0]
            out.append((pixels / 2 + 0.5).clamp(0, 1).mul(255).round().to(self.torch.uint8).cpu())
        return out

    def median_s(self, action, turns):
        times = []
        for _ in range(turns):
            self.synchronize()
            begun = time.perf_counter()
            action()
            self.synchronize()
            times.append(time.perf_counter() - begun)
        return sorted(times)[turns // 2]

    def synchronize(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def measure(self, images, begun):
        """Warms up (the first call of a size compiles), then measures medians."""
        quick = self.device != "cuda"
        name = "" if images == 1 else f"s{images}"
        self.picture(images, 3)
        if images == 1:
            say(ready_s=time.perf_counter() - begun)
            t, context, latents = (self.torch.tensor(500, device=self.device), self.context(1),
                                   self.normal(1))
            say(step_s=self.median_s(lambda: self.step(latents, t, context), 3 if quick else 30))
            channels_last = latents.to(memory_format=self.torch.channels_last)
            say(decode_s=self.median_s(lambda: self.decode(channels_last, return_dict=False),
                                       3 if quick else 10))
        for steps in (2,) if quick else (50, 20):
            said = 50 if quick else steps
            say(**{f"image{name}_{said}_s": self.median_s(
                lambda n=steps: self.picture(images, n), 5 if images == 1 else 3)})
        if not quick:
            say(**{f"peak_memory_bytes_{images}": self.torch.cuda.max_memory_allocated()})


def peer(options):
    import torch

    begun = time.perf_counter()
    drawer = Peer(options)
    say(torch=torch.__version__, load_s=time.perf_counter() - begun)
    if options.mode != "eager":
        drawer.compile()
    with torch.inference_mode():
        if options.mode == "compile":
            drawer.picture(1, 3)
            return
        for images in (1, 8 if options.device == "cuda" else 2):
            drawer.measure(images, begun)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("mode", choices=("model", "parity", "shapes", "eager", "compiled", "compile"))
    parser.add_argument("--compile-mode", default="max-autotune")
    parser.add_argument("--model", required=True)
    parser.add_argument("--tool")
    parser.add_argument("--shapes")
    parser.add_argument("--wheels")
    parser.add_argument("--unpacked", default=os.path.join(tempfile.gettempdir(), "bench-wheels"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, default=64, help="of the latents")
    options = parser.parse_args()
    sys.path.insert(0, HERE)
    add_wheels(options.wheels, options.unpacked)
    needs = {"model": ("torch", "numpy"), "shapes": ("torch",)}
    for name in needs.get(options.mode, ("torch", "safetensors", "diffusers", "transformers")):
        try:
            __import__(name)
        except ImportError as e:
            if options.mode == "model":
                raise
            say(skipped=f"python has no {e.name or name}: {e}")
            return
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        if options.mode != "model":
            say(skipped="torch finds no GPU")
            return
        options.device = "cpu"
    {"model": write_model, "parity": parity, "shapes": shapes}.get(options.mode, peer)(options)


if __name__ == "__main__":
    main()
