#ifdef FIXED
#define ALL 32
#else
#define ALL 64
#endif

__device__ void meet(int number, int threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(number), "r"(threads) : "memory");  // fault
}

extern "C" __global__ void kernel(const float* x, float* y, int n) {
    __shared__ float sums[64];
    sums[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x < 32)
        meet(1, ALL);
    __syncthreads();
    y[threadIdx.x] = sums[63 - threadIdx.x];
}
