#include <hip/hip_runtime.h>

__device__ float neighbour(float v) {
    return __shfl_down(v, 1);  // fault
}

extern "C" __global__ void kernel(const float* x, float* y, int n) {
    int i = threadIdx.x;
#ifdef FIXED
    float v = neighbour(x[i]);
    if (i % 32 < 31)
        y[i] = v;
#else
    if (i % 32 < 31)
        y[i] = neighbour(x[i]);
#endif
}
