// Each thread sums N neighbours.
template <class T, int N>
__device__ T window(const T* x, int i) {
    T sum = 0;
    for (int k = 0; k < N; k++)
        sum += x[i + k];  // fault
    return sum;
}

template <class T>
__global__ void kernel(const T* x, T* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef FIXED
    if (i + 4 <= n)
#else
    if (i < n)
#endif
        y[i] = window<T, 4>(x, i);
}
