"""Files that are not valid adapters for the bundled checkpoint, each for another reason, with
words that the error must contain. Standard library only."""
import json
import struct

from lora_file import join, kohya_lora, read_tensors, targets


def _file(header, data=b""):
    """Returns a file with this header, valid or not."""
    return struct.pack("<Q", len(header)) + header + data


def wrong_loras(model):
    """Returns [(bytes, status of the answer, [words of the error])]."""
    good = kohya_lora(model, 1)
    module, outputs, inputs = targets(model)[0]
    down, up, alpha = (f"{module}.{part}" for part in ("lora_down.weight", "lora_up.weight", "alpha"))
    one = struct.pack("<f", 1)

    def changed(**parts):
        """Returns the valid file with these tensors replaced (None: removed)."""
        tensors = {**read_tensors(good), **{name: tensor for name, tensor in parts.items()}}
        return join({name: tensor for name, tensor in tensors.items() if tensor})

    def described(**members):
        """Returns a file with one tensor of one number. `members` replace parts of its
        description."""
        entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **members}
        return _file(json.dumps({alpha: entry}).encode(), one)

    dtype, shape, values = read_tensors(good)[down]
    infinite = struct.pack("<f", float("inf")) + values[4:]
    wrong = [
        (good[:-100], ["data_offsets", "lie outside of the file's"]),
        (good + b"x", ["the tensors end at byte", "but the file holds"]),
        (b"", ["the file has 0 bytes"]),
        (good[:5], ["the file has 5 bytes", "at least 8"]),
        (b"PK\3\4" + bytes(5000), ["not a safetensors file"]),
        (b"\x80\x02}q\0." + bytes(5000), ["pickle", "convert it"]),
        (struct.pack("<Q", 1 << 60) + good[8:], [f"the header claims {1 << 60} bytes", "cut short"]),
        (_file(b"{" + good[9:400]), ["header"]),
        (_file(b"[1, 2]  "), ["the header is not a JSON object"]),
        (_file(b'{"__metadata__": 7}     '), ["__metadata__ is not an object"]),
        (_file(b'{"a": 7}'), ["tensor a: its description is not an object"]),
        (_file(b"{}"), ["none of the 0 tensors"]),
        (described(dtype="F33"), [f"tensor {alpha}: dtype \"F33\" is not known"]),
        (described(shape=[1, 0]), [f"tensor {alpha}: dimension 1 is 0"]),
        (described(shape="1"), [f"tensor {alpha}: shape \"1\" is not a list"]),
        (described(data_offsets=[4]), [f"tensor {alpha}: data_offsets [4] are not two integers"]),
        (described(shape=[2]), [f"tensor {alpha}: its shape and dtype F32 need 8 bytes"]),
        (described(colour="red"), [f"tensor {alpha}: unknown key \"colour\""]),
        (described(), [f"{alpha} stands alone"]),
        (join({"a.weight": ("F32", [1], one)}), ["none of the 1 tensors is part of an adapter", "a.weight"]),
        (changed(**{up: None}), [f"{down} is there, but", "up factor", "is missing"]),
        (changed(**{down: (dtype, [shape[0], inputs - 1], values[:4 * shape[0] * (inputs - 1)])}),
         [f"{down} has the shape [{shape[0]}][{inputs - 1}]", f"needs [{shape[0]}][{inputs}]"]),
        (changed(**{down: ("I32", shape, values)}), [f"{down}: its dtype is", "F32, F16 or BF16"]),
        (changed(**{down: (dtype, shape, infinite)}), [f"{down} holds a value that is not finite"]),
        (changed(**{alpha: ("F32", [2], 2 * one)}), [f"{alpha} has 2 numbers; one is needed"]),
        (changed(**{f"{module}.hada_w1_a": ("F32", [outputs, 1], outputs * one)}), ["are of two kinds", module]),
        (join({"lora_unet_nowhere.lora_down.weight": ("F32", [1, 1], one),
               "lora_unet_nowhere.lora_up.weight": ("F32", [1, 1], one)}),
         ["none of the adapter's 1 modules is a layer of the model", "lora_unet_nowhere"]),
        (changed(**{"lora_te2_text_model_encoder_layers_0_mlp_fc1.alpha": ("F32", [1], one)}),
         ["this adapter is for Stable Diffusion XL", "lora_te2_"]),
    ]
    unsupported = ("pickle", "its dtype is", "this adapter is for")
    return [(data, 501 if any(part in word for word in words for part in unsupported) else 400, words)
            for data, words in wrong]
