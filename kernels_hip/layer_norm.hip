// layer_norm, {{ T.name }}, forward and backward.
//
//   y[r,i] = (x[r,i] - mean) * inv * w[i] + b[i],   inv = 1 / sqrt(var + eps)
//
// mean and biased var are those of row r: n = width values, which lie one after another. Backward, from grad_out go, with
// g = go * w, xhat = (x - mean) * inv, means over the row, sums over all rows:
//
//   grad_input = (g - mean(g) - xhat * mean(g * xhat)) * inv
//   grad_weight[i] = sum(go * xhat),   grad_bias[i] = sum(go)
//
// How that is computed stands in layer_norm.ptx: sums of Numbers, f64 or pairs of it, of d = x - k where k is the row's
// first value. Each result is {{ "made in f64" if T.name == "f64" else "rounded to " ~ R.name ~ " once" }}{{ ", then to " ~ T.name if T.size == 2 }}.
// Every product that is added to something is an fma() in the text, so that no compiler has a choice which one to
// contract. 1 / sqrt(), of which AMD's makes one operation, is right to an ulp of f64.
//
// Blocks have a multiple of 32 threads, and take their rows, columns or units in turn, so grids may be of any size. A null
// w_ptr is a weight of ones, a null b_ptr a bias of zeros; a null gw_ptr is not written.
//
//   layer_norm_kernel: grid (rows); a block has a row. out_ptr may be in_ptr.
//
// Backward, in this order; a slice is `length` rows.
//   layer_norm_backward_kernel: grid (rows): grad_input, which is no other array, and of each row mean and inv.
//   layer_norm_backward_columns_kernel: grid (ceil(slices * width / 256)); a thread has a unit, a column of a slice.
//     partials_ptr: for each slice and column sum(go * xhat), sum(go).
//   layer_norm_backward_parameters_kernel: grid (width): grad_weight and grad_bias from the partials.

constexpr int MOST_THREADS = {{ 512 if T.name == "f64" else 1024 }};  // of a block

//% include "elements.jinja"
//% include "pairs.jinja"
//% include "block_sum.jinja"
//% include "moments.jinja"
//% if T.name == "f64"
//% include "wide_rows.jinja"
//% endif

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
layer_norm_kernel{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr, size_t rows,
                  size_t width, Real eps) {
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const Element* x = in_ptr + row * width;
        Element* y = out_ptr + row * width;
        const double k = Real(x[0]);
        Number sum = 0, squares = 0;
//% if T.name == "f64"
        OwnSums own{x[own_value(width)], 0, 0, sum, squares, sum, squares};
        each_value(width, [&](size_t i, bool first, bool last) { own.take(x[i], first, last); });
        own.shift_to(k, false);
//% else
#pragma unroll 4
        for (size_t i = threadIdx.x; i < width; i += blockDim.x) {
            const Number d = Number(Real(x[i])) - k;
            sum += d;
            squares = fma(d, d, squares);
        }
//% endif
        block_sum(sum, squares);
        const Moments<Number> all = moments(sum, squares, width);
        const Number mean = k + all.offset, inv = inverse_root(all.var + eps);

//% if T.name == "f64"
#pragma unroll 4
        for (size_t i = threadIdx.x; i < width; i += blockDim.x) {
            const double weight = w_ptr ? w_ptr[i] : 1, bias = b_ptr ? b_ptr[i] : 0;
            y[i] = fma(apart(x[i], mean), weight * inv.high, bias);
        }
//% else
        for (size_t i = threadIdx.x; i < width; i += blockDim.x) {
            const double weight = w_ptr ? w_ptr[i] : 1, bias = b_ptr ? b_ptr[i] : 0;
            y[i] = Element(Real(fma(Number(Real(x[i])) - mean, weight * inv, bias)));
        }
//% endif
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
layer_norm_backward_kernel{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr, const Real* w_ptr,
                           double* statistics_ptr, size_t rows, size_t width, Real eps) {
    Number* statistics = reinterpret_cast<Number*>(statistics_ptr);
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const Element *x = in_ptr + row * width, *go = go_ptr + row * width;
        Element* gi = gi_ptr + row * width;
        const double k = Real(x[0]);
        Number sum = 0, squares = 0, g_sum = 0, g_dot = 0;
//% if T.name == "f64"
        const bool narrow = width < NARROW;
        if (!narrow) {
            const auto weight = [&](size_t i) { return w_ptr ? w_ptr[i] : 1; };
            const size_t at = own_value(width);
            OwnSums own{x[at], fma(go[at], weight(at), 0.0), 0, sum, squares, g_sum, g_dot};
            each_value(width, [&](size_t i, bool first, bool last) { own.take(x[i], go[i], weight(i), first, last); });
            own.shift_to(k, true);
        } else
//% endif
        for (size_t i = threadIdx.x; i < width; i += blockDim.x) {
            const Number d = Number(Real(x[i])) - k, g = Real(go[i]);
            const double weight = w_ptr ? w_ptr[i] : 1;
            sum += d;
            squares = fma(d, d, squares);
            g_sum = fma(g, weight, g_sum);
            g_dot = fma(d, g * weight, g_dot);
        }
        block_sum(sum, squares, g_sum, g_dot);
        const Moments<Number> all = moments(sum, squares, width);
        const Number mean = k + all.offset, inv = inverse_root(all.var + eps);
        if (threadIdx.x == 0) {
            statistics[2 * row] = mean;
            statistics[2 * row + 1] = inv;
        }

        // grad_input = (g - mean_g - (x - mean) * slope) * inv
        const Number mean_g = g_sum / width, slope = fma(-all.offset, g_sum, g_dot) * inv / width * inv;
//% if T.name == "f64"
        if (!narrow) {
            const Pair minus_slope = rounded(-slope), minus_mean_g = rounded(-mean_g);
#pragma unroll 4
            for (size_t i = threadIdx.x; i < width; i += blockDim.x) {
                const double g = fma(go[i], w_ptr ? w_ptr[i] : 1, minus_mean_g.high) + minus_mean_g.low;
                gi[i] = fma(apart(x[i], mean), minus_slope.high, g) * inv.high;
            }
        } else
//% endif
        for (size_t i = threadIdx.x; i < width; i += blockDim.x) {
            const double g = Real(go[i]), weight = w_ptr ? w_ptr[i] : 1;
            gi[i] = Element(Real(fma(mean - Number(Real(x[i])), slope, fma(g, weight, -mean_g)) * inv));
        }
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
layer_norm_backward_columns_kernel{{ suffix }}(const Element* in_ptr, const Element* go_ptr, const double* statistics_ptr,
                                   double* partials_ptr, size_t rows, size_t width, size_t slices, size_t length) {
    const Number* statistics = reinterpret_cast<const Number*>(statistics_ptr);
    Number* partials = reinterpret_cast<Number*>(partials_ptr);
    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t unit = size_t(blockIdx.x) * blockDim.x + threadIdx.x; unit < slices * width; unit += step) {
        const size_t first = unit / width * length, end = first + length < rows ? first + length : rows;
        Number weight_sum = 0, bias_sum = 0;
#pragma unroll 4
        for (size_t row = first; row < end; ++row) {
            const size_t i = row * width + unit % width;
            const double g = Real(go_ptr[i]);
//% if T.name == "f64"
            weight_sum = gathered(fma(apart(in_ptr[i], statistics[2 * row]) * statistics[2 * row + 1].high, g, 0.0), weight_sum);
            bias_sum = gathered(g, bias_sum);
//% else
            weight_sum = fma((Number(Real(in_ptr[i])) - statistics[2 * row]) * statistics[2 * row + 1], g, weight_sum);
            bias_sum += g;
//% endif
        }
        partials[2 * unit] = weight_sum;
        partials[2 * unit + 1] = bias_sum;
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
layer_norm_backward_parameters_kernel{{ suffix }}(const double* partials_ptr, Real* gw_ptr, Real* gb_ptr, size_t width,
                                      size_t slices) {
    const Number* partials = reinterpret_cast<const Number*>(partials_ptr);
    for (size_t column = blockIdx.x; column < width; column += gridDim.x) {
        Number weight_sum = 0, bias_sum = 0;
        for (size_t slice = threadIdx.x; slice < slices; slice += blockDim.x) {
            weight_sum += partials[2 * (slice * width + column)];
            bias_sum += partials[2 * (slice * width + column) + 1];
        }
        block_sum(weight_sum, bias_sum);
        if (threadIdx.x == 0) {
            if (gw_ptr) gw_ptr[column] = Real(weight_sum);
            gb_ptr[column] = Real(bias_sum);
        }
    }
}
