"""y = a * x + y in CUDA C++, on the best device there is; on sim where there is no GPU."""

import numpy as np

import ptxrt

SAXPY = ptxrt.KernelSource.cuda("""
__global__ void saxpy(const float* x, float* y, int n, float a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}""")
BLOCK = 256


def saxpy(a: float, x: ptxrt.DeviceArray, y: ptxrt.DeviceArray) -> None:
    """Add a * x to y, in place."""
    kernel = ptxrt.load(SAXPY, "saxpy", lengths={"x": "n", "y": "n"}, device=y.device)
    kernel[ptxrt.grid_for(y.size, BLOCK), BLOCK](x, y, n=y.size, a=a)


if __name__ == "__main__":
    n = 1000
    x = ptxrt.to_device(np.arange(n, dtype=np.float32))
    y = ptxrt.ones(n)
    saxpy(2.0, x, y)
    print(y[:5].numpy())
    print(np.array_equal(y.numpy(), 2 * np.arange(n) + 1))

# prints: [1. 3. 5. 7. 9.]
# prints: True
