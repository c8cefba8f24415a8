"""GET /metrics: checks the Prometheus text format 0.0.4 strictly, and that the figures match the
requests made. usage: metrics.py EXECUTABLE"""
import json
import math
import os
import re
import sys
import time

from daemon import Daemon, check, done, generate_bytes, wait_until

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
# What Prometheus' client libraries say of their process.
PROCESS = {"process_start_time_seconds", "process_cpu_seconds_total", "process_resident_memory_bytes",
           "process_virtual_memory_bytes", "process_open_fds", "process_max_fds"}
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL})(?:,{LABEL})*)\}})? (-?[0-9.]+|[+-]Inf|NaN)")


def parse(text):
    """Returns {family: (type, {(sample name, labels): value})}. Raises ValueError, which names
    the wrong line."""
    families, family = {}, None
    if not text.endswith("\n"):
        raise ValueError("the last line does not end")
    for line in text[:-1].split("\n"):
        head = re.fullmatch(rf"# (HELP|TYPE) ({NAME}) (.+)", line)
        if head and head[1] == "HELP":
            if head[2] in families:
                raise ValueError(f"a second HELP: {line}")
            family = head[2]
            families[family] = (None, {})
            continue
        if head:
            if head[2] != family or families[family][0] or families[family][1]:
                raise ValueError(f"TYPE not right behind its HELP: {line}")
            if head[3] not in ("counter", "gauge", "histogram"):
                raise ValueError(f"an unknown type: {line}")
            families[family] = (head[3], {})
            continue
        sample = SAMPLE.fullmatch(line)
        if not sample:
            raise ValueError(f"not a sample: {line!r}")
        kind, samples = families[family]
        endings = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        if sample[1] not in [family + e for e in endings]:
            raise ValueError(f"outside of its family {family}: {line}")
        key = (sample[1], tuple(re.findall(LABEL, sample[2] or "")))
        if key in samples:
            raise ValueError(f"twice: {line}")
        samples[key] = float(sample[3])
    return families


def check_histogram(family, samples):
    """Checks that the buckets never decrease and that the +Inf bucket equals the count."""
    groups = {}
    for (name, labels), value in samples.items():
        if name.endswith("_bucket"):
            rest = tuple(l for l in labels if not l.startswith('le="'))
            end = float(labels[-1][4:-1].replace("+Inf", "inf"))
            groups.setdefault(rest, []).append((end, value))
    for rest, buckets in groups.items():
        check(buckets == sorted(buckets) and all(a[1] <= b[1] for a, b in zip(buckets, buckets[1:])),
              f"{family}{rest}: the buckets' bounds and counts rise")
        check(math.isinf(buckets[-1][0]) and buckets[-1][1] == samples[family + "_count", rest],
              f"{family}{rest}: the bucket +Inf equals the count")
        check((family + "_sum", rest) in samples, f"{family}{rest}: the histogram has a sum")
    check(groups, f"{family}: the histogram has buckets")


def read(d):
    """Returns {sample: value}; a sample is written `name{labels}`."""
    r = d.get("/metrics")
    check(r.status == 200 and r.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8",
          f"{r.status} {r.headers.get('content-type')}")
    values = {}
    for family, (kind, samples) in parse(r.body.decode()).items():
        check(family.startswith("latentd_") or family in PROCESS,
              f"{family}: the name begins with latentd_")
        check(all('=""' not in label for _, labels in samples for label in labels), f"{family}: no label is empty")
        check((kind == "counter") == family.endswith("_total"),
              f"{family}: exactly the counters end in _total, and this is a {kind}")
        if kind == "histogram":
            check_histogram(family, samples)
        for (name, labels), value in samples.items():
            values[name + ("{" + ",".join(labels) + "}" if labels else "")] = value
    return values


def gave_up(values):
    """Returns the counts of requests cancelled while waiting and while drawing."""
    return [values[f'latentd_cancelled_total{{phase="{phase}"}}'] for phase in ("waiting", "drawing")]


def they_follow_from_what_was_asked(executable):
    with Daemon(executable, "fake,step_ms=2") as d:
        before, five = read(d), {"num_inference_steps": 5, "scheduler": "ddim"}
        for n in (1, 3):
            check(d.generate({"prompt": "a", "num_images": n, **five}).status == 200,
                  "the request is drawn")
        drawn = read(d)
        check(drawn["latentd_steps_total"] - before["latentd_steps_total"] == 5 * (1 + 3), "five steps of each picture")
        check(gave_up(drawn) == gave_up(before), "no request is counted as cancelled")
        check(d.generate({"prompt": "a", "width": 3}).status == 400, "400")
        check(d.get("/nope").status == 404, "404")
        check(d.get("/health", {"Host": "evil.example"}).status == 403, "403")
        check(d.generate({"prompt": "fail:device", **five}).status == 500, "500")
        failed = read(d)
        check(failed["latentd_steps_total"] - drawn["latentd_steps_total"] == 5,
              "the five steps of a request that fails at its end are counted")
        check(d.generate({"prompt": "a", "num_inference_steps": 900, "timeout_s": 0.1}).status == 504,
              "504")
        after = read(d)
        steps = after["latentd_steps_total"] - failed["latentd_steps_total"]
        check(steps <= 51, f"{steps} steps of 2 ms within 0.1 s")
        check(sum(gave_up(after)) - sum(gave_up(before)) == 1,
              f"the request over its time limit is counted: {gave_up(after)}")
        expected = {
            'latentd_requests_total{dialect="native",outcome="succeeded"}': 2,
            'latentd_requests_total{dialect="native",outcome="failed"}': 1,
            'latentd_requests_total{dialect="native",outcome="timed_out"}': 1,
            'latentd_requests_total{dialect="native",outcome="cancelled"}': 0,
            'latentd_rejected_total{reason="invalid"}': 1,
            'latentd_rejected_total{reason="not_found"}': 1,
            'latentd_rejected_total{reason="forbidden"}': 1,
            'latentd_rejected_total{reason="other"}': 0,
            "latentd_images_total": 4,
            "latentd_request_seconds_count": 2,
            "latentd_queue_seconds_count": 2,
            "latentd_png_seconds_count": 2,
        }
        for name, growth in expected.items():
            check(after[name] - before[name] == growth,
                  f"{name} grew by {after[name] - before[name]}, not {growth}")
        seconds = after["latentd_request_seconds_sum"] - before["latentd_request_seconds_sum"]
        check(0.02 <= seconds < 10, f"two requests of 5 steps of 2 ms took {seconds} s")
        check(abs(after["process_resident_memory_bytes"] / 1024 - d.rss_kb()) < 4096,
              f"{after['process_resident_memory_bytes']} B resident, {d.rss_kb()} kB by the system")
        check("latentd_gpu_memory_bytes" not in "".join(after),
              "without a GPU there are no series of GPU memory")
        print(f"compared: {len(after)} samples, {len(expected) + 2} of them with what was asked")


def answers_are_counted_by_route_and_status(executable):
    def answers(values, route, code):
        return values.get(f'latentd_http_responses_total{{route="{route}",code="{code}"}}', 0)

    with Daemon(executable, "fake,step_ms=1") as d:
        d.get("/metrics")
        before = read(d)
        asked = [("/health", "/health", 200), ("/health", "/health", 200), ("/jobs/nope", "/jobs/{id}", 404),
                 ("/nope", "none", 404), ("/nope?a=%22", "none", 404)]
        for target, _, status in asked:
            check(d.get(target).status == status, f"{target}: {status}")
        check(d.generate({"prompt": "a", "num_inference_steps": 2}).status == 200,
              "the request is drawn")
        check(d.generate({"prompt": "a", "width": 3}).status == 400, "400")
        expected = {("/health", 200): 2, ("/jobs/{id}", 404): 1, ("none", 404): 2, ("/generate", 200): 1,
                    ("/generate", 400): 1, ("/metrics", 200): 1}
        # An answer is counted when the library lets go of the request, which may be after it was read.
        check(wait_until(lambda: all(answers(read(d), *key) - answers(before, *key) >= count
                                     for key, count in expected.items())), f"not counted: {expected}")
        after = read(d)
        for (route, code), count in expected.items():
            grown = answers(after, route, code) - answers(before, route, code)
            check(grown == count or route == "/metrics", f"{route} {code}: {grown}, not {count}")
        print(f"compared: {len(expected)} routes and statuses of answers")


def the_process_is_described(executable):
    began = time.time()
    with Daemon(executable) as d:
        values = read(d)
        check(PROCESS <= values.keys(), f"missing: {PROCESS - values.keys()}")
        start = values["process_start_time_seconds"]
        check(abs(start - began) < 5, f"began at {start}, by this clock at {began}")
        with open(f"/proc/{d.process.pid}/stat", encoding="utf-8") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        by_system = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        check(0 < values["process_cpu_seconds_total"] <= by_system + 0.05,
              f"{values['process_cpu_seconds_total']} s of processors, {by_system} s by the system")
        files = len(os.listdir(f"/proc/{d.process.pid}/fd"))
        check(abs(values["process_open_fds"] - files) <= 2, f"{values['process_open_fds']} files, {files} by the system")
        with open(f"/proc/{d.process.pid}/limits", encoding="utf-8") as f:
            limit = int(re.search(r"Max open files\s+(\d+)", f.read())[1])
        check(values["process_max_fds"] == limit, f"{values['process_max_fds']}, by the system {limit}")
        version = json.loads(d.get("/info").body)["version"]
        check(values.get(f'latentd_build_info{{version="{version}"}}') == 1, f"version {version} is not told")
        print(f"compared: {len(PROCESS)} figures of the process with the system's, version {version}")


def each_dialect_has_its_own(executable):
    asked = {"native": ("/generate", {"prompt": "a", "num_inference_steps": 2}),
             "a1111": ("/sdapi/v1/txt2img", {"prompt": "a", "steps": 2, "width": 64, "height": 64}),
             "openai": ("/v1/images/generations", {"prompt": "a", "num_inference_steps": 2}),
             "huggingface": ("/hf", {"inputs": "a", "parameters": {"num_inference_steps": 2}})}
    with Daemon(executable) as d:
        for dialect, (path, body) in asked.items():
            before = read(d)
            r = d.request("POST", path, json.dumps(body), {"Content-Type": "application/json", "Accept": "*/*"})
            check(r.status == 200, f"{path}: {r.status} {r.body[:200]}")
            after = read(d)
            grown = {name: after[name] - before[name] for name in after
                     if name.startswith("latentd_requests_total") and after[name] != before[name]}
            check(grown == {f'latentd_requests_total{{dialect="{dialect}",outcome="succeeded"}}': 1}, f"{path}: {grown}")


def the_queue_and_the_device_are_read_when_asked(executable):
    with Daemon(executable, "fake,step_ms=20,figures_ms=1", extra=["--max-queue", "1"]) as d:
        with d.connect() as first, d.connect() as second:
            for s in (first, second):
                s.sendall(generate_bytes({"prompt": "a", "num_inference_steps": 400}))
                check(d.is_drawing(), "the first request is being drawn")
            check(wait_until(lambda: read(d)["latentd_requests_waiting"] == 1), "one request waits")
            check(d.generate({"prompt": "a"}).status == 429, "429")
            values = read(d)
            check(values["latentd_requests_running"] == 1, "one request is counted as running")
            check(values['latentd_rejected_total{reason="queue_full"}'] == 1,
                  "the refused request is counted")
            check(values['latentd_gpu_memory_bytes{kind="total"}'] == 1000 and
                  values['latentd_gpu_memory_bytes{kind="free"}'] == 400,
                  "the device's memory is shown")
            check(gave_up(values) == [0, 0],
                  f"no request is counted as cancelled: {gave_up(values)}")
            for s, counts in ((second, [1, 0]), (first, [1, 1])):
                s.close()
                check(wait_until(lambda c=counts: gave_up(read(d)) == c),
                      f"requests of clients that left are counted by phase: {gave_up(read(d))}")
            made = read(d)["latentd_steps_total"]
            check(0 < made < 400, f"{made} steps of the 400 of the one that was drawn")
        check(wait_until(lambda: read(d)['latentd_requests_total{dialect="native",outcome="cancelled"}'] == 2),
              "both requests are counted as cancelled")
        check(read(d)["latentd_requests_running"] == 0, "no request is counted as running")


if __name__ == "__main__":
    they_follow_from_what_was_asked(sys.argv[1])
    answers_are_counted_by_route_and_status(sys.argv[1])
    the_process_is_described(sys.argv[1])
    each_dialect_has_its_own(sys.argv[1])
    the_queue_and_the_device_are_read_when_asked(sys.argv[1])
    done()
