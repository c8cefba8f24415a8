"""A single file without a tokenizer draws the same as its folder with CLIP's vocabulary. A
checkpoint that does not match its tokenizer is refused.

usage: single_file.py SMALL_CHECKPOINT LATENTD MERGES.txt LDM_NAMES.tsv

The folder's vocab.json is made here from the published merges by the published rule. The single
file uses the program's built-in tokenizer. Both must give the same latents, bit for bit.
"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

PROMPT = "An astronaut's caf\u00e9 on Mars, 4k!!! \u732b"
writer, latentd, merges_path, ldm_names = map(os.path.abspath, sys.argv[1:])
passed = failed = 0


def check(condition, *words):
    global passed, failed
    if condition:
        passed += 1
    else:
        failed += 1
        print("FAIL", *words)


def clip_vocabulary():
    """Returns CLIP's vocabulary: 256 byte symbols, the same symbols at the end of a word, the
    results of the merges, begin and end."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    symbols = [chr(byte) for byte in printable] + [chr(0x100 + i) for i in range(len(others))]
    with open(merges_path, encoding="utf-8") as f:
        merges = f.read().split("\n")[1:-1]
    tokens = symbols + [s + "</w>" for s in symbols] + [m.replace(" ", "") for m in merges]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    return {token: number for number, token in enumerate(tokens)}


def run(*arguments):
    done = subprocess.run([latentd, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=100)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def draw(model, *more):
    """Returns the bytes of the latents' file, or the error message."""
    out = os.path.join(work, "latents.safetensors")
    status, _, said = run("generate", "--model", model, "--prompt", PROMPT, "--seed", "5",
                          "--steps", "2", "--width", "64", "--height", "64", "--device", "cpu",
                          "--save-latents", out, "-o", os.path.join(work, "out.png"), *more)
    if status != 0:
        return said
    with open(out, "rb") as f:
        return f.read()


def make(name, tokens):
    path = os.path.join(work, name)
    subprocess.run([writer, ldm_names, str(tokens), path], check=True)
    return path


def give_tokenizer(folder, special=None):
    path = os.path.join(folder, "tokenizer")
    os.mkdir(path)
    shutil.copy(merges_path, path)
    with open(os.path.join(path, "vocab.json"), "w") as f:
        json.dump(clip_vocabulary(), f)
    if special:
        with open(os.path.join(path, "special_tokens_map.json"), "w") as f:
            json.dump(special, f)
    return path


def edit_config(path, **changes):
    with open(path) as f:
        config = json.load(f)
    with open(path, "w") as f:
        json.dump({**config, **changes}, f)


def single_files_just_work():
    folder = make("small", 49408)
    single = folder + ".safetensors"
    bare = draw(folder)
    tokenizer = give_tokenizer(folder)
    expected = draw(folder)
    check(isinstance(expected, bytes) and len(expected) > 1000, "the folder:", expected)
    check(draw(single) == expected, "the single file:", draw(single))
    check(bare == expected, "the folder without a tokenizer draws something else")
    check(draw(single, "--tokenizer", tokenizer) == expected, "with --tokenizer")
    status, said, _ = run("inspect", single)
    check(status == 0 and "CLIP's own 49408 tokens, padded with the end mark" in said, said)
    status, said, _ = run("inspect", folder)
    check(status == 0 and tokenizer in said, said)
    print(f"49408 tokens: {len(expected)} bytes of latents are the same four times")
    return folder


def sd2_pads_with_0(folder):
    """SD-2's text encoder is recognized by its activation."""
    with_end = draw(folder)
    path = os.path.join(folder, "text_encoder/config.json")
    edit_config(path, hidden_act="gelu")
    padded_with_end = draw(folder)
    shutil.rmtree(os.path.join(folder, "tokenizer"))
    bare = draw(folder)
    status, said, _ = run("inspect", folder)
    check(status == 0 and "padded with 0, as SD-2.x pads" in said, said)
    give_tokenizer(folder, {"pad_token": "!"})
    check(bare == draw(folder), "an SD-2 text encoder's prompts are not padded with 0")
    check(len({with_end, padded_with_end, bare}) == 3, "the padding makes no difference")


def the_end_mark_is_the_tokenizers(folder):
    """eos_token_id must be the tokenizer's end mark, or 2, which all configurations had before
    transformers corrected it."""
    path = os.path.join(folder, "text_encoder/config.json")
    expected = draw(folder)
    for token, right in (49407, True), (2, True), (49406, False), (320, False):
        edit_config(path, eos_token_id=token)
        drawn = draw(folder)
        check((drawn == expected) == right, f"eos_token_id {token}", drawn)
        check(right or f"eos_token_id is {token}, but the tokenizer's end mark is 49407" in str(drawn),
              drawn)
    edit_config(path, eos_token_id=2)


def other_sizes_are_refused():
    said = draw(make("grown", 49410) + ".safetensors")
    check(isinstance(said, str) and "its text encoder has 49410 tokens where CLIP's own vocabulary "
          "has 49408: name the folder of the right one with --tokenizer" in said, said)
    print(said.strip() if isinstance(said, str) else "drawn")
    status, said, _ = run("inspect", os.path.join(work, "grown"))
    check(status == 0 and "49410 tokens" in said and "--tokenizer" in said, said)


def read_safetensors(path):
    """Returns {name: (dtype, shape, bytes)}."""
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[slice(*v["data_offsets"])]) for k, v in header.items()}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data + values)]}
        data += values
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data)


def merged_files_keep_their_layout(folder):
    """Merges an adapter that contains the difference of one layer, with `latentd lora merge`. In
    the folder and in the single file, that layer's tensor becomes W + weight * difference,
    and all others keep their bytes. Both checkpoints draw the same."""
    layer, single = "model.diffusion_model.input_blocks.0.0.weight", folder + ".safetensors"
    before = read_safetensors(single)
    dtype, shape, values = before[layer]
    check(dtype == "F16", f"{layer} is {dtype}")
    own = struct.unpack(f"<{len(values) // 2}e", values)
    difference = [(i % 9 - 4) / 8 for i in range(len(own))]
    adapter = os.path.join(work, "difference.safetensors")
    write_safetensors(adapter, {"lora_unet_conv_in.diff": (
        "F32", shape, struct.pack(f"<{len(own)}f", *difference))})
    for source, out in (folder, "merged"), (single, "merged.safetensors"):
        status, _, said = run("lora", "merge", source, os.path.join(work, out), "--lora",
                              adapter + ":0.5:0")
        check(status == 0, said)
    after = read_safetensors(os.path.join(work, "merged.safetensors"))
    expected = struct.pack(f"<{len(own)}e", *(w + 0.5 * d for w, d in zip(own, difference)))
    check(after[layer] == (dtype, shape, expected), f"{layer} is not W + 0.5 difference")
    check(after.keys() == before.keys() and
          [k for k in before if after[k] != before[k]] == [layer], "other tensors changed")
    unet = "unet/diffusion_pytorch_model.safetensors"
    in_folder = read_safetensors(os.path.join(work, "merged", unet))
    check(in_folder["conv_in.weight"] == after[layer],
          "the merged folder's tensor differs from the merged file's")
    drawn = draw(os.path.join(work, "merged"))
    check(isinstance(drawn, bytes) and drawn == draw(os.path.join(work, "merged.safetensors")),
          "folder and single file draw different latents")
    check(drawn != draw(folder), "the difference makes no difference")
    status, _, said = run("lora", "merge", folder, os.path.join(work, "merged"), "--lora", adapter)
    check(status == 1 and "already there" in said, said)
    print(f"merged: {len(own)} numbers of {layer} as expected, {len(after) - 1} tensors as they were")


with tempfile.TemporaryDirectory() as work:
    small = single_files_just_work()
    merged_files_keep_their_layout(small)
    the_end_mark_is_the_tokenizers(small)
    sd2_pads_with_0(small)
    other_sizes_are_refused()
print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed else 0)
