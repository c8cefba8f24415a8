"""The commands and their options, run on a fake pipeline without a model. usage: command_line.py
EXECUTABLE MODEL"""
import os
import pty
import re
import stat
import subprocess
import sys
import tempfile
import threading

from daemon import check, done, wait_until

executable = os.path.abspath(sys.argv[1])
MODEL = os.path.abspath(sys.argv[2])
JOBS = ["--state-dir", "state", "--dataset-root", "data"]


def run(*args, cwd=None, **more):
    more = {"capture_output": True, "text": True, **more}
    return subprocess.run([executable, *args], timeout=60, cwd=cwd, **more)


def draw(*args, **more):
    return run("generate", "--model", "fake", *args, **more)


def is_png(data):
    """Whether the first and last bytes are those of a whole file (PNG, sections 5.2 and 11.2.4)."""
    return data.startswith(b"\x89PNG\r\n\x1a\n") and data.endswith(b"IEND\xaeB`\x82")


def help_and_version():
    r = run("--help")
    check(r.returncode == 0 and "usage: latentd COMMAND" in r.stdout, r.stdout)
    commands = re.findall(r"^  (\w+)  ", r.stdout, re.M)
    check({"serve", "generate", "inspect"} <= set(commands), f"{commands}")
    for command in commands:
        r = run(command, "--help")
        check(r.returncode == 0 and "usage: latentd " + command in r.stdout, f"{command}: {r.stdout}")
        check(all(len(line) <= 100 for line in r.stdout.split("\n")),
              f"{command}: no line of its help is over 100 columns")
        check(run("help", command).stdout == r.stdout, f"help {command}")
    check(re.fullmatch(r"latentd \d+\.\d+\.\d+\n", run("--version").stdout), "version")
    check(run("help").stdout == run("--help").stdout, "help")
    r = run("help", "draw")
    check(r.returncode == 2 and "no command draw" in r.stderr, r.stderr)
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
        (["serve", "--model", "fake", "--lora-memory", "9"], "--lora-memory has no effect without --lora-dir"),
        (["serve", "--model", "fake", "--merge-loras"], "--merge-loras has no effect without --lora-dir"),
        (["serve", "--model", "fake", "--training-share", "0.5", "--state-dir", "s"],
         "--training-share has no effect without --dataset-root"),
        (["serve", "--model", "fake", "--results-max-age", "9"], "--results-max-age has no effect without --state-dir"),
        (["serve", "--model", "fake", *JOBS, "--training-share", "1"],
         "--training-share: 1 is not allowed; a number from 0 to 0.9"),
        (["serve", "--model", "fake", *JOBS, "--training-share", "-0.1"], "a number from 0 to 0.9"),
        (["serve", "--model", "fake", *JOBS, "--training-share", "nan"], "--training-share: nan is not allowed; a number"),
        (["serve", "--model", "fake", "--cache-max-bytes", "-1"], "--cache-max-bytes: -1 is not allowed; an integer from"),
        (["serve", "--model", "fake", "--cache-max-bytes", "1e9"], "--cache-max-bytes: 1e9 is not allowed"),
        *((["serve", "--model", "fake", "--public-url", url], f"--public-url: {url} is not allowed; http:// or https://")
          for url in ("sd.example", "ftp://sd.example", "https://", "https:///sd", "https://sd.example/",
                      "https://sd.example/?a", "https://sd.example/a b", "https://sd.example/a/")),
        (["generate", "--model", "fake", "-o", "x.png"], "--prompt-file FILE and --prompt-embeds FILE is required"),
        (["generate", "--model", "fake", "-o", "x.png", "--prompt", "a", "--prompt-file", "b"],
         "one of --prompt TEXT, --prompt-file FILE"),
        (["generate", "--model", "nothing", "--prompt", "a", "-o", "-", "--num-images", "2"],
         "-o: - is not allowed; a file's name for 2 pictures"),
        (["generate", "--model", "fake", "--prompt", "a"], "nothing to write"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--steps", "0"], "--steps: 0 is not"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--steps", "3.5"], "an integer"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--seed", "-1"], "--seed: -1"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--width", "65"], "a multiple of 8"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--eta", "nan"], "a number"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--scheduler", "nonesuch"],
         "--scheduler: nonesuch is not allowed; ddpm, ddim"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--timestep-spacing", "log"],
         "--timestep-spacing: log is not allowed; leading, trailing, linspace or sgm_uniform"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--eta=1.5"],
         "--eta: 1.5 is not allowed; a number from 0 to 1"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--steps-offset", "0.5"],
         "--steps-offset: 0.5 is not allowed; an integer from 0 to"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--set-alpha-to-one", "yes"],
         "--set-alpha-to-one: yes is not allowed; true or false"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--rng", "gpu"], "cpu or cuda"),
        (["generate", "--model", "fake", "--prompt", "a", "-o", "x", "--repeat", "0"], "--repeat: 0 is not"),
    ]
    for args, words in rows:
        r = run(*args)
        check(r.returncode == 2 and words in r.stderr, f"{args}: {r.returncode} {r.stderr}")
    print(f"{len(rows)} wrong command lines")


def names_that_are_taken():
    """A served name must differ from the names of checkpoints and adapters."""
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(folder + "/models/anime/v3/unet")
        os.mkdir(folder + "/loras")
        for file in ("loras/snow.safetensors", "models/old.safetensors", "models/anime/v3/unet/config.json",
                     "models/anime/v3/unet/weights.safetensors"):
            open(f"{folder}/{file}", "w").close()
        for names, words in ((["a:b"], "a:b is not allowed; a name of 1 to 255 ASCII characters without a colon"),
                             ([""], "a name of 1 to 255"), (["x" * 256], "a name of 1 to 255"), ([" x"], "a name of 1"),
                             (["\t"], "a name of 1 to 255"), (["\u00e9"], "a name of 1 to 255"),
                             (["sd15"], "sd15 is not allowed; a name that nothing else has: the checkpoint has this name"),
                             (["fake"], "the checkpoint has this name"), (["dall-e-2", "dall-e-2"], "given twice"),
                             (["dall-e-2", "snow"], "an adapter in --lora-dir has this name"),
                             (["old"], "a checkpoint in --model-root has this name"),
                             (["anime/v3"], "a checkpoint in --model-root has this name")):
            r = run("serve", "--model", "fake", "--listen", "127.0.0.1:0", "--lora-dir", folder + "/loras",
                    "--model-root", folder + "/models", *(f"--served-model-name={name}" for name in names))
            check(r.returncode == 2 and "--served-model-name: " in r.stderr and words in r.stderr,
                  f"{names}: {r.returncode} {r.stderr}")


def pictures():
    with tempfile.TemporaryDirectory() as folder:
        r = run("generate", "--model", "fake", "--prompt", "a", "-o", "one.png", "--steps=3", "--seed", "4",
                cwd=folder)
        check(r.returncode == 0 and "one.png: 64x64, seed 4\n" in r.stdout, f"{r.stdout} {r.stderr}")
        check(r.stderr == "", f"no progress off a terminal: {r.stderr}")
        r = run("generate", "--model", "fake", "--prompt", "a", "-o", "many.v2.png", "--num-images", "3",
                "--save-latents", "l.safetensors", cwd=folder)
        check(sorted(os.listdir(folder)) == ["l.safetensors", "many.v2-0.png", "many.v2-1.png",
                                             "many.v2-2.png", "one.png"], f"{os.listdir(folder)}")
        with open(folder + "/one.png", "rb") as f:
            check(b"Steps: 3, Sampler: PNDM" in f.read(), "the picture's texts hold its parameters")
        r = run("generate", "--model", "fake", "--prompt", "a", "-o", "ddim.png", "--scheduler", "ddim",
                "--eta", "0.5", "--timestep-spacing=trailing", "--set-alpha-to-one", "true",
                "--steps-offset", "2", cwd=folder)
        with open(folder + "/ddim.png", "rb") as f:
            png = f.read()
        check(all(words in png for words in (b'"eta":0.5', b'"timestep_spacing":"trailing"', b'"steps_offset":2',
                                             b'"set_alpha_to_one":true')),
              "the scheduler flags set the API's options")
        r = run("generate", "--model", "fake", "--prompt", "a", "-o", "x.png", "--eta", "0.5", cwd=folder)
        check(r.returncode == 1 and "scheduler.eta: 0.5 is not allowed; pndm has no such option" in r.stderr,
              r.stderr)
        r = run("generate", "--model", "fake,step_ms=5", "--prompt", "a", "-o", "one.png", "--steps=4",
                "--repeat", "3", cwd=folder)
        took = re.findall(r"^(\d+\.\d{4}) s: text encoder .* \(5 calls\)", r.stdout, re.M)
        check(len(took) == 3 and all(0.02 <= float(s) < 9 for s in took),
              f"each repeat's time is printed: {r.stdout}")
        check(r.stdout.count("one.png") == 1, "three repeats write one picture")
        r = run("generate", "--model", "fake", "--prompt", "a", "--num-images", "3", "--init-latents",
                "l.safetensors", "--save-latents", "m.safetensors", cwd=folder)
        check(r.returncode == 0, r.stderr)
        with open(folder + "/l.safetensors", "rb") as a, open(folder + "/m.safetensors", "rb") as b:
            check(a.read() == b.read(), "saved latents equal the loaded ones")
        for more, words in ((["--num-images", "2"], "[3][4][8][8] is not allowed; [2][4][8][8]:"),
                            (["--num-images", "3", "--width", "128"], "[3][4][8][16]: this model's for 3 of 128x64 pixels")):
            r = run("generate", "--model", "fake", "--prompt", "a", "-o", "x.png", "--init-latents",
                    "l.safetensors", *more, cwd=folder)
            check(r.returncode == 1 and words in r.stderr, f"{more}: {r.stderr}")
        for args, words in ((["--model", "nothing", "-o", "x.png"], "no such checkpoint"),
                            (["--model", "fake", "-o", "x.png", "--init-latents", "none"], "none")):
            r = run("generate", "--prompt", "a", *args, cwd=folder)
            check(r.returncode == 1 and words in r.stderr, f"{args}: {r.returncode} {r.stderr}")
        check(not os.path.exists(folder + "/x.png"), "a failed command leaves no file")


def places():
    """Output files follow the rules of a shell's ">": pipes and devices are written through, and
    an existing file keeps its mode."""
    with tempfile.TemporaryDirectory() as folder:
        r = draw("--prompt", "a", "--seed", "4", "-o", "-", cwd=folder, text=False)
        check(r.returncode == 0 and is_png(r.stdout),
              f"standard output holds only the picture: {r.stdout[:60]} {r.stderr}")
        check(b"-: 64x64, seed" in r.stderr, "messages go to standard error")
        check(os.listdir(folder) == [], f"no file named - is made: {os.listdir(folder)}")
        one = r.stdout
        os.mkfifo(folder + "/fifo")
        got = []
        reader = threading.Thread(target=lambda: got.append(open(folder + "/fifo", "rb").read()), daemon=True)
        reader.start()
        r = draw("--prompt", "a", "--seed", "4", "-o", "fifo", "--save-latents", "-", cwd=folder, text=False)
        reader.join(20)
        check(r.returncode == 0 and got and len(got[0]) == len(one) and is_png(got[0]),
              f"the picture is written into a FIFO: {r.stderr}")
        check(r.stdout[8:19] == b'{"latents":', f"latents on standard output: {r.stdout[:30]}")
        check(stat.S_ISFIFO(os.lstat(folder + "/fifo").st_mode), "the FIFO stays a FIFO")
        os.remove(folder + "/fifo")
        with open(folder + "/private.png", "w", encoding="utf-8"):
            os.chmod(folder + "/private.png", 0o600)
        os.symlink("private.png", folder + "/link.png")
        r = draw("--prompt", "a", "-o", "link.png", cwd=folder)
        check(r.returncode == 0 and os.path.islink(folder + "/link.png"),
              f"a picture is written through a symbolic link, and the link stays: {r.stderr}")
        with open(folder + "/private.png", "rb") as f:
            check(is_png(f.read()), "the link's target is the picture")
        mode = os.stat(folder + "/private.png").st_mode & 0o777
        check(mode == 0o600, f"the target keeps its mode: {mode:o}")
        check(len(os.listdir(folder)) == 2, f"no other file is made: {os.listdir(folder)}")


def places_that_cannot_be():
    """An unusable output file is refused before the model is loaded. The model named here does
    not exist, but the error is about the output file only."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/dir")
        os.mkdir(folder + "/many-2.png")
        os.symlink(".", folder + "/here")
        rows = [(["-o", "no/such/x.png"], 1, "cannot write no/such/x.png: No such file or directory"),
                (["-o", "dir"], 1, "cannot write dir: Is a directory"),
                (["-o", "many.png", "--num-images", "3"], 1, "cannot write many-2.png: Is a directory"),
                (["-o", "x.png", "--save-latents", "no/l"], 1, "cannot write no/l: No such file"),
                (["-o", "x", "--save-latents", "x"], 2, "--save-latents: x is not allowed; another place"),
                (["-o", "x", "--save-latents", "here/./x"], 2, "another place than the picture's, x"),
                (["-o", "-", "--save-latents", "/dev/stdout"], 2, "another place"),
                (["-o", "x.png", "--save-latents", "x-1.png", "--num-images", "2"], 2, "x-1.png"),
                (["-o", "x" * 300], 1, "File name too long")]
        for args, status, words in rows:
            r = run("generate", "--model", "nothing", "--prompt", "a", *args, cwd=folder)
            check(r.returncode == status and words in r.stderr, f"{args}: {r.returncode} {r.stderr}")
        check(sorted(os.listdir(folder)) == ["dir", "here", "many-2.png"], f"{os.listdir(folder)}")
        r = draw("--prompt", "a", "-o", "l.png", "--save-latents", "l", cwd=folder)
        check(r.returncode == 0, r.stderr)
        os.link(folder + "/l", folder + "/m")
        r = draw("--prompt", "a", "-o", "l", "--save-latents", "m", cwd=folder)
        check(r.returncode == 2 and "another place" in r.stderr,
              f"the same file under two names is refused as both outputs: {r.stderr}")
    print(f"{len(rows) + 1} places that cannot be")


def prompts():
    """The prompt is used unchanged, whether it comes from an argument, a file or standard input."""
    def infotext(*args, **more):
        r = draw("-o", "-", "-q", *args, text=False, **more)
        cut = b"warning: prompt: only the first 75 tokens were used"  # printed if the prompt is long
        check(r.returncode == 0 and (not r.stderr or r.stderr.startswith(cut)), f"{args}: {r.stderr[:200]}")
        found = re.search(rb"parameters\0+([^\0]*)\nSteps: ", r.stdout)
        return found and found[1]

    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/prompt.txt"
        for text, want in ((b"a boat", b"a boat"), (b"a boat\n", b"a boat"), (b"a boat\r\n", b"a boat"),
                           (b"a\nboat\n\n", b"a\nboat\n"), (b"", b""), (b"b" * 16000, b"b" * 16000)):
            with open(path, "wb") as f:
                f.write(text)
            for got in (infotext("--prompt", "-", input=text), infotext("--prompt-file", path),
                        infotext("--prompt-file", "/dev/stdin", input=text)):
                check(got == want, f"{text[:40]} became {got and got[:40]}")
        for text, words in ((b"x" * 20000, "standard input has more than 16384 bytes"),
                            (b"a\0b", "zero byte")):
            r = draw("--prompt", "-", "-o", "-", input=text, text=False)
            check(r.returncode != 0 and words in r.stderr.decode(), f"{r.stderr}")
        for option in ("--prompt-file", "--negative-prompt"):
            with open(path, "wb") as f:
                f.write(b"caf\xe9")
            more = [path] if option == "--prompt-file" else [b"caf\xe9", "--prompt", "a", "--guidance-scale", "1"]
            r = draw(option, *more, "-o", "-", text=False)
            param = b"prompt" if option == "--prompt-file" else b"negative_prompt"
            check(r.returncode != 0 and b" " + param + b": 0xe9 at byte 3 is not allowed; text in UTF-8" in r.stderr,
                  f"Latin-1: {r.stderr}")
        for name in ("none", "."):
            r = draw("--prompt-file", name, "-o", "x.png", cwd=folder)
            check(r.returncode == 1 and name in r.stderr, f"{name}: {r.stderr}")


def on_a_terminal(*args):
    """Runs the program on a pseudo-terminal. Returns its exit status and what the terminal
    showed."""
    main, side = pty.openpty()
    with subprocess.Popen([executable, *args], stdin=side, stdout=side, stderr=side) as p:
        os.close(side)
        shown = b""
        try:
            while piece := os.read(main, 4096):
                shown += piece
        except OSError:  # EIO: the program closed its side
            pass
        os.close(main)
        return p.wait(60), shown.decode()


def quiet():
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/x.png"
        request = ["generate", "--model", "fake", "--prompt", "warn:careful", "-o", path, "--steps", "3"]
        r = run(*request, "--quiet")
        check((r.returncode, r.stdout, r.stderr) == (0, "", "warning: careful\n"), f"{r}")
        status, shown = on_a_terminal(*request)
        check(status == 0 and "\r[" in shown and "4/4" in shown,
              f"a terminal gets a progress bar: {shown!r}")
        status, shown = on_a_terminal(*request, "-q")
        check((status, shown) == (0, "warning: careful\r\n"), f"{shown!r}")
        status, shown = on_a_terminal(*request[:-4], "-o", "-")
        check(status == 2 and "standard output is a terminal" in shown, f"{shown!r}")


def lost_output():
    """Output that cannot be printed is a failure, as it is for cat and other tools."""
    rows = [["--help"], ["help"], ["--version"], ["inspect", MODEL], ["generate", "--help"],
            ["tune", "--model", "fake"], ["tune", "--model", "fake", "--json"],
            ["generate", "--model", "fake", "--prompt", "a", "-o", "x.png"],
            ["generate", "--model", "fake", "--prompt", "a", "-o", "-"]]
    with open("/dev/full", "wb") as full, tempfile.TemporaryDirectory() as folder:
        more = {"cwd": folder, "capture_output": False, "stderr": subprocess.PIPE,
                "env": dict(os.environ, LATENTD_TUNER_CACHE=folder + "/tuned")}
        for args in rows:
            r = run(*args, stdout=full, **more)
            check(r.returncode == 1 and "No space left" in r.stderr, f"{args}: {r.returncode} {r.stderr}")
            r = run(*args, preexec_fn=lambda: os.close(1), **more)
            check(r.returncode == 1 and "standard output" in r.stderr, f"{args}: {r.returncode} {r.stderr}")
        # Try every length around the buffer's size. If the buffer was flushed just before the end,
        # the final flush has nothing to write and cannot report the error.
        lora = MODEL + "/loras/snow.safetensors"
        size = len(run("inspect", lora).stdout)
        for length in range(4090, 4104):
            r = run("inspect", "/" * (length - size) + lora, stdout=full, **more)
            check(r.returncode == 1 and "No space left" in r.stderr, f"{length} bytes: {r.returncode} {r.stderr}")
    r = draw("--prompt", "-", "-o", "-", preexec_fn=lambda: os.close(0))
    check(r.returncode == 1 and "cannot read standard input" in r.stderr, r.stderr)
    print(f"{len(rows)} commands without an output")


def a_daemon_needs_no_output():
    with tempfile.TemporaryFile() as log:
        with subprocess.Popen([executable, "serve", "--model", "fake", "--listen", "127.0.0.1:0"],
                              stderr=log, preexec_fn=lambda: (os.close(0), os.close(1))) as p:
            check(wait_until(lambda: b" ready" in os.pread(log.fileno(), 9999, 0)),
                  "the daemon becomes ready")
            p.terminate()
            check(p.wait(60) == 0, f"status {p.returncode}")


help_and_version()
wrong_command_lines()
names_that_are_taken()
pictures()
places()
places_that_cannot_be()
prompts()
quiet()
lost_output()
a_daemon_needs_no_output()
done()
