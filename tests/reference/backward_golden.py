"""Writes tests/kernels/backward_golden.h: the gradients of each operation by torch's autograd in
double precision, dropout's mask by the Philox in this file, and optimizers in f32: AdamW by torch, Lion
by lion-pytorch, Prodigy by prodigyopt, Adafactor by transformers.

Inputs come from the generator of kernels_golden.py; the gradient of every output is stream 9.
Run from the repository's root: python3 tests/reference/backward_golden.py
"""
import math

import torch
import torch.nn.functional as F
from lion_pytorch import Lion
from prodigyopt import Prodigy
from transformers import Adafactor


def stream(s, *shape):
    i = torch.arange(math.prod(shape), dtype=torch.int64)
    u = ((i * 7919 + s * 104729 + 12345) * 2654435761) % (1 << 32)
    return (u.double() / (1 << 31) - 1).float().double().reshape(shape)


def nhwc(t): return t.permute(0, 2, 3, 1)
def nchw(t): return t.permute(0, 3, 1, 2)


out = {}


def gradients(name, y, **inputs):
    """Stores out[NAME_d_INPUT] for the loss sum(y * stream 9)."""
    y = y.contiguous()
    found = torch.autograd.grad((y * stream(9, *y.shape)).sum(), list(inputs.values()),
                                retain_graph=True)
    for key, value in zip(inputs, found):
        out[f"{name}_d_{key}"] = value


def leaf(*args): return stream(*args).requires_grad_()


x, w, b = leaf(1, 5, 6), leaf(2, 8, 6), leaf(3, 8)
gradients("linear", F.linear(x, w, b), x=x, w=w, bias=b)

x, b, row = leaf(1, 2, 5, 4, 3), leaf(3, 4), leaf(4, 2, 4)
w, w1 = leaf(2, 4, 3, 3, 3), leaf(2, 4, 3, 1, 1)
up = lambda size: F.interpolate(nchw(x), size=size, mode="nearest")
for name, y, weight in (
        ("1x1", F.conv2d(nchw(x), w1, b), w1),
        ("3x3", F.conv2d(nchw(x), w, b, padding=1), w),
        ("down", F.conv2d(nchw(x), w, b, padding=1, stride=2), w),
        ("down_right", F.conv2d(F.pad(nchw(x), (0, 1, 0, 1)), w, b, stride=2), w),
        ("up", F.conv2d(up((10, 8)), w, b, padding=1), w),
        ("up_shorter", F.conv2d(up((9, 7)), w, b, padding=1), w)):
    gradients("conv_" + name, nhwc(y) + row[:, None, None, :], x=x, w=weight, bias=b, row=row)
    out[f"conv_{name}_d_w"] = out[f"conv_{name}_d_w"].permute(0, 2, 3, 1)

x, gm, bt = leaf(1, 2, 3, 4, 6), leaf(2, 6), leaf(3, 6)
h = F.group_norm(nchw(x), 3, gm, bt, 1e-5)
gradients("group_norm", nhwc(h), x=x, gamma=gm, beta=bt)
gradients("group_norm_silu", nhwc(F.silu(h)), x=x, gamma=gm, beta=bt)
x = leaf(1, 7, 6)
gradients("layer_norm", F.layer_norm(x, (6,), gm, bt, 1e-5), x=x, gamma=gm, beta=bt)

qkv = leaf(1, 2, 5, 24)
q, k, v = (t.reshape(2, 5, 2, 4).transpose(1, 2) for t in qkv.chunk(3, -1))
att = lambda q, k, v, **kw: F.scaled_dot_product_attention(q, k, v, scale=0.7, **kw) \
    .transpose(1, 2).flatten(2)
gradients("attention", att(q, k, v), qkv=qkv)
gradients("attention_causal", att(q, k, v, is_causal=True), qkv=qkv)
# Keys and queries differ in number, each row has its own number of keys, and k and v are parts of
# one kv.
q, kv = leaf(1, 2, 3, 8), leaf(2, 2, 6, 16)
heads = lambda t: t.reshape(2, -1, 2, 4).transpose(1, 2)
mask = (torch.arange(6)[None] < torch.tensor([4, 6])[:, None])[:, None, None]
gradients("attention_lengths", att(heads(q), heads(kv[..., :8]), heads(kv[..., 8:]), attn_mask=mask),
          q=q, kv=kv)

table, positions = leaf(1, 5, 4), leaf(2, 4, 4)
ids = torch.tensor([[3, 0, 3], [1, 3, 0]])
gradients("embedding", table[ids] + positions[:3], table=table, positions=positions)

x = (4 * stream(1, 3, 9)).requires_grad_()
for name, f in (("silu", F.silu), ("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x)),
                ("gelu", F.gelu)):
    gradients(name, f(x), x=x)
h = (4 * stream(1, 3, 10)).requires_grad_()
gradients("geglu", h[:, :5] * F.gelu(h[:, 5:]), h=h)

# Two low-rank terms: one for all outputs, one for outputs 2 to 4. The second has rank 17, more than
# one panel holds.
x = leaf(1, 2, 5, 4, 3)
for name, taps in (("linear", 1), ("down", 3)):
    d0, u0 = leaf(2, 2, 3, taps, taps), leaf(3, 5, 2, 1, 1)
    d1, u1 = leaf(4, 17, 3, taps, taps), leaf(5, 3, 17, 1, 1)
    c = lambda d, u: F.conv2d(F.conv2d(nchw(x), d, padding=taps // 2, stride=(taps + 1) // 2), u)
    y = nhwc(0.5 * c(d0, u0) + F.pad(-1.25 * c(d1, u1), (0, 0, 0, 0, 2, 0)))
    gradients("low_rank_" + name, y, x=x, down0=d0, up0=u0, down1=d1, up1=u1)
    for i in "01":
        out[f"low_rank_{name}_d_down{i}"] = out[f"low_rank_{name}_d_down{i}"].permute(0, 2, 3, 1)

prediction, target, weights = leaf(1, 2, 3, 2, 2), stream(2, 2, 3, 2, 2), torch.tensor([0.5, -3.0])
loss = F.mse_loss(prediction, target, reduction="none").mean((1, 2, 3))
out["mse"] = loss.detach()
out["mse_d_prediction"], = torch.autograd.grad((loss * weights).sum(), prediction)


def philox(counter, key):
    """Random123's philox4x32-10, written from the paper."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


# Known answers of Random123 (kat_vectors).
assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
assert philox([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
seed, step, layer, p = 0x123456789ABCDEF0, 0x500000007, 3, torch.tensor(0.3).double().item()
words = [w for i in range(8) for w in
         philox([i, step & 0xFFFFFFFF, step >> 32, layer], [seed & 0xFFFFFFFF, seed >> 32])][:30]
keep = torch.tensor([float(w / 2**32 >= p) for w in words], dtype=torch.float64)
out["dropout"] = stream(1, 30) * keep / (1 - p)

parameter = torch.nn.Parameter(stream(1, 12).float())
optimizer = torch.optim.AdamW([parameter], lr=0.01, betas=(0.9, 0.99), eps=0.01, weight_decay=0.1,
                              foreach=False)
for step in range(3):
    parameter.grad = 2 * stream(2 + step, 12).float()
    optimizer.step()
out["adamw"] = parameter.detach()
out["adamw_m"] = optimizer.state[parameter]["exp_avg"]
out["adamw_v"] = optimizer.state[parameter]["exp_avg_sq"]


def three_steps(make, *shape):
    """Returns the parameter and the optimizer's state after three steps."""
    parameter = torch.nn.Parameter(stream(1, *shape).float())
    optimizer = make([parameter])
    for step in range(3):
        parameter.grad = 2 * stream(2 + step, *shape).float()
        optimizer.step()
    return parameter.detach(), optimizer.state[parameter], optimizer


out["lion"], state, _ = three_steps(lambda p: Lion(p, lr=0.01, betas=(0.9, 0.99), weight_decay=0.1), 12)
out["lion_m"] = state["exp_avg"]
# With this d_coef the estimates of d stay below d0, so d is d0 all the time.
out["prodigy"], state, optimizer = three_steps(
    lambda p: Prodigy(p, lr=0.02, betas=(0.9, 0.99), beta3=0.95, eps=0.01, weight_decay=0.1, d0=0.5, d_coef=1e-6), 12)
assert optimizer.param_groups[0]["d"] == 0.5
for mine, name in (("m", "exp_avg"), ("v", "exp_avg_sq"), ("s", "s")):
    out["prodigy_" + mine] = state[name]
out["prodigy_sums"] = torch.tensor([optimizer.param_groups[0][key] for key in ("d_numerator", "d_denom")])
for name, shape in (("matrix", (5, 3)), ("kernels", (2, 2, 3, 3))):
    parameter, state, _ = three_steps(
        lambda p: Adafactor(p, lr=0.1, clip_threshold=0.5, weight_decay=0.1, relative_step=False), *shape)
    out["adafactor_" + name] = parameter.permute(0, 2, 3, 1) if len(shape) == 4 else parameter
    out[f"adafactor_{name}_rows"], out[f"adafactor_{name}_cols"] = state["exp_avg_sq_row"], state["exp_avg_sq_col"]

with open("tests/kernels/backward_golden.h", "w") as f:
    f.write("/* Written by tests/reference/backward_golden.py with torch %s. */\n"
            % torch.__version__.split("+")[0])
    f.write("#ifndef TESTS_KERNELS_BACKWARD_GOLDEN_H\n#define TESTS_KERNELS_BACKWARD_GOLDEN_H\n\n")
    for name, t in out.items():
        values = t.detach().float().flatten().tolist()
        f.write("static const float golden_%s[%d] = {\n" % (name, len(values)))
        line = "   "
        for value in values:
            text = "%.9g" % value
            text = " " + text + ("f," if "." in text or "e" in text else ".0f,")
            if len(line + text) > 100:
                f.write(line + "\n")
                line = "   "
            line += text
        f.write(line + "\n};\n")
    f.write("\n#endif\n")
