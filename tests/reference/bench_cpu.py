#!/usr/bin/env python3
"""Times latentd beside diffusers and OpenVINO on this CPU, at full SD-1.5 size, in one run.

    scripts/bench-cpu [--peers latentd,diffusers,openvino] [--dtypes bf16,f32] [--rounds 5]
                      [--old BUILD_FOLDER] [--limit 300] [--skip diffusers-bf16] [--threads 2]
                      [--work DIR] [--models DIR] [--out DIR]

Every peer is a separate process that keeps running. Each round asks each peer for one UNet step
(two rows, CFG, 512x512, 77 tokens a row) and one VAE decode. The order rotates, so that other load
on the machine affects all peers alike. All use the same random weights of realistic scale. The
figures are medians of the rounds; the first call after loading is reported separately. If a first
call takes longer than --limit seconds, its process is stopped, and the figure is given as "over"
the limit. This happens with torch's bf16 on a processor without bf16 instructions, where one step
takes minutes. Peak
memory is the process's VmHWM (Linux), file mappings included.

--old also times an older build of latentd (its Meson folder) in the same rounds, and prints how
much faster the new one is.

Writes OUT/cpu-<name>-<family>-<model>.md and .json anew after every peer and every round. At the
end it prints the table, and which limits are met. If a part fails, or at Ctrl-C, everything
measured so far is kept.
"""

import argparse
import datetime
import json
import os
import platform
import re
import select
import signal
import subprocess
import sys
import time

from bench_cpu_report import ACTIONS, OLD, check_bars, figures_of, over, report

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
WORKER = os.path.join(HERE, "bench_peer.py")
PEERS = ("latentd", "diffusers", "openvino")
# Any tokenizer will do, because the weights are random.
TOKENIZER = os.path.join(ROOT, "share/tiny-sd/tokenizer")
GENERATE_LIMITS = 4  # times --limit, for loading, 2 steps, a decode


class PeerFailed(Exception):
    """A worker process ended too early, or gave a wrong answer."""


class PeerSlow(Exception):
    """A call did not end within its time limit."""


class Peer:
    """A worker process and the seconds that it has reported. Its figures can be read at any
    time."""

    def __init__(self, name, dtype, command, environment, options):
        self.name, self.dtype = name, dtype
        self.samples = {action: [] for action in ACTIONS}
        self.first, self.stopped = {}, set()
        self.command, self.environment, self.limit = command, environment, options.limit
        self.software = "latentd, an older build" if name == OLD else name
        self.precision, self.load_s, self.peak_bytes = "-", None, 0
        self.process = None
        self.log_name = f"bench-{name}-{dtype}.log"
        self.log_path = os.path.join(options.work, self.log_name)
        open(self.log_path, "w", encoding="utf-8").close()  # clears an earlier run's log

    def bring_up(self):
        """Loads, and makes the first call of every action."""
        self.load_s = self._start()
        for action in ("text", *ACTIONS):
            try:
                self.first[action] = self._call(action)
            except PeerSlow:
                self.first[action] = self.limit
                self.stopped.add(action)
                self.end(at_once=True)
                self._start()

    def _start(self):
        """Starts the worker. Returns the seconds until it has loaded."""
        begin = time.monotonic()
        with open(self.log_path, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment,
                start_new_session=True,  # so that Ctrl-C reaches only this script
            )
        try:
            loaded = self._read()
        except PeerSlow:
            raise PeerFailed(f"not loaded within {self.limit:g} s; see {self.log_name}") from None
        if self.name != OLD:
            self.software = loaded["software"]
        self.precision = loaded["precision"]
        return time.monotonic() - begin

    def end(self, at_once):
        """Ends the process if it is running."""
        if self.process:
            self._note_peak()
            if at_once:
                self.process.kill()
            try:
                self.process.communicate(timeout=self.limit)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.communicate()
        self.process = None

    def _note_peak(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            found = re.search(r"VmHWM:\s+(\d+) kB", file.read())
        if found:  # VmHWM is missing once the process has ended
            self.peak_bytes = max(self.peak_bytes, int(found.group(1)) * 1024)

    def _read(self):
        # Each call is answered by one line, so readline leaves nothing in Python's buffer, where
        # select would not see it.
        if not select.select([self.process.stdout], [], [], self.limit)[0]:
            raise PeerSlow
        line = self.process.stdout.readline()
        try:
            answer = json.loads(line)
        except ValueError:
            what = f"said {line[:80]!r}" if line else "ended early"
            raise PeerFailed(f"{what}; see {self.log_name}") from None
        self._note_peak()
        return answer

    def _call(self, action):
        try:
            self.process.stdin.write(action.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed(f"ended early; see {self.log_name}") from None
        return self._read()["seconds"]

    def measure(self, action):
        try:
            self.samples[action].append(self._call(action))
        except PeerSlow:
            raise PeerFailed(f"a {action} had not ended after {self.limit:g} s") from None

    def figures(self):
        """Returns all figures so far."""
        ready = [self.load_s, self.first.get("text"), self.first.get("step")]
        out = {
            "peer": self.name,
            "dtype": self.dtype,
            "software": self.software,
            "precision": self.precision,
            "load_s": self.load_s,
            "ready_s": None if None in ready else sum(ready),
            "text_s": self.first.get("text"),
            "peak_bytes": self.peak_bytes,
        }
        for action, samples in self.samples.items():
            out[action] = figures_of(self.first.get(action), samples, action in self.stopped)
        return out


def note(text):
    print(text, file=sys.stderr, flush=True)


class Run:
    """One run of the script: what it measured, and its two files."""

    def __init__(self, options):
        self.options = options
        self.about = machine(options)
        self.peers, self.generated, self.failures = [], [], []
        self.state = "it is being measured"
        self.base = os.path.join(options.out, f"cpu-{processor_slug(self.about)}")

    def fail(self, what):
        self.failures.append(what)
        note(f"bench-cpu: {what}")

    def record(self):
        results = [peer.figures() for peer in self.peers if peer.load_s is not None]
        ours = [g for g in self.generated if g["peer"] == "latentd"]
        bars = check_bars(results, ours, self.about["instructions"])
        return {
            "machine": self.about,
            "state": self.state,
            "rounds": self.options.rounds,
            "results": results,
            "generate": self.generated,
            "bars": [dict(zip(("bar", "measured", "met"), bar)) for bar in bars],
            "failures": self.failures,
        }

    def save(self):
        """Writes both files, so that each is complete at any time. Writes nothing before there
        is a figure: an older report is better than an empty one."""
        record = self.record()
        if not record["results"]:
            return record
        for ending, text in ((".md", report(record)), (".json", json.dumps(record, indent=2) + "\n")):
            with open(self.base + ending + ".part", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(self.base + ending + ".part", self.base + ending)
        return record


def commands(options):
    """Returns {peer: argument list without the dtype}."""
    folder = os.path.join(options.models, "folder-f16")
    threads = ["--threads", str(options.threads)]
    out = {
        "latentd": [options.tool, "--serve", "--model", folder],
        "diffusers": [sys.executable, WORKER, "diffusers", "--model", folder, *threads],
        "openvino": [sys.executable, WORKER, "openvino", "--model", options.ir, *threads],
    }
    if options.old:
        out[OLD] = [old_program(options, "tests/reference/model_tool"), *out["latentd"][1:]]
    return out


def old_program(options, name):
    return os.path.join(options.old or "", name)


def run_group(run, dtype, names):
    """Starts all peers of one dtype and measures them in rounds. A peer that fails is reported
    and not used again."""
    options = run.options
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads), PYTHONWARNINGS="ignore")
    group = []

    def attempt(peer, what, *arguments):
        """Calls `what`. Returns whether the peer can still be used."""
        try:
            what(*arguments)
            return True
        except (PeerFailed, OSError) as failure:
            run.fail(f"{peer.name} {dtype}: {failure}")
            peer.end(at_once=True)
            return False

    at_once = True
    try:
        for name in names:
            command = commands(options)[name] + ["--dtype", dtype]
            peer = Peer(name, dtype, command, environment, options)
            run.peers.append(peer)
            group.append(peer)
            if attempt(peer, peer.bring_up):
                first = f"{over('step' in peer.stopped)}{peer.first['step']:.2f}"
                note(f"{name} {dtype}: loaded in {peer.load_s:.1f} s, first step {first} s")
            run.save()
        for turn in range(options.rounds):
            start = turn % max(len(group), 1)
            for action in ACTIONS:
                for peer in group[start:] + group[:start]:
                    wanted = peer.process and action not in peer.stopped
                    if wanted and peer.first[action] <= options.slow:
                        if attempt(peer, peer.measure, action):
                            note(f"  {action} {peer.name} {dtype}: {peer.samples[action][-1]:.3f} s")
            run.save()
        at_once = False
    finally:
        for peer in group:
            peer.end(at_once)


def run_generate(run, peer, latentd, dtype):
    """Times `latentd generate` with two steps, from the start of the process to the PNG."""
    options = run.options
    folder = os.path.join(options.models, "folder-f16")
    log_name = f"bench-generate-{peer}.log"
    command = [latentd, "generate", "--model", folder, "--dtype", dtype, "--steps", "2"]
    command += ["--scheduler", "ddim", "--width", "512", "--height", "512"]
    command += ["--prompt", "a photo of a cat", "-o", os.path.join(options.work, "bench.png")]
    if not os.path.exists(os.path.join(folder, "tokenizer/vocab.json")):
        command += ["--tokenizer", options.tokenizer or TOKENIZER]
    environment = dict(os.environ, OMP_NUM_THREADS=str(options.threads))
    begin = time.monotonic()
    end = begin + GENERATE_LIMITS * options.limit
    with open(os.path.join(options.work, log_name), "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment,
                                   start_new_session=True)
    try:
        pid = 0
        while pid == 0:  # wait4 gives this child's own peak memory
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid == 0 and time.monotonic() > end:
                raise PeerFailed(f"not done after {GENERATE_LIMITS * options.limit:g} s")
            time.sleep(0 if pid else 0.02)
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()
    if process.returncode:
        raise PeerFailed(f"ended with {process.returncode}; see {log_name}")
    took = time.monotonic() - begin
    run.generated.append(
        {"peer": peer, "dtype": dtype, "seconds": took, "peak_bytes": usage.ru_maxrss * 1024}
    )
    run.save()


def processor_slug(about):
    """Returns a file name for the processor."""
    # Virtual machines call processors of several generations "AMD EPYC".
    name = f"{about['cpu']} {about['family_model']}"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def machine(options):
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        text = file.read()
    model = re.search(r"model name\s*:\s*(.*)", text).group(1).strip()
    flags = re.search(r"flags\s*:\s*(.*)", text).group(1).split()
    family = [re.search(rf"{key}\s*:\s*(\d+)", text).group(1) for key in ("cpu family", "model")]
    known = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16")
    with open("/proc/meminfo", encoding="utf-8") as file:
        memory = int(re.search(r"MemTotal:\s+(\d+)", file.read()).group(1)) * 1024
    return {
        "cpu": model,
        "family_model": "/".join(family),
        "instructions": [flag for flag in known if flag in flags],
        "threads": options.threads,
        "memory_bytes": memory,
        "kernel": platform.release(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "load_average_at_start": os.getloadavg()[0],
    }


def ensure_inputs(run, names):
    """Makes the random checkpoint and OpenVINO's files if they are missing. Returns the names of
    the peers that can run."""
    options = run.options
    folder = os.path.join(options.models, "folder-f16")
    if not os.path.exists(os.path.join(folder, "vae/config.json")):
        note("writing the random checkpoint")
        command = [sys.executable, os.path.join(HERE, "random_sd15.py"), folder]
        command += ["--layout", "folder", "--dtype", "f16"]
        if options.tokenizer:
            command += ["--tokenizer", options.tokenizer]
        subprocess.run(command, check=True)
    if "openvino" in names and not os.path.exists(os.path.join(options.ir, "vae_decoder.xml")):
        note("converting to OpenVINO's format")
        command = [sys.executable, WORKER, "prepare-openvino", "--model", folder]
        try:
            subprocess.run(command + ["--out", options.ir], check=True)
        except subprocess.CalledProcessError as failure:
            run.fail(f"openvino: the conversion ended with {failure.returncode}")
            return [name for name in names if name != "openvino"]
    return names


def measure_all(run, names):
    options = run.options
    names = ensure_inputs(run, names)
    if options.old:
        names.insert(names.index("latentd") + 1, OLD)
    dtypes = options.dtypes.split(",")
    for dtype in dtypes:
        run_group(run, dtype, [n for n in names if f"{n}-{dtype}" not in options.skip.split(",")])
    products = {"latentd": options.latentd, OLD: old_program(options, "latentd")}
    for peer, latentd in products.items():
        if peer in names and os.path.exists(latentd):
            try:
                run_generate(run, peer, latentd, dtypes[0])
            except (PeerFailed, OSError) as failure:
                run.fail(f"{peer} generate: {failure}")


def parse_options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tool", required=True, help="the built model_tool")
    parser.add_argument("--latentd", default="", help="the built latentd")
    parser.add_argument("--work", required=True, help="folder for logs and converted models")
    parser.add_argument("--models", help="folder of the random checkpoints (default: WORK/models)")
    parser.add_argument("--ir", help="folder of OpenVINO's files (default: WORK/openvino)")
    parser.add_argument(
        "--tokenizer", help="folder with vocab.json and merges.txt (default: the bundled one)"
    )
    parser.add_argument("--out", required=True, help="folder of the report")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--old", help="Meson folder of an older build, timed in the same rounds")
    parser.add_argument("--dtypes", default="bf16,f32")
    parser.add_argument("--skip", default="", help="for example diffusers-bf16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--slow", type=float, default=60, help="a first call over so many seconds is the only one"
    )
    parser.add_argument(
        "--limit", type=float, default=300, help="a call over so many seconds is stopped"
    )
    options = parser.parse_args()
    options.models = options.models or os.path.join(options.work, "models")
    options.ir = options.ir or os.path.join(options.work, "openvino")
    names = options.peers.split(",")
    if set(names) - set(PEERS) or set(options.dtypes.split(",")) - {"bf16", "f32"}:
        parser.error("--peers: latentd, diffusers, openvino; --dtypes: bf16, f32")
    if options.old and not os.access(old_program(options, "tests/reference/model_tool"), os.X_OK):
        parser.error(f"--old: {options.old} holds no tests/reference/model_tool")
    if options.old and "latentd" not in names:
        parser.error("--old is compared with the peer latentd")
    os.makedirs(options.work, exist_ok=True)
    os.makedirs(options.out, exist_ok=True)
    return options, names


def interrupted(number, frame):
    raise KeyboardInterrupt


def main():
    options, names = parse_options()
    run = Run(options)
    signal.signal(signal.SIGTERM, interrupted)
    try:
        measure_all(run, names)
        run.state = "complete" if not run.failures else "some parts failed, see below"
    except KeyboardInterrupt:
        run.state = "it was interrupted"
    except Exception as failure:
        run.state = f"it failed: {failure}"
        raise
    finally:
        record = run.save()
        print(report(record))
        note(f"bench-cpu: {run.state}; {run.base}.md; the logs are in {options.work}")
    if run.state == "it was interrupted":
        return 130
    return 0 if all(bar["met"] for bar in record["bars"]) and not run.failures else 1


if __name__ == "__main__":
    sys.exit(main())
