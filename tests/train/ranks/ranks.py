"""Jobs of several ranks under mpirun have the bytes of one process: states, metrics, results; also
when they are resumed by another number of ranks, and after signals. Ranks that cannot work together
are refused by name. usage: ranks.py EXECUTABLE
MODEL CLUSTER_MPI [all]"""
import json
import os
import random
import shutil
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "server"))
from daemon import check, done, wait_until  # noqa: E402
from run import FULL, HELD_OUT, LORA, arguments, clean, end, finish, last_state, metrics  # noqa: E402
from run import make_pictures, mpirun, result_of, root, run, run_unlike, start  # noqa: E402

everything = sys.argv[4:] == ["all"]
BF16 = {"mixed_precision": "bf16"}
# Rank 0 draws, the others wait.
DRAWN = {**{k: v for k, v in LORA.items() if "bucket" not in k}, "with_prior_preservation": True, "class_prompt": "noise",
         "num_class_images": 2, "validation_prompts": ["noise"], "validation_steps": 2, "validation_inference_steps": 3}
SOME = {"LoRA f32": ({**LORA, **HELD_OUT}, (2, 3)), "full bf16": ({**FULL, **BF16}, (2, 3))}
ALL = {"LoRA f32": ({**LORA, **HELD_OUT}, (2, 3, 4)), "LoRA bf16": ({**LORA, **BF16, "gradient_checkpointing": True},
       (2, 3, 4)), "full f32": ({**FULL, **HELD_OUT}, (2, 3, 4)), "full bf16": ({**FULL, **BF16}, (2, 3, 4)),
       "DoRA": ({**LORA, "use_dora": True, "dropout": 0}, (2, 3)), "Prodigy": ({**LORA, "optimizer": "prodigy",
       "learning_rate": 1, "use_ema": False}, (2,)), "8 bits": ({**FULL, "use_8bit_adam": True}, (3,)),
       "text encoder": ({**FULL, "train_text_encoder": True}, (2,)),
       "drawn": (DRAWN, (2,)), "cached": ({**LORA, "cache_latents": True, "shuffle_caption": False}, (2, 4))}


def ranks_have_the_bytes_of_one_process(name, job, worlds):
    status, log = run(1, job, "one")
    check(status == 0, f"{name}, one process: {status} {log}")
    one = result_of("one", job)
    for ranks in worlds:
        status, log = run(ranks, job, "many")
        check(status == 0, f"{name}, {ranks} ranks: {status} {log}")
        many = result_of("many", job) if status == 0 else None
        check(many == one, f"{name}: {ranks} ranks left {many}, one process {one}")
        print(f"{name}: {ranks} ranks: {many and many['states']}, result {many and many['result']}, "
              f"{many and len(many['metrics'])} lines of metrics; one process: {one['states']}, {one['result']}", flush=True)
        clean("many")
    clean("one")


def another_number_of_ranks_goes_on(job, worlds, steps):
    run(1, {**job, "max_train_steps": steps[-1], "checkpointing_steps": 0}, "one")
    for ranks, step in zip(worlds, steps):
        # A linear schedule would depend on the length.
        status, log = run(ranks, {**job, "max_train_steps": step, "checkpointing_steps": 0}, "many")
        check(status == 0, f"{ranks} ranks go on to step {step}: {status} {log}")
    states = [last_state(out, steps[-1]) for out in ("one", "many")]
    check(states[0] == states[1] and metrics("one") == metrics("many"), f"resumed by {worlds} ranks: {states}")
    print(f"{' -> '.join(map(str, worlds))} ranks: state {states[1]}, one process {states[0]}", flush=True)
    clean("one")
    clean("many")


def rank_process(launcher, rank):
    """The process id of a rank that this mpirun started."""
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/environ", "rb") as f:
                variables = f.read().split(b"\0")
            with open(f"/proc/{name}/stat", encoding="utf-8") as f:
                parent = int(f.read().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError):
            continue
        if parent == launcher and f"OMPI_COMM_WORLD_RANK={rank}".encode() in variables:
            return int(name)
    return None


def a_signal_ends_all_ranks_after_a_checkpoint(job):
    job = {**job, "max_train_steps": 60, "checkpointing_steps": 0, "lr_scheduler": "constant"}
    run(1, job, "one")
    for what, number, to_rank in (("SIGUSR1 to rank 1", signal.SIGUSR1, 1), ("SIGUSR1 to mpirun", signal.SIGUSR1, None),
                                  ("SIGTERM to rank 0", signal.SIGTERM, 0)):
        before = len(metrics("many")) if os.path.exists(os.path.join(root, "many")) else 0
        process = start(mpirun.command(2, *arguments(job, "many")))
        lines = os.path.join(root, "many", "metrics.jsonl")
        wait_until(lambda: os.path.exists(lines) and len(metrics("many")) >= before + 3, 60)
        target = process.pid if to_rank is None else rank_process(process.pid, to_rank)
        os.kill(target, number)
        status, log = finish(process, 60)
        stopped = [line for line in log.split("\n") if "stopped at step" in line]
        check(status == 75 and len(stopped) == 1, f"{what}: {status} {log}")
        step = int(stopped[0].split("stopped at step ")[1].split()[0]) if stopped else -1
        check(0 < step < 60 and os.path.exists(os.path.join(root, "many", f"checkpoint-{step}")) and
              len(metrics("many")) == step, f"{what}: all that was done is saved: step {step}")
        print(f"{what}: status {status}, step {step}", flush=True)
    status, log = run(3, job, "many")
    states = [last_state(out, 60) for out in ("one", "many")]
    check(status == 0 and states[0] == states[1] and metrics("one") == metrics("many"),
          f"stopped three times: state {states[1]}, one process {states[0]}; {status} {log}")
    process = start(arguments({**job, "max_train_steps": 4000}, "alone"))
    lines = os.path.join(root, "alone", "metrics.jsonl")
    wait_until(lambda: os.path.exists(lines) and len(metrics("alone")) >= 2, 60)
    process.send_signal(signal.SIGUSR1)
    status, log = finish(process, 60)
    check(status == 75 and "stopped at step" in log, f"one process: {status} {log}")
    for out in ("one", "many", "alone"):
        clean(out)


def an_error_of_one_rank_in_a_step_is_everybodys(job):
    """Rank 1's pictures disappear while the ranks exchange gradients."""
    shutil.copytree(os.path.join(root, "sets", "noise"), os.path.join(root, "its-own", "noise"))
    command = mpirun.command(1)
    job = {**job, "max_train_steps": 4000, "checkpointing_steps": 0}
    own = ("--dataset-root", os.path.join(root, "its-own"))
    process = start([*command, *arguments(job, "many"), ":", "-n", "1", *arguments(job, "many", *own)])
    lines = os.path.join(root, "many", "metrics.jsonl")
    wait_until(lambda: os.path.exists(lines) and len(metrics("many")) >= 3, 60)
    shutil.rmtree(os.path.join(root, "its-own"))
    status, log = finish(process, 60)
    said = [line for line in log.split("\n") if line.startswith("latentd train:")]
    check(status == 1 and len(said) == 1 and "rank 1: " in said[0] and "its-own" in said[0],
          f"pictures of rank 1 are gone: {status} {log}")
    print(f"pictures of rank 1 are gone: status {status}, {said}", flush=True)
    clean("many")


def killed_ranks_cost_only_time(job, kills):
    """Each start has another number of ranks, one of which is killed at a random moment."""
    job = {**job, "max_train_steps": 40, "checkpointing_steps": 3, "checkpoints_total_limit": 2}
    run(1, job, "one")
    numbers, killed, status = random.Random(1), 0, 1
    while status != 0 or killed < kills:
        if status == 0:
            clean("many")
        ranks = numbers.choice((2, 3, 4))
        process = start(mpirun.command(ranks, *arguments(job, "many")))
        target = None
        if killed < kills:
            time.sleep(numbers.uniform(0.5, 6))
            target = rank_process(process.pid, numbers.randrange(ranks))
        if target:
            ids = [rank_process(process.pid, rank) for rank in range(ranks)]
            os.kill(target, signal.SIGKILL)
            killed += 1
            check(wait_until(lambda: not any(os.path.exists(f"/proc/{id}") for id in ids if id), 10),
                  f"kill {killed}: no rank is left after 10 s: {ids}")
        status, log = finish(process, 120)
        if not check(status == 0 or target, f"nobody was killed: {status} {log}"):
            break
    states = [last_state(out, 40) for out in ("one", "many")]
    check(states[0] == states[1] and metrics("one") == metrics("many"), f"{killed} kills: state {states[1]}, not {states[0]}")
    print(f"{killed} kills: state {states[1]}, one process {states[0]}", flush=True)
    clean("one")
    clean("many")


def multiply_counts_the_ranks_of_the_first_start(job):
    once = {**job, "gradient_accumulation_steps": 4, "scale_lr": True, "checkpointing_steps": 0}
    twice = {**once, "gradient_accumulation_steps": 2, "data_parallel": "multiply"}
    for ranks, step in ((2, 2), (3, 4)):
        status, log = run(ranks, {**twice, "max_train_steps": step, "lr_scheduler": "constant"}, "many")
        check(status == 0, f"multiply, {ranks} ranks: {status} {log}")
    run(1, {**once, "lr_scheduler": "constant"}, "again")
    check(metrics("many") == metrics("again") and result_of("many", job)["result"] == result_of("again", job)["result"],
          f"2 batches times 2 ranks, resumed by 3 ranks, is 4 batches: {metrics('many')}, not {metrics('again')}")
    # The job's own configuration, in which the product stands, is the same job; what goes on from there too.
    with open(os.path.join(root, "many", "config.json"), encoding="utf-8") as f:
        own = json.load(f)
    for what, next_job in (("its config.json", {**own, "max_train_steps": 5}),
                           ("multiply", {**twice, "max_train_steps": 6, "lr_scheduler": "constant"})):
        status, log = run(2, next_job, "many")
        check(status == 0, f"{own['data_parallel']} {own['gradient_accumulation_steps']}, resumed by {what}: {status} {log}")
        print(f"2 batches times 2 ranks, resumed by {what}: status {status}", flush=True)
    status, log = run(2, {**twice, "gradient_accumulation_steps": 3, "max_train_steps": 7, "lr_scheduler": "constant"},
                      "many")
    check(status == 1 and "gradient_accumulation_steps: 6 is not allowed; 4" in log, f"another number: {status} {log}")
    status, log = run(2, {**twice, "gradient_accumulation_steps": 65536}, "no")
    check(status == 1 and "gradient_accumulation_steps: 65536 is not allowed; at most 32768" in log,
          f"too much: {status} {log}")
    for out in ("many", "again", "no"):
        clean(out)


def wrong_uses_have_their_own_errors(job):
    def refused(what, got, *words):
        status, log = got
        check(status == 1 and all(word in log for word in words), f"{what}: {status} {log}")
        print(f"{what}: {' '.join(line for line in log.split(chr(10)) if 'latentd train:' in line)[:300]}", flush=True)

    refused("more ranks than micro-batches", run(4, {**job, "gradient_accumulation_steps": 1}, "no"),
            "4 ranks share 1 micro-batch: gradient_accumulation_steps: 1 is not allowed; at least the number of ranks, 4")
    refused("levels", run_unlike(job, "no", [((), ()), (("-x", "LATENTD_CPU=portable"), ())]),
            "ranks differ in the device: rank 0 on ", "level: portable")
    make_pictures("other", 2)
    shutil.copytree(os.path.join(root, "sets", "other"), os.path.join(root, "elsewhere", "noise"))
    elsewhere = ("--dataset-root", os.path.join(root, "elsewhere"))
    refused("data sets", run_unlike(job, "no", [((), ()), ((), elsewhere)]), "ranks differ in the digest of the data set: rank 0 on ")
    refused("configurations", run_unlike(job, "no", [((), ()), ((), ("--config", other_config(job)))]),
            "ranks differ in the configuration: rank 0 on ", '"learning_rate":0.001', '"learning_rate":0.002')
    refused("a rank without pictures",
            run_unlike(job, "no", [((), ()), ((), ("--dataset-root", os.path.join(root, "nowhere")))]), "rank 1: ", "nowhere")
    refused("a rank without a model", run_unlike(job, "no", [((), ()), ((), ("--model", "/nowhere"))]), "rank 1: ", "/nowhere")
    another = ("--out", os.path.join(root, "another"))
    refused("folders that are not shared, at the first start", run_unlike(job, "some", [((), ()), ((), another)]),
            "rank 1: ", "another is not the folder that rank 0 writes to")
    check(run(2, job, "some")[0] == 0, "a job to go on from")
    left = [name for name in os.listdir(os.path.join(root, "some")) if name.startswith(".ranks-")]
    check(not left, f"left in the folder: {left}")
    refused("folders that are not shared", run_unlike({**job, "max_train_steps": 6, "lr_scheduler": "linear"}, "some",
            [((), ()), ((), another)]), "rank 1: ", "another is not the folder that rank 0 writes to")
    status, log = finish(start(["env", "LATENTD_CLUSTER_MODULE=/nowhere/cluster-mpi.so",
                                *arguments(job, "no", "--cluster", "mpi")]))
    check(status == 1 and "/nowhere/cluster-mpi.so" in log, f"without the module: {status} {log}")
    status, log = finish(start(arguments(job, "no", "--cluster", "nccl")))
    check(status == 1 and "cluster: nccl is not allowed" in log, f"no such cluster: {status} {log}")
    for out in ("no", "some", "another"):
        clean(out)


def other_config(job):
    return arguments({**job, "learning_rate": 2e-3}, "other-config")[arguments(job, "x").index("--config") + 1]


for name, (job, worlds) in (ALL if everything else SOME).items():
    ranks_have_the_bytes_of_one_process(name, job, worlds)
CONSTANT = {"lr_scheduler": "constant"}
another_number_of_ranks_goes_on({**LORA, **CONSTANT}, (1, 2, 3, 1), (1, 2, 3, 4))
if everything:
    another_number_of_ranks_goes_on({**FULL, **CONSTANT}, (1, 2, 3, 1), (1, 2, 3, 4))
    killed_ranks_cost_only_time(LORA, 50)
a_signal_ends_all_ranks_after_a_checkpoint({**LORA, **CONSTANT})
an_error_of_one_rank_in_a_step_is_everybodys({**LORA, **CONSTANT})
multiply_counts_the_ranks_of_the_first_start(LORA)
wrong_uses_have_their_own_errors(LORA)
end()
done()
