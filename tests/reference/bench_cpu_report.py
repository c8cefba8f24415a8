"""The tables and limits of scripts/bench-cpu, from the figures that bench_cpu.py measured. A
missing figure is printed as a dash."""

import statistics

# Floating-point operations, in units of 1e12, of one UNet step with two rows and of one decode. The
# operations of the plain algorithms are counted, whatever algorithms a peer uses.
STEP_TFLOP, DECODE_TFLOP = 1.6065, 2.5145
ACTIONS = ("step", "decode")
OLD = "latentd-old"  # the peer that --old adds: an older build of latentd
# Limits for latentd, (step, decode): how many times as fast as OpenVINO it must be. For bf16 they
# depend on the processor's bf16 instructions; "" means that it has none. For f32 they are the same
# on every processor.
BF16_BARS = {"amx_bf16": (1.2, 1.3), "avx512_bf16": (1.15, 1.3), "": (1.4, 1.7)}
F32_BARS = (1.15, 1.5)
PEAK_BAR_BYTES = {"bf16": 3.0e9, "f32": 5.0e9}
FIRST_STEP_BAR = 1.5


def over(stopped):
    """Returns the word before a figure that is a lower bound."""
    return "over " if stopped else ""


def figures_of(first, samples, stopped):
    """Returns the figures of one action, or None before its first call."""
    if first is None:
        return None
    used = samples or [first]  # if a peer is too slow for samples, its first call counts
    return {
        "first_s": first,
        "median_s": statistics.median(used),
        "min_s": min(used),
        "max_s": max(used),
        "count": len(samples),
        "stopped": stopped,  # at the limit: the seconds are a lower bound
        "samples_s": samples,
    }


def find(results, peer, dtype):
    return next((r for r in results if (r["peer"], r["dtype"]) == (peer, dtype)), None)


def seconds(value):
    return "-" if value is None else f"{value:.1f}"


def spread(action):
    if not action:
        return "-"
    if action["stopped"]:
        return f"over {action['median_s']:.0f} (stopped)"
    if action["count"] < 2:
        return f"{action['median_s']:.2f} (once)"
    return f"{action['median_s']:.2f} ({action['min_s']:.2f} to {action['max_s']:.2f})"


def rate(action, tflop):
    """Returns GFLOP/s as text."""
    if not action:
        return "-"
    return f"{'under ' if action['stopped'] else ''}{tflop / action['median_s'] * 1e3:.0f}"


def ratio(theirs, ours):
    """Returns the ratio of the medians, or None. If a call of the peer was stopped, its time is
    a lower bound, and so is the ratio. If a call of latentd was stopped, there is no ratio."""
    if not theirs or not ours or ours["stopped"]:
        return None
    return theirs["median_s"] / ours["median_s"]


def ratio_text(theirs, ours):
    value = ratio(theirs, ours)
    return "-" if value is None else f"{over(theirs['stopped'])}{value:.2f}x"


def paired_text(old, new):
    """Returns how many times as long the old build takes, with the range over the rounds. The
    two times of a round were measured one right after the other."""
    if ratio(old, new) is None:
        return "-"
    rounds = [a / b for a, b in zip(old["samples_s"], new["samples_s"])]
    text = ratio_text(old, new)
    return f"{text} ({min(rounds):.2f} to {max(rounds):.2f})" if rounds else text


def check_bars(results, generated, instructions):
    """Returns [(text, figure, met)]. Limits whose peers were not measured are left out."""
    out = []
    fastest = next((name for name in BF16_BARS if name in instructions), "")
    for dtype, factors in (("bf16", BF16_BARS[fastest]), ("f32", F32_BARS)):
        ours, theirs = find(results, "latentd", dtype), find(results, "openvino", dtype)
        for action, factor in zip(ACTIONS, factors):
            value = ratio(theirs[action], ours[action]) if ours and theirs else None
            if value is not None:
                text = f"{dtype} {action}: at least {factor}x as fast as openvino"
                out.append((text, ratio_text(theirs[action], ours[action]), value >= factor))
    for dtype, bar in PEAK_BAR_BYTES.items():
        ours = find(results, "latentd", dtype)
        if not ours:
            continue
        peak = max([ours["peak_bytes"]] + [g["peak_bytes"] for g in generated if g["dtype"] == dtype])
        text = f"{dtype} peak memory of the whole pipeline: at most {bar / 1e9:.1f} GB"
        out.append((text, f"{peak / 1e9:.2f} GB", peak <= bar))
        if ours["step"] and ours["step"]["count"]:
            value = ours["step"]["first_s"] / ours["step"]["median_s"]
            text = f"{dtype} first step: at most {FIRST_STEP_BAR}x a later one"
            out.append((text, f"{value:.2f}x", value <= FIRST_STEP_BAR))
    return out


def row(r):
    step, decode = r["step"], r["decode"]
    late = over(step and step["stopped"])
    first = f"{late}{step['first_s']:.2f}" if step else "-"
    return (
        f"| {r['software']} | {r['dtype']} | {r['precision']} | {spread(step)} "
        f"| {rate(step, STEP_TFLOP)} | {first} | {spread(decode)} | {rate(decode, DECODE_TFLOP)} "
        f"| {seconds(r['load_s'])} | {late if r['ready_s'] else ''}{seconds(r['ready_s'])} "
        f"| {r['peak_bytes'] / 1e9:.2f} |"
    )


def ratio_rows(results):
    out = []
    for r in results:
        ours = find(results, "latentd", r["dtype"])
        if ours and r["peer"] not in ("latentd", OLD):
            both = [ratio_text(r[action], ours[action]) for action in ACTIONS]
            memory = f"{r['peak_bytes'] / ours['peak_bytes']:.2f}x"
            out.append(f"| {r['peer']} {r['dtype']} | {both[0]} | {both[1]} | {memory} |")
    return out


def old_rows(results):
    out = []
    for r in results:
        ours = find(results, "latentd", r["dtype"])
        if ours and r["peer"] == OLD:
            both = [paired_text(r[action], ours[action]) for action in ACTIONS]
            memory = f"{r['peak_bytes'] / ours['peak_bytes']:.2f}x"
            out.append(f"| {r['dtype']} | {both[0]} | {both[1]} | {memory} |")
    return out


def report(run):
    """Returns the run as Markdown. `run` is the content of the JSON file."""
    about, results = run["machine"], run["results"]
    lines = [
        f"# SD-1.5 on {about['cpu']}, {about['threads']} threads",
        "",
        f"Measured by `scripts/bench-cpu` on {about['date']}: {about['cpu']} (family/model "
        f"{about['family_model']}; {', '.join(about['instructions'])}), "
        f"{about['memory_bytes'] / 1e9:.0f} GB, Linux {about['kernel']}, load average "
        f"{about['load_average_at_start']:.2f} at the start.",
        "",
    ]
    if run["state"] != "complete":
        lines += [f"**Not complete: {run['state']}.** The figures below were measured before that.", ""]
    lines += [
        "512x512, classifier-free guidance (two rows a step), 77 tokens a row, random weights of "
        f"realistic scale, median of {run['rounds']} interleaved rounds (smallest to largest); the "
        "first call after loading is not among them. GFLOP/s counts the plain algorithm's operations (1.6065 "
        "TFLOP a step, 2.5145 a decode). Ready: process start to the end of the first step.",
        "",
        "| | asked for | runs as | s per step | GFLOP/s | first step | s per decode | GFLOP/s "
        "| s to load | s to ready | peak GB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [row(r) for r in results]
    if not {"avx512_bf16", "amx_bf16"} & set(about["instructions"]):
        lines += ["", "This processor has no bf16 instructions: what was asked for in bf16 runs as "]
        lines[-1] += "something else, and the bars for bf16 mean little here; compare in f32."
    ratios, old = ratio_rows(results), old_rows(results)
    if ratios:
        lines += ["", "latentd compared with each peer in the same dtype: how many times as fast it is, and how "]
        lines[-1] += "many times as much memory the peer needs:"
        lines += ["", "| peer | step | decode | memory |", "|---|---|---|---|", *ratios]
    if old:
        lines += ["", "The older build's times and memory as multiples of those of this build (smallest to "]
        lines[-1] += "largest of the rounds; in a round the builds run one right after the other). Above 1, this "
        lines[-1] += "build is better:"
        lines += ["", "| | step | decode | memory |", "|---|---|---|---|", *old]
    for g in run["generate"]:
        whose = "The older build's `latentd generate`" if g["peer"] == OLD else "`latentd generate`"
        lines += ["", f"{whose} ({g['dtype']}, 2 steps, process start to PNG): "]
        lines[-1] += f"{g['seconds']:.1f} s, peak {g['peak_bytes'] / 1e9:.2f} GB."
    if run["bars"]:
        lines += ["", "| bar | measured | |", "|---|---|---|"]
        for bar in run["bars"]:
            lines.append(f"| {bar['bar']} | {bar['measured']} | {'met' if bar['met'] else 'MISSED'} |")
    for failure in run["failures"]:
        lines += ["", f"Not measured: {failure}"]
    return "\n".join(lines) + "\n"
