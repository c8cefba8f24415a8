"""share/grafana/dashboard.json: every query asks for families and labels that GET /metrics of a daemon has.
With promtool (2.42), promtool must also parse every query and find no fault in /metrics.
usage: dashboard.py EXECUTABLE DASHBOARD [PROMTOOL]"""
import json
import re
import subprocess
import sys
import tempfile

from daemon import Daemon, check, done, wait_until
from metrics import parse

# Families of which a daemon has samples only on a GPU, after training, or with a real model.
RARE = {"latentd_gpu_memory_bytes": {"kind"}, "latentd_train_loss": set(), "latentd_lora_bytes": set(),
        "latentd_text_cache_bytes": set()}
# Labels that Prometheus adds to every sample.
ADDED = {"instance", "job"}


def queries(dashboard):
    """Yields (title, query, legend) of every target, with Grafana's variables filled in."""
    for panel in dashboard["panels"]:
        check(panel["title"], f"panel {panel['id']} has a title")
        for target in panel.get("targets", []):
            query = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "5m")
            check("$" not in query, f"{panel['title']}: a variable is left in {query}")
            yield panel["title"], query, target["legendFormat"]


def known_labels(text):
    """Returns {sample name: names of its labels} of the text of GET /metrics."""
    known = {}
    for _, samples in parse(text).values():
        for name, labels in samples:
            known.setdefault(name, set()).update(label.split("=")[0] for label in labels)
    return known


def check_query(title, query, legend, known):
    names = re.findall(r"\b(?:latentd|process)_\w+", query)
    check(names, f"{title}: {query} asks for none of the daemon's metric families")
    labels = set()
    for name in names:
        check(name in known or name in RARE, f"{title}: GET /metrics has no {name}")
        labels |= known.get(name, set()) | RARE.get(name, set())
    asked = set(re.findall(r"(\w+)\s*=~?\"", query)) | set(re.findall(r"{{(\w+)}}", legend))
    for group in re.findall(r"by \(([^)]*)\)", query):
        asked |= set(re.split(r",\s*", group))
    check(asked <= labels | ADDED, f"{title}: {query} has no labels {asked - labels - ADDED}")


def check_with_promtool(promtool, text, found):
    r = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    check(r.returncode == 0 and not r.stdout + r.stderr, f"promtool check metrics: {r.returncode} {r.stdout}{r.stderr}")
    rules = [{"record": f"query_{i}", "expr": query} for i, (_, query, _) in enumerate(found)]
    with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as f:
        json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, f)  # JSON is YAML
        f.flush()
        r = subprocess.run([promtool, "check", "rules", f.name], capture_output=True, text=True, check=False)
    check(r.returncode == 0 and f"{len(rules)} rules found" in r.stdout, f"promtool check rules: {r.stdout}{r.stderr}")
    print(f"compared: promtool has nothing to say about {text.count(chr(10))} lines and {len(rules)} queries")


def main(executable, path, promtool=None):
    with open(path, encoding="utf-8") as f:
        dashboard = json.load(f)
    with tempfile.TemporaryDirectory() as state, \
            Daemon(executable, "fake,step_ms=1", extra=["--state-dir", state]) as d:
        check(d.generate({"prompt": "a", "num_inference_steps": 2}).status == 200,
              "a picture is drawn")
        check(wait_until(lambda: b"latentd_http_responses_total{" in d.get("/metrics").body), "an answer is counted")
        text = d.get("/metrics").body.decode()
    known = known_labels(text)
    known["latentd_lora_requests_total"] = {"lora"}  # no request has used one
    found = list(queries(dashboard))
    for title, query, legend in found:
        check_query(title, query, legend, known)
    print(f"compared: {len(found)} queries of {len(dashboard['panels'])} panels with {len(known)} samples' names")
    if promtool:
        check_with_promtool(promtool, text, found)


if __name__ == "__main__":
    main(*sys.argv[1:])
    done()
