//% set vector = 16 // T.size
//% set places = 512 if T.name == "f64" else 1024
//% set eval_arrays = "normals" if T.size == 2 else "scales, means, biases"
// batch_norm, {{ T.name }}, forward and backward.
//
//   y = (x - mean) / sqrt(var + eps) * w[c] + b[c]
//
// mean and biased var are those of a channel's M = batch * hw values in training, and given in eval. With dot =
// sum((x - mean) * go), inv = 1 / sqrt(var + eps):
//
//   grad_weight = dot * inv     grad_bias = sum(go)
//   grad_input = (go - sum(go) / M - (x - mean) * dot / M * inv^2) * inv * w      in training
//   grad_input = go * inv * w                                                     in eval
//
// How that is computed, and why it is accurate, is said in batch_norm.ptx: sums of Numbers, f64 or pairs of it, of
// d = x - k where k is the channel's first value, or the mean where it is given. Each result is rounded
// to {{ "f32, where its formula is (narrow.jinja), then to " ~ T.name if T.size == 2 else R.name ~ " once" }}.
// Every product that is added to something is an fma() in the text, so that no compiler has a choice which one to
// contract. 1 / sqrt(), of which AMD's makes one operation, is right to an ulp of f64.
//
// in_ptr, out_ptr, go_ptr, gi_ptr are [batch, channels, hw]; all else is [channels]. A null w_ptr is a weight of ones,
// a null b_ptr a bias of zeros; a null gw_ptr or gb_ptr is not written. out_ptr may be in_ptr; gi_ptr may be in_ptr or
// go_ptr. Blocks have a multiple of 32 threads.
//
//   batch_norm_kernel, batch_norm_backward_kernel, batch_norm_backward_handed_kernel: grid (channels); a block has a
//     channel. In training the forward one writes the batch statistics to mean_ptr and var_ptr, and the first of the
//     backward ones computes them; the other is given them.
//   batch_norm_running: a thread a channel; updates the running statistics.
//   batch_norm_backward_eval, then batch_norm_backward_eval_finish: grad_input and the sums of each slice of `values`
//     values of a channel, a multiple of {{ vector }}, grid (channels, slices), 256 threads; the other gradients, grid
//     (channels), 128 threads. sums_ptr is [channels, slices, 2] Numbers; batch * hw is below 2^31.
//   batch_norm_eval: grid (ceil(channels * hw / {{ places }}), ceil(batch / images)), {{ places // vector }} threads; a block
//     takes {{ places }} places, side by side, of each of its images.

constexpr int MOST_THREADS = {{ 512 if T.name == "f64" else 1024 }};  // of a block

//% include "elements.jinja"
//% include "pairs.jinja"
//% include "block_sum.jinja"
//% include "moments.jinja"
//% include "vectors.jinja"
//% include "walk.jinja"
//% include "batch_norm_parts.jinja"

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
batch_norm_kernel{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr,
                  Real* mean_ptr, Real* var_ptr, unsigned batch, unsigned channels, unsigned hw, Real eps,
                  unsigned training) {
    const size_t pitch = size_t(channels) * hw, m = size_t(batch) * hw;
    if (m == 0) return;
    for (size_t channel = blockIdx.x; channel < channels; channel += gridDim.x) {
        const Element* x = in_ptr + channel * hw;
        Element* y = out_ptr + channel * hw;

        Number mean, var;
        if (training) {
            const double k = Real(x[0]);
            Number sum = 0, squares = 0;
            for (Walk at(threadIdx.x, blockDim.x, hw, pitch); at.row < batch; at.next()) {
                const Number d = Number(Real(x[at.offset])) - k;
                sum += d;
                squares = fma(d, d, squares);
            }
            block_sum(sum, squares);
            const Moments<Number> all = moments(sum, squares, m);
            mean = k + all.offset;
            var = all.var;
            if (threadIdx.x == 0) {
                mean_ptr[channel] = Real(mean);
                var_ptr[channel] = Real(var);
            }
        } else {
            mean = mean_ptr[channel];
            var = var_ptr[channel];
        }

        const double weight = w_ptr ? w_ptr[channel] : 1, bias = b_ptr ? b_ptr[channel] : 0;
        const Normal normal{mean, inverse_root(var + eps) * weight, bias};
        for (Walk at(threadIdx.x, blockDim.x, hw, pitch); at.row < batch; at.next()) {
            const size_t i = at.offset;
            y[i] = Element(normal(Real(x[i])));
        }
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
batch_norm_running{{ suffix }}(const Real* mean_ptr, const Real* var_ptr, Real* rmean_ptr, Real* rvar_ptr,
                   unsigned batch, unsigned channels, unsigned hw, Real momentum) {
    const double m = size_t(batch) * hw, keep = 1.0 - momentum;
    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t channel = size_t(blockIdx.x) * blockDim.x + threadIdx.x; channel < channels; channel += step) {
        const Number mean = mean_ptr[channel], var = var_ptr[channel], unbiased = var * m / (m - 1), share = momentum;
        rmean_ptr[channel] = Real(fma(share, mean, Number(rmean_ptr[channel]) * keep));
        rvar_ptr[channel] = Real(fma(share, unbiased, Number(rvar_ptr[channel]) * keep));
    }
}

// The gradients of a block's channel. `given`: mean_ptr and var_ptr hold the statistics, else they are computed.
// `training`: the statistics are functions of x. With pairs it is so long that AMD's compiler would call it.
{{ "__forceinline__ " if T.name == "f64" }}__device__ void
backward(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr, Real* gw_ptr, Real* gb_ptr, const Real* w_ptr,
         const Real* mean_ptr, const Real* var_ptr, unsigned batch, unsigned channels, unsigned hw, Real eps,
         bool given, bool training) {
    const size_t pitch = size_t(channels) * hw, m = size_t(batch) * hw;
    if (m == 0) return;
    for (size_t channel = blockIdx.x; channel < channels; channel += gridDim.x) {
        const size_t first = channel * hw;
        const Element *x = in_ptr + first, *go = go_ptr + first;
        Element* gi = gi_ptr + first;

        const double k = given ? mean_ptr[channel] : Real(x[0]);
        Number sum = 0, squares = 0, go_sum = 0, dot = 0;
        for (Walk at(threadIdx.x, blockDim.x, hw, pitch); at.row < batch; at.next()) {
            const size_t i = at.offset;
            const Number d = Number(Real(x[i])) - k;
            const double g = Real(go[i]);
            sum += d;
            squares = fma(d, d, squares);
            go_sum += g;
            dot = fma(d, g, dot);
        }
        block_sum(go_sum, dot);

        Number mean = k, var;
        if (given) {
            var = var_ptr[channel];
        } else {
            block_sum(sum, squares);
            const Moments<Number> all = moments(sum, squares, m);
            mean = k + all.offset;
            var = all.var;
            dot = fma(-all.offset, go_sum, dot);
        }
        const Number inv = inverse_root(var + eps);
        if (threadIdx.x == 0) {
            if (gw_ptr) gw_ptr[channel] = Real(dot * inv);
            if (gb_ptr) gb_ptr[channel] = Real(go_sum);
        }

        // grad_input = (go - shift - (x - mean) * slope) * scale
        const double weight = w_ptr ? w_ptr[channel] : 1;
        const Number scale = inv * weight, slope = dot * inv / m * inv, shift = go_sum / m;
//% if T.size == 2
        const Gradient gradient(mean, scale, slope, shift);
        for (Walk at(threadIdx.x, blockDim.x, hw, pitch); at.row < batch; at.next()) {
            const size_t i = at.offset;
            const Real g = Real(go[i]);
            gi[i] = Element(training ? gradient(Real(x[i]), g) : g * gradient.go_power * gradient.go_factor);
        }
//% elif T.name == "f64"
        const Gradient gradient{mean, scale, rounded(slope), rounded(shift), m < 64};
        for (Walk at(threadIdx.x, blockDim.x, hw, pitch); at.row < batch; at.next()) {
            const size_t i = at.offset;
            gi[i] = training ? gradient(x[i], go[i]) : double(Number(go[i]) * scale);
        }
//% else
        for (Walk at(threadIdx.x, blockDim.x, hw, pitch); at.row < batch; at.next()) {
            const size_t i = at.offset;
            const Number g = Real(go[i]), own = training ? fma(mean - Number(Real(x[i])), slope, g - shift) : g;
            gi[i] = Element(Real(own * scale));
        }
//% endif
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
batch_norm_backward_kernel{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr, Real* gw_ptr,
                           Real* gb_ptr, const Real* w_ptr, const Real* rmean_ptr, const Real* rvar_ptr,
                           unsigned batch, unsigned channels, unsigned hw, Real eps, unsigned training) {
    backward(in_ptr, go_ptr, gi_ptr, gw_ptr, gb_ptr, w_ptr, rmean_ptr, rvar_ptr, batch, channels, hw, eps,
             training == 0, training != 0);
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
batch_norm_backward_handed_kernel{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr,
                                  Real* gw_ptr, Real* gb_ptr, const Real* w_ptr, const Real* mean_ptr,
                                  const Real* var_ptr, unsigned batch, unsigned channels, unsigned hw, Real eps) {
    backward(in_ptr, go_ptr, gi_ptr, gw_ptr, gb_ptr, w_ptr, mean_ptr, var_ptr, batch, channels, hw, eps, true, true);
}

//% if entry is none or "_norm_eval" in entry

// All channels side by side: a thread has VECTOR places, and a block begins to read before it knows its coefficients.
constexpr unsigned PLACES = {{ places }}, AT_ONCE = 4;

struct Eval {
    const Element* in_ptr;
    Element* out_ptr;
    const Real *w_ptr, *b_ptr, *mean_ptr, *var_ptr;
    unsigned batch, channels, hw;
    Real eps;
    unsigned images;

    template <bool WHOLE>
    __device__ void read(Real (&values)[AT_ONCE][VECTOR], size_t place, unsigned own, unsigned image, unsigned end) {
        const size_t pitch = size_t(channels) * hw;
#pragma unroll
        for (unsigned turn = 0; turn < AT_ONCE; ++turn) {
            if (image + turn >= end) break;
            const Element* from = in_ptr + (image + turn) * pitch + place;
            if constexpr (WHOLE) {
                if (own) load<true>(values[turn], from);
            } else {
#pragma unroll
                for (unsigned i = 0; i < VECTOR; ++i) {
                    if (i < own) values[turn][i] = Real(from[i]);
                }
            }
        }
    }

    template <bool WHOLE>
    __device__ void run({{ "Normal* normals" if T.size == 2 else "Number* scales, double* means, double* biases" }}) {
        const size_t pitch = size_t(channels) * hw, start = size_t(blockIdx.x) * PLACES;
        const unsigned first = blockIdx.x < (1ull << 32) / PLACES ? unsigned(start) / hw : start / hw, column = start - size_t(first) * hw;
        const size_t place = start + threadIdx.x * VECTOR;
        const unsigned own = place < pitch ? min(pitch - place, size_t(VECTOR)) : 0;
        unsigned image = blockIdx.y * images;
        const unsigned end = min(image + images, batch);
        Real values[AT_ONCE][VECTOR];
        read<WHOLE>(values, place, own, image, end);

        // The coefficients of all channels that begin before the block ends
        for (unsigned i = threadIdx.x; size_t(i) * hw < column + PLACES && i < channels - first; i += blockDim.x) {
            const unsigned channel = first + i;
//% if T.size == 2
            const double weight = w_ptr ? w_ptr[channel] : 1, bias = b_ptr ? b_ptr[channel] : 0;
            normals[i] = Normal(mean_ptr[channel], inverse_root(Number(var_ptr[channel]) + eps) * weight, bias);
//% else
            means[i] = mean_ptr[channel];
            const double weight = w_ptr ? w_ptr[channel] : 1;
            scales[i] = inverse_root(Number(var_ptr[channel]) + eps) * weight;
            biases[i] = b_ptr ? b_ptr[channel] : 0;
//% endif
        }
        __syncthreads();
        if (own == 0) return;
//% if T.size == 2
        Normal normal[VECTOR];
//% else
        Number scale[VECTOR];
        double mean[VECTOR], bias[VECTOR];
//% endif
        const size_t along = column + size_t(threadIdx.x) * VECTOR;
        // The block's places are in two rows at most, or these are short
        unsigned row = hw >= PLACES ? along >= hw : unsigned(along) / hw, rest = along - size_t(row) * hw;
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) {
            const unsigned at = i < own ? row : 0;
//% if T.size == 2
            normal[i] = normals[at];
//% else
            mean[i] = means[at];
            scale[i] = scales[at];
            bias[i] = biases[at];
//% endif
            if (++rest == hw) {
                rest = 0;
                ++row;
            }
        }
        while (true) {
#pragma unroll
            for (unsigned turn = 0; turn < AT_ONCE; ++turn) {
                if (image + turn >= end) break;
                Element* to = out_ptr + (image + turn) * pitch + place;
                Real results[VECTOR];
#pragma unroll
                for (unsigned i = 0; i < VECTOR; ++i) {
                    results[i] = {{ "normal[i](values[turn][i])" if T.size == 2 else
                                    "Real(fma(Number(values[turn][i]) - mean[i], scale[i], bias[i]))" }};
                }
                if constexpr (WHOLE) {
                    store<true>(to, results);
                } else {
#pragma unroll
                    for (unsigned i = 0; i < VECTOR; ++i) {
                        if (i < own) to[i] = Element(results[i]);
                    }
                }
            }
            image += AT_ONCE;
            if (image >= end) return;
            read<WHOLE>(values, place, own, image, end);
        }
    }
};

extern "C" __global__ void __launch_bounds__(PLACES / VECTOR, 1)
batch_norm_eval{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr,
                const Real* mean_ptr, const Real* var_ptr, unsigned batch, unsigned channels, unsigned hw, Real eps,
                unsigned images) {
//% if T.size == 2
    __shared__ Normal normals[PLACES];
//% else
    __shared__ Number scales[PLACES];
    __shared__ double means[PLACES], biases[PLACES];
//% endif
    Eval eval{in_ptr, out_ptr, w_ptr, b_ptr, mean_ptr, var_ptr, batch, channels, hw, eps, images};
    const size_t addresses = reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(out_ptr);
    if (addresses % 16 == 0 && size_t(channels) * hw % VECTOR == 0) eval.run<true>({{ eval_arrays }});
    else eval.run<false>({{ eval_arrays }});
}
//% endif
//% if entry is none or "backward_eval" in entry

// A slice of a channel whose statistics are given: the results wait for no sum.
struct Given {
    Element* to;
    double k;
//% if T.size == 2
    float power, factor;
//% else
    Number scale;
//% endif
    Number &go_sum, &dot;

    template <unsigned WIDTH>
    __device__ void one(size_t offset, const Real (&values)[WIDTH], const Real (&gradients)[WIDTH]) {
        Real results[WIDTH];
#pragma unroll
        for (unsigned i = 0; i < WIDTH; ++i) {
            const double g = gradients[i];
            go_sum += g;
            dot = fma(Number(values[i]) - k, g, dot);
            results[i] = {{ "gradients[i] * power * factor" if T.size == 2 else "Real(scale * g)" }};
        }
        store<true>(to + offset, results);
    }
};

extern "C" __global__ void __launch_bounds__(256, {{ 2 if T.name == "f64" else 4 }})
batch_norm_backward_eval{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr, const Real* w_ptr,
                         const Real* mean_ptr, const Real* var_ptr, double* sums_ptr, unsigned batch, unsigned channels,
                         unsigned hw, Real eps, unsigned slices, size_t values) {
    const size_t channel = blockIdx.x, home = channel * hw;
    const unsigned first = blockIdx.y * unsigned(values), last = min(first + unsigned(values), batch * hw);
    const size_t addresses =
        reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(go_ptr) | reinterpret_cast<size_t>(gi_ptr);
    const double weight = w_ptr ? w_ptr[channel] : 1;
    const Number scale = inverse_root(Number(var_ptr[channel]) + eps) * weight;
    Number go_sum = 0, dot = 0;
//% if T.size == 2
    const Twos twos(scale);
    const Given given{gi_ptr + home, mean_ptr[channel], float(twos.power), float(twos.rest), go_sum, dot};
//% else
    const Given given{gi_ptr + home, mean_ptr[channel], scale, go_sum, dot};
//% endif
    by_width(hw, addresses, Units<256, true, Given>{
        in_ptr + home, go_ptr + home, size_t(channels) * hw, hw, first, last, given});
    block_sum(go_sum, dot);
    if (threadIdx.x == 0) {
        Number* row = reinterpret_cast<Number*>(sums_ptr) + 2 * (channel * slices + blockIdx.y);
        row[0] = go_sum;
        row[1] = dot;
    }
}

extern "C" __global__ void __launch_bounds__(128)
batch_norm_backward_eval_finish{{ suffix }}(const Real* mean_ptr, const Real* var_ptr, Real* gw_ptr, Real* gb_ptr,
                                const double* sums_ptr, unsigned batch, unsigned channels, unsigned hw, Real eps,
                                unsigned slices) {
    const size_t channel = blockIdx.x;
    const Number* rows = reinterpret_cast<const Number*>(sums_ptr) + 2 * channel * slices;
    Number go_sum = 0, dot = 0;
    for (unsigned row = threadIdx.x; row < slices; row += 128) {
        go_sum += rows[2 * row];
        dot += rows[2 * row + 1];
    }
    block_sum(go_sum, dot);
    if (threadIdx.x == 0) {
        if (gw_ptr) gw_ptr[channel] = Real(dot * inverse_root(Number(var_ptr[channel]) + eps));
        if (gb_ptr) gb_ptr[channel] = Real(go_sum);
    }
}
//% endif
