"""The parts of scripts/bench-gpu, the most important first: whether latentd is right, how fast
it is, and how fast others are. Each part takes the Bench and returns its entry for the
report. The entry has "skipped" or "failed" with the reason if there is no result, and "wrong"
if a result is not acceptable."""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import threading
import time

import bench_gpu_checks
import bench_gpu_shapes
import sd15

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PEER = os.path.join(HERE, "bench_gpu_peer.py")
TINY = os.path.join(ROOT, "share/tiny-sd")
TOKENIZER = ("--tokenizer", os.path.join(TINY, "tokenizer"))


def bad_end(status, error):
    """Returns the entry for a program that failed."""
    return {"failed": f"status {status}: {error.strip()[-500:]}"}


def last_lines(text, count=12):
    return text.strip().splitlines()[-count:]


# --- the model ---


def peer_command(bench, mode, *arguments):
    command = [sys.executable, PEER, mode, *arguments, "--wheels", bench.wheels, "--unpacked",
               os.path.join(bench.work, "wheels")]
    return command + (["--device", "cpu", "--size", "8"] if bench.options.emulated else [])


def begin_model(bench):
    """Starts a process that writes a full-size SD-1.5 with random weights. Only the end of that
    process releases the device memory that torch used."""
    bench.model = TINY if bench.options.emulated else os.path.join(bench.work, "sd15")
    done = os.path.join(bench.model, "model_index.json")  # the file written last
    if not os.path.exists(done) and not bench.model_writer:
        bench.model_writer = bench.start(
            peer_command(bench, "model", "--model", bench.model), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)


def model(bench):
    """Waits until the model is written. Returns its folder."""
    begin_model(bench)
    if bench.model_writer:
        writer, bench.model_writer = bench.model_writer, None
        try:
            text, _ = writer.communicate(timeout=max(1, min(120, bench.left())))
        except subprocess.TimeoutExpired:
            text = b"cut short"
        bench.stop(writer)
        if not os.path.exists(os.path.join(bench.model, "model_index.json")):
            raise RuntimeError("no model: " + " ".join(last_lines(text.decode(errors="replace"), 3)))
    return bench.model


# --- the machine ---


def memory_used(bench):
    """Returns the bytes in use on the device by all processes, as the driver reports them; None
    without nvidia-smi."""
    status, text, _ = bench.run("nvidia-smi", "--query-gpu=memory.used",
                                "--format=csv,noheader,nounits", limit=20)
    found = re.match(r"\s*(\d+)", text)
    return int(found[1]) << 20 if status == 0 and found else None


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def facts(bench, out):
    """Stores the device's facts. A Hopper without Hopper kernels is a fault of the build, and
    nothing is measured."""
    status, text, error = bench.run(bench.program("tests/kernels/kcheck"), "--device", "cuda", "--facts", limit=60)
    out["facts"] = text.splitlines()
    if status != 0:
        out.update(bad_end(status, error or text))
    elif "sm_90," in text and re.search(r"^hopper tiles: 0 ", text, re.M):
        out["wrong"] = "this is a Hopper, and the build has no kernel for it: 0 Hopper candidates"


def part_device(bench):
    """The GPU, its driver, and the versions of the installed packages."""
    out = {"machine": platform.machine(), "python": platform.python_version()}
    out.update({package: version_of(package) for package in ("torch", "triton", "transformers")})
    wheels = os.listdir(bench.wheels) if os.path.isdir(bench.wheels) else []
    carried = [name.split("-")[1] for name in wheels if name.startswith("diffusers-")]
    out["diffusers"] = (carried or [version_of("diffusers")])[0]
    status, text, error = bench.run(bench.program("latentd"), "--version", limit=20)
    if status != 0:
        return dict(out, **bad_end(status, error))
    out["latentd"] = text.split()[-1]
    begin_model(bench)
    status, text, error = bench.run("nvidia-smi", "--query-gpu=name,driver_version,memory.total,"
                                    "clocks.max.sm", "--format=csv,noheader", limit=20)
    facts(bench, out)
    if status == 0:
        name, driver, memory, clock = [t.strip() for t in text.splitlines()[0].split(",")]
        out.update(name=name, driver=driver, memory=memory, max_clock=clock)
    elif not bench.options.emulated:
        out["failed"] = f"no GPU: nvidia-smi: {error.strip()[-200:] or text.strip()[-200:]}"
    return out


# --- is it right ---


def read_latents(path):
    with open(path, "rb") as f:
        data = f.read()
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    begin, end = header["latents"]["data_offsets"]
    start = 8 + struct.unpack("<Q", data[:8])[0]
    return data[start + begin:start + end], header["latents"]["shape"][0]


def draw(bench, folder, *arguments, name="latents", limit=60):
    path = os.path.join(bench.work, name + ".safetensors")
    status, _, error = bench.run(
        bench.program("latentd"), "generate", "--model", folder, "--prompt", "a red house",
        "--scheduler", "ddim", "--save-latents", path, *TOKENIZER, *arguments, limit=limit)
    if status != 0:
        raise RuntimeError(f"generate {' '.join(map(str, arguments))}: status {status}: "
                           f"{error.strip()[-300:]}")
    return read_latents(path)


def part_tiny(bench):
    """The bundled checkpoint's picture, compared with the same picture from the CPU. In a batch,
    an image must have the same bits at every place as when it is drawn alone."""
    small = ("--width", 64, "--height", 64) if bench.options.emulated else ()
    common = ("--steps", 2 if bench.options.emulated else 10, *small)
    count, places = (2, (1,)) if bench.options.emulated else (8, (0, 3, 7))
    values = {}
    for device in ("cpu", "cuda"):
        raw, _ = draw(bench, TINY, "--device", device, "--dtype", "f32", "--seed", 5, *common)
        values[device] = struct.unpack(f"<{len(raw) // 4}f", raw)
    size = sum(a * a for a in values["cpu"]) ** 0.5
    error = sum((a - b) ** 2 for a, b in zip(values["cpu"], values["cuda"])) ** 0.5 / size
    out = {"f32_error": error}
    if not error <= 1e-3:
        out["wrong"] = f"the picture is {error:.3g} from the CPU's"
    full = () if bench.options.emulated else ("--dtype", "bf16")
    together, found = draw(bench, TINY, "--device", "cuda", "--num-images", count, "--seed", 11, *full,
                           *common)
    length = len(together) // found
    other = [k for k in places if together[k * length:(k + 1) * length] !=
             draw(bench, TINY, "--device", "cuda", "--seed", 11 + k, *full, *common)[0]]
    out["places_with_other_bits"] = other
    if other:
        out["wrong"] = f"images {other} of {count} have other bits when they are drawn alone"
    out["summary"] = f"{error:.2g} from the CPU's; {len(places)} places of {count} compared"
    return out


def peer(bench, mode, *arguments, limit):
    """Runs the peer and merges its lines of JSON. If it fails or is cut short, the lines so far
    are kept with the failure."""
    status, text, error = bench.run(*peer_command(bench, mode, "--model", model(bench), *arguments),
                                    limit=limit)
    out = {}
    for line in text.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict):
            out.update(said)
    if status != 0 and "failed" not in out:
        out.update(bad_end(status, error))
    return out


def part_parity(bench):
    """Every model at full size against diffusers in float32, together with diffusers' own bf16
    and f16 errors."""
    return peer(bench, "parity", "--tool", bench.program("tests/reference/model_tool"), limit=180)


# --- how fast is it ---


def tune(bench, dtype, limit):
    size = ("--width", 64, "--height", 64) if bench.options.emulated else ()
    minutes = 0.3 * bench.patience if bench.options.emulated else min(limit, bench.left()) / 60 * 0.7
    status, text, error = bench.run(
        bench.program("latentd"), "tune", "--model", model(bench), "--device", "cuda", "--dtype", dtype,
        "--json", "--minutes", minutes, *TOKENIZER, *size, limit=limit)
    wrong = [line for line in error.splitlines() if "is wrong and will not be used" in line]
    out = {"wrong_candidates": wrong}
    try:
        problems = json.loads(text)["problems"]
    except (ValueError, KeyError):
        return dict(out, **bad_end(status, error))  # earlier results are in the tuner's cache
    out.update(problems=problems, untuned_us=sum(p["untuned_us"] or p["us"] for p in problems),
               tuned_us=sum(p["us"] for p in problems))
    untried = sum(p.get("untried", 0) for p in problems)
    out["summary"] = (f"{len(problems)} shapes, each once: {out['untuned_us']:.0f} us by rule, "
                      f"{out['tuned_us']:.0f} us measured; {len(wrong)} candidates wrong, {untried} "
                      "not tried")
    return out


def part_tune(bench):
    """Finds the fastest kernel for each shape in bf16, and lists every candidate's time and
    error. Wrong candidates are listed too."""
    return tune(bench, "bf16", 150)


def bench_dtype(bench, dtype, *more, environment=None):
    if bench.options.emulated:
        return {"skipped": "its largest product takes hours on the emulator"}
    status, text, error = bench.run(
        bench.program("latentd"), "bench", "--model", model(bench), "--device", "cuda", "--dtype", dtype,
        "--steps", 50, "--json", *more, environment=environment, limit=60)
    try:
        return json.loads(text)
    except ValueError:
        return bad_end(status, error)


def part_bench(bench):
    """The parts of a picture: step, decode, launches, TFLOP/s; and what tuning, graphs, overlap
    and clusters gain."""
    out = bench_dtype(bench, "bf16")
    if "parts" in out:
        nothing = os.path.join(bench.work, "no-choices.txt")
        for name, more, environment in (
                ("by_rule", (), {"LATENTD_TUNER_CACHE": nothing}), ("without_graphs", ("--no-graphs",), {}),
                ("without_overlap", (), {"LATENTD_CUDA_OVERLAP": "0"}),
                ("without_clusters", (), {"LATENTD_CUDA_CLUSTERS": "0"})):
            out[name] = bench_dtype(bench, "bf16", *more, environment=environment).get("parts")
        steps = {name: out[name]["UNet step"]["median_s"] * 1e3 for name in
                 ("parts", "by_rule", "without_graphs", "without_overlap", "without_clusters") if out[name]}
        out["summary"] = "step " + ", ".join(
            f"{ms:.3f} ms {'tuned' if name == 'parts' else name.replace('_', ' ')}" for name, ms in steps.items())
    return out


class MemoryWatch:
    """Records the peak of the device's memory in use, which nvidia-smi reads repeatedly."""

    def __init__(self, bench):
        self.bench, self.peak, self.process = bench, 0, None
        self.before = memory_used(bench)
        if self.before is None:
            return
        self.process = bench.start(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "20"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            if line.strip().isdigit():
                self.peak = max(self.peak, int(line) << 20)

    def end(self):
        """Returns the peak minus the bytes that were in use at the start; None if unknown."""
        if not self.process:
            return None
        self.bench.stop(self.process)
        self.reader.join(timeout=5)
        return self.peak - self.before if self.peak else None


def generate(bench, dtype, images, steps, turns):
    """Times requests from tokens to pictures in host memory: the first request of a process, and
    the median of the others. The process also writes the first request's PNGs."""
    size = ("--width", 64, "--height", 64) if bench.options.emulated else ()
    begun = time.monotonic()
    status, text, error = bench.run(
        bench.program("latentd"), "generate", "--model", model(bench), "--device", "cuda", "--dtype",
        dtype, "--prompt", "a red house", "--steps", steps, "--scheduler", "ddim", "--seed", 1,
        "--num-images", images, "--repeat", turns, "-o", os.path.join(bench.work, "picture.png"),
        *TOKENIZER, *size, limit=60)
    process_s = time.monotonic() - begun
    found = re.findall(r"^([\d.]+) s: text encoder ([\d.]+), UNet ([\d.]+) \((\d+) calls\), "
                       r"VAE ([\d.]+)$", text, re.M)
    if status != 0 or len(found) != turns:
        raise RuntimeError(f"{dtype}, {images} images, {steps} steps: "
                           f"{bad_end(status, error)['failed']}")
    times = sorted(float(row[0]) for row in found[1:] or found)
    memory = re.search(r"weights ([\d.]+) GB, activations ([\d.]+) GB, ([\d.]+) GB", text)
    out = {"dtype": dtype, "images": images, "steps": steps, "turns": turns,
           "first_s": float(found[0][0]), "median_s": times[len(times) // 2], "least_s": times[0],
           "most_s": times[-1], "unet_s": float(found[-1][2]), "vae_s": float(found[-1][4]),
           "process_s": process_s}
    if memory:
        out["allocated_bytes"] = (float(memory[1]) + float(memory[2])) * 1e9
    return out


def part_pictures(bench):
    """Requests from tokens to pictures, with 1 and 8 images; cold start; peak memory."""
    if bench.options.emulated:
        run = generate(bench, "bf16", 1, 1, 2)
        return {"runs": [dict(run, steps=50)], "cold_s": run["process_s"]}
    out = {"runs": []}
    generate(bench, "bf16", 1, 1, 1)  # fills the page cache and the driver's code cache
    watch = MemoryWatch(bench)
    cold = generate(bench, "bf16", 1, 50, 1)
    out["cold_s"] = cold["process_s"]
    try:
        for images, steps, turns in ((1, 50, 9), (8, 50, 4), (1, 20, 9), (8, 20, 4)):
            out["runs"].append(generate(bench, "bf16", images, steps, turns))
            if watch:  # covers only the runs with one image
                out["memory"] = {"peak_bytes": watch.end(), "before_bytes": watch.before,
                                 "allocated_bytes": out["runs"][0].get("allocated_bytes")}
                watch = None
    except RuntimeError as e:
        out["failed"] = str(e)
    return out


def part_f16(bench):
    """The same measurements in f16: tuned, then timed."""
    out = {"tune": tune(bench, "f16", 75), "bench": bench_dtype(bench, "f16")}
    if not bench.options.emulated:
        out["runs"] = [generate(bench, "f16", 1, 50, 9)]
    failed = [f"{name}: {out[name]['failed']}" for name in ("tune", "bench") if "failed" in out[name]]
    return dict(out, failed="; ".join(failed)) if failed else out


def part_kernels(bench):
    """kcheck --bench: every shape, compared with torch's own operation."""
    scale = ("--quick",) if bench.options.emulated else ()
    wanted = "concat" if bench.options.emulated else "bf16"
    status, text, error = bench.run(bench.program("tests/kernels/kcheck"), "--device", "cuda",
                                    "--bench", "--filter", wanted, *scale, limit=75)
    out = bench_gpu_shapes.parse(text)
    if status != 0:
        out.update(bad_end(status, error or text[-300:]))
    if not out["rows"]:
        return out
    names = os.path.join(bench.work, "shapes.txt")
    with open(names, "w", encoding="utf-8") as f:
        f.writelines(row["name"] + "\n" for row in out["rows"])
    theirs = peer(bench, "shapes", "--shapes", names, limit=75)
    out["torch"] = {key: value for key, value in theirs.items() if key not in ("times", "failed")}
    bench_gpu_shapes.join(out, theirs)
    if "failed" in theirs:
        out.setdefault("failed", f"torch: {theirs['failed']}")
    return out


# --- how fast are others ---


def part_eager(bench):
    """diffusers unchanged, bf16, channels-last: 1 and 8 images."""
    return peer(bench, "eager", limit=90)


def part_compiled(bench):
    """diffusers with torch.compile(max-autotune, or --compile-mode) and fused QKV. It gets all
    the time that is left."""
    if bench.left() < 60 and not bench.options.emulated:
        return {"not_run": "no time was left to compile"}
    return peer(bench, "compiled", "--compile-mode", bench.options.compile_mode, limit=max(5, bench.left() - 3))


def sdcpp_program(bench, path):
    """Returns the program at `path`, or builds it if `path` is its source. Raises an error if it
    is neither."""
    if os.path.isfile(path) and os.access(path, os.X_OK):
        return path
    if not os.path.isfile(os.path.join(path, "CMakeLists.txt")):
        raise RuntimeError(f"{path} is neither a program nor stable-diffusion.cpp's source")
    build = os.path.join(bench.work, "sdcpp")
    for command in (("cmake", "-S", path, "-B", build, "-DSD_CUDA=ON", "-DCMAKE_BUILD_TYPE=Release",
                     "-DCMAKE_CUDA_ARCHITECTURES=native", "-DSD_WEBP=OFF", "-DSD_WEBM=OFF"),
                    ("cmake", "--build", build, "-j", os.cpu_count())):
        status, text, error = bench.run(*command, limit=420)
        if status != 0:
            raise RuntimeError(f"{command[0]} {command[1]}: {bad_end(status, error or text)['failed']}")
    for name in ("sd-cli", "sd"):
        if os.path.exists(os.path.join(build, "bin", name)):
            return os.path.join(build, "bin", name)
    raise RuntimeError("the build left neither bin/sd-cli nor bin/sd")


def single_file(folder, out):
    """Writes a folder's checkpoint as one file, with the original code's names."""
    tensors, header, offset = [], {}, 0
    for component in sd15.COMPONENTS:
        path = os.path.join(folder, component, sd15.FILES[component])
        with open(path, "rb") as f:
            start = 8 + struct.unpack("<Q", f.read(8))[0]
            f.seek(8)
            entries = json.loads(f.read(start - 8))
        for name, entry in entries.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            header[sd15.ldm_name(component, name)] = {
                "dtype": entry["dtype"], "data_offsets": [offset, offset + end - begin],
                "shape": sd15.ldm_shape(component, name, entry["shape"])}
            tensors.append((path, start + begin, end - begin))
            offset += end - begin
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(out, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for path, begin, size in tensors:
            with open(path, "rb") as source:
                source.seek(begin)
                f.write(source.read(size))


def sdcpp_times(text):
    """Returns the seconds that the program reports for its last picture; None for those that it
    does not report."""
    def last(pattern):
        found = re.findall(pattern + r"\D*([\d.]+) ?(ms|s)\b", text)
        return float(found[-1][0]) * (1e-3 if found[-1][1] == "ms" else 1) if found else None

    return {"image_s": last(r"(?:generate_image|txt2img) completed in"),
            "sampling_s": last(r"sampling completed, taking"),
            "decode_s": last(r"decode_first_stage completed, taking")}


def part_sdcpp(bench):
    """stable-diffusion.cpp, if --sdcpp gives its path. The fastest of its variants counts."""
    path = bench.options.sdcpp
    if not path:
        return {"skipped": "not there: give its program or source with --sdcpp"}
    program = sdcpp_program(bench, os.path.abspath(path))
    checkpoint = os.path.join(bench.work, "sd15.safetensors")
    if not os.path.exists(checkpoint):
        single_file(model(bench), checkpoint + ".part")
        os.replace(checkpoint + ".part", checkpoint)
    out = {"ways": {}}
    ways = {"plain": (), "attention": ("--diffusion-fa",),
            "attention and convolution": ("--diffusion-fa", "--diffusion-conv-direct",
                                          "--vae-conv-direct")}
    for name, flags in ways.items():
        status, text, error = bench.run(
            program, "-m", checkpoint, "-p", "a red house", "-n", "blurry", "-W", "512", "-H", "512",
            "--steps", "50", "--cfg-scale", "7.5", "--sampling-method", "euler", "-s", "1", "-b", "2",
            "-o", os.path.join(bench.work, "sdcpp.png"), *flags, limit=90)
        times = sdcpp_times(text + error)
        if status != 0 or not times["sampling_s"]:
            out["ways"][name] = bad_end(status, error or text)
            continue
        out["ways"][name] = times
        # The program draws two pictures in one call. It reports the sampling time of each, but only
        # the sum of their decoding times.
        image = times["sampling_s"] + (times["decode_s"] or 0) / 2
        if image < out.get("image_50_s", image + 1):
            out.update(image_50_s=image, step_s=times["sampling_s"] / 50,
                       decode_s=(times["decode_s"] or 0) / 2)
    return out if "image_50_s" in out else dict(out, failed="no way of it gave a picture")


# --- the sanitizer ---

CHECKS = ("memcheck", "racecheck", "synccheck")
# What the sanitizer runs, one subject per process: kcheck's small shapes of one operation, or every
# candidate that the tuner would try for the bundled checkpoint.
SUBJECTS = ("conv2d", "linear", "attention", "group_norm", "layer_norm", "combine", "convert",
            "embedding", "noise", "candidates")


def sanitize_one(bench, tool, check, subject, limit):
    """Returns "clean", or what was wrong, or why there is no answer."""
    if subject == "candidates":
        command = (bench.program("latentd"), "tune", "--worker", "all", "--model", TINY, "--device",
                   "cuda", "--width", 64, "--height", 64)
    else:
        command = (bench.program("tests/kernels/kcheck"), "--device", "cuda", "--quick", "--seed", 1,
                   "--filter", subject)
    status, text, error = bench.run(tool, "--tool", check, "--error-exitcode", 9, *command,
                                    limit=limit)
    summary = ([line for line in (text + error).splitlines() if "SUMMARY" in line] or [""])[-1]
    found = re.search(r"SUMMARY: (\d+)", summary)
    if status == 124:
        return "cut short"
    if found and found[1] == "0" and status == 0:
        return "clean"
    return f"status {status}: {summary or ' '.join(last_lines(text + error, 4))}"[:400]


def part_sanitize(bench):
    """compute-sanitizer's memcheck, racecheck and synccheck on small shapes, in parallel."""
    places = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")
    tool = shutil.which("compute-sanitizer", path=os.pathsep.join(
        (os.environ.get("PATH", ""), *places)))
    if not tool:
        return {"skipped": "there is no compute-sanitizer"}
    end = time.monotonic() + min(120, bench.left() - 3)
    out = {check: {} for check in CHECKS}

    def walk(check):
        for subject in SUBJECTS:
            left = end - time.monotonic()
            out[check][subject] = "no time was left" if left < 4 else sanitize_one(
                bench, tool, check, subject, min(60, left))

    threads = [threading.Thread(target=walk, args=(check,)) for check in CHECKS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers = {f"{check} of {subject}": answer for check in CHECKS
               for subject, answer in out[check].items()}
    open_ones = [name for name, answer in answers.items() if answer in ("cut short", "no time was left")]
    wrong = [f"{name}: {answer}" for name, answer in answers.items()
             if answer != "clean" and name not in open_ones]
    out["summary"] = (f"{sum(answer == 'clean' for answer in answers.values())} of {len(answers)} clean"
                      + (f"; not finished: {', '.join(open_ones)}" if open_ones else ""))
    return dict(out, wrong="; ".join(wrong)) if wrong else out


PARTS = {"device": part_device, "smoke": bench_gpu_checks.part_smoke, "kcheck": bench_gpu_checks.part_kcheck,
         "tiny": part_tiny, "tune": part_tune, "tuned": bench_gpu_checks.part_tuned, "bench": part_bench,
         "parity": part_parity, "pictures": part_pictures, "eager": part_eager, "kernels": part_kernels,
         "sanitize": part_sanitize, "f16": part_f16,
         "sdcpp": part_sdcpp, "compiled": part_compiled}
