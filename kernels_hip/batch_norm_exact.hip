//% set fixed = T.name == "f16"
//% set of_pairs = true
// batch_norm_exact, {{ T.name }}: batch_norm in training over a batch that is spread over many devices, by exact sums.
//
// What the sums are, and the entries' parameters, stand in kernels_ptx/batch_norm_exact.ptx; being exact they have the same
// digits' worth here, whatever the order. Here a window is a thread's; a value below it goes to the digits at once, one above
// moves it. The digits of a block are added up in shared memory.
//
//   batch_norm_exact_sums, batch_norm_backward_exact_sums: as in PTX; any number of threads up to 256.
//   batch_norm_exact_finish, batch_norm_backward_exact_finish: blocks of up to 128 threads, as many as give each channel one.
//   batch_norm_exact_apply, batch_norm_backward_exact_apply: by coefficients f64[channels] each, mean, scale and bias, or mean,
//     scale, slope and shift; any grid along x, blocks of any size.

//% include "elements.jinja"
//% include "pairs.jinja"
//% include "vectors.jinja"
//% include "moments.jinja"
//% include "walk.jinja"
//% include "batch_norm_parts.jinja"

//% include "batch_norm_digits.jinja"
constexpr int COPIES = 32;  // of the sums, in shared memory, so that few lanes add to the same one

typedef unsigned long long Word;

__device__ inline unsigned high_word(double value) { return (unsigned)((Word)__double_as_longlong(value) >> 32); }
__device__ inline double power_of_two(int exponent) { return __longlong_as_double((long long)(1023 + exponent) << 52); }

// Which of NaN, + infinity, - infinity it is, in fields of 21 bits.
__device__ inline Word flag(double value) {
    const long long bits = __double_as_longlong(value);
    return bits << 12 ? 1 : Word(1) << (bits < 0 ? 42 : 21);
}

// The sums of a thread's part of a slice.
struct Exact {
    Word (*rows)[COPIES];  // from the thread's own on
    double sum, high, low, base;
    unsigned least_a, most_a, least_p, most_p;  // of the windows: bits of an f32 and of a high word, without sign
    int position_a, position_p;                 // of their lowest bits, among the digits

    __device__ explicit Exact(Word (*rows)[COPIES])
        : rows(rows), sum(0), low(0), least_a(1), most_a(0), least_p(1), most_p(0), position_a(0), position_p(0) {
        begin();
    }

    __device__ void begin() { high = base = 1.5 * power_of_two(52 + 46 + position_p - 2 * LEAST); }

    // whole * 2^position into the digits of a number
    __device__ void add(long long whole, int position, int first) const {
        if (whole == 0) return;
        Word (*digit)[COPIES] = rows + first + position / 32;
        const int shift = position % 32;
        const long long rest = whole >> (32 - shift);
        atomicAdd(digit[0], (Word)whole << shift & 0xFFFFFFFFu);
        atomicAdd(digit[1], (Word)rest & 0xFFFFFFFFu);
        atomicAdd(digit[2], (Word)(rest >> 32));
    }

    __device__ void leave_a() {
        add((long long)(sum * power_of_two(LEAST - position_a)), position_a, FIRST_A);
        sum = 0;
    }

    __device__ void leave_p() {
        add((long long)(low * power_of_two(2 * LEAST - position_p)), position_p, FIRST_P);
        add((long long)((high - base) * power_of_two(2 * LEAST - 46 - position_p)), position_p + 46, FIRST_P);
        low = 0;
    }

    __device__ void add_a(float a) {
//% if not fixed
        const unsigned bits = __float_as_uint(a) & 0x7FFFFFFF, exponent = bits >> 23;
        if (bits > most_a) {  // the window moves, to a little above
            leave_a();
            const unsigned top = min(max(exponent + 4, 21u), 254u);
            position_a = top - 21;
            most_a = (top << 23) + 0x7FFFFF;
            least_a = top == 21 ? 1 : (top - 20) << 23;
        }
        if (bits < least_a) {
            const int position = max(exponent, 1u) - 1;
            add((long long)(a * power_of_two(LEAST - position)), position, FIRST_A);
            return;
        }
//% endif
        sum += a;
    }

    __device__ void add_p(double a, double x) {
//% if not fixed
        const double product = a * x;
        const unsigned bits = high_word(product) & 0x7FFFFFFF, exponent = bits >> 20;
        if (bits > most_p) {
            leave_p();
            const unsigned top = min(max(exponent + 4, 812u), 1278u);
            position_p = top - 812;
            most_p = (top << 20) + 0xFFFFF;
            least_p = top == 812 ? 1 : (top - 40) << 20;
            begin();
        }
        if (bits < least_p) {
            const int position = max(exponent, 772u) - 772;  // not above that of its lowest bit
            add((long long)(product * power_of_two(2 * LEAST - position)), position, FIRST_P);
            return;
        }
//% endif
        const double next = fma(a, x, high);
        low += fma(a, x, high - next);
        high = next;
    }

    __device__ void take(float x) {
        if (x - x == 0) {
            add_a(x);
            add_p(x, x);
        } else {
            atomicOr(rows[1], flag(x));
        }
    }

    __device__ void take(float x, float go, const float* mean) {
        const bool finite = go - go == 0;
        if (finite) add_a(go);
        else atomicOr(rows[1], flag(go));
        if (finite && x - x == 0) add_p(go, x);
        else atomicOr(rows[2], flag((double(x) - *mean) * double(go)));
    }
};

template <bool BACKWARD>
__device__ inline void add_slice(const Element* in_ptr, const Element* go_ptr, const Real* mean_ptr, long long* sums_ptr,
                                 unsigned batch, unsigned channels, unsigned hw, unsigned long long values) {
    __shared__ Word rows[ROWS][COPIES];
    const size_t channel = blockIdx.x, count = size_t(batch) * hw, pitch = size_t(channels) * hw, home = channel * hw;
    const size_t first = blockIdx.y * size_t(values), last = min(first + size_t(values), count);
    for (unsigned place = threadIdx.x; place < ROWS * COPIES; place += blockDim.x) rows[0][place] = 0;
    __syncthreads();
    Exact sums(reinterpret_cast<Word (*)[COPIES]>(rows[0] + threadIdx.x % COPIES));
    Walk at(first + threadIdx.x, blockDim.x, hw, pitch);
    for (size_t i = first + threadIdx.x; i < last; i += blockDim.x, at.next()) {
        const size_t place = home + at.offset;
        if constexpr (BACKWARD) sums.take(float(in_ptr[place]), float(go_ptr[place]), mean_ptr + channel);
        else sums.take(float(in_ptr[place]));
    }
    sums.leave_a();
    sums.leave_p();
    __syncthreads();
    Word* to = reinterpret_cast<Word*>(sums_ptr) + channel;
    for (unsigned row = threadIdx.x; row < ROWS; row += blockDim.x) {
        Word sum = 0, flags = 0;
        for (unsigned copy = 0; copy < COPIES; ++copy) {
            sum += rows[row][copy];
            flags |= rows[row][copy];
        }
        if (row == 0 && blockIdx.y == 0) to[0] = count;
        else if (row >= FIRST_A) atomicAdd(to + size_t(row) * channels, sum);
        else if (row) atomicOr(to + size_t(row) * channels, flags);
    }
}

// What follows from the sums of all shards -------------------------------------------------------------------------------

// Each digit keeps 32 bits, and the rest goes to the next, so that equal numbers have equal digits; then the highest is
// added first.
template <int DIGITS>
__device__ inline Pair number_of(const long long* at, size_t channels, int least) {
    long long digits[DIGITS], carry = 0;
#pragma unroll
    for (int i = 0; i < DIGITS; ++i) {
        const long long digit = at[i * channels] + carry;
        carry = digit >> 32;
        digits[i] = i < DIGITS - 1 ? digit & 0xFFFFFFFF : digit;
    }
    Pair number = 0.0;
#pragma unroll
    for (int i = DIGITS - 1; i >= 0; --i) number = settled(number + Pair(double(digits[i]) * power_of_two(32 * i - least)));
    return number;
}

// NaN or an infinity where there are flags.
__device__ inline bool flagged(Word flags, double& number) {
    if (flags == 0) return false;
    const double infinity = __longlong_as_double(0x7FFll << 52);
    const Word field = (1 << 21) - 1;
    number = 0;
    if (flags & field) number += infinity - infinity;
    if (flags >> 21 & field) number += infinity;
    if (flags >> 42) number -= infinity;
    return true;
}

extern "C" __global__ void __launch_bounds__(256)
batch_norm_exact_sums{{ suffix }}(const Element* in_ptr, long long* sums_ptr, unsigned batch, unsigned channels,
                      unsigned hw, unsigned long long values) {
    add_slice<false>(in_ptr, nullptr, nullptr, sums_ptr, batch, channels, hw, values);
}

extern "C" __global__ void __launch_bounds__(256)
batch_norm_backward_exact_sums{{ suffix }}(const Element* in_ptr, const Element* go_ptr, const Real* mean_ptr,
                               long long* sums_ptr, unsigned batch, unsigned channels, unsigned hw,
                               unsigned long long values) {
    add_slice<true>(in_ptr, go_ptr, mean_ptr, sums_ptr, batch, channels, hw, values);
}

extern "C" __global__ void __launch_bounds__(128, 1)
batch_norm_exact_finish{{ suffix }}(const long long* sums_ptr, const Real* w_ptr, Real* mean_ptr, Real* var_ptr,
                        Real* rmean_ptr, Real* rvar_ptr, const long long* batches_ptr, const Real* b_ptr,
                        double* coefficients_ptr, unsigned channels, Real eps, Real momentum) {
    const size_t channel = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    const long long* own = sums_ptr + channel;
    const double m = double(own[0]);
    const Pair sum = number_of<DIGITS_A>(own + FIRST_A * size_t(channels), channels, LEAST);
    const Pair squares = number_of<DIGITS_P>(own + FIRST_P * size_t(channels), channels, 2 * LEAST);
    double mean = double(sum / m), var = settled(squares * m - sum * sum).high / m / m;
    if (var < 0) var = 0;
    const bool broken = flagged(own[channels], mean);
    if (broken || m < 2) var = __longlong_as_double(0x7FF8ll << 48);
    mean_ptr[channel] = Real(mean);
    var_ptr[channel] = Real(var);
    if (rmean_ptr) {
        const double share = batches_ptr ? 1.0 / double(*batches_ptr) : double(momentum);
        const double keep = 1.0 - share, unbiased = var * m / (m - 1);
        rmean_ptr[channel] = Real(fma(share, mean, rmean_ptr[channel] * keep));
        rvar_ptr[channel] = Real(fma(share, unbiased, rvar_ptr[channel] * keep));
    }
    coefficients_ptr[channel] = mean;
    coefficients_ptr[channels + channel] = inverse_root(var + double(eps)) * (w_ptr ? double(w_ptr[channel]) : 1.0);
    coefficients_ptr[2 * size_t(channels) + channel] = b_ptr ? double(b_ptr[channel]) : 0.0;
}

extern "C" __global__ void __launch_bounds__(128, 1)
batch_norm_backward_exact_finish{{ suffix }}(const long long* sums_ptr, const Real* w_ptr, const Real* mean_ptr,
                                 const Real* var_ptr, Real* gw_ptr, Real* gb_ptr, double* coefficients_ptr,
                                 unsigned channels, Real eps) {
    const size_t channel = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    const long long* own = sums_ptr + channel;
    const double m = double(own[0]), mean = mean_ptr[channel], var = var_ptr[channel];
    const Pair gos = number_of<DIGITS_A>(own + FIRST_A * size_t(channels), channels, LEAST);
    const Pair products = number_of<DIGITS_P>(own + FIRST_P * size_t(channels), channels, 2 * LEAST);
    double go_sum = gos.high, dot = settled(products - gos * mean).high;
    flagged(own[channels], go_sum);
    flagged(own[2 * size_t(channels)], dot);
    const double inv = inverse_root(var + double(eps)), gradient = dot * inv;
    if (gw_ptr) gw_ptr[channel] = Real(gradient);
    gb_ptr[channel] = Real(go_sum);
    coefficients_ptr[channel] = mean;
    coefficients_ptr[channels + channel] = inv * (w_ptr ? double(w_ptr[channel]) : 1.0);
    coefficients_ptr[2 * size_t(channels) + channel] = gradient / m * inv;
    coefficients_ptr[3 * size_t(channels) + channel] = go_sum / m;
}

// Calls write(place, channel) for each value of a tensor that is the thread's.
template <typename Write>
__device__ inline void each_value(unsigned batch, unsigned channels, unsigned hw, Write write) {
    const size_t values = size_t(batch) * channels * hw;
    const unsigned threads = gridDim.x * blockDim.x, thread = blockIdx.x * blockDim.x + threadIdx.x;
    Walk at(thread, threads, hw);
    for (size_t i = thread; i < values; i += threads, at.next()) write(i, at.row % channels);
}

extern "C" __global__ void __launch_bounds__(1024)
batch_norm_exact_apply{{ suffix }}(const Element* in_ptr, Element* out_ptr, const double* coefficients_ptr,
                       unsigned batch, unsigned channels, unsigned hw) {
    each_value(batch, channels, hw, [=](size_t place, size_t channel) {
        const double* own = coefficients_ptr + channel;
        const Normal formula{own[0], own[channels], own[2 * size_t(channels)]};
        out_ptr[place] = Element(formula(Real(in_ptr[place])));
    });
}

extern "C" __global__ void __launch_bounds__(1024)
batch_norm_backward_exact_apply{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr,
                                const double* coefficients_ptr, unsigned batch, unsigned channels, unsigned hw) {
    each_value(batch, channels, hw, [=](size_t place, size_t channel) {
        const double* own = coefficients_ptr + channel;
        const Gradient formula{own[0], own[channels], own[2 * size_t(channels)], own[3 * size_t(channels)]};
        gi_ptr[place] = Element(formula(Real(in_ptr[place]), Real(go_ptr[place])));
    });
}
