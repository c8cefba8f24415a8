"""The results of scripts/bench-gpu as one Markdown table and one JSON file, rewritten after
every part."""

import hashlib
import json
import math
import os
import re
import time

# The targets. Columns: name, what is measured, unit, how a value compares, and the values required for shipping, aimed
# at, and hoped for.
TARGETS = (
    ("T1", "one image, 50 steps: times as fast as torch.compile", "x", ">=", 1.3, 1.8, 2.5),
    ("T1a", "one image, 50 steps, a warm process", "s", "<=", 0.33, 0.25, 0.19),
    ("T2", "step with guidance, one image", "ms", "<=", 5.8, 4.1, 3.6),
    ("T2", "the same, useful work", "TFLOP/s", ">=", 277, 392, 446),
    ("T3", "eight images, 50 steps", "images/s", ">=", 4.5, 5.5, 6.3),
    ("T3", "eight images: times as fast as torch.compile", "x", ">=", 1.15, 1.35, None),
    ("T4", "one image: times as fast as diffusers eager", "x", ">=", 2.2, 3.5, None),
    ("T5", "one image: times as fast as stable-diffusion.cpp", "x", ">=", 3, 6, None),
    ("T6", "VAE decode of one image", "ms", "<=", 8, 6, 5),
    ("T6", "the same: times as fast as torch.compile", "x", ">=", 1.3, None, None),
    ("T7", "self-attention of 4096 tokens, heads of 40", "TFLOP/s", ">=", None, None, 450),
    ("T7", "the same: times as fast as torch's best", "x", ">=", 1.0, 1.4, None),
    ("T8", "3x3 convolutions of a step: times as fast as cuDNN, geometric mean", "x", ">=", 0.9,
     1.05, 1.2),
    ("T9", "kernel launches in a step", "", "<=", 400, 340, 260),
    ("T12", "process start to one image of 50 steps, caches warm", "s", "<=", 6, 3, 2),
    ("T13", "peak memory of the device, one image, context included", "GB", "<=", 3.0, 2.7, None),
    ("", "of it our own allocations", "GB", "<=", None, None, None),
)


def reached(value, compare, ship, target, stretch):
    met = {"<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b}[compare]
    for word, bar in (("stretch", stretch), ("target", target), ("ship", ship)):
        if bar is not None and met(value, bar):
            return word
    return "missed" if ship is not None or target is not None else ""


def ratio(theirs, ours):
    return theirs / ours if theirs and ours else None


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def picture(parts, images, steps, dtype="bf16"):
    for run in parts.get("f16" if dtype == "f16" else "pictures", {}).get("runs", []):
        if (run["images"], run["steps"], run["dtype"]) == (images, steps, dtype):
            return run
    return {}


def measured(parts):
    """Returns the values for TARGETS, in its order; None if not measured. They are for bf16,
    like the peers'."""
    bench = parts.get("bench", {})
    step = bench.get("parts", {}).get("UNet step", {})
    decode_s = bench.get("parts", {}).get("VAE decode", {}).get("median_s")
    step_s, flops = step.get("median_s"), step.get("flops")
    one_s, eight_s = (picture(parts, images, 50).get("median_s") for images in (1, 8))
    compiled, eager = parts.get("compiled", {}), parts.get("eager", {})
    memory = parts.get("pictures", {}).get("memory", {})
    rows = parts.get("kernels", {}).get("rows", [])
    attention = next((row for row in rows if row["name"].startswith("attention 2x4096 to 4096")), {})
    convolutions = [row["ratio"] for row in rows
                    if row["name"].startswith("conv2d 3x3 ") and row["name"].split()[-1] == "bf16"
                    and not re.search(r"512x512", row["name"]) and row.get("ratio")]

    def scaled(value, factor):
        return value * factor if value else None

    return (
        ratio(compiled.get("image_50_s"), one_s), one_s, scaled(step_s, 1e3),
        flops / step_s * 1e-12 if step_s and flops else None, ratio(8, eight_s),
        ratio(compiled.get("images8_50_s"), eight_s), ratio(eager.get("image_50_s"), one_s),
        ratio(parts.get("sdcpp", {}).get("image_50_s"), one_s), scaled(decode_s, 1e3),
        ratio(compiled.get("decode_s"), decode_s),
        attention.get("rate"), attention.get("ratio"), geometric_mean(convolutions),
        step.get("launches"), parts.get("pictures", {}).get("cold_s"),
        scaled(memory.get("peak_bytes"), 1e-9), scaled(memory.get("allocated_bytes"), 1e-9),
    )


def targets(parts):
    rows = []
    for value, (name, what, unit, compare, ship, target, stretch) in zip(measured(parts), TARGETS):
        rows.append({"name": name, "what": what, "unit": unit, "measured": value, "compare": compare,
                     "ship": ship, "target": target, "stretch": stretch, "reached": "not measured"
                     if value is None else reached(value, compare, ship, target, stretch)})
    return rows


def clean(value):
    """Replaces numbers that JSON does not have (NaN, infinities) with text."""
    if isinstance(value, dict):
        return {key: clean(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def cell(text):
    return re.sub(r"\s+", " ", str(text)).replace("|", "\\|")


def table(head, rows):
    lines = ["| " + " | ".join(map(cell, head)) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(map(cell, row)) + " |" for row in rows]


def number(value):
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def outcome(part):
    for key in ("failed", "wrong", "not_run", "skipped", "summary"):
        if key in part:
            return (f"{key.replace('_', ' ')}: " if key != "summary" else "") + str(part[key])[:300]
    return "done"


def target_table(parts):
    return table(("", "what", "measured", "ship", "target", "stretch", "reached"), [
        (row["name"], row["what"], f"{number(row['measured'])} {row['unit']}".strip()
         if row["measured"] is not None else "", *(
             f"{row['compare']} {row[bar]:g}" if row[bar] is not None else ""
             for bar in ("ship", "target", "stretch")), row["reached"])
        for row in targets(parts)])


def side_by_side(parts):
    """Compares latentd with its peers, in seconds."""
    columns = ("step_s", "decode_s", "image_20_s", "image_50_s", "images8_20_s", "images8_50_s")
    rows = []
    for dtype, found in (("bf16", parts.get("bench", {})),
                         ("f16", parts.get("f16", {}).get("bench", {}))):
        bench = found.get("parts", {})
        ours = [bench.get(name, {}).get("median_s") for name in ("UNet step", "VAE decode")]
        ours += [picture(parts, images, steps, dtype).get("median_s")
                 for images in (1, 8) for steps in (20, 50)]
        rows.append((f"latentd {dtype}", *map(number, ours), ""))
    mode = parts.get("compiled", {}).get("compile_mode", "max-autotune")
    for part, name in (("compiled", f"diffusers bf16, torch.compile({mode})"), ("eager", "diffusers bf16, eager"),
                       ("sdcpp", "stable-diffusion.cpp f16")):
        found = parts.get(part, {})
        rows.append((name, *(number(found.get(column)) for column in columns),
                     number(found.get("ready_s"))))
    return table(("seconds", "step", "decode", "1 image, 20 steps", "1, 50", "8, 20", "8, 50",
                  "to get ready"), rows)


def parity_table(parts):
    found = parts.get("parity", {})
    names = ("latentd_f32", "latentd_bf16", "diffusers_bf16", "latentd_f16", "diffusers_f16")
    rows = [(component, *(number(row.get(name)) for name in names),
             "met" if row.get("met") else "missed")
            for component, row in found.items() if isinstance(row, dict)]
    return ["", "Relative errors of whole outputs against diffusers in float32 (bars: f32 1e-4, bf16 "
            "and f16 1.1 times diffusers' own):", ""] + table(
        ("", *(name.replace("_", " ") for name in names), ""), rows) if rows else []


def kernel_table(parts):
    found = parts.get("kernels", {})
    rows = [(row["name"], number(row["ms"]), f"{row['rate']:.4g} {row['unit']}",
             number(row.get("share_percent")), number(row.get("peer_ms")), row.get("peer", ""),
             number(row.get("ratio"))) for row in found.get("rows", [])]
    return ["", f"By shape (`kcheck --bench`; peak {found.get('peak', 'unknown')}):", ""] + table(
        ("operation", "ms", "rate", "% of peak", "torch ms", "torch's", "times as fast"), rows) if rows else []


def markdown(about, parts, emulated):
    lines = [f"# latentd on {about.get('name', 'a GPU')}", ""]
    if emulated:
        lines += ["A dry run on the emulator: the figures mean nothing.", ""]
    lines += [", ".join(f"{k} {v}" for k, v in about.items() if isinstance(v, str)), ""]
    lines += target_table(parts) + [""] + side_by_side(parts) + parity_table(parts)
    lines += ["", *table(("part", "s", "when", "result"), [
        (name, part.get("seconds", ""), part.get("when", ""), outcome(part))
        for name, part in parts.items()]), *kernel_table(parts), ""]
    lines += ["Random weights of a trained network's scale, 512x512 pixels, guidance (two UNet rows an"
              " image), ddim; medians of warm runs. Everything measured is in the JSON file.", ""]
    skipped = [name for name, part in parts.items() if "not_run" in part]
    if skipped:
        lines += [f"Skipped for want of time: {', '.join(skipped)}.", ""]
    return "\n".join(lines)


class Report:
    """The results of all calls in one work folder on one build."""

    def __init__(self, work, options):
        self.out, self.emulated = options.out, options.emulated
        self.state = os.path.join(work, "results.json")
        subject = os.path.abspath(options.bundle or options.build)
        if os.path.isfile(subject) or os.path.isfile(os.path.join(subject, "latentd")):
            path = subject if os.path.isfile(subject) else os.path.join(subject, "latentd")
            with open(path, "rb") as f:
                subject = hashlib.sha256(f.read()).hexdigest()[:16]
        self.content = {"subject": subject, "emulated": options.emulated, "parts": {}}
        try:
            with open(self.state, encoding="utf-8") as f:
                earlier = json.load(f)
            if earlier["subject"] == subject and earlier["emulated"] == options.emulated:
                self.content = earlier
        except (OSError, ValueError, KeyError):
            pass

    @property
    def parts(self):
        return self.content["parts"]

    def has(self, name):
        """Returns whether the part was completed in this or an earlier call."""
        part = self.parts.get(name)
        return bool(part) and not {"failed", "not_run", "skipped"} & part.keys()

    def begin(self):
        """If an earlier call ended during a part, for example because the machine was taken
        away, the part is marked as failed."""
        name = self.content.pop("now", None)
        if name and not self.has(name):
            self.parts[name] = {"failed": "the process, or the machine, ended while it ran",
                                "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}

    def now(self, name):
        """Stores the part that is about to run; None: no part."""
        self.content["now"] = name
        os.makedirs(os.path.dirname(self.state), exist_ok=True)
        write(self.state, json.dumps(clean(self.content), indent=1, allow_nan=False) + "\n")

    def add(self, name, part, seconds):
        if "not_run" not in part or not self.has(name):
            part = dict(clean(part), when=time.strftime("%Y-%m-%d %H:%M", time.gmtime()))
            self.parts.pop(name, None)
            self.parts[name] = part
        self.content["targets"] = targets(self.parts)
        self.content["seconds_of_last_call"] = round(seconds, 1)
        os.makedirs(self.out, exist_ok=True)
        about = self.parts.get("device", {})
        word = "emulated" if self.emulated else re.sub(
            r"[^a-z0-9]+", "-", str(about.get("name", "unknown")).lower()).strip("-")
        path = os.path.join(self.out, "gpu-" + word)
        for target in (path + ".json", self.state):
            write(target, json.dumps(clean(self.content), indent=1, allow_nan=False) + "\n")
        write(path + ".md", markdown(about, self.parts, self.emulated))
        return path

    def text(self):
        return "\n".join(target_table(self.parts) + [""] + side_by_side(self.parts))


def write(path, text):
    """Writes the whole file or nothing."""
    with open(path + ".part", "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(path + ".part", path)
