// softmax2d, {{ T.name }}: forward, and backward from the output. x is [N, C, HW]; a column is the C values of one position.
//
//   y[n,c,p] = exp(x[n,c,p] - m) / s,   m = max_c x[n,c,p],   s = sum_c exp(x[n,c,p] - m)
//   gx[n,c,p] = y[n,c,p] * (gy[n,c,p] - d),   d = sum_c gy[n,c,p] * y[n,c,p]
//
// Sums are pairs (high, low) of {{ R.name }}, and all arithmetic is that of the entries in PTX, in the same order: so are the
// bits, forward and backward. A product that is added to anything is an fma, so that what a compiler contracts changes no
// bit: every device has the same. exp is our own, since those of the compilers' libraries differ.
//
// The maximum leaves out a NaN, exp keeps it, and so does the sum: a column with a NaN, with +inf, or of -inf alone is
// NaN. A thread alone reads what it writes: in place is fine, and so no pointer is __restrict__.
//
// softmax2d_kernel, softmax2d_backward_kernel: any grid, and blocks of up to MOST_THREADS. A thread takes a column, total
// = N * HW of them, and goes on in steps of the grid.
// ABI: (in_ptr, out_ptr, u32 total, u32 channels, u32 hw); (go_ptr, y_ptr, gi_ptr, u32 total, u32 channels, u32 hw).
//
// softmax2d_tiled_kernel, softmax2d_backward_tiled_kernel: `lanes` threads a position, of which thread l has channels
// l, l + lanes, ...; `positions` positions of an image side by side; and as many images as the block has room for:
// images * lanes * positions threads. A block goes on in steps of the grid.
// ABI: (in_ptr, out_ptr, u64 batch, u32 channels, u32 hw, u32 positions, u32 lanes), backward with the three pointers.
//
// softmax2d_last_kernel, softmax2d_backward_last_kernel: columns whose channels lie side by side, as rows of per_row vectors of 16
// bytes, ROW values at most for each of the 2^shift lanes, neighbours in a wave, that a row has. Lane l takes vectors l, l + lanes,
// ..., all into registers at once; what lanes have is added up by shuffles. 256 threads, ceil(rows * 2^shift / 256) blocks;
// shift is 5 at most.
// ABI: (in_ptr, out_ptr, u64 rows, u32 per_row, u32 shift), backward with the three pointers.

//% include "elements.jinja"

//% include "vectors.jinja"

//% include "softmax2d_parts.jinja"

constexpr int HELD = 32, TURN = 8;  // channels that a thread holds in registers, and that it reads at a time
constexpr int MOST_THREADS = {{ 256 if R.name == "f64" else 512 }};  // of a block

// The same number, of which AMD's compiler does not know that it is: it would compute what follows from it once, in
// front, for all passes, and there are not as many scalar registers.
template <typename T>
__device__ inline T again(T value) {
#ifdef __AMDGCN__
    asm volatile("" : "+v"(value));
#endif
    return value;
}

// Of one column of an image, a thread's channels: `count`, `step` elements apart, from the pointers on. The last ones, up to
// HELD, stay in registers; those in front are read in each pass, TURN of them at a time. Where lanes share a column, all
// threads of a block come here.
struct Share {
    unsigned lane, lanes, row;  // row: threads from one lane to the next
    unsigned count, held, front;
    size_t step;

    __device__ Share(unsigned lane, unsigned lanes, unsigned row, unsigned count, size_t step)
        : lane(lane), lanes(lanes), row(row), count(count), step(again(step)) {
        held = min(HELD - (0 - count) % TURN, count);
        front = count - held;
    }
};

// TURN values from `from` on, or as many as there are, and the last one again.
__device__ inline void read(Real (&values)[TURN], const Element* from, size_t step, unsigned there) {
    Element raw[TURN];
#pragma unroll
    for (unsigned i = 0; i < TURN; ++i) {
        raw[i] = *from;
        from += i + 1 < there ? step : 0;
    }
#pragma unroll
    for (unsigned i = 0; i < TURN; ++i) values[i] = Real(raw[i]);
}

// The same number in each lane of a column: the upper half of the lanes is added to the lower one, until one is left.
template <typename Value, typename Add>
__device__ Value over_lanes(Value value, const Share& share, Value* shared, Add add) {
    Value* own = shared + threadIdx.x;
    __syncthreads();  // shared memory may still be read from the last time
    *own = value;
    for (unsigned left = share.lanes; left > 1;) {
        const unsigned half = (left + 1) / 2;
        __syncthreads();
        if (share.lane + half < left) {
            add(value, own[half * share.row]);
            *own = value;
        }
        left = half;
    }
    __syncthreads();
    return own[-int(share.lane * share.row)];
}

template <bool LANES>
__device__ void forward(const Element* in, Element* out, const Share& share) {
    __shared__ Real maxima[LANES ? MOST_THREADS : 1];
    __shared__ Sum sums[LANES ? MOST_THREADS : 1];
    const size_t step = share.step;
    const Element* held_in = in + share.front * step;
    Real held[HELD / TURN][TURN], turn[TURN];

    Real maximum = real_of(0x{{ number(-inf, R)[2:] }});
#pragma unroll
    for (unsigned g = 0; g < HELD / TURN; ++g) {
        if (g * TURN < share.held) read(held[g], held_in + g * TURN * step, step, share.held - g * TURN);
    }
    for (unsigned c = 0; c < share.front; c += TURN) {
        read(turn, in + c * step, step, TURN);
#pragma unroll
        for (int i = 0; i < TURN; ++i) maximum = turn[i] > maximum ? turn[i] : maximum;
    }
#pragma unroll
    for (unsigned g = 0; g < HELD / TURN; ++g) {
        if (g * TURN >= share.held) break;
#pragma unroll
        for (int i = 0; i < TURN; ++i) maximum = held[g][i] > maximum ? held[g][i] : maximum;
    }
    if (LANES) {
        maximum = over_lanes(maximum, share, maxima, [](Real& a, Real b) { a = b > a ? b : a; });
    }

    Sum sum = {1, 0};  // no addend is larger
    for (unsigned c = 0; c < share.front; c += TURN) {
        read(turn, in + c * step, step, TURN);
#pragma unroll
        for (int i = 0; i < TURN; ++i) sum.add(exponential(turn[i] - maximum));
    }
#pragma unroll
    for (unsigned g = 0; g < HELD / TURN; ++g) {
        if (g * TURN >= share.held) break;
        const unsigned there = again(share.held - g * TURN);
#pragma unroll
        for (unsigned i = 0; i < TURN; ++i) {
            held[g][i] = exponential(held[g][i] - maximum);
            sum.add(i < there ? held[g][i] : 0);
        }
    }
    sum.high -= 1;
    if (LANES) sum = over_lanes(sum, share, sums, [](Sum& a, Sum b) { a.add(b.high, b.low); });

    const Inverse inverse(sum);
    for (unsigned c = 0; c < share.front; c += TURN) {
        read(turn, in + c * step, step, TURN);
#pragma unroll
        for (int i = 0; i < TURN; ++i) out[(c + i) * step] = Element(inverse.times(exponential(turn[i] - maximum)));
    }
    Element* held_out = out + share.front * step;
#pragma unroll
    for (unsigned g = 0; g < HELD / TURN; ++g) {
        if (g * TURN >= share.held) break;
        const unsigned there = again(share.held - g * TURN);
#pragma unroll
        for (unsigned i = 0; i < TURN; ++i) {
            if (i < there) *held_out = Element(inverse.times(held[g][i]));
            held_out += step;
        }
    }
}

template <bool LANES>
__device__ void backward(const Element* go, const Element* y, Element* gi, const Share& share) {
    __shared__ Sum sums[LANES ? MOST_THREADS : 1];
    const size_t step = share.step, behind = share.front * step;
    Real held_go[HELD / TURN][TURN], held_y[HELD / TURN][TURN], turn_go[TURN], turn_y[TURN];

#pragma unroll
    for (unsigned g = 0; g < HELD / TURN; ++g) {
        if (g * TURN < share.held) {
            read(held_go[g], go + behind + g * TURN * step, step, share.held - g * TURN);
            read(held_y[g], y + behind + g * TURN * step, step, share.held - g * TURN);
        }
    }
    Sum dot = {0, 0};
    for (unsigned c = 0; c < share.front; c += TURN) {
        read(turn_go, go + c * step, step, TURN);
        read(turn_y, y + c * step, step, TURN);
#pragma unroll
        for (int i = 0; i < TURN; ++i) dot.add_product(turn_go[i], turn_y[i]);
    }
#pragma unroll
    for (unsigned g = 0; g < HELD / TURN; ++g) {
        if (g * TURN >= share.held) break;
        const unsigned there = again(share.held - g * TURN);
#pragma unroll
        for (unsigned i = 0; i < TURN; ++i) {
            if (i < there) dot.add_product(held_go[g][i], held_y[g][i]);
        }
    }
    if (LANES) dot = over_lanes(dot, share, sums, [](Sum& a, Sum b) { a.add(b.high, b.low); });
    dot.settle();

    // What is held first, as in PTX: gi may be go or y, and no other thread reads what is written.
    Element* held_gi = gi + behind;
#pragma unroll
    for (unsigned g = 0; g < HELD / TURN; ++g) {
        if (g * TURN >= share.held) break;
        const unsigned there = again(share.held - g * TURN);
#pragma unroll
        for (unsigned i = 0; i < TURN; ++i) {
            if (i < there) held_gi[(g * TURN + i) * step] = Element(Real(dot.less_than(held_go[g][i]) * held_y[g][i]));
        }
    }
    for (unsigned c = 0; c < share.front; c += TURN) {
        read(turn_go, go + c * step, step, TURN);
        read(turn_y, y + c * step, step, TURN);
#pragma unroll
        for (int i = 0; i < TURN; ++i) gi[(c + i) * step] = Element(Real(dot.less_than(turn_go[i]) * turn_y[i]));
    }
}

// Calls `work(start, share)` for each column of a thread's own.
template <typename Work>
__device__ void each_column(unsigned total, unsigned channels, unsigned hw, Work work) {
    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t column = size_t(blockIdx.x) * blockDim.x + threadIdx.x; column < total; column += step) {
        const unsigned image = unsigned(column) / hw;
        work(size_t(image) * channels * hw + unsigned(column) % hw, Share(0, 1, 0, again(channels), hw));
    }
}

// Calls it for each tile of a block, in every thread: one that has no column has no channels.
template <typename Work>
__device__ void each_tile(size_t batch, unsigned channels, unsigned hw, unsigned positions, unsigned lanes, Work work) {
    const unsigned threads = lanes * positions, images = blockDim.x / threads, strips = (hw - 1) / positions + 1;
    const unsigned own = threadIdx.x % threads, lane = own / positions;
    const size_t tiles = (batch + images - 1) / images * strips;
    for (size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const size_t image = tile / strips * images + threadIdx.x / threads;
        const size_t position = tile % strips * positions + own % positions;
        const bool inside = lane < channels && image < batch && position < hw;
        const unsigned count = inside ? (channels - 1 - lane) / lanes + 1 : 0;
        const size_t start = inside ? (image * channels + lane) * hw + position : 0;
        work(start, Share(lane, lanes, positions, count, size_t(lanes) * hw));
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
softmax2d_kernel{{ suffix }}(const Element* in_ptr, Element* out_ptr, unsigned total, unsigned channels, unsigned hw) {
    each_column(total, channels, hw, [=](size_t start, const Share& share) {
        forward<false>(in_ptr + start, out_ptr + start, share);
    });
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
softmax2d_tiled_kernel{{ suffix }}(const Element* in_ptr, Element* out_ptr, size_t batch, unsigned channels, unsigned hw,
                       unsigned positions, unsigned lanes) {
    each_tile(batch, channels, hw, positions, lanes, [=](size_t start, const Share& share) {
        forward<true>(in_ptr + start, out_ptr + start, share);
    });
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
softmax2d_backward_kernel{{ suffix }}(const Element* go_ptr, const Element* y_ptr, Element* gi_ptr, unsigned total,
                          unsigned channels, unsigned hw) {
    each_column(total, channels, hw, [=](size_t start, const Share& share) {
        backward<false>(go_ptr + start, y_ptr + start, gi_ptr + start, share);
    });
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
softmax2d_backward_tiled_kernel{{ suffix }}(const Element* go_ptr, const Element* y_ptr, Element* gi_ptr, size_t batch,
                                unsigned channels, unsigned hw, unsigned positions, unsigned lanes) {
    each_tile(batch, channels, hw, positions, lanes, [=](size_t start, const Share& share) {
        backward<true>(go_ptr + start, y_ptr + start, gi_ptr + start, share);
    });
}

constexpr unsigned ROW = {{ 16 if R.name == "f64" else 32 }}, SLOTS = ROW / VECTOR;  // values of a row that a lane holds, and vectors

// A lane's vectors of a row of its own: `count` of them, `step` elements apart, from element `start` on.
struct Lane {
    unsigned lanes, count;
    size_t start, step;

    __device__ Lane(size_t rows, unsigned per_row, unsigned shift) : lanes(1u << shift), step(size_t(VECTOR) << shift) {
        const unsigned lane = threadIdx.x & (lanes - 1);
        const size_t row = (size_t(blockIdx.x) * 256 + threadIdx.x) >> shift;
        count = row < rows && lane < per_row ? (per_row - lane + lanes - 1) >> shift : 0;
        start = (row * per_row + lane) * VECTOR;
    }

    // As it is in memory: what makes a number of it would wait in front of the next access.
    template <bool ALIGNED>
    __device__ void read(Neighbours<VECTOR, ALIGNED> (&raw)[SLOTS], const Element* from) const {
#pragma unroll
        for (unsigned i = 0; i < SLOTS; ++i)
            if (i < count) raw[i] = *reinterpret_cast<const Neighbours<VECTOR, ALIGNED>*>(from + start + i * step);
    }

    template <bool ALIGNED>
    __device__ void write(Element* to, const Real (&values)[SLOTS][VECTOR]) const {
#pragma unroll
        for (unsigned i = 0; i < SLOTS; ++i)
            if (i < count) store<ALIGNED>(to + start + i * step, values[i]);
    }

    // The same in every lane of a row: `join` is given what the partner has.
    template <typename Join>
    __device__ void over_row(Join join) const {
        for (unsigned distance = lanes / 2; distance; distance /= 2) join(distance);
    }

    __device__ void over_row(Sum& sum) const {
        over_row([&](unsigned distance) {
            const Sum other = {__shfl_xor(sum.high, distance, 32), __shfl_xor(sum.low, distance, 32)};
            sum.low += other.low;  // first, so that both lanes get the same
            sum.add(other.high, 0);
        });
    }

    template <typename Work>
    __device__ void each(Work work) const {
#pragma unroll
        for (unsigned i = 0; i < SLOTS; ++i) {
            if (i >= count) break;
#pragma unroll
            for (unsigned j = 0; j < VECTOR; ++j) work(i, j);
        }
    }
};

template <bool ALIGNED>
__device__ inline void forward_last(const Element* in, Element* out, const Lane& lane) {
    Neighbours<VECTOR, ALIGNED> raw[SLOTS];
    Real values[SLOTS][VECTOR];
    lane.read<ALIGNED>(raw, in);
    Real maximum = real_of(0x{{ number(-inf, R)[2:] }});
    lane.each([&](unsigned i, unsigned j) {
        values[i][j] = Real(raw[i].elements[j]);
        maximum = values[i][j] > maximum ? values[i][j] : maximum;
    });
    lane.over_row([&](unsigned distance) {
        const Real other = __shfl_xor(maximum, distance, 32);
        maximum = other > maximum ? other : maximum;
    });
    Sum sum = {1, 0};  // no addend is larger
    lane.each([&](unsigned i, unsigned j) {
        values[i][j] = exponential(values[i][j] - maximum);
        sum.add(values[i][j]);
    });
    sum.high -= 1;
    lane.over_row(sum);
    const Inverse inverse(sum);
    lane.each([&](unsigned i, unsigned j) { values[i][j] = inverse.times(values[i][j]); });
    lane.write<ALIGNED>(out, values);
}

template <bool ALIGNED>
__device__ inline void backward_last(const Element* go_ptr, const Element* y_ptr, Element* gi, const Lane& lane) {
    Neighbours<VECTOR, ALIGNED> go[SLOTS], y[SLOTS];
    Real values[SLOTS][VECTOR];
    lane.read<ALIGNED>(go, go_ptr);
    lane.read<ALIGNED>(y, y_ptr);
    Sum dot = {0, 0};
    lane.each([&](unsigned i, unsigned j) { dot.add_product(Real(go[i].elements[j]), Real(y[i].elements[j])); });
    lane.over_row(dot);
    dot.settle();
    lane.each([&](unsigned i, unsigned j) {
        values[i][j] = dot.less_than(Real(go[i].elements[j])) * Real(y[i].elements[j]);
    });
    lane.write<ALIGNED>(gi, values);
}

extern "C" __global__ void __launch_bounds__(256)
softmax2d_last_kernel{{ suffix }}(const Element* in_ptr, Element* out_ptr, size_t rows, unsigned per_row, unsigned shift) {
    const Lane lane(rows, per_row, shift);
    if ((size_t(in_ptr) | size_t(out_ptr)) % 16 == 0) forward_last<true>(in_ptr, out_ptr, lane);
    else forward_last<false>(in_ptr, out_ptr, lane);
}

extern "C" __global__ void __launch_bounds__(256)
softmax2d_backward_last_kernel{{ suffix }}(const Element* go_ptr, const Element* y_ptr, Element* gi_ptr, size_t rows, unsigned per_row,
                               unsigned shift) {
    const Lane lane(rows, per_row, shift);
    if ((size_t(go_ptr) | size_t(y_ptr) | size_t(gi_ptr)) % 16 == 0) backward_last<true>(go_ptr, y_ptr, gi_ptr, lane);
    else backward_last<false>(go_ptr, y_ptr, gi_ptr, lane);
}
