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
//% if T.name != "f64"
//
// lrn_forward_last, lrn_backward_last, for the same beta, windows of 3, 5, 7 or 9 and channels that lie side by side: 256 threads,
// ceil(vectors / (2048 / V - 2)) blocks, V being the elements that 16 bytes have, vectors = batch * channels / V below 2^32 - 1024.
// ABI: (in_ptr, out_ptr, denom_ptr, u32 vectors, u32 per_row, u32 size, {{ P.name }} alpha, {{ P.name }} beta, {{ P.name }} k);
// (in_ptr, go_ptr, denom_ptr, gi_ptr, u32 vectors, u32 per_row, u32 size, {{ P.name }} alpha, {{ P.name }} beta); per_row = channels / V.
//% endif

//% include "elements.jinja"
//% include "pairs.jinja"

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

// How many quarters beta is, from 1 to 4, or 0 for another one.
__device__ inline int quarters_of(Real beta) {
    return beta == Real(0.25) ? 1 : beta == Real(0.5) ? 2 : beta == Real(0.75) ? 3 : beta == 1 ? 4 : 0;
}
//% if T.name == "f64"
//% include "power.jinja"
//% include "fourth_root.jinja"

__device__ inline bool has_root(double denom, double beta) {
    const float near = denom;
    return quarters_of(beta) && near >= 0x1p-126f && near < __uint_as_float(0x7F800000);
}

__device__ inline double upper_power(double denom, double beta) {
    return has_root(denom, beta) ? powers_of_root(guess(denom), denom, quarters_of(beta)).upper : power(denom, -beta);
}

__device__ inline Powers powers_of(double denom, double beta) {
    if (has_root(denom, beta)) return powers_of_root(guess(denom), denom, quarters_of(beta));
    Powers both = {};
#pragma unroll 1  // with the text twice, AMD's compiler has more constants than registers
    for (int less = 0; less < 2; ++less) both = {both.lower, power(denom, Number(-beta) - Number(double(less)))};
    return both;
}

__device__ inline Powers powers_by_root(double denom, int quarters) { return powers_of(denom, 0.25 * quarters); }

__device__ inline double scaled(double x, double denom, double, int quarters) {
    return x * upper_power(denom, 0.25 * quarters);
}
//% else

// Both, from the guess of the root.
__device__ inline Powers from_root(double root, double denom, int quarters) {
    double second = fma(root, root, 0.0);
    const double rest = fma(-fma(denom, second, 0.0), second, 1.0);
    root = fma(root, fma(fma(fma(rest, 0.1171875, 0.15625), rest, 0.25), rest, 0.0), root);
    second = fma(root, root, 0.0);
    const double fourth = fma(second, second, 0.0);
    const double upper = quarters == 3 ? fma(second, root, 0.0) : quarters == 2 ? second : quarters == 1 ? root : fourth;
    return {upper, fma(upper, fourth, 0.0)};
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
    return from_root(root, denom, quarters);
}

// x * denom^-beta, denom in f64 and in f32.
__device__ inline Real scaled(Real x, double wide, float near, int quarters) {
//% if T.size == 2
    // What is to be rounded to 16 bits takes both steps in f32.
    if (near >= 0x1p-126f && near < __uint_as_float(0x7F800000)) {
        float root = guess(near), second = root * root;
        const float e = fmaf(-(near * second), second, 1.0f);
        root = fmaf(root, fmaf(e, 0.15625f, 0.25f) * e, root);
        second = root * root;
        return x * (quarters == 3 ? second * root : quarters == 2 ? second : quarters == 1 ? root : second * second);
    }
//% endif
    return Real(x * powers_by_root(wide, quarters).upper);
}

__device__ inline double upper_power(double denom, double beta) { return pow(denom, -beta); }
__device__ inline Powers powers_of(double denom, double beta) { return {pow(denom, -beta), pow(denom, -beta - 1.0)}; }
//% endif
//% if entry is none or "_walking" in entry

// A thread's way along `chunk` channels at one position of one image, which it writes; what it reads begins `before` channels
// ahead. A sum is made anew for every window, the first channel first. The chunks of one position run side by side.
// Windows of {{ usual }} are a text of their own, with all of a window in registers.
constexpr unsigned WALKERS = 256, MOST = {{ most }}, TURN = {{ 4 if T.name == "f64" else 4 }};  // threads of a block; size; channels that are read ahead

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
            const Powers both = powers_by_root(denom[i], quarters);
            const double g = Real(go[i]);
            const Number term = {{ "Number(g) * Number(x[i]) * Number(both.lower)" if T.name == "f64" else "fma(fma(g, double(Real(x[i])), 0.0), both.lower, 0.0)" }};
            past.take(walk.has(step + i) ? term : Number(0.0), fma(g, both.upper, 0.0), Real(x[i]));
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
//% if T.name != "f64" and (entry is none or "_last" in entry)

// Channels that lie side by side. A block takes SLOTS vectors of neighbours, TURNS a thread, of the arrays as they lie in memory, and
// writes all but the first and the last, whose terms the ones beside them want. Terms are in shared memory, those of each
// vector's channel 0, then 1, ...: neighbouring threads have neighbouring places.
constexpr unsigned VECTOR = 16 / sizeof(Element), TURNS = 8 / VECTOR, SLOTS = 256 * TURNS;

typedef double Terms[VECTOR][SLOTS];

template <typename T, bool ALIGNED>
struct alignas(ALIGNED ? 16 : sizeof(T)) Piece {
    T values[VECTOR];
};

// One of a thread's vectors; outside of the array the first or the last one is read, in vain.
struct Place {
    unsigned slot;
    size_t element;
    bool own, has_before, has_behind;

    __device__ Place() = default;
    __device__ Place(unsigned slot, unsigned vectors, unsigned per_row) : slot(slot) {
        const unsigned place = blockIdx.x * (SLOTS - 2) + slot, inside = min(max(place, 1u), vectors) - 1;
        own = slot != 0 && slot != SLOTS - 1 && place - 1 < vectors;
        element = size_t(inside) * VECTOR;
        has_before = inside % per_row != 0;
        has_behind = inside % per_row + 1 != per_row;
    }

    template <typename T>
    __device__ void read(Real (&values)[VECTOR], const T* from, bool aligned) const {
        if (aligned) read<true>(values, from + element);
        else read<false>(values, from + other());
    }

    template <typename T>
    __device__ void write(T* to, const Real (&values)[VECTOR], bool aligned) const {
        if (aligned) write<true>(to + element, values);
        else write<false>(to + other(), values);
    }

    // The same element. AMD's compiler, which does not know that it is, would make one access of both, for any address.
    __device__ size_t other() const {
        size_t place = element;
#ifdef __AMDGCN__
        asm volatile("" : "+v"(place));
#endif
        return place;
    }

    template <bool ALIGNED, typename T>
    __device__ static void read(Real (&values)[VECTOR], const T* from) {
        const auto piece = *reinterpret_cast<const Piece<T, ALIGNED>*>(from);
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) values[i] = Real(piece.values[i]);
    }

    template <bool ALIGNED, typename T>
    __device__ static void write(T* to, const Real (&values)[VECTOR]) {
        Piece<T, ALIGNED> piece;
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) piece.values[i] = T(values[i]);
        *reinterpret_cast<Piece<T, ALIGNED>*>(to) = piece;
    }

    // What the window of each of four channels, from `group` on, adds up to.
    template <unsigned SIZE>
    __device__ void sum(double (&sums)[4], const Terms& terms, unsigned group) const {
        constexpr int HALF = SIZE / 2;
        double around[4 + 2 * HALF];
#pragma unroll
        for (int i = 0; i < 4 + 2 * HALF; ++i) {
            const int channel = int(group) + i - HALF;
            if (channel < 0) around[i] = has_before ? terms[channel + int(VECTOR)][slot - 1] : 0.0;
            else if (channel < int(VECTOR)) around[i] = terms[channel][slot];
            else around[i] = has_behind ? terms[channel - int(VECTOR)][slot + 1] : 0.0;
        }
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            sums[i] = around[i];
#pragma unroll
            for (unsigned j = 1; j < SIZE; ++j) sums[i] += around[i + j];
        }
    }

    __device__ void sum(double (&sums)[4], const Terms& terms, unsigned group, unsigned size) const {
        if (size == 3) sum<3>(sums, terms, group);
        else if (size == 5) sum<5>(sums, terms, group);
        else if (size == 7) sum<7>(sums, terms, group);
        else sum<9>(sums, terms, group);
    }
};

// Of four denominators; where beta is 3/4 and f32 holds them all, without a branch between one and the next.
__device__ inline void powers_of_all(Powers (&powers)[4], const double (&denom)[4], int quarters) {
    bool ordinary = quarters == 3;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
        const float near = float(denom[i]);
        ordinary = ordinary & (near >= 0x1p-126f) & (near < __uint_as_float(0x7F800000));
    }
    if (ordinary) {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) powers[i] = from_root(guess(float(denom[i])), denom[i], 3);
    } else {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) powers[i] = powers_by_root(denom[i], quarters);
    }
}

extern "C" __global__ void __launch_bounds__(256, 3)
lrn_forward_last{{ suffix }}(const Element* __restrict__ in_ptr, Element* __restrict__ out_ptr, Real* __restrict__ denom_ptr,
                 unsigned vectors, unsigned per_row, unsigned size, Real alpha, Real beta, Real k) {
    __shared__ Terms terms;
    const double factor = double(alpha) / size;
    const int quarters = quarters_of(beta);
    const bool aligned = (size_t(in_ptr) | size_t(out_ptr) | size_t(denom_ptr)) % 16 == 0;
    Place places[TURNS];
    Real x[TURNS][VECTOR];
#pragma unroll
    for (unsigned turn = 0; turn < TURNS; ++turn) {
        places[turn] = Place(turn * 256 + threadIdx.x, vectors, per_row);
        places[turn].read(x[turn], in_ptr, aligned);
    }
#pragma unroll
    for (unsigned turn = 0; turn < TURNS; ++turn) {
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) {
            const double wide = x[turn][i];
            terms[i][places[turn].slot] = fma(wide, wide, 0.0);
        }
    }
    __syncthreads();
#pragma unroll
    for (unsigned turn = 0; turn < TURNS; ++turn) {
        if (!places[turn].own) continue;
        Real rounded[VECTOR], y[VECTOR];
#pragma unroll
        for (unsigned group = 0; group < VECTOR; group += 4) {
            double denom[4];
            Powers powers[4];
            places[turn].sum(denom, terms, group, size);
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                denom[i] = fma(denom[i], factor, double(k));
                rounded[group + i] = Real(denom[i]);
            }
            powers_of_all(powers, denom, quarters);
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) y[group + i] = Real(x[turn][group + i] * powers[i].upper);
        }
        places[turn].write(denom_ptr, rounded, aligned);
        places[turn].write(out_ptr, y, aligned);
    }
}

extern "C" __global__ void __launch_bounds__(256, 3)
lrn_backward_last{{ suffix }}(const Element* __restrict__ in_ptr, const Element* __restrict__ go_ptr,
                  const Real* __restrict__ denom_ptr, Element* __restrict__ gi_ptr, unsigned vectors, unsigned per_row,
                  unsigned size, Real alpha, Real beta) {
    __shared__ Terms terms;
    const double factor = double(alpha) / size * -double(beta) * 2.0;
    const int quarters = quarters_of(beta);
    const bool aligned = (size_t(in_ptr) | size_t(go_ptr) | size_t(denom_ptr) | size_t(gi_ptr)) % 16 == 0;
    Place places[TURNS];
    Real x[TURNS][VECTOR], go[TURNS][VECTOR], near[TURNS][VECTOR];
    double own[TURNS][VECTOR];
#pragma unroll
    for (unsigned turn = 0; turn < TURNS; ++turn) {
        places[turn] = Place(turn * 256 + threadIdx.x, vectors, per_row);
        places[turn].read(x[turn], in_ptr, aligned);
        places[turn].read(go[turn], go_ptr, aligned);
        places[turn].read(near[turn], denom_ptr, aligned);
    }
#pragma unroll
    for (unsigned turn = 0; turn < TURNS; ++turn) {
#pragma unroll
        for (unsigned group = 0; group < VECTOR; group += 4) {
            double denom[4];
            Powers powers[4];
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) denom[i] = near[turn][group + i];
            powers_of_all(powers, denom, quarters);
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                const double g = go[turn][group + i];
                own[turn][group + i] = fma(g, powers[i].upper, 0.0);
                terms[group + i][places[turn].slot] = fma(fma(g, double(x[turn][group + i]), 0.0), powers[i].lower, 0.0);
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (unsigned turn = 0; turn < TURNS; ++turn) {
        if (!places[turn].own) continue;
        Real gi[VECTOR];
#pragma unroll
        for (unsigned group = 0; group < VECTOR; group += 4) {
            double sums[4];
            places[turn].sum(sums, terms, group, size);
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                const unsigned channel = group + i;
                gi[channel] = Real(fma(fma(sums[i], factor, 0.0), double(x[turn][channel]), own[turn][channel]));
            }
        }
        places[turn].write(gi_ptr, gi, aligned);
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
            sum = fma(product, Number(powers_of(denom_ptr[place], beta).lower), sum);
        }

        const double own = fma(double(Real(go_ptr[element])), upper_power(denom_ptr[element], beta), 0.0);
        const double factor = double(alpha) / size * -double(beta) * 2.0;
        const Number x = double(Real(in_ptr[element]));
        gi_ptr[element] = Element(Real(double(fma(sum * Number(factor), x, Number(own)))));
    }
}
//% endif
