// batch_norm_alone, {{ T.name }}: batch_norm in eval, whose threads have all that their values need.
//
// What is computed, how, and the launches stand in kernels_ptx/batch_norm_alone.ptx, whose bits these are. Every product that is added to
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

// The thread's vectors, of x and then of y. One behind the array's end is the thread's first one, which it does not write twice.
template <bool ALIGNED>
struct Vectors {
    float values[TURNS][VECTOR];
    size_t places[TURNS];
    bool there[TURNS];

    __device__ inline Vectors(const Element* in_ptr, unsigned first, unsigned vectors) {
#pragma unroll
        for (unsigned turn = 0; turn < TURNS; ++turn) {
            const unsigned i = first + turn * blockDim.x;
            there[turn] = i < vectors;
            places[turn] = size_t(there[turn] ? i : first) * VECTOR;
            load<ALIGNED>(values[turn], in_ptr + places[turn]);
        }
    }

    // By numbers of each vector's channel if ROWS, else of the channels of a vector's values.
    template <bool ROWS, unsigned COUNT>
    __device__ inline void normalise(const float (&mean)[COUNT], const float (&var)[COUNT], const float (&weight)[COUNT],
                                     const float (&bias)[COUNT], float eps) {
        float roots[COUNT];
        unsigned farthest = 0;
#pragma unroll
        for (unsigned i = 0; i < COUNT; ++i) {
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
                    const unsigned own = ROWS ? turn : i;
                    values[turn][i] = fmaf((values[turn][i] - mean[own]) * roots[own], weight[own], bias[own]);
                }
            }
        } else {
            double scales[COUNT];
#pragma unroll
            for (unsigned i = 0; i < COUNT; ++i) scales[i] = weight[i] * inverse_root_at_once(double(var[i]) + eps);
#pragma unroll
            for (unsigned turn = 0; turn < TURNS; ++turn) {
#pragma unroll
                for (unsigned i = 0; i < VECTOR; ++i) {
                    const unsigned own = ROWS ? turn : i;
                    const double away = double(values[turn][i]) - mean[own];
                    values[turn][i] = Real(fma(away, scales[own], double(bias[own])));
                }
            }
        }
    }

    __device__ inline void write(Element* out_ptr) const {
#pragma unroll
        for (unsigned turn = 0; turn < TURNS; ++turn) {
            if (there[turn]) store<ALIGNED>(out_ptr + places[turn], values[turn]);
        }
    }
};

template <bool ALIGNED>
__device__ inline void write(const Element* in_ptr, Element* out_ptr, const float* w_ptr, const float* b_ptr,
                             const float* mean_ptr, const float* var_ptr, unsigned first, unsigned vectors,
                             unsigned unit, float eps) {
    Vectors<ALIGNED> own(in_ptr, first, vectors);
    float var[VECTOR], mean[VECTOR], weight[VECTOR], bias[VECTOR];
    of_unit<ALIGNED>(var, var_ptr, unit, 1);
    of_unit<ALIGNED>(mean, mean_ptr, unit, 0);
    of_unit<ALIGNED>(weight, w_ptr, unit, 1);
    of_unit<ALIGNED>(bias, b_ptr, unit, 0);
    own.template normalise<false>(mean, var, weight, bias, eps);
    own.write(out_ptr);
}

extern "C" __global__ void __launch_bounds__(512)
batch_norm_eval_alone{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr,
                      const Real* mean_ptr, const Real* var_ptr, unsigned vectors, unsigned units, unsigned by_units,
                      Real eps) {
    const unsigned first = blockIdx.x * TURNS * blockDim.x + threadIdx.x;
    if (first >= vectors) return;
    const unsigned unit = threadIdx.x - (threadIdx.x * by_units >> 20) * units;
    size_t all = reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(out_ptr);
    all |= reinterpret_cast<size_t>(w_ptr) | reinterpret_cast<size_t>(b_ptr);
    all |= reinterpret_cast<size_t>(mean_ptr) | reinterpret_cast<size_t>(var_ptr);
    if (all % 16) write<false>(in_ptr, out_ptr, w_ptr, b_ptr, mean_ptr, var_ptr, first, vectors, unit, eps);
    else write<true>(in_ptr, out_ptr, w_ptr, b_ptr, mean_ptr, var_ptr, first, vectors, unit, eps);
}

__device__ inline unsigned divide(unsigned i, unsigned factor, unsigned shift) {
    return unsigned((unsigned long long)i * factor >> shift);
}

template <bool ALIGNED>
__device__ inline void write_rows(const Element* in_ptr, Element* out_ptr, const float* w_ptr, const float* b_ptr,
                                  const float* mean_ptr, const float* var_ptr, unsigned first, unsigned vectors,
                                  const unsigned (&channel)[TURNS], float eps) {
    Vectors<ALIGNED> own(in_ptr, first, vectors);
    float var[TURNS], mean[TURNS], weight[TURNS], bias[TURNS];
#pragma unroll
    for (unsigned turn = 0; turn < TURNS; ++turn) {
        var[turn] = var_ptr[channel[turn]];
        mean[turn] = mean_ptr[channel[turn]];
        weight[turn] = w_ptr ? w_ptr[channel[turn]] : 1;
        bias[turn] = b_ptr ? b_ptr[channel[turn]] : 0;
    }
    own.template normalise<true>(mean, var, weight, bias, eps);
    own.write(out_ptr);
}

extern "C" __global__ void __launch_bounds__(512)
batch_norm_eval_alone_rows{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr,
                           const Real* mean_ptr, const Real* var_ptr, unsigned vectors, unsigned units,
                           unsigned by_units, unsigned units_shift, unsigned channels, unsigned by_channels,
                           unsigned channels_shift, Real eps) {
    const unsigned first = blockIdx.x * TURNS * blockDim.x + threadIdx.x;
    if (first >= vectors) return;
    unsigned channel[TURNS];
#pragma unroll
    for (unsigned turn = 0; turn < TURNS; ++turn) {
        const unsigned row = divide(first + turn * blockDim.x, by_units, units_shift);
        channel[turn] = row - divide(row, by_channels, channels_shift) * channels;
    }
    if ((reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(out_ptr)) % 16) {
        write_rows<false>(in_ptr, out_ptr, w_ptr, b_ptr, mean_ptr, var_ptr, first, vectors, channel, eps);
    } else {
        write_rows<true>(in_ptr, out_ptr, w_ptr, b_ptr, mean_ptr, var_ptr, first, vectors, channel, eps);
    }
}
