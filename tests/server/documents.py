"""Runs the examples of README.md and docs/ with the bundled checkpoint, and checks their
results. usage: documents.py EXECUTABLE MODEL PICTURES [DOCUMENT...] PICTURES: tests/pictures"""
import base64
import glob
import json
import os
import pathlib
import re
import shlex
import shutil
import sys

import picture
from daemon import check, done, wait_until
from document import ROOT, Document, blocks, commands, json_values
from generate_http import png_texts
from png_file import left_half, png_file

executable, model, pictures = (os.path.abspath(a) for a in sys.argv[1:4])
# Documents whose examples need more than this script has, and the tests that run them. Each of
# these tests takes its document's blocks in the same way.
ELSEWHERE = {"docs/openai.md": "tests/server/openai/openai_doc.py", "docs/sdapi.md": "tests/server/sdapi/sdapi_doc.py",
             "docs/training.md": "tests/server/training/training_walk.py"}


def is_png(page, name, words=""):
    data = page.read(name)
    check(data[:4] == b"\x89PNG" and words in png_texts(data).get("parameters", ""), f"{name}: {data[:80]}")


def job_at_its_end(page):
    """Waits until the job that the document ordered last has ended, and returns it. The
    document's own command waits for only a minute."""
    job = lambda: page.daemon.get(f"/jobs/{page.job}").json()
    check(wait_until(lambda: job()["state"] not in ("queued", "running"), 400),
          "the training job ends")
    return job()


def readme(page):
    page.leave("git clone", "clones, installs packages and runs every test")
    build, serve = commands(page.take("meson setup"))
    print(f"README.md: not run: {build}: it built the program that is tested")
    page.command(serve)
    page.run("curl -s localhost:8188/generate")
    is_png(page, "boat.png", "Seed: 7")
    page.run("mkdir -p loras")
    said = page.run("curl -sT")
    is_png(page, "snow.png", 'Lora: "snow 0.8')
    lists = [json_values(s) for s in said]
    check(lists[2][0]["loras"][0]["name"] == "snow" and lists[3][0]["default_weight"] == 0.5, f"{lists}")
    check(page.daemon.get("/loras").json()["loras"] == [],
          "the document's last block deletes the adapter")
    page.run("mkdir -p loras")
    page.run("curl -s localhost:8188/train")
    job = job_at_its_end(page)
    check(job["state"] == "succeeded" and job["step"] == 200, f"{job}")
    check(page.daemon.get("/loras/framed").status == 200,
          "the trained adapter can be used by name as soon as its job has succeeded")
    for folder in re.findall(r"(\w+)/ ", page.take("command/ ")):
        check(os.path.isdir(os.path.join(ROOT, folder)), f"{folder}/ is in the tree")


def datasets(page):
    row = page.take('{"file_name":')
    os.makedirs(page.at("cats/cats"))
    shutil.copy(os.path.join(pictures, "texts/none.jpg"), page.at("cats/" + json.loads(row)["file_name"]))
    pathlib.Path(page.at("cats/metadata.jsonl")).write_text(row + "\n", encoding="utf-8")
    _, _, sent, listed, told, _ = page.run("mkdir -p datasets")
    report = json.loads(sent)
    named = set(re.findall(r"^\| `.*?\|", page.text.split("| | |\n")[1], re.M))
    named = {word for line in named for word in re.findall(r"`(\w+)`", line)}
    check(named and named <= set(report), f"the table's keys: {named - set(report)}")
    check(report["layout"] == "metadata.jsonl" and report["pictures"] == 1, f"{report}")
    check(json.loads(told) == report and "cats" in listed, f"{listed} {told}")
    check(page.daemon.get("/datasets/cats").status == 404,
          "the document's last block deletes the data set")


def distance(a, b, columns):
    values = [abs(p - q) for x, y in zip(a, b) for i in columns for p, q in zip(x[i], y[i])]
    return sum(values) / len(values)


def images(page):
    pathlib.Path(page.at("mask.png")).write_bytes(png_file(128, 128, left_half(128)))
    page.start(["--model", "share/tiny-sd"])
    for begin in ("curl",) * 5 + ("latentd generate",):
        page.run(begin)
    house, snow, yellow = (picture.decode(page.read(name + ".png"))[2] for name in ("house", "snow", "yellow"))
    left, right = range(0, 56), range(72, 128)
    drawn, kept, other = distance(house, yellow, left), distance(house, yellow, right), distance(house, snow, right)
    print(f"mean difference from house.png: masked {drawn:.1f}, kept {kept:.1f}; without a mask {other:.1f}")
    check(kept < 12, "the unmasked part changes only by the VAE's rounding")
    check(drawn > 2 * kept, "the masked part is drawn anew")
    check(other > 2 * kept, "image to image changes the whole picture")
    jpeg, webp, again = (page.read(name) for name in ("boat.jpg", "boat.webp", "yellow-again.jpg"))
    check(jpeg[:2] == again[:2] == b"\xff\xd8" and jpeg[-2:] == b"\xff\xd9", "JPEG files")
    check(webp[:4] == b"RIFF" and webp[8:16] == b"WEBPVP8X", "a WebP file with EXIF data")


def jobs(page):
    said = page.run("mkdir -p loras")
    job = job_at_its_end(page)
    check(job["state"] == "succeeded" and job["step"] == 50, f"{job}")
    check(said[-1].startswith("retry: ") and "event: job\n" in said[-1], f"the events: {said[-1][:200]}")
    events = page.daemon.get(f"/jobs/{page.job}/events?after=0").body.decode()
    page.run("curl -s 'localhost:8188/generate?async=1'")
    is_png(page, "boat.png", "Seed: 7")
    progress = [json.loads(d) for d in re.findall(r"event: progress\ndata: (.*)\n", events)]
    shown = page.take("retry: 2000\nid: ")
    example = json.loads(shown.split("data: ")[1])
    check(events.startswith("retry: 2000\n"), events[:100])
    check(progress and set(example) <= set(progress[-1]) and set(example["metrics"]) <= set(progress[-1]["metrics"]),
          f"{progress[-1:]} has what is shown: {shown}")


def loras(page):
    page.run("mkdir -p loras")
    page.run("curl -sT")
    is_png(page, "both.png", 'Lora: "rainbow -0.3')
    page.run("latentd generate")
    check(picture.decode(page.read("same.png")) == picture.decode(page.read("both.png")),
          "both commands draw the same pixels")
    said = [json.loads(text) for text in page.run("curl -sT") if json_values(text)]
    put, told, preset, ended, unloaded, scan, listing = said
    check(put["version"] == told["version"] and told["state"] == "loaded", f"{put} {told}")
    check([preset[k] for k in ("default_weight", "text_encoder_weight", "pinned")] == [0.5, 0, True], f"{preset}")
    check(ended["default_weight"] is None and unloaded["state"] == "on_disk", f"{ended} {unloaded}")
    check(scan == {"added": 1, "replaced": 0, "removed": 0, "failed": 0, "passed_over": 0}, f"{scan}")
    check([l["name"] for l in listing["loras"]] == ["rainbow", "snow"] and listing["limit_bytes"] == 256 << 20,
          f"{listing}")
    page.words.update({"CHECKPOINT": "share/tiny-sd", "OUT": "merged",
                       "FILE[:WEIGHT[:TEXT_WEIGHT]] ...": "share/tiny-sd/loras/snow.safetensors:0.8:0.5"})
    page.run("latentd lora merge")
    check("snow" in page.command("latentd inspect merged") and b"latentd.merged" in page.read(unet_file(page)),
          "the merged file's metadata names what was merged")


def unet_file(page):
    return os.path.relpath(glob.glob(page.at("merged/unet/*.safetensors"))[0], page.folder)


def models(page):
    for name in ("sd15", "anime/v3"):
        shutil.copytree(model, page.at("models/" + name))
    page.run("build/latentd serve")
    listed, asked = (json.loads(s) for s in page.run("curl -s localhost:8188/models"))
    check([m["name"] for m in listed["models"]] == ["anime/v3", "sd15"] and listed["current"] == "sd15", f"{listed}")
    check(set(asked["switch"]) >= {"state", "progress", "error", "needed_bytes", "available_bytes", "unloads_first"},
          f"{asked}")
    check(wait_until(lambda: page.daemon.get("/models").json()["switch"]["state"] == "done", 60),
          "the switch ends")
    check(page.daemon.get("/models").json()["current"] == "anime/v3",
          "the new checkpoint is the current one")


def operation(page):
    key, serve, *asks = commands(page.take("latentd key alice"))
    page.words["latentd_..."] = page.command(key).strip()
    page.command(serve)
    for ask in asks:
        check(json.loads(page.command(ask))["name"] == "latentd", ask)
    check(page.daemon.get("/info").status == 401, "a request without the key is a 401")
    page.leave("server {", "configures nginx")
    pathlib.Path(page.at("latentd.json")).write_text(page.take('{\n  "model"'), encoding="utf-8")
    d = page.start(["--config", "latentd.json", "--access-log", "access.log", "--api-keys", "keys"])
    key = {"Authorization": "Bearer " + page.words["latentd_..."]}
    r = d.get("/info", {**key, "Host": "sd.example"})
    check(r.status == 200 and r.json()["queue"]["max"] == 16 and r.json()["loras"]["merge"], f"{r.body[:300]}")
    page.stop()
    line = json.loads(page.take('{"time":').replace("\n", ""))
    written = json.loads(page.read("access.log").decode().splitlines()[-1])
    check(list(written) == list(line) and written["caller"] == line["caller"], f"{written} is as {line}")


def prompts(page):
    os.mkdir(page.at("embeddings"))
    for name in ("mystyle.safetensors", "cat-toy.safetensors"):
        shutil.copy(os.path.join(ROOT, "tests/engine/data/prompts/embeddings", name), page.at("embeddings"))
    page.start(["--model", "share/tiny-sd", "--embeddings-dir", "embeddings"])
    pathlib.Path(page.at("embeddings/old.pt")).write_bytes(b"PK\x03\x04")
    (said,) = page.run("curl -s localhost:8188/tokens")
    check(json.loads(said) == json.loads(page.take('{"chunk_tokens"')), f"the tokens of a prompt: {said}")
    before, after = (json.loads(s) for s in page.run("curl -s localhost:8188/embeddings"))
    check([len(before["embeddings"]), before["skipped"]] == [2, []], f"{before}")
    check(len(after["embeddings"]) == 2 and after["skipped"][0]["file"] == "old.pt", f"read again: {after}")


def from_container(page, method, path, body=None, **headers):
    """Sends a request as a container does, by its name for the host."""
    headers = {"Host": "host.docker.internal:8188", "Content-Type": "application/json", **headers}
    r = page.daemon.request(method, path, json.dumps(body) if body else None, headers)
    check(r.status == 200, f"{path}: {r.status} {r.body[:300]}")
    return r.json()


def clients(page):
    """What docs/clients.md says of a container, and what the programs' sources send."""
    page.run("latentd serve")
    made, serve = commands(page.take("latentd key"))
    key = page.command(made).strip()
    arguments = shlex.split(serve.replace("\\\n", " "))[2:]
    at = arguments.index("--listen")
    check(arguments[at + 1] == "172.17.0.1:8188", f"{arguments}: Docker's bridge, which is not here")
    page.start(arguments[:at] + arguments[at + 2:])
    page.words = {"any:KEY@host.docker.internal:8188": f"any:{key}@{page.daemon.host}:{page.daemon.port}",
                  "http://host.docker.internal:8188/info": "-H 'Host: host.docker.internal:8188' "
                  f"http://{page.daemon.host}:{page.daemon.port}/info", "KEY": key}
    page.run("curl -s http://host.docker.internal:8188/info")
    bearer = {"Authorization": f"Bearer {key}"}
    basic = {"Authorization": "Basic " + base64.b64encode(f"any:{key}".encode()).decode()}
    unknown = page.daemon.get("/info", {**bearer, "Host": "other.internal:8188"})
    check(unknown.status == 403 and unknown.error()["code"] == "forbidden_host", f"{unknown.status} {unknown.body}")
    check(page.daemon.get("/info", {"Host": "host.docker.internal:8188"}).status == 401,
          "an allowed host without a key is a 401")
    few = {"steps": 2, "width": 64, "height": 64}
    options = from_container(page, "GET", "/sdapi/v1/options", **basic)  # Open WebUI
    from_container(page, "POST", "/sdapi/v1/options", options, **basic)
    drawn = from_container(page, "POST", "/sdapi/v1/txt2img", {"prompt": "a boat", "batch_size": 1, **few}, **basic)
    check(drawn["images"] and json.loads(drawn["info"])["infotexts"],
          "the answer has the fields that LibreChat reads")
    for model in ("sd15", "tiny-sd", "gpt-image-1"):
        body = {"model": model, "prompt": "a boat", "n": 1, "size": "64x64", "num_inference_steps": 2}
        drawn = from_container(page, "POST", "/v1/images/generations?api-version=2024-02-01", body, **bearer)
        # Open WebUI takes a url before b64_json, and fetches none from a private address. It asks for b64_json
        # unless the model is called gpt-image.
        check(model != "gpt-image-1" or set(drawn["data"][0]) == {"b64_json", "seed"}, f"{model}: {drawn['data'][0].keys()}")
    body = {"model": "gpt-image-1", "prompt": "a boat", "n": 1, "background": "auto", "output_format": "png",
            "quality": "auto", "size": "auto"}  # LibreChat's OpenAI Image Tools
    check(from_container(page, "POST", "/v1/images/generations", body, **bearer)["data"][0]["b64_json"], "b64_json")


def gpu(page):
    page.leave("scripts/bench-gpu", "needs an NVIDIA GPU")


def kohya(page):
    page.leave("latentd train", "needs Stable Diffusion's checkpoint; tests/server/training/train_http.py trains such files")


def cluster(page):
    page.leave("mpirun", "needs MPI; tests/train/ranks/ranks.py trains so")


def every_document_has_a_test(known):
    for path in ["README.md", "CONTRIBUTING.md", *glob.glob("docs/**/*.md", root_dir=ROOT, recursive=True)]:
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            text = f.read()
        check(not blocks(text) or path in known, f"{path} has examples that nobody runs")
        outside = "".join(text.split("```")[::2])
        check(not re.search(r"^    (curl|latentd|build/|scripts/|tar) ?", outside, re.M), f"{path}: indented commands")
        # Every file that a document names must exist.
        for name in re.findall(r"`((?:scripts|tests|docs|share)/[\w./-]*)[` ]", text):
            if "NAME" in name:
                continue
            check(os.path.exists(os.path.join(ROOT, name)), f"{path}: there is no {name}")
    for path, test in ELSEWHERE.items():
        with open(os.path.join(ROOT, test), encoding="utf-8") as f:
            check(path in f.read(), f"{test} runs {path}")


DOCUMENTS = {"README.md": readme, "docs/clients.md": clients, "docs/cluster.md": cluster, "docs/datasets.md": datasets,
             "docs/gpu.md": gpu, "docs/images.md": images, "docs/jobs.md": jobs, "docs/kohya.md": kohya,
             "docs/loras.md": loras, "docs/models.md": models, "docs/operation.md": operation, "docs/prompts.md": prompts}

every_document_has_a_test({**DOCUMENTS, **ELSEWHERE})
for path in sys.argv[4:] or DOCUMENTS:
    with Document(executable, model, path) as page:
        DOCUMENTS[path](page)
done()
