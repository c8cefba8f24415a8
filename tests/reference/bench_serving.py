#!/usr/bin/env python3
"""How long clients wait for their pictures, on the bundled checkpoint: latentd with its own order
of work, latentd with one request after the other, and diffusers behind a minimal HTTP server.

    scripts/bench-serving [--loads 0.3,0.8,2] [--rounds 3] [--seconds 20] [--seed 1]

Clients come at random (Poisson arrivals), half of them for 4 steps and half for 30. In each round
the servers take turns, and each gets the same clients at the same times since its turn began. A
load is a multiple of the images per second that latentd draws one at a time. This rate is measured
first. A wait lasts from the client's arrival to the last byte of its answer. Clients that got a 429
are counted separately. Both latentds' pictures are compared byte for byte.

At the end, one caller (an address) floods latentd and repeats the requests that are refused.
Meanwhile another caller asks for one picture at a time. Measured is how many times longer the
second one waits than it does without the flood.

Writes OUT/serving-<processor>.md and .json; exits with 1 if a limit is not met.
"""

import argparse
import hashlib
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time

from bench_cpu import machine, note, processor_slug

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(os.path.dirname(os.path.dirname(HERE)), "share/tiny-sd")
STEPS = {"short": 4, "long": 30}
OURS, SERIAL, PEER = "latentd", "one at a time", "diffusers"
PROMPTS = ["a red house on green hills", "a blue boat in the middle of the sea at night",
           "a yellow car in front of a forest", "three trees by the sea, the sun in the upper right"]
# (load, text, the (part, figure) that is compared, comparison, factor): latentd's figure is "at
# most" or "at least" factor times one-at-a-time's.
BARS = [
    (0.3, "mean", ("all", "mean"), "at most", 1.03),
    (0.3, "p95", ("all", "p95"), "at most", 1.03),
    (0.8, "p95 of 4 steps", ("short", "p95"), "at most", 0.25),
    (0.8, "mean", ("all", "mean"), "at most", 0.8),
    (0.8, "p95", ("all", "p95"), "at most", 1.05),
    (2.0, "images a second", ("rate", None), "at least", 0.97),
    (2.0, "mean", ("all", "mean"), "at most", 1.05),
    (2.0, "p95 of 30 steps", ("long", "p95"), "at most", 1.35),
]
FLOOD, FLOODER = 200, "127.0.0.2"  # requests in flight, and their address
FLOOD_ROUNDS = 15  # pictures, one after the other
FLOOD_BAR = 3.0  # limit of a caller's median wait during the flood / median wait alone


class Server:
    """A process that listens; it is ended at the end of the `with` block."""

    def __init__(self, name, command, log, path):
        self.name, self.command, self.log, self.path = name, command, log, path

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        found = re.search(r"listening on (?:http://127\.0\.0\.1:)?(\d+)", line)
        if not found:
            raise SystemExit(f"{self.name} said {line!r}; see {self.log.name}")
        self.port = int(found[1])
        for kind in ("short", "long", "short", "long"):
            end = time.monotonic() + 60
            while self.ask(kind, 0)[0] != 200:
                if time.monotonic() > end:
                    raise SystemExit(f"{self.name} does not draw; see {self.log.name}")
                time.sleep(0.1)
        return self

    def __exit__(self, *args):
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()

    def ask(self, kind, number, address="127.0.0.1"):
        """Makes one request from this address; `number` selects its prompt and seed. Returns
        (status, body)."""
        body = json.dumps({"prompt": PROMPTS[number % len(PROMPTS)], "seed": number,
                           "num_inference_steps": STEPS[kind], "guidance_scale": 2.5,
                           "width": 128, "height": 128})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300,
                                                source_address=(address, 0))
        try:
            connection.request("POST", self.path, body,
                               {"Content-Type": "application/json", "Accept": "image/png"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


class Clients:
    """The clients of one round: [(second of arrival, kind, number)]."""

    def __init__(self, rate, seconds, seed):
        draw = random.Random(seed)
        at, times = draw.expovariate(rate), []
        while at < seconds:
            times.append(at)
            at += draw.expovariate(rate)
        kinds = ["short", "long"] * ((len(times) + 1) // 2)
        kinds = kinds[:len(times)]
        draw.shuffle(kinds)
        self.list = [(t, k, draw.randrange(1 << 20)) for t, k in zip(times, kinds)]

    def visit(self, server):
        """Runs all clients, each in its own thread. Returns each client's result, and the
        seconds until the last was done."""
        out = [None] * len(self.list)
        begin = time.monotonic() + 0.1

        def client(i):
            at, kind, number = self.list[i]
            time.sleep(max(0, begin + at - time.monotonic()))
            status, body = server.ask(kind, number)
            out[i] = {"kind": kind, "status": status, "wait_s": time.monotonic() - begin - at,
                      "hash": hashlib.sha256(body).hexdigest() if status == 200 else None}

        threads = [threading.Thread(target=client, args=(i,)) for i in range(len(self.list))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        failed = [r for r in out if r is None or r["status"] not in (200, 429)]
        if failed:
            raise SystemExit(f"{server.name}: {len(failed)} requests failed: {failed[0]}")
        return out, time.monotonic() - begin


def figures(waits):
    if not waits:
        return {"count": 0, "mean": None, "p50": None, "p95": None}
    waits = sorted(waits)
    return {"count": len(waits), "mean": statistics.fmean(waits),
            "p50": waits[(len(waits) - 1) // 2],
            "p95": waits[min(len(waits) - 1, int(0.95 * len(waits)))]}


def summary(rounds):
    """Sums up all rounds of one server at one load: [(the clients' results, seconds)]."""
    got = [r for results, _ in rounds for r in results]
    drawn = [r for r in got if r["status"] == 200]
    out = {kind: figures([r["wait_s"] for r in drawn if r["kind"] == kind]) for kind in STEPS}
    out["all"] = figures([r["wait_s"] for r in drawn])
    out["refused"] = sum(r["status"] == 429 for r in got)
    out["rate"] = len(drawn) / sum(seconds for _, seconds in rounds)
    return out


def capacity(server, seconds):
    """Draws images one after the other, half of them short. Returns the images per second, and the
    median seconds of each kind."""
    took = {kind: [] for kind in STEPS}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for kind in STEPS:
            begin = time.monotonic()
            server.ask(kind, len(took[kind]))
            took[kind].append(time.monotonic() - begin)
    medians = {kind: statistics.median(values) for kind, values in took.items()}
    return 2 / sum(medians.values()), medians


class Flood:
    """In the background, keeps FLOOD requests of one caller in flight, for 30 steps each. A
    refused request is sent again a second later."""

    def __init__(self, server):
        self.server, self.ended, self.refused, self.failed = server, False, 0, []
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(FLOOD)]

    def run(self, number):
        while not self.ended:
            try:
                status = self.server.ask("long", number, FLOODER)[0]
            except OSError as e:
                status = repr(e)
            with self.lock:
                self.refused += status == 429
                if status not in (200, 429):
                    self.failed.append(status)
            if status != 200:
                time.sleep(1)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        while self.refused < FLOOD // 2 and not self.failed:  # until the queue is full
            time.sleep(0.05)
        return self

    def __exit__(self, *args):
        self.ended = True
        for thread in self.threads:
            thread.join()


def fairness(server, rounds):
    """Measures the waits of a caller that asks for one picture of 30 steps at a time: alone, and
    during a flood."""
    def waits():
        out = []
        for number in range(rounds):
            begin = time.monotonic()
            status = server.ask("long", number)[0]
            if status != 200:
                raise SystemExit(f"{server.name}: {status} to a caller that asks for one picture at a time")
            out.append(time.monotonic() - begin)
        return figures(out)
    alone = waits()
    with Flood(server) as flood:
        beside = waits()
    if flood.failed:
        raise SystemExit(f"{server.name}: {len(flood.failed)} of the flood failed: {flood.failed[0]}")
    note(f"alone {alone['p50']:.3f} s, beside the flood {beside['p50']:.3f} s, {flood.refused} refused")
    return {"alone": alone, "beside": beside, "refused": flood.refused}


def check_fairness(measured):
    """Compares the medians with the limit. Returns an entry like those of check_bars."""
    ratio = measured["beside"]["p50"] / measured["alone"]["p50"]
    return {"load": "flood", "bar": f"p50 of another caller: at most {FLOOD_BAR:g}x alone", "ratio": ratio,
            "met": ratio <= FLOOD_BAR}


def compare(first, second):
    """Returns how many pictures were drawn by both servers, and how many of these differ."""
    pairs = [(a["hash"], b["hash"]) for a, b in zip(first, second) if a["hash"] and b["hash"]]
    return len(pairs), sum(a != b for a, b in pairs)


def check_bars(results):
    """Returns a list of {"load", "bar", "ratio", "met"}."""
    out = []
    for load, text, (part, figure), comparison, factor in BARS:
        both = results.get(str(load))
        if not both or OURS not in both or SERIAL not in both:
            continue
        ours, serial = ((r[part][figure] if figure else r[part]) for r in (both[OURS], both[SERIAL]))
        if not ours or not serial:
            continue
        ratio = ours / serial
        met = ratio <= factor if comparison == "at most" else ratio >= factor
        out.append({"load": load, "bar": f"{text}: {comparison} {factor}x one at a time's",
                    "ratio": ratio, "met": met})
    return out


def row(load, name, r):
    def seconds(figures):
        if not figures["count"]:
            return "- | - | -"
        return " | ".join(f"{figures[key]:.3f}" for key in ("mean", "p50", "p95"))
    return (f"| {load} | {name} | {r['all']['count']} | {r['refused']} | {r['rate']:.2f} | "
            f"{seconds(r['all'])} | {seconds(r['short'])} | {seconds(r['long'])} |")


def report(record):
    about = record["machine"]
    lines = [
        f"# Serving on {about['cpu']}, {about['threads']} threads",
        "",
        f"Measured by `scripts/bench-serving` on {about['date']}: {about['cpu']} (family/model "
        f"{about['family_model']}; {', '.join(about['instructions'])}), Linux {about['kernel']}, load "
        f"average {about['load_average_at_start']:.2f} at the start.",
        "",
        f"The bundled checkpoint at 128x128, guidance 2.5, latentd in its own dtype, diffusers in f32. "
        f"Poisson arrivals, half for 4 steps "
        f"({record['seconds']['short']:.3f} s alone), half for 30 ({record['seconds']['long']:.3f} s); "
        f"load 1 is {record['capacity']:.2f} images/s, what latentd draws one at a time. "
        f"Interleaved rounds of {record['round_s']:g} s, {record['rounds']} for both latentds and "
        f"{record['peer_rounds']} for diffusers, the same clients for all, at most "
        f"{record['max_queue']} waiting. Seconds from a client's coming to its picture's last byte.",
        "",
        "| load | server | drawn | 429 | images/s | mean | p50 | p95 | 4 steps: mean | p50 | p95 "
        "| 30 steps: mean | p50 | p95 |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for load, servers in record["results"].items():
        lines += [row(load, name, r) for name, r in servers.items()]
    lines += ["", f"{record['compared']} pictures were drawn by both latentds; "
              f"{record['different']} of them differ."]
    alone, beside = record["fairness"]["alone"], record["fairness"]["beside"]
    lines += ["", f"Flood: beside {FLOOD} requests at a time of another address, which sends again what is "
              f"refused ({record['fairness']['refused']} times), a caller that asks for one picture of 30 steps "
              f"at a time waits {beside['p50']:.3f} s for it (p95 {beside['p95']:.3f}); alone {alone['p50']:.3f} s "
              f"(p95 {alone['p95']:.3f})."]
    if record["bars"]:
        lines += ["", "| load | bar | measured | |", "|---|---|---|---|"]
        for bar in record["bars"]:
            lines.append(f"| {bar['load']} | {bar['bar']} | {bar['ratio']:.3f}x | "
                         f"{'met' if bar['met'] else 'MISSED'} |")
    return "\n".join(lines) + "\n"


def measure(options, record):
    """Fills in the record's results and the number of pictures compared."""
    os.makedirs(options.work, exist_ok=True)
    os.makedirs(options.out, exist_ok=True)
    log = open(os.path.join(options.work, "bench-serving.log"), "w", encoding="utf-8")
    serve = [options.latentd, "serve", "--model", MODEL, "--listen", "127.0.0.1:0",
             "--max-queue", str(options.max_queue), "--log-level", "warning"]
    peer = [sys.executable, os.path.join(HERE, "serve_diffusers.py"), MODEL,
            "--max-queue", str(options.max_queue), "--threads", str(options.threads)]
    with log, Server(SERIAL, [*serve, "--one-at-a-time"], log, "/generate") as serial, \
            Server(OURS, serve, log, "/generate") as ours, Server(PEER, peer, log, "/") as diffusers:
        record["capacity"], record["seconds"] = capacity(serial, options.seconds / 2)
        note(f"one at a time: {record['capacity']:.2f} images/s, {record['seconds']}")
        rounds = {(load, s.name): [] for load in options.loads for s in (serial, ours, diffusers)}
        for number in range(options.rounds):
            for load in options.loads:
                clients = Clients(load * record["capacity"], options.seconds,
                                  f"{options.seed} {number} {load}")
                order = [serial, ours] if number % 2 else [ours, serial]
                order += [diffusers] if number < options.peer_rounds else []
                for server in order:
                    rounds[load, server.name].append(clients.visit(server))
                    note(f"round {number}, load {load}, {server.name}: "
                         f"{rounds[load, server.name][-1][1]:.1f} s")
                both = [rounds[load, s.name][-1][0] for s in (serial, ours)]
                compared, different = compare(*both)
                record["compared"] += compared
                record["different"] += different
        record["fairness"] = fairness(ours, FLOOD_ROUNDS)
    record["results"] = {
        str(load): {name: summary(got) for (at, name), got in rounds.items() if at == load and got}
        for load in options.loads}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latentd", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--loads", default="0.3,0.8,2",
                        type=lambda text: [float(x) for x in text.split(",")])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-rounds", type=int, default=1, help="of them also for diffusers")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-queue", type=int, default=24)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    os.makedirs(options.work, exist_ok=True)
    record = {"machine": machine(options), "rounds": options.rounds, "round_s": options.seconds,
              "peer_rounds": options.peer_rounds, "max_queue": options.max_queue, "compared": 0,
              "different": 0}
    measure(options, record)
    record["bars"] = check_bars(record["results"]) + [check_fairness(record["fairness"])]
    base = os.path.join(options.out, f"serving-{processor_slug(record['machine'])}")
    for ending, text in ((".md", report(record)), (".json", json.dumps(record, indent=2) + "\n")):
        with open(base + ending, "w", encoding="utf-8") as file:
            file.write(text)
    print(report(record))
    return 0 if record["different"] == 0 and all(bar["met"] for bar in record["bars"]) else 1


if __name__ == "__main__":
    sys.exit(main())
