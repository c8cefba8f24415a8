"""scripts/bench-gpu: checks and times latentd on the NVIDIA GPU of this machine.

    scripts/bench-gpu pack FILE.tar.xz [--archs 90a]   on a machine with nvcc: build and pack
    scripts/bench-gpu [run] [--bundle FILE.tar.xz] [--parts a,b,... | --resume] [--minutes 9]
                      [--out FOLDER] [--work FOLDER] [--sdcpp PATH] [--operations a,b,...] [--compile-mode MODE]
    scripts/bench-gpu --list

A run needs a GPU with its driver and python3 with torch, and nothing else of this project: the
bundle holds the programs with their libraries, the scripts and diffusers. An unpacked bundle
contains this script too, as latentd-bench/scripts/bench-gpu. Without --bundle, the programs in the
folder --build are used (default: build-gpu). No network is used.

The most important parts run first, each with its own time limit. When the minutes are over, no
further part is started, and the report lists the missing ones. Every wait has a limit: a program
that hangs uses up only its own time. A program that does not end even when it is killed (stuck in
the driver) is abandoned and reported. Each part's result is written at once to gpu-NAME.md and
.json in --out. The programs' output goes to gpu-NAME-logs.tar.xz, with clocks and power. The work
folder keeps the random model, the tuner's choices, compiled code, the logs and the results. A
second call with --resume therefore runs only the parts that the first had no time for or that were
cut off, and adds them to the first call's report.

--emulated runs everything on a build with -Dcuda=emulated and the bundled checkpoint, to test this
script. The figures mean nothing then.
"""

import argparse
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

import bench_gpu_pack
import bench_gpu_report

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


END_S = 5  # longest wait for a killed process


def kill_group(process):
    """Kills the process and all its descendants, such as a tuner's or a sanitizer's children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Bench:
    """State shared by all parts: the programs, the model, the clock and the results so far."""

    def __init__(self, options):
        self.options = options
        self.began = time.monotonic()
        self.work = make_work_folder(options.work)
        bundle = bench_gpu_pack.unpack(options.bundle, self.work) if options.bundle else None
        if not bundle and os.path.exists(os.path.join(ROOT, bench_gpu_pack.MARK)):
            bundle = ROOT
        self.folder = bundle or options.build
        # The bundle's libraries are only for our own programs: torch and the driver's tools have
        # libraries of their own.
        self.libraries = os.path.join(bundle, "lib") if bundle else ""
        self.wheels = options.wheels or os.path.join(self.folder, "wheels")
        self.environment = dict(os.environ, HF_HUB_OFFLINE="1", OMP_WAIT_POLICY="passive",
                                TORCHINDUCTOR_CACHE_DIR=os.path.join(self.work, "inductor"))
        self.environment.setdefault("LATENTD_TUNER_CACHE", os.path.join(self.work, "tuner.txt"))
        self.children, self.stuck = set(), []
        self.lock = threading.Lock()
        self.model_writer = None
        self.logs = os.path.join(self.work, "logs")
        os.makedirs(self.logs, exist_ok=True)
        self.log_count = len(os.listdir(self.logs))
        self.part, self.closed = "start", False
        self.patience = options.patience or (20 if options.emulated else 1)

    def left(self):
        return self.options.minutes * 60 - (time.monotonic() - self.began)

    def program(self, name):
        return os.path.join(self.folder, name)

    def environment_of(self, command):
        """Returns a command's environment. Our programs find the bundle's libraries through
        LD_LIBRARY_PATH. The folders that LD_LIBRARY_PATH already names come first, because
        the driver's libraries may be there."""
        environment = dict(self.environment, LATENTD_BENCH_LIBRARIES=self.libraries)
        if any(word.startswith(self.folder + os.sep) for word in command):
            paths = os.environ.get("LD_LIBRARY_PATH"), self.libraries
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
        return environment

    def start(self, command, environment=None, **streams):
        """Starts a process in its own process group. When this script ends, the process is
        killed."""
        command = [str(word) for word in command]
        process = subprocess.Popen(command, env=dict(self.environment_of(command), **environment or {}), cwd=ROOT,
                                   start_new_session=True, stdin=subprocess.DEVNULL, **streams)
        with self.lock:
            self.children.add(process)
        return process

    def stop(self, process):
        """Kills the process. Returns False if it does not end even then, for example because it
        hangs in the driver."""
        kill_group(process)
        ended = True
        try:
            process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            ended = False
        with self.lock:
            self.children.discard(process)
            if not ended:
                self.stuck.append(f"{self.part}: process {process.pid}, {' '.join(process.args)[:200]}")
        return ended

    def log_path(self):
        with self.lock:
            self.log_count += 1
            return os.path.join(self.logs, f"{self.log_count:04d}-{self.part}")

    def run(self, *command, limit, silence=None, environment=None):
        """Runs a program. Returns (exit status, standard output, standard error). The status is
        124 if it was cut short: after `limit` seconds, when the script's time is over, or
        after `silence` seconds without output. The output up to then is returned, and all
        output is kept in the logs."""
        limit = max(1, min(limit * self.patience, self.left()))
        silence = silence * self.patience if silence else limit
        if self.closed:
            return 124, "", "bench-gpu is ending"
        path = self.log_path()
        with open(path + ".out", "wb") as out, open(path + ".err", "wb") as error:
            try:
                process = self.start(command, environment, stdout=out, stderr=error)
            except OSError as e:
                return 127, "", f"{command[0]}: {e.strerror}"
            status, word = 124, ""
            try:
                status, word = wait_for(process, limit, silence, (path + ".out", path + ".err"))
            finally:
                if not self.stop(process):
                    word += f"; it does not end when it is killed, and was left after {END_S} s"
        texts = []
        for name in (".out", ".err"):
            with open(path + name, encoding="utf-8", errors="replace") as f:
                texts.append(f.read())
        with open(path + ".err", "a", encoding="utf-8") as f:
            f.write(f"\n{' '.join(map(str, command))}\nstatus {status}{word}\n")
        return status, texts[0], texts[1] + ("\n" + word if word else "")

    def close(self):
        self.closed = True
        for process in list(self.children):
            self.stop(process)


def wait_for(process, limit, silence, paths):
    """Returns (status, "") once the process has ended, or (124, the reason) if it is still
    running after `limit` seconds, or if the files at `paths` have not grown for `silence`
    seconds."""
    begun = heard = time.monotonic()
    size = 0
    while True:
        try:
            return process.wait(timeout=0.1), ""
        except subprocess.TimeoutExpired:
            pass
        now, grown = time.monotonic(), sum(os.path.getsize(path) for path in paths)
        heard, size = (now, grown) if grown != size else (heard, size)
        if now - begun > limit:
            return 124, f"cut short after {limit:.0f} s"
        if now - heard > silence:
            return 124, f"cut short: it said nothing for {silence:.0f} s"


def start_sampling(bench):
    """Starts to log clocks, power and temperature while the parts run. Returns None without
    nvidia-smi."""
    log = open(os.path.join(bench.logs, f"clocks-{int(time.time())}.csv"), "wb")
    try:
        return bench.start(
            ["nvidia-smi", "--query-gpu=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu",
             "--format=csv", "-lms", "200"], stdout=log, stderr=subprocess.DEVNULL)
    except OSError:
        return None
    finally:
        log.close()


def pack_logs(bench, path):
    """Packs the logs of all calls, next to the report."""
    part = path + ".part"
    with tarfile.open(part, "w:xz", preset=1) as tar:
        tar.add(bench.logs, "logs")
    os.replace(part, path)


def make_work_folder(path):
    path = path or os.path.join(tempfile.gettempdir(), f"latentd-bench-{os.getuid()}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    if os.stat(path).st_uid != os.getuid():
        raise SystemExit(f"bench-gpu: {path} belongs to somebody else; give another --work")
    return os.path.abspath(path)


def run_part(bench, name):
    import bench_gpu_parts

    begun = time.monotonic()
    bench.part, stuck = name, len(bench.stuck)
    if bench.left() < 5:
        return {"not_run": "no time was left"}
    try:
        part = bench_gpu_parts.PARTS[name](bench)
    except Exception as e:  # a failed part must not end the others
        part = {"failed": f"{type(e).__name__}: {e}"}
    if len(bench.stuck) > stuck:
        part["stuck"] = bench.stuck[stuck:]
        part.setdefault("failed", "left behind: " + "; ".join(part["stuck"]))
    return dict(part, seconds=round(time.monotonic() - begun, 1))


def run(options):
    import bench_gpu_parts

    unknown = [name for name in options.parts if name not in bench_gpu_parts.PARTS]
    if unknown:
        raise SystemExit(f"bench-gpu: no part {', '.join(unknown)}; there are "
                         f"{', '.join(bench_gpu_parts.PARTS)}")
    bench = Bench(options)

    def end(*_):
        bench.close()
        sys.exit(143)

    signal.signal(signal.SIGTERM, end)
    report = bench_gpu_report.Report(bench.work, options)
    failed, path = False, None
    report.begin()
    start_sampling(bench)
    try:
        for name in bench_gpu_parts.PARTS:
            if name not in options.parts and (name != "device" or report.has("device")):
                continue
            if options.resume and report.has(name) and name != "device":
                continue
            report.now(name)
            part = run_part(bench, name)
            failed = failed or "failed" in part or "wrong" in part
            path = report.add(name, part, time.monotonic() - bench.began)
            word = next((f"{key.replace('_', ' ')}: {part[key]}" for key in
                         ("failed", "wrong", "not_run", "skipped") if key in part), "done")
            word = " ".join(word.split())[:600]
            print(f"{name}: {part.get('seconds', 0)} s, {word}", flush=True)
            report.now(None)
        skipped = [name for name in bench_gpu_parts.PARTS if "not_run" in report.parts.get(name, {})]
        print(f"{report.text()}\n{path}.md and .json, {time.monotonic() - bench.began:.1f} s in all")
        if skipped:
            print(f"skipped for want of time: {', '.join(skipped)}; --resume runs them")
        if bench.stuck:
            print("left behind: " + "; ".join(bench.stuck))
    finally:
        bench.close()
        if path:
            pack_logs(bench, path + "-logs.tar.xz")
    return 1 if failed else 0


def main():
    import bench_gpu_parts

    parser = argparse.ArgumentParser(prog="bench-gpu", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=("run", "pack"), default="run")
    parser.add_argument("file", nargs="?", help="pack: the bundle to write")
    parser.add_argument("--bundle", help="run: what pack wrote")
    parser.add_argument("--build", default=os.path.join(ROOT, "build-gpu"))
    parser.add_argument("--archs", default="90a", help="pack: compute capabilities [90a]")
    parser.add_argument("--parts", default=",".join(bench_gpu_parts.PARTS),
                        help="some of: " + ", ".join(bench_gpu_parts.PARTS))
    parser.add_argument("--resume", action="store_true",
                        help="only the parts that no earlier call in the work folder finished")
    parser.add_argument("--minutes", type=float, default=8.8)
    parser.add_argument("--out", default=os.path.join(ROOT, "docs/benchmarks"))
    parser.add_argument("--work", help="what is kept between calls [/tmp/latentd-bench-UID]")
    parser.add_argument("--wheels", help="a folder with diffusers' wheel and what it needs")
    parser.add_argument("--sdcpp", help="stable-diffusion.cpp: its program, or its source folder")
    parser.add_argument("--emulated", action="store_true", help="walk through without a GPU")
    parser.add_argument("--operations", help="smoke and kcheck: these alone, as a,b,...")
    parser.add_argument("--components", help="tuned: these alone, of text,unet,vae-decode")
    parser.add_argument("--compile-mode", default="max-autotune", help="compiled: of torch.compile [max-autotune]")
    parser.add_argument("--patience", type=float, help="a factor of all limits [1; 20 with --emulated]")
    parser.add_argument("--list", action="store_true", help="the parts, and end")
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    options.components = options.components.split(",") if options.components else None
    options.operations = options.operations.split(",") if options.operations else None
    options.build = os.path.abspath(options.build)
    if options.list:
        for name, part in bench_gpu_parts.PARTS.items():
            print(f"{name:10} {part.__doc__.splitlines()[0]}")
        return 0
    if options.action == "pack":
        if not options.file:
            parser.error("pack needs the file to write")
        return bench_gpu_pack.pack(options)
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
