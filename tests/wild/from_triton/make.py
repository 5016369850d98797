"""Compile kernels.py to the .ptx files beside it, and write what a launch needs to kernels.json: ``python make.py``.

Needs Triton (the file names its version), and no GPU.
"""

# mypy: ignore-errors

import json
import os
from pathlib import Path

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # which would have this machine's paths

import kernels
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HERE = Path(__file__).resolve().parent
_HALF, _FLOAT, _INT = "*fp16", "*fp32", "i32"
_TILE = {"BM": 32, "BN": 32, "D": 32}
_KEYS = dict.fromkeys(("q", "k", "v", "do"), _HALF) | {"lse": _FLOAT, "delta": _FLOAT}
_SIZES = {"M": _INT, "N": _INT, "K": _INT}


def _matmul(operand, result, total, block, warps=4, stages=2, **options):
    types = {"a": operand, "b": operand, "c": result, **_SIZES}
    constants = dict(zip(("BM", "BN", "BK"), block, strict=True)) | {"SUM": total}
    return "matmul", types, constants, {"num_warps": warps, "num_stages": stages, **options}


KERNELS = {
    "softmax_rows": ("softmax_rows", {"x": _FLOAT, "y": _FLOAT, "columns": _INT, "stride": _INT}, {"BLOCK": 256}, {}),
    "softmax_turned": (
        "softmax_turned", {"x": _HALF, "y": _HALF}, {"ROWS": 32, "COLUMNS": 64}, {},
    ),
    "layer_norm_forward": (
        "layer_norm_forward",
        dict.fromkeys(("x", "y", "w", "b", "mean", "rstd"), _FLOAT) | {"columns": _INT, "eps": "fp32"},
        {"BLOCK": 128}, {},
    ),
    "layer_norm_backward": (
        "layer_norm_backward",
        dict.fromkeys(("dx", "dy", "x", "w", "mean", "rstd", "dw", "db"), _FLOAT) | {"rows": _INT, "columns": _INT},
        {"BLOCK": 256}, {"num_warps": 8},
    ),
    "layer_norm_atomic": (
        "layer_norm_atomic",
        dict.fromkeys(("dy", "x", "mean", "rstd", "dw"), _FLOAT) | {"columns": _INT},
        {"BLOCK": 256}, {"num_warps": 2},
    ),
    "matmul_f16": _matmul(_HALF, _HALF, tl.float32, (32, 32, 32), stages=3),
    "matmul_f16_large": _matmul(_HALF, _FLOAT, tl.float32, (128, 128, 32), warps=8, stages=3),
    "matmul_f16_sum_f16": _matmul(_HALF, _HALF, tl.float16, (32, 32, 32), warps=2),
    "matmul_bf16": _matmul("*bf16", "*bf16", tl.float32, (32, 64, 32)),
    "matmul_tf32": _matmul(_FLOAT, _FLOAT, tl.float32, (32, 32, 32)),
    "matmul_s8": _matmul("*i8", "*i32", tl.int32, (32, 32, 64)),
    "attention_forward": (
        "attention_forward",
        dict.fromkeys(("q", "k", "v", "o"), _HALF) | {"lse": _FLOAT, "scale": "fp32", "length": _INT},
        _TILE, {"num_warps": 2},
    ),
    "attention_delta": (
        "attention_delta", {"o": _HALF, "do": _HALF, "delta": _FLOAT, "length": _INT}, {"BM": 32, "D": 32}, {},
    ),
    "attention_backward_kv": (
        "attention_backward_kv",
        _KEYS | {"dk": _HALF, "dv": _HALF, "scale": "fp32", "length": _INT}, _TILE, {"num_stages": 2},
    ),
    "attention_backward_q": (
        "attention_backward_q",
        _KEYS | {"dq": _HALF, "scale": "fp32", "length": _INT}, _TILE, {"num_stages": 2},
    ),
}  # fmt: skip
"""Name of a file -> kernel, types, constants and options."""

_NAMES = {"*fp16": "f16*", "*bf16": "bf16*", "*fp32": "f32*", "*i8": "i8*", "*i32": "i32*", "i32": "i32", "fp32": "f32"}


def compiled(name):
    """Return a kernel's PTX and what a launch needs to know."""
    function, types, constants, options = KERNELS[name]
    jit = getattr(kernels, function)
    order = [parameter.name for parameter in jit.params]
    signature = {one: types.get(one, "constexpr") for one in order}
    # As Triton finds in most launches: addresses and sizes are multiples of 16.
    whole = {(order.index(one),): [["tt.divisibility", 16]] for one in types if types[one] != "fp32"}
    if function.startswith(("layer", "softmax")):
        whole = {place: note for place, note in whole.items() if signature[order[place[0]]] != _INT}
    source = ASTSource(fn=jit, signature=signature, constexprs=constants, attrs=whole)
    made = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"enable_fp_fusion": False, **options})
    about = made.metadata
    if about.global_scratch_size or about.profile_scratch_size:
        raise ValueError(f"{name} wants scratch memory, which the tests give none of")
    declared = [f"{_NAMES[signature[one]]} {one}" for one in order if signature[one] != "constexpr"]
    facts = {
        "entry": about.name,
        "signature": ", ".join([*declared, "u8*? global_scratch", "u8*? profile_scratch"]),
        "threads": about.num_warps * 32,
        "shared_bytes": about.shared,
        "constants": {key: value for key, value in constants.items() if isinstance(value, int)},
    }
    return made.asm["ptx"], facts


def main():
    """Write the files."""
    facts = {"triton": triton.__version__, "kernels": {}}
    for name in KERNELS:
        text, facts["kernels"][name] = compiled(name)
        (HERE / f"{name}.ptx").write_text(text)
    (HERE / "kernels.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
