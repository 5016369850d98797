// What samples and libraries do with a warp: reductions, scans, votes, matches, flags in shared memory.
extern "C" __global__ void block_sums(const float *x, float *y, int n) {
    __shared__ float parts[32];
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        sum += x[i];
    for (int by = 16; by > 0; by /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, by);
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0.0f;
        for (int by = 16; by > 0; by /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, by);
        if (threadIdx.x == 0)
            y[blockIdx.x] = sum;
    }
}

extern "C" __global__ void scanned(const int *x, int *y) {
    __shared__ int totals[8];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, value = x[threadIdx.x];
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        int before = __shfl_up_sync(0xffffffffu, value, by);
        value += lane >= by ? before : 0;
    }
    if (lane == 31)
        totals[warp] = value;
    __syncthreads();
    for (int i = 0; i < warp; ++i)
        value += totals[i];
    y[threadIdx.x] = value;
}

// Lanes that hold the same key add once, by their first.
extern "C" __global__ void histogram(const unsigned char *x, unsigned *bins, int n) {
    __shared__ unsigned counts[64];
    for (int i = threadIdx.x; i < 64; i += blockDim.x)
        counts[i] = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        unsigned same = __match_any_sync(__activemask(), x[i] & 63);
        if ((threadIdx.x & 31) == __ffs(same) - 1)
            atomicAdd(&counts[x[i] & 63], __popc(same));
    }
    __syncthreads();
    for (int b = threadIdx.x; b < 64; b += blockDim.x)
        if (counts[b])
            atomicAdd(&bins[b], counts[b]);
}

// Every thread that finds one stores the same flag, and those of a warp to one address at once.
extern "C" __global__ void any_above(const float *x, int *y, float bound) {
    __shared__ int found;
    __shared__ float first[2];
    found = 0;
    __syncthreads();
    if (x[blockIdx.x * blockDim.x + threadIdx.x] > bound)
        found = 1;
    first[threadIdx.x % 2] = bound;
    __syncthreads();
    y[blockIdx.x * blockDim.x + threadIdx.x] = found + (first[0] == first[1] ? 2 : 0);
}

extern "C" __global__ void votes(const int *x, unsigned *y) {
    int value = x[threadIdx.x];
    unsigned ballot = __ballot_sync(0xffffffffu, value > 3);
    unsigned all = __all_sync(0xffffffffu, value >= 0), any = __any_sync(0xffffffffu, value == 7);
    y[threadIdx.x] = ballot ^ all << 1 ^ any << 2 ^ __reduce_add_sync(0xffffffffu, value) << 8 ^
                     (unsigned)__reduce_max_sync(0xffffffffu, value) << 20 ^ (unsigned)__syncthreads_count(value & 1) << 25;
}

extern "C" __global__ void bitonic(float *x) {
    extern __shared__ float tile[];
    unsigned i = threadIdx.x;
    tile[i] = x[blockIdx.x * blockDim.x + i];
    for (unsigned size = 2; size <= blockDim.x; size *= 2)
        for (unsigned step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            unsigned other = i ^ step;
            if (other > i) {
                float a = tile[i], b = tile[other];
                if ((a > b) == ((i & size) == 0)) {
                    tile[i] = b;
                    tile[other] = a;
                }
            }
        }
    __syncthreads();
    x[blockIdx.x * blockDim.x + i] = tile[i];
}
