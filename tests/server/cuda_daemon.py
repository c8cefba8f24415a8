"""The daemon on an emulated GPU: its entry in /info, a picture that does not fit, a device that is
lost or cannot be opened. Serving does not wait for the tuner.
usage: cuda_daemon.py EXECUTABLE MODEL_FOLDER [draw]

With `draw` it also draws a picture, which takes the emulator about a minute."""
import contextlib
import os
import subprocess
import sys
import tempfile

from daemon import Daemon, check, done, wait_until

executable, model = sys.argv[1:3]
MIB = 1 << 20
SMALL = {"prompt": "a red house", "seed": 1, "width": 64, "height": 64, "num_inference_steps": 1,
         "guidance_scale": 1}
os.environ["LATENTD_TUNER_CACHE"] = os.path.join(tempfile.mkdtemp(), "tuner.txt")


@contextlib.contextmanager
def emulated(**settings):
    """Sets CUDA_EMULATOR_ variables for processes that are started in the `with` block."""
    names = {f"CUDA_EMULATOR_{name}": str(value) for name, value in settings.items()}
    names.setdefault("CUDA_EMULATOR_CAPABILITY", "80")
    os.environ.update(names)
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def info_and_what_does_not_fit():
    with emulated(MEMORY=700 * MIB), Daemon(executable, model, patience_s=400) as d:
        device = d.get("/info").json()["device"]
        print(device)
        check(device["name"] == "Emulated sm_80", f"{device}")
        check(0 < device["weight_bytes"] < device["memory_total_bytes"] == 700 * MIB, f"{device}")
        before = device["activation_bytes"]
        # Without tiles, because in tiles the picture would fit and take the emulator many minutes.
        r = d.generate(SMALL | {"width": 2048, "height": 2048, "vae_tiling": "off"})
        check(r.status == 507 and r.error()["code"] == "out_of_memory", f"{r.status}: {r.body}")
        check("2048x2048 picture" in r.error()["message"] and "are needed" in r.error()["message"],
              r.error()["message"])
        check(d.get("/info").json()["device"]["activation_bytes"] == before,
              "a refused picture takes no GPU memory")
        check(d.get("/health/ready").status == 200,
              "the daemon stays ready after a refused picture")
        if "draw" in sys.argv:
            r = d.generate(SMALL)
            check(r.status == 200 and len(r.json()["images"]) == 1, f"{r.status}: {r.body[:300]}")
        log = d.read_log()
        check("computing on cuda:0" in log and "chosen by rule" in log, log)


def a_lost_device_is_the_end():
    """The first wait during the first request fails with the error "illegal address", which
    means that the device is lost."""
    with emulated(FAIL="cudaStreamSynchronize,2,700,sticky"), \
            Daemon(executable, model, patience_s=400) as d:
        r = d.generate(SMALL)
        check(r.status == 500 and r.error()["code"] == "device_lost", f"{r.status}: {r.body}")
        check("cudaErrorIllegalAddress" in r.error()["message"], f"{r.body}")
        status = d.process.wait(60)
        check(status == 70, f"exit status 70, not {status}")
        check("the GPU is lost to this process" in d.read_log(), d.read_log())


def a_device_that_is_lost_while_loading():
    with emulated(FAIL="cudaEventSynchronize,9,999,sticky"):
        p = subprocess.run([executable, "serve", "--model", model, "--listen", "127.0.0.1:0"],
                           capture_output=True, text=True, timeout=400)
        check(p.returncode == 70 and "cudaErrorUnknown" in p.stderr, f"{p.returncode}: {p.stderr}")


def a_gpu_that_is_full_is_a_warning():
    with emulated(MEMORY=MIB), Daemon(executable, model, patience_s=400) as d:
        check(wait_until(lambda: "warning computing on the CPU, which is far slower" in
                         d.read_log(), 60), d.read_log())
        check("cudaMalloc of the workspace: the GPU's memory is full" in d.read_log(),
              "the log says why the GPU is not used")
        check(d.get("/info").json()["device"] is None, "GET /info has no device figures on the CPU")
    with emulated(MEMORY=MIB):
        p = subprocess.run([executable, "serve", "--model", model, "--device", "cuda", "--listen",
                            "127.0.0.1:0"], capture_output=True, text=True, timeout=400)
        check(p.returncode == 1 and "memory is full" in p.stderr, f"{p.returncode}: {p.stderr}")


info_and_what_does_not_fit()
a_lost_device_is_the_end()
a_device_that_is_lost_while_loading()
a_gpu_that_is_full_is_a_warning()
done()
