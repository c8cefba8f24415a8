"""What schemathesis (PyPI) finds when it tries every operation of GET /openapi.json: all of its checks, a fixed seed.
A failure that EXPLAINED does not list fails this test. usage: schemathesis_soak.py EXECUTABLE SCHEMATHESIS SECONDS"""
import base64
import collections
import json
import os
import re
import subprocess
import sys
import tempfile

from daemon import Daemon, check, done

SEED = 1
# (code of the check, a pattern of the answer or of the finding, why the daemon's answer is right)
EXPLAINED = [
    ("ST202", r"is not a plain path and query", "a segment . or .., which schemas cannot exclude"),
    ("ST202", r"is not allowed|there is no such field|is missing|not JSON",
     "rules between fields, pictures and names, which schemas do not say; the refusal names the field"),
    ("ST202", r"Sampler not found|Invalid encoded image|the archive |too big (?:negative )?integer|NUL byte",
     "bytes that are no picture or archive, numbers past 64 bits, NULs in keys, and AUTOMATIC1111's own words"),
    ("ST204", r"this method takes no body", "a body where HTTP has none is refused before the method is looked at"),
    ("ST201", r" /(sdapi|internal)/", "AUTOMATIC1111 ignores bodies and fields here, and its clients send some"),
    ("ST101", r"cannot be downloaded", "a file's pictures are kept, not the file: 501 says so"),
    ("ST101", r"timeout_s", "a timeout_s near 0 is over before the picture is drawn: 504"),
]


def failures(path):
    """Yields (code, operation, message, status, body) of each failed check in a report."""
    with open(path, encoding="utf-8") as f:
        for line in f:
            event = json.loads(line)
            recorder = event.get("ScenarioFinished", {}).get("recorder")
            for case, checks in (recorder or {}).get("checks", {}).items():
                answer = (recorder["interactions"].get(case) or {}).get("response") or {}
                body = base64.b64decode((answer.get("content") or {}).get("$base64", "")).decode("utf-8", "replace")
                for one in checks:
                    if one.get("failure_info"):
                        failure = one["failure_info"]["failure"]
                        yield (failure["code"], failure["operation"], failure["message"],
                               answer.get("status_code"), body)


def run(schemathesis, port, seconds, folder):
    command = [schemathesis, "run", f"http://127.0.0.1:{port}/openapi.json", "--checks", "all", "--seed", str(SEED),
               "--max-time", seconds, "--continue-on-failure", "--request-timeout", "60", "--workers", "2",
               "--suppress-health-check", "all", "--report", "ndjson", "--report-ndjson-path", f"{folder}/report"]
    r = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    check(r.returncode in (0, 1), f"schemathesis: {r.returncode} {r.stdout[-2000:]}{r.stderr[-2000:]}")
    cases = re.search(r"(\d+) generated", r.stdout)
    return int(cases[1]) if cases else 0


def main(executable, schemathesis, seconds):
    explained, unexplained = collections.Counter(), {}
    with tempfile.TemporaryDirectory() as folder:
        places = []
        for option in ("--lora-dir", "--dataset-root", "--state-dir"):
            os.mkdir(os.path.join(folder, option[2:]))
            places += [option, os.path.join(folder, option[2:])]
        with Daemon(executable, "fake,step_ms=0", extra=places) as d:
            cases = run(schemathesis, d.port, seconds, folder)
            check(d.get("/health").status == 200, "the daemon answers at the end")
        for code, operation, message, status, body in failures(f"{folder}/report"):
            why = next((why for known, pattern, why in EXPLAINED
                        if known == code and re.search(pattern, f"{operation}\n{message}\n{body}")), None)
            if why:
                explained[code, why] += 1
            else:
                unexplained.setdefault((code, operation), f"{code} {operation}: {message} -> {status} {body[:300]}")
    check(cases > 1000, f"only {cases} cases")
    for text in unexplained.values():
        check(False, text)
    for (code, why), count in explained.items():
        print(f"{code}, {count} times: {why}")
    print(f"compared: {cases} cases, {sum(explained.values())} explained findings, {len(unexplained)} others")


if __name__ == "__main__":
    main(*sys.argv[1:])
    done()
