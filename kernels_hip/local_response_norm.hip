// local_response_norm, {{ T.name }}.
//
//   forward:   denom = sum of x^2 over the window / size * alpha + k,   y = x * denom^-beta
//   backward:  gx = go * denom^-beta - 2 * beta * alpha / size * x * sum of go * x * denom^(-beta - 1) over the window
//
// A window is a run of channels about c at one position of one image, clipped to the channels that there are: the
// forward's begins half = size / 2 channels before c and has `size`, the backward's begins size - 1 - half before.
// What leaves the clipped window is left out of the sum alone: size divides it at the edges too.
//
//% if T.name == "f64"
// All of it is f64, the sums pairs of them (pairs.jinja), and a power is our own (power.jinja): all arithmetic is that of
// the entries in PTX, in the same order, and so are the bits.
//% else
// All of it is f64 and rounded once, to f32, as an element of 16 bits is once more: no square or power overflows
// (x^2 of 1e20 is no infinity), denom, which is f32, is good for any beta, and backward loses nothing where its two
// terms nearly cancel. pow is the compiler's library's, good to a few units in the last place of f64: between two
// libraries a result may differ in the last place of {{ T.name }}, where it lies that close to the middle of two.
//% endif
// Products that are added up are written as fma, and no other product that is rounded is added to anything, so that what
// a compiler contracts changes no bit.
//
// Launch: blocks of up to 512 threads, as many as give each element a thread, or fewer: then threads take turns.
// ABI: (in_ptr, out_ptr, denom_ptr, u32 batch, u32 channels, u32 spatial, u32 size, {{ P.name }} alpha, {{ P.name }} beta, {{ P.name }} k);
// (in_ptr, go_ptr, denom_ptr, gi_ptr, u32 batch, u32 channels, u32 spatial, u32 size, {{ P.name }} alpha, {{ P.name }} beta).

//% include "elements.jinja"
//% include "pairs.jinja"
//% if T.name == "f64"
//% include "power.jinja"
//% else

__device__ inline double power(double base, double exponent) { return pow(base, exponent); }
//% endif

// The channels about an element, which are `spatial` elements apart: where the first one is, and how many there are.
struct Window {
    size_t first;
    unsigned count;

    // Up to `before` channels ahead of the element's own, and up to `after` from it on.
    __device__ Window(size_t element, unsigned channels, unsigned spatial, unsigned before,
                      unsigned after) {
        const unsigned channel = element / spatial % channels;
        before = min(before, channel);
        first = element - size_t(before) * spatial;
        count = before + min(after, channels - channel);
    }
};

extern "C" __global__ void __launch_bounds__(512)
lrn_forward_kernel{{ suffix }}(const Element* __restrict__ in_ptr, Element* __restrict__ out_ptr, Real* __restrict__ denom_ptr,
                   unsigned batch, unsigned channels, unsigned spatial, unsigned size, Real alpha, Real beta, Real k) {
    const size_t elements = size_t(batch) * channels * spatial, threads = size_t(gridDim.x) * blockDim.x;
    for (size_t element = size_t(blockIdx.x) * blockDim.x + threadIdx.x; element < elements; element += threads) {
        const unsigned half = size / 2;
        const Window window(element, channels, spatial, half, size - half);

        Number sum = 0.0;
        for (unsigned c = 0; c < window.count; ++c) {
            const Number x = double(Real(in_ptr[window.first + size_t(c) * spatial]));
            sum = fma(x, x, sum);
        }

        const double denom = double(fma(sum, Number(double(alpha) / size), Number(double(k))));
        denom_ptr[element] = Real(denom);
        out_ptr[element] = Element(Real(Real(in_ptr[element]) * power(denom, -double(beta))));
    }
}

extern "C" __global__ void __launch_bounds__(512)
lrn_backward_kernel{{ suffix }}(const Element* __restrict__ in_ptr, const Element* __restrict__ go_ptr,
                    const Real* __restrict__ denom_ptr, Element* __restrict__ gi_ptr, unsigned batch, unsigned channels,
                    unsigned spatial, unsigned size, Real alpha, Real beta) {
    const size_t elements = size_t(batch) * channels * spatial, threads = size_t(gridDim.x) * blockDim.x;
    for (size_t element = size_t(blockIdx.x) * blockDim.x + threadIdx.x; element < elements; element += threads) {
        const unsigned half = size / 2;
        const Window window(element, channels, spatial, size - 1 - half, half + 1);

        const Number less = Number(-double(beta)) - Number(1.0);
        Number sum = 0.0;
        for (unsigned c = 0; c < window.count; ++c) {
            const size_t place = window.first + size_t(c) * spatial;
            const Number product = Number(double(Real(go_ptr[place]))) * Number(double(Real(in_ptr[place])));
            sum = fma(product, Number(power(double(denom_ptr[place]), less)), sum);
        }

        const double own = fma(double(Real(go_ptr[element])), power(double(denom_ptr[element]), -double(beta)), 0.0);
        const double factor = double(alpha) / size * -double(beta) * 2.0;
        const Number x = double(Real(in_ptr[element]));
        gi_ptr[element] = Element(Real(double(fma(sum * Number(factor), x, Number(own)))));
    }
}
