// softmax2d, f32: forward, and backward from the output. x is [N, C, HW]; a column is the C values of one position.
//
//   y[n,c,p] = exp(x[n,c,p] - m) / s,   m = max_c x[n,c,p],   s = sum_c exp(x[n,c,p] - m)
//   gx[n,c,p] = y[n,c,p] * (gy[n,c,p] - d),   d = sum_c gy[n,c,p] * y[n,c,p]
//
// Sums are f64, however many channels there are and however much cancels in gy - d; a product of two f32 is exact
// there. What is behind exp, and all of the backward, is rounded to f32 once. The maximum leaves out a NaN, exp keeps
// it, and so does the sum: a column with a NaN, with +inf, or of -inf alone is NaN.
//
// exp is our own, since those of the compilers' libraries differ. No product that is rounded is added to anything but
// by fma, so that what a compiler contracts changes no bit: every device has the same.
//
// Launch: a thread a column, total = N * HW of them, in blocks of any size. A thread alone reads what it writes:
// in place is fine, and so no pointer is __restrict__. Each pass over a column reads it again; neighbouring threads
// have neighbouring positions.
// ABI: (in_ptr, out_ptr, u32 total, u32 channels, u32 hw); (go_ptr, y_ptr, gi_ptr, u32 total, u32 channels, u32 hw).

// Where channel 0 of a column is. Those of the others are hw apart.
__device__ inline size_t start_of(unsigned column, unsigned channels, unsigned hw) {
    return size_t(column / hw) * channels * hw + column % hw;
}

// e to the power of x, within 0.9 ulp, denormal results included; NaN for NaN. x is at most 64.
// x = k ln 2 + r with a whole k and |r| <= ln(2)/2. The first part of ln 2 has 16 bits, so that x - k ln 2 is exact but
// for the second part; e^r is 1 + r + r^2 times a polynomial that is 4e-9 off at most.
__device__ inline float exponential(float x) {
    const float shift = 12582944.0f;  // 1.5 * 2^23 + 32: the low bits of a number added to it are the number, + 32
    x = x < -104.0f ? -104.0f : x;    // where e^x rounds to 0
    const float shifted = fmaf(x, 1.44269502f, shift);
    const float k = shifted - shift;
    float r = fmaf(k, -0.693138123f, x);
    r = fmaf(k, -9.05800152e-06f, r);
    float power = fmaf(r, 0.00138145383f, 0.00836874545f);
    power = fmaf(power, r, 0.041668389f);
    power = fmaf(power, r, 0.166665211f);
    power = fmaf(power, r, 0.49999994f);
    power = fmaf(power, r, 1.0f);
    power = fmaf(power, r, 1.0f);
    // times 2^(k+32), which is exact, then 2^-32, which alone rounds a denormal result
    const unsigned scale = (__float_as_uint(shifted) << 23) + 0x3F800000u;
    return power * __uint_as_float(scale) * 2.32830644e-10f;
}

extern "C" __global__ void __launch_bounds__(1024) softmax2d_kernel(const float* in_ptr, float* out_ptr,
                                                                   unsigned total, unsigned channels,
                                                                   unsigned hw) {
    const unsigned column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= total) return;
    const size_t start = start_of(column, channels, hw);
    const float* in = in_ptr + start;
    float* out = out_ptr + start;

    float maximum = __uint_as_float(0xFF800000u);  // -inf
    for (size_t c = 0; c < channels; ++c) {
        if (in[c * hw] > maximum) maximum = in[c * hw];
    }

    double sum = 0.0;
    for (size_t c = 0; c < channels; ++c) sum += exponential(in[c * hw] - maximum);

    const double inverse = 1.0 / sum;
    for (size_t c = 0; c < channels; ++c) out[c * hw] = float(exponential(in[c * hw] - maximum) * inverse);
}

extern "C" __global__ void __launch_bounds__(1024) softmax2d_backward_kernel(const float* go_ptr, const float* y_ptr,
                                                                            float* gi_ptr, unsigned total,
                                                                            unsigned channels, unsigned hw) {
    const unsigned column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= total) return;
    const size_t start = start_of(column, channels, hw);
    const float *go = go_ptr + start, *y = y_ptr + start;
    float* gi = gi_ptr + start;

    double dot = 0.0;
    for (size_t c = 0; c < channels; ++c) dot += double(go[c * hw]) * y[c * hw];

    for (size_t c = 0; c < channels; ++c) gi[c * hw] = float((go[c * hw] - dot) * y[c * hw]);
}
