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
// to {{ R.name }} once{{ ", then to " ~ T.name if T.size == 2 }}.
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

constexpr int MOST_THREADS = {{ 512 if T.name == "f64" else 1024 }};  // of a block

//% include "elements.jinja"
//% include "pairs.jinja"
//% include "block_sum.jinja"
//% include "moments.jinja"
//% include "walk.jinja"

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
            for (Walk at(threadIdx.x, blockDim.x, hw); at.row < batch; at.next()) {
                const Number d = Number(Real(x[at.row * pitch + at.column])) - k;
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
        const Number scale = inverse_root(var + eps) * weight;
        for (Walk at(threadIdx.x, blockDim.x, hw); at.row < batch; at.next()) {
            const size_t i = at.row * pitch + at.column;
            y[i] = Element(Real(fma(Number(Real(x[i])) - mean, scale, bias)));
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
        for (Walk at(threadIdx.x, blockDim.x, hw); at.row < batch; at.next()) {
            const size_t i = at.row * pitch + at.column;
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
        for (Walk at(threadIdx.x, blockDim.x, hw); at.row < batch; at.next()) {
            const size_t i = at.row * pitch + at.column;
            const Number g = Real(go[i]), own = training ? fma(mean - Number(Real(x[i])), slope, g - shift) : g;
            gi[i] = Element(Real(own * scale));
        }
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
