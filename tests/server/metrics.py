"""GET /metrics: checks the Prometheus text format 0.0.4 strictly, and that the figures match the
requests made. usage: metrics.py EXECUTABLE"""
import json
import math
import re
import sys

from daemon import Daemon, check, done, generate_bytes, wait_until

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
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
              f"{family}{rest}: buckets rise")
        check(math.isinf(buckets[-1][0]) and buckets[-1][1] == samples[family + "_count", rest],
              f"{family}{rest}: +Inf is the count")
        check((family + "_sum", rest) in samples, f"{family}{rest}: a sum")
    check(groups, f"{family}: it has buckets")


def read(d):
    """Returns {sample: value}; a sample is written `name{labels}`."""
    r = d.get("/metrics")
    check(r.status == 200 and r.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8",
          f"{r.status} {r.headers.get('content-type')}")
    values = {}
    for family, (kind, samples) in parse(r.body.decode()).items():
        check(family.startswith("sd_"), f"{family}: our prefix")
        check((kind == "counter") == family.endswith("_total"), f"{family}: {kind}")
        if kind == "histogram":
            check_histogram(family, samples)
        for (name, labels), value in samples.items():
            values[name + ("{" + ",".join(labels) + "}" if labels else "")] = value
    return values


def gave_up(values):
    """Returns the counts of requests cancelled while waiting and while drawing."""
    return [values[f'sd_cancelled_total{{phase="{phase}"}}'] for phase in ("waiting", "drawing")]


def they_follow_from_what_was_asked(executable):
    with Daemon(executable, "fake,step_ms=2") as d:
        before, five = read(d), {"num_inference_steps": 5, "scheduler": "ddim"}
        for n in (1, 3):
            check(d.generate({"prompt": "a", "num_images": n, **five}).status == 200, "drawn")
        drawn = read(d)
        check(drawn["sd_steps_total"] - before["sd_steps_total"] == 5 * (1 + 3), "five steps of each picture")
        check(gave_up(drawn) == gave_up(before), "nobody gave up")
        check(d.generate({"prompt": "a", "width": 3}).status == 400, "400")
        check(d.get("/nope").status == 404, "404")
        check(d.get("/health", {"Host": "evil.example"}).status == 403, "403")
        check(d.generate({"prompt": "fail:device", **five}).status == 500, "500")
        failed = read(d)
        check(failed["sd_steps_total"] - drawn["sd_steps_total"] == 5, "five of one that fails at its end")
        check(d.generate({"prompt": "a", "num_inference_steps": 900, "timeout_s": 0.1}).status == 504,
              "504")
        after = read(d)
        steps = after["sd_steps_total"] - failed["sd_steps_total"]
        check(steps <= 51, f"{steps} steps of 2 ms within 0.1 s")
        check(sum(gave_up(after)) - sum(gave_up(before)) == 1, f"one was late: {gave_up(after)}")
        expected = {
            'sd_requests_total{dialect="native",outcome="succeeded"}': 2,
            'sd_requests_total{dialect="native",outcome="failed"}': 1,
            'sd_requests_total{dialect="native",outcome="timed_out"}': 1,
            'sd_requests_total{dialect="native",outcome="cancelled"}': 0,
            'sd_rejected_total{reason="invalid"}': 1,
            'sd_rejected_total{reason="not_found"}': 1,
            'sd_rejected_total{reason="forbidden"}': 1,
            'sd_rejected_total{reason="other"}': 0,
            "sd_images_total": 4,
            "sd_request_seconds_count": 2,
            "sd_queue_seconds_count": 2,
            "sd_png_seconds_count": 2,
        }
        for name, growth in expected.items():
            check(after[name] - before[name] == growth,
                  f"{name} grew by {after[name] - before[name]}, not {growth}")
        seconds = after["sd_request_seconds_sum"] - before["sd_request_seconds_sum"]
        check(0.02 <= seconds < 10, f"two requests of 5 steps of 2 ms took {seconds} s")
        check(abs(after["sd_process_resident_bytes"] / 1024 - d.rss_kb()) < 4096,
              f"{after['sd_process_resident_bytes']} B resident, {d.rss_kb()} kB by the system")
        check("sd_gpu_memory_bytes" not in "".join(after), "no GPU, so no figures of one")
        print(f"compared: {len(after)} samples, {len(expected) + 2} of them with what was asked")


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
                     if name.startswith("sd_requests_total") and after[name] != before[name]}
            check(grown == {f'sd_requests_total{{dialect="{dialect}",outcome="succeeded"}}': 1}, f"{path}: {grown}")


def the_queue_and_the_device_are_read_when_asked(executable):
    with Daemon(executable, "fake,step_ms=20,figures_ms=1", extra=["--max-queue", "1"]) as d:
        with d.connect() as first, d.connect() as second:
            for s in (first, second):
                s.sendall(generate_bytes({"prompt": "a", "num_inference_steps": 400}))
                check(d.is_drawing(), "the first is drawn, the second waits")
            check(wait_until(lambda: read(d)["sd_requests_waiting"] == 1), "one waits")
            check(d.generate({"prompt": "a"}).status == 429, "429")
            values = read(d)
            check(values["sd_requests_running"] == 1, "one is drawn")
            check(values['sd_rejected_total{reason="queue_full"}'] == 1, "counted")
            check(values['sd_gpu_memory_bytes{kind="total"}'] == 1000 and
                  values['sd_gpu_memory_bytes{kind="free"}'] == 400, "the device's memory")
            check(gave_up(values) == [0, 0], f"nobody gave up: {gave_up(values)}")
            for s, counts in ((second, [1, 0]), (first, [1, 1])):
                s.close()
                check(wait_until(lambda c=counts: gave_up(read(d)) == c), f"who leaves is counted: {gave_up(read(d))}")
            made = read(d)["sd_steps_total"]
            check(0 < made < 400, f"{made} steps of the 400 of the one that was drawn")
        check(wait_until(lambda: read(d)['sd_requests_total{dialect="native",outcome="cancelled"}'] == 2),
              "both clients left")
        check(read(d)["sd_requests_running"] == 0, "none is drawn")


if __name__ == "__main__":
    they_follow_from_what_was_asked(sys.argv[1])
    each_dialect_has_its_own(sys.argv[1])
    the_queue_and_the_device_are_read_when_asked(sys.argv[1])
    done()
