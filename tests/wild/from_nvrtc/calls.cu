// Functions that stay functions: calls, recursion, function pointers, results that are structs, locals by address.
typedef float (*Step)(float, float);

struct Pair {
    float sum;
    int count;
};

__device__ __noinline__ float plus(float a, float b) { return a + b; }
__device__ __noinline__ float most(float a, float b) { return a > b ? a : b; }
__device__ __noinline__ float times(float a, float b) { return a * b; }
__device__ Step steps[3] = {plus, most, times};

__device__ __noinline__ int ackermann(int m, int n) {
    if (m == 0)
        return n + 1;
    return ackermann(m - 1, n == 0 ? 1 : ackermann(m, n - 1));
}

__device__ __noinline__ Pair summed(const float *x, int n, float least) {
    Pair result = {0.0f, 0};
    for (int i = 0; i < n; ++i)
        if (x[i] > least) {
            result.sum += x[i];
            ++result.count;
        }
    return result;
}

extern "C" __global__ void folded(const float *x, float *y, int n, const int *which) {
    Step step = steps[which[threadIdx.x]];
    float value = x[threadIdx.x];
    for (int i = 1; i < n; ++i)
        value = step(value, x[threadIdx.x + i]);
    y[threadIdx.x] = value;
}

extern "C" __global__ void deep(int *y) { y[threadIdx.x] = ackermann(threadIdx.x % 3, threadIdx.x / 3); }

extern "C" __global__ void sorted_sums(const float *x, float *sums, int *counts, int n) {
    float local[16];
    for (int i = 0; i < 16; ++i)
        local[i] = x[threadIdx.x * 16 + i];
    for (int i = 1; i < n; ++i)  // insertion, at indices that no compiler can keep in registers
        for (int j = i; j > 0 && local[j - 1] > local[j]; --j) {
            float swap = local[j];
            local[j] = local[j - 1];
            local[j - 1] = swap;
        }
    Pair pair = summed(local, n, local[n / 2]);
    sums[threadIdx.x] = pair.sum;
    counts[threadIdx.x] = pair.count;
}
