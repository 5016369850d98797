// softmax2d_held, {{ T.name }}: softmax2d and its backward, with all values in registers between the one reading and the writing.
//
// The formulas are those of softmax2d.hip, and the arithmetic, its order too, is that of kernels_ptx/softmax2d_held.ptx: so are
// the bits. A thread takes VECTOR neighbours at a time, and up to SLOTS times as many: each of them is a channel of the same
// column all the time. A block has a tile: `positions` neighbouring columns of an image, all channels of them, in turns of
// `lanes` channels. Where a tile is a whole image (strips = 1), a turn is a contiguous piece of memory, and it does not
// matter that a row of `positions` elements may end within a vector. Elsewhere rows and tiles are whole vectors.
// In place is fine, and so no pointer is __restrict__: a thread alone reads what it writes.
//
// softmax2d_held_1, softmax2d_backward_held_1. Launch: positions * lanes / VECTOR threads, at least `positions` and at most
// MOST_THREADS; batch * strips blocks.
// ABI: (in_ptr, out_ptr, u32 channels, u32 hw, u32 positions, u32 lanes, u32 strips, u32 share, u32 per_position, u32
// per_lane), backward with the three pointers; per_position is 2^31 / positions, per_lane 2^31 / lanes, both rounded up:
// what is below 2^18 is divided by them so. channels * hw is a multiple of VECTOR, share at least channels, and these no more than
// SLOTS turns. Where strips > 1, hw and positions are multiples of VECTOR.

//% include "elements.jinja"
//% set fma = "fma" if R.name == "f64" else "fmaf"
//% set lowest_number = -1.7976931348623157e308 if R.name == "f64" else -3.4028234663852886e38

//% include "softmax2d_parts.jinja"

constexpr unsigned VECTOR = 16 / sizeof(Real), SLOTS = {{ 16 if R.name == "f64" else 32 }} / VECTOR;
constexpr unsigned MOST_THREADS = {{ 256 if R.name == "f64" else 512 }};

template <bool ALIGNED>
struct alignas(ALIGNED ? VECTOR * sizeof(Element) : sizeof(Element)) Neighbours {
    Element values[VECTOR];
};

struct Shared {
    Real slots[2][MOST_THREADS * VECTOR], partials[2][MOST_THREADS], finals[2][MOST_THREADS];
};

// By a number whose 2^31th part, the inverse, is rounded up.
__device__ inline unsigned divided(unsigned number, unsigned inverse) {
    return unsigned((unsigned long long)(2 * number) * inverse >> 32);
}

// A thread's place in its block's tile: `count` vectors, `step` elements apart, from `start` on; `column` is that of the first
// element, the others are neighbours, in a whole image from its end to its start.
struct Place {
    unsigned positions, groups, column, count;
    size_t start, step;

    __device__ Place(unsigned channels, unsigned hw, unsigned positions, unsigned lanes, unsigned strips, unsigned share,
                     unsigned per_position, unsigned per_lane)
        : positions(positions), groups(divided(blockDim.x, per_position)), step(size_t(lanes) * hw) {
        const unsigned lane = divided(threadIdx.x * VECTOR, per_position), image = blockIdx.x / strips;
        column = threadIdx.x * VECTOR - lane * positions;
        const unsigned position = (blockIdx.x - image * strips) * positions + column, there = min(channels, share);
        count = lane < there && position < hw ? divided(there - lane + lanes - 1, per_lane) : 0;
        start = (size_t(image) * channels + lane) * hw + position;
    }

    template <bool ALIGNED>
    __device__ void read(Element (&values)[SLOTS][VECTOR], const Element* from) const {
#pragma unroll
        for (unsigned slot = 0; slot < SLOTS; ++slot) {
            if (slot >= count) continue;
            const auto found = *reinterpret_cast<const Neighbours<ALIGNED>*>(from + start + slot * step);
#pragma unroll
            for (unsigned i = 0; i < VECTOR; ++i) values[slot][i] = found.values[i];
        }
    }

    template <bool ALIGNED>
    __device__ void write(Element* to, unsigned slot, const Real (&values)[VECTOR]) const {
        Neighbours<ALIGNED> written;
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) written.values[i] = Element(values[i]);
        *reinterpret_cast<Neighbours<ALIGNED>*>(to + start + slot * step) = written;
    }

    // Each slot that has values.
    template <typename Work>
    __device__ void each(Work work) const {
#pragma unroll
        for (unsigned slot = 0; slot < SLOTS; ++slot) {
            if (slot >= count) break;
            work(slot);
        }
    }

    // COUNT numbers of each of a thread's columns, joined over the lanes; `finish` makes of these what all threads get.
    template <unsigned COUNT, typename Join, typename Finish>
    __device__ void over_lanes(Real (&values)[COUNT][VECTOR], Shared& shared, Join join, Finish finish) const {
#pragma unroll
        for (unsigned v = 0; v < COUNT; ++v) {
#pragma unroll
            for (unsigned i = 0; i < VECTOR; ++i) shared.slots[v][threadIdx.x * VECTOR + i] = values[v][i];
        }
        __syncthreads();
        const unsigned row = groups * positions;
        Real own[COUNT], other[COUNT];
        if (threadIdx.x < row) {
            for (unsigned v = 0; v < COUNT; ++v) own[v] = shared.slots[v][threadIdx.x];
            for (unsigned at = threadIdx.x + row; at < blockDim.x * VECTOR; at += row) {
                for (unsigned v = 0; v < COUNT; ++v) other[v] = shared.slots[v][at];
                join(own, other);
            }
            for (unsigned v = 0; v < COUNT; ++v) shared.partials[v][threadIdx.x] = own[v];
        }
        __syncthreads();
        if (threadIdx.x < positions) {
            for (unsigned v = 0; v < COUNT; ++v) own[v] = shared.partials[v][threadIdx.x];
            for (unsigned group = 1; group < groups; ++group) {
                for (unsigned v = 0; v < COUNT; ++v) other[v] = shared.partials[v][threadIdx.x + group * positions];
                join(own, other);
            }
            finish(own);
            for (unsigned v = 0; v < COUNT; ++v) shared.finals[v][threadIdx.x] = own[v];
        }
        __syncthreads();
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) {
            const unsigned element = column + i < positions ? column + i : column + i - positions;
            for (unsigned v = 0; v < COUNT; ++v) values[v][i] = shared.finals[v][element];
        }
    }
};

// A number and what it lacks, times another, again as a pair.
__device__ inline void scale(Real& high, Real& low, Real factor) {
    const Real product = {{ fma }}(high, factor, 0);
    low = {{ fma }}(low, factor, {{ fma }}(high, factor, -product));
    high = product;
}

__device__ inline void join_sums(Real (&own)[2], const Real (&other)[2]) {
    Sum sum = {own[0], own[1]};
    sum.add(other[0], other[1]);
    own[0] = sum.high, own[1] = sum.low;
}

template <bool ALIGNED>
__device__ inline void forward(const Element* in, Element* out, const Place& place, Shared& shared) {
    Element read[SLOTS][VECTOR];
    Real values[SLOTS][VECTOR], maxima[1][VECTOR], {{ "" if T.size == 2 else "sums[2][VECTOR], " }}factors[VECTOR];
    place.read<ALIGNED>(read, in);

    // The maximum of the thread's own, at least the lowest number, so that no difference from it is one of infinities.
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) maxima[0][i] = real_of(0x{{ number(lowest_number, R)[2:] }});
    place.each([&](unsigned slot) {
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) {
            values[slot][i] = Real(read[slot][i]);
            maxima[0][i] = values[slot][i] > maxima[0][i] ? values[slot][i] : maxima[0][i];
        }
    });

//% if T.size == 2
    // The sum of e to the power of the differences from that, 2^32 as large, while other threads still read.
    Real own[1][VECTOR] = {};
    place.each([&](unsigned slot) {
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) {
            values[slot][i] = short_exponential(values[slot][i] - maxima[0][i]);
            own[0][i] += values[slot][i];
        }
    });

    // The maximum of all. A factor makes of such a power that of the difference from this one.
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) factors[i] = maxima[0][i];
    place.over_lanes(
        maxima, shared, [](Real(&a)[1], const Real(&b)[1]) { a[0] = b[0] > a[0] ? b[0] : a[0]; }, [](Real(&)[1]) {});
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) {
        const bool none = maxima[0][i] == real_of(0x{{ number(lowest_number, R)[2:] }});  // a column of -inf
        factors[i] = none ? real_of(0x7FC00000) : short_exponential(factors[i] - maxima[0][i]);
        own[0][i] *= factors[i];
    }
    place.over_lanes(
        own, shared, [](Real(&a)[1], const Real(&b)[1]) { a[0] += b[0]; }, [](Real(&sum)[1]) { sum[0] = 1 / sum[0]; });
    // Each column's inverse times the factor: 2^-32 of what it should be, and so for the values, which are 2^32 as large. bf16
    // holds numbers for which f32 would lose that; there it is what it should be, and the values follow.
//% set more, less = ("0x1p32f * ", " * 0x1p-32f") if T.name == "bf16" else ("", "")
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) own[0][i] = {{ more }}own[0][i] * factors[i];
    place.each([&](unsigned slot) {
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) values[slot][i] = values[slot][i] * own[0][i]{{ less }};
        place.write<ALIGNED>(out, slot, values[slot]);
    });
//% else
    // The sum of e to the power of the differences from that, while other threads still read.
    Sum own[VECTOR];
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) own[i] = {1, 0};  // no addend is larger
    place.each([&](unsigned slot) {
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) {
            values[slot][i] = exponential(values[slot][i] - maxima[0][i]);
            own[i].add(values[slot][i]);
        }
    });

    // The maximum of all. A factor makes of such a power that of the difference from this one.
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) {
        sums[0][i] = own[i].high - 1, sums[1][i] = own[i].low;
        factors[i] = maxima[0][i];
    }
    place.over_lanes(
        maxima, shared, [](Real(&a)[1], const Real(&b)[1]) { a[0] = b[0] > a[0] ? b[0] : a[0]; }, [](Real(&)[1]) {});
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) {
        factors[i] = exponential(factors[i] - maxima[0][i]);
        scale(sums[0][i], sums[1][i], factors[i]);
    }
    place.over_lanes(sums, shared, join_sums, [](Real(&sum)[2]) {
        const Inverse inverse({sum[0], sum[1]});
        sum[0] = inverse.high, sum[1] = inverse.low;
    });
    Inverse inverses[VECTOR];
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) {
        scale(sums[0][i], sums[1][i], factors[i]);
        inverses[i].high = sums[0][i], inverses[i].low = sums[1][i];
    }
    place.each([&](unsigned slot) {
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) values[slot][i] = inverses[i].times(values[slot][i]);
        place.write<ALIGNED>(out, slot, values[slot]);
    });
//% endif
}

template <bool ALIGNED>
__device__ inline void backward(const Element* go, const Element* y, Element* gi, const Place& place, Shared& shared) {
    Element read_go[SLOTS][VECTOR], read_y[SLOTS][VECTOR];
    Real sums[2][VECTOR];
    place.read<ALIGNED>(read_go, go);
    place.read<ALIGNED>(read_y, y);
    Sum own[VECTOR];
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) own[i] = {0, 0};
    place.each([&](unsigned slot) {
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) own[i].add_product(Real(read_go[slot][i]), Real(read_y[slot][i]));
    });
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) sums[0][i] = own[i].high, sums[1][i] = own[i].low;
    place.over_lanes(sums, shared, join_sums, [](Real(&sum)[2]) {
        Sum dot = {sum[0], sum[1]};
        dot.settle();
        sum[1] = dot.low;
    });
    place.each([&](unsigned slot) {
        Real values[VECTOR];
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) {
            const Sum dot = {sums[0][i], sums[1][i]};
            values[i] = dot.less_than(Real(read_go[slot][i])) * Real(read_y[slot][i]);
        }
        place.write<ALIGNED>(gi, slot, values);
    });
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS{{ ", 2" if R.name == "f32" else ", 1" }})
softmax2d_held_1{{ suffix }}(const Element* in_ptr, Element* out_ptr, unsigned channels, unsigned hw, unsigned positions,
                 unsigned lanes, unsigned strips, unsigned share, unsigned per_position, unsigned per_lane) {
    __shared__ Shared shared;
    const Place place(channels, hw, positions, lanes, strips, share, per_position, per_lane);
    if ((size_t(in_ptr) | size_t(out_ptr)) % (VECTOR * sizeof(Element)) == 0) forward<true>(in_ptr, out_ptr, place, shared);
    else forward<false>(in_ptr, out_ptr, place, shared);
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
softmax2d_backward_held_1{{ suffix }}(const Element* go_ptr, const Element* y_ptr, Element* gi_ptr, unsigned channels, unsigned hw,
                          unsigned positions, unsigned lanes, unsigned strips, unsigned share, unsigned per_position,
                          unsigned per_lane) {
    __shared__ Shared shared;
    const Place place(channels, hw, positions, lanes, strips, share, per_position, per_lane);
    const size_t addresses = size_t(go_ptr) | size_t(y_ptr) | size_t(gi_ptr);
    if (addresses % (VECTOR * sizeof(Element)) == 0) backward<true>(go_ptr, y_ptr, gi_ptr, place, shared);
    else backward<false>(go_ptr, y_ptr, gi_ptr, place, shared);
}
