// A text that a generator has written, which says where each line of it comes from.
extern "C" __global__ void kernel(const float* x, float* y, int n) {
    int i = threadIdx.x;
#line 200 "model.txt"
    float v = x[i];
#ifdef FIXED
    int to = i;
#else
    int to = i + 1;
#endif
    y[to] = v;  // fault
}
