"""The web page's tools in Debian's Chromium: settings back from a picture's file, looking closely,
sizes, tokens, weights by keys, the LoRAs' own settings, the gallery in one file, comparisons, data
sets and the search of the training form. Checked against files, the daemon's answers and axe-core.
usage: page_tools.py EXECUTABLE MODEL, with a Python that has axe-core (scripts/client-env)"""
import base64
import io
import json
import os
import shutil
import struct
import sys
import tarfile
import tempfile
import time
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import lora_file
import picture
import webdriver
from daemon import Daemon, check, done
from page import Page, is_accessible, no_errors, nobody_else_is_asked

executable, model = sys.argv[1:3]
root = tempfile.mkdtemp()
PATIENCE_S = 120  # enough with sanitizers
FIELDS = {"prompt": "a red house on green hills", "seed": 7, "guidance_scale": 2.5, "width": 64, "height": 64,
          "num_inference_steps": 4, "loras": []}
# The text of an AUTOMATIC1111 picture, with settings that this daemon has and others that it does
# not have.
INFOTEXT = """a (red:1.2) house <lora:snow:0.5> on green hills <lora:lost:1>
Negative prompt: blurry
Steps: 5, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 3, Seed: 11, Size: 64x128, Model: other, Clip skip: 2, \
Hires upscale: 2, Version: v1.10.1"""
VALUE = 'return document.querySelector(`#draw [name="${arguments[0]}"]`).value;'


def keep(name, data):
    path = os.path.join(root, name)
    with open(path, "wb") as f:
        f.write(data)
    return path


def text_chunk(png, keyword, text):
    """The PNG with a tEXt chunk behind its header (PNG, section 11.3.4.3)."""
    body = b"tEXt" + keyword.encode() + b"\0" + text.encode("latin-1")
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return png[:33] + chunk + png[33:]


def take(p, path):
    """Gives the page a file from which to take settings. Returns what the page says of it."""
    name = os.path.basename(path)
    p.choose_file(".recall input", path)
    p.wait(f"word of {name}", 'document.querySelector(".recall [role=status]").textContent.includes(arguments[0])', name)
    return p.text(".recall [role=status]")


def drawn(d, fields, accept):
    r = d.generate(fields, {"Accept": accept})
    check(r.status == 200, f"{fields}: {r.status} {r.body[:200]}")
    return r.body


def settings_come_back(d, p):
    """A picture in each of our formats fills the form with the settings that draw the same
    picture."""
    wanted = {**FIELDS, "negative_prompt": "a boat", "clip_skip": 1, "loras": [{"name": "snow", "weight": 0.7}],
              "scheduler": {"name": "dpmpp_2m", "use_karras_sigmas": True, "solver_order": 3}}
    reference = drawn(d, wanted, "image/png")
    for kind in ("png", "jpeg", "webp"):
        path = keep(f"ours.{kind}", drawn(d, wanted, f"image/{kind}"))
        p.set(prompt="something else", seed=1, clip_skip=0, scheduler="ddim", num_inference_steps=9)
        said = take(p, path)
        check(said == f"The settings of ours.{kind} are in the form.",
              f"the page says that all settings were taken: {said}")
        check(p.run(VALUE, "prompt") == FIELDS["prompt"], "the picture's prompt is in the form")
        check(p.draw() == reference, f"the settings of a {kind} draw the same picture")
    print("PNG, JPEG and WebP files draw themselves again")


def settings_of_others(d, p):
    """An AUTOMATIC1111 picture: the page takes the settings that this daemon has. It names the
    others and does not send them."""
    plain = picture.encode(8, 8, lambda x, y: (x, y, 0))
    said = take(p, keep("theirs.png", text_chunk(plain, "parameters", INFOTEXT)))
    for name in ("LoRA lost", "Hires upscale 2", "model other"):
        check(name in said, f"the page names {name} as not taken: {said}")
    check("snow" not in said and "Sampler" not in said,
          f"the page names no setting that was taken: {said}")
    expected = {**FIELDS, "prompt": "a (red:1.2) house <lora:snow:0.5> on green hills", "negative_prompt": "blurry",
                "prompt_syntax": "a1111", "num_inference_steps": 5, "guidance_scale": 3, "seed": 11, "height": 128,
                "clip_skip": 1, "rng": "cuda",
                "scheduler": {"name": "dpmpp_2m", "timestep_spacing": "linspace", "use_karras_sigmas": True}}
    check(p.draw() == drawn(d, expected, "image/png"),
          "the taken settings draw the expected picture")
    hostile = {"prompt": "<img src=x onerror=document.title='hit'>", "width": 7, "seed": 2**63, "scheduler": "nope",
               "loras": [{"name": "snow", "weight": 1e9}], "init_image": {"bytes": 3}, "steps": 3, "rng": "dice"}
    said = take(p, keep("hostile.png", text_chunk(plain, "latentd", json.dumps(hostile))))
    for name in ("Width 7", "Seed", "scheduler nope", "LoRA snow", "the start picture", "steps", "Noise"):
        check(name in said, f"the page says that {name} cannot be used: {said}")
    check(p.run("return document.title;") == "latentd", "a script in a file's text is not run")
    check(take(p, keep("dumb.png", plain)) == "dumb.png: This file does not say how it was drawn.",
          "the page says that a file has no parameters")
    check("dumb2.txt" in take(p, keep("dumb2.txt", b"hello")),
          "the page names a file that is no picture")


def drops(d, p):
    """A picture that is dropped on the prompt or on the picture does the same; elsewhere it does nothing."""
    data = base64.b64encode(drawn(d, {**FIELDS, "prompt": "a dropped boat"}, "image/png")).decode()
    for place, name in (("#prompt-fields textarea", "one.png"), ("#viewer", "two.png"), ("#settings", "three.png")):
        p.set(prompt="something else")
        p.run("""const dropped = new DataTransfer(), bytes = Uint8Array.from(atob(arguments[1]), (c) => c.charCodeAt(0));
            dropped.items.add(new File([bytes], arguments[2], { type: "image/png" }));
            document.querySelector(arguments[0]).dispatchEvent(new DragEvent("drop",
                { dataTransfer: dropped, bubbles: true, cancelable: true }));""", place, data, name)
        if name != "three.png":
            p.wait(f"word of {name}", 'document.querySelector(".recall [role=status]").textContent.includes(arguments[0])', name)
        wanted = "something else" if name == "three.png" else "a dropped boat"
        check(p.run(VALUE, "prompt") == wanted, f"dropped on {place}: {p.run(VALUE, 'prompt')}")


def looks_closely(p):
    p.run('document.querySelector("#gallery li button").click();')
    p.run('document.querySelector("#viewer .look").focus();')
    p.press("enter")
    p.wait("the dialog", 'document.querySelector("dialog.closely")?.open')
    seen = 'return document.querySelector("dialog.closely img").src;'
    shown = "return document.querySelector(`#gallery li:nth-child(${arguments[0]}) img`).src;"
    check(p.run(seen) == p.run(shown, 1), "Enter shows the first picture in full size")
    box = p.run("const b = document.querySelector('dialog.closely').getBoundingClientRect(); return [b.width, b.height];")
    check(box == p.run("return [innerWidth, innerHeight];"),
          f"the dialog is as large as the window: {box}")
    is_accessible(p, "closely")
    p.press("right")
    check(p.run(seen) == p.run(shown, 2) and p.text("dialog.closely .how").startswith("2 of"),
          "the arrow key shows the next picture")
    p.press("left")
    p.press("left")
    check(p.run(seen) == p.run(shown, p.pictures()),
          "the left key at the first picture shows the last")
    p.press_button("1:1", "dialog.closely")
    check(p.run("const i = document.querySelector('dialog.closely img'); return [i.width, i.naturalWidth];") == [64, 64],
          "a click shows the picture in its own size")
    p.press("escape")
    p.wait("the end", '!document.querySelector("dialog.closely")')
    check(p.run("return document.activeElement.matches('#viewer .look');"),
          "closing returns the focus to the picture")
    check(p.run("return document.querySelector('#viewer .picture').src;") == p.run(shown, p.pictures()),
          "the viewer shows the picture that was seen last")


def sizes(d, p):
    info = d.get("/info").json()
    side, multiple = info["model"]["default_width"], info["limits"]["size_multiple"]
    found = p.run("return [...document.querySelectorAll('.sizes option')].map((o) => o.value).filter(Boolean);")
    pairs = [tuple(int(n) for n in one.split("x")) for one in found]
    check(pairs[0] == (side, info["model"]["default_height"]) and len(set(pairs)) == len(pairs) >= 7, f"{pairs}")
    check(all(min(one) == side and one[0] % multiple == one[1] % multiple == 0 for one in pairs),
          f"every offered size is allowed: {pairs}")
    check({(h, w) for w, h in pairs} == set(pairs), "each size is offered in both orientations")
    p.run("""const s = document.querySelector('.sizes select'); s.selectedIndex = 2;
        s.dispatchEvent(new Event('change', { bubbles: true }));""")
    check((int(p.run(VALUE, "width")), int(p.run(VALUE, "height"))) == pairs[2],
          "the chosen size is in the form")
    p.press_button("Swap")
    check((int(p.run(VALUE, "width")), int(p.run(VALUE, "height"))) == pairs[2][::-1],
          "the button swaps width and height")
    chosen = p.run("return document.querySelector('.sizes select').value;")
    check(chosen == "{1}x{0}".format(*pairs[2]), f"the list shows the swapped size: {chosen}")
    p.set(width=72)
    check(p.run("return document.querySelector('.sizes select').value;") == "",
          "the list shows no size for a height of 72")
    p.set(width=64, height=64)


def counts_tokens(d, p):
    p.set(prompt_syntax="plain", prompt="a " * 3, negative_prompt="")
    p.wait("3 tokens", 'document.querySelector("#prompt-fields .count").textContent === "3 of 75 tokens"')
    p.set(prompt="a " * 78)
    p.wait("78 tokens", 'document.querySelector("#prompt-fields .count").textContent === "78 of 75 tokens"')
    check(p.text("#prompt-fields .warning").strip() == "Too long. This is cut: a a a", p.text("#prompt-fields .warning"))
    p.set(long_prompt="chunk")
    p.wait("pieces", 'document.querySelector("#prompt-fields .count").textContent === "78 tokens, in 2 pieces of 75"')
    check(not p.text("#prompt-fields .warning"), "a prompt that fits has no warning")
    p.set(long_prompt="truncate", prompt_syntax="a1111", prompt="[a:a a a:20]", num_inference_steps=21)
    p.wait("both texts", 'document.querySelector("#prompt-fields .count").textContent === "3 of 75 tokens"')
    p.set(num_inference_steps=20)
    p.wait("the first text alone", 'document.querySelector("#prompt-fields .count").textContent === "1 of 75 tokens"')
    p.set(scheduler="heun")
    p.wait("40 evaluations", 'document.querySelector("#prompt-fields .count").textContent === "3 of 75 tokens"')
    p.set(prompt_syntax="plain", num_inference_steps=FIELDS["num_inference_steps"], scheduler="ddim")


def weighs_by_keys(p):
    p.set(prompt="a red house")
    p.run("const i = document.querySelector('[name=prompt]'); i.focus(); i.setSelectionRange(4, 4);")
    for keys, expected in ((("control", "up"), "a (red:1.1) house"), (("control", "up"), "a (red:1.2) house"),
                           (("control", "down"), "a (red:1.1) house"), (("control", "down"), "a red house"),
                           (("control", "down"), "a (red:0.9) house")):
        p.press(*keys)
        check(p.run(VALUE, "prompt") == expected, f"{keys}: {p.run(VALUE, 'prompt')}")
    check(p.run(VALUE, "prompt_syntax") == "a1111",
          "the prompt syntax is set to the one with weights")
    p.run("const i = document.querySelector('[name=prompt]'); i.value = 'x <lora:snow:0.8>'; i.setSelectionRange(9, 9);")
    p.press("control", "up")
    check(p.run(VALUE, "prompt") == "x <lora:snow:0.85>",
          f"the key changes the weight of a LoRA tag: {p.run(VALUE, 'prompt')}")
    p.set(prompt_syntax="plain", prompt=FIELDS["prompt"])


def keeps_loras(d, p):
    """Seven adapters: a search, trigger words, a default weight, and deleting one after a question."""
    with open(os.path.join(model, "loras", "snow.safetensors"), "rb") as f:
        snow = f.read()
    words = {"ss_tag_frequency": json.dumps({"10_house": {"<b>sks</b>": 8, "wintry": 8, "tree": 3}})}
    for i in range(6):
        sent = lora_file.join(lora_file.read_tensors(snow), words) if i == 4 else snow
        check(d.request("PUT", f"/loras/copy-{i}", sent, {"Content-Type": "application/octet-stream"}).status == 201, "sent")
    told = {lora["name"]: lora["trigger_words"] for lora in d.get("/loras").json()["loras"]}
    check(told.pop("copy-4") == "<b>sks</b>, wintry" and set(told.values()) == {None}, f"{told}")
    p.start()
    p.open_drawer("LoRAs")
    rows = "return [...document.querySelectorAll('.lora')].filter((o) => o.offsetParent).map((o) => o.dataset.name);"
    check(len(p.run(rows)) == 7, f"{p.run(rows)}")
    shown = """return Object.fromEntries([...document.querySelectorAll('.lora')].map(
        (o) => [o.dataset.name, o.querySelector('.trigger')?.textContent ?? null]));"""
    texts = p.run(shown)
    check(texts.pop("copy-4") == "Trigger words: <b>sks</b>, wintry" and set(texts.values()) == {None}, f"{texts}")
    p.type(".drawer [type=search]", "WINTRY SKS")
    check(p.run(rows) == ["copy-4"], f"found by its trigger words: {p.run(rows)}")
    p.fill(".drawer [type=search]", "COPY 3")
    check(p.run(rows) == ["copy-3"], f"found: {p.run(rows)}")
    p.press_button("…", "[data-name=copy-3]")
    p.run("""const i = document.querySelector('[data-name=copy-3] [type=number]'); i.value = 0.3;
        i.dispatchEvent(new Event('input', { bubbles: true }));""")
    p.press_button("Use by default", "[data-name=copy-3]")
    p.wait("the default", "document.querySelector('[data-name=copy-3] .about').textContent.includes('by default at 0.3')")
    check(d.get("/loras/copy-3").json()["default_weight"] == 0.3,
          "the daemon has the default weight")
    p.press_button("…", "[data-name=copy-3]")
    is_accessible(p, "LoRAs")
    p.press_button("Not by default", "[data-name=copy-3]")
    p.wait("no default", "!document.querySelector('[data-name=copy-3] .about').textContent.includes('by default at')")
    check(d.get("/loras/copy-3").json()["default_weight"] is None,
          "the daemon has no default weight any more")
    p.press_button("…", "[data-name=copy-3]")
    for answer, left in (("Keep it", 200), ("Delete", 404)):
        p.press_button("Delete", "[data-name=copy-3]")
        p.wait("the question", "document.querySelector('dialog[open] form')")
        if left == 200:
            is_accessible(p, "question")
        p.press_button(answer, "dialog[open]")
        p.wait("the answer", "!document.querySelector('dialog[open] .primary')")
        if left == 404:
            p.wait("the row to go", "!document.querySelector('[data-name=copy-3]')")
        check(d.get("/loras/copy-3").status == left, f"{answer}: {d.get('/loras/copy-3').status}")


def downloaded(name):
    """Waits for the browser's download. It has another name until it is whole."""
    path, end = os.path.join(root, name), time.monotonic() + PATIENCE_S
    while not os.path.exists(path) and time.monotonic() < end:
        time.sleep(0.05)
    return path


def downloads_all(p):
    p.devtools("Page.setDownloadBehavior", behavior="allow", downloadPath=root)
    p.press_button("Download all")
    path = downloaded("pictures.tar")
    with tarfile.open(path) as tar:
        members = tar.getmembers()
        files = [tar.extractfile(m).read() for m in members]
    check(len(files) == p.pictures() >= 3 and all(f.startswith(b"\x89PNG") for f in files), f"{members}")
    p.run('document.querySelector("#gallery li button").click();')
    check(files[0] == p.shown(), "the archive's first picture is the latest")
    check(all(abs(m.mtime - time.time()) < 3600 for m in members),
          f"the archive's files have their times: {[m.mtime for m in members]}")
    print(f"{len(files)} pictures in one file of {os.path.getsize(path)} bytes: {[m.name for m in members]}")


def compares(d, p):
    p.set(**{k: v for k, v in FIELDS.items() if k != "loras"}, scheduler="ddim", rng="cpu", negative_prompt="")
    p.open_drawer("Compare")
    p.press_button("Draw all")
    check(p.text(".compare [role=alert]") == "Choose a setting to compare.", f"{p.text('.compare [role=alert]')}")
    p.set(across="num_inference_steps", across_values="1,2,3,4,5,6,7", down="seed", down_values="1,2,3,4,5,6")
    p.press_button("Draw all")
    p.wait("the limit", "document.querySelector('#settings').textContent.includes('At most 36 pictures')")
    p.set(across="num_inference_steps", across_values="2, 4", down="guidance_scale", down_values="1.5, 2.5, 4")
    check("2 × 3 = 6 pictures" in p.text("#settings"),
          "the page says how many pictures a comparison draws")
    before = p.pictures()
    p.press_button("Draw all")
    p.wait("six pictures", "document.querySelectorAll('#comparison td img').length === 6")
    heads = p.run("return [...document.querySelectorAll('#comparison th')].map((o) => o.textContent);")
    check(heads == ["Steps 2", "Steps 4", "Guidance 1.5", "Guidance 2.5", "Guidance 4"], f"{heads}")
    check(p.pictures() == before + 6, "the comparison's pictures are in the gallery")
    is_accessible(p, "comparison")
    p.run("document.querySelectorAll('#comparison td .look')[3].click();")
    p.wait("a closer look", "document.querySelector('dialog.closely')?.open")
    check(p.run("return document.querySelector('dialog.closely img').alt;") == "Steps 4, Guidance 2.5",
          "a click on row 2, column 2 shows that picture")
    p.press("escape")
    same = drawn(d, {**FIELDS, "num_inference_steps": 4, "guidance_scale": 2.5, "scheduler": "ddim"}, "image/png")
    pixels = p.run("""const i = document.querySelectorAll('#comparison td img')[3], c = new OffscreenCanvas(64, 64).getContext('2d');
        c.drawImage(i, 0, 0); return [...c.getImageData(0, 0, 64, 64).data].filter((_, k) => k % 4 < 3);""")
    wanted = [v for row in picture.decode(same)[2] for pixel in row for v in pixel]
    check(pixels == wanted, "each cell is the picture of its settings")
    p.press_button("Save as a picture")
    with open(downloaded("comparison.png"), "rb") as f:
        width, height = struct.unpack(">II", f.read(24)[16:])
    check(2 * 64 < width < 4 * 64 and 3 * 64 < height < 4 * 64,
          f"the saved picture is a labelled grid of two by three: {width} x {height}")
    p.press_button("Put it away")
    check(p.run("return document.querySelector('#comparison').hidden;"), "the comparison is closed")
    p.set(across="scheduler", across_values="DDIM, Heum", down="")
    p.press_button("Draw all")
    p.wait("the fault", "document.querySelector('#settings').textContent.includes('There is no scheduler “Heum”')")
    p.set(across="guidance_scale", across_values="2, 1000", down="")
    p.press_button("Draw all")
    p.wait("one fault, one picture", """document.querySelectorAll('#comparison td img').length === 1 &&
        document.querySelector('#comparison td .fault')""")
    check(p.text("#comparison td .fault").startswith("1000 is not allowed"), p.text("#comparison td .fault"))


def compares_with_a_short_queue(p):
    """Requests that find the daemon's queue full are sent again."""
    p.start()
    p.set(**{k: v for k, v in FIELDS.items() if k != "loras"} | {"num_inference_steps": 60})
    p.open_drawer("Compare")
    p.set(across="seed", across_values="1, 2, 3, 4, 5, 6", down="")
    p.press_button("Draw all")
    p.wait("six pictures", "document.querySelectorAll('#comparison td img').length === 6")
    full = [e["message"] for e in p.log("browser") if " 429 " in e["message"]]
    check(full and not p.count("#comparison .fault"), f"{len(full)} requests found the queue full, and six pictures came")


def faults_are_short(p):
    p.set(width=100)
    p.click("#ask button.primary")
    p.wait("the fault", 'document.querySelector("[name=width]").getAttribute("aria-invalid")')
    said = p.text(".field:has([name=width]) .fault")
    check(said.startswith("100 is not allowed"),
          f"the error does not repeat the label's name: {said}")
    p.set(width=64)


def searches_settings(d, p):
    """Every field of POST /train has a control with words of its own, found by them."""
    api = d.get("/openapi.json").json()
    fields = set(api["paths"]["/train"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"])
    p.wait("the settings", "document.querySelectorAll('.others .field').length > 20")
    named = set(p.run('return [...document.querySelectorAll("#train form [name]")].map((one) => one.name);'))
    check(fields <= named, f"fields without a control: {fields - named}")
    raw = p.run("""return [...document.querySelectorAll(".others .field")].filter((one) =>
        one.querySelector("label").textContent === one.querySelector("[name]").name.replaceAll("_", " ")).map((one) =>
        one.querySelector("[name]").name);""")
    check(not raw, f"labels that are only the field's name: {raw}")
    p.open_drawer("All settings")
    found = """return [...document.querySelectorAll(".others [name]")].filter((one) => one.offsetParent).map((one) => one.name);"""
    often = len(p.run(found))
    p.press_button("Show all", ".others")
    everything = len(p.run(found))
    check(5 < often < everything / 4,
          f"at first only some settings are shown: {often} of {everything}")
    for words, some in (("memory", {"gradient_checkpointing", "use_8bit_adam"}), ("flip", {"random_flip"}),
                        ("dreambooth caption", {"class_prompt"}), ("kohya", {"save_format"}), ("epochs", {"num_train_epochs"})):
        p.fill(".others [type=search]", words)
        left = set(p.run(found))
        check(some <= left and len(left) < everything / 3, f"{words}: {left}")
        print(f"{words}: {len(left)} of {everything} settings")
    is_accessible(p, "settings")
    p.fill(".others [type=search]", "nonsense")
    check(not p.run(found), "a search without a match shows no setting")
    p.start("train")
    p.wait("the settings", "document.querySelectorAll('.others .field').length > 20")
    p.run("document.querySelector('.others [name=min_bucket_reso]').value = 7;")
    p.set(name="wrong", max_train_steps=3)
    p.run('document.querySelector("#train form").requestSubmit();')
    p.wait("the fault", "document.querySelector('[name=min_bucket_reso]').getAttribute('aria-invalid')")
    check(p.run("return document.activeElement.name;") == "min_bucket_reso",
          "a refused setting that was hidden is shown and has the focus")


def deletes_data_sets(d, p):
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as t:
        data = picture.encode(64, 64, lambda x, y: (x, y, 0))
        info = tarfile.TarInfo("a.png")
        info.size = len(data)
        t.addfile(info, io.BytesIO(data))
    for name in ("old", "other"):
        r = d.request("PUT", f"/datasets/{name}", tar.getvalue(), {"Content-Type": "application/x-tar"})
        check(r.status == 201, f"{r.status} {r.body[:200]}")
    p.go("train")
    p.wait("both", "document.querySelectorAll('#train [name=dataset] option').length === 2")
    p.set(dataset="old")
    p.press_button("Delete it", "#train form")
    p.press_button("Delete", "dialog[open]")
    p.wait("one", "document.querySelectorAll('#train [name=dataset] option').length === 1")
    check(d.get("/datasets").json() == {"datasets": ["other"]}, f"{d.get('/datasets').json()}")
    check(p.run("return document.activeElement.name;") == "dataset",
          "after a deletion the focus is on the list of data sets")


def redraws_the_curve(d, p):
    """The loss curve has the pixels of its place, also after the window has another width."""
    p.start("train")
    p.wait("the data set", "document.querySelector('#train [name=dataset]').value === 'other'")
    p.set(name="curve", max_train_steps=3, resolution=64, rank=4, instance_prompt="stripes")
    p.run('document.querySelector("#train form").requestSubmit();')
    p.wait("the loss", 'document.querySelector(".plot .mean")', seconds=PATIENCE_S)
    same = """const s = document.querySelector(".plot"); return [s.getAttribute("viewBox").split(" ")[2], String(s.clientWidth)];"""
    widths = []
    for size in ((844, 390), (390, 844), (1280, 900)):
        p.look(*size)
        p.wait("the curve to follow", 'document.querySelector(".plot").getAttribute("viewBox").split(" ")[2] === '
               'String(document.querySelector(".plot").clientWidth)')
        widths.append(p.run(same)[0])
    check(len(set(widths)) == 3, f"the curve was drawn at three widths: {widths}")


if not webdriver.programs():
    print("chromium and chromium-driver are not installed")
    sys.exit(77)
for folder in ("loras", "sets", "state"):
    os.makedirs(os.path.join(root, folder))
shutil.copy(os.path.join(model, "loras", "snow.safetensors"), os.path.join(root, "loras"))
options = ["--lora-dir", f"{root}/loras", "--state-dir", f"{root}/state", "--dataset-root", f"{root}/sets", "--dtype", "f32"]
with Daemon(executable, model, extra=options, patience_s=PATIENCE_S) as daemon, Page(daemon, patience_s=PATIENCE_S) as page:
    try:
        page.start()
        is_accessible(page, "empty")
        settings_come_back(daemon, page)
        settings_of_others(daemon, page)
        drops(daemon, page)
        looks_closely(page)
        sizes(daemon, page)
        counts_tokens(daemon, page)
        weighs_by_keys(page)
        faults_are_short(page)
        downloads_all(page)
        compares(daemon, page)
        keeps_loras(daemon, page)
        deletes_data_sets(daemon, page)
        searches_settings(daemon, page)
        redraws_the_curve(daemon, page)
        no_errors(page, "/generate", "/png-info", "/train")
        nobody_else_is_asked(page)
        with Daemon(executable, model, extra=["--max-queue", "1"], patience_s=PATIENCE_S) as short:
            page.origin = f"http://{short.host}:{short.port}"
            compares_with_a_short_queue(page)
    except webdriver.WebDriverError as error:
        check(False, str(error))
        page.screenshot(os.environ.get("PAGE_SCREENSHOT", os.path.join(root, "failed.png")))
        print(page.text("body"), page.log("browser"))
shutil.rmtree(root)
done()
