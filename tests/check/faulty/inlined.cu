__device__ int left_of(int i) {
#ifdef FIXED
    return i > 0 ? i - 1 : 0;
#else
    return i - 1;
#endif
}

__device__ float difference(const float* x, int i) {
    return x[i] - x[left_of(i)];  // fault
}

__device__ float slope(const float* x, int i, float step) {
    return difference(x, i) / step;
}

extern "C" __global__ void kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = slope(x, i, 0.5f);
}
