// rms_norm, {{ T.name }}, forward and backward.
//
//   y[r,i] = x[r,i] * inv * w[i],   inv = 1 / sqrt(mean(x[r]^2) + eps)
//
// The mean is that of the n = width values of row r, which lie one after another. Backward, from grad_out go, with
// g = go * w, means over the row, the sum over all rows:
//
//   grad_input = (g - x * inv^2 * mean(g * x)) * inv,   grad_weight[i] = sum(go * x * inv)
//
// Sums are of Numbers, f64 or pairs of it. Each result is {{ "made" if T.name == "f64" else "rounded" }}
// {{ "in f64" if T.name == "f64" else "to " ~ R.name ~ " once" }}{{ ", then to " ~ T.name if T.size == 2 }}.
// Every product that is added to something is an fma() in the text, so that no compiler has a choice which one to
// contract. 1 / sqrt(), of which AMD's makes one operation, is right to an ulp of f64.
//
// Blocks have a multiple of 32 threads, and take their rows, columns or units in turn, so grids may be of any size. A null
// w_ptr is a weight of ones; where gw_ptr is null, its entries do nothing.
//
//   rms_norm_kernel: grid (rows); a block has a row. out_ptr may be in_ptr.
//
// Backward, in this order; a slice is `length` rows.
//   rms_norm_backward_kernel: grid (rows): grad_input, which is no other array, and inv of each row.
//   rms_norm_backward_columns_kernel: grid (ceil(slices * width / 256)); a thread has a unit, a column of a slice.
//     partials_ptr: for each slice and column sum(go * x * inv).
//   rms_norm_backward_parameters_kernel: grid (width): grad_weight from the partials.

constexpr int MOST_THREADS = {{ 512 if T.name == "f64" else 1024 }};  // of a block

//% include "elements.jinja"
//% include "pairs.jinja"
//% include "block_sum.jinja"
//% if T.name == "f64"
//% include "wide_rows.jinja"
//% endif

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
rms_norm_kernel{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, size_t rows, size_t width, Real eps) {
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const Element* x = in_ptr + row * width;
        Element* y = out_ptr + row * width;
        Number squares = 0;
//% if T.name == "f64"
        double some;
        each_value(width, [&](size_t i, bool first, bool last) {
            some = fma(x[i], x[i], first ? 0.0 : some);
            if (last) squares = gathered(some, squares);
        });
//% else
#pragma unroll 4
        for (size_t i = threadIdx.x; i < width; i += blockDim.x) {
            const Number value = Real(x[i]);
            squares = fma(value, value, squares);
        }
//% endif
        block_sum(squares);
        const Number inv = inverse_root(squares / width + eps);

//% if T.name == "f64"
#pragma unroll 4
        for (size_t i = threadIdx.x; i < width; i += blockDim.x) y[i] = x[i] * ((w_ptr ? w_ptr[i] : 1) * inv.high);
//% else
        for (size_t i = threadIdx.x; i < width; i += blockDim.x) {
            const double weight = w_ptr ? w_ptr[i] : 1;
            y[i] = Element(Real(Number(Real(x[i])) * (weight * inv)));
        }
//% endif
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
rms_norm_backward_kernel{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr, const Real* w_ptr,
                         double* statistics_ptr, size_t rows, size_t width, Real eps) {
    for (size_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const Element *x = in_ptr + row * width, *go = go_ptr + row * width;
        Element* gi = gi_ptr + row * width;
        Number squares = 0, dot = 0;
//% if T.name == "f64"
        const bool narrow = width < NARROW;
        if (!narrow) {
            each_value(width, [&](size_t i, bool, bool) {
                const double g = fma(go[i], w_ptr ? w_ptr[i] : 1, 0.0);
                squares = gathered(x[i], x[i], squares);
                dot = gathered(x[i], g, dot);
            });
        } else
//% endif
        for (size_t i = threadIdx.x; i < width; i += blockDim.x) {
            const Number value = Real(x[i]), g = Real(go[i]);
            const double weight = w_ptr ? w_ptr[i] : 1;
            squares = fma(value, value, squares);
            dot = fma(value, g * weight, dot);
        }
        block_sum(squares, dot);
        const Number inv = inverse_root(squares / width + eps);
        if (threadIdx.x == 0) reinterpret_cast<Number*>(statistics_ptr)[row] = inv;

        // grad_input = (g - x * slope) * inv
        const Number slope = dot * inv / width * inv;
//% if T.name == "f64"
        if (!narrow) {
            const Pair minus_slope = rounded(-slope);
#pragma unroll 4
            for (size_t i = threadIdx.x; i < width; i += blockDim.x) {
                const Pair g = Pair(go[i]) * Pair(w_ptr ? w_ptr[i] : 1);
                gi[i] = (fma(x[i], minus_slope.high, g.high) + fma(x[i], minus_slope.low, g.low)) * inv.high;
            }
        } else
//% endif
        for (size_t i = threadIdx.x; i < width; i += blockDim.x) {
            const Number value = Real(x[i]), g = Real(go[i]);
            const double weight = w_ptr ? w_ptr[i] : 1;
            gi[i] = Element(Real(fma(-value, slope, g * weight) * inv));
        }
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
rms_norm_backward_columns_kernel{{ suffix }}(const Element* in_ptr, const Element* go_ptr, const double* statistics_ptr,
                                 double* partials_ptr, const Real* gw_ptr, size_t rows, size_t width, size_t slices,
                                 size_t length) {
    if (!gw_ptr) return;
    const Number* statistics = reinterpret_cast<const Number*>(statistics_ptr);
    Number* partials = reinterpret_cast<Number*>(partials_ptr);
    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t unit = size_t(blockIdx.x) * blockDim.x + threadIdx.x; unit < slices * width; unit += step) {
        const size_t first = unit / width * length, end = first + length < rows ? first + length : rows;
        Number sum = 0;
#pragma unroll 4
        for (size_t row = first; row < end; ++row) {
            const size_t i = row * width + unit % width;
            const double g = Real(go_ptr[i]);
//% if T.name == "f64"
            sum = gathered(fma(in_ptr[i] * statistics[row].high, g, 0.0), sum);
//% else
            sum = fma(Number(Real(in_ptr[i])) * statistics[row], g, sum);
//% endif
        }
        partials[unit] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
rms_norm_backward_parameters_kernel{{ suffix }}(const double* partials_ptr, Real* gw_ptr, size_t width, size_t slices) {
    if (!gw_ptr) return;
    const Number* partials = reinterpret_cast<const Number*>(partials_ptr);
    for (size_t column = blockIdx.x; column < width; column += gridDim.x) {
        Number sum = 0;
        for (size_t slice = threadIdx.x; slice < slices; slice += blockDim.x) sum += partials[slice * width + column];
        block_sum(sum);
        if (threadIdx.x == 0) gw_ptr[column] = Real(sum);
    }
}
