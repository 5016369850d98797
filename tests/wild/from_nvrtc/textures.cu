// Textures and surfaces by handle.
extern "C" __global__ void sampled(cudaTextureObject_t image, float *y, int width, int height, float turn) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= width || j >= height)
        return;
    float u = i - width / 2, v = j - height / 2;
    y[j * width + i] = tex2D<float>(image, u + turn * v + width / 2 + 0.5f, v - turn * u + height / 2 + 0.5f);
}

extern "C" __global__ void gathered(cudaTextureObject_t image, float4 *y, int width) {
    int i = threadIdx.x, j = blockIdx.x;
    y[j * width + i] = tex2Dgather<float4>(image, i + 1.0f, j + 1.0f, 0);
}

extern "C" __global__ void fetched(cudaTextureObject_t line, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = tex1Dfetch<float>(line, n - 1 - i);
}

extern "C" __global__ void through_volume(cudaTextureObject_t volume, float4 *y, int depth) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int z = 0; z < depth; ++z) {
        float4 value = tex3D<float4>(volume, threadIdx.x + 0.5f, threadIdx.y + 0.5f, z + 0.5f);
        sum.x += value.x;
        sum.y += value.y;
        sum.z += value.z;
        sum.w += value.w;
    }
    y[threadIdx.y * blockDim.x + threadIdx.x] = sum;
}

// Conway's rule from one surface to the next; what lies outside reads as 0.
extern "C" __global__ void life(cudaSurfaceObject_t from, cudaSurfaceObject_t to) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y, around = 0;
    for (int dy = -1; dy <= 1; ++dy)
        for (int dx = -1; dx <= 1; ++dx)
            if (dx || dy)
                around += surf2Dread<int>(from, (i + dx) * 4, j + dy, cudaBoundaryModeZero);
    int alive = surf2Dread<int>(from, i * 4, j);
    surf2Dwrite((int)(around == 3 || (alive && around == 2)), to, i * 4, j);
}
