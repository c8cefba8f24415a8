"""The commands and their options, on the pipeline without a model. usage: command_line.py EXECUTABLE"""
import os
import re
import subprocess
import sys
import tempfile

from daemon import check, done

executable = os.path.abspath(sys.argv[1])


def run(*args, cwd=None):
    return subprocess.run([executable, *args], capture_output=True, text=True, timeout=60, cwd=cwd)


def help_and_version():
    r = run("--help")
    check(r.returncode == 0 and "usage: latentd COMMAND" in r.stdout, r.stdout)
    commands = re.findall(r"^  (\w+)  ", r.stdout, re.M)
    check({"serve", "generate"} <= set(commands), f"{commands}")
    for command in commands:
        r = run(command, "--help")
        check(r.returncode == 0 and "usage: latentd " + command in r.stdout, f"{command}: {r.stdout}")
        check(all(len(line) <= 100 for line in r.stdout.split("\n")), f"{command}: lines fit")
    check(re.fullmatch(r"latentd \d+\.\d+\.\d+\n", run("--version").stdout), "version")
    check(run().returncode == 2, "no command")
    r = run("draw")
    check(r.returncode == 2 and "no command draw" in r.stderr, r.stderr)


def wrong_command_lines():
    rows = [
        (["serve"], "--model PATH is required"),
        (["serve", "--model"], "--model needs a value"),
        (["serve", "--model", "fake", "--port", "80"], "no option --port"),
        (["serve", "--model", "fake", "-p"], "no option -p"),
        (["serve", "--model", "fake", "--model", "fake"], "--model is given twice"),
        (["serve", "--model", "fake", "x"], "unexpected argument \"x\""),
        (["serve", "--model", "fake", "--dtype", "f64"],
         "--dtype: f64 is not allowed; auto, f32, f16 or bf16"),
        (["serve", "--model", "fake", "--device", "gpu"],
         "--device: gpu is not allowed; auto, cpu, cuda or cuda:N"),
        (["serve", "--model", "fake", "--listen", "0.0.0.0:0"], "not a loopback address"),
        (["serve", "--model", "fake", "--listen", "192.168.1.1:80"], "not a loopback address"),
        (["serve", "--model", "fake", "--listen", "[::]:0"], "not a loopback address"),
        (["serve", "--model", "fake", "--listen", "localhost"], "HOST:PORT"),
        (["serve", "--model", "fake", "--listen", "127.0.0.1:65536"], "HOST:PORT"),
        (["serve", "--model", "fake", "--listen", "127.0.0.1:-1"], "HOST:PORT"),
        (["serve", "--model", "fake", "--listen", "example.com:80"], "HOST:PORT"),
        (["generate", "--model", "fake", "-o", "x.png"], "--prompt TEXT is required"),
        (["generate", "--model", "fake", "--prompt", "a"], "nothing to write"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--steps", "0"], "--steps: 0 is not"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--steps", "3.5"], "whole number"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--seed", "-1"], "--seed: -1"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--width", "65"], "a multiple of 8"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--eta", "nan"], "a number"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--scheduler", "euler"],
         "ddpm, ddim or pndm"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--rng", "gpu"], "cpu or cuda"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--repeat", "0"], "--repeat: 0 is not"),
    ]
    for args, words in rows:
        r = run(*args)
        check(r.returncode == 2 and words in r.stderr, f"{args}: {r.returncode} {r.stderr}")
    print(f"{len(rows)} wrong command lines")


def pictures():
    with tempfile.TemporaryDirectory() as folder:
        r = run("generate", "--model", "fake", "--prompt", "a", "-o", "one.png", "--steps=3", "--seed", "4",
                cwd=folder)
        check(r.returncode == 0 and "one.png: 64x64, seed 4\n" in r.stdout, f"{r.stdout} {r.stderr}")
        check("step 3 of 3" in r.stderr and "\r" not in r.stderr, "plain progress off a terminal")
        r = run("generate", "--model", "fake", "--prompt", "a", "-o", "many.v2.png", "--num-images", "3",
                "--save-latents", "l.safetensors", cwd=folder)
        check(sorted(os.listdir(folder)) == ["l.safetensors", "many.v2-0.png", "many.v2-1.png",
                                             "many.v2-2.png", "one.png"], f"{os.listdir(folder)}")
        with open(folder + "/one.png", "rb") as f:
            check(b"Steps: 3, Sampler: PNDM" in f.read(), "the picture says how it was made")
        r = run("generate", "--model", "fake,step_ms=5", "--prompt", "a", "-o", "one.png", "--steps=4",
                "--repeat", "3", cwd=folder)
        took = re.findall(r"^(\d+\.\d{4}) s: text encoder .* \(4 calls\)", r.stdout, re.M)
        check(len(took) == 3 and all(0.02 <= float(s) < 9 for s in took), f"each turn's time: {r.stdout}")
        check(r.stdout.count("one.png") == 1, "one picture of three turns")
        r = run("generate", "--model", "fake", "--prompt", "a", "--num-images", "3", "--init-latents",
                "l.safetensors", "--save-latents", "m.safetensors", cwd=folder)
        check(r.returncode == 0, r.stderr)
        with open(folder + "/l.safetensors", "rb") as a, open(folder + "/m.safetensors", "rb") as b:
            check(a.read() == b.read(), "latents go out as they came in")
        for more, words in ((["--num-images", "2"], "[2][4][height/8][width/8]"),
                            (["--num-images", "3", "--width", "128"], "128 are asked for")):
            r = run("generate", "--model", "fake", "--prompt", "a", "-o", "x.png", "--init-latents",
                    "l.safetensors", *more, cwd=folder)
            check(r.returncode == 1 and words in r.stderr, f"{more}: {r.stderr}")
        for args, words in ((["--model", "nothing", "-o", "x.png"], "no such checkpoint"),
                            (["--model", "fake", "-o", "no/such/x.png"], "no/such"),
                            (["--model", "fake", "-o", "x.png", "--init-latents", "none"], "none")):
            r = run("generate", "--prompt", "a", *args, cwd=folder)
            check(r.returncode == 1 and words in r.stderr, f"{args}: {r.returncode} {r.stderr}")
        check(not os.path.exists(folder + "/x.png"), "a failure leaves no file")


help_and_version()
wrong_command_lines()
pictures()
done()
