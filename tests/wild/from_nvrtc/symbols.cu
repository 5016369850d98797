// Variables that the host sets and reads: coefficients of a filter, a counter, a table of pointers' targets.
__constant__ float taps[5] = {0.0625f, 0.25f, 0.375f, 0.25f, 0.0625f};
__constant__ struct {
    int least, most;
    float gain;
} limits = {-8, 8, 1.0f};
__device__ unsigned clipped;
__device__ float history[2][4];

extern "C" __global__ void filtered(const float *x, float *y, int n) {
    int i = threadIdx.x;
    float sum = 0.0f;
    for (int tap = 0; tap < 5; ++tap) {
        int at = min(max(i + tap - 2, 0), n - 1);
        sum = __fadd_rn(sum, __fmul_rn(taps[tap], x[at]));
    }
    sum = __fmul_rn(sum, limits.gain);
    if (sum < limits.least || sum > limits.most) {
        sum = sum < 0.0f ? limits.least : limits.most;
        atomicAdd(&clipped, 1u);
    }
    y[i] = sum;
    if (i < 8)
        history[i / 4][i % 4] += sum;
}
