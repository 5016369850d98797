template <class F>
__device__ void each(int n, F f) {
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        f(i);
}

extern "C" __global__ void kernel(const float* x, float* y, int n) {
#ifdef FIXED
    int last = n - 1;
#else
    int last = n;
#endif
    each(n, [=](int i) {
        float v = x[i];
        y[last - i] = v;  // fault
    });
}
