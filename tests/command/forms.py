"""The manual and the shell completions, which are generated from the option tables. They contain
every option that a command's help shows; groff and man accept the manual, and bash completes.
usage: forms.py EXECUTABLE"""
import re
import shutil
import subprocess
import sys
import tempfile

from daemon import check, done

EXECUTABLE = sys.argv[1]


def run(*arguments, **more):
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, **more)


def output(*arguments):
    r = run(EXECUTABLE, *arguments)
    check(r.returncode == 0 and r.stderr == "", f"{arguments}: {r.stderr}")
    return r.stdout


def complete(script, *words):
    """Returns the completions that bash offers for the last word."""
    program = (f". {script}; COMP_WORDS=({' '.join(repr(w) for w in words)}); "
               f"COMP_CWORD={len(words) - 1}; _latentd 2>/dev/null; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
    return set(run("bash", "-c", program).stdout.split())


commands = re.findall(r"^  (\w+) +\S", output("help").split("commands:\n")[1].split("\n\n")[0], re.M)
check(len(commands) >= 7, f"{commands}")
manual, bash, zsh = output("man"), output("completion", "bash"), output("completion", "zsh")
count = 0
for command in commands:  # inspect has no options
    options = re.findall(r"^  (?:-\w, )?--([a-z0-9-]+)", output("help", command), re.M)
    check(f"    {command})" in bash and f"    {command}) _arguments" in zsh, command)
    section = manual.split(f".SS latentd {command}")[1].split(".SS ")[0]
    for option in options:
        count += 1
        check("\\fB\\-\\-" + option.replace("-", "\\-") + "\\fR" in section, f"man: {command} --{option}")
        arm = bash.split(f"\n    {command})")[1].split(";;\n    ")[0]
        check(re.search(rf"--{option}\b", arm), f"bash: {command} --{option}")
        arm = zsh.split(f"\n    {command}) _arguments")[1].split(";;")[0]
        check(f"--{option}[" in arm, f"zsh: {command} --{option}")
print(f"{count} options of {len(commands)} commands are in the manual and both completions")
with tempfile.TemporaryDirectory() as work:
    script = f"{work}/latentd"
    with open(script, "w") as f:
        f.write(bash)
    check(run("bash", "-n", script).stderr == "", "bash parses the completion script")
    check(complete(script, "latentd", "se") == {"serve"}, "bash completes a command")
    check({"--max-queue", "--max-connections"} <= complete(script, "latentd", "serve", "--max"),
          "bash completes options")
    check(complete(script, "latentd", "serve", "--device", "") == {"auto", "cpu", "cuda"},
          "bash completes an option's words")
    check(complete(script, "latentd", "serve", "--model", script[:-2]) == {script},
          "bash completes a file's name")
    check(complete(script, "latentd", "serve", "--max-queue", "") == set(),
          "bash offers nothing for a number")
    if shutil.which("groff"):
        r = subprocess.run(["groff", "-man", "-ww", "-Tascii", "-z"], input=manual, capture_output=True, text=True)
        check(r.stderr == "", f"groff: {r.stderr}")
    if shutil.which("zsh"):
        with open(script, "w") as f:
            f.write(zsh)
        check(run("zsh", "-n", script).stderr == "", "zsh parses the completion script")
check(run(EXECUTABLE, "completion", "fish").returncode == 2, "other shells are refused")
done()
