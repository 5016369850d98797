"""The mutants that no test on the machine can notice, each with the reason: they compute what the kernel computes.

The key is family, kernel, the line as it was and as it became.
"""

from __future__ import annotations

_BY_REASON: dict[str, list[tuple[str, str, str, str]]] = {
    "A pointer to statistics is never null.": [
        (
            "hip/batch_norm_alone",
            "write",
            "of_unit<ALIGNED>(var, var_ptr, unit, 1);",
            "of_unit<ALIGNED>(var, var_ptr, unit, 2);",
        ),
        (
            "hip/batch_norm_alone",
            "write",
            "of_unit<ALIGNED>(mean, mean_ptr, unit, 0);",
            "of_unit<ALIGNED>(mean, mean_ptr, unit, 1);",
        ),
    ],
    "Sums up to 2^127, and from 2^-73 on, have roots in f32, too.": [
        (
            "hip/batch_norm_alone",
            "Vectors",
            "farthest = max(farthest, __float_as_uint(with_eps) - (27u << 23));",
            "farthest = max(farthest, __float_as_uint(with_eps) - (27u << 24));",
        ),
    ],
    "The array has a row more, which nothing uses.": [
        (
            "hip/batch_norm_alone",
            "Vectors",
            "float values[TURNS][VECTOR];",
            "float values[TURNS + 1][VECTOR];",
        ),
        (
            "hip/block_sum",
            "block_sum",
            "__shared__ Sum rows[MOST_THREADS / GROUP][sizeof...(Sums)];",
            "__shared__ Sum rows[MOST_THREADS / GROUP + 1][sizeof...(Sums)];",
        ),
    ],
    "At the bound both ways give the bound.": [
        (
            "exponential",
            "exponential",
            "setp.lt.{{ R.name }} %vanishes, {{ x }}, {{ number(lowest, R) }};",
            "setp.le.{{ R.name }} %vanishes, {{ x }}, {{ number(lowest, R) }};",
        ),
    ],
    "No vectors or quads are taken then: slower, and as exact. (A register never written holds garbage.)": [
        (
            "hip/batch_norm_alone",
            "batch_norm_eval_alone",
            "if (all % 16) write<false>(in_ptr, out_ptr, w_ptr, b_ptr, mean_ptr, var_ptr, first, vectors, unit, eps);",
            "if (16 % all) write<false>(in_ptr, out_ptr, w_ptr, b_ptr, mean_ptr, var_ptr, first, vectors, unit, eps);",
        ),
        (
            "hip/batch_norm_alone",
            "batch_norm_eval_alone",
            "if (all % 16) write<false>(in_ptr, out_ptr, w_ptr, b_ptr, mean_ptr, var_ptr, first, vectors, unit, eps);",
            "if (all % 17) write<false>(in_ptr, out_ptr, w_ptr, b_ptr, mean_ptr, var_ptr, first, vectors, unit, eps);",
        ),
        (
            "hip/batch_norm_alone",
            "batch_norm_eval_alone_rows",
            "if ((reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(out_ptr)) % 16) {",
            "if ((reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(out_ptr)) % 17) {",
        ),
        (
            "hip/batch_norm_whole",
            "batch_norm_whole",
            "const bool aligned = (reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(out_ptr)) % 16 == 0;",
            "const bool aligned = (reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(out_ptr)) % 17 == 0;",
        ),
        ("norm_last", "locate", "mov.u64 %address, {{ arrays[0] }};", "// left out"),
        ("batch_norm_parts", "test_wide", "and.b32 %low, {{ size }}, {{ values - 1 }};", "// left out"),
        (
            "batch_norm_parts",
            "test_wide",
            "and.b32 %low, {{ size }}, {{ values - 1 }};",
            "or.b32 %low, {{ size }}, {{ values - 1 }};",
        ),
        (
            "batch_norm_parts",
            "test_wide",
            "and.b64 %address, %address, {{ values * T.size - 1 }};",
            "or.b64 %address, %address, {{ values * T.size - 1 }};",
        ),
        ("batch_norm_parts", "test_wide", "and.b64 %address, %address, {{ values * T.size - 1 }};", "// left out"),
        (
            "batch_norm_parts",
            "places_of_thread",
            "and.b64 %address, %address, {{ vector - 1 }};",
            "or.b64 %address, %address, {{ vector - 1 }};",
        ),
        ("group_norm_loops", "how_to_access", "mov.b64 %mixed, {{ pointers[0] }};", "// left out"),
        ("group_norm_loops", "how_to_access", "and.b64 %mixed, %mixed, 15;", "// left out"),
    ],
    "Values of places that are not there: the line gives the registers a value, which nothing uses.": [
        (
            "batch_norm_parts",
            "clear_images",
            "mov.{{ R.name }} {{ value }}, {{ number(0, R) }};",
            "mov.{{ R.name }} {{ value }}, {{ number(0 + 1, R) }};",
        ),
        ("batch_norm_parts", "clear_images", "mov.{{ R.name }} {{ value }}, {{ number(0, R) }};", "// left out"),
    ],
    "At 0 both ways give 0.": [
        (
            "batch_norm_parts",
            "statistics",
            "setp.lt.f64 %yes, %var, {{ ZERO }};",
            "setp.le.f64 %yes, %var, {{ ZERO }};",
        ),
        (
            "group_norm_parts",
            "moments",
            "setp.lt.f64 %negative, %var, 0d0000000000000000;",
            "setp.le.f64 %negative, %var, 0d0000000000000000;",
        ),
    ],
    "Sums shifted by one of the values can leave a negative variance behind some 2**33 values alone.": [
        ("batch_norm_parts", "statistics", "@%yes mov.f64 {{ register }}, {{ ZERO }};", "// left out")
    ],
    "At the size of the image the corner inside has weight 0, and the one beyond is tested by itself.": [
        (
            "grid_sample_parts",
            "axis",
            "setp.lt.and.{{ real }} %touches, {{ s }}, %size, %touches;",
            "setp.le.and.{{ real }} %touches, {{ s }}, %size, %touches;",
        )
    ],
    "The pair of coordinates is read one by one then: slower.": [
        ("grid_sample_parts", "fetch_point", "and.b64 %address, %points, {{ 2 * bytes - 1 }};", "// left out")
    ],
    "Another power of two as the unit of the fixed-point sums, which leaves bits enough.": [
        ("grid_sample", "scale", "shr.s32 %half_unit, %unit, 1;", "shr.s32 %half_unit, %unit, 2;")
    ],
    "One tile more than there is room for has no position inside.": [
        ("grid_sample", "grid_sample_{{ type }}", "add.u32 %tiles, %width, 31;", "add.u32 %tiles, %width, 32;")
    ],
    "The last bit of a fixed-point part, some 2**-60 of the largest gradient.": [
        (
            "grid_sample",
            'grid_sample_backward_{{ "fixed" if fixed else "last" }}_{{ type }}',
            "cvt.rni.s64.f64 %whole, %wide_part;",
            "cvt.rzi.s64.f64 %whole, %wide_part;",
        )
    ],
    "shfl.sync behind it waits for the same lanes.": [
        ("grid_sample", "grid_sample_backward_largest_{{ type }}", "bar.warp.sync 0xffffffff;", "// dropped")
    ],
    "Every lane holds the warp's largest, so it is all one which of them tells it, and how often.": [
        (
            "grid_sample",
            "grid_sample_backward_largest_{{ type }}",
            "setp.eq.u32 %leads, %low, 0;",
            "setp.eq.u32 %leads, %low, 1;",
        ),
        (
            "grid_sample",
            "grid_sample_backward_largest_{{ type }}",
            "setp.eq.u32 %leads, %low, 0;",
            "setp.ne.u32 %leads, %low, 0;",
        ),
    ],
    "The order in which blocks take groups, for the cache's sake.": [
        ("group_norm_loops", "locate", "sub.u32 %group, %low, %group;", "// left out")
    ],
    "The grid has no more blocks than images, and the loop ends by its own test.": [
        ("group_norm_loops", "each_image", "setp.ge.u32 %done, %turn, %batch;", "setp.gt.u32 %done, %turn, %batch;")
    ],
    "The test in front ends the loop too, but near 2**32: test_a_batch_of_nearly_2_to_the_32, on a GPU.": [
        ("group_norm_loops", "each_image", "sub.u32 %low, %batch, %turn;", "sub.u32 %low, %turn, %batch;")
    ],
    "Denoms that are not ordinary take the way aside, which gives the same bits for all.": [
        (
            "local_response_norm_parts",
            "powers",
            "setp.ge.f32 %ordinary, {{ denom }}, 0f00800000;",
            "setp.gt.f32 %ordinary, {{ denom }}, 0f00800000;",
        ),
        (
            "local_response_norm_parts",
            "powers",
            "setp.ge.f32 %ordinary, {{ denom }}, 0f00800000;",
            "setp.ge.f32 %ordinary, {{ denom }}, 0f40800000;",
        ),
    ],
    "Below 2**32 both divisions give the same; beyond, the tests past 2**32 notice it, on a GPU.": [
        (
            "local_response_norm",
            'lrn_{{ "forward" if forward else "backward" }}_kernel',
            "@%wide bra divide_wide;",
            "@!%wide bra divide_wide;",
        )
    ],
    "A group of slots none of which is held runs with all its predicates false.": [
        ("softmax2d", "each_held", "setp.le.u32 %done, %held, {{ slot }};", "setp.lt.u32 %done, %held, {{ slot }};")
    ],
    "One lane alone makes no round of the loop.": [
        ("softmax2d", "over_lanes", "setp.le.u32 %alone, %lanes, 1;", "setp.lt.u32 %alone, %lanes, 1;")
    ],
    "The kernel's only array begins at address 0 of shared memory.": [
        ("softmax2d", "over_lanes", "add.u32 %slot, %slot, %other;", "sub.u32 %slot, %slot, %other;")
    ],
    "Whether rows that are not there are asked for as the last one or not at all, none of them is used.": [
        (
            "hip/batch_norm_whole",
            "Rows",
            "if (i * share.at_once >= rows) break;",
            "if (i * share.at_once > rows) break;",
        ),
    ],
    "The double product reaches the size for no size below 2**52; the clamp is part of the rule.": [
        ("upsample_nearest2d", "upsample_nearest2d_banded_{{ name }}", "min.u32 %row, %row, %last;", "// left out")
    ],
    "Every lane of a warp holds its sum, so it is all one which of them stores it.": [
        ("macros", "sum_over_block", "setp.eq.u32 %leads, %low, 0;", "setp.eq.u32 %leads, %low, 1;"),
        (
            "hip/batch_norm_whole",
            "Totals",
            "if ((threadIdx.x & ((1u << bits) - 1)) == 0) parts[number][threadIdx.x >> bits] = some[0];",
            "if (!((threadIdx.x & ((1u << bits) - 1)) == 0)) parts[number][threadIdx.x >> bits] = some[0];",
        ),
    ],
    "Every thread of the block has the sums, and what is written is the same whoever writes it.": [
        ("hip/batch_norm", "backward", "if (threadIdx.x == 0) {", "if (!(threadIdx.x == 0)) {"),
        ("hip/block_sum", "block_sum", "if (threadIdx.x % GROUP == 0) {", "if (threadIdx.x % GROUP == 1) {"),
    ],
    "Any value of x serves as the shift of the sums, and there are two at least.": [
        ("hip/batch_norm", "batch_norm_kernel", "const double k = Real(x[0]);", "const double k = Real(x[0 + 1]);"),
    ],
    "Parts that are larger hold all channels too.": [
        (
            "hip/grid_sample",
            "sample",
            "const unsigned part = ((c + gridDim.y - 1) / gridDim.y + 3) / 4 * 4;",
            "const unsigned part = ((c + gridDim.y + 1) / gridDim.y + 3) / 4 * 4;",
        ),
    ],
    "A point there touches no pixel either way.": [
        (
            "hip/grid_sample_parts",
            "Axis",
            "if (!(s >= Real(-1) && s < Real(length))) s = Real(-2);",
            "if (!(s >= Real(-1) && s <= Real(length))) s = Real(-2);",
        ),
    ],
    "Where both sides are equal, both results are.": [
        ("hip/moments", "moments", "return {offset, var < 0 ? 0 : var};", "return {offset, var <= 0 ? 0 : var};"),
    ],
}

EQUIVALENT = {key: reason for reason, keys in _BY_REASON.items() for key in keys}
