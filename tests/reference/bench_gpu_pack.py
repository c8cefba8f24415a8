"""scripts/bench-gpu pack: puts the programs with their libraries, the scripts' files and
diffusers into one file, for a machine without a network."""

import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
NAME = "latentd-bench"
MARK = "BUNDLE"  # only an unpacked bundle has this file
LIMIT_MIB = 56
PROGRAMS = ("latentd", "tests/kernels/kcheck", "tests/kernels/attention_test",
            "tests/kernels/gemm_test", "tests/reference/model_tool", "tests/train/trainer_test")
# Programs that are taken from a second build, in which waits for barriers time out and report where
# they were.
WATCHED = ("tests/kernels/kcheck",)
FILES = (
    "scripts/bench-gpu",
    "share/tiny-sd/model_index.json",
    "share/tiny-sd/scheduler",
    "share/tiny-sd/text_encoder",
    "share/tiny-sd/tokenizer",
    "share/tiny-sd/unet",
    "share/tiny-sd/vae",
    "tests/train/data/train_losses.json",
    "tests/models/data/sd15_tensors.tsv",
    "tests/reference/bench_gpu.py",
    "tests/reference/bench_gpu_checks.py",
    "tests/reference/bench_gpu_pack.py",
    "tests/reference/bench_gpu_parts.py",
    "tests/reference/bench_gpu_peer.py",
    "tests/reference/bench_gpu_report.py",
    "tests/reference/bench_gpu_shapes.py",
    "tests/reference/parity_reference.py",
    "tests/reference/sd15.py",
)
# Packages that diffusers needs and that a machine with torch may lack. The other packages that it
# needs are usually installed together with torch.
WHEELS = ("diffusers==0.42.1", "importlib_metadata==10.2.0", "zipp==3.23.0")
# Libraries that every system with a driver and torch has. They are not packed: our copy would be
# found before the system's, and may be older.
SYSTEM_LIBRARIES = (r"^(ld-linux|libc\.so|libm\.so|libpthread|libdl\.so|librt\.so|libcuda\.so|"
                    r"linux-vdso|libstdc\+\+|libgcc_s)")


def libraries_of(program):
    text = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    missing = re.findall(r"(\S+) => not found", text)
    if missing:
        raise SystemExit(f"bench-gpu pack: {program} needs {', '.join(missing)}")
    found = re.findall(r"(\S+) => (/\S+)", text)
    return {name: path for name, path in found if not re.search(SYSTEM_LIBRARIES, name)}


def download_wheels(folder):
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps",
                    "--only-binary=:all:", "-d", folder, *WHEELS], check=True)


def stripped(path, folder):
    """Returns a copy of the program without symbols, or the program itself if strip is not
    installed."""
    out = os.path.join(folder, os.path.basename(path))
    if shutil.which("strip") and subprocess.run(["strip", "-o", out, path],
                                               stderr=subprocess.DEVNULL).returncode == 0:
        return out
    return path


def build(folder, programs, *settings):
    """Builds the programs and returns {program: its path}. Makes the build folder if there is
    none."""
    if not os.path.isdir(folder):
        subprocess.run(["meson", "setup", folder, ROOT, "--buildtype=release", "-Dcuda=enabled", *settings],
                       check=True)
    subprocess.run(["ninja", "-C", folder, *programs], check=True)
    return {program: os.path.join(folder, program) for program in programs}


def pack(options):
    programs = build(options.build, PROGRAMS, f"-Dgpu-archs={options.archs}")
    if not options.emulated:  # the emulator always reports where a wait hangs
        programs.update({os.path.join("watched", name): path for name, path in build(
            options.build + "-watched", WATCHED, f"-Dgpu-archs={options.archs}", "-Dgpu-watch=true").items()})
    libraries = {}
    with tempfile.TemporaryDirectory() as scratch:
        wheels = options.wheels
        if not wheels:
            wheels = os.path.join(scratch, "wheels")
            download_wheels(wheels)
        part = options.file + ".part"
        # The programs contain the same kernels. A window larger than all the programs together lets
        # xz store the kernels only once.
        preset = 0 if options.emulated else 4  # the emulator's is not carried anywhere
        filters = [{"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": 1 << 27}]
        with lzma.open(part, "wb", filters=filters) as xz, tarfile.open(fileobj=xz, mode="w") as tar:
            mark = os.path.join(scratch, MARK)
            with open(mark, "w", encoding="utf-8") as f:
                f.write(f"compute capabilities {options.archs}\n")
            tar.add(mark, os.path.join(NAME, MARK))
            for program, path in programs.items():
                libraries.update(libraries_of(path))
                tar.add(stripped(path, scratch), os.path.join(NAME, program))
            for library, path in sorted(libraries.items()):
                tar.add(os.path.realpath(path), os.path.join(NAME, "lib", library))
            for name in FILES:
                tar.add(os.path.join(ROOT, name), os.path.join(NAME, name))
            for name in sorted(os.listdir(wheels)):
                if name.endswith(".whl"):
                    tar.add(os.path.join(wheels, name), os.path.join(NAME, "wheels", name))
    size = os.path.getsize(part) / 2**20
    print(f"{options.file}: {size:.1f} MiB, {len(libraries)} libraries")
    if size > LIMIT_MIB * (4 if options.emulated else 1):
        os.remove(part)
        print(f"it is larger than the {LIMIT_MIB} MiB that can be carried, and was not kept: "
              "fewer --archs make it smaller", file=sys.stderr)
        return 1
    os.replace(part, options.file)
    return 0


def unpack(bundle, work):
    """Returns the folder of the unpacked bundle, whose name contains the bundle's digest."""
    with open(bundle, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()[:16]
    folder = os.path.join(work, f"bundle-{digest}")
    if not os.path.isdir(folder):
        part = tempfile.mkdtemp(dir=work)
        with tarfile.open(bundle) as tar:
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(part, **safe)
        os.rename(part, folder)
    return os.path.join(folder, NAME)
