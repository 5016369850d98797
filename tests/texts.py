"""Small kernels that several tests load, in PTX, and their twins in HIP for HIP devices."""

from __future__ import annotations

import ptxrt

HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"

SAXPY = (
    HEAD
    + """
.visible .entry saxpy(
    .param .u64 x, .param .u64 y, .param .u32 n, .param .f32 a)
{
    .reg .pred %done;
    .reg .b32 %i, %t, %b, %m;
    .reg .b64 %px, %py, %at;
    .reg .f32 %u, %v, %s;
    ld.param.u64 %px, [x];
    ld.param.u64 %py, [y];
    ld.param.u32 %m, [n];
    ld.param.f32 %s, [a];
    mov.u32 %i, %tid.x;
    mov.u32 %t, %ntid.x;
    mov.u32 %b, %ctaid.x;
    mad.lo.u32 %i, %b, %t, %i;
    setp.ge.u32 %done, %i, %m;
    @%done ret;
    mul.wide.u32 %at, %i, 4;
    add.u64 %px, %px, %at;
    add.u64 %py, %py, %at;
    ld.global.f32 %u, [%px];
    ld.global.f32 %v, [%py];
    fma.rn.f32 %v, %s, %u, %v;
    st.global.f32 [%py], %v;
    ret;
}
"""
)
SAXPY_SIGNATURE = "const f32* x, f32* y, u32 n, f32 a"

# Writes its own name's number, so that two texts give two results.
CONSTANT = (
    HEAD
    + """
.visible .entry constant(.param .u64 out)
{{
    .reg .b64 %p;
    ld.param.u64 %p, [out];
    st.global.u32 [%p], {value};
    ret;
}}
"""
)

# Copies n bytes of dynamic shared memory's far end out again.
DYNAMIC_SHARED = (
    HEAD
    + """
.extern .shared .align 16 .b8 bytes[];
.visible .entry far_end(.param .u64 out, .param .u32 last)
{
    .reg .b64 %p;
    .reg .b32 %at, %base, %v;
    ld.param.u64 %p, [out];
    ld.param.u32 %at, [last];
    mov.u32 %base, bytes;
    add.u32 %at, %base, %at;
    st.shared.u32 [%at], 77;
    ld.shared.u32 %v, [%at];
    st.global.u32 [%p], %v;
    ret;
}
"""
)


NOTHING = HEAD + ".visible .entry nothing() { ret; }\n"

IN_HIP = {
    SAXPY: """
extern "C" __global__ void saxpy(const float* x, float* y, unsigned int n, float a) {
    const unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaf(a, x[i], y[i]);
}
""",
    CONSTANT: """
extern "C" __global__ void constant(unsigned int* out) {{ *out = {value}; }}
""",
    DYNAMIC_SHARED: """
extern __shared__ unsigned char bytes[];
extern "C" __global__ void far_end(unsigned int* out, unsigned int last) {
    volatile unsigned int* at = reinterpret_cast<unsigned int*>(bytes + last);
    *at = 77;
    *out = *at;
}
""",
    NOTHING: """
extern "C" __global__ void nothing() {}
""",
}


def source_for(text: str, device: ptxrt.Device, *, name: str | None = None, **values: int) -> ptxrt.KernelSource:
    """Return one of the texts above in the language of `device`, with `values` filled in where it has places."""
    text = IN_HIP[text] if device.kind == "hip" else text
    text = text.format(**values) if values else text
    return ptxrt.KernelSource.hip(text, name=name) if device.kind == "hip" else ptxrt.KernelSource.ptx(text, name=name)


_HIP_TYPES = {
    "u8": "unsigned char", "s8": "signed char", "u16": "unsigned short", "s16": "short", "b16": "Bits",
    "u32": "unsigned int", "s32": "int", "u64": "unsigned long long", "s64": "long long", "f32": "float",
    "f64": "double", "b64": "const void*",
}  # fmt: skip


def store_params(types: str, device: ptxrt.Device) -> ptxrt.KernelSource:
    """Return an entry `store` that writes each scalar parameter to out[i], 8 bytes each, as the bits it received.

    `types` are PTX types without the dot, such as ``"u32 f32 b16"``.
    """
    kinds = types.split()
    if device.kind == "hip":
        params = "".join(f", {_HIP_TYPES[kind]} p{i}" for i, kind in enumerate(kinds))
        body = "".join(f"    *({_HIP_TYPES[kind]}*)((char*)out + {8 * i}) = p{i};\n" for i, kind in enumerate(kinds))
        return ptxrt.KernelSource.hip(
            "struct Bits { unsigned short bits; };\n"
            f'extern "C" __global__ void store(void* out{params}) {{\n{body}}}\n',
            name="store",
        )
    params = "".join(f", .param .{kind} p{i}" for i, kind in enumerate(kinds))
    body = ""
    for i, kind in enumerate(kinds):
        bits = int(kind[1:])
        body += (
            f"    {{ .reg .b{max(bits, 16)} %v; ld.param.b{bits} %v, [p{i}]; st.global.b{bits} [%p+{8 * i}], %v; }}\n"
        )
    return ptxrt.KernelSource.ptx(
        f"{HEAD}.visible .entry store(.param .u64 out{params})\n{{\n    .reg .b64 %p;\n    ld.param.u64 %p, [out];\n"
        f"{body}    ret;\n}}\n"
    )
