"""Writes tests/kernels/reference_golden.h: each operation of the reference on small inputs, by torch.

Inputs come from a generator that the test also has: value i of stream s is
((i * 7919 + s * 104729 + 12345) * 2654435761 mod 2^32) / 2^31 - 1, as f32.
Run from the repository's root: python3 tests/reference/kernels_golden.py
"""
import torch, torch.nn.functional as F, math

def stream(s, *shape):
    n = math.prod(shape)
    i = torch.arange(n, dtype=torch.int64)
    u = ((i * 7919 + s * 104729 + 12345) * 2654435761) % (1 << 32)
    return (u.double() / (1 << 31) - 1).float().double().reshape(shape)

out = {}
def nhwc(t): return t.permute(0, 2, 3, 1).contiguous()
def nchw(t): return t.permute(0, 3, 1, 2)

x = stream(1, 5, 6); w = stream(2, 8, 6); b = stream(3, 8); r = stream(4, 5, 8)
out["linear_gelu_residual"] = F.gelu(F.linear(x, w, b)) + r
out["linear_silu"] = F.silu(F.linear(x, w, b))
h = F.linear(x, w, b)
out["linear_quick_gelu"] = h * torch.sigmoid(1.702 * h)
a, g = h.chunk(2, -1)
out["linear_geglu"] = a * F.gelu(g)

x = stream(1, 2, 5, 4, 3); w = stream(2, 4, 3, 3, 3); b = stream(3, 4); row = stream(4, 2, 4)
c = lambda **k: nhwc(F.conv2d(nchw(x), w, b, **k))
out["conv_3x3_row_add"] = c(padding=1) + row[:, None, None, :]
out["conv_down"] = c(padding=1, stride=2)
out["conv_down_right"] = nhwc(F.conv2d(F.pad(nchw(x), (0, 1, 0, 1)), w, b, stride=2))
out["conv_up"] = nhwc(F.conv2d(F.interpolate(nchw(x), scale_factor=2, mode="nearest"), w, b, padding=1))
out["conv_up_shorter"] = nhwc(F.conv2d(F.interpolate(nchw(x), size=(9, 7), mode="nearest"), w, b, padding=1))

x = stream(1, 2, 3, 4, 6); gm = stream(2, 6); bt = stream(3, 6)
out["group_norm_silu"] = nhwc(F.silu(F.group_norm(nchw(x), 3, gm, bt, 1e-5)))
x = stream(1, 7, 6)
out["layer_norm"] = F.layer_norm(x, (6,), gm, bt, 1e-5)

qkv = stream(1, 2, 5, 24)
q, k, v = (t.reshape(2, 5, 2, 4).transpose(1, 2) for t in qkv.chunk(3, -1))
att = lambda **kw: F.scaled_dot_product_attention(q, k, v, scale=0.7, **kw).transpose(1, 2).reshape(2, 5, 8)
out["attention"] = att()
out["attention_causal"] = att(is_causal=True)

a = stream(1, 2, 3, 4); b = stream(2, 2, 3, 4); m = stream(3, 2, 3, 1)
out["blend"] = torch.lerp(a, b, m)

from diffusers.models.embeddings import get_timestep_embedding
t = torch.tensor([0.0, 1.0, 999.0])
out["timesteps"] = get_timestep_embedding(t, 8, flip_sin_to_cos=True, downscale_freq_shift=0)
out["timesteps_sin_first"] = get_timestep_embedding(t, 8, flip_sin_to_cos=False, downscale_freq_shift=1)

with open("tests/kernels/reference_golden.h", "w") as f:
    f.write("/* Written by tests/reference/kernels_golden.py with torch %s in double precision. */\n" % torch.__version__.split("+")[0])
    f.write("#ifndef TESTS_KERNELS_REFERENCE_GOLDEN_H\n#define TESTS_KERNELS_REFERENCE_GOLDEN_H\n\n")
    for name, t in out.items():
        v = t.float().flatten().tolist()
        f.write("static const float golden_%s[%d] = {\n" % (name, len(v)))
        line = "   "
        for x in v:
            s = " %.9g," % x if "." in "%.9g" % x or "e" in "%.9g" % x else " %.9g.0," % x
            s = s[:-1] + "f,"
            if len(line + s) > 100:
                f.write(line + "\n"); line = "   "
            line += s
        f.write(line + "\n};\n")
    f.write("\n#endif\n")
