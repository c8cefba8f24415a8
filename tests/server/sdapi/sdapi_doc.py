"""Runs the commands of docs/sdapi.md with the bundled checkpoint and checks the page's claims:
the listed routes exist, the ignored fields change nothing, the others are refused. usage:
sdapi_doc.py EXECUTABLE MODEL"""
import json
import re
import sys

from daemon import check, done
from document import Document

JSON = {"Content-Type": "application/json"}
TINY = {"prompt": "x", "width": 64, "height": 64, "steps": 1, "seed": 1}


def section(title):
    return re.search(rf"## {title}\n(.*?)(?=\n## |\Z)", page.text, re.S)[1]


def words(text):
    return re.findall(r"`([^`]+)`", text)


def commands():
    said = ["".join(page.run("curl")) for _ in range(5)]
    check("Seed: 7" in said[0] and "Schedule type: Karras" in said[0], said[0])
    check(page.read("house.png")[:4] == b"\x89PNG", "the picture is a PNG")
    check(len(json.loads(page.read("snow.json"))["images"]) == 1,
          "image to image answers one picture")
    check(said[2] == '"7"\n', said[2])
    check(said[3] in ("0\n0\n{}", "0.0\n0\n{}"), said[3])  # jq 1.7 prints 0.0
    check(said[4] == "nulltiny-sd\n", said[4])


def routes(d):
    text = section("What is there").split("Anything else")[0]
    listed = words(text)
    check(len(listed) == 36, f"{len(listed)} routes: {listed}")
    for name in listed:
        path = name if name.startswith("/internal") else f"/sdapi/v1/{name}"
        r = d.request("OPTIONS", path)
        check(r.status in (200, 204) and "allow" in r.headers, f"{path}: {r.status}")
    described = d.get("/openapi.json").json()["paths"]
    ours = {p for p in described if p.startswith(("/sdapi/", "/internal/"))}
    check(ours == {n if n.startswith("/internal") else f"/sdapi/v1/{n}" for n in listed},
          f"the page lists exactly the daemon's routes: {ours}")


def passed_over(d):
    plain = d.request("POST", "/sdapi/v1/txt2img", json.dumps(TINY), JSON).json()["images"]
    names = [n for n in words(section("What is passed over")) if n not in ("hr_...", "enable_hr")]
    check(len(names) > 20, f"{names}")
    r = d.request("POST", "/sdapi/v1/txt2img", json.dumps({**TINY, **{n: 2 for n in names}, "hr_scale": 3}), JSON)
    check(r.status == 200 and r.json()["images"] == plain, f"{r.status} {r.body[:200]}")
    said = "".join(json.loads(r.json()["info"])["comments"])
    check(all(name in said for name in words(section("What is passed over").split("With a comment:")[1])), said)


def refused(d):
    wrong = {"enable_hr": True, "subseed_strength": 1.5, "script_name": "x",
             "alwayson_scripts": {"x": {"args": [{"enabled": True}]}}, "scheduler": "quadratic",
             "init_images": ["AAAA", "AAAA"], "resize_mode": 4, "mask_round": False, "latent_mask": "AAAA",
             "initial_noise_multiplier": 2, "override_settings": {"x": 1}}
    rows = section("What is refused").split("| | |")[0].split("|---|---|\n")[1].strip().split("\n")
    named = {w.split(" ")[0] for row in rows for w in words(row.split("|")[1])} - {"false"}
    check(named == set(wrong),
          f"the test tries exactly the page's refused fields: {named ^ set(wrong)}")
    for name, value in wrong.items():
        body = {**TINY, "init_images": ["AAAA"], "mask": "AAAA", name: value}
        route = "txt2img" if name in ("enable_hr", "subseed_strength") else "img2img"
        r = d.request("POST", f"/sdapi/v1/{route}", json.dumps(body), JSON)
        check(r.status == 422 and r.json()["detail"][0]["loc"][1].startswith(name), f"{name}: {r.status} {r.body}")


def samplers(d):
    """The page lists exactly the daemon's samplers, with their default schedules."""
    table = section("Seeds and samplers").split("|---|---|---|\n")[1].split("\n\n")[0].split("\n")
    means = {name: row.split("|")[3].strip() for row in table for name in words(row.split("|")[1])}
    listed = {s["name"]: s["options"].get("scheduler", "uniform") for s in d.get("/sdapi/v1/samplers").json()}
    check(set(means) == set(listed), f"{set(means) ^ set(listed)}")
    for name, schedule in means.items():
        check(schedule.startswith("theirs") or listed[name] == schedule, f"{name}: {listed[name]}")


with Document(*sys.argv[1:3], "docs/sdapi.md") as page:
    d = page.start(["--model", "share/tiny-sd", "--lora-dir", "share/tiny-sd/loras"])
    routes(d)
    passed_over(d)
    refused(d)
    samplers(d)
    commands()
done()
