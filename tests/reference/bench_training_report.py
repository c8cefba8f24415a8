"""The parts, limits and tables of scripts/bench-training, from the figures that
bench_training.py measured."""

import dataclasses


@dataclasses.dataclass
class Part:
    """A job."""

    title: str
    resolution: int
    batch: int
    bundled: bool = False
    checkpointing: bool = False
    rounds: int = 3
    steps: int = 2  # in each round
    method: str = "lora"
    group: str = ""
    dtype: str = "f32"
    bar_bytes: float = 0


PARTS = {
    "small": Part("bundled checkpoint, 128x128, batch 4", 128, 4, bundled=True, rounds=5, steps=12),
    "256": Part("full size, 256x256", 256, 1, rounds=4, steps=3),
    "512": Part("full size, 512x512, checkpointed", 512, 1, checkpointing=True, rounds=2),
}
# latentd only
MEMORY = {
    "lora-1": Part("LoRA, 512x512, bf16, checkpointed, batch 1", 512, 1, checkpointing=True, dtype="bf16",
                   group="memory", bar_bytes=3.5e9),
    "lora-4": Part("LoRA, 512x512, bf16, checkpointed, batch 4", 512, 4, checkpointing=True, dtype="bf16",
                   group="memory", bar_bytes=5e9),
    "full": Part("all weights of the UNet, 512x512, f32, checkpointed, batch 1", 512, 1, checkpointing=True,
                 method="full", group="full", bar_bytes=16e9),
}
SPEED_BAR, SPEED_GOAL, MEMORY_BAR = 1.4, 2.0, 0.85


def fastest(figures, name):
    """Returns the key "NAME DTYPE" of the dtype in which the peer trains the most images a
    second."""
    return max((key for key in figures if key.startswith(name)), key=lambda key: figures[key]["images_per_s"])


def pairs(figures):
    """Returns [(words, latentd's figures, diffusers' figures)]: each in its faster dtype, then
    both in f32."""
    ours, theirs = fastest(figures, "latentd"), fastest(figures, "diffusers")
    words = f"each in its faster dtype ({ours.split()[1]}, {theirs.split()[1]})"
    out = [(words, figures[ours], figures[theirs])]
    if "latentd f32" in figures and "diffusers f32" in figures:
        out.append(("both in f32", figures["latentd f32"], figures["diffusers f32"]))
    return out


def check_bars(record):
    """Returns [{"bar", "measured", "met"}] for the measured parts."""
    out = []
    for name, part in PARTS.items():
        if name not in record["parts"]:
            continue
        for words, ours, theirs in pairs(record["parts"][name]["figures"]):
            speed = ours["images_per_s"] / theirs["images_per_s"]
            memory = ours["peak_bytes"] / theirs["peak_bytes"]
            goal = f", {'past' if speed >= SPEED_GOAL else 'under'} the goal of {SPEED_GOAL:g}x"
            out.append({"bar": f"{part.title}, {words}: at least {SPEED_BAR}x diffusers' images/s",
                        "measured": f"{speed:.2f}x{goal}", "met": speed >= SPEED_BAR})
            out.append({"bar": f"{part.title}, {words}: at most {MEMORY_BAR}x diffusers' memory",
                        "measured": f"{memory:.2f}x", "met": memory <= MEMORY_BAR})
    for name, part in MEMORY.items():
        if name in record["memory"]:
            peak = record["memory"][name]["peak_bytes"]
            out.append({"bar": f"{part.title}: under {part.bar_bytes / 1e9:g} GB", "measured": f"{peak / 1e9:.2f} GB",
                        "met": peak < part.bar_bytes})
    return out


def row(part, key, figures):
    name, dtype = key.split()
    return (f"| {part.title} | {'latentd' if name == 'latentd' else 'diffusers + peft'} | {dtype} "
            f"| {figures['images_per_s']:.3f} ({figures['least']:.3f} to {figures['most']:.3f}) "
            f"| {len(figures['seconds'])} | {figures['peak_bytes'] / 1e6:.0f} |")


def report(record):
    """Returns the record as Markdown."""
    about = record["machine"]
    lines = [
        f"# Training on {about['cpu']}, {about['threads']} threads",
        "",
        f"Measured by `scripts/bench-training`: {about['cpu']} (family/model {about['family_model']}; "
        f"{', '.join(about['instructions'])}), {about['memory_bytes'] / 1e9:.0f} GB, Linux {about['kernel']}. Random "
        "weights of Stable Diffusion 1.5's size but for the bundled checkpoint; latents and texts encoded before. "
        "LoRA is rank 16 on the attention layers, batch 1 where nothing else is said. Medians (least to most) of "
        "the steps of interleaved rounds; memory is the process's peak, loading included.",
        "",
    ]
    software = sorted({f["software"] for p in record["parts"].values() for f in p["figures"].values()} - {"latentd"})
    if record["parts"]:
        lines += [f"Peer: {', '.join(software)}, channels-last weights, autocast in bf16 with the factors in f32.", "",
                  "| | | dtype | images/s | steps | peak MB |", "|---|---|---|---|---|---|"]
    for name, part in PARTS.items():
        if name in record["parts"]:
            lines += [row(part, key, figures) for key, figures in record["parts"][name]["figures"].items()]
    if record["memory"]:
        lines += ["", "| latentd alone | peak GB | s a step |", "|---|---|---|"]
    for name, part in MEMORY.items():
        if name in record["memory"]:
            got = record["memory"][name]
            lines.append(f"| {part.title} | {got['peak_bytes'] / 1e9:.2f} | {got['seconds'][0]:.1f} |")
    if record["bars"]:
        lines += ["", "| bar | measured | |", "|---|---|---|"]
    lines += [f"| {b['bar']} | {b['measured']} | {'met' if b['met'] else 'MISSED'} |" for b in record["bars"]]
    dates = {name: got["date"] for kind in ("parts", "memory") for name, got in record[kind].items()}
    lines += ["", "Measured at: " + ", ".join(f"{name} {date}" for name, date in dates.items()) + "."]
    return "\n".join(lines) + "\n"
