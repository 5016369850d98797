"""grid_sample in every mode, of images and of volumes: the kernels that take what the faster ones do not."""

from __future__ import annotations

from ptxrt.ops.framework import ROUNDING_TARGETS, KernelFamily, Role

__all__ = ["FAMILY"]

_PADDED = "u32 padding, u32 align, u64 image_stride, u64 channel_stride"
_SIZES = {
    "": f"i32 n, i32 c, i32 ih, i32 iw, i32 oh, i32 ow, {_PADDED}, u64 row_stride, u64 column_stride",
    "volume_": "i32 n, i32 c, i32 id, i32 ih, i32 iw, i32 od, i32 oh, i32 ow, "
    f"{_PADDED}, u64 depth_stride, u64 row_stride, u64 column_stride",
}
_MODES = ("bilinear", "nearest", "bicubic", "volume_bilinear", "volume_nearest")
_READ = "const T* dout_ptr, const T* input_ptr, const T* grid_ptr"
_FIXED = "u64* sums_ptr, u32* flags_ptr, const u64* largest_ptr, i32 places"
_COLLECTED = "const u64* sums_ptr, const u32* flags_ptr, const u64* largest_ptr, i32 places"


def _roles() -> dict[str, Role]:
    roles: dict[str, str] = {}
    for mode in _MODES:
        sizes = _SIZES["volume_" if mode.startswith("volume_") else ""]
        roles |= {
            mode: f"const T* input_ptr, const T* grid_ptr, T* output_ptr, {sizes}",
            f"backward_{mode}": f"{_READ}, P* dinput_ptr, T* dgrid_ptr, {sizes}",
            f"backward_fixed_{mode}": f"{_READ}, {_FIXED}, T* dgrid_ptr, {sizes}",
        }
    roles |= {
        "backward_clear": "u64* words_ptr, u64 count",
        "backward_largest": "const T* dout_ptr, u64* largest_ptr, u64 positions, u64 planes",
        "backward_collect": f"{_COLLECTED}, T* dinput_ptr, u64 count, u64 plane",
    }
    found = {f"grid_sample_modes_{name}": Role(signature, hip=True) for name, signature in roles.items()}
    rounding = Role("const P* sums_ptr, T* dinput_ptr, u64 count", hip=True, dtypes=("f16", "bf16"))
    return {**found, "grid_sample_modes_backward_round": rounding}


FAMILY = KernelFamily(
    "grid_sample_modes",
    ("f32", "f64", "f16", "bf16"),
    _roles(),
    unnamed=None,
    targets=ROUNDING_TARGETS,
    op="grid_sample",
)
