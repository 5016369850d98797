#define AT(p, row, column) \
    (p)[(row) * WIDTH + \
        (column)]
#ifdef FIXED
#define WIDTH 8
#else
#define WIDTH 9
#endif

extern "C" __global__ void kernel(const float* x, float* y, int n) {
    int row = threadIdx.x / 8, column = threadIdx.x % 8;
    float v = 2.0f * x[threadIdx.x];
    if (n > 0)
        AT(y, row, column) = v;  // fault
}
