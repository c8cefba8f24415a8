"""Writes tests/engine/data/prompts/: textual inversion files for the bundled checkpoint, and
prompts.safetensors: what texts become and what is drawn with them, in float32 on the CPU.

For texts in AUTOMATIC1111's syntax, its rules are written here anew and run on transformers'
CLIPTextModel. Brackets give weights. Chunks of 75 tokens end at BREAK or behind a comma. Vectors of
textual inversion replace the embeddings of tokens. Each token's hidden state is multiplied by its
weight, and then each chunk's mean is restored. Plain texts are encoded by diffusers itself, with
its load_textual_inversion.

A case is a request. `context_NN` has every EVERYth channel of its prompt's context, and
`negative_NN` the same of its negative prompt if it has one. `latents_NN` is what diffusers'
pipeline draws with these contexts, for cases that are drawn. The cases are stored as JSON in the
file's metadata. `weights_sum` there is a checksum of the weights.

usage: python tests/reference/prompts.py
(torch 2.15.0, diffusers 0.42.1, transformers 5.23.0, peft 0.21.2)
"""

import json
import math
import re
import shutil

import latents  # first: it restricts torch to AVX2
import lora_latents
import torch
from safetensors.torch import save_file

FOLDER = latents.ROOT / "tests/engine/data/prompts"
EMBEDDINGS = FOLDER / "embeddings"
EVERY = 32
PIECE = 75
BACKTRACK = 20

LONG = "a red house on green hills at sunset, a blue boat on the sea by night, " * 4
BASE = {"prompt": "", "negative": "", "syntax": "a1111", "clip_skip": 0, "guidance_scale": 4.0, "steps": 6,
        "seed": 5, "lora": None, "drawn": False}
CASES = [
    {"prompt": "a red house"},
    {"prompt": "a (red:1.4) house on [green] hills", "drawn": True},
    {"prompt": "a ((red)) house, (((on) green hills:0.7)) at sunset", "negative": "(night:1.3), [[dark]]",
     "drawn": True},
    {"prompt": "a (red house", "negative": "[dark"},
    {"prompt": "a red] house) at: (sunset:-0.5)"},
    {"prompt": r"a \(red\) house \[on\] \\hills (at\) sunset:1.2)"},
    {"prompt": "a red house BREAK green hills", "drawn": True},
    {"prompt": "BREAK a (red:1.2) house BREAK BREAK green hills BREAK", "negative": "dark BREAK night"},
    {"prompt": "(a red BREAK house:1.3)"},
    {"prompt": LONG + "(at night:1.5)", "drawn": True},
    {"prompt": LONG + "(at night:1.5)", "clip_skip": 1, "negative": "(night:1.2)", "drawn": True},
    {"prompt": ", ".join(["a house"] * 40), "negative": "tree " * 90},
    {"prompt": "tree " * 60 + ", " + "(cat " * 30, "drawn": False},
    {"prompt": "tree, " * 37 + "cat, dog"},
    {"prompt": "cat dog " * 37 + "cat, dog"},
    {"prompt": "", "negative": "()"},
    {"prompt": "(a)(red)(house) (a:1)(red:1.0)"},
    {"prompt": "a red house at night :1.5", "drawn": True},
    {"prompt": "a (red:1.4) house <lora:diffusers:0.5:0.8>",
     "lora": ["diffusers", 0.8, 0.5], "drawn": True},
    {"prompt": "a house in mystyle", "negative": "badthing, night", "drawn": True},
    {"prompt": "a (mystyle:1.3) house, MYSTYLE and [one word]", "drawn": True},
    {"prompt": "tree " * 74 + "mystyle, cat-toy cat"},
    {"prompt": "a <cat-toy> house, cat-toy", "drawn": True},
    {"prompt": "a house in mystyle, night", "negative": "badthing", "syntax": "plain", "drawn": True},
    {"prompt": "a <cat-toy>house on MyStyles hills, <CAT-TOY>", "syntax": "plain", "drawn": True},
    {"prompt": "tree " * 73 + "mystyle", "syntax": "plain"},
    {"prompt": "a (red:1.4) house BREAK [hills]", "syntax": "plain"},
]
# {file: (tensor, number of vectors, dtype)}. In AUTOMATIC1111's format (emb_params) the word in a
# prompt is the file's name. In diffusers' format it is the tensor's name.
FILES = {"mystyle": ("emb_params", 3, torch.float32), "badthing": ("emb_params", 1, torch.float16),
         "cat-toy": ("<cat-toy>", 2, torch.float32), "one word": ("<single>", None, torch.float32)}


def make_files(table):
    shutil.rmtree(FOLDER, ignore_errors=True)
    EMBEDDINGS.mkdir(parents=True)
    vectors = {}
    for index, (name, (tensor, count, dtype)) in enumerate(FILES.items()):
        drawn = torch.randn(count or 1, table.shape[1], generator=torch.Generator().manual_seed(index))
        vector = (drawn * table.std() * 2).to(dtype)
        vectors[name] = vector.float()
        save_file({tensor: vector if count else vector[0]}, EMBEDDINGS / f"{name}.safetensors")
    return vectors


def brackets(text):
    """Returns [text, weight] pieces. BREAK is a piece of weight -1, which brackets may change."""
    pieces, open_at = [], {"(": [], "[": []}

    def times(begin, factor):
        for piece in pieces[begin:]:
            piece[1] *= factor

    at = 0
    while at < len(text):
        sign = text[at]
        number = re.compile(r":\s*([+-]?[.\d]+)\s*\)").match(text, at)
        if sign == "\\":
            escaped = text[at + 1:at + 2] if text[at + 1:at + 2] in tuple("()[]\\") else ""
            pieces.append([escaped, 1.0])
            at += 1 + len(escaped)
        elif sign in "([":
            open_at[sign].append(len(pieces))
            at += 1
        elif number and open_at["("]:
            times(open_at["("].pop(), float(number[1]))
            at = number.end()
        elif sign == ")" and open_at["("]:
            times(open_at["("].pop(), 1.1)
            at += 1
        elif sign == "]" and open_at["["]:
            times(open_at["["].pop(), 1 / 1.1)
            at += 1
        else:
            end = number.end() if number else re.compile(r"[)\]:]|[^\\()\[\]:]+").match(text, at).end()
            for index, words in enumerate(re.split(r"\s*\bBREAK\b\s*", text[at:end])):
                pieces += [["BREAK", -1.0]] if index else []
                pieces.append([words, 1.0])
            at = end
    for begin in open_at["("]:
        times(begin, 1.1)
    for begin in open_at["["]:
        times(begin, 1 / 1.1)
    merged = []
    for words, weight in pieces or [["", 1.0]]:
        if merged and merged[-1][1] == weight:
            merged[-1][0] += words
        else:
            merged.append([words, weight])
    return merged


class Chunk:
    def __init__(self, items=()):
        self.items = list(items)  # (token or vector, weight)
        self.comma = None


def chunks_of(pipe, vectors, text):
    """Returns lists of (token id or vector, weight)."""
    tokenizer = pipe.tokenizer
    encode = lambda words: tokenizer(words, add_special_tokens=False).input_ids  # noqa: E731
    comma = tokenizer.get_vocab()[",</w>"]
    names = sorted(((encode(name), name) for name in vectors), key=lambda x: -len(x[0]))
    done, chunk = [], Chunk()
    for words, weight in brackets(text):
        if (words, weight) == ("BREAK", -1):
            done.append(chunk)
            chunk = Chunk()
            continue
        tokens, at = encode(words), 0
        while at < len(tokens):
            full = len(chunk.items) == PIECE
            if tokens[at] == comma:
                chunk.comma = len(chunk.items)
            elif full and chunk.comma is not None and PIECE - chunk.comma <= BACKTRACK:
                rest = chunk.items[chunk.comma + 1:]
                done.append(Chunk(chunk.items[:chunk.comma + 1]))
                chunk = Chunk(rest)
            if len(chunk.items) == PIECE:
                done.append(chunk)
                chunk = Chunk()
            found = next(((ids, name) for ids, name in names if tokens[at:at + len(ids)] == ids), None)
            new = list(vectors[found[1]]) if found else [tokens[at]]
            if len(chunk.items) + len(new) > PIECE:
                done.append(chunk)
                chunk = Chunk()
            chunk.items += [(item, weight) for item in new]
            at += len(found[0]) if found else 1
    if chunk.items or not done:
        done.append(chunk)
    return [c.items for c in done]


def encode_chunk(pipe, items, clip_skip):
    tokenizer, encoder = pipe.tokenizer, pipe.text_encoder
    end = tokenizer.eos_token_id
    padded = [(tokenizer.bos_token_id, 1.0), *items, *[(end, 1.0)] * (PIECE + 1 - len(items))]
    ids = torch.tensor([[0 if torch.is_tensor(item) else item for item, _ in padded]])
    weights = torch.tensor([weight for _, weight in padded])

    def put_vectors(_module, _inputs, embedded):
        embedded = embedded.clone()
        for place, (item, _) in enumerate(padded):
            if torch.is_tensor(item):
                embedded[0, place] = item
        return embedded

    hook = encoder.get_input_embeddings().register_forward_hook(put_vectors)
    encoded = encoder(ids, output_hidden_states=True)
    hook.remove()
    z = encoded.last_hidden_state
    if clip_skip:
        z = encoder.text_model.final_layer_norm(encoded.hidden_states[-(clip_skip + 1)])
    weighed = z * weights[None, :, None]
    return weighed * (z.double().mean() / weighed.double().mean()).float()


def encode(pipe, vectors, text, clip_skip):
    return torch.cat([encode_chunk(pipe, items, clip_skip) for items in chunks_of(pipe, vectors, text)], 1)


def parts(prompt):
    """Returns a prompt without its tags, and the weight of the whole prompt."""
    text = re.sub(r"<\w+:[^>]+>", "", prompt)
    found = re.fullmatch(r"((?:\s|.)*?)(?:\s*:\s*([-+]?(?:\d+\.?|\d*\.\d+)))?\s*", text)
    return found[1], float(found[2] or 1)


def pipeline(lora, text_weights):
    pipe = lora_latents.pipeline()
    if lora:
        lora_latents.load(pipe, [tuple(lora)], text_weights)
    if not hasattr(pipe.text_encoder, "text_model"):  # diffusers 0.42.1 uses its old name
        object.__setattr__(pipe.text_encoder, "text_model", pipe.text_encoder)
    return pipe


def contexts(case, vectors, text_weights):
    """Returns the pipeline, the contexts of prompt and negative prompt, and guidance."""
    pipe = pipeline(case["lora"], text_weights)
    if case["syntax"] == "a1111":
        text, weight = parts(case["prompt"])
        return (pipe, encode(pipe, vectors, text, case["clip_skip"]),
                encode(pipe, vectors, case["negative"], case["clip_skip"]),
                case["guidance_scale"] * weight)
    for name, (tensor, _, _) in FILES.items():
        pipe.load_textual_inversion(str(EMBEDDINGS / f"{name}.safetensors"),
                                    token=name if tensor == "emb_params" else None)
    # diffusers recognises the token only as the file spells it, so upper and lower case are changed
    # to that spelling.
    prompt = re.sub("mystyle", "mystyle", case["prompt"], flags=re.I)
    prompt = re.sub("<cat-toy>", "<cat-toy>", prompt, flags=re.I)
    positive, negative = pipe.encode_prompt(prompt, "cpu", 1, True, case["negative"],
                                            clip_skip=case["clip_skip"] or None)
    return pipe, positive, negative, case["guidance_scale"]


@torch.no_grad()
def main():
    torch.set_num_threads(1)  # for small tensors one thread is faster
    vectors = make_files(lora_latents.pipeline().text_encoder.get_input_embeddings().weight)
    text_weights = {"diffusers": lora_latents.fuse("diffusers")}
    tensors, listed = {}, []
    for index, changes in enumerate(CASES):
        case = BASE | changes
        pipe, prompt, negative, guidance = contexts(case, vectors, text_weights)
        tensors[f"context_{index:02}"] = prompt[0, :, ::EVERY].contiguous()
        if case["negative"]:
            tensors[f"negative_{index:02}"] = negative[0, :, ::EVERY].contiguous()
        assert all(math.isfinite(x) for x in prompt.flatten().tolist())
        if case["drawn"]:
            with latents.OwnTexts(pipe.unet, [negative, prompt]):
                # The pipeline uses only the batch size of these embeddings.
                tensors[f"latents_{index:02}"] = pipe(
                    prompt_embeds=prompt, negative_prompt_embeds=torch.zeros_like(prompt),
                    num_inference_steps=case["steps"], guidance_scale=guidance, output_type="latent",
                    generator=torch.Generator().manual_seed(case["seed"])).images.contiguous()
        listed.append(case)
        print(f"{index:2} {prompt.shape[1] // 77} and {negative.shape[1] // 77} chunks: {case['prompt'][:60]}")
    path = FOLDER / "prompts.safetensors"
    save_file(tensors, path, metadata={"cases": json.dumps(listed), "every": str(EVERY),
                                       "weights_sum": str(latents.weights_sum(lora_latents.MODEL))})
    print(f"{path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
