"""AMD's machine code on the host's CPU: a kernel's disassembly, read into the instructions that machine_code.h runs.

Neither an AMD device nor its driver is needed, only AMD's compiler, its disassembler and a C++ compiler. What an
instruction does is as "RDNA3 Instruction Set Architecture" and "AMD Instinct MI200 Instruction Set Architecture"
(CDNA2) have it; names are RDNA3's, those that CDNA has for the same are in ALIASES. All instructions are here that the
kernels in kernels_hip/ become for gfx1100, gfx90a and gfx942; any other is an error.
"""

from __future__ import annotations

import ctypes
import functools
import io
import itertools
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import waves

from ptxrt.compilers._code_object import read_code_object
from ptxrt.compilers.disassembly import disassemble
from ptxrt.runtime.signature import Signature


class Fault(Exception):
    """The machine code does what it must not, or has an instruction that is not known here."""


# What each instruction does ----------------------------------------------------------------------------------------
#
# In C++, in the words of the struct Lane: f32(1) is operand 1 as a float, and operand 0 is where the result goes.
# `flag` is SCC for a scalar instruction, for a vector one the lane's bit of a mask that it writes.

VECTOR = {
    "v_mov_b32": "u32(1)",
    "v_mov_b16 l": "(u32(0) & 0xffff0000) | (u32(1) & 0xffff)",
    "v_mov_b16 h": "(u32(0) & 0xffff) | u32(1) << 16",
    "v_mov_b16 l h": "(u32(0) & 0xffff0000) | u32(1) >> 16",
    "v_mov_b16 h l": "(u32(0) & 0xffff) | u32(1) << 16",
    "v_mov_b64": "u64(1)",
    "v_not_b32": "~u32(1)",
    "v_and_b32": "u32(1) & u32(2)",
    "v_and_b32_sdwa h": "u32(1) & u32(2) >> 16",
    "v_or_b32": "u32(1) | u32(2)",
    "v_or_b32_sdwa l": "u32(1) | (u32(2) & 0xffff)",
    "v_or_b32_sdwa h": "u32(1) | u32(2) >> 16",
    "v_xor_b32": "u32(1) ^ u32(2)",
    "v_xad_u32": "(u32(1) ^ u32(2)) + u32(3)",
    "v_or3_b32": "u32(1) | u32(2) | u32(3)",
    "v_and_or_b32": "(u32(1) & u32(2)) | u32(3)",
    "v_bfi_b32": "(u32(1) & u32(2)) | (~u32(1) & u32(3))",
    "v_bfe_u32": "field(u32(1), (u32(2) & 31) | (u32(3) & 31) << 16)",
    "v_bfrev_b32": "reversed(u32(1))",
    "v_max_u32": "std::max(u32(1), u32(2))",
    "v_alignbit_b32": "(uint64_t(u32(1)) << 32 | u32(2)) >> (u32(3) & 31)",
    "v_max3_u32": "std::max(std::max(u32(1), u32(2)), u32(3))",
    "v_med3_u32": "std::max(std::min(u32(1), u32(2)), std::min(std::max(u32(1), u32(2)), u32(3)))",
    "v_perm_b32": "permuted(u32(1), u32(2), u32(3))",
    "v_pack_b32_f16": "(u32(1) & 0xffff) | u32(2) << 16",
    "v_lshlrev_b32": "u32(2) << (u32(1) & 31)",
    "v_lshlrev_b32_sdwa h": "u32(2) >> 16 << (u32(1) & 31)",
    "v_lshrrev_b32": "u32(2) >> (u32(1) & 31)",
    "v_ashrrev_i32": "i32(2) >> (u32(1) & 31)",
    "v_ashrrev_i64": "i64(2) >> (u32(1) & 63)",
    "v_lshlrev_b64": "u64(2) << (u32(1) & 63)",
    "v_lshrrev_b64": "u64(2) >> (u32(1) & 63)",
    "v_lshl_add_u64": "(u64(1) << (u32(2) & 7)) + u64(3)",
    "v_lshl_add_u32": "(u32(1) << (u32(2) & 31)) + u32(3)",
    "v_lshl_or_b32": "(u32(1) << (u32(2) & 31)) | u32(3)",
    "v_add_nc_u32": "u32(1) + u32(2)",
    "v_sub_nc_u32": "u32(1) - u32(2)",
    "v_sub_nc_u32 clamp": "u32(1) - std::min(u32(1), u32(2))",
    "v_subrev_nc_u32": "u32(2) - u32(1)",
    "v_add3_u32": "u32(1) + u32(2) + u32(3)",
    "v_add_lshl_u32": "(u32(1) + u32(2)) << (u32(3) & 31)",
    "v_mul_lo_u32": "u32(1) * u32(2)",
    "v_mul_u32_u24": "(u32(1) & 0xffffff) * (u32(2) & 0xffffff)",
    "v_mad_u32_u24": "(u32(1) & 0xffffff) * (u32(2) & 0xffffff) + u32(3)",
    "v_mul_hi_u32": "0ull + u32(1) * uint64_t(u32(2)) >> 32",
    "v_min_u32": "std::min(u32(1), u32(2))",
    "v_med3_i32": "std::max(std::min(i32(1), i32(2)), std::min(std::max(i32(1), i32(2)), i32(3)))",
    "v_maxmin_u32": "std::min(std::max(u32(1), u32(2)), u32(3))",
    "v_mbcnt_lo_u32_b32": "u32(2) + std::popcount(u32(1) & uint32_t(lanes_below()))",
    "v_mbcnt_hi_u32_b32": "u32(2) + std::popcount(u32(1) & uint32_t(lanes_below() >> 32))",
    "v_cndmask_b32": "bit(3) ? u32(2) : u32(1)",
    "v_add_f32": "f32(1) + f32(2)",
    "v_sub_f32": "f32(1) - f32(2)",
    "v_subrev_f32": "f32(2) - f32(1)",
    "v_mul_f32": "f32(1) * f32(2)",
    "v_max_f32": "std::fmax(f32(1), f32(2))",
    "v_max3_f32": "std::fmax(std::fmax(f32(1), f32(2)), f32(3))",
    "v_max_f64": "std::fmax(f64(1), f64(2))",
    "v_fma_f32": "std::fma(f32(1), f32(2), f32(3))",
    "v_fmaak_f32": "std::fma(f32(1), f32(2), f32(3))",
    "v_fmamk_f32": "std::fma(f32(1), f32(2), f32(3))",
    "v_fmac_f32": "std::fma(f32(1), f32(2), f32(0))",
    "v_madmk_f32": "mad(f32(1), f32(2), f32(3))",
    "v_mac_f32": "mad(f32(1), f32(2), f32(0))",
    "v_exp_f32": "flushed(within_an_ulp(std::exp2(double(f32(1)))))",
    "v_rcp_f32": "within_an_ulp(1.0 / f32(1))",
    "v_rcp_iflag_f32": "within_an_ulp(1.0 / f32(1))",
    "v_floor_f32": "std::floor(f32(1))",
    "v_trunc_f32": "std::trunc(f32(1))",
    "v_add_f64": "f64(1) + f64(2)",
    "v_mul_f64": "f64(1) * f64(2)",
    "v_fma_f64": "std::fma(f64(1), f64(2), f64(3))",
    "v_fmac_f64": "std::fma(f64(1), f64(2), f64(0))",
    "v_rcp_f64": "guess(1 / f64(1))",
    "v_rsq_f64": "guess(1 / std::sqrt(f64(1)))",
    "v_floor_f64": "std::floor(f64(1))",
    "v_trunc_f64": "std::trunc(f64(1))",
    "v_fract_f64": "std::min(f64(1) - std::floor(f64(1)), 0x1.fffffffffffffp-1)",
    "v_rndne_f64": "std::nearbyint(f64(1))",
    "v_ldexp_f64": "std::ldexp(f64(1), i32(2))",
    "v_frexp_mant_f64": "frexp_mantissa(f64(1))",
    "v_frexp_exp_i32_f64": "frexp_exponent(f64(1))",
    "v_div_fmas_f32": "divide_fmas(f32(1), f32(2), f32(3), bit(4))",
    "v_div_fixup_f32": "divide_fixup(f32(1), f32(2), f32(3))",
    "v_div_fmas_f64": "divide_fmas(f64(1), f64(2), f64(3), bit(4))",
    "v_div_fixup_f64": "divide_fixup(f64(1), f64(2), f64(3))",
    "v_cvt_f16_f32": "half(f32(1))",
    "v_cvt_f16_f32 l": "(u32(0) & 0xffff0000) | half(f32(1))",
    "v_cvt_f16_f32 h": "(u32(0) & 0xffff) | half(f32(1)) << 16",
    "v_cvt_f32_f16": "of_half(u32(1))",
    "v_cvt_f32_f16 l": "of_half(u32(1))",
    "v_cvt_f32_f16 h": "of_half(u32(1) >> 16)",
    "v_cvt_f32_f16_sdwa h": "of_half(u32(1) >> 16)",
    "v_cvt_f32_f64": "float(f64(1))",
    "v_cvt_f32_i32": "float(i32(1))",
    "v_cvt_f32_u32": "float(u32(1))",
    "v_cvt_f32_ubyte0": "float(u32(1) & 255)",
    "v_cvt_f64_f32": "double(f32(1))",
    "v_cvt_f64_i32": "double(i32(1))",
    "v_cvt_f64_u32": "double(u32(1))",
    "v_cvt_i32_f32": "saturated<int32_t>(f32(1))",
    "v_cvt_i32_f64": "saturated<int32_t>(f64(1))",
    "v_cvt_u32_f32": "saturated<uint32_t>(f32(1))",
    "v_cvt_u32_f64": "saturated<uint32_t>(f64(1))",
}

# By where each operand is: a word, or the lower or the upper half of one.
for _places in itertools.product("flh", repeat=3):
    _parts = {"f": "f32({})", "l": "of_half(u32({}))", "h": "of_half(u32({}) >> 16)"}
    _sum = f"std::fma({', '.join(_parts[place].format(i) for i, place in enumerate(_places, 1))})"
    VECTOR[f"v_fma_mix_f32 {''.join(_places)}"] = _sum
    VECTOR[f"v_fma_mixlo_f16 {''.join(_places)}"] = f"(u32(0) & 0xffff0000) | half({_sum})"
    VECTOR[f"v_fma_mixhi_f16 {''.join(_places)}"] = f"(u32(0) & 0xffff) | half({_sum}) << 16"

# Operand 1 is a mask that they write.
CARRY = {
    "v_add_co_u32": "carried(0ull + u32(2) + u32(3))",
    "v_sub_co_u32": "carried(0ull + u32(2) - u32(3))",
    "v_subrev_co_u32": "carried(0ull + u32(3) - u32(2))",
    "v_add_co_ci_u32": "carried(0ull + u32(2) + u32(3) + bit(4))",
    "v_sub_co_ci_u32": "carried(0ull + u32(2) - u32(3) - bit(4))",
    "v_subrev_co_ci_u32": "carried(0ull + u32(3) - u32(2) - bit(4))",
    "v_mad_u64_u32": "wide(__int128(u64(4)) + uint64_t(u32(2)) * u32(3))",
    "v_mad_i64_i32": "wide(__int128(i64(4)) + int64_t(i32(2)) * i32(3))",
    "v_div_scale_f32": "divide_scale(f32(2), f32(3), f32(4))",
    "v_div_scale_f64": "divide_scale(f64(2), f64(3), f64(4))",
}

_ORDERS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=="}
_INTEGERS = {name: f"{{0}} {sign} {{1}}" for name, sign in {**_ORDERS, "ne": "!=", "lg": "!="}.items()}
_FLOATS = {
    **{name: f"{{0}} {sign} {{1}}" for name, sign in _ORDERS.items()},
    **{f"n{name}": f"!({{0}} {sign} {{1}})" for name, sign in _ORDERS.items()},
    "lg": "({0} < {1} || {0} > {1})",
    "nlg": "!({0} < {1} || {0} > {1})",
    "o": "{0} == {0} && {1} == {1}",
    "u": "{0} != {0} || {1} != {1}",
}

# Operand 0 is a mask, EXEC for v_cmpx.
COMPARE = {
    f"{stem}_{name}_{kind}": "flag = " + test.format(f"{kind}(1)", f"{kind}(2)")
    for kinds, tests in ((("f32", "f64"), _FLOATS), (("u32", "i32", "u64", "i64"), _INTEGERS))
    for stem, kind, (name, test) in itertools.product(("v_cmp", "v_cmpx"), kinds, tests.items())
} | {
    f"{stem}_class_{kind}": f"flag = is_of_class({kind}(1), u32(2))"
    for stem, kind in itertools.product(("v_cmp", "v_cmpx"), ("f32", "f64"))
}

_LOGIC = {"and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}", "and_not1": "{0} & ~{1}", "or_not1": "{0} | ~{1}"}
_LOGIC |= {"nor": "~({0} | {1})", "nand": "~({0} & {1})", "xnor": "~({0} ^ {1})"}

SCALAR = {
    "s_mov_b32": "u32(1)",
    "s_mov_b64": "u64(1)",
    "s_movk_i32": "int32_t(int16_t(u32(1)))",
    "s_not_b32": "nonzero(~u32(1))",
    "s_not_b64": "nonzero(~u64(1))",
    "s_brev_b32": "reversed(u32(1))",
    "s_ctz_i32_b32": "u32(1) ? std::countr_zero(u32(1)) : -1",
    "s_ctz_i32_b64": "u64(1) ? std::countr_zero(u64(1)) : -1",
    "s_bcnt1_i32_b32": "nonzero(uint32_t(std::popcount(u32(1))))",
    "s_bcnt1_i32_b64": "nonzero(uint32_t(std::popcount(u64(1))))",
    "s_lshl_b32": "nonzero(u32(1) << (u32(2) & 31))",
    "s_lshr_b32": "nonzero(u32(1) >> (u32(2) & 31))",
    "s_ashr_i32": "nonzero(i32(1) >> (u32(2) & 31))",
    "s_lshl_b64": "nonzero(u64(1) << (u32(2) & 63))",
    "s_lshr_b64": "nonzero(u64(1) >> (u32(2) & 63))",
    "s_bfe_u32": "nonzero(field(u32(1), u32(2)))",
    "s_add_i32": "overflowed(int64_t(i32(1)) + i32(2))",
    "s_addk_i32": "overflowed(int64_t(i32(0)) + int16_t(u32(1)))",
    "s_sub_i32": "overflowed(int64_t(i32(1)) - i32(2))",
    "s_add_u32": "carried(0ull + u32(1) + u32(2))",
    **{f"s_lshl{n}_add_u32": f"carried((uint64_t(u32(1)) << {n}) + u32(2))" for n in (1, 2, 3, 4)},
    "s_addc_u32": "carried(0ull + u32(1) + u32(2) + flag)",
    "s_sub_u32": "carried(0ull + u32(1) - u32(2))",
    "s_subb_u32": "carried(0ull + u32(1) - u32(2) - flag)",
    "s_bfm_b32": "((1u << (u32(1) & 31)) - 1) << (u32(2) & 31)",
    "s_mul_i32": "u32(1) * u32(2)",
    "s_mulk_i32": "i32(0) * int16_t(u32(1))",
    "s_mul_hi_u32": "uint64_t(u32(1)) * u32(2) >> 32",
    "s_mul_hi_i32": "int64_t(i32(1)) * i32(2) >> 32",
    "s_min_i32": "flag = i32(1) < i32(2), std::min(i32(1), i32(2))",
    "s_max_i32": "flag = i32(1) > i32(2), std::max(i32(1), i32(2))",
    "s_min_u32": "flag = u32(1) < u32(2), std::min(u32(1), u32(2))",
    "s_max_u32": "flag = u32(1) > u32(2), std::max(u32(1), u32(2))",
    "s_cselect_b32": "flag ? u32(1) : u32(2)",
    "s_cselect_b64": "flag ? u64(1) : u64(2)",
    "v_readfirstlane_b32": "u32(1)",
    **{
        f"s_{name}_b{bits}": f"nonzero({test.format(f'u{bits}(1)', f'u{bits}(2)')})"
        for bits, (name, test) in itertools.product((32, 64), _LOGIC.items())
    },
    **{
        f"s_{name}_saveexec_b{bits}": f"save_exec({test.format(f'u{bits}(1)', 'exec()')})"
        for bits, (name, test) in itertools.product((32, 64), _LOGIC.items())
    },
    # Operand 0 is no register: these set SCC alone.
    "s_bitcmp0_b32": "flag = !(u32(1) >> (u32(2) & 31) & 1)",
    "s_bitcmp1_b32": "flag = u32(1) >> (u32(2) & 31) & 1",
    **{
        f"{stem}_{name}_{kind}": "flag = " + test.format(f"{kind}(1)", f"{kind}(2)")
        for stem, kind, (name, test) in itertools.product(("s_cmp", "s_cmpk"), ("u32", "i32", "u64"), _INTEGERS.items())
        if (stem, kind) != ("s_cmpk", "i32")  # whose constant would have to be extended
    },
}

BRANCH = {
    "s_branch": "flag = true",
    "s_cbranch_scc0": "flag = !flag",
    "s_cbranch_scc1": "flag",
    "s_cbranch_vccz": "flag = vcc() == 0",
    "s_cbranch_vccnz": "flag = vcc() != 0",
    "s_cbranch_execz": "flag = exec() == 0",
    "s_cbranch_execnz": "flag = exec() != 0",
}

CONTROL = {"s_barrier": "BARRIER", "s_endpgm": "END", "ds_bpermute_b32": "PERMUTE"} | dict.fromkeys(
    # Waits and hints. Here each access is done before the next instruction, and there are no caches.
    (
        *("s_nop", "s_clause", "s_delay_alu", "s_sendmsg", "s_inst_prefetch", "s_set_inst_prefetch_distance"),
        *("s_waitcnt", "s_waitcnt_depctr", "s_waitcnt_vscnt", "buffer_gl0_inv", "buffer_gl1_inv"),
        *("buffer_inv", "buffer_wbl2", "buffer_wbinvl1_vol", "buffer_invl2"),
    ),
    "NOTHING",
)

_BYTES = {"b32": 4, "b64": 8, "b96": 12, "b128": 16, "b256": 32, "b512": 64}

# The kind, the bytes of an element, and for how many of these one offset counts: none where it counts bytes.
MEMORY = {
    **{f"s_load_{name}": ("SCALAR_LOAD", size, 0) for name, size in _BYTES.items()},
    **{f"global_load_{name}": ("LOAD", size, 0) for name, size in {**_BYTES, "u8": 1, "u16": 2}.items()},
    **{f"global_store_{name}": ("STORE", size, 0) for name, size in {**_BYTES, "b8": 1, "b16": 2}.items()},
    "global_load_d16_u8": ("LOAD_LOW", 1, 0),
    "global_load_d16_b16": ("LOAD_LOW", 2, 0),
    "global_load_d16_hi_b16": ("LOAD_HIGH", 2, 0),
    "global_store_d16_hi_b16": ("STORE_HIGH", 2, 0),
    "global_atomic_add_f32": ("ADD_F32", 4, 0),
    "global_atomic_add_f64": ("ADD_F64", 8, 0),
    "global_atomic_add_u32": ("ADD_U32", 4, 0),
    "global_atomic_add_u64": ("ADD_U64", 8, 0),
    "global_atomic_or_b64": ("OR_B64", 8, 0),
    "ds_add_u64": ("LDS_ADD_U64", 8, 0),
    "ds_or_b64": ("LDS_OR_B64", 8, 0),
    "global_atomic_cmpswap_b32": ("COMPARE_SWAP", 4, 0),
    "global_atomic_cmpswap_b64": ("COMPARE_SWAP", 8, 0),
    "ds_load_u16": ("LDS_LOAD", 2, 0),
    "ds_load_u16_d16": ("LDS_LOAD_LOW", 2, 0),
    "ds_load_u16_d16_hi": ("LDS_LOAD_HIGH", 2, 0),
    "ds_store_b16": ("LDS_STORE", 2, 0),
    "ds_store_b16_d16_hi": ("LDS_STORE_HIGH", 2, 0),
    "ds_load_b96": ("LDS_LOAD", 12, 0),
    "ds_store_b96": ("LDS_STORE", 12, 0),
    "flat_load_b32": ("LOAD", 4, 0),  # of global memory, here: in LDS it is outside of what the launch may reach
    **{
        f"ds_{what}_{form}{name}": (f"LDS_{what.upper()}", _BYTES[name], step)
        for what in ("load", "store")
        for form, step in (("", 0), ("2addr_", 1), ("2addr_stride64_", 64))
        for name in ("b32", "b64", "b128")
    },
}

ALIASES = {
    "s_ff1_i32_b32": "s_ctz_i32_b32",
    "s_ff1_i32_b64": "s_ctz_i32_b64",
    "v_add_u32": "v_add_nc_u32",
    "v_sub_u32": "v_sub_nc_u32",
    "v_subrev_u32": "v_subrev_nc_u32",
    "v_addc_co_u32": "v_add_co_ci_u32",
    "v_subb_co_u32": "v_sub_co_ci_u32",
    "v_subbrev_co_u32": "v_subrev_co_ci_u32",
    **{
        f"s_{name}n2_{form}b{bits}": f"s_{name}_not1_{form}b{bits}"
        for name, form, bits in itertools.product(("and", "or"), ("", "saveexec_"), (32, 64))
    },
    **{
        f"{stem}_{old}": f"{stem}_{new}"
        for stem in ("s_load", "global_load", "global_store")
        for new, old in zip(_BYTES, ("dword", "dwordx2", "dwordx3", "dwordx4", "dwordx8", "dwordx16"), strict=True)
    },
    "global_load_ubyte": "global_load_u8",
    "global_load_ushort": "global_load_u16",
    "global_store_byte": "global_store_b8",
    "global_store_short": "global_store_b16",
    "global_store_short_d16_hi": "global_store_d16_hi_b16",
    "flat_load_dword": "flat_load_b32",
    "ds_read_b96": "ds_load_b96",
    "ds_write_b96": "ds_store_b96",
    "ds_read_u16": "ds_load_u16",
    "ds_read_u16_d16": "ds_load_u16_d16",
    "ds_read_u16_d16_hi": "ds_load_u16_d16_hi",
    "ds_write_b16": "ds_store_b16",
    "ds_write_b16_d16_hi": "ds_store_b16_d16_hi",
    "global_atomic_add": "global_atomic_add_u32",
    "global_atomic_add_x2": "global_atomic_add_u64",
    "global_atomic_or_x2": "global_atomic_or_b64",
    "global_atomic_cmpswap": "global_atomic_cmpswap_b32",
    "global_atomic_cmpswap_x2": "global_atomic_cmpswap_b64",
    **{
        f"ds_{old}{before}_{name}": f"ds_{new}_{after}{name}"
        for new, old in (("load", "read"), ("store", "write"))
        for before, after in (("", ""), ("2", "2addr_"), ("2st64", "2addr_stride64_"))
        for name in ("b32", "b64", "b128")
    },
}

# Two operations in one, on the lower and on the upper word of each operand.
PACKED = {
    "v_pk_add_f32": "v_add_f32",
    "v_pk_mul_f32": "v_mul_f32",
    "v_pk_fma_f32": "v_fma_f32",
    "v_pk_mov_b32": "v_mov_b32",
}

_TABLES = {"VECTOR": VECTOR, "CARRY": CARRY, "COMPARE": COMPARE, "SCALAR": SCALAR, "BRANCH": BRANCH}
_KINDS = {name: kind for kind, table in _TABLES.items() for name in table}
OPERATIONS = VECTOR | CARRY | COMPARE | SCALAR | BRANCH
_NUMBERS = {name: number for number, name in enumerate(OPERATIONS)}

# What the machine reads ---------------------------------------------------------------------------------------------

_HEADER = Path(__file__).with_name("machine_code.h").read_text()
_NAMES = _HEADER.partition("enum Kind : uint32_t {")[2].partition("}")[0]
KIND = {name.strip(): number for number, name in enumerate(_NAMES.split(","))}
NOWHERE, VECTOR_REGISTER, SCALAR_REGISTER, CONSTANT = range(4)


class _Operand(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint8) for name in ("place", "words", "negate", "absolute")),
        ("index", ctypes.c_uint32),
        ("value", ctypes.c_uint64),
    )


class _Instruction(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("kind", "operation", "together", "target", "bytes", "count")),
        ("offsets", ctypes.c_int32 * 2),
        ("operands", _Operand * 6),
    )


class _Range(ctypes.Structure):
    _fields_ = (("address", ctypes.c_uint64), ("size", ctypes.c_uint64), ("writable", ctypes.c_uint32))


class _Launch(ctypes.Structure):
    _fields_ = (
        ("instructions", ctypes.POINTER(_Instruction)),
        ("ranges", ctypes.POINTER(_Range)),
        *((name, ctypes.c_uint64) for name in ("first", "last")),
        ("range_count", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        *((name, ctypes.c_uint32) for name in ("block", "width", "vector_registers", "lds", "seed")),
        ("at_first", ctypes.c_uint32 * 16),
        *((name, ctypes.c_uint32) for name in ("id_register", "ids", "at")),
    )


@functools.cache
def _machine() -> Any:
    cases = "".join(f"case {_NUMBERS[name]}: return {what};  // {name}\n" for name, what in OPERATIONS.items())
    body = f"Bits Lane::compute() {{\nswitch (instruction.operation) {{\n{cases}}}\nreturn {{}};\n}}\n"
    function = waves.library(f'#include "machine_code.h"\n{body}').machine_launch
    function.restype = ctypes.c_char_p
    return function


# Reading a disassembly ----------------------------------------------------------------------------------------------

_NAMED = {
    "vcc": (106, 2),
    "vcc_lo": (106, 1),
    "vcc_hi": (107, 1),
    "exec": (126, 2),
    "exec_lo": (126, 1),
    "exec_hi": (127, 1),
    "m0": (125, 1),
}
_REGISTER = re.compile(r"([vs])(?:(\d+)|\[(\d+):(\d+)\])")
_NUMBER = re.compile(r"-?\d+(\.\d+)?|0x[0-9a-f]+")
_TYPED = re.compile(r"\b([fui]\d\d)\((\d)\)")
_MODIFIER = re.compile(
    r" (?:(offset[01]?):(-?\d+)|(op_sel|op_sel_hi|neg_lo|neg_hi):\[([\d,]+)\]|(glc|dlc|sc0|sc1))(?=$| )"
)


def _constant(text: str, kind: str) -> _Operand:
    """Read a number as an operand of a kind, f64 or the like."""
    wide = kind.endswith("64")
    if "." in text:
        value = int.from_bytes(struct.pack("<d" if wide else "<f", float(text)), "little")
    elif not text.startswith("0x"):
        value = int(text)  # an inline constant: integers are extended by their sign
    elif kind == "f64":
        value = int(text, 16) << 32  # a literal is the upper word
    else:
        value = int(text, 16)
        if wide and value >= 1 << 31:
            raise ValueError
    words = 2 if wide else 1
    return _Operand(CONSTANT, words, 0, 0, 0, value % (1 << 32 * words))


def _operand(text: str, kind: str, word: int | None = None) -> _Operand:
    """Read an operand; of a pair of registers only the lower or the upper word, if that is asked for."""
    if text in ("null", "off"):
        return _Operand(NOWHERE)
    negate = text.startswith("-") and not _NUMBER.fullmatch(text)
    text = text[1:] if negate else text
    absolute = text.startswith("|") and text.endswith("|")
    text = text.strip("|")
    if _NUMBER.fullmatch(text):
        operand = _constant(text, kind)
    elif text in _NAMED:
        operand = _Operand(SCALAR_REGISTER, _NAMED[text][1], 0, 0, _NAMED[text][0])
    elif register := _REGISTER.fullmatch(text):
        first, last = (int(register[2]),) * 2 if register[2] else (int(register[3]), int(register[4]))
        place = VECTOR_REGISTER if register[1] == "v" else SCALAR_REGISTER
        operand = _Operand(place, last - first + 1, 0, 0, first)
    else:
        raise ValueError
    if word is not None and operand.place != CONSTANT:
        operand.index, operand.words = operand.index + word, 1
    operand.negate, operand.absolute = negate, absolute
    return operand


def _arithmetic(name: str, operands: list[Any]) -> _Instruction:
    """Make an instruction of OPERATIONS; an operand is its text, or has been read."""
    kinds = {int(number): kind for kind, number in _TYPED.findall(OPERATIONS[name])}
    read = [_operand(each, kinds.get(i, "u32")) if isinstance(each, str) else each for i, each in enumerate(operands)]
    for i, kind in kinds.items():
        if read[i].place != CONSTANT and read[i].words != int(kind[1:]) // 32:
            raise ValueError
    result = _Instruction(KIND[_KINDS[name]], _NUMBERS[name])
    result.operands[: len(read)] = read
    return result


def _packed(name: str, operands: list[str], modifiers: dict[str, str]) -> list[_Instruction]:
    """Make the two instructions of a packed one."""
    count = len(operands) - 1

    def of_each(modifier: str, default: str) -> list[int]:
        return [int(each) for each in modifiers.get(modifier, ",".join(default * count)).split(",")]

    # v_pk_mov_b32 takes its lower word from the first operand, its upper one from the second, both as op_sel tells.
    select = of_each("op_sel", "0"), of_each("op_sel" if name == "v_pk_mov_b32" else "op_sel_hi", "1")
    results = []
    for half, negated in enumerate((of_each("neg_lo", "0"), of_each("neg_hi", "0"))):
        sources = [_operand(each, "f32", select[half][i]) for i, each in enumerate(operands[1:])]
        for source, negate, word in zip(sources, negated, select[half], strict=True):
            source.negate ^= negate
            # A constant has no upper word.
            if source.place == CONSTANT and word and name != "v_pk_mov_b32":
                raise ValueError
        if name == "v_pk_mov_b32":
            sources = [sources[half]]
        results.append(_arithmetic(PACKED[name], [_operand(operands[0], "u32", half), *sources]))
    results[0].together = 1
    return results


def _memory(name: str, operands: list[str], modifiers: dict[str, str]) -> _Instruction:
    """Make an instruction of MEMORY, its operands in the order that the machine wants."""
    kind, size, step = MEMORY[name]
    result = _Instruction(KIND[kind], bytes=size, count=2 if step else 1)
    result.offsets[0] = int(modifiers.get("offset", 0))
    if step:
        result.offsets[:] = [int(modifiers.get(f"offset{i}", 0)) * size * step for i in (0, 1)]
    returns = "glc" in modifiers or "sc0" in modifiers  # of an atomic operation: whether the old value is wanted
    if kind == "ADD_U32" and returns:
        result.kind = KIND["FETCH_ADD_U32"]
    plain = ("ADD_F32", "ADD_F64", "ADD_U64", "OR_B64", "LDS_ADD_U64", "LDS_OR_B64")
    if kind in plain and returns:
        raise ValueError
    if kind in ("STORE", "STORE_HIGH", "LDS_STORE", "LDS_STORE_HIGH", *plain) or (kind == "ADD_U32" and not returns):
        operands[:2] = operands[1::-1]
    elif kind in ("COMPARE_SWAP", "ADD_U32"):
        if not returns:
            raise ValueError
        operands[2:] = operands[:1:-1]
    read = [_operand(each, "u32") for each in operands]
    result.operands[: len(read)] = read
    return result


def _instructions(text: str, width: int) -> list[_Instruction]:
    """Read one instruction, which may be two that are done together."""
    halves = [each.strip() for each in text.split(" :: ")]
    if len(halves) == 2:
        results = [_instructions(each.replace("v_dual_", "v_", 1), width)[0] for each in halves]
        if any(each.kind != KIND["VECTOR"] for each in results):
            raise ValueError
        results[0].together = 1
        return results
    name, _, rest = text.partition(" ")
    name = re.sub("_e(32|64)$", "", name)
    name = ALIASES.get(name, name)
    if CONTROL.get(name) == "NOTHING":
        return [_Instruction(KIND["NOTHING"])]
    modifiers = {a or c or e: b or d for a, b, c, d, e in _MODIFIER.findall(rest)}
    operands = [each.strip() for each in _MODIFIER.sub("", rest).split(",")] if rest else []
    suffix = "" if width == 64 else "_lo"
    if name in PACKED:
        return _packed(name, operands, modifiers)
    if name in MEMORY:
        return [_memory(name, operands, modifiers)]
    if name in CONTROL:
        result = _Instruction(KIND[CONTROL[name]])
        read = [_operand(each, "u32") for each in operands]
        result.operands[: len(read)] = read
        return [result]
    if name.startswith("v_fma_mix"):
        select, narrow = (modifiers.pop(each, "0,0,0").split(",") for each in ("op_sel", "op_sel_hi"))
        places = ("lh"[int(half)] if part == "1" else "f" for half, part in zip(select, narrow, strict=True))
        name = f"{name} {''.join(places)}"
    if any(each.endswith((".l", ".h")) for each in operands):  # which op_sel says once more
        modifiers.pop("op_sel", None)
    if modifiers:
        raise ValueError
    if name.endswith("_sdwa"):  # which may take any part of an operand: here a half of the last one
        selects = ("src0_sel:WORD_", "src0_sel:DWORD src1_sel:WORD_")[len(operands) - 2]
        operands[-1], _, half = operands[-1].partition(f" dst_sel:DWORD dst_unused:UNUSED_PAD {selects}")
        name = f"{name} {'lh'[int(half)]}"
    if operands and operands[-1].endswith(" clamp"):
        name, operands[-1] = f"{name} clamp", operands[-1].removesuffix(" clamp")
    for i, each in enumerate(operands):
        if each.endswith((".l", ".h")):  # a half of a register
            name, operands[i] = f"{name} {each[-1]}", each[:-2]
    if name in BRANCH:
        return [_arithmetic(name, [])]
    if name.startswith(("v_cmpx", "s_cmp", "s_bitcmp")):
        operands.insert(0, "exec" + suffix if name.startswith("v") else "null")
    if name.startswith("v_div_fmas") or (name == "v_cndmask_b32" and len(operands) == 3):
        operands.append("vcc" + suffix)
    return [_arithmetic(name, operands)]


def read(text: str, width: int, registers: int) -> tuple[Any, list[str]]:
    """Return a disassembly's instructions, and the line that each comes from.

    Parameters
    ----------
    text
        As :func:`ptxrt.compilers.disassembly.disassemble` returns it.
    width
        Lanes in a wave.
    registers
        How many vector registers there are.

    Raises
    ------
    Fault
        An instruction, or a form of it, is not known.
    """
    found: list[_Instruction] = []
    lines: list[str] = []
    index, branches = {}, []
    addresses = [int(line.split()[0], 16) for line in text.splitlines()]
    for n, line in enumerate(text.splitlines()):
        index[addresses[n]] = len(found)
        instruction = line.split(None, 1)[1]
        try:
            new = _instructions(instruction, width)
        except (KeyError, ValueError, IndexError) as error:
            raise Fault(f"unknown instruction {instruction}") from error
        for each in new:
            for operand in each.operands:
                if operand.place == VECTOR_REGISTER and operand.index + operand.words > registers:
                    raise Fault(f"{instruction}: there are {registers} vector registers")
        if new[0].kind == KIND["BRANCH"]:
            # Counted, with a sign, in words of 32 bits from the next instruction on; a branch is one word.
            distance = struct.unpack("<h", struct.pack("<H", int(instruction.split()[1])))[0]
            branches.append((new[0], addresses[n] + 4 + 4 * distance))
        found += new
        lines += [line] * len(new)
    for branch, target in branches:
        if target not in index:
            raise Fault(f"a branch to {target:x}, where no instruction begins")
        branch.target = index[target]
    found.append(_Instruction(KIND["PAST_THE_END"]))
    lines.append("the end")
    return (_Instruction * len(found))(*found), lines


# A code object ------------------------------------------------------------------------------------------------------

_disassembled = functools.cache(disassemble)

# "User Guide for AMDGPU Backend", Kernel Descriptor: what a wave's scalar registers hold at first, in this order, each
# if its bit of kernel_code_properties is set; with how many registers it takes.
_AT_FIRST = ("private segment buffer", 4), ("dispatch", 2), ("queue", 2), ("arguments", 2)
_ROUND_TO_NEAREST_KEEP_DENORMALS = 0xF0


class Kernel:
    """A kernel in a code object, ready to run.

    Parameters
    ----------
    code
        The code object.
    entry
        The kernel's name.
    edit
        What changes its disassembly.

    Raises
    ------
    Fault
        It has an instruction that is not known, or wants of the machine what is not there.
    """

    def __init__(self, code: bytes, entry: str, edit: Callable[[str], str] = str) -> None:
        import msgpack
        from elftools.elf.elffile import ELFFile

        found = read_code_object(code)
        self.report = found.reports[entry]
        self._entry = entry
        elf: Any = ELFFile(io.BytesIO(code))
        [note] = [each for part in elf.iter_segments("PT_NOTE") for each in part.iter_notes()]
        kernels = msgpack.unpackb(note["n_descdata"], strict_map_key=False)["amdhsa.kernels"]
        self._arguments = next(each[".args"] for each in kernels if each[".name"] == entry)

        [symbol] = elf.get_section_by_name(".symtab").get_symbol_by_name(f"{entry}.kd")
        section = elf.get_section(symbol["st_shndx"])
        descriptor = section.data()[symbol["st_value"] - section["sh_addr"] :][:64]
        self._lds, scratch = struct.unpack_from("<II", descriptor)
        modes, setup = struct.unpack_from("<II", descriptor, 48)
        properties, preloaded = struct.unpack_from("<HH", descriptor, 56)
        floats = modes >> 12 & 0xFF
        wanted = (scratch, preloaded, floats, properties >> 3 & 1)
        if wanted != (0, 0, _ROUND_TO_NEAREST_KEEP_DENORMALS, 1):
            raise Fault(f"{entry}: scratch, preloaded arguments, modes of floats, arguments are {wanted}")
        self._at_first = [each for bit, each in enumerate(_AT_FIRST) if properties >> bit & 1]
        self._id_register, self._ids = setup >> 1 & 31, setup >> 7 & 7
        self._instructions, self._lines = read(
            edit(_disassembled(code, entry)), self.report.wave_size or 0, self.report.registers or 0
        )

    def launch(
        self,
        signature: Signature,
        grid: Sequence[int],
        block: int,
        values: Sequence[Any],
        memory: Sequence[waves.Memory],
        seed: int = 0,
        blocks: slice = slice(None),
    ) -> None:
        """Run it to its end.

        Parameters
        ----------
        values
            One a parameter of `signature`: arrays as addresses.
        memory
            What it may reach.
        seed
            With 0, waves run one after the other; with another, what may be in any order is.
        blocks
            Which of all blocks run.

        Raises
        ------
        Fault
        """
        sizes = (*grid, 1, 1)[:3]
        kernarg = self._kernarg(signature, sizes, block, values)
        # The packet that starts a kernel: a block's and the grid's sizes in threads, among what no kernel wants.
        threads = sizes[0] * block, *sizes[1:]
        packet = ctypes.create_string_buffer(
            struct.pack("<6H3I", 0, 1, block, 1, 1, 0, *threads).ljust(64, b"\xff"), 64
        )
        added = {"arguments": kernarg, "dispatch": packet}
        ranges = [*memory, *(waves.Memory(name, ctypes.addressof(a), len(a), False) for name, a in added.items())]
        at_first = b"".join(
            ctypes.addressof(added[name]).to_bytes(8, "little") if name in added else b"\xff" * 4 * size
            for name, size in self._at_first
        )
        first, last, _ = blocks.indices(sizes[0] * sizes[1] * sizes[2])
        launch = _Launch(
            instructions=self._instructions,
            ranges=(_Range * len(ranges))(*(_Range(each.address, each.size, each.writable) for each in ranges)),
            **{"first": first, "last": last, "range_count": len(ranges)},
            **{"grid": sizes, "block": block, "width": self.report.wave_size, "lds": self._lds, "seed": seed},
            **{"vector_registers": self.report.registers, "id_register": self._id_register, "ids": self._ids},
            at_first=(ctypes.c_uint32 * 16).from_buffer_copy(at_first.ljust(64, b"\xff")),
        )
        if error := _machine()(ctypes.byref(launch)):
            named = re.sub(r"range (\d+)", lambda match: ranges[int(match[1])].name, error.decode())
            raise Fault(f"{self._entry}, {self._lines[launch.at]}: {named}")

    def _kernarg(self, signature: Signature, grid: Sequence[int], block: int, values: Sequence[Any]) -> Any:
        """Return the arguments as the code object wants them, those included that the runtime adds."""
        arguments = signature.arguments()
        signature.pack_into(arguments.raw, 0, *values)
        table = (ctypes.c_void_p * len(values)).from_address(arguments.table)
        added = {f"hidden_block_count_{axis}": size for axis, size in zip("xyz", grid, strict=True)}
        added |= {"hidden_group_size_x": block, "hidden_group_size_y": 1, "hidden_group_size_z": 1}
        added |= {"hidden_remainder_x": 0, "hidden_remainder_y": 0, "hidden_remainder_z": 0, "hidden_grid_dims": 1}
        size = -(-(self.report.kernarg_bytes or 0) // 16) * 16  # they are aligned so, and loaded whole
        found: Any = (ctypes.c_uint8 * size)(*[0xFF] * size)
        declared = iter(table)
        for each in self._arguments:
            place, length, kind = each[".offset"], each[".size"], each[".value_kind"]
            if not kind.startswith("hidden_"):
                found[place : place + length] = ctypes.string_at(next(declared), length)
            elif kind in added:
                found[place : place + length] = added[kind].to_bytes(length, "little")
        assert next(declared, None) is None, f"{self._entry} has fewer parameters"
        return found
