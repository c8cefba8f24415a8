"""The web page in Debian's Chromium: draws, moves a LoRA's slider, inpaints with a painted mask,
cancels, trains and stops training; also by keyboard, on a phone's screen, in both colour
schemes, and without requests to other hosts. Each picture is compared with the bytes that
POST /generate answers for the same fields. usage: page_browser.py EXECUTABLE MODEL, with a
Python that has axe-core (scripts/client-env)"""
import glob
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import picture
import webdriver
from daemon import Daemon, check, done
from page import Page, is_accessible, no_errors, nobody_else_is_asked

executable, model = sys.argv[1:3]
root = tempfile.mkdtemp()
FIELDS = {"prompt": "a red house on green hills", "seed": 7, "guidance_scale": 2.5, "width": 64, "height": 64,
          "num_inference_steps": 8}
PATIENCE_S = 120  # enough with sanitizers

# Returns the mean difference of two pictures in their left and right thirds. Arguments: selectors
# of two <img>.
THIRDS = """const [a, b] = [...arguments].map((css) => {
    const image = document.querySelector(css), canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, canvas.width, canvas.height);
});
const sum = [0, 0, 0], third = (i) => Math.floor(3 * (Math.floor(i / 4) % a.width) / a.width);
for (let i = 0; i < a.data.length; i++)
    sum[third(i)] += Math.abs(a.data[i] - b.data[i]);
return [sum[0], sum[2]].map((s) => s / (a.data.length / 4));"""


# Records the pixels of each preview that the viewer shows.
WATCH = """window.previews = [];
new MutationObserver((changes) => {
    for (const { target } of changes)
        if (target.matches?.(".preview img"))
            target.decode().then(() => {
                const context = new OffscreenCanvas(8, 8).getContext("2d");
                context.drawImage(target, 0, 0, 8, 8);
                window.previews.push(context.getImageData(0, 0, 8, 8).data.join());
            }, () => {});
}).observe(document.querySelector("#viewer"), { subtree: true, attributes: true, attributeFilter: ["src"] });"""


def make_folders():
    for name in ("loras", "sets", "state", "pictures", "embeddings"):
        os.makedirs(os.path.join(root, name))
    shutil.copy(os.path.join(model, "loras", "snow.safetensors"), os.path.join(root, "loras"))
    with open(os.path.join(model, "text_encoder", "config.json"), encoding="utf-8") as f:
        width = json.load(f)["hidden_size"]
    head = json.dumps({"emb_params": {"dtype": "F32", "shape": [1, width], "data_offsets": [0, 4 * width]}}).encode()
    with open(os.path.join(root, "embeddings", "emberlight.safetensors"), "wb") as f:
        f.write(len(head).to_bytes(8, "little") + head + struct.pack(f"<{width}f", *(0.01 * (i % 7 - 3) for i in range(width))))
    for i in range(4):
        with open(os.path.join(root, "pictures", f"{i}.png"), "wb") as f:
            f.write(picture.encode(64, 64, lambda x, y, i=i: (40 * i, 200 if (x + i * y) // 8 % 2 else 60, 90)))
        with open(os.path.join(root, "pictures", f"{i}.txt"), "w", encoding="utf-8") as f:
            f.write(f"stripes number {i}\n")


def drawn_by(d, **fields):
    r = d.generate({**FIELDS, "loras": [], **fields}, {"Accept": "image/png"})
    check(r.status == 200, f"{fields}: {r.status} {r.body[:200]}")
    return r.body


def draws_by_keyboard(d, p):
    p.start()
    p.run("document.activeElement.blur();")
    for _ in range(5):  # stops: page name, two rooms, the prompt
        p.press("tab")
        if p.run('return document.activeElement.name === "prompt";'):
            break
    check(p.run('return document.activeElement.matches("[name=prompt]:focus-visible");'), "the tab key leads to the prompt")
    p.type('[name="prompt"]', FIELDS["prompt"])
    p.set(**{k: v for k, v in FIELDS.items() if k != "prompt"})
    p.press("control", "enter")
    p.wait("the picture", 'document.querySelectorAll("#gallery li").length === 1')
    check(p.shown() == drawn_by(d), "the picture is that of POST /generate")
    check(p.facts()["Seed"] == "7" and p.facts()["Size"] == "64 × 64",
          f"the page shows the picture's parameters: {p.facts()}")
    check("Done" in p.text("#status"),
          f"the status that screen readers speak says Done: {p.text('#status')}")


def a_slider_changes_the_picture(d, p):
    before = p.shown()
    p.run('document.querySelector(\'.lora[data-name="snow"] input[type="range"]\').focus();')
    for _ in range(6):
        p.press("left")
    weight = float(p.run('return document.querySelector(\'.lora[data-name="snow"] input[type="number"]\').value;'))
    check(abs(weight - 0.7) < 1e-9, f"six key presses move the weight from 1 to 0.7: {weight}")
    check(p.run('return document.querySelector(\'.lora[data-name="snow"] input[type="checkbox"]\').checked;'),
          "moving the slider switches the LoRA on")
    after = p.draw()
    check(after != before and after == drawn_by(d, loras=[{"name": "snow", "weight": 0.7}]),
          "the picture is drawn with snow at 0.7")
    check(p.facts()["LoRAs"] == "snow 0.7", f"the shown parameters name the LoRA: {p.facts()}")


def again_with_these(p):
    """"Again with these" puts the first picture's parameters back into the changed form."""
    p.set(prompt="something else", seed=1, num_inference_steps=5)
    p.run('document.querySelectorAll("#gallery li button")[1].click();')
    first = p.shown()
    p.press_button("Again with these")
    check(p.run('return document.querySelector("[name=prompt]").value;') == FIELDS["prompt"],
          "the picture's prompt is in the form")
    check(not p.run('return document.querySelector(\'.lora input[type="checkbox"]\').checked;'),
          "no LoRA is switched on")
    check(p.draw() == first, "the restored settings draw the same picture")


def has_all_fields(d, p):
    """The form has a control for each field of POST /generate, except pictures, lists and fields
    that the user does not choose."""
    api = d.get("/openapi.json").json()
    fields = api["paths"]["/generate"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    others = {"init_image", "mask_image", "loras", "model", "stream", "prompt_embeds", "negative_prompt_embeds"}
    named = set(p.run('return [...document.querySelectorAll("#ask [name]")].map((one) => one.name);'))
    check(len(fields) > 25 and set(fields) - others <= named,
          f"fields without a control: {set(fields) - others - named}")


def writes_embeddings(d, p):
    p.press_button("emberlight")
    prompt = p.run('return document.querySelector("[name=prompt]").value;')
    check(prompt == FIELDS["prompt"] + " emberlight",
          f"a click adds the embedding's name to the prompt: {prompt}")
    check(p.draw() == drawn_by(d, prompt=prompt) != drawn_by(d),
          "the picture is drawn with the embedding")
    p.set(prompt=FIELDS["prompt"])


def inpaints(d, p):
    p.press_button("Start from this")
    p.wait("the easel", 'document.querySelector(".easel")?.offsetParent && document.querySelector(".easel img").complete')
    p.drag(".easel canvas", [(-0.4, -0.4), (-0.4, 0.4), (-0.25, 0.4), (-0.25, -0.4)])
    p.set(prompt="a blue boat in the middle of the sea at night", seed=3, num_inference_steps=10)
    check(float(p.run('return document.querySelector("[name=strength]").value;')) == 1,
          "painting a mask sets the strength to 1")
    p.draw()
    changed, kept = p.run(THIRDS, ".easel img", "#viewer img")
    print(f"inpainting: mean difference of {changed:.1f} where the mask was painted, {kept:.1f} elsewhere")
    check(changed > 25 and kept < changed / 3, "only the painted part is drawn anew")
    check(p.facts()["Start picture"] == "a picture and a mask", f"{p.facts()}")
    is_accessible(p, "mask")
    p.press_button("Take the picture away")


def shows_previews(d, p):
    """Previews appear. More steps are tried if a busy machine makes the browser miss too many."""
    p.run(WATCH)
    for steps in (200, 400, 900):
        p.run("window.previews = [];")
        p.set(**FIELDS | {"num_inference_steps": steps})
        after = p.draw()
        seen = p.run("return [...new Set(window.previews)].length;")
        print(f"{seen} different previews of {steps} steps")
        check(after == drawn_by(d, num_inference_steps=steps), "the picture is that of POST /generate")
        if seen >= 3:
            break
    check(seen >= 3, "at least three previews are shown")
    p.set(num_inference_steps=FIELDS["num_inference_steps"])


def cancels(d, p):
    count = p.pictures()
    p.set(num_inference_steps=900)
    p.click("#ask button.primary")
    p.wait("progress", 'document.querySelector("#queue progress")?.value > 0')
    p.run('document.querySelector(\'#queue button[aria-label^="Cancel"]\').click();')
    check(d.gets_to_depth(0), "the drawing is cancelled")
    p.wait("the end", 'document.querySelector("#queue").hidden')
    check(p.pictures() == count, "a cancelled drawing adds no picture")
    p.set(num_inference_steps=8)


def says_what_is_wrong(p):
    p.set(width=100)
    p.click("#ask button.primary")
    p.wait("the fault", 'document.querySelector("[name=width]").getAttribute("aria-invalid")')
    check(p.run("return document.activeElement.name;") == "width",
          "the refused field has the focus")
    check("multiple of 8" in p.text(".field:has([name=width]) .fault"), p.text(".field:has([name=width]) .fault"))
    p.set(width=64)


def trains(d, p):
    p.go("train")
    p.choose_file('[name="pictures"]', *sorted(glob.glob(os.path.join(root, "pictures", "*"))))
    p.wait("four cards", 'document.querySelectorAll(".cards li").length === 4')
    p.type('[name="dataset_name"]', "stripes")
    p.press_button("Send")
    p.wait("the data set", 'document.querySelector("#train [name=dataset]").value === "stripes"')
    report = d.get("/datasets/stripes").json()
    check(report["pictures"] == 4 and report["captions"]["missing"] == 0,
          f"the uploaded data set is complete: {report}")
    p.set(max_train_steps=2000, resolution=64, rank=4, validation_prompts="stripes number 1", validation_steps=2)
    p.run('document.querySelector("#train form").requestSubmit();')
    p.wait("the loss", 'document.querySelector(".plot .mean")')
    p.wait("a validation picture", 'document.querySelector(".validations img")?.naturalWidth > 0')
    steps = p.wait("the plot to grow", 'document.querySelector(".plot .each").getAttribute("d").split("L").length > 3')
    check(steps, "the job shows its steps")
    id = d.get("/jobs").json()["jobs"][0]["id"]
    p.press_button("Cancel", "#jobs")
    check(d.get(f"/jobs/{id}?wait=60").json()["state"] == "cancelled", "the job is cancelled")
    p.wait("the page to say so", 'document.querySelector(".job .how").textContent.startsWith("cancelled")')


def shows_what_is_drawn_as_a_job(d, p):
    r = d.request("POST", "/generate?async=1", json.dumps({**FIELDS, "loras": []}), {"Content-Type": "application/json"})
    check(r.status == 202, f"the job is accepted: {r.status} {r.body[:200]}")
    id = r.json()["id"]
    p.wait("the job", f'document.querySelector(\'.joblist [data-id="{id}"] button\')')
    p.click(f'.joblist [data-id="{id}"] button')
    p.wait("it to be shown", 'document.querySelector(".job h4").textContent === arguments[0]', FIELDS["prompt"])
    p.wait("its picture", 'document.querySelector(".job .validations img")?.naturalWidth === 64')
    check(p.text(".job .how").startswith("succeeded"), p.text(".job"))
    is_accessible(p, "job")


def survives_a_reload(p):
    count = p.pictures()
    p.start()
    p.wait("the gallery", f'document.querySelectorAll("#gallery li").length === {count}')
    check(count >= 4, f"the gallery keeps its pictures: {count}")


def asks_for_a_key(p, key):
    """With a daemon that requires keys the page loads, and asks for a key before it can use the
    daemon."""
    p.open(p.origin)
    for given in ("latentd_" + "0" * 64, key):
        p.wait("the question", 'document.querySelector("#key-dialog").open')
        check(p.run("return document.activeElement.id;") == "key",
              "the field for the key has the focus")
        is_accessible(p, "key")
        p.type("#key", given)
        p.press("enter")
    p.wait("the page", "document.body.dataset.ready !== undefined")
    kept = p.run("return [Object.values(sessionStorage).includes(arguments[0]), JSON.stringify(localStorage)];", key)
    check(kept[0] and key not in kept[1], "the key is stored for this tab only")
    p.set(**FIELDS)
    check(len(p.draw()) > 1000, "the page draws with the key")
    check("key" not in p.text("#trouble").lower(),
          f"the message about the key is gone: {p.text('#trouble')}")


def switches_models(d, p):
    """The page offers the other checkpoint. Switching to it keeps the form's contents."""
    p.start()
    check(p.run('return [...document.querySelector("#model-choice").options].map((one) => one.value);') == ["one", "two"],
          "both checkpoints are offered")
    p.set(prompt="a boat at night")
    p.run("""document.querySelector("#prompt-fields").dispatchEvent(new Event("input", { bubbles: true }));
        delete document.body.dataset.ready; const choice = document.querySelector("#model-choice");
        choice.value = "two"; choice.dispatchEvent(new Event("change"));""")
    p.wait("the page anew", 'document.body.dataset.ready !== undefined')
    check(p.run('return document.querySelector("#model-choice").value;') == "two",
          "the list shows the new checkpoint")
    check(d.get("/info").json()["model"]["name"] == "two",
          f"the daemon has switched to the new checkpoint: {d.get('/info').json()['model']}")
    check(p.run('return document.querySelector("[name=prompt]").value;') == "a boat at night",
          "the switch keeps the prompt")


if not webdriver.programs():
    print("chromium and chromium-driver are not installed")
    sys.exit(77)
make_folders()
options = ["--embeddings-dir", f"{root}/embeddings", "--lora-dir", f"{root}/loras", "--state-dir", f"{root}/state", "--dataset-root", f"{root}/sets", "--dtype", "f32"]
with Daemon(executable, model, extra=options, patience_s=PATIENCE_S) as daemon, \
        Page(daemon, patience_s=PATIENCE_S) as page:
    try:
        draws_by_keyboard(daemon, page)
        a_slider_changes_the_picture(daemon, page)
        again_with_these(page)
        has_all_fields(daemon, page)
        writes_embeddings(daemon, page)
        inpaints(daemon, page)
        shows_previews(daemon, page)
        cancels(daemon, page)
        says_what_is_wrong(page)
        survives_a_reload(page)
        is_accessible(page, "draw")
        trains(daemon, page)
        is_accessible(page, "train")
        shows_what_is_drawn_as_a_job(daemon, page)
        no_errors(page, "/generate")
        nobody_else_is_asked(page)
        key = subprocess.run([executable, "key", "alice", "--api-keys", f"{root}/keys"], capture_output=True, text=True,
                             check=True).stdout.strip()
        with Daemon(executable, model, extra=["--api-keys", f"{root}/keys"], patience_s=PATIENCE_S) as guarded:
            page.origin = f"http://{guarded.host}:{guarded.port}"
            asks_for_a_key(page, key)
            nobody_else_is_asked(page)
        for name in ("one", "two"):
            shutil.copytree(model, os.path.join(root, "models", name), ignore=shutil.ignore_patterns("loras", "train"))
        with Daemon(executable, f"{root}/models/one", extra=["--model-root", f"{root}/models"],
                    patience_s=PATIENCE_S) as several:
            page.origin = f"http://{several.host}:{several.port}"
            switches_models(several, page)
    except webdriver.WebDriverError as error:
        check(False, str(error))
        page.screenshot(os.environ.get("PAGE_SCREENSHOT", os.path.join(root, "failed.png")))
        print(page.text("body"), page.log("browser"))
shutil.rmtree(root)
done()
