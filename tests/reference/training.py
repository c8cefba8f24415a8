"""Writes tests/train/data/*.json: learning rates, averages, loss scales, loss weights, random draws
and orders, as torch, diffusers and accelerate compute them, for the tests of train/.

usage: python tests/reference/training.py [NAME...]
(torch 2.15.0, diffusers 0.42.1, accelerate 1.15.0, peft 0.21.2, lycoris-lora 4.1.3,
lion-pytorch 0.2.5, prodigyopt 1.1.2, and bitsandbytes 0.50.2 for
adamw_8bit only; WarmupLR and DeepSpeed's loss scaler are implemented here as in deepspeed 0.19,
because that package is not needed for anything else)
"""

import json
import math
import pathlib
import sys
import tempfile

import numpy
import torch
from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
from diffusers import DDPMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel, _collate_lora_metadata, compute_snr
from diffusers.utils import convert_state_dict_to_diffusers
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from safetensors import safe_open
from transformers import CLIPTextConfig, CLIPTextModel

DATA = pathlib.Path(__file__).parents[1] / "train/data"


def adamw_of(*rates):
    return torch.optim.AdamW([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": r} for r in rates],
                             lr=rates[0])


def rates_of(opt, schedule, steps):
    """Returns the rates of every group at steps 0, 1, ..."""
    out = []
    for _ in range(steps):
        out.append([group["lr"] for group in opt.param_groups])
        opt.step()
        schedule.step()
    return out


def deepspeed_warmup(bases, warmup, kind, steps):
    """Returns the rates that WarmupLR with warmup_min_lr 0 gives the optimizer at steps 0, 1,
    ... When WarmupLR is created, its batch count is -1, and it sets the lowest rate.
    DeepSpeed's engine increases the count after each step of the optimizer."""
    warmup = max(2, warmup)
    out = []
    for count in range(-1, steps - 1):
        share = 0.0 if count < 0 else 1.0
        if 0 <= count < warmup:
            share = math.log(count + 1) / math.log(warmup) if kind == "log" else count / warmup
        out.append([base * share for base in bases])
    return out


def learning_rate():
    cases = []
    bases = (10.0, 2.5)
    for warmup, total in ((2, 10), (0, 7), (5, 5), (3, 4)):
        plain = dict(warmup_steps=warmup, total_steps=total)
        for name, own, options in (
                ("constant", {}, {}), ("constant_with_warmup", {}, {}), ("linear", {}, {}),
                ("cosine", dict(num_cycles=0.5), {}),
                ("cosine_with_restarts", dict(num_cycles=2), dict(num_cycles=2)),
                ("cosine_with_restarts", dict(num_cycles=3), dict(num_cycles=3)),
                ("polynomial", dict(power=2, end=1e-7), dict(power=2)),
                ("polynomial", dict(power=1, end=1e-7), dict(power=1)),
                ("piecewise_constant", dict(rules="1:3,0.1:6,0.02"), dict(step_rules="1:3,0.1:6,0.02"))):
            if name == "polynomial" and warmup == total:
                continue  # would divide by zero
            opt = adamw_of(*bases)
            schedule = get_scheduler(name, opt, num_warmup_steps=warmup, num_training_steps=total, **options)
            cases.append(dict(kind=name, bases=bases, rates=rates_of(opt, schedule, total + 3), **plain, **own))
        if 0 < warmup < total:
            for start, eta_min in ((0.1, 0.0), (0.25, 1.5)):
                opt = adamw_of(*bases)
                schedule = torch.optim.lr_scheduler.SequentialLR(opt, [
                    torch.optim.lr_scheduler.LinearLR(opt, start_factor=start, total_iters=warmup),
                    torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=total - warmup, eta_min=eta_min)],
                    milestones=[warmup])
                cases.append(dict(kind="warmup_cosine", bases=bases, start_factor=start, eta_min=eta_min,
                                  rates=rates_of(opt, schedule, total + 1), **plain))
        for kind in ("log", "linear"):
            cases.append(dict(kind="warmup_" + kind, bases=bases, **plain,
                              rates=deepspeed_warmup(bases, warmup, kind, total + 3)))
    return cases


def torch_scaler(overflows, **options):
    scaler = torch.amp.GradScaler("cpu", **options)
    scaler.scale(torch.ones(1))
    parameter = torch.nn.Parameter(torch.zeros(1))
    opt = torch.optim.SGD([parameter], lr=1)
    out = []
    for overflow in overflows:
        before = parameter.item()
        parameter.grad = torch.tensor([math.inf if overflow else 1.0])
        scaler.step(opt)
        scaler.update()
        out.append([int(overflow), scaler.get_scale(), int(parameter.item() != before)])
        parameter.data.zero_()
    return out


def deepspeed_scaler(overflows, scale, window, hysteresis, minimum):
    out, left, last, i = [], hysteresis, -1, 0
    for overflow in overflows:
        if overflow:
            if hysteresis == 1 or left == 1:
                scale = max(scale / 2, minimum)
            else:
                left -= 1
            last = i
        elif (i - last) % window == 0:
            left = hysteresis
            scale *= 2
        i += 1
        out.append([int(overflow), scale, int(not overflow)])
    return out


def loss_scaler():
    random = numpy.random.default_rng(1)
    patterns = [[False] * 12, [True] * 30, [False] * 7 + [True] + [False] * 9 + [True, True] + [False] * 5,
                (random.random(60) < 0.25).tolist()]
    cases = []
    for pattern in patterns:
        cases.append(dict(scale=65536, window=4, hysteresis=1, min_scale=0,
                          table=torch_scaler(pattern, growth_interval=4)))
        cases.append(dict(scale=2.0**126, window=2, hysteresis=1, min_scale=0,
                          table=torch_scaler(pattern, init_scale=2.0**126, growth_interval=2)))
        cases.append(dict(scale=65536, window=5, hysteresis=2, min_scale=1,
                          table=deepspeed_scaler(pattern, 65536, 5, 2, 1)))
        cases.append(dict(scale=16, window=3, hysteresis=3, min_scale=4,
                          table=deepspeed_scaler(pattern, 16, 3, 3, 4)))
    return cases


def ema():
    cases = []
    for options in ({}, dict(decay=0.5), dict(use_ema_warmup=True), dict(use_ema_warmup=True, power=0.75, inv_gamma=3),
                    dict(update_after_step=5), dict(min_decay=0.6, decay=0.9)):
        torch.manual_seed(0)
        parameter = torch.nn.Parameter(torch.randn(5))
        start = parameter.detach().double().tolist()
        model = EMAModel([parameter], **options)
        steps = []
        for _ in range(40):
            with torch.no_grad():
                parameter += torch.randn(5)
            model.step([parameter])
            steps.append(dict(decay=model.cur_decay_value, parameters=parameter.detach().double().tolist(),
                              average=model.shadow_params[0].double().tolist()))
        cases.append(dict(options=options, start=start, steps=steps[:3] + steps[-1:],
                          decays=[model.get_decay(i) for i in (1, 2, 3, 11, 101, 1000, 100000, 10**7)]))
    return cases


def loss():
    cases = []
    for scheduler in (DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"),
                      DDPMScheduler(beta_schedule="squaredcos_cap_v2")):
        timesteps = torch.tensor([0, 1, 10, 100, 300, 500, 700, 998])
        snr = compute_snr(scheduler, timesteps)
        for gamma in (5.0, 1.0, 20.0):
            smallest = torch.stack([snr, gamma * torch.ones_like(timesteps)], dim=1).min(dim=1)[0]
            cases.append(dict(gamma=gamma, alphas_cumprod=scheduler.alphas_cumprod[timesteps].double().tolist(),
                              epsilon=(smallest / snr).double().tolist(),
                              v=(smallest / (snr + 1)).double().tolist()))
    return cases


def draw_steps(generator, scheduler, options, shape, steps):
    """The part of diffusers' train_text_to_image.py from the posterior to the target."""
    mean = torch.linspace(-2, 2, math.prod(shape)).reshape(shape)
    log_variance = torch.linspace(-40, 3, math.prod(shape)).flip(0).reshape(shape)
    posterior = DiagonalGaussianDistribution(torch.cat([mean, log_variance], dim=1))
    out = []
    for _ in range(steps):
        latents = posterior.sample(generator=generator) * 0.18215
        noise = torch.randn(shape, generator=generator)
        if options["noise_offset"]:
            noise += options["noise_offset"] * torch.randn(shape[0], shape[1], 1, 1, generator=generator)
        used = noise
        if options["input_perturbation"]:
            used = noise + options["input_perturbation"] * torch.randn(shape, generator=generator)
        timesteps = torch.randint(0, 1000, (shape[0],), generator=generator)
        dropped = []
        if options["caption_dropout"]:
            dropped = (torch.rand(shape[0], generator=generator) < options["caption_dropout"]).int().tolist()
        noisy = scheduler.add_noise(latents, used, timesteps)
        target = scheduler.get_velocity(latents, noise, timesteps) if options["v_prediction"] else noise
        out.append(dict(timesteps=timesteps.tolist(), dropped=dropped,
                        noisy=[round(v, 7) for v in noisy.double().flatten().tolist()],
                        target=[round(v, 7) for v in target.double().flatten().tolist()]))
    return out


def draws():
    scheduler = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    cases = []
    for seed, shape, options in (
            (0, (2, 4, 3, 2), {}), (42, (3, 4, 2, 2), dict(noise_offset=0.1)),
            (7, (1, 4, 4, 4), dict(input_perturbation=0.1, caption_dropout=0.5)),
            (2**32 + 3, (5, 4, 2, 1), dict(noise_offset=0.05, input_perturbation=0.2, caption_dropout=0.3,
                                           v_prediction=True))):
        full = dict(noise_offset=0, input_perturbation=0, caption_dropout=0, v_prediction=False)
        full.update(options)
        generator = torch.Generator().manual_seed(seed)
        cases.append(dict(seed=seed, shape=shape, steps=draw_steps(generator, scheduler, full, shape, 2), **full))
    return dict(alphas_cumprod=scheduler.alphas_cumprod.double().tolist(), cases=cases)


def order():
    cases = []
    for count, batch_size, world in ((10, 3, 1), (10, 3, 2), (7, 2, 3), (12, 4, 3), (3, 4, 2), (13, 2, 4), (1, 1, 3),
                                     (100, 7, 5)):
        for epoch in (0, 1, 5):
            ranks = []
            for rank in range(world):
                sampler = SeedableRandomSampler(range(count), data_seed=42)
                sampler.set_epoch(epoch)
                batches = torch.utils.data.BatchSampler(sampler, batch_size, drop_last=False)
                if world > 1:  # with one process accelerate does not shard
                    batches = BatchSamplerShard(batches, world, rank)
                ranks.append(list(batches))
            cases.append(dict(seed=42, epoch=epoch, count=count, batch_size=batch_size, world=world, ranks=ranks))
    return cases


def small_unet():
    return UNet2DConditionModel(
        sample_size=8, block_out_channels=(16, 32), layers_per_block=1, cross_attention_dim=24, attention_head_dim=4,
        norm_num_groups=8, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))


def small_text_encoder():
    return CLIPTextModel(CLIPTextConfig(
        vocab_size=50, max_position_embeddings=11, hidden_size=32, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, bos_token_id=0, eos_token_id=1, pad_token_id=1))


UNET_TARGETS = ["to_k", "to_q", "to_v", "to_out.0", "conv1", "proj_in", "ff.net.2", "conv"]
TEXT_TARGETS = ["q_proj", "v_proj", "fc1"]


def factors_of(model, prefix):
    """Returns lora_A of every adapted layer, in the order of creation."""
    out = []
    for name, module in model.named_modules():
        if hasattr(module, "lora_A"):
            weight = module.lora_A["default"].weight.detach().double().flatten()
            out.append(dict(name=prefix + name, shape=list(module.lora_A["default"].weight.shape),
                            first=weight[:3].tolist(), last=weight[-1].item(), norm=weight.norm().item()))
    return out


def parameters():
    cases = []
    for init, word, rank in (("gaussian", "gaussian", 4), (True, "kaiming", 3)):
        unet, text_encoder = small_unet(), small_text_encoder()
        torch.manual_seed(11)
        unet.add_adapter(LoraConfig(r=rank, lora_alpha=8, init_lora_weights=init, target_modules=UNET_TARGETS))
        text_encoder.add_adapter(LoraConfig(r=rank, lora_alpha=8, init_lora_weights=init, target_modules=TEXT_TARGETS))
        cases.append(dict(init=word, rank=rank, seed=11,
                          factors=factors_of(unet, "") + factors_of(text_encoder, "text_model."),
                          after=torch.randn(4).tolist()))
    return cases


def save_adapter():
    """Returns what StableDiffusionPipeline.save_lora_weights writes for the adapters of
    `parameters`."""
    unet, text_encoder = small_unet(), small_text_encoder()
    unet.add_adapter(LoraConfig(r=4, lora_alpha=8, init_lora_weights="gaussian", target_modules=UNET_TARGETS))
    text_encoder.add_adapter(LoraConfig(r=4, lora_alpha=8, init_lora_weights="gaussian",
                                        target_modules=TEXT_TARGETS))
    with tempfile.TemporaryDirectory() as folder:
        StableDiffusionPipeline.save_lora_weights(
            folder, unet_lora_layers=convert_state_dict_to_diffusers(get_peft_model_state_dict(unet)),
            text_encoder_lora_layers=convert_state_dict_to_diffusers(get_peft_model_state_dict(text_encoder)),
            **_collate_lora_metadata({"unet": unet, "text_encoder": text_encoder}))
        with safe_open(folder + "/pytorch_lora_weights.safetensors", "pt") as file:
            return dict(tensors={name: list(file.get_tensor(name).shape) for name in sorted(file.keys())},
                        metadata=json.loads(file.metadata()["lora_adapter_metadata"]))


def save_products():
    """Returns names and shapes of the UNet's tensors, of DoRA as diffusers writes it, and of DoRA, LoHa
    and LoKr as LyCORIS does."""
    from lycoris.modules.locon import LoConModule
    from lycoris.modules.loha import LohaModule
    from lycoris.modules.lokr import LokrModule
    unet = small_unet()
    unet.add_adapter(LoraConfig(r=4, lora_alpha=8, use_dora=True, target_modules=UNET_TARGETS))
    with tempfile.TemporaryDirectory() as folder:
        StableDiffusionPipeline.save_lora_weights(folder, unet_lora_layers=get_peft_model_state_dict(unet),
                                                  **_collate_lora_metadata({"unet": unet}))
        with safe_open(folder + "/pytorch_lora_weights.safetensors", "pt") as file:
            cases = [dict(name="dora", tensors={name: list(file.get_tensor(name).shape) for name in file.keys()},
                          metadata=json.loads(file.metadata()["lora_adapter_metadata"]))]
    for name, kind, rank, options in (
            ("dora_kohya", LoConModule, 4, dict(weight_decompose=True)), ("loha", LohaModule, 4, {}),
            ("lokr", LokrModule, 2, {}), ("lokr_both", LokrModule, 1, dict(factor=6, decompose_both=True)),
            ("lokr_whole", LokrModule, 64, dict(factor=4))):
        tensors = {}
        for layer, module in small_unet().named_modules():
            if any(layer.endswith("." + target) for target in UNET_TARGETS):
                added = kind("x", module, 1.0, rank, 8, **options)
                tensors |= {f"lora_unet_{layer.replace('.', '_')}.{key}": list(value.shape)
                            for key, value in added.state_dict().items()}
        cases.append(dict(name=name, tensors=tensors))
    return cases


def gradient(count, step):
    """The same gradients as in tests/train/optimizer_test.c."""
    i = numpy.arange(count)
    return torch.from_numpy((numpy.sin(0.37 * i + 1.7 * step) * (0.02 + 0.03 * (step % 4))).astype(numpy.float32))


COUNTS, SHAPES = (400, 208), ((25, 16), (16, 13))


def optimizer():
    from lion_pytorch import Lion
    from prodigyopt import Prodigy
    from transformers import Adafactor
    cases = []
    for name, norm, value, make in (
            ("plain", 0, 0, None), ("norm", 1.0, 0, None), ("value", 0, 0.03, None), ("both", 0.5, 0.01, None),
            ("lion", 1.0, 0, lambda p: Lion(p, betas=(0.9, 0.99))),
            ("adafactor", 1.0, 0, lambda p: Adafactor(p, relative_step=False)),
            ("prodigy", 1.0, 0.03, lambda p: Prodigy([g | {"lr": 1.0} for g in p], betas=(0.9, 0.99), d0=1e-3, d_coef=3.0,
                                                     use_bias_correction=True, safeguard_warmup=True))):
        groups = [torch.nn.Parameter(torch.from_numpy(numpy.cos(0.1 * numpy.arange(count)).astype(numpy.float32))
                                     .reshape(shape)) for count, shape in zip(COUNTS, SHAPES)]
        described = [{"params": [groups[0]], "lr": 1e-2, "weight_decay": 0.1},
                     {"params": [groups[1]], "lr": 3e-3, "weight_decay": 0.0}]
        opt = make(described) if make else torch.optim.AdamW(described, betas=(0.9, 0.99), eps=1e-8)
        schedule = get_scheduler("cosine", opt, num_warmup_steps=2, num_training_steps=12)
        norms = []
        for step in range(12):
            # Prodigy gets the same gradient again and again, so that d grows.
            flat = gradient(sum(COUNTS), 1 if name == "prodigy" else step)
            for group, part in zip(groups, torch.split(flat, COUNTS)):
                group.grad = part.reshape(group.shape).clone()
            norms.append(torch.nn.utils.clip_grad_norm_(groups, norm or math.inf).item())
            if value:
                torch.nn.utils.clip_grad_value_(groups, value)
            opt.step()
            schedule.step()
        assert name != "prodigy" or opt.param_groups[0]["d"] > 2e-3, opt.param_groups[0]["d"]
        cases.append(dict(name=name, max_grad_norm=norm, max_grad_value=value, norms=norms,
                          values=torch.cat([g.flatten() for g in groups]).detach().double().tolist()))
    return cases


def adamw_8bit():
    import bitsandbytes.functional as F  # 0.50.2; its CPU code runs here
    maps = dict(signed=F.create_dynamic_map(True), unsigned=F.create_dynamic_map(False))
    count, blocks = 600, 3
    parameter = torch.from_numpy(numpy.cos(0.1 * numpy.arange(count)).astype(numpy.float32))
    m, v = torch.zeros(count, dtype=torch.uint8), torch.zeros(count, dtype=torch.uint8)
    m_largest, v_largest = torch.zeros(blocks), torch.zeros(blocks)
    for step in range(1, 11):
        F.optimizer_update_8bit_blockwise("adam", gradient(count, step), parameter, m, v, 0.9, 0.99, 0.0, 0.0, 1e-8,
                                          step, 1e-2, maps["signed"], maps["unsigned"], m_largest, v_largest, 0.1)
    return dict(maps={k: v.double().tolist() for k, v in maps.items()}, values=parameter.double().tolist(),
                m=m.tolist(), v=v.tolist(), m_largest=m_largest.double().tolist(), v_largest=v_largest.double().tolist())


MAKERS = [learning_rate, loss_scaler, ema, loss, draws, order, parameters, save_adapter, save_products, optimizer,
          adamw_8bit]


def write(folder, maker):
    """Writes the maker's data to FOLDER/NAME.json."""
    data = maker()
    lines = data if isinstance(data, list) else [data]
    text = ",\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    (folder / f"{maker.__name__}.json").write_text(f"[\n{text}\n]\n")


def main():
    DATA.mkdir(exist_ok=True)
    names = sys.argv[1:] or [maker.__name__ for maker in MAKERS]
    for maker in MAKERS:
        if maker.__name__ in names:
            write(DATA, maker)


if __name__ == "__main__":
    main()
