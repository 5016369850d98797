// Structs, vectors and arrays by value, in the sizes that libraries pass.
struct Strided {
    float *data;
    long long offset;
    int sizes[3];
    int strides[3];
};
struct Mixed {
    char flag;
    short step;
    double scale;
    uint3 origin;
};
struct Table {
    int values[24];
};
template <class T> struct Functor {
    T a, b;
    __device__ T operator()(T x) const { return a * x + b; }
};

extern "C" __global__ void by_vectors(float *y, uint3 at, float4 factors, short2 pair, int n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = factors.x * i + factors.y * at.x + factors.z * at.y + factors.w * at.z + pair.x - pair.y;
}

extern "C" __global__ void strided_copy(Strided x, float *y) {
    int i = threadIdx.x, flat = i;
    long long place = x.offset;
    for (int axis = 2; axis >= 0; --axis) {
        place += (long long)(flat % x.sizes[axis]) * x.strides[axis];
        flat /= x.sizes[axis];
    }
    y[i] = x.data[place];
}

extern "C" __global__ void mixed(double *y, Mixed m, char c) {
    if (m.flag)
        y[threadIdx.x] = m.scale * (m.origin.x + m.origin.y * 10 + m.origin.z * 100) + (int)threadIdx.x * m.step + c;
}

// The table stands in parameter space, and is read at places that only the thread knows.
extern "C" __global__ void looked_up(const int *x, int *y, const __grid_constant__ Table table, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = table.values[x[i] % 24];
}

// As above, and the copy that the thread writes to stands in local memory.
extern "C" __global__ void rotated(int *y, Table table, int by) {
    for (int i = 0; i < 24; ++i)
        table.values[(i + by) % 24] += i;
    int total = 0;
    for (int i = 0; i < 24; ++i)
        total = total * 31 + table.values[(i * 7 + threadIdx.x) % 24];
    y[threadIdx.x] = total;
}

template <class T> __global__ void transformed(const T *x, T *y, int n, Functor<T> f) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = f(x[i]);
}
template __global__ void transformed<float>(const float *, float *, int, Functor<float>);
template __global__ void transformed<double>(const double *, double *, int, Functor<double>);
