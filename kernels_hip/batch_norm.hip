// batch_norm, float32, forward and backward.
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
// How that is computed, and why it is accurate, is said in batch_norm.ptx: sums in float64, of d = x - k where k is the
// channel's first value, or the mean where it is given, and each result is rounded to float32 once. Every product that
// is added to something is an fma() in the text, so that no compiler has a choice which one to contract. 1 / sqrt(), of
// which AMD's makes one operation, is right to an ulp of float64.
//
// in_ptr, out_ptr, go_ptr, gi_ptr are [batch, channels, hw]; all else is [channels]. A null w_ptr is a weight of ones,
// a null b_ptr a bias of zeros; a null gw_ptr or gb_ptr is not written. out_ptr may be in_ptr; gi_ptr may be in_ptr or
// go_ptr. Blocks have a multiple of 32 threads.
//
//   batch_norm_kernel, batch_norm_backward_kernel, batch_norm_backward_handed_kernel: grid (channels); a block has a
//     channel. In training the forward one writes the batch statistics to mean_ptr and var_ptr, and the first of the
//     backward ones computes them; the other is given them.
//   batch_norm_running: a thread a channel; updates the running statistics.

constexpr int MOST_THREADS = 1024;  // of a block

//% include "block_sum.jinja"
//% include "moments.jinja"
//% include "walk.jinja"

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
batch_norm_kernel(const float* in_ptr, float* out_ptr, const float* w_ptr, const float* b_ptr, float* mean_ptr,
                  float* var_ptr, unsigned batch, unsigned channels, unsigned hw, float eps, unsigned training) {
    const unsigned channel = blockIdx.x;
    const size_t pitch = size_t(channels) * hw, m = size_t(batch) * hw;
    const float* x = in_ptr + size_t(channel) * hw;
    float* y = out_ptr + size_t(channel) * hw;
    if (m == 0) return;

    double mean, var;
    if (training) {
        const double k = x[0];
        double sum = 0, squares = 0;
        for (Walk at(threadIdx.x, blockDim.x, hw); at.row < batch; at.next()) {
            const double d = x[at.row * pitch + at.column] - k;
            sum += d;
            squares = fma(d, d, squares);
        }
        block_sum(sum, squares);
        const Moments all = moments(sum, squares, m);
        mean = k + all.offset;
        var = all.var;
        if (threadIdx.x == 0) {
            mean_ptr[channel] = mean;
            var_ptr[channel] = var;
        }
    } else {
        mean = mean_ptr[channel];
        var = var_ptr[channel];
    }

    const double weight = w_ptr ? w_ptr[channel] : 1, bias = b_ptr ? b_ptr[channel] : 0;
    const double scale = 1 / sqrt(var + eps) * weight;
    for (Walk at(threadIdx.x, blockDim.x, hw); at.row < batch; at.next()) {
        const size_t i = at.row * pitch + at.column;
        y[i] = fma(x[i] - mean, scale, bias);
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
batch_norm_running(const float* mean_ptr, const float* var_ptr, float* rmean_ptr, float* rvar_ptr, unsigned batch,
                   unsigned channels, unsigned hw, float momentum) {
    const unsigned channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    const double m = size_t(batch) * hw, unbiased = var_ptr[channel] * m / (m - 1), keep = 1.0 - momentum;
    rmean_ptr[channel] = fma(double(momentum), double(mean_ptr[channel]), rmean_ptr[channel] * keep);
    rvar_ptr[channel] = fma(double(momentum), unbiased, rvar_ptr[channel] * keep);
}

// The gradients of a block's channel. `given`: mean_ptr and var_ptr hold the statistics, else they are computed.
// `training`: the statistics are functions of x.
__device__ void backward(const float* in_ptr, const float* go_ptr, float* gi_ptr, float* gw_ptr, float* gb_ptr,
                         const float* w_ptr, const float* mean_ptr, const float* var_ptr, unsigned batch,
                         unsigned channels, unsigned hw, float eps, bool given, bool training) {
    const unsigned channel = blockIdx.x;
    const size_t pitch = size_t(channels) * hw, first = size_t(channel) * hw, m = size_t(batch) * hw;
    const float *x = in_ptr + first, *go = go_ptr + first;
    float* gi = gi_ptr + first;
    if (m == 0) return;

    const double k = given ? mean_ptr[channel] : x[0];
    double sum = 0, squares = 0, go_sum = 0, dot = 0;
    for (Walk at(threadIdx.x, blockDim.x, hw); at.row < batch; at.next()) {
        const size_t i = at.row * pitch + at.column;
        const double d = x[i] - k, g = go[i];
        sum += d;
        squares = fma(d, d, squares);
        go_sum += g;
        dot = fma(d, g, dot);
    }
    block_sum(go_sum, dot);

    double mean = k, var;
    if (given) {
        var = var_ptr[channel];
    } else {
        block_sum(sum, squares);
        const Moments all = moments(sum, squares, m);
        mean = k + all.offset;
        var = all.var;
        dot = fma(-all.offset, go_sum, dot);
    }
    const double inv = 1 / sqrt(var + eps);
    if (threadIdx.x == 0) {
        if (gw_ptr) gw_ptr[channel] = dot * inv;
        if (gb_ptr) gb_ptr[channel] = go_sum;
    }

    // grad_input = (go - shift - (x - mean) * slope) * scale
    const double scale = inv * (w_ptr ? w_ptr[channel] : 1), slope = dot * inv / m * inv, shift = go_sum / m;
    for (Walk at(threadIdx.x, blockDim.x, hw); at.row < batch; at.next()) {
        const size_t i = at.row * pitch + at.column;
        const double g = go[i];
        gi[i] = (training ? fma(mean - x[i], slope, g - shift) : g) * scale;
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
batch_norm_backward_kernel(const float* in_ptr, const float* go_ptr, float* gi_ptr, float* gw_ptr, float* gb_ptr,
                           const float* w_ptr, const float* rmean_ptr, const float* rvar_ptr, unsigned batch,
                           unsigned channels, unsigned hw, float eps, unsigned training) {
    backward(in_ptr, go_ptr, gi_ptr, gw_ptr, gb_ptr, w_ptr, rmean_ptr, rvar_ptr, batch, channels, hw, eps,
             training == 0, training != 0);
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
batch_norm_backward_handed_kernel(const float* in_ptr, const float* go_ptr, float* gi_ptr, float* gw_ptr,
                                  float* gb_ptr, const float* w_ptr, const float* mean_ptr, const float* var_ptr,
                                  unsigned batch, unsigned channels, unsigned hw, float eps) {
    backward(in_ptr, go_ptr, gi_ptr, gw_ptr, gb_ptr, w_ptr, mean_ptr, var_ptr, batch, channels, hw, eps, true, true);
}
