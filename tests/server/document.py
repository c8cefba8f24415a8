"""Runs the examples of a Markdown file unchanged and in order, in a separate folder that has
`share/tiny-sd`, `share/pictures` and `build/latentd` like the source tree. `latentd serve` starts
the daemon, and `localhost:8188` is replaced by its address. A test takes each block by its first
words, so a new block fails until a test covers it:

    with Document(executable, model, "docs/x.md") as page:
        said = page.run("curl -s localhost:8188/info")
        page.leave("nvidia-smi", "needs a GPU")

Standard library only."""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from daemon import Daemon, check

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
SERVE = re.compile(r"(?:build/)?latentd serve ")


def blocks(text):
    """Returns [(line number, language, text)] of all fenced blocks."""
    found, begin = [], None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith("```"):
            continue
        if begin is None:
            begin, language = number, line[3:].strip()
        else:
            found.append((begin + 1, language, "\n".join(text.split("\n")[begin:number - 1])))
            begin = None
    return found


def commands(block):
    """Returns the block's commands, each with all of its lines."""
    found, lines = [], []
    for line in block.split("\n"):
        lines.append(line)
        text = "\n".join(lines)
        if line.endswith("\\"):
            continue
        shell = subprocess.run(["bash", "-n", "-c", text], capture_output=True)
        if shell.returncode == 0 and not shell.stderr:  # bash warns of an open here-document
            found += [text] if text.strip() else []
            lines = []
    return found + ["\n".join(lines)] if lines else found


def json_values(text):
    """Returns all values of a text that consists only of JSON values; [] for any other text."""
    found, at, decoder = [], 0, json.JSONDecoder()
    text = text.strip()
    while at < len(text):
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError:
            return []
        found.append(value)
        at = end + len(text[end:]) - len(text[end:].lstrip())
    return found


class Here(Daemon):
    """A daemon with a given command line."""

    def __init__(self, arguments, folder):
        super().__init__(arguments[0])
        self.command, self.starts_in = arguments, folder


class Document:
    def __init__(self, executable, model, path):
        self.executable, self.model = os.path.abspath(executable), os.path.abspath(model)
        self.path = path
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            self.text = f.read()
        self.left = blocks(self.text)
        self.daemon = None
        self.job = "ID"   # the job that was ordered last
        self.words = {}   # replacements for words of the document
        self.counted = 0

    def __enter__(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = self.scratch.name
        for folder in ("share", "build"):
            os.mkdir(self.at(folder))
        os.symlink(self.model, self.at("share/tiny-sd"))
        shutil.copytree(os.path.join(ROOT, "share/pictures"), self.at("share/pictures"))
        os.symlink(self.executable, self.at("build/latentd"))
        return self

    def __exit__(self, kind, value, trace):
        self.stop(kind, value, trace)
        self.scratch.cleanup()
        if not kind:
            check(not self.left, f"{self.path}: blocks that no test has: {[b[::2] for b in self.left]}")
            print(f"{self.path}: {self.counted} commands did what they say", flush=True)

    def at(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        with open(self.at(name), "rb") as f:
            return f.read()

    def start(self, arguments):
        """Runs `latentd serve` with these arguments, after stopping the previous daemon."""
        self.stop()
        self.daemon = Here([self.executable, "serve", *arguments, "--listen", "127.0.0.1:0"], self.folder)
        self.daemon.__enter__()
        return self.daemon

    def stop(self, *reason):
        if self.daemon:
            self.daemon.__exit__(*(reason or (None, None, None)))
        self.daemon = None

    def take(self, begin):
        """Returns the text of the next block, which must begin with these words."""
        if not self.left or not self.left[0][2].startswith(begin):
            raise SystemExit(f"{self.path}: a block that begins with {begin!r} is to come, not {self.left[:1]}")
        return self.left.pop(0)[2]

    def leave(self, begin, why):
        self.take(begin)
        print(f"{self.path}: not run: {begin}: {why}", flush=True)

    def command(self, text, seconds=300):
        """Runs a command of the document. Returns what it printed."""
        self.counted += 1
        if SERVE.match(text):
            self.start(shlex.split(text, comments=True)[2:])
            return ""
        text = "curl() { command curl --fail-with-body -S \"$@\"; }\n" + text
        said = self.spawn(["bash", "-e", "-o", "pipefail", "-c", text], seconds)
        for value in json_values(said):
            if isinstance(value, dict) and value.get("type") in ("train", "generate"):
                self.job = value["id"]
        return said

    def program(self, text, seconds=300):
        """Runs a Python program. Returns what it printed."""
        self.counted += 1
        return self.spawn([sys.executable, "-c", text], seconds)

    def spawn(self, arguments, seconds):
        text = arguments[-1]
        if self.daemon:
            text = text.replace("localhost:8188", f"{self.daemon.host}:{self.daemon.port}")
        for word, meant in {"/ID": f"/{self.job}", **self.words}.items():
            text = text.replace(word, meant)
        path = self.at("build") + os.pathsep + os.environ["PATH"]
        p = subprocess.run([*arguments[:-1], text], cwd=self.folder, timeout=seconds,
                           env={**os.environ, "PATH": path}, capture_output=True, text=True)
        check(p.returncode == 0, f"{self.path}: {text}\n{p.returncode} {p.stdout[-500:]} {p.stderr[-500:]}")
        return p.stdout

    def run(self, begin, seconds=300):
        """Runs the next block. Returns [what each command printed]."""
        return [self.command(c, seconds) for c in commands(self.take(begin))]
