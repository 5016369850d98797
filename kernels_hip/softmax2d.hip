// softmax2d, {{ T.name }}: forward, and backward from the output. x is [N, C, HW]; a column is the C values of one position.
//
//   y[n,c,p] = exp(x[n,c,p] - m) / s,   m = max_c x[n,c,p],   s = sum_c exp(x[n,c,p] - m)
//   gx[n,c,p] = y[n,c,p] * (gy[n,c,p] - d),   d = sum_c gy[n,c,p] * y[n,c,p]
//
//% if R.name == "f64"
// Sums are pairs (high, low) of f64, and all arithmetic is that of the plain entries in PTX, in the same order: so are
// the bits, forward and backward.
//% else
// Sums are f64; a product of two f32 is exact there. What is behind exp, and all of the backward, is rounded to f32
// once, and an element of 16 bits is that, rounded. The plain entries in PTX have sums of pairs of f32: forward they
// give the same bits, but where the last of the 46 bits of such a sum decides how a result is rounded; not backward,
// where they round up to three times.
//% endif
// The maximum leaves out a NaN, exp keeps it, and so does the sum: a column with a NaN, with +inf, or of -inf alone is
// NaN.
//
// exp is our own, since those of the compilers' libraries differ. No product that is rounded is added to anything but
// by fma, so that what a compiler contracts changes no bit: every device has the same.
//
// Launch: any grid and block. A thread takes a column, total = N * HW of them, and goes on in steps of the grid. It
// alone reads what it writes: in place is fine, and so no pointer is __restrict__. Each pass over a column reads it
// again; neighbouring threads have neighbouring positions.
// ABI: (in_ptr, out_ptr, u32 total, u32 channels, u32 hw); (go_ptr, y_ptr, gi_ptr, u32 total, u32 channels, u32 hw).
// The tiled entries have u64 batch in place of total, so that columns are counted with 64 bits, and behind hw
// u32 positions, u32 lanes: how blocks share columns in PTX. Here they share none, and these are not read.

constexpr int MOST_THREADS = {{ 512 if T.name == "f64" else 1024 }};  // of a block

//% include "elements.jinja"

// Where channel 0 of a column is. Those of the others are hw apart. Columns have numbers of the type Count.
template <typename Count>
__device__ inline size_t start_of(Count column, unsigned channels, unsigned hw) {
    return size_t(column / hw) * channels * hw + column % hw;
}

//% if R.name == "f64"
typedef unsigned long long Bits;
__device__ inline Bits bits_of(double x) { return __double_as_longlong(x); }
__device__ inline double real_of(Bits bits) { return __longlong_as_double(bits); }

// `low` has what rounding took from `high`.
struct Sum {
    double high = 0.0, low = 0.0;

    // Add what is not larger than `high`: three operations give the error.
    __device__ void add(double value) {
        const double sum = high + value;
        low += value - (sum - high);
        high = sum;
    }

    // Add a product, with its own error. The product is an fma, or a compiler could make one of it and the addition.
    __device__ void add_product(double a, double b) {
        const double product = fma(a, b, 0.0), sum = high + product, part = sum - high;
        low += (high - (sum - part)) + (product - part) + fma(a, b, -product);
        high = sum;
    }

    // What an infinite sum lacks is not a number, and left out.
    __device__ double less_than(double value) const {
        return value - high - (fabs(high) < real_of(0x{{ number(inf, R)[2:] }}) ? low : 0.0);
    }
};

// The inverse of a sum that began at 1, rounded, and what that lacks.
struct Inverse {
    double high, low;

    __device__ explicit Inverse(Sum sum) {
        sum.high -= 1.0;
        high = 1.0 / sum.high;
        low = fma(-high, sum.low, fma(-high, sum.high, 1.0)) * high;
    }

    __device__ double times(double value) const { return fma(value, high, value * low); }
};
//% else
typedef unsigned Bits;
__device__ inline Bits bits_of(float x) { return __float_as_uint(x); }
__device__ inline float real_of(Bits bits) { return __uint_as_float(bits); }

struct Sum {
    double value = 0.0;

    __device__ void add(float addend) { value += addend; }
    __device__ void add_product(float a, float b) { value = fma(double(a), double(b), value); }
    __device__ double less_than(float minuend) const { return minuend - value; }
};

struct Inverse {
    double value;

    __device__ explicit Inverse(Sum sum) : value(1.0 / sum.value) {}
    __device__ float times(float factor) const { return float(factor * value); }
};
//% endif

/*# The same numbers as in kernels_ptx/exponential.jinja. #*/
//% if R.name == "f64"
//% set fma, f, scaled, mantissa, lowest, highest = "fma", "", 64, 52, -746.0, 600
//% set log2_e, ln_2, ln_2_low = 1.4426950408889634, 0.6931471805599453, 2.3190468138462996e-17
//% set coefficients = [2.082664649860019e-09, 2.5112036646527386e-08, 2.75575817837713e-07, 2.7557234862552098e-06,
                        2.480158692671121e-05, 0.00019841269896383085, 0.0013888888889115587, 0.008333333333317034,
                        0.041666666666666095, 0.16666666666666682, 0.5, 1.0, 1.0]
//% else
//% set fma, f, scaled, mantissa, lowest, highest = "fmaf", "f", 32, 23, -104.0, 64
//% set log2_e, ln_2, ln_2_low = 1.44269502, 0.693138123, 9.05800152e-06
//% set coefficients = [0.00138145383, 0.00836874545, 0.041668389, 0.166665211, 0.49999994, 1.0, 1.0]
//% endif

// e to the power of x, within 0.9 ulp, denormal results included; NaN for NaN. x is at most {{ highest }}.
// x = k ln 2 + r with a whole k and |r| <= ln(2)/2. x less k times the first part of ln 2 is exact, which the PTX twin
// explains; e^r is 1 + r + r^2 times a polynomial that is {{ "8e-19" if R.name == "f64" else "4e-9" }} off at most.
__device__ inline Real exponential(Real x) {
    const Real shift = {{ 1.5 * 2 ** mantissa + scaled }}{{ f }};  // the low bits of a number added to it are the number, + {{ scaled }}
    x = x < {{ lowest }}{{ f }} ? {{ lowest }}{{ f }} : x;  // where e^x rounds to 0
    const Real shifted = {{ fma }}(x, {{ log2_e }}{{ f }}, shift);
    const Real k = shifted - shift;
    Real r = {{ fma }}(k, {{ -ln_2 }}{{ f }}, x);
    r = {{ fma }}(k, {{ -ln_2_low }}{{ f }}, r);
    Real power = {{ fma }}(r, {{ coefficients[0] }}{{ f }}, {{ coefficients[1] }}{{ f }});
//% for coefficient in coefficients[2:]
    power = {{ fma }}(power, r, {{ coefficient }}{{ f }});
//% endfor
    // times 2^(k+{{ scaled }}), which is exact, then 2^-{{ scaled }}, which alone rounds a denormal result
    const Bits scale = (bits_of(shifted) << {{ mantissa }}) + 0x{{ number(1, R)[2:] }}u;
    return power * real_of(scale) * {{ 2.0 ** -scaled }}{{ f }};
}

template <typename Count>
__device__ void forward(const Element* in_ptr, Element* out_ptr, Count total, unsigned channels, unsigned hw) {
    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t column = size_t(blockIdx.x) * blockDim.x + threadIdx.x; column < total; column += step) {
        const size_t start = start_of(Count(column), channels, hw);
        const Element* in = in_ptr + start;
        Element* out = out_ptr + start;

        Real maximum = real_of(0x{{ number(-inf, R)[2:] }});
        for (size_t c = 0; c < channels; ++c) {
            if (Real(in[c * hw]) > maximum) maximum = in[c * hw];
        }

        Sum sum;
//% if R.name == "f64"
        sum.high = 1.0;  // no addend is larger
//% endif
        for (size_t c = 0; c < channels; ++c) sum.add(exponential(Real(in[c * hw]) - maximum));

        const Inverse inverse(sum);
        for (size_t c = 0; c < channels; ++c) {
            out[c * hw] = Element(inverse.times(exponential(Real(in[c * hw]) - maximum)));
        }
    }
}

template <typename Count>
__device__ void backward(const Element* go_ptr, const Element* y_ptr, Element* gi_ptr, Count total, unsigned channels,
                         unsigned hw) {
    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t column = size_t(blockIdx.x) * blockDim.x + threadIdx.x; column < total; column += step) {
        const size_t start = start_of(Count(column), channels, hw);
        const Element *go = go_ptr + start, *y = y_ptr + start;
        Element* gi = gi_ptr + start;

        Sum dot;
        for (size_t c = 0; c < channels; ++c) dot.add_product(go[c * hw], y[c * hw]);

        for (size_t c = 0; c < channels; ++c) gi[c * hw] = Element(Real(dot.less_than(go[c * hw]) * Real(y[c * hw])));
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
softmax2d_kernel{{ suffix }}(const Element* in_ptr, Element* out_ptr, unsigned total, unsigned channels, unsigned hw) {
    forward(in_ptr, out_ptr, total, channels, hw);
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
softmax2d_tiled_kernel{{ suffix }}(const Element* in_ptr, Element* out_ptr, size_t batch, unsigned channels, unsigned hw,
                       unsigned positions, unsigned lanes) {
    forward(in_ptr, out_ptr, batch * hw, channels, hw);
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
softmax2d_backward_kernel{{ suffix }}(const Element* go_ptr, const Element* y_ptr, Element* gi_ptr, unsigned total,
                          unsigned channels, unsigned hw) {
    backward(go_ptr, y_ptr, gi_ptr, total, channels, hw);
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
softmax2d_backward_tiled_kernel{{ suffix }}(const Element* go_ptr, const Element* y_ptr, Element* gi_ptr, size_t batch,
                                unsigned channels, unsigned hw, unsigned positions, unsigned lanes) {
    backward(go_ptr, y_ptr, gi_ptr, batch * hw, channels, hw);
}
