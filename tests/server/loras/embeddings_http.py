"""Textual inversion and prompt embeddings over HTTP with the bundled checkpoint, and the effect
of AUTOMATIC1111's prompt syntax on the picture. usage: embeddings_http.py EXECUTABLE MODEL"""
import base64
import json
import os
import pathlib
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from daemon import Daemon, check, done  # noqa: E402
from generate_http import png_texts  # noqa: E402

executable, model = sys.argv[1:3]
FILES = pathlib.Path(__file__).parents[2] / "engine/data/prompts/embeddings"
DRAW = {"prompt": "a house", "seed": 3, "num_inference_steps": 2, "guidance_scale": 2.5}


def latents(d, **fields):
    r = d.generate({**DRAW, "output": "latent", **fields})
    check(r.status == 200, f"{fields}: {r.status} {r.body[:200]}")
    return r.json()["images"][0]["b64_latent"]


def refused(r, status, param, words):
    error = r.error()
    check(r.status == status and error.get("param") == param and words in error.get("message", ""),
          f"{r.status} {r.body[:300]}")


def names(listing):
    return [e["name"] for e in listing["embeddings"]]


def embeddings(d, folder):
    listing = d.get("/embeddings").json()
    check(listing == {"folder": folder, "embeddings": [], "skipped": []}, f"{listing}")
    without = latents(d, prompt="a house in mystyle")
    shutil.copy(FILES / "mystyle.safetensors", folder)
    shutil.copy(FILES / "cat-toy.safetensors", folder)
    pathlib.Path(folder, "old.pt").write_bytes(b"PK\x03\x04" + bytes(26) + b"archive/data.pkl")
    check(names(d.get("/embeddings").json()) == [], "new files are not read before a rescan")
    r = d.request("POST", "/embeddings/rescan")
    check(r.status == 200 and names(r.json()) == ["cat-toy", "mystyle"], f"{r.status} {r.body}")
    toy, style = d.get("/embeddings").json()["embeddings"]
    check(toy["token"] == "<cat-toy>" and toy["format"] == "diffusers" and toy["vectors"] == 2, f"{toy}")
    check(style["token"] is None and style["format"] == "a1111" and style["vectors"] == 3 and
          style["width"] == 128, f"{style}")
    skipped = d.get("/embeddings").json()["skipped"]
    check(len(skipped) == 1 and skipped[0]["file"] == "old.pt" and
          "pickle" in skipped[0]["error"]["message"], f"{skipped}")
    with_it = latents(d, prompt="a house in mystyle")
    check(with_it != without, "the embedding changes the picture")
    check(with_it == latents(d, prompt="a house in mystyle"),
          "a repeated request draws the same latents")
    check(with_it == latents(d, prompt="a house in mystyle", prompt_syntax="a1111"),
          "the embedding works in both prompt syntaxes")
    for syntax in ("plain", "a1111"):
        r = d.generate({**DRAW, "negative_prompt": "old", "prompt_syntax": syntax})
        refused(r, 400, "negative_prompt", "old.pt: a pickle")
    os.remove(pathlib.Path(folder, "mystyle.safetensors"))
    check(latents(d, prompt="a house in mystyle") == with_it,
          "a deleted file's embedding works until the next rescan")
    d.request("POST", "/embeddings/rescan")
    check(latents(d, prompt="a house in mystyle") == without,
          "after the rescan the word is plain text again")
    r = d.request("GET", "/embeddings/rescan")
    check(r.status == 405, f"{r.status}")


def encoded(d):
    """Embeddings of zeros draw the same picture at every length. The answer repeats only their
    shape."""
    def embeds(tokens):
        return {"b64": base64.b64encode(bytes(tokens * 128 * 4)).decode(), "shape": [1, tokens, 128]}
    fields = {k: v for k, v in DRAW.items() if k != "prompt"}
    seen = set()
    for tokens in (1, 77, 100):
        r = d.generate({**fields, "prompt_embeds": embeds(tokens), "output": "latent"})
        check(r.status == 200, f"{tokens} tokens: {r.status} {r.body[:200]}")
        parameters = r.json()["parameters"]
        check(parameters["prompt_embeds"] == {"shape": [1, tokens, 128]} and "prompt" not in parameters,
              f"{parameters}")
        seen.add(r.json()["images"][0]["b64_latent"])
    check(len(seen) == 1, "zero vectors of any length draw the same latents")
    refused(d.generate({**fields, "prompt_embeds": embeds(617)}), 400, "prompt_embeds", "[1 to 616][128]")
    refused(d.generate({**fields, "prompt_embeds": embeds(2) | {"shape": [1, 256]}}), 400, "prompt_embeds",
            "this model's context")
    refused(d.generate({**DRAW, "prompt_embeds": embeds(2)}), 400, "prompt_embeds", "either prompt or")


def infotext(d):
    """The infotext has a weighted prompt unchanged, and its parameters draw the same picture
    again."""
    prompt = "a (red:1.4) house, [snow] BREAK ((night)) :1.25"
    fields = {**DRAW, "prompt": prompt, "negative_prompt": "(dark:0.5)", "prompt_syntax": "a1111"}
    r = d.generate(fields, {"Accept": "image/png"})
    check(r.status == 200, f"{r.status} {r.body[:200]}")
    texts = png_texts(r.body)
    lines = texts["parameters"].split("\n")
    check(lines[:2] == [prompt, "Negative prompt: (dark:0.5)"], f"{lines[:2]}")
    again = d.generate(json.loads(texts["latentd"]), {"Accept": "image/png"})
    check(again.status == 200 and again.body == r.body, f"{again.status}")


def count(d, prompt, **fields):
    r = d.request("POST", "/tokens", json.dumps({"prompt": prompt, **fields}), {"Content-Type": "application/json"})
    check(r.status == 200, f"{prompt[:40]}: {r.status} {r.body[:200]}")
    return r.json()


def tokens(d, folder):
    """POST /tokens counts as CLIP does (each "a" is a token, each mark of "(a:1.3)" too), and cuts
    what a drawing says that it has cut."""
    shutil.copy(FILES / "mystyle.safetensors", folder)
    check(d.request("POST", "/embeddings/rescan").status == 200, "rescan")
    for prompt, fields, expected in (
            ("", {}, (0, 1, None)), ("a a a", {}, (3, 1, None)), ("(a:1.3)", {}, (7, 1, None)),
            ("(a:1.3)", {"prompt_syntax": "a1111"}, (1, 1, None)),
            ("a BREAK a", {"prompt_syntax": "a1111"}, (2, 2, None)),
            ("a <lora:none:1>", {"prompt_syntax": "a1111"}, (1, 1, None)),
            ("[a|a a a]", {"prompt_syntax": "a1111"}, (3, 1, None)), ("a [a:a a:0.5]", {"prompt_syntax": "a1111"}, (3, 1, None)),
            ("a a AND a", {"prompt_syntax": "a1111"}, (2, 1, None)),
            # The second text begins after 20 evaluations; heun has two a step.
            ("[a:a a a:20]", {"prompt_syntax": "a1111", "num_inference_steps": 21}, (3, 1, None)),
            ("[a:a a a:20]", {"prompt_syntax": "a1111", "num_inference_steps": 20}, (1, 1, None)),
            ("[a:a a a:20]", {"prompt_syntax": "a1111", "num_inference_steps": 11, "scheduler": "heun"}, (3, 1, None)),
            ("[a:a a a:20]", {"prompt_syntax": "a1111", "num_inference_steps": 10, "scheduler": {"name": "heun"}},
             (1, 1, None)),
            ("a " * 75, {}, (75, 1, None)), ("a " * 78, {}, (78, 1, "a a a")),
            ("a " * 78, {"long_prompt": "chunk"}, (78, 2, None)),
            ("a " * 78, {"prompt_syntax": "a1111"}, (78, 2, None)), ("a mystyle", {}, (4, 1, None))):
        a = count(d, prompt, **fields)
        found = tuple((a["prompt"][k] or "").strip() or None if k == "cut" else a["prompt"][k]
                      for k in ("tokens", "chunks", "cut"))
        check(found == expected and a["chunk_tokens"] == 75 and "negative_prompt" not in a, f"{prompt[:20]}: {a}")
    print("18 texts have the tokens that CLIP gives them")
    both = count(d, "a", negative_prompt="a " * 76)
    check(both["prompt"]["tokens"] == 1 and both["negative_prompt"]["tokens"] == 76, f"{both}")
    long = "a red house, " * 30
    warning = d.generate({**DRAW, "prompt": long}).json()["warnings"][0]
    cut = count(d, long)["prompt"]["cut"]
    check(cut and f'this was cut: "{cut}"' in warning, f"{cut!r} is what a drawing cuts: {warning}")
    for body, param, words in (({}, "prompt", "a text"), ({"prompt": ["a"]}, "prompt", "a text"),
                               ({"prompt": "a", "steps": 2}, "steps", "num_inference_steps"),
                               ({"prompt": "a", "num_inference_steps": 0}, "num_inference_steps", "from 1"),
                               ({"prompt": "a", "scheduler": "hein"}, "scheduler", "heun"),
                               ({"prompt": "a", "long_prompt": "no"}, "long_prompt", "truncate"),
                               ({"prompt": "a" + " AND a" * 8, "prompt_syntax": "a1111"}, "prompt", "at most 8 parts"),
                               ({"prompt": "a", "prompt_syntax": "a1111", "long_prompt": "truncate"}, "long_prompt", "chunk"),
                               ({"prompt": "a" * 20000}, "prompt", "16384")):
        r = d.request("POST", "/tokens", json.dumps(body), {"Content-Type": "application/json"})
        refused(r, 400, param, words)
    check(d.request("POST", "/tokens?a=1", "{}", {"Content-Type": "application/json"}).status == 400,
          "a query is refused")


def main():
    with tempfile.TemporaryDirectory() as folder:
        with Daemon(executable, model, extra=["--dtype", "f32", "--embeddings-dir", folder]) as d:
            embeddings(d, folder)
            encoded(d)
            infotext(d)
            tokens(d, folder)
    done()


main()
