//% set usual = 5
//% set most = 5 if T.name == "f64" else 8
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
// All of it is f64, the sums pairs of them (pairs.jinja), and powers are our own (fourth_root.jinja, power.jinja): all arithmetic is
// that of the entries in PTX, in the same order, and so are the bits.
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
//
// lrn_forward_walking, lrn_backward_walking, for beta of one to four quarters and windows of up to {{ most }}: 256 threads, each for
// `chunk` channels at one position; ceil(batch * spatial / 256) * ceil(channels / chunk) blocks, batch * spatial below 2^32 - 256.
// A power is by roots, and so the bits are those of the sliding entries in PTX.
// ABI: as above, with u32 chunk behind size.

//% include "local_response_norm_parts.jinja"
//% if entry is none or "_walking" in entry

// A thread's way along `chunk` channels at one position of one image, which it writes; what it reads begins `before` channels
// ahead. A sum is made anew for every window, the first channel first. The chunks of one position run side by side.
// Windows of {{ usual }} are a text of their own, with all of a window in registers.
constexpr unsigned WALKERS = 256, MOST = {{ most }}, TURN = 4;  // threads of a block; size; channels that are read ahead

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

// The terms of the last channels of a window, and what else is known of a channel until it is written, `later` steps on.
template <unsigned SIZE>
struct Past {
    Number sums[SIZE];  // sums[i]: of the window that has i channels to come
    double owns[SIZE];
    Real values[SIZE];

    __device__ Past(Number (*)[WALKERS], double (*)[WALKERS], unsigned) : sums{}, owns{}, values{} {}
    __device__ void take(Number term, double own, Real x) {
#pragma unroll
        for (unsigned i = 0; i + 1 < SIZE; ++i) sums[i] = sums[i + 1] + term;
        sums[SIZE - 1] = term;
#pragma unroll
        for (unsigned i = SIZE - 1; i > 0; --i) owns[i] = owns[i - 1], values[i] = values[i - 1];
        owns[0] = own, values[0] = x;
    }
    __device__ Number sum() const { return sums[0]; }
    __device__ double own(unsigned later) const { return owns[later]; }
    __device__ Real value(unsigned later, const Element*) const { return values[later]; }
};

// Of any window: in shared memory, in rings of the thread's own.
template <>
struct Past<0> {
    Number (*terms)[WALKERS];
    double (*owns)[WALKERS];  // may be null
    unsigned size, slot;

    __device__ Past(Number (*terms)[WALKERS], double (*owns)[WALKERS], unsigned size)
        : terms(terms), owns(owns), size(size), slot(0) {}
    __device__ void take(Number term, double own, Real) {
        terms[slot][threadIdx.x] = term;
        if (owns) owns[slot][threadIdx.x] = own;
        slot = slot + 1 == size ? 0 : slot + 1;
    }
    __device__ Number sum() const {
        unsigned oldest = slot;
        Number sum = terms[oldest][threadIdx.x];
        for (unsigned i = 1; i < size; ++i) {
            oldest = oldest + 1 == size ? 0 : oldest + 1;
            sum += terms[oldest][threadIdx.x];
        }
        return sum;
    }
    __device__ double own(unsigned later) const {
        return owns[slot > later ? slot - 1 - later : slot + size - 1 - later][threadIdx.x];
    }
    __device__ Real value(unsigned, const Element* from) const { return Real(*from); }
};

template <unsigned SIZE>
__device__ inline void walk_forward(const Element* __restrict__ in_ptr, Element* __restrict__ out_ptr,
                                    Real* __restrict__ denom_ptr, unsigned batch, unsigned channels, unsigned spatial,
                                    unsigned size, unsigned chunk, Real alpha, Real beta, Real k,
                                    Number (*squares)[WALKERS]) {
    const unsigned before = size / 2, later = size - 1 - before;
    const Walk walk(batch, channels, spatial, size, chunk, before);
    if (walk.outside) return;
    const int quarters = quarters_of(beta);
    const double factor = double(alpha) / size;

    Element now[TURN], next[TURN];
#pragma unroll
    for (unsigned i = 0; i < TURN; ++i) next[i] = in_ptr[walk.place(i, spatial)];
    Past<SIZE> past(squares, nullptr, size);
    for (unsigned step = 0; step < walk.steps; step += TURN) {
#pragma unroll
        for (unsigned i = 0; i < TURN; ++i) now[i] = next[i];
#pragma unroll
        for (unsigned i = 0; i < TURN; ++i) next[i] = in_ptr[walk.place(step + TURN + i, spatial)];
#pragma unroll
        for (unsigned i = 0; i < TURN; ++i) {
            const Real x = walk.has(step + i) ? Real(now[i]) : Real(0);
            past.take({{ "Number(x) * Number(x)" if T.name == "f64" else "fma(double(x), double(x), 0.0)" }}, 0, x);
            if (step + i + 1 < size || step + i >= walk.steps) continue;
            const double denom = double(fma(past.sum(), Number(factor), Number(k)));
            const size_t place = walk.start + size_t(walk.first + step + i + 1 - size) * spatial;
            denom_ptr[place] = Real(denom);
            out_ptr[place] = Element(scaled(past.value(later, in_ptr + place), denom, Real(denom), quarters));
        }
    }
}

extern "C" __global__ void __launch_bounds__(WALKERS)
lrn_forward_walking{{ suffix }}(const Element* __restrict__ in_ptr, Element* __restrict__ out_ptr, Real* __restrict__ denom_ptr,
                    unsigned batch, unsigned channels, unsigned spatial, unsigned size, unsigned chunk, Real alpha,
                    Real beta, Real k) {
    __shared__ Number squares[MOST][WALKERS];
    if (size == {{ usual }}) {
        walk_forward<{{ usual }}>(in_ptr, out_ptr, denom_ptr, batch, channels, spatial, {{ usual }}, chunk, alpha, beta, k, squares);
    } else {
        walk_forward<0>(in_ptr, out_ptr, denom_ptr, batch, channels, spatial, size, chunk, alpha, beta, k, squares);
    }
}

template <unsigned SIZE>
__device__ inline void walk_backward(const Element* __restrict__ in_ptr, const Element* __restrict__ go_ptr,
                                     const Real* __restrict__ denom_ptr, Element* __restrict__ gi_ptr, unsigned batch,
                                     unsigned channels, unsigned spatial, unsigned size, unsigned chunk, Real alpha,
                                     Real beta, Number (*terms)[WALKERS], double (*owns)[WALKERS]) {
    const unsigned after = size / 2;
    const Walk walk(batch, channels, spatial, size, chunk, size - 1 - after);
    if (walk.outside) return;
    const int quarters = quarters_of(beta);
    const double factor = double(alpha) / size * -double(beta) * 2.0;

    Element x[TURN], go[TURN], next_x[TURN], next_go[TURN];
    Real denom[TURN], next_denom[TURN];
    Past<SIZE> past(terms, owns, size);
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
            const Number term = {{ "Number(g) * Number(x[i]) * Number(both.lower)" if T.name == "f64" else "fma(fma(g, double(Real(x[i])), 0.0), both.lower, 0.0)" }};
            past.take(has ? term : Number(0.0), fma(g, both.upper, 0.0), Real(x[i]));
            if (step + i + 1 < size || step + i >= walk.steps) continue;
            const size_t place = walk.start + size_t(walk.first + step + i + 1 - size) * spatial;
            const Number sum = {{ "past.sum() * Number(factor)" if T.name == "f64" else "fma(past.sum(), factor, 0.0)" }};
            gi_ptr[place] = Element(Real(double(fma(sum, Number(past.value(after, in_ptr + place)), Number(past.own(after))))));
        }
    }
}

extern "C" __global__ void __launch_bounds__(WALKERS)
lrn_backward_walking{{ suffix }}(const Element* __restrict__ in_ptr, const Element* __restrict__ go_ptr,
                     const Real* __restrict__ denom_ptr, Element* __restrict__ gi_ptr, unsigned batch, unsigned channels,
                     unsigned spatial, unsigned size, unsigned chunk, Real alpha, Real beta) {
    __shared__ Number terms[MOST][WALKERS];
    __shared__ double owns[MOST][WALKERS];
    if (size == {{ usual }}) {
        walk_backward<{{ usual }}>(in_ptr, go_ptr, denom_ptr, gi_ptr, batch, channels, spatial, {{ usual }}, chunk, alpha, beta, terms,
                         owns);
    } else {
        walk_backward<0>(in_ptr, go_ptr, denom_ptr, gi_ptr, batch, channels, spatial, size, chunk, alpha, beta, terms, owns);
    }
}
//% endif
//% if entry is none or "_kernel" in entry

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
        out_ptr[element] = Element(Real(Real(in_ptr[element]) * upper_power(denom, beta)));
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

        Number sum = 0.0;
        for (unsigned c = 0; c < window.count; ++c) {
            const size_t place = window.first + size_t(c) * spatial;
            const Number product = Number(double(Real(go_ptr[place]))) * Number(double(Real(in_ptr[place])));
            sum = fma(product, Number(lower_power(denom_ptr[place], beta)), sum);
        }

        const double own = fma(double(Real(go_ptr[element])), upper_power(denom_ptr[element], beta), 0.0);
        const double factor = double(alpha) / size * -double(beta) * 2.0;
        const Number x = double(Real(in_ptr[element]));
        gi_ptr[element] = Element(Real(double(fma(sum * Number(factor), x, Number(own)))));
    }
}
//% endif
