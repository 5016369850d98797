extern "C" __global__ void kernel(const float* x, float* y, int n) {
    int i = threadIdx.x;
#ifdef FIXED
    y[i] = 0;
#endif
    for (int k = 0; k < n; k += 64)
        y[i] += x[i];  // fault
}
