"""Writes tests/models/data/sample.safetensors with the safetensors library. Our reader must read
this file, and our writer must reproduce it byte for byte."""
import os
import sys

import torch
from safetensors.torch import save_file

out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(
    os.path.dirname(__file__), "..", "models", "data", "sample.safetensors")
values = torch.tensor([[0.0, 1.0, -2.5], [65504.0, 1e-3, -0.125]])
save_file({
    "f32": values,
    "f16": values.half(),
    "bf16": values.bfloat16().reshape(1, 3, 2, 1),
    "i64": torch.tensor([[49406, -1, 2**40]]),
    "scalar": torch.tensor(4.0),
    "b.half": torch.tensor([1.5]).half(),
}, out, metadata={"format": "pt"})
