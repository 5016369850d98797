namespace filter {
__constant__ float weights[5] = {1, 4, 6, 4, 1};
}

extern "C" __global__ void kernel(const float* x, float* y, int n) {
    int i = threadIdx.x;
#ifdef FIXED
    int k = i % 5;
#else
    int k = i % 6;
#endif
    float w = filter::weights[k];  // fault
    y[i] = w * x[i];
}
