// group_norm, {{ T.name }}, forward and backward.
//
//   y[b,c,p] = (x[b,c,p] - mean) * inv * w[c] + bias[c],   inv = 1 / sqrt(var + eps)
//
// mean and biased var are those of one image's group of channels: n = (channels / groups) * hw values, which lie
// one after another. Backward, from grad_out go, with g = go * w, xhat = (x - mean) * inv, means over the group:
//
//   grad_input = (g - mean(g) - xhat * mean(g * xhat)) * inv
//   grad_weight[c] = sum over b, p of go * xhat,   grad_bias[c] = sum over b, p of go
//
// How that is computed, and why it is accurate, stands in group_norm.ptx: sums of Numbers, f64 or pairs of it, of
// d = x - k where k is the group's first value. Each result is rounded
// to {{ R.name }} once{{ ", then to " ~ T.name if T.size == 2 }}.
// Every product that is added to something is an fma() in the text, so that no compiler has a choice which one to
// contract. 1 / sqrt(), of which AMD's makes one operation, is right to an ulp of f64.
//
// Any grid serves: blocks take the groups, or the channels, blockIdx.x, blockIdx.x + gridDim.x, ... and of groups the
// images blockIdx.y, blockIdx.y + gridDim.y, ... Blocks have a multiple of 32 threads. A null w_ptr is a weight of ones,
// a null b_ptr a bias of zeros; a null gw_ptr is not written.
//
//   group_norm_kernel: a block has a group. out_ptr may be in_ptr.
//   group_norm_backward_groups_kernel: a block has a group: its sums, then its grad_input. gi_ptr may be
//     in_ptr or go_ptr. A unit is a slice, length values, of a channel of an image; it belongs to as many lanes,
//     a power of two up to 32. partials_ptr: four Numbers a unit, in the order of memory, of which the last two are
//     written, sum(go) and sum(go*d). statistics_ptr: five Numbers for each group of each image, of which the second
//     and the third are written, offset = mean - k and inv.
//   group_norm_backward_parameters_kernel: a block has a channel: grad_weight and grad_bias from partials and statistics.

constexpr int MOST_THREADS = {{ 512 if T.name == "f64" else 1024 }};  // of a block

//% include "elements.jinja"
//% include "pairs.jinja"
//% include "block_sum.jinja"
//% include "moments.jinja"
//% include "walk.jinja"
//% if T.name == "f64"
//% include "group_norm_gradient.jinja"
//% endif

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
group_norm_kernel{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr,
                  unsigned batch, unsigned channels, unsigned groups, unsigned hw, Real eps) {
    const unsigned per_group = channels / groups;
    const size_t n = size_t(per_group) * hw;
    if (n == 0) return;
    for (size_t group = blockIdx.x; group < groups; group += gridDim.x) {
        const size_t first_channel = group * per_group;
        for (size_t image = blockIdx.y; image < batch; image += gridDim.y) {
            const size_t start = (image * groups + group) * n;
            const Element* x = in_ptr + start;
            Element* y = out_ptr + start;

            const double k = Real(x[0]);
            Number sum = 0, squares = 0;
#pragma unroll 4
            for (size_t i = threadIdx.x; i < n; i += blockDim.x) {
                const Number d = Number(Real(x[i])) - k;
                sum += d;
                squares = fma(d, d, squares);
            }
            block_sum(sum, squares);
            const Moments<Number> all = moments(sum, squares, n);
            const Number mean = k + all.offset, inv = inverse_root(all.var + eps);

            Walk at(threadIdx.x, blockDim.x, hw);
            for (size_t i = threadIdx.x; i < n; i += blockDim.x, at.next()) {
                const size_t channel = first_channel + at.row;
                const double weight = w_ptr ? w_ptr[channel] : 1, bias = b_ptr ? b_ptr[channel] : 0;
                y[i] = Element(Real(fma(Number(Real(x[i])) - mean, weight * inv, bias)));
            }
        }
    }
}

// One block at a time is enough to ask for: for more, NVRTC would spill a register.
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
group_norm_backward_groups_kernel{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr,
                                  const Real* w_ptr, double* partials_ptr, double* statistics_ptr, unsigned batch,
                                  unsigned channels, unsigned groups, unsigned hw, Real eps, unsigned slices,
                                  unsigned length, unsigned lanes) {
    const unsigned per_group = channels / groups;
    const size_t n = size_t(per_group) * hw, units = size_t(per_group) * slices;
    const unsigned lane = threadIdx.x % lanes, own = threadIdx.x / lanes, at_once = blockDim.x / lanes;
    if (n == 0) return;
    for (size_t own_group = blockIdx.x; own_group < groups; own_group += gridDim.x) {
        const size_t first_channel = own_group * per_group;
        for (size_t image = blockIdx.y; image < batch; image += gridDim.y) {
            const size_t group = image * groups + own_group, start = group * n;
            const Element *x = in_ptr + start, *go = go_ptr + start;
            Number* partials = reinterpret_cast<Number*>(partials_ptr) + 4 * group * units;
            Number* statistics = reinterpret_cast<Number*>(statistics_ptr) + 5 * group;

            // The group's sums, unit by unit; a unit's first lane keeps them. All lanes go along in every turn.
            const double k = Real(x[0]);
            Number sum = 0, squares = 0, g_sum = 0, g_dot = 0;
            Walk unit(own, at_once, slices);
            for (size_t first = 0; first < units; first += at_once, unit.next()) {
                const bool present = first + own < units;
                const size_t channel = unit.row;
                const unsigned begin = unit.column * length;
                const unsigned count = present ? min(hw - begin, length) : 0;
                const Element *unit_x = x + channel * hw + begin, *unit_go = go + channel * hw + begin;
                Number go_sum = 0, go_dot = 0;
                for (unsigned i = lane; i < count; i += lanes) {
                    const Number d = Number(Real(unit_x[i])) - k;
                    const double g = Real(unit_go[i]);
                    sum += d;
                    squares = fma(d, d, squares);
                    go_sum += g;
                    go_dot = fma(d, g, go_dot);
                }
                for (unsigned distance = lanes / 2; distance > 0; distance /= 2) {
                    go_sum += __shfl_xor(go_sum, distance, GROUP);
                    go_dot += __shfl_xor(go_dot, distance, GROUP);
                }
                if (present && lane == 0) {
                    Number* partial = partials + 4 * (first + own);
                    partial[2] = go_sum;
                    partial[3] = go_dot;
                    const double weight = w_ptr ? w_ptr[first_channel + channel] : 1;
                    g_sum = fma(go_sum, weight, g_sum);
                    g_dot = fma(go_dot, weight, g_dot);
                }
            }
            block_sum(sum, squares, g_sum, g_dot);
            const Moments<Number> all = moments(sum, squares, n);
            const Number mean = k + all.offset, inv = inverse_root(all.var + eps);
            if (threadIdx.x == 0) {
                statistics[1] = all.offset;
                statistics[2] = inv;
            }

            // grad_input = (g - mean_g - (x - mean) * slope) * inv
            const Number mean_g = g_sum / n, slope = fma(-all.offset, g_sum, g_dot) * inv / n * inv;
            Element* gi = gi_ptr + start;
            Walk at(threadIdx.x, blockDim.x, hw);
            for (size_t i = threadIdx.x; i < n; i += blockDim.x, at.next()) {
//% if T.name == "f64"
                const double weight = w_ptr ? w_ptr[first_channel + at.row] : 1;
                gi[i] = Gradient{n < 64, weight, mean, inv, rounded(mean_g), rounded(slope)}(x[i], go[i]);
//% else
                const double g = Real(go[i]), weight = w_ptr ? w_ptr[first_channel + at.row] : 1;
                gi[i] = Element(Real(fma(mean - Number(Real(x[i])), slope, fma(g, weight, -mean_g)) * inv));
//% endif
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
group_norm_backward_parameters_kernel{{ suffix }}(const double* partials_ptr, const double* statistics_ptr,
                                      Real* gw_ptr, Real* gb_ptr, unsigned batch, unsigned channels, unsigned groups,
                                      unsigned slices) {
    const Number* partials = reinterpret_cast<const Number*>(partials_ptr);
    const Number* all_statistics = reinterpret_cast<const Number*>(statistics_ptr);
    for (size_t channel = blockIdx.x; channel < channels; channel += gridDim.x) {
        const size_t group = channel / (channels / groups);
        Number weight_sum = 0, bias_sum = 0;
        for (Walk at(threadIdx.x, blockDim.x, slices); at.row < batch; at.next()) {
            const size_t image = at.row;
            const Number* partial = partials + 4 * ((image * channels + channel) * slices + at.column);
            const Number* statistics = all_statistics + 5 * (image * groups + group);
            const Number go_sum = partial[2], go_dot = partial[3], offset = statistics[1], inv = statistics[2];
            bias_sum += go_sum;
            weight_sum = fma(fma(-offset, go_sum, go_dot), inv, weight_sum);
        }
        block_sum(weight_sum, bias_sum);
        if (threadIdx.x == 0) {
            if (gw_ptr) gw_ptr[channel] = Real(weight_sum);
            gb_ptr[channel] = Real(bias_sum);
        }
    }
}
