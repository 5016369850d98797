//% set singles = 8
//% set of_pairs = true
// batch_norm_rounded, {{ T.name }}: batch_norm in training over a batch that is spread over many devices, by sums that each device
// rounds.
//
// What the sums and the digits are stands in kernels_ptx/batch_norm_rounded.ptx; the sums are in the order of batch_norm's variant
// split in PTX, with its bits. Every product that is added to something is an fma() in the text.
//
//   batch_norm_rounded_sums, batch_norm_backward_rounded_sums: grid (channels, slices), 256 threads. A slice is `values` values of
//     a channel, a multiple of {{ 16 // T.size }}; batch * hw is below 2^31.
//   batch_norm_rounded_digits, batch_norm_backward_rounded_digits: 128 threads, 32 a channel.

constexpr unsigned THREADS = 256, MOST_THREADS = THREADS;

//% include "elements.jinja"
//% include "pairs.jinja"
//% include "vectors.jinja"
//% include "block_sum.jinja"
//% include "moments.jinja"
//% include "walk.jinja"
//% include "batch_norm_parts.jinja"

//% include "batch_norm_digits.jinja"

template <bool BACKWARD>
__device__ inline void add_slice(const Element* in_ptr, const Element* go_ptr, const Real* mean_ptr, double* sums_ptr,
                                 unsigned batch, unsigned channels, unsigned hw, unsigned slices, unsigned values) {
    const unsigned channel = blockIdx.x, slice = blockIdx.y, first = slice * values;
    const unsigned last = min(first + values, batch * hw);
    const size_t home = size_t(channel) * hw;
    const Element *x = in_ptr + home, *go = BACKWARD ? go_ptr + home : x;
    const double k = BACKWARD ? mean_ptr[channel] : Real(x[0]);
    Sums sums;
    by_width(hw, reinterpret_cast<size_t>(in_ptr) | (BACKWARD ? reinterpret_cast<size_t>(go_ptr) : 0),
             Units<THREADS, BACKWARD, Adding<BACKWARD>>{x, go, size_t(channels) * hw, hw, first, last, {sums, k}});
    if constexpr (BACKWARD) block_sum(sums.sum, sums.squares, sums.go_sum, sums.dot);
    else block_sum(sums.sum, sums.squares);
    if (threadIdx.x) return;
    double* row = sums_ptr + (BACKWARD ? 4 : 2) * (size_t(channel) * slices + slice);
    row[0] = sums.sum;
    row[1] = sums.squares;
    if constexpr (BACKWARD) {
        row[2] = sums.go_sum;
        row[3] = sums.dot;
    }
}

// What is from the digit's unit up, less what is from the next one's up; the last digit keeps all.
__device__ inline long long digit_of(double number, double unit, bool top) {
    const double whole = floor(number * unit);
    const double next = top ? 0.0 : floor(whole * (1.0 / 4294967296.0));
    return (long long)fma(next, -4294967296.0, whole);
}

template <bool BACKWARD>
__device__ inline void make_digits(const Element* in_ptr, const Real* mean_ptr, const double* sums_ptr, long long* digits_ptr,
                                   unsigned batch, unsigned channels, unsigned hw, unsigned slices) {
    constexpr unsigned LANES = 32, COUNT = BACKWARD ? 4 : 2;
    const unsigned channel = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const bool there = channel < channels;  // all lanes of a wave go along
    double first = 0, second = 0;
    for (unsigned slice = lane; there && slice < slices; slice += LANES) {
        const double* row = sums_ptr + COUNT * (size_t(channel) * slices + slice) + COUNT - 2;
        first += row[0];
        second += row[1];
    }
    for (unsigned distance = LANES / 2; distance > 0; distance /= 2) first += __shfl_xor(first, distance, LANES);
    for (unsigned distance = LANES / 2; distance > 0; distance /= 2) second += __shfl_xor(second, distance, LANES);
    if (!there || lane >= ROWS) return;

    const size_t count = size_t(batch) * hw;
    Pair a, p;
    if constexpr (BACKWARD) {
        a = first;
        p = Pair(first) * Pair(double(mean_ptr[channel])) + second;
    } else {
        const double k = Real(in_ptr[size_t(channel) * hw]);
        a = Pair(double(count)) * Pair(k) + first;
        p = settled(a + first) * Pair(k) + second;
    }
    const bool product = lane >= FIRST_P, of_second = BACKWARD && (product || lane == 2);
    const double seen = of_second ? second : first;
    const int digit = int(lane - (product ? FIRST_P : FIRST_A)), exponent = (product ? 2 * LEAST : LEAST) - 32 * digit;
    const double unit = __longlong_as_double((long long)(1023 + exponent) << 52);
    const bool finite = seen - seen == 0, top = lane == FIRST_P - 1 || lane == ROWS - 1;
    const Pair number = product ? p : a;
    long long written = 0;
    if (lane == 0) written = (long long)count;
    else if (lane == 1 || (BACKWARD && lane == 2)) written = finite ? 0 : seen != seen ? 1 : seen < 0 ? 1ll << 42 : 1ll << 21;
    else if (lane >= FIRST_A && finite) written = digit_of(number.high, unit, top) + digit_of(number.low, unit, top);
    digits_ptr[size_t(lane) * channels + channel] = written;
}

extern "C" __global__ void __launch_bounds__(THREADS{{ ", 8" if T.name == "f32" }})
batch_norm_rounded_sums{{ suffix }}(const Element* in_ptr, double* sums_ptr, unsigned batch, unsigned channels,
                        unsigned hw, unsigned slices, unsigned values) {
    add_slice<false>(in_ptr, nullptr, nullptr, sums_ptr, batch, channels, hw, slices, values);
}

extern "C" __global__ void __launch_bounds__(THREADS)
batch_norm_backward_rounded_sums{{ suffix }}(const Element* in_ptr, const Element* go_ptr, const Real* mean_ptr,
                                 double* sums_ptr, unsigned batch, unsigned channels, unsigned hw, unsigned slices,
                                 unsigned values) {
    add_slice<true>(in_ptr, go_ptr, mean_ptr, sums_ptr, batch, channels, hw, slices, values);
}

extern "C" __global__ void __launch_bounds__(128)
batch_norm_rounded_digits{{ suffix }}(const Element* in_ptr, const double* sums_ptr, long long* digits_ptr,
                          unsigned batch, unsigned channels, unsigned hw, unsigned slices) {
    make_digits<false>(in_ptr, nullptr, sums_ptr, digits_ptr, batch, channels, hw, slices);
}

extern "C" __global__ void __launch_bounds__(128)
batch_norm_backward_rounded_digits{{ suffix }}(const Real* mean_ptr, const double* sums_ptr, long long* digits_ptr,
                                   unsigned batch, unsigned channels, unsigned hw, unsigned slices) {
    make_digits<true>(nullptr, mean_ptr, sums_ptr, digits_ptr, batch, channels, hw, slices);
}
