"""The parts of scripts/bench-gpu that check whether the kernels are right: each family of
kernels in its own process, and the models with the tuner's choices. A process that hangs or
loses the device uses up only its own time limit and is reported; the others continue."""

import array
import concurrent.futures
import json
import os
import random
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TINY = os.path.join(ROOT, "share/tiny-sd")
KCHECK = "tests/kernels/kcheck"
SILENCE_S = 15  # longest time between two printed tests
BESIDE = 6      # processes that run at the same time
REPLAYS = 100

# --- families of kernels ---


def operations(bench):
    status, text, error = bench.run(bench.program(KCHECK), "--list", limit=20)
    if status != 0:
        raise RuntimeError(f"kcheck --list: status {status}: {error.strip()[-200:]}")
    return text.split()


def subject_of(text):
    """Returns the test that kcheck was running when it ended."""
    return ([line[8:] for line in text.splitlines() if line.startswith("subject ")] or ["its start"])[-1]


def outcome_of(status, text, error):
    """Returns (verdict, words) for one process. The verdict is right, wrong, hangs, faults, or
    absent (nothing to check)."""
    lines = text.strip().splitlines()
    failures = [line[5:] for line in lines if line.startswith("FAIL")]
    if status == 77:
        return "absent", "the device does not have it"
    if status == 0:
        return "right", lines[-1] if lines else ""
    if failures and failures[0].startswith(": no subject"):
        return "absent", failures[0][2:]
    if "0 failed" in text and " 0 shapes by " in " " + (lines[-1] if lines else ""):
        return "absent", lines[-1]
    if status == 124:
        return "hangs", f"at {subject_of(text)}"
    hang = [line for line in (text + error).splitlines() if line.startswith("hang: ")]
    if hang or status < 0 or status > 1 or "lost" in text:
        said = hang or failures or error.strip().splitlines() or ["nothing"]
        return "faults", f"at {subject_of(text)}: status {status}, {said[0][:300]}"
    return "wrong", f"{len(failures)} failures, {(failures or error.strip().splitlines() or ['?'])[0][:300]}"


def check_all(bench, commands, limit):
    """Runs {name: command} in parallel. Returns the report's part."""
    def check(item):
        name, (program, *arguments) = item
        status, text, error = bench.run(bench.program(program), *arguments, limit=limit, silence=SILENCE_S)
        verdict, words = outcome_of(status, text, error)
        return name, {"verdict": verdict, "status": status, "said": words}

    with concurrent.futures.ThreadPoolExecutor(1 if bench.options.emulated else BESIDE) as pool:
        runs = dict(pool.map(check, commands.items()))
    part = {"runs": runs}
    counts = {word: [name for name, run in runs.items() if run["verdict"] == word]
              for word in ("right", "wrong", "hangs", "faults", "absent")}
    part["summary"] = f"{len(counts['right'])} of {len(runs) - len(counts['absent'])} right"
    bad = [f"{name} {word if word != 'wrong' else 'is wrong'} {runs[name]['said']}"
           for word in ("wrong", "faults", "hangs") for name in counts[word]]
    if bad:
        part["wrong"] = "; ".join(bad)
    return part


def watched(bench):
    """Returns the kcheck whose waits time out, if the bundle has it, otherwise the plain one."""
    program = os.path.join("watched", KCHECK)
    return program if os.path.exists(bench.program(program)) else KCHECK


def families(bench, names):
    """Returns {name: (operation, kernel or None)}: every operation with its default kernels, and
    with each kind of kernel forced."""
    found = {name: (name, None) for name in names}
    for kernel in ("simt", "mma", "hopper"):
        found.update({f"{name} {kernel}": (name, kernel) for name in ("linear", "conv2d") if name in names})
    for kernel in ("plain", "flash", "hopper"):
        found.update({f"{name} {kernel}": (name, kernel) for name in ("attention",) if name in names})
    for kernel in ("parts", "shared", "cluster"):
        found.update({f"{name} {kernel}": (name, kernel) for name in ("group_norm",) if name in names})
    return found


def kcheck_commands(bench, program, size, seed):
    names = bench.options.operations or operations(bench)
    commands = {}
    for name, (operation, kernel) in families(bench, names).items():
        commands[name] = (program, "--device", "cuda", "--names", size, "--seed", seed, "--operation", operation,
                          *(("--kernel", kernel) if kernel else ()))
    return commands


def part_smoke(bench):
    """Each family of kernels on small shapes, in its own process, with waits that time out."""
    return check_all(bench, kcheck_commands(bench, watched(bench), "--quick", 1), 45)


def part_kcheck(bench):
    """Every operation, and every tile of products and attention, against the reference."""
    if bench.options.emulated:
        return {"skipped": "the tests of suite cuda do it on the emulator"}
    commands = kcheck_commands(bench, KCHECK, "--channels", 2)
    commands.update({"attention_test": ("tests/kernels/attention_test",), "gemm_test": ("tests/kernels/gemm_test",)})
    return check_all(bench, commands, 100)


# --- the models, with the tuner's choices ---


def write_safetensors(path, tensors):
    """Writes {name: (dtype word, shape, array)}."""
    header, blobs, offset = {}, [], 0
    for name, (word, shape, values) in tensors.items():
        blob = values.tobytes()
        header[name] = {"dtype": word, "shape": shape, "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + b"".join(blobs))


def read_floats(path):
    """Returns the bytes and the numbers of a file's only tensor."""
    with open(path, "rb") as f:
        data = f.read()
    blob = data[8 + struct.unpack("<Q", data[:8])[0]:]
    return blob, array.array("f", blob)


def relative_error(ours, theirs):
    size = sum(b * b for b in theirs) ** 0.5
    return sum((a - b) ** 2 for a, b in zip(ours, theirs)) ** 0.5 / size if len(ours) == len(theirs) else 1e30


def config_of(model, part):
    with open(os.path.join(model, part, "config.json"), encoding="utf-8") as f:
        return json.load(f)


def write_inputs(folder, model, size):
    """Returns {component: input file}, with random numbers that are the same on every machine."""
    text, unet = config_of(model, "text_encoder"), config_of(model, "unet")
    tokens, width = text["max_position_embeddings"], unet["cross_attention_dim"]
    numbers = random.Random(1)

    def normal(*shape):
        count = 1
        for n in shape:
            count *= n
        return "F32", list(shape), array.array("f", (numbers.gauss(0, 1) for _ in range(count)))

    ids = array.array("i", (numbers.randrange(text["vocab_size"]) for _ in range(2 * tokens)))
    inputs = {
        "text": {"ids": ("I32", [2, tokens], ids)},
        "unet": {"latents": normal(2, size, size, unet["in_channels"]),
                 "timesteps": ("F32", [2], array.array("f", (801, 801))), "context": normal(2, tokens, width)},
        "vae-decode": {"latents": normal(1, size, size, config_of(model, "vae")["latent_channels"])},
    }
    files = {}
    for component, tensors in inputs.items():
        files[component] = os.path.join(folder, f"in-{component}.safetensors")
        write_safetensors(files[component], tensors)
    return files


# Ways to run a model: environment, arguments, and whether the output must have the same bits as
# with graphs. Without clusters the bits differ, because other kernels are used, which add in
# another order.
WAYS = {
    "graphs": ({}, ("--graphs", "on"), True),
    "no graphs": ({}, ("--graphs", "off"), True),
    "no overlap": ({"LATENTD_CUDA_OVERLAP": "0"}, ("--graphs", "on"), True),
    "no clusters": ({"LATENTD_CUDA_CLUSTERS": "0"}, ("--graphs", "on"), False),
}
# The error on the GPU may be ERROR_MAX, or ERROR_FACTOR times the error of bf16 weights on the CPU
# if that is more. The factor is needed because activations are float32 on the CPU, but bf16 on the
# GPU.
ERROR_MAX, ERROR_FACTOR = 3e-2, 4.0


def call_model(bench, component, source, out, device, dtype, *more, environment=None, limit=60):
    status, text, error = bench.run(
        bench.program("tests/reference/model_tool"), "--model", bench.model, "--dtype", dtype, "--device", device,
        "--component", component, "--input", source, "--output", out, *more, environment=environment, limit=limit)
    if status == 124:
        raise RuntimeError("it hangs")
    if status != 0:
        said = [line[12:] for line in error.splitlines() if line.startswith("model_tool: ")]
        raise RuntimeError((said or [f"status {status}: {error.strip()[-300:]}"])[-1])
    return read_floats(out), text + error


def compare_component(bench, component, source, out):
    """Returns {"errors": {way: error}, "wrong": [...]} for one model."""
    (_, truth), _ = call_model(bench, component, source, out, "cpu", "f32", limit=120)
    (_, rounded), _ = call_model(bench, component, source, out, "cpu", "bf16", limit=120)
    bar = max(ERROR_MAX, ERROR_FACTOR * relative_error(rounded, truth))
    found = {"errors": {}, "bar": bar, "wrong": [], "choices": None}
    replays = max(2, REPLAYS // (20 if bench.options.emulated else 1))
    bits = None
    for way, (environment, more, same) in WAYS.items():
        try:
            (blob, values), said = call_model(bench, component, source, out, "cuda", "bf16", "--replays",
                                              replays, *more, environment=environment)
        except RuntimeError as e:
            found["wrong"].append(f"{component}, {way}: {e}")
            continue
        found["choices"] = found["choices"] or next(
            (line.split(": ", 1)[-1] for line in said.splitlines() if "kernels" in line and "shapes" in line), None)
        error = found["errors"][way] = relative_error(values, truth)
        if not error <= bar:
            found["wrong"].append(f"{component}, {way}: error {error:.3g}, allowed {bar:.3g}")
        if same and bits is not None and bits != blob:
            found["wrong"].append(f"{component}, {way}: other bits than with graphs")
        bits = blob if bits is None and same else bits
    return found


def part_tuned(bench):
    """The models with the tuner's choices, compared with the CPU. They must give the same bits
    in 100 calls, with and without graphs and overlap. Also a training step, compared with its
    reference."""
    from bench_gpu_parts import model

    model(bench)
    folder = os.path.join(bench.work, "tuned")
    os.makedirs(folder, exist_ok=True)
    files = write_inputs(folder, bench.model, 8 if bench.options.emulated else 64)
    part, wrong = {"components": {}}, []
    for component, source in files.items():
        if component not in (bench.options.components or files):
            continue
        try:
            found = compare_component(bench, component, source, os.path.join(folder, "out.safetensors"))
        except RuntimeError as e:
            found = {"wrong": [f"{component} on the CPU: {e}"], "errors": {}}
        wrong += found["wrong"]
        part["components"][component] = found
    trainer = bench.program("tests/train/trainer_test")
    if os.path.exists(trainer) and not bench.options.emulated:
        losses = os.path.join(ROOT, "tests/train/data/train_losses.json")
        status, text, error = bench.run(trainer, losses, TINY, "cuda", limit=60)
        part["training"] = (text.strip().splitlines() or [""])[-1]
        if status != 0:
            wrong.append(f"a training step: status {status}: {(text + error).strip()[-300:]}")
    part["summary"] = "; ".join(
        f"{component}: error " + ", ".join(f"{error:.2g} {way}" for way, error in found["errors"].items())
        for component, found in part["components"].items())
    return dict(part, wrong="; ".join(wrong)) if wrong else part
