template <class T>
__device__ T reversed(T v) {
    __shared__ T tile[64];
    tile[threadIdx.x] = v;  // other
#ifdef FIXED
    __syncthreads();
#endif
    return tile[63 - threadIdx.x];  // fault
}

extern "C" __global__ void kernel(const float* x, float* y, int n) {
    y[threadIdx.x] = reversed(x[threadIdx.x]);
}
