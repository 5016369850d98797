// batch_norm_alone, {{ T.name }}: batch_norm in eval of channels-last arrays, whose threads have all that their values need.
//
// What is computed, how, and the launch stand in kernels_ptx/batch_norm_alone.ptx, whose bits these are. Every product that is added to
// something is an fma() in the text.

//% include "elements.jinja"
//% include "inverse_root.jinja"
//% include "pairs.jinja"
//% include "vectors.jinja"

constexpr unsigned TURNS = 2;

template <bool ALIGNED>
struct alignas(ALIGNED ? 16 : 4) Numbers {
    float values[VECTOR];
};

// Those of a unit's channels, or ones or zeros where there is no array.
template <bool ALIGNED>
__device__ inline void of_unit(float (&values)[VECTOR], const float* array, unsigned unit, float otherwise) {
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) values[i] = otherwise;
    if (!array) return;
    const auto numbers = *reinterpret_cast<const Numbers<ALIGNED>*>(array + unit * VECTOR);
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) values[i] = numbers.values[i];
}

template <bool ALIGNED>
__device__ inline void write(const Element* in_ptr, Element* out_ptr, const float* w_ptr, const float* b_ptr,
                             const float* mean_ptr, const float* var_ptr, unsigned vectors, unsigned unit, float eps) {
    // Behind the array's end a thread reads means: no load is conditional, and nobody reads what another one writes.
    const auto* behind = reinterpret_cast<const Element*>(mean_ptr);
    size_t places[TURNS];
    bool there[TURNS];
    float x[TURNS][VECTOR];
#pragma unroll
    for (unsigned turn = 0; turn < TURNS; ++turn) {
        const unsigned i = (blockIdx.x * TURNS + turn) * blockDim.x + threadIdx.x;
        there[turn] = i < vectors;
        places[turn] = size_t(i) * VECTOR;
        load<ALIGNED>(x[turn], there[turn] ? in_ptr + places[turn] : behind);
    }
    float var[VECTOR], mean[VECTOR], weight[VECTOR], bias[VECTOR];
    of_unit<ALIGNED>(var, var_ptr, unit, 1);
    of_unit<ALIGNED>(mean, mean_ptr, unit, 0);
    of_unit<ALIGNED>(weight, w_ptr, unit, 1);
    of_unit<ALIGNED>(bias, b_ptr, unit, 0);
    float roots[VECTOR];
    unsigned farthest = 0;
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) {
        const float with_eps = var[i] + eps;
        farthest = max(farthest, __float_as_uint(with_eps) - (27u << 23));
        roots[i] = inverse_root_of_f32(with_eps);
    }
    // Whether all are from 2^-100 to 2^100: by their exponents, above which the sign is.
    if (farthest < 200u << 23) {
#pragma unroll
        for (unsigned turn = 0; turn < TURNS; ++turn) {
#pragma unroll
            for (unsigned i = 0; i < VECTOR; ++i) {
                x[turn][i] = fmaf((x[turn][i] - mean[i]) * roots[i], weight[i], bias[i]);
            }
        }
    } else {
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) {
            const double scale = weight[i] * inverse_root_at_once(double(var[i]) + eps);
#pragma unroll
            for (unsigned turn = 0; turn < TURNS; ++turn) {
                x[turn][i] = Real(fma(double(x[turn][i]) - mean[i], scale, double(bias[i])));
            }
        }
    }
#pragma unroll
    for (unsigned turn = 0; turn < TURNS; ++turn) {
        if (there[turn]) store<ALIGNED>(out_ptr + places[turn], x[turn]);
    }
}

extern "C" __global__ void __launch_bounds__(512)
batch_norm_eval_alone{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr,
                      const Real* mean_ptr, const Real* var_ptr, unsigned vectors, unsigned units, unsigned by_units,
                      Real eps) {
    const unsigned unit = threadIdx.x - (threadIdx.x * by_units >> 20) * units;
    size_t all = reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(out_ptr);
    all |= reinterpret_cast<size_t>(w_ptr) | reinterpret_cast<size_t>(b_ptr);
    all |= reinterpret_cast<size_t>(mean_ptr) | reinterpret_cast<size_t>(var_ptr);
    if (all % 16) write<false>(in_ptr, out_ptr, w_ptr, b_ptr, mean_ptr, var_ptr, vectors, unit, eps);
    else write<true>(in_ptr, out_ptr, w_ptr, b_ptr, mean_ptr, var_ptr, vectors, unit, eps);
}
