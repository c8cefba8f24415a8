#!/usr/bin/env python3
"""A model of how long one step takes on an H200: Stable Diffusion 1.5, 512x512, guidance, bf16.

usage: wave_model.py TABLE [--calls] [--gpcs 16,16,...] [--measured choices-NAME.tsv]

TABLE is the output of cuda_step_calls: the calls of a step, as the code makes them. For each call
the model computes a time, from waves of blocks over the multiprocessors, and a floor, from work and
bytes alone; --calls prints each call. --gpcs gives the number of multiprocessors in each GPC that
can form clusters together (`kcheck --facts` shows them); without it, both tables of CHIPS are
judged. The output ends with the remaining redesigns and what each would save by itself. --measured
also shows the time that a GPU took with the best kernel of each shape (a table of
choices_table.py), for each part and for the calls with the largest error.

GUESSES names every number that is not arithmetic and where it comes from; none of them was
measured. Exits with 1 if a call is modelled faster than its floor, or if a step exceeds the time
allowed for a chip.
"""
import argparse
import math
import sys

# ---- the chip, as published ----
MULTIPROCESSORS = 132
CLOCK_MHZ = 1755
EXPONENTIALS_PER_CLOCK = 16  # per multiprocessor
ISSUED_PER_CLOCK = 128       # lanes that get an instruction, per multiprocessor
SHARED_BYTES_US = 128 * CLOCK_MHZ  # of one multiprocessor's shared memory, reads and writes

# ---- GUESSES ----
TENSOR_FLOPS = 790e12     # large f16 products with NVIDIA's library, power-limited; published
TENSOR_SHARE = 0.85       # of TENSOR_FLOPS, inside a block: as CUTLASS's best
MEMORY_BYTES_US = 4.3e6   # of 4.8 TB/s: reached by copies; published
L2_BYTES_US = 5.5e6       # to all multiprocessors together; microbenchmarks of the H100
L2_PORT_BYTES_US = 64 * CLOCK_MHZ  # to one multiprocessor: 64 bytes a clock
GAP_US = 0.7              # from a kernel's last store to the next one's first load, in a graph, with
                          # programmatic launches; others measured 1.3 without them
FILL_US = 0.9             # from a block's start to its first product: map, barrier, two L2 trips
END_US, END_GEGLU_US = 1.1, 2.0  # end of 128x160 sums, without trips: about 960 and 1,720 instructions of
                          # each of eight warps, counted in sm_90a's code; a residual is a trip more
TRIP_US = 0.7             # to L2 and back, under load
REDUCE_US = 2.0           # a second kernel that adds parts: start and two trips
CLUSTER_REDUCE_US = 1.0   # adding through a cluster's shared memory: a barrier and a trip
CHIPS = {                 # multiprocessors of each GPC that form clusters together. A full chip has 8 x 18,
                          # 132 of them are in use; which 132 differs from chip to chip. The second
                          # value: the ms that a step may take on that chip with the present plan.
    "128 of 132 in clusters of 8, an even chip": (6 * [16] + 2 * [18], 3.8),
    # accel-sim/gpu-app-collection#87: "Cluster shape 4x2x1 ... active SMs = 120 / 132" on an H100;
    # CUTLASS#1921: cuBLAS launches 60x2 there.
    "120 of 132 in clusters of 8, an H100 that was asked": (3 * [18] + 4 * [16] + [14], 4.4),
}
GPCS = list(CHIPS.values())[0][0]
CLUSTER_BYTES_US = 2.65e6 / MULTIPROCESSORS  # what a block reads from its cluster's others: a
                          # guess, near what is published for Hopper with four blocks a cluster
HIDDEN_PRODUCTS = 0.65    # share of attention's products hidden behind exponentials: 0.5 is one of two
                          # waits. Groups that take turns gained a tenth of the time in
                          # FlashAttention-3 (570 to 620 or 640 TFLOP/s, heads of 128).
ATTENTION_END_US = 1.5    # writing a block's outputs
ATTENTION_BLOCK_US = 3.5  # a block with few keys: nothing hides its trips
SECOND_PASS_US = 1.4      # another tile of queries, already loaded: 1.1 for 470 instructions
                          # of 16 warps, counted in sm_90a's code, and two waits for products
PASSES = {40: (1, 2)}     # tiles of queries that a block can take, by head size
SCORE_ISSUE = {40: 7.5, 64: 7.3, 80: 7.5, 160: 13.2}  # instructions of attention's loop per score, by
                          # head size, counted in sm_90a's code
SPARED = {40: 4 / 64}     # share of exponentials done by polynomials
NORM_READ = {2: 14.2, 4: 11.1, 8: 10.1}  # a group norm's instructions for two values, by the values in a
                          # word, counted in sm_90a's code
NORM_WRITE = {2: (13.8, 27.8), 4: (10.3, 24.4), 8: (9.0, 23.0)}  # without and with SiLU
NORM_IDLE = 5             # more for each load without data in the last turn
NORM_LOADS = {2: 11, 4: 11, 8: 4}  # per turn: group_norm.cu's FIRST_LOADS; from shared memory 8 and 4
NORM_START_US = 0.3       # start, and two sums over a block
SILU_EXPONENTIALS = 3     # for two values: two exponentials and a reciprocal
PLAIN_FLOPS = 20e12       # convolutions with few channels, on multiply-adds: 30 % of the peak
SMALL_US = 1.5            # a kernel that moves little data: start and two trips

# gemm_hopper.cu's tiles: outputs, cluster size along pixels and along outputs, blocks per
# multiprocessor
TILES = [(160, 1, 1, 1), (160, 1, 2, 1), (160, 2, 1, 1), (160, 2, 2, 1), (256, 2, 1, 1), (256, 1, 2, 1),
         (128, 1, 1, 1), (128, 2, 1, 1), (128, 2, 2, 1), (80, 1, 1, 1), (80, 1, 1, 2), (64, 1, 1, 1),
         (64, 1, 1, 2), (80, 2, 2, 2), (80, 2, 4, 2), (80, 1, 8, 2)]
PIXELS, STEP = 128, 64
VECTOR_ROWS = 4  # gemm_simt.cu: rows of one token that share one read of a weight
SPLITS = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16]


class Time:
    """One call: its modelled time and its lower bound in microseconds, and its number of
    kernels."""

    def __init__(self, part, us, floor_us, launches=1, how=""):
        self.part, self.us, self.floor_us, self.launches, self.how = part, us, floor_us, launches, how


def flops_us(flops):
    return flops / TENSOR_FLOPS * 1e6


def divided_up(a, b):
    return -(-a // b)


def block_us(steps, n, cm, cn, active):
    """Returns the time of a block's sum. The slowest part decides: products; reads from L2;
    arriving data, also from the cluster; shared memory, which is written once and whose
    weights both groups read."""
    products = flops_us(2 * PIXELS * n * STEP) * MULTIPROCESSORS / TENSOR_SHARE
    read = 2 * STEP * (PIXELS / cn + n / cm)
    arrives = 2 * STEP * (PIXELS + n)
    shared = arrives + 2 * STEP * (PIXELS + 2 * n)
    return steps * max(products, read * active / L2_BYTES_US, arrives / L2_PORT_BYTES_US,
                       shared / SHARED_BYTES_US)


def in_clusters(blocks):
    """Returns the number of multiprocessors that clusters of this many blocks can use."""
    return sum(gpc // blocks * blocks for gpc in GPCS)


def is_clustered(tile, split):
    """gemm_is_clustered: whether the parts of a sum are added in a cluster."""
    return split > 1 and tile[1] * tile[2] * split <= 16


def tile_us(m, n, steps, phases, tile, split, end, with_):
    """Returns the time of one product with one tile, its sum split into `split` parts."""
    width, cm, cn, shared_by = tile
    blocks = (divided_up(divided_up(m, PIXELS), cm) * cm * divided_up(divided_up(n, width), cn) * cn *
              phases * split)
    multiprocessors = in_clusters(cm * cn * (split if is_clustered(tile, split) else 1))
    one = block_us(divided_up(steps, split), width, cm, cn, min(blocks, multiprocessors))
    end = end[0] * width / 160 + end[1]
    waves = divided_up(blocks, multiprocessors)
    if shared_by > 1:  # one block computes while another starts or ends
        us = FILL_US + end + waves * one
    elif "persistent" in with_:  # two groups take turns: one ends while the other computes
        us = FILL_US + end + one + (waves - 1) * max(one, end)
    else:
        us = waves * (FILL_US + one + end)
    if split > 1:
        if is_clustered(tile, split):  # each block adds its share of the tile from all parts
            us += CLUSTER_REDUCE_US + waves * 4 * PIXELS * width * (split - 1) / split / CLUSTER_BYTES_US
        else:
            us += REDUCE_US + GAP_US + 4 * split * phases * m * n / L2_BYTES_US
    return us


def product(part, m, n, k_steps, phases, weight_elements, flops, a, with_):
    # A 3x3 convolution without a residual mostly belongs to a resnet. It adds the time embedding or
    # a shortcut's bias, which costs a trip too.
    end = END_GEGLU_US if a.get("geglu") else END_US, TRIP_US * (a["residual"] or a.get("taps") == 9)
    weight_us = 2 * weight_elements / MEMORY_BYTES_US
    us, tile, split = min((tile_us(m, n, k_steps, phases, t, s, end, with_), t, s)
                          for t in TILES for s in SPLITS if s == 1 or k_steps >= 4 * s)
    reduction = split > 1 and not is_clustered(tile, split)
    return Time(part, max(us, weight_us + FILL_US), max(flops_us(flops), weight_us), 1 + reduction,
                f"128x{tile[0]} {tile[1]}x{tile[2]} split {split}")


def linear(a, with_):
    if a["tokens"] == 1:  # one warp per column reads the weight once for VECTOR_ROWS
        weight_us = 2 * a["n"] * a["k"] / MEMORY_BYTES_US
        return Time("timestep layers", SMALL_US + divided_up(a["rows"], VECTOR_ROWS) * weight_us, weight_us)
    m = a["rows"] * a["tokens"]
    part = "GEGLU products" if a["geglu"] else "linear layers"
    return product(part, m, a["n"], divided_up(a["k"], STEP), 1, a["n"] * a["k"],
                   2 * m * a["n"] * a["k"], a, with_)


def conv2d(a, with_):
    m = a["rows"] * a["h"] * a["w"] // a["phases"]
    channels = a["taps"] * a["c_in"] + a["shortcut"]  # of the sum
    work = 2 * m * a["phases"] * a["n"] * channels
    if a["c_in"] % 8 or a["n"] % 8:
        return Time("conv_in, conv_out", SMALL_US + work / PLAIN_FLOPS * 1e6, flops_us(work))
    part = "1x1 convolutions" if a["taps"] == 1 else "3x3 convolutions"
    steps = a["taps"] * divided_up(a["c_in"], STEP) + divided_up(a["shortcut"], STEP)
    return product(part, m, a["n"], steps, a["phases"], a["phases"] * a["n"] * channels, work, a, with_)


def attention(a, _):
    pairs = a["rows"] * a["heads"] * a["queries"] * a["keys"]
    exponentials = (pairs * (1 - SPARED.get(a["head_dim"], 0)) / EXPONENTIALS_PER_CLOCK /
                    MULTIPROCESSORS / CLOCK_MHZ)
    padded = divided_up(a["head_dim"], 16) * 16 + a["head_dim"]
    products = flops_us(2 * pairs * padded)
    moved = 4 * a["rows"] * a["queries"] * a["heads"] * a["head_dim"] / L2_BYTES_US
    floor = max(exponentials, flops_us(4 * pairs * a["head_dim"]), moved)
    blocks = a["rows"] * a["heads"] * divided_up(a["queries"], 128)
    if a["keys"] <= 80:
        us = min(divided_up(divided_up(blocks, n), 2 * MULTIPROCESSORS) *
                 (ATTENTION_BLOCK_US + (n - 1) * SECOND_PASS_US) for n in PASSES.get(a["head_dim"], (1,)))
        return Time("cross-attention", max(us, moved), floor)
    issue = pairs * SCORE_ISSUE[a["head_dim"]] / ISSUED_PER_CLOCK / MULTIPROCESSORS / CLOCK_MHZ
    inside = max(max(exponentials, issue) + (1 - HIDDEN_PRODUCTS) * products / TENSOR_SHARE,
                 products / TENSOR_SHARE)
    full = divided_up(blocks, MULTIPROCESSORS) * MULTIPROCESSORS / blocks
    return Time("self-attention", FILL_US + ATTENTION_END_US + inside * full, floor)


def norm_us(a, blocks, word, lines, per_two, exponentials, loads):
    """Returns the time of a thread's lines: its instructions for pairs of values, and its loads
    that find nothing."""
    words = a["rows"] * a["pixels"] * a["channels"] // 2
    idle = (loads - 1 - lines % loads) if lines % loads else 0
    slots = per_two + NORM_IDLE * 2 * idle / (lines * word)
    return (words * max(slots / ISSUED_PER_CLOCK, exponentials / EXPONENTIALS_PER_CLOCK) /
            min(blocks, MULTIPROCESSORS) / CLOCK_MHZ)


def group_norm(a, with_):
    words = a["rows"] * a["pixels"] * a["channels"] // 2
    parts = 4 if words // a["rows"] // a["groups"] >= 4096 else 1  # blocks of a cluster
    blocks = a["rows"] * a["groups"] * parts
    width = a["channels"] // a["groups"]
    word = next(w for w in (8, 4, 2) if width % w == 0)
    lines = divided_up(divided_up(a["pixels"], parts), 512 * word // width)  # of a thread
    us = norm_us(a, blocks, word, lines, NORM_WRITE[word][a["silu"]], SILU_EXPONENTIALS * a["silu"],
                 min(NORM_LOADS[word], 8))
    trips = divided_up(lines, NORM_LOADS[word])
    if "moments" not in with_:
        us += norm_us(a, blocks, word, lines, NORM_READ[word], 0, NORM_LOADS[word])
        trips += parts > 1
    # A norm that reads two tensors also writes their concatenation.
    joining = 4 * words / L2_BYTES_US if a["joins"] else 0
    moved = 8 * words / L2_BYTES_US
    return Time("group norms", NORM_START_US + trips * TRIP_US + max(us, moved) + joining, moved + joining)


def layer_norm(a, _):
    floor = 4 * a["rows"] * a["tokens"] * a["channels"] / L2_BYTES_US
    return Time("layer norms", SMALL_US - TRIP_US + floor, floor)  # one trip reads everything


def small(a, _):
    floor = 6 * a["elements"] / L2_BYTES_US
    return Time("conversions, timesteps", SMALL_US + floor, floor)


def for_schedule(model):
    """Models a call whose rows are the timesteps of several steps, so that it is made only once
    for all of them. Returns the time per step."""
    def share(a, with_):
        t, steps = model(a, with_), a["rows"]
        return Time("timestep layers", t.us / steps, t.floor_us / steps, t.launches / steps, f"1 in {steps} steps")
    return share


MODELS = {"linear": linear, "conv2d": conv2d, "attention": attention, "group_norm": group_norm,
          "layer_norm": layer_norm, "convert": small, "timestep_embedding": small, "add": small,
          "geglu": small, "embedding": small, "schedule_linear": for_schedule(linear),
          "schedule_timestep_embedding": for_schedule(small)}

REDESIGNS = [
    ("persistent", "persistent products, two groups taking turns"),
    ("moments", "a group norm's moments from the end of what wrote its input"),
]


def read(path):
    """Yields (times, operation, arguments, launches on the emulator) for each line."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            times, operation, arguments, launches = line.rstrip("\n").split("\t")
            yield (int(times), operation, {k: int(v) for k, v in (f.split("=") for f in arguments.split())},
                   int(launches))


def step(calls, with_=()):
    """Returns [(times, operation, arguments, Time)]."""
    return [(times, operation, a, MODELS[operation](a, with_)) for times, operation, a, _ in calls]


def total_ms(timed):
    return sum(times * (t.us + t.launches * GAP_US) for times, _, _, t in timed) / 1000


def judge(calls):
    """Prints a step's time on each chip. Returns the number of chips whose limit is exceeded."""
    global GPCS
    first, missed = GPCS, 0
    for name, (gpcs, bar) in CHIPS.items():
        GPCS = gpcs
        now = total_ms(step(calls))
        missed += now > bar
        places = ", ".join(f"{in_clusters(n)} of {n}" for n in (2, 4, 8, 16))
        print(f"{now:.2f} ms on {name} (blocks in clusters: {places}); the bar is {bar}: "
              f"{'met' if now <= bar else f'missed by {now - bar:.2f}'}")
    GPCS = first
    return missed


def print_parts(timed):
    parts = {}
    for times, _, _, t in timed:
        part = parts.setdefault(t.part, [0, 0, 0.0, 0.0])
        for i, more in enumerate((1, t.launches, t.us, t.floor_us)):
            part[i] += times * more
    print(f"{'part':24} {'calls':>6} {'launches':>9} {'model us':>9} {'floor us':>9}")
    for name, (calls, launches, us, floor) in sorted(parts.items(), key=lambda p: -p[1][2]):
        print(f"{name:24} {calls:6} {launches:9.4g} {us:9.0f} {floor:9.0f}")
    launches = sum(p[1] for p in parts.values())
    print(f"{'between kernels':24} {'':6} {'':9} {launches * GAP_US:9.0f} {0:9}")
    print(f"{'a step':24} {sum(p[0] for p in parts.values()):6} {launches:9.4g} "
          f"{1000 * total_ms(timed):9.0f} {sum(p[3] for p in parts.values()):9.0f}")


# ---- compared with a GPU ----

MISSING_ROWS = 12


def best_times(path):
    """Returns {shape, as `latentd tune` names it: microseconds of its best kernel}."""
    best, shape = {}, None
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line[0] == "\t":
                us = float(line.split("\t")[2])
                best[shape] = min(us, best.get(shape, us))
            elif line[0] != "#":
                shape = line.rstrip("\n").split(" rows ")[1]
    return best


def shapes_of(operation, a):
    """Returns the names that a call's shape may have in the measured table."""
    if operation == "linear":
        words = ["linear-geglu"] if a["geglu"] else ["linear", "linear-more"]
        return [f"gemm {w} bf16 n{a['n']} k{a['k']} 1x{a['tokens']} to 1x{a['tokens']}" for w in words]
    if operation == "conv2d":
        h, w = a["h"], a["w"]
        kinds = {1: [("conv1x1", h, w)], 4: [("conv3x3-up", h // 2, w // 2)],
                 9: [("conv3x3", h, w), ("conv3x3-down", 2 * h, 2 * w)]}[a["taps"]]
        more = f" shortcut k{a['shortcut']}" if a["shortcut"] else ""
        return [f"gemm {kind} bf16 n{a['n']} k{a['c_in']} {y}x{x} to {h}x{w}{more}" for kind, y, x in kinds]
    if operation == "attention":  # keys may have been measured at the kernel's maximum of 80
        return [f"attention bf16 heads{a['heads']} d{a['head_dim']} q{a['queries']} k{keys}"
                for keys in (a["keys"], 80)]
    if operation == "group_norm":
        return [f"group_norm bf16 pixels{a['pixels']} c{a['channels']} groups{a['groups']}"]
    return []


def compare(timed, best):
    """Prints the model's microseconds, including the gaps between kernels, beside the measured
    ones."""
    parts, calls = {}, []
    for times, operation, a, t in timed:
        us = next((best[name] for name in shapes_of(operation, a) if name in best), None)
        if us is None:
            continue
        model = t.us + t.launches * GAP_US
        part = parts.setdefault(t.part, [0, 0.0, 0.0, 0.0])
        for i, more in enumerate((1, us, model, t.floor_us)):
            part[i] += times * more
        calls.append((times * (us - model), times, us, model, t.floor_us, operation, a))
    print(f"\n{'part, as far as measured':24} {'calls':>6} {'us':>9} {'model us':>9} {'floor us':>9}")
    for name, (count, us, model, floor) in sorted(parts.items(), key=lambda p: -p[1][1]):
        print(f"{name:24} {count:6} {us:9.0f} {model:9.0f} {floor:9.0f}")
    print(f"{'together':24} {sum(p[0] for p in parts.values()):6} "
          + " ".join(f"{sum(p[i] for p in parts.values()):9.0f}" for i in (1, 2, 3)))
    for more, times, us, model, floor, operation, a in sorted(calls, key=lambda c: -c[0])[:MISSING_ROWS]:
        print(f"{more:6.0f} us more than modelled: {times:2} x {us:.1f} (model {model:.1f}, floor {floor:.1f}) "
              f"{operation} {' '.join(f'{k}={v}' for k, v in a.items())}")
    return len(calls)


def main():
    global GPCS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--gpcs", help="16,16,...: of each GPC")
    parser.add_argument("--measured", help="what a GPU took: choices-NAME.tsv")
    options = parser.parse_args()
    if options.gpcs:
        GPCS = [int(word) for word in options.gpcs.split(",")]
    calls = list(read(options.table))
    timed = step(calls)
    if options.calls:
        for times, operation, a, t in sorted(timed, key=lambda t: -t[0] * t[3].us):
            print(f"{times:3} x {t.us:6.1f} us (floor {t.floor_us:6.1f})  {operation} "
                  f"{' '.join(f'{k}={v}' for k, v in a.items())}  {t.how}")
        print()
    print_parts(timed)
    now = total_ms(timed)
    print(f"\n{now:.2f} ms as the code is. The emulator counts "
          f"{sum(c[0] * c[3] for c in calls if not c[1].startswith('schedule_'))} launches with the tiles chosen by rule.\n")
    missed = 0 if options.gpcs else judge(calls)
    for key, what in REDESIGNS:
        print(f"{now - total_ms(step(calls, (key,))):6.2f} ms less: {what}")
    every = step(calls, [key for key, _ in REDESIGNS])
    print(f"{total_ms(every):6.2f} ms with all of them, {sum(t[0] * t[3].launches for t in every):.4g} launches")
    if options.measured and not compare(timed, best_times(options.measured)):
        print(f"{options.measured} has no shape of a step")
        missed += 1
    wrong = [t for t in timed + every if t[3].us < t[3].floor_us]
    for _, operation, a, t in wrong:
        print(f"{operation} {a}: {t.us:.1f} us is below its floor of {t.floor_us:.1f}")
    if wrong or missed or not math.isfinite(now):
        sys.exit(1)


if __name__ == "__main__":
    main()
