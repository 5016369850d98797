// group_norm_last, {{ T.name }}: group_norm of channels-last arrays, forward and backward.
//
// The formulas stand in group_norm.hip, how they are computed and why that is accurate in group_norm.ptx. What is
// different is where a group's n = (channels / groups) * hw values lie: in hw rows of channels / groups neighbours,
// which begin `channels` values after each other. k, about which sums are shifted, is the first of them.
//
// A row belongs to `lanes` threads, a power of two up to 32, and a block takes blockDim.x / lanes rows at a time. A
// thread goes down its rows with the same channel, and then to the next. Each result is rounded to {{ R.name }}
// once{{ ", then to " ~ T.name if T.size == 2 }}; every product that is added to something is an fma() in the text.
//
// Grids end in min(batch, 65535): blocks take the images blockIdx.y, blockIdx.y + gridDim.y, ... and of each the groups
// blockIdx.x, blockIdx.x + gridDim.x, ... Blocks have a multiple of 32 threads. A null w_ptr is a weight of ones, a
// null b_ptr a bias of zeros.
//
//   group_norm_last_kernel: a block has a group. out_ptr may be in_ptr.
//   group_norm_last_backward_groups_kernel: a block has a group: its sums, then its grad_input. gi_ptr may be in_ptr or
//     go_ptr. partials_ptr: for each channel of each image four Numbers, of which the last two are written, sum(go) and
//     sum(go*d). statistics_ptr: for each group of each image five Numbers, of which the second and the third are
//     written, offset = mean - k and inv. Of both group_norm_backward_parameters_kernel makes grad_weight and grad_bias.

constexpr int MOST_THREADS = {{ 512 if T.name == "f64" else 1024 }};  // of a block

//% include "elements.jinja"
//% include "pairs.jinja"
//% include "block_sum.jinja"
//% include "moments.jinja"

// The sums of the threads that have the same lane of a row, into those of the block's first row. All threads call.
__device__ inline void sum_over_rows(Number& first, Number& second, unsigned lanes) {
    for (unsigned distance = GROUP / 2; distance >= lanes; distance /= 2) {
        first += __shfl_xor(first, distance, GROUP);
        second += __shfl_xor(second, distance, GROUP);
    }
    __shared__ Number rows[MOST_THREADS][2];
    __syncthreads();  // the rows of the call before have been read
    if (threadIdx.x % GROUP < lanes) {
        rows[threadIdx.x][0] = first;
        rows[threadIdx.x][1] = second;
    }
    __syncthreads();
    if (threadIdx.x < lanes) {
        for (unsigned row = threadIdx.x + GROUP; row < blockDim.x; row += GROUP) {
            first += rows[row][0];
            second += rows[row][1];
        }
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
group_norm_last_kernel{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr,
                       unsigned batch, unsigned channels, unsigned groups, unsigned hw, Real eps, unsigned lanes) {
    const unsigned per_group = channels / groups, at_once = blockDim.x / lanes;
    const unsigned lane = threadIdx.x % lanes, own = threadIdx.x / lanes;
    if (per_group == 0 || hw == 0) return;
    for (size_t image = blockIdx.y; image < batch; image += gridDim.y) {
        for (size_t group = blockIdx.x; group < groups; group += gridDim.x) {
            const size_t first_channel = group * per_group, start = image * hw * channels + first_channel;
            const Element* x = in_ptr + start;
            Element* y = out_ptr + start;

            const double k = Real(x[0]);
            Number sum = 0, squares = 0;
            for (size_t column = lane; column < per_group; column += lanes) {
#pragma unroll 4
                for (size_t row = own; row < hw; row += at_once) {
                    const Number d = Number(Real(x[row * channels + column])) - k;
                    sum += d;
                    squares = fma(d, d, squares);
                }
            }
            block_sum(sum, squares);
            const Moments<Number> all = moments(sum, squares, double(size_t(per_group) * hw));
            const Number mean = k + all.offset, inv = inverse_root(all.var + eps);

            for (size_t column = lane; column < per_group; column += lanes) {
                const double weight = w_ptr ? w_ptr[first_channel + column] : 1;
                const double bias = b_ptr ? b_ptr[first_channel + column] : 0;
                const Number scale = weight * inv;
                for (size_t row = own; row < hw; row += at_once) {
                    const size_t i = row * channels + column;
                    y[i] = Element(Real(fma(Number(Real(x[i])) - mean, scale, bias)));
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
group_norm_last_backward_groups_kernel{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr,
                                       const Real* w_ptr, double* partials_ptr, double* statistics_ptr, unsigned batch,
                                       unsigned channels, unsigned groups, unsigned hw, Real eps, unsigned lanes) {
    const unsigned per_group = channels / groups, at_once = blockDim.x / lanes;
    const unsigned lane = threadIdx.x % lanes, own = threadIdx.x / lanes;
    if (per_group == 0 || hw == 0) return;
    for (size_t image = blockIdx.y; image < batch; image += gridDim.y) {
        for (size_t group = blockIdx.x; group < groups; group += gridDim.x) {
            const size_t first_channel = group * per_group, start = image * hw * channels + first_channel;
            const Element *x = in_ptr + start, *go = go_ptr + start;
            Number* partials = reinterpret_cast<Number*>(partials_ptr) + 4 * (image * channels + first_channel);
            Number* statistics = reinterpret_cast<Number*>(statistics_ptr) + 5 * (image * groups + group);

            // The group's sums, channel by channel, which the first row's threads keep. All go along in every turn.
            const double k = Real(x[0]);
            Number sum = 0, squares = 0, g_sum = 0, g_dot = 0;
            for (size_t first = 0; first < per_group; first += lanes) {
                const size_t column = first + lane;
                const unsigned rows = column < per_group ? hw : 0;
                Number go_sum = 0, go_dot = 0;
                for (size_t row = own; row < rows; row += at_once) {
                    const size_t i = row * channels + column;
                    const Number d = Number(Real(x[i])) - k;
                    const double g = Real(go[i]);
                    sum += d;
                    squares = fma(d, d, squares);
                    go_sum += g;
                    go_dot = fma(d, g, go_dot);
                }
                sum_over_rows(go_sum, go_dot, lanes);
                if (rows && threadIdx.x < lanes) {
                    partials[4 * column + 2] = go_sum;
                    partials[4 * column + 3] = go_dot;
                    const double weight = w_ptr ? w_ptr[first_channel + column] : 1;
                    g_sum = fma(go_sum, weight, g_sum);
                    g_dot = fma(go_dot, weight, g_dot);
                }
            }
            block_sum(sum, squares, g_sum, g_dot);
            const double n = double(size_t(per_group) * hw);
            const Moments<Number> all = moments(sum, squares, n);
            const Number mean = k + all.offset, inv = inverse_root(all.var + eps);
            if (threadIdx.x == 0) {
                statistics[1] = all.offset;
                statistics[2] = inv;
            }

            // grad_input = (g - mean_g - (x - mean) * slope) * inv
            const Number mean_g = g_sum / n, slope = fma(-all.offset, g_sum, g_dot) * inv / n * inv;
            Element* gi = gi_ptr + start;
            for (size_t column = lane; column < per_group; column += lanes) {
                const double weight = w_ptr ? w_ptr[first_channel + column] : 1;
                for (size_t row = own; row < hw; row += at_once) {
                    const size_t i = row * channels + column;
                    const double g = Real(go[i]);
                    gi[i] = Element(Real(fma(mean - Number(Real(x[i])), slope, fma(g, weight, -mean_g)) * inv));
                }
            }
        }
    }
}
