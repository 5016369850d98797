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
// lrn_forward_kernel, lrn_backward_kernel: blocks of up to 512 threads, as many as give each element a thread, or fewer: then threads take turns.
// ABI: (in_ptr, out_ptr, denom_ptr, u32 batch, u32 channels, u32 spatial, u32 size, {{ P.name }} alpha, {{ P.name }} beta, {{ P.name }} k);
// (in_ptr, go_ptr, denom_ptr, gi_ptr, u32 batch, u32 channels, u32 spatial, u32 size, {{ P.name }} alpha, {{ P.name }} beta).

//% if T.name != "f64"
//
// lrn_forward_walking, lrn_backward_walking, for beta of one to four quarters and windows of up to 8: 256 threads, each for
// `chunk` channels at one position; ceil(batch * spatial / 256) * ceil(channels / chunk) blocks, batch * spatial below 2^32 - 256.
// A power is by roots, and so the bits are those of the sliding entries in PTX.
// ABI: as above, with u32 chunk behind size.
//% endif

//% include "elements.jinja"
//% include "pairs.jinja"
//% if T.name == "f64"
//% include "power.jinja"
//% else

// Powers of denom, -beta and -beta - 1.
struct Powers {
    double upper, lower;
};

// The inverse of the fourth root, to a part in 10^4.
__device__ inline double guess(float near) {
    const float first = __uint_as_float(0x4F583400 - (__float_as_uint(near) >> 2)), square = first * first;
    const float e = fmaf(-(near * square), square, 1.0f);
    const float series = fmaf(fmaf(e, 0.1171875f, 0.15625f), e, 0.25f) * e;
    return fmaf(first, series, first);
}

// Where beta is so many quarters, by the fourth root, with the arithmetic of the twin in PTX, which explains it.
__device__ inline Powers powers_by_root(double denom, int quarters) {
    const float near = denom, infinity = __uint_as_float(0x7F800000);
    double root;
    if (near >= 0x1p-126f && near < infinity) {
        root = guess(near);
    } else if (denom > 0 && denom < infinity) {  // m * 16^fours
        const long long bits = __double_as_longlong(denom), fours = (bits - 0x3FF0000000000000) >> 54;
        root = guess(float(__longlong_as_double(bits - (fours << 54)))) *
               __longlong_as_double(0x3FF0000000000000 - (fours << 52));
    } else {
        const double inverse = 1.0 / (quarters == 4 ? denom : denom + 0.0);  // -0 is 0, but for beta = 1
        const double upper = quarters == 4 ? inverse : sqrt(inverse);
        return {upper, fma(upper, upper, 0.0)};
    }
    double second = fma(root, root, 0.0);
    const double rest = fma(-fma(denom, second, 0.0), second, 1.0);
    root = fma(root, fma(fma(fma(rest, 0.1171875, 0.15625), rest, 0.25), rest, 0.0), root);
    second = fma(root, root, 0.0);
    const double fourth = fma(second, second, 0.0);
    const double upper = quarters == 3 ? fma(second, root, 0.0) : quarters == 2 ? second : quarters == 1 ? root : fourth;
    return {upper, fma(upper, fourth, 0.0)};
}

// How many quarters beta is, from 1 to 4.
__device__ inline int quarters_of(float beta) {
    return beta == 0.25f ? 1 : beta == 0.5f ? 2 : beta == 0.75f ? 3 : 4;
}

__device__ inline double power(double base, double exponent) { return pow(base, exponent); }

// A thread's way along `chunk` channels at one position of one image, which it writes; what it reads begins `before` channels
// ahead. The terms of the last `size` channels are in shared memory, in a ring of its own, and so a sum is made anew for
// every window, the first channel first. The chunks of one position run side by side.
constexpr unsigned WALKERS = 256, MOST = 8, TURN = 4;  // threads of a block; size; channels that are read ahead

struct Walk {
    size_t start;             // of channel 0
    unsigned first, steps;    // the channel written first; how many channels are read
    int from, limit;          // read from the one on, which may be below 0, as long as there are, to before the other
    bool outside;

    __device__ Walk(unsigned batch, unsigned channels, unsigned spatial, unsigned size, unsigned chunk, unsigned before) {
        const unsigned chunks = (channels - 1) / chunk + 1;
        const unsigned position = blockIdx.x / chunks * WALKERS + threadIdx.x;
        outside = position >= batch * spatial;
        first = blockIdx.x % chunks * chunk;
        const unsigned count = min(chunk, channels - first);
        steps = count + size - 1;
        from = int(first) - int(before);
        limit = int(min(first + count + size - 1 - before, channels));
        start = size_t(position / spatial) * channels * spatial + position % spatial;
    }

    __device__ bool has(unsigned step) const { return from + int(step) >= 0 && from + int(step) < limit; }
    __device__ size_t place(unsigned step, unsigned spatial) const {
        return start + size_t(max(min(from + int(step), limit - 1), 0)) * spatial;
    }
};

// The sum of a ring whose oldest place is `oldest`.
__device__ inline double sum_of(const double (&ring)[MOST][WALKERS], unsigned oldest, unsigned size) {
    double sum = ring[oldest][threadIdx.x];
    for (unsigned i = 1; i < size; ++i) {
        oldest = oldest + 1 == size ? 0 : oldest + 1;
        sum += ring[oldest][threadIdx.x];
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(WALKERS)
lrn_forward_walking{{ suffix }}(const Element* __restrict__ in_ptr, Element* __restrict__ out_ptr, Real* __restrict__ denom_ptr,
                    unsigned batch, unsigned channels, unsigned spatial, unsigned size, unsigned chunk, Real alpha,
                    Real beta, Real k) {
    __shared__ double squares[MOST][WALKERS];
    const unsigned before = size / 2;
    const Walk walk(batch, channels, spatial, size, chunk, before);
    if (walk.outside) return;
    const int quarters = quarters_of(beta);
    const double factor = double(alpha) / size;

    Element now[TURN], next[TURN];
#pragma unroll
    for (unsigned i = 0; i < TURN; ++i) next[i] = in_ptr[walk.place(i, spatial)];
    unsigned slot = 0;
    for (unsigned step = 0; step < walk.steps; step += TURN) {
#pragma unroll
        for (unsigned i = 0; i < TURN; ++i) now[i] = next[i];
#pragma unroll
        for (unsigned i = 0; i < TURN; ++i) next[i] = in_ptr[walk.place(step + TURN + i, spatial)];
#pragma unroll
        for (unsigned i = 0; i < TURN; ++i) {
            const double x = walk.has(step + i) ? Real(now[i]) : Real(0);
            squares[slot][threadIdx.x] = fma(x, x, 0.0);
            slot = slot + 1 == size ? 0 : slot + 1;
            if (step + i + 1 < size || step + i >= walk.steps) continue;
            const double denom = fma(sum_of(squares, slot, size), factor, double(k));
            const size_t place = walk.start + size_t(walk.first + step + i + 1 - size) * spatial;
            denom_ptr[place] = Real(denom);
            out_ptr[place] = Element(Real(Real(in_ptr[place]) * powers_by_root(denom, quarters).upper));
        }
    }
}

extern "C" __global__ void __launch_bounds__(WALKERS)
lrn_backward_walking{{ suffix }}(const Element* __restrict__ in_ptr, const Element* __restrict__ go_ptr,
                     const Real* __restrict__ denom_ptr, Element* __restrict__ gi_ptr, unsigned batch, unsigned channels,
                     unsigned spatial, unsigned size, unsigned chunk, Real alpha, Real beta) {
    __shared__ double terms[MOST][WALKERS], owns[MOST][WALKERS];
    const unsigned after = size / 2;
    const Walk walk(batch, channels, spatial, size, chunk, size - 1 - after);
    if (walk.outside) return;
    const int quarters = quarters_of(beta);
    const double factor = double(alpha) / size * -double(beta) * 2.0;

    Element x[TURN], go[TURN], next_x[TURN], next_go[TURN];
    Real denom[TURN], next_denom[TURN];
    unsigned slot = 0;
#pragma unroll
    for (unsigned i = 0; i < TURN; ++i) {
        const size_t place = walk.place(i, spatial);
        next_x[i] = in_ptr[place], next_go[i] = go_ptr[place], next_denom[i] = denom_ptr[place];
    }
    for (unsigned step = 0; step < walk.steps; step += TURN) {
#pragma unroll
        for (unsigned i = 0; i < TURN; ++i) x[i] = next_x[i], go[i] = next_go[i], denom[i] = next_denom[i];
#pragma unroll
        for (unsigned i = 0; i < TURN; ++i) {
            const size_t place = walk.place(step + TURN + i, spatial);
            next_x[i] = in_ptr[place], next_go[i] = go_ptr[place], next_denom[i] = denom_ptr[place];
        }
#pragma unroll
        for (unsigned i = 0; i < TURN; ++i) {
            const bool has = walk.has(step + i);
            const Powers both = powers_by_root(denom[i], quarters);
            const double g = Real(go[i]);
            terms[slot][threadIdx.x] = has ? fma(fma(g, double(Real(x[i])), 0.0), both.lower, 0.0) : 0.0;
            owns[slot][threadIdx.x] = fma(g, both.upper, 0.0);
            const unsigned own = slot < after ? slot + size - after : slot - after;
            slot = slot + 1 == size ? 0 : slot + 1;
            if (step + i + 1 < size || step + i >= walk.steps) continue;
            const size_t place = walk.start + size_t(walk.first + step + i + 1 - size) * spatial;
            const double sum = fma(sum_of(terms, slot, size), factor, 0.0);
            gi_ptr[place] = Element(Real(fma(sum, double(Real(in_ptr[place])), owns[own][threadIdx.x])));
        }
    }
}
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
