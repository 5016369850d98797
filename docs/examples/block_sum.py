"""The sum of an array: each block adds up its part in shared memory, the host adds up the blocks."""

import numpy as np

import ptxrt

BLOCK_SUM = ptxrt.KernelSource.cuda(
    """
__global__ void block_sum(const float* x, double* partial, int n) {
    __shared__ double sums[BLOCK];
    double sum = 0;
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < n; i += gridDim.x * BLOCK) sum += x[i];
    sums[threadIdx.x] = sum;
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();  // the sums of the round before must be there
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) partial[blockIdx.x] = sums[0];
}""",
    {"BLOCK": 128},
)
SIGNATURE = "const f32* x[n], f64* partial, i32 n"


def total(x: ptxrt.DeviceArray, source: ptxrt.KernelSource = BLOCK_SUM) -> float:
    """Return the sum of a contiguous float32 array."""
    blocks = min(ptxrt.grid_for(x.size, 128), 64)
    partial = ptxrt.empty(blocks, np.float64, device=x.device)
    ptxrt.load(source, "block_sum", SIGNATURE, x.device)[blocks, 128](x, partial, x.size)
    return float(partial.numpy().sum())


if __name__ == "__main__":
    x = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    print(abs(total(ptxrt.to_device(x)) - x.sum(dtype=np.float64)) < 1e-9)

    # Without the barrier sim finds the race. On a GPU the sum would be wrong now and then.
    without = ptxrt.KernelSource.cuda(BLOCK_SUM.text.replace("__syncthreads();", ""), {"BLOCK": 128})
    try:
        total(ptxrt.to_device(x, "sim:0"), without)
    except ptxrt.DataRace as race:
        print(race.source_place)

# prints: True
# prints: kernel.cu:9
