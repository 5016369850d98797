// local_response_norm_last, {{ T.name }}: local_response_norm of channels that lie side by side. The formulas, and how they are computed,
// stand in local_response_norm.hip. A power is by roots, and so the bits are those of the entries in PTX.
//
// lrn_forward_last, lrn_backward_last, for beta of one to four quarters, windows of 3, 5, 7 or 9 and channels that lie side by side: 256 threads,
// ceil(vectors / (2048 / V - 2)) blocks, V being the elements that 16 bytes have, vectors = batch * channels / V below 2^32 - 1024.
// ABI: (in_ptr, out_ptr, denom_ptr, u32 vectors, u32 per_row, u32 size, {{ P.name }} alpha, {{ P.name }} beta, {{ P.name }} k);
// (in_ptr, go_ptr, denom_ptr, gi_ptr, u32 vectors, u32 per_row, u32 size, {{ P.name }} alpha, {{ P.name }} beta); per_row = channels / V.

//% include "local_response_norm_parts.jinja"

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
