extern "C" __global__ void kernel(const float* x, float* y, int n) {
    float sum = 0;
#ifdef FIXED
    const int steps = 4;
#else
    const int steps = 5;
#endif
#pragma unroll
    for (int k = 0; k < steps; k++)
        sum += x[16 * k + threadIdx.x % 16];  // fault
    y[threadIdx.x] = sum;
}
