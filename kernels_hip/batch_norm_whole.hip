//% set single, held, held_of_both = true, 16 if T.name == "f32" else 8, 4 if T.size == 2 else 8
// batch_norm_whole, {{ T.name }}: batch_norm in training of channels-last arrays, forward and backward, in one launch: a block
// holds all rows of its channels.
//
// An array is [rows, channels]. Formulas, and why the sums are accurate, stand in kernels_ptx/batch_norm.ptx: sums are of
// d = x - k and of go, k being a channel's first value, or the mean where that is given. Every product that is added to something
// is an fma() in the text.
//
// A block has the channels of 2^wide vectors of 16 bytes, side by side, and a thread some rows of one of them, in
// registers, from the first read to the output: nothing is read twice, and no block waits for another. All that a thread reads
// is on its way before the first is used.
//
//   batch_norm_whole, batch_norm_backward_whole: grid (channels / ({{ 16 // T.size }} << wide)), no channel left over; {{ 16 // T.size }} << wide << adding threads, 64
//     to 512; wide at most 2. `rows`: at most {{ held }} a thread, backward {{ held_of_both }}. out_ptr may be in_ptr, gi_ptr in_ptr or
//     go_ptr. A null w_ptr is a weight of ones, a null b_ptr a bias of zeros; other null pointers are of what is not given or
//     wanted.

constexpr unsigned MOST_THREADS = 512, MOST_VECTORS = 4, MOST_PARTS = {{ 32 if T.size == 2 else 16 }}, GROUP_BITS = 5;

//% include "elements.jinja"
//% include "pairs.jinja"
//% include "vectors.jinja"
//% include "words.jinja"
//% include "moments.jinja"
//% include "walk.jinja"
//% include "batch_norm_parts.jinja"
//% include "norm_last_parts.jinja"
//% include "over_lanes.jinja"
//% include "statistics.jinja"

// What a thread has of its block's channels: a vector of them, from `first` on, and each at_once-th of their rows; and the one,
// `channel`, of which it makes the formula, if it is one of the block's first threads.
struct Share {
    const unsigned channels, adding, at_once, row, vector;
    __device__ Share(unsigned wide, unsigned adding)
        : channels(VECTOR << wide), adding(adding), at_once(VECTOR << adding), row(threadIdx.x >> wide),
          vector(threadIdx.x & ((1u << wide) - 1)) {}
    __device__ unsigned first() const { return blockIdx.x * channels + vector * VECTOR; }
    __device__ unsigned channel() const { return blockIdx.x * channels + (threadIdx.x & (channels - 1)); }
};

// A thread's rows; where a last one is not there, another one in its place, so that loads are conditional by twos.
template <bool BACKWARD>
struct Rows {
    __device__ Rows(const Element* x, const Element* go, const Share& share, unsigned rows, unsigned channels, bool aligned)
        : share(share), rows(rows), channels(channels), aligned(aligned) {
#pragma unroll
        for (unsigned i = 0; i < HELD; i += 2) {
            if (i * share.at_once >= rows) break;
#pragma unroll
            for (unsigned u = i; u < i + 2; ++u) {
                const size_t at = offset(min(row(u), rows - 1));
                values[u] = read(x + at, aligned);
                if constexpr (BACKWARD) gradients[u] = read(go + at, aligned);
            }
        }
    }

    // `use` of each row, with its offset from the first.
    template <typename Use>
    __device__ void each(Use use) const {
#pragma unroll
        for (unsigned i = 0; i < HELD; ++i) {
            if (row(i) >= rows) continue;
            Real own[VECTOR], grads[VECTOR];
            widen(own, values[i]);
            if constexpr (BACKWARD) widen(grads, gradients[i]);
            use.one(offset(row(i)), own, grads);
        }
    }

    template <typename Formula>
    __device__ void write(Element* out, const Formula (&formulas)[VECTOR]) const {
        if (aligned) each(Write<VECTOR, Formula, BACKWARD, true>{out, formulas});
        else each(Write<VECTOR, Formula, BACKWARD, false>{out, formulas});
    }

  private:
    static constexpr unsigned HELD = BACKWARD ? {{ held_of_both }} : {{ held }};
    const Share& share;
    const unsigned rows, channels;
    const bool aligned;
    Words values[HELD], gradients[BACKWARD ? HELD : 1];

    __device__ unsigned row(unsigned i) const { return i * share.at_once + share.row; }
    __device__ size_t offset(unsigned of_row) const { return size_t(of_row) * channels; }
};

// Sums over the block of each of its channels, for the thread of its number: COUNT numbers, one after the other. 2^adding threads
// add up a channel.
template <unsigned COUNT>
struct Totals {
    Number space[MOST_THREADS * VECTOR], parts[COUNT][MOST_PARTS];

    __device__ void add(unsigned number, const Share& share, const Sums (&own)[VECTOR], Number Sums::*member) {
        const unsigned adders = 1u << share.adding, count = share.at_once;  // of numbers of a channel
        __syncthreads();  // the space has been read
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) space[(share.vector * VECTOR + i) * count + share.row] = own[i].*member;
        __syncthreads();
        const Number* from = space + (threadIdx.x >> share.adding) * count + (threadIdx.x & (adders - 1));
        Number some[VECTOR];
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) some[i] = from[i * adders];
#pragma unroll
        for (unsigned i = 1; i < VECTOR; ++i) some[0] += some[i];
        const unsigned bits = min(share.adding, GROUP_BITS);
        over_lanes((1u << bits) / 2, some[0]);
        if ((threadIdx.x & ((1u << bits) - 1)) == 0) parts[number][threadIdx.x >> bits] = some[0];
    }

    // Behind a barrier.
    __device__ Number of(unsigned number, const Share& share) const {
        const unsigned groups = max((1u << share.adding) / GROUP, 1u), first = threadIdx.x * groups;
        Number all = parts[number][first];
        for (unsigned group = 1; group < groups; ++group) all += parts[number][first + group];
        return all;
    }
};
//% if entry is none or "backward" not in entry

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
batch_norm_whole{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr, Real* mean_ptr,
                 Real* var_ptr, Real* rmean_ptr, Real* rvar_ptr, unsigned rows, unsigned channels, Real eps,
                 unsigned adding, unsigned wide, Real momentum) {
    __shared__ Totals<2> totals;
    __shared__ Normal formulas[MOST_VECTORS][VECTOR];
    const Share share(wide, adding);
    const unsigned first = share.first(), channel = share.channel();
    const bool aligned = (reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(out_ptr)) % 16 == 0;
    const Rows<false> values(in_ptr + first, nullptr, share, rows, channels, aligned);
    const double weight = of_channel(w_ptr, channel, 1), bias = of_channel(b_ptr, channel, 0);
    const double own_k = Real(in_ptr[channel]);
    double k[VECTOR];
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) k[i] = Real(in_ptr[first + i]);
    Statistics statistics{double(rows)};
    Sums own[VECTOR];
    values.each(AddEach<false, VECTOR>{own, k});
    totals.add(0, share, own, &Sums::sum);
    totals.add(1, share, own, &Sums::squares);
    __syncthreads();
    Number mean;
    if (threadIdx.x < share.channels) {
        statistics.set(totals.of(0, share), totals.of(1, share), eps);
        mean = own_k + statistics.offset;
        formulas[threadIdx.x / VECTOR][threadIdx.x % VECTOR] = Normal{mean, statistics.inv * weight, bias};
    }
    __syncthreads();
    Normal formula[VECTOR];
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) formula[i] = formulas[share.vector][i];
    values.write(out_ptr + first, formula);
    if (threadIdx.x < share.channels) {
        report(mean, statistics.var, rows, channel, mean_ptr, var_ptr, rmean_ptr, rvar_ptr, momentum);
    }
}
//% endif
//% if entry is none or "backward" in entry

// Sums of go and of (x - k) * go. Those of x have had the registers before, if they are wanted at all.
struct AddGradients {
    Sums (&sums)[VECTOR];
    const double (&k)[VECTOR];
    __device__ void one(size_t, const Real (&values)[VECTOR], const Real (&gradients)[VECTOR]) {
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) {
            const Number d = Number(values[i]) - k[i];
            const double go = gradients[i];
            sums[i].go_sum += go;
            sums[i].dot = fma(d, go, sums[i].dot);
        }
    }
};

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
batch_norm_backward_whole{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr, Real* gw_ptr, Real* gb_ptr,
                          const Real* w_ptr, const Real* mean_ptr, const Real* var_ptr, unsigned rows,
                          unsigned channels, Real eps, unsigned adding, unsigned wide) {
    __shared__ Totals<4> totals;
    __shared__ Gradients formulas[MOST_VECTORS][VECTOR];
    const Share share(wide, adding);
    const unsigned first = share.first(), channel = share.channel();
    const size_t addresses =
        reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(go_ptr) | reinterpret_cast<size_t>(gi_ptr);
    const Rows<true> values(in_ptr + first, go_ptr + first, share, rows, channels, addresses % 16 == 0);
    const double weight = of_channel(w_ptr, channel, 1), var = of_channel(mean_ptr ? var_ptr : nullptr, channel, 0);
    const double own_k = mean_ptr ? mean_ptr[channel] : Real(in_ptr[channel]);
    double k[VECTOR];
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) k[i] = mean_ptr ? mean_ptr[first + i] : Real(in_ptr[first + i]);
    Statistics statistics{double(rows)};
    if (!mean_ptr) {
        Sums own[VECTOR];
        values.each(AddEach<false, VECTOR>{own, k});
        totals.add(0, share, own, &Sums::sum);
        totals.add(1, share, own, &Sums::squares);
    }
    Sums own[VECTOR];
    values.each(AddGradients{own, k});
    totals.add(2, share, own, &Sums::go_sum);
    totals.add(3, share, own, &Sums::dot);
    __syncthreads();
    if (threadIdx.x < share.channels) {
        const Number go_sum = totals.of(2, share);
        Number dot = totals.of(3, share);
        if (mean_ptr) {
            statistics.offset = 0;
            statistics.inv = inverse_root(Number(var) + eps);
        } else {
            statistics.set(totals.of(0, share), totals.of(1, share), eps);
            dot = fma(-statistics.offset, go_sum, dot);
        }
        const Number inv = statistics.inv;
        if (gw_ptr) gw_ptr[channel] = Real(dot * inv);
        if (gb_ptr) gb_ptr[channel] = Real(go_sum);
        const Number shift = -(statistics.over_n(go_sum * weight) * inv);
        const Number slope = -(statistics.over_n(dot * weight * inv) * inv * inv);
        formulas[threadIdx.x / VECTOR][threadIdx.x % VECTOR] =
            Gradients{own_k + statistics.offset, inv * weight, slope, shift};
    }
    __syncthreads();
    values.write(gi_ptr + first, formulas[share.vector]);  // from there: registers have both arrays' rows
}
//% endif
