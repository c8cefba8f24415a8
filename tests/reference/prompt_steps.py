"""Writes tests/engine/data/prompt_steps/: what AUTOMATIC1111 makes of prompts with editing,
alternation and AND (schedules.json), and what is drawn with some of them (latents.safetensors), in
float32 on the CPU.

schedules.json holds answers of AUTOMATIC1111's own parser, modules/prompt_parser.py of
stable-diffusion-webui 1.10.1 with lark 1.1.2, the version that it asks for. Its path is given with
--prompt-parser; the file is not part of this project. For each prompt and number of evaluations:
the parts that AND makes, each with its weight and its schedule, a list of [last evaluation, text].
lark 1.1.2 chooses between readings of a malformed prompt in the order of a set, so by Python's
random hashes: `schedules` of a part has every answer that was got under HASHES seeds.

A drawing takes its texts from schedules.json, so the second half runs without the parser. Each text
is encoded as in prompts.py. As in AUTOMATIC1111's denoiser, evaluation n of the UNet, counted from
0, takes the first text of each schedule whose last evaluation is n or later; the texts of one
schedule are filled up with empty chunks, and the parts of a prompt with their last token; and the
output is uncond + guidance_scale * sum of weight * (cond - uncond). diffusers' pipeline does the
rest.

usage: python tests/reference/prompt_steps.py [--prompt-parser FILE]
(torch 2.15.0, diffusers 0.42.1, transformers 5.23.0, peft 0.21.2, k-diffusion 0.1.1.post1; for the
parser lark 1.1.2)
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "tests/engine/data/prompt_steps"
HASHES = 6

# The parser's own examples and ours, each for 10 evaluations.
PROMPTS = [
    "test", "a [b:3]", "a [b: 3]", "a [[[b]]:2]", "[(a:2):3]", "a [b : c : 1] d", "a[b:[c:d:2]:1]e",
    "a [unbalanced", "a [b:.5] c", "a [{b|d{:.5] c", "((a][:b:c [d:3]", "[a|(b:1.1)]", "[fe|]male",
    "[fe|||]male", "a [b:1.5] c",
    "fantasy landscape with a [mountain:lake:0.25] and [an oak:a christmas tree:0.75][ in foreground::0.6]"
    "[ in background:0.25] [shoddy:masterful:0.5]",
    "", " ", "[]", "()", "[|]", "[:]", "[::]", "[:3]", "[::3]", "[:::3]", "[a::3]", "[:a:3]", "[a:3]", "[a:b:3]",
    "[a:b:c:3]", "[a|b|c]", "[a|b:3]", "[a:b|c:3]", "[[a|b]:c:3]", "[a:[b|c]:3]", "[[a:b:3]|c]", "[a|[b|c]]",
    "[a|[b:c:5]|d]", "[[[a|b]|c]|d]", "[(a:1.2)|b]", "([a|b]:1.2)", "((a|b)) c", "(a|b) [c:3]", "a | b", "|", "a|",
    "[a:b:0]", "[a:b:0.0]", "[a:b:0.04]", "[a:b:0.1]", "[a:b:0.29]", "[a:b:0.5]", "[a:b:0.99]", "[a:b:1.0]",
    "[a:b:1]", "[a:b:1.]", "[a:b:.1]", "[a:b:5.]", "[a:b:10]", "[a:b:11]", "[a:b:1000000]", "[a:b:-1]", "[a:b:-0.5]",
    "[a:b:+3]", "[a:b:+.3]", "[a:b:1e0]", "[a:b:3e0]", "[a:b:2E1]", "[a:b:.3e1]", "[a:b:3e-1]", "[a:b:0.3e0]",
    "[a:b:3x]", "[a:b:x3]", "[a:b:3 3]", "[a:b:]", "[a:b:.]", "[a:b:+]", "[a:b:1.2.3]", "[a:b:0x5]", "[a:b:inf]",
    "[a:b:5 ]", "[a:b: 5 ]", "[a:b:\t5\n]", "[a:b:\u00a05\u3000]", "[a :b: 5]", "[ a : b : .5 ]",
    "[a:b:(5)]", "[a:b:[5]]", "[a:b:\\5]", "[a:b:\uff15]",
    r"\[a:b:3\]", r"[a\:b:3]", r"[a\|b|c]", r"[a:b\]:3]", r"[a:b:3\]", r"\\[a:b:3]", r"\\\[a:b:3]", "a\\", "[a:b:3]\\",
    "[a:b:3]\\\n", "\\", "(a\\) [b:c:3]", r"\(a [b:c:3]\)",
    "[", "]", "(", ")", ":", "[[", "]]", "[a", "a]", "(a", "a)", "[a:b:3", "a:b:3]", "[(a:b:3]", "[a):b:3]", "[a:b:3)",
    "(a:b:3)", "(a [b:c:3] d)", "(a [b:c:3] d", "a [b:c:3] d)", "[a (b] c)", "[[a:b:3]", "[a:b:3]]", "[a:b:3] ]",
    "[a:b:3]:", "[a:b:3] :", "[a:b:3][", "[a:b:3](c", "[a [b] c:d:3]", "[a (b) c:d:3]", "[a (b:1.2) c:d:3]",
    "[(a:1.2):(b:0.8):3]", "[a [b:c:2] d:e [f:g:6] h:4]", "[[[a:b:2]:c:4]:d:6]", "[a:[b:[c:d:6]:4]:2]",
    "[a:b:3][c:d:5][e:f:7]", "[a|b][c|d|e]", "[a|b] [c:d:5] [e|f|g]", "[a:b:3] and [a:b:3]", "[a, b: c, d: 0.5]",
    "a [red:blue:0.4] house, [[old]], (bright:1.3)", "[cow|horse] in a field", "a {b} <c> [d:e:4]",
    "[\u732b:\u72ac:0.5]", "\u00e9t\u00e9 [\u00e0|\u00fc\u00df|\U0001f600]", "[a\u0301:b:3]", "[a\nb:c\nd:3]", "a\n[b:c:3]\n",
    "[a:b:3 :4]", "[a::b:3]", "[a:b::3]", "[:a::3]", "a:[b:c:3]:d", "a[:b]", "[a:b]", "[a b c]", "[a:b c]",
    "[ | ]", "[a| |b]", "[a|b", "a|b]", "[a|b]]", "[[a|b]", "[a|(b|c)]", "[a|b](c", "[a|\\]|b]",
    "a AND b", "a AND b :0.5", "a :1.2 AND b :0.8 AND c", "a AND b AND c AND d AND e AND f AND g AND h",
    "CATS AND DOGS", "a and b", "SAND AND BAND", "a AND", "AND b", "AND", "a AND AND b", "a\nAND\nb", "aAND b", "a_AND b",
    "a-AND-b", "[a:b:3] AND [c|d]", "[a AND b:3]", "(a AND b:1.2)", "a :1.2", "a:1.2", "a :-0.5 AND b:+2.",
    "a : 1.5  AND  b :.5 ", "a :1.2.3 AND b :x", "a :5 AND [b:c:5]", "[a:b:3] :1.5", "a :1.2 b AND c", "\u00e9AND b",
    "a \u3000AND\u3000 b :2\u3000", "[a|b|c] :0.5 AND d", "a [b:c:0.5] d AND e [f|g] h :0.7", "a AND a :2",
]
PIECES = ["[", "]", "(", ")", ":", "|", "a", "b ", "3", " ", ".5", "\\", "[a:", "b:3]", "[c|d]", ":2]", "[e:f:4]", " AND "]

# Drawings with the bundled checkpoint. Heun, DPM2 and DPM++ SDE evaluate the UNet twice a step.
BASE = {"prompt": "", "negative": "", "scheduler": "ddim", "steps": 8, "order": 1, "guidance_scale": 5.0,
        "guidance_rescale": 0.0, "seed": 5, "options": {}}
LONG = "a red house on green hills at sunset, a blue boat on the sea by night, " * 4
DRAWN = [
    {"prompt": "a [red:blue:0.5] house on green hills"},
    {"prompt": "[a boat:a house:3] at night", "scheduler": "euler", "negative": "[night:day:0.25]"},
    {"prompt": "a [red|blue|green] house", "scheduler": "euler_ancestral"},
    {"prompt": "a red house :1.2 AND a boat at night :0.6", "scheduler": "dpmpp_2m"},
    {"prompt": "[a boat|a house] at night AND green hills :-0.5 AND a [red:blue:5] sky", "scheduler": "pndm",
     "negative": "[dark|bright]"},
    {"prompt": "a [red:blue:0.5] house", "scheduler": "heun", "steps": 6, "order": 2},
    {"prompt": "a [red|blue] house AND a [boat:tree:7] :0.7", "scheduler": "heun", "steps": 6, "order": 2,
     "negative": "[night|]"},
    {"prompt": "[a boat:a house:4] at [night|day|sunset]", "scheduler": "dpm2", "steps": 6, "order": 2},
    {"prompt": "a house AND a [boat|tree] at night :0.8", "scheduler": "dpm2_ancestral", "steps": 6, "order": 2},
    {"prompt": "a [red:blue:0.6] house AND [green|dark] hills", "scheduler": "dpmpp_sde", "steps": 6, "order": 2},
    {"prompt": "a [(red:1.4):[blue]:0.5] house AND a (boat:1.3) :0.5", "guidance_rescale": 0.7},
    {"prompt": LONG + "[at night:0.5] AND a [tree: BREAK boat:0.5] :0.5", "negative": "[" + "dark, " * 40 + "::3]",
     "scheduler": "euler", "steps": 6},
    {"prompt": "a house [at night:10] AND " + LONG, "scheduler": "unipc", "steps": 6},
]


def listed():
    """Yields (prompt, evaluations, is negative)."""
    for prompt in PROMPTS:
        yield prompt, 10, False
    for prompt in PROMPTS[:40:3] + ["a AND b :2", "[a:b:3] :1.5"]:
        yield prompt, 10, True
    for prompt, steps in (("[a:b:0.29]", 100), ("[a:b:0.5]", 1), ("[a|b]", 1), ("[a:b:1]", 1), ("[a:b:.57]", 7),
                          ("[a|b|c] [d:e:0.3]", 50), ("[a:b:0.999]", 1000)):
        yield prompt, steps, False
    draw = random.Random(25)
    for _ in range(80):
        yield "".join(draw.choice(PIECES) for _ in range(draw.randint(2, 14))), 5, False
    for case in DRAWN:
        case = BASE | case
        yield case["prompt"], case["steps"] * case["order"], False
        yield case["negative"], case["steps"] * case["order"], True


# --- AUTOMATIC1111's parser ---

def ask(path):
    """Prints the parser's answers, in a process of its own."""
    sys.path.insert(0, str(path.parent))
    sys.dont_write_bytecode = True
    parser = __import__(path.stem)
    answers = []
    for prompt, steps, negative in listed():
        parts = [(prompt, 1.0)]
        if not negative:
            (indexes,), texts, _ = parser.get_multicond_prompt_list(parser.SdConditioning([prompt]))
            parts = [(texts[index], weight) for index, weight in indexes]
        answers.append([[weight, parser.get_learned_conditioning_prompt_schedules([text], steps)[0]]
                        for text, weight in parts])
    json.dump(answers, sys.stdout)


def record(path):
    command = [sys.executable, __file__, "--prompt-parser", str(path), "--ask"]
    runs = [json.loads(subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": str(seed)}, check=True,
                                      capture_output=True, text=True).stdout) for seed in range(HASHES)]
    cases = []
    for (prompt, steps, negative), *answers in zip(listed(), *runs):
        parts = []
        for each in zip(*answers):
            schedules = []
            for _, schedule in each:
                if schedule not in schedules:
                    schedules.append(schedule)
            parts.append({"weight": each[0][0], "schedules": schedules})
        cases.append({"prompt": prompt, "evaluations": steps, "negative": negative, "parts": parts})
    FOLDER.mkdir(exist_ok=True)
    rows = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (FOLDER / "schedules.json").write_text(f"[\n{rows}\n]\n")
    several = sum(len(part["schedules"]) > 1 for case in cases for part in case["parts"])
    print(f"{len(cases)} prompts; {several} parts have several readings")


# --- drawings ---

def find_parts(recorded, prompt, evaluations, negative):
    for case in recorded:
        if (case["prompt"], case["evaluations"], case["negative"]) == (prompt, evaluations, negative):
            return [(part["weight"], part["schedules"][0]) for part in case["parts"]]
    raise SystemExit(f"schedules.json has no {prompt!r}: run with --prompt-parser")


def draw_all():
    import prompts  # first: it restricts torch to AVX2
    import latents
    import k_diffusion_samplers
    import torch
    from diffusers import StableDiffusionPipeline
    from safetensors.torch import save_file
    from schedulers import SCHEDULERS, make

    def encode_schedule(pipe, schedule):
        """Returns [(last evaluation, context), ...] with contexts of one length."""
        chunks = [prompts.chunks_of(pipe, {}, text) for _, text in schedule]
        most = max(map(len, chunks))
        known = {}
        for (_, text), own in zip(schedule, chunks):
            if text not in known:
                known[text] = torch.cat([prompts.encode_chunk(pipe, items, 0)
                                         for items in own + [[]] * (most - len(own))], 1)
        return [(last, known[text]) for last, text in schedule]

    def lengthen(schedules):
        most = max(context.shape[1] for schedule in schedules for _, context in schedule)
        return [[(last, torch.cat([c, c[:, -1:].expand(-1, most - c.shape[1], -1)], 1)) for last, c in schedule]
                for schedule in schedules]

    def at(schedule, evaluation):
        return next((context for last, context in schedule if evaluation <= last), schedule[0][1])

    class Denoiser:
        """In a `with` block the UNet takes the texts of each evaluation."""

        def __init__(self, unet, negative, parts, weights):
            self.unet, self.negative, self.parts, self.weights, self.evaluation = unet, negative, parts, weights, 0

        def __enter__(self):
            whole = self.unet.forward

            def by_step(sample, timestep, encoder_hidden_states=None, return_dict=True, **kwargs):
                x = sample.chunk(2)[0]
                run = lambda text: whole(x, timestep, text, return_dict=False, **kwargs)[0]  # noqa: E731
                uncond = run(at(self.negative, self.evaluation))
                together = uncond.clone()
                for part, weight in zip(self.parts, self.weights):
                    together += weight * (run(at(part, self.evaluation)) - uncond)
                self.evaluation += 1
                return (torch.cat([uncond, together]),)

            self.unet.forward = by_step
            return self

        def __exit__(self, *_):
            del self.unet.forward

    torch.set_num_threads(1)  # for small tensors one thread is faster
    k_diffusion_samplers.round_rightly()
    recorded = json.loads((FOLDER / "schedules.json").read_text())
    pipe = StableDiffusionPipeline.from_pretrained(latents.FOLDER, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    config = pipe.scheduler.config
    tensors, cases = {}, []
    for index, changes in enumerate(DRAWN):
        case = BASE | changes
        evaluations = case["steps"] * case["order"]
        parts = find_parts(recorded, case["prompt"], evaluations, False)
        negative = find_parts(recorded, case["negative"], evaluations, True)
        row = SCHEDULERS[case["scheduler"]]
        if "noise_sampler_seed" in row.extra:
            row = latents.dataclasses.replace(row, extra={"noise_sampler_seed": [case["seed"]]})
        pipe.scheduler = make(row, config, case["options"])
        with torch.no_grad():
            contexts = lengthen([encode_schedule(pipe, schedule) for _, schedule in parts])
            without = encode_schedule(pipe, negative[0][1])
            with Denoiser(pipe.unet, without, contexts, [weight for weight, _ in parts]) as denoiser:
                # The pipeline uses only the batch size of these embeddings.
                dummy = torch.zeros_like(contexts[0][0][1])
                tensors[f"latents_{index:02}"] = pipe(
                    prompt_embeds=dummy, negative_prompt_embeds=dummy, num_inference_steps=case["steps"],
                    guidance_scale=case["guidance_scale"], guidance_rescale=case["guidance_rescale"],
                    output_type="latent", generator=torch.Generator().manual_seed(case["seed"])).images.contiguous()
        cases.append(case)
        print(f"{index:2} {case['scheduler']}: {denoiser.evaluation} evaluations, {len(parts)} parts: "
              f"{case['prompt'][:60]}")
    path = FOLDER / "latents.safetensors"
    save_file(tensors, path, metadata={"cases": json.dumps(cases),
                                       "weights_sum": str(latents.weights_sum(latents.FOLDER))})
    print(f"{path.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompt-parser", type=pathlib.Path)
    parser.add_argument("--ask", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ask:
        ask(arguments.prompt_parser)
        return
    if arguments.prompt_parser:
        record(arguments.prompt_parser)
    draw_all()


if __name__ == "__main__":
    main()
