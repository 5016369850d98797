// grid_sample_modes_last, {{ T.name }}: the gradients of grid_sample_modes.hip, bilinear and bicubic, of images and of volumes, by way of
// sums in a workspace in which channels of a pixel lie side by side; x lies so beside them.
//
// The twin in PTX explains it. Both arrays are [N, chunks, pixels, lanes] of float, lanes 4 or 8, chunks of as many channels, the
// last filled up with zeros. As many lanes have a point, so that a tap is one wide read and one wide addition, of a sector of 32
// bytes. grad_input is added up with float atomics: its last bits differ from run to run, and denormals may count as 0. A
// point's sum of grad_grid is that of the twin, bit by bit.
//
//   spread: x as it is there, and zeros for the sums. Grid ((pixels << shift) / 128 rounded up, chunks, images), 128 threads,
//     each for four channels of a chunk, lanes = 4 << shift; chunks and images in turns.
//   bilinear, bicubic, volume_bilinear: the sums, and grad_grid. Grid (positions * lanes / 128 rounded up, 1, images), 128
//     threads, lanes = min(4 << shift, 8), shift that of the twin; images in turns.
//   collect: grad_input from the sums; as spread.

//% include "elements.jinja"

//% include "grid_sample_modes_parts.jinja"

struct alignas(16) Four {
    float values[4];
};

// For a thread of spread and collect: of each chunk its four channels of its pixel, work(element, channels, there). The first is
// that element of the image, so many of them there are, and `there` is its place in the workspace.
template <typename Work>
__device__ inline void each_four(unsigned shift, unsigned n, unsigned c, size_t plane, Work work) {
    const size_t item = size_t(blockIdx.x) * blockDim.x + threadIdx.x, pixel = item >> shift;
    const unsigned wide = 4u << shift, quad = unsigned(item & ((1u << shift) - 1)) * 4;
    const unsigned chunks = (c + wide - 1) / wide;
    if (pixel >= plane) return;
    for (unsigned image = blockIdx.z; image < n; image += gridDim.z)
        for (unsigned chunk = blockIdx.y; chunk < chunks; chunk += gridDim.y) {
            const size_t there = ((size_t(image) * chunks + chunk) * plane + pixel) * wide + quad;
            const unsigned channel = chunk * wide + quad;
            work((size_t(image) * c + channel) * plane + pixel, c > channel ? min(c - channel, 4u) : 0, there);
        }
}
//% if entry in (none, "grid_sample_modes_last_spread_" ~ T.name)

extern "C" __global__ void __launch_bounds__(128, 1)
grid_sample_modes_last_spread_{{ T.name }}(const Element* input_ptr, float* values_ptr, float* sums_ptr, unsigned shift, int n,
                                  int c, size_t plane) {
    each_four(shift, n, c, plane, [=](size_t from, unsigned channels, size_t there) {
        Four four;
#pragma unroll
        for (unsigned k = 0; k < 4; ++k) four.values[k] = k < channels ? float(input_ptr[from + k * plane]) : 0.0f;
        *reinterpret_cast<Four*>(values_ptr + there) = four;
        *reinterpret_cast<Four*>(sums_ptr + there) = Four{};
    });
}
//% endif
//% if entry in (none, "grid_sample_modes_last_collect_" ~ T.name)

extern "C" __global__ void __launch_bounds__(128, 1)
grid_sample_modes_last_collect_{{ T.name }}(const float* sums_ptr, Element* dinput_ptr, unsigned shift, int n, int c,
                                   size_t plane) {
    each_four(shift, n, c, plane, [=](size_t to, unsigned channels, size_t there) {
        const Four four = *reinterpret_cast<const Four*>(sums_ptr + there);
#pragma unroll
        for (unsigned k = 0; k < 4; ++k)
            if (k < channels) dinput_ptr[to + k * plane] = Element(four.values[k]);
    });
}
//% endif

// A point's gradient.
struct Slopes {
    float x, y, z;

    __device__ Slopes operator+(const Slopes& other) const { return {x + other.x, y + other.y, z + other.z}; }
};

template <int TAPS, int AXES>
__device__ void gradients(const Element* __restrict__ dout, const Element* __restrict__ grid,
                          const float* __restrict__ values, float* __restrict__ sums, Element* __restrict__ dgrid,
                          unsigned shift, const Image& image) {
    typedef Point<TAPS, AXES> P;
    constexpr int SLICES = P::SLICES;
    // Channels are added up as the twin does it, whose chunks are as many of these here as there are parts.
    const unsigned lanes = min(4u << shift, 8u), parts = (4u << shift) / lanes, lane = threadIdx.x & (lanes - 1);
    const unsigned chunks = (image.c + lanes - 1) / lanes;
    const size_t item = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) / lanes;
    // All lanes of a wave stay, as they add to each other's sums; what is past the end is at the last point.
    const bool valid = item < image.positions;
    const size_t position = valid ? item : image.positions - 1;
    const size_t row_size = size_t(image.width) * lanes, slice_size = image.height * row_size;
    const size_t chunk_size = (AXES == 3 ? image.depth : 1) * slice_size;
    for (unsigned n = blockIdx.z; n < image.n; n += gridDim.z) {
        const size_t place = AXES * (n * image.positions + position);
        const P p(grid + place, image);
        const Places<TAPS, AXES> to(p, slice_size, row_size, lanes);
        Slopes found = {}, second = {}, third = {}, fourth = {};  // of parts: this one, and those that come next
        const unsigned turns = valid && p.touches() ? (chunks + parts - 1) / parts * parts : 0;
#pragma unroll 1
        for (unsigned chunk = 0; chunk < turns; ++chunk) {
            const unsigned channel = chunk * lanes + lane;
            if (channel < image.c) {
                const float go = float(dout[(size_t(n) * image.c + channel) * image.positions + position]);
                const size_t start = (size_t(n) * chunks + chunk) * chunk_size + lane;
                float at[SLICES * TAPS * TAPS];
#pragma unroll
                for (int i = 0; i < SLICES * TAPS * TAPS; ++i) {
                    const long long tap = to.z[i / TAPS / TAPS] + to.y[i / TAPS % TAPS] + to.x[i % TAPS];
                    at[i] = tap < 0 ? 0.0f : values[start + tap];
                }
#pragma unroll
                for (int i = 0; i < SLICES * TAPS * TAPS; ++i) {
                    const long long tap = to.z[i / TAPS / TAPS] + to.y[i / TAPS % TAPS] + to.x[i % TAPS];
                    const float along = p.z.weight[i / TAPS / TAPS] * p.y.weight[i / TAPS % TAPS];
                    if (tap >= 0) atomicAdd(sums + (start + tap), go * (along * p.x.weight[i % TAPS]));
                }
                found.x = multiply_add(go, slope<0>(at, p, p.x), found.x);
                found.y = multiply_add(go, slope<1>(at, p, p.y), found.y);
                if constexpr (AXES == 3) found.z = multiply_add(go, slope<2>(at, p, p.z), found.z);
            }
            const Slopes last = found;
            found = parts > 1 ? second : last;
            second = parts > 2 ? third : last;
            third = fourth;
            fourth = last;
        }
        Slopes* const slopes[] = {&found, &second, &third, &fourth};
#pragma unroll
        for (Slopes* each : slopes)
            for (unsigned distance = 1; distance < lanes; distance *= 2) {
                each->x += __shfl_xor(each->x, distance, 8);
                each->y += __shfl_xor(each->y, distance, 8);
                if constexpr (AXES == 3) each->z += __shfl_xor(each->z, distance, 8);
            }
        if (parts > 1) found = found + second;
        if (parts > 2) found = found + (third + fourth);
        if (valid && lane == 0) {
            dgrid[place] = Element(found.x * p.x.m);
            dgrid[place + 1] = Element(found.y * p.y.m);
            if constexpr (AXES == 3) dgrid[place + 2] = Element(found.z * p.z.m);
        }
    }
}

//% for mode, taps, axes in (("bilinear", 2, 2), ("bicubic", 4, 2), ("volume_bilinear", 2, 3))
//% if entry in (none, "grid_sample_modes_last_" ~ mode ~ "_" ~ T.name)
extern "C" __global__ void __launch_bounds__(128, 1) grid_sample_modes_last_{{ mode }}_{{ T.name }}(
    const Element* dout_ptr, const Element* grid_ptr, const float* values_ptr, float* sums_ptr, Element* dgrid_ptr,
    unsigned shift, int n, int c, {{ "int id, " if axes == 3 }}int ih, int iw, {{ "int od, " if axes == 3 }}int oh, int ow,
    unsigned padding, unsigned align) {
    const Image image{unsigned(n), unsigned(c), {{ "id" if axes == 3 else "0" }}, ih, iw,
                      size_t({{ "od" if axes == 3 else "1" }}) * oh * ow, {padding, align != 0}, 0, 0, 0, 0, 0};
    gradients<{{ taps }}, {{ axes }}>(dout_ptr, grid_ptr, values_ptr, sums_ptr, dgrid_ptr, shift, image);
}

//% endif
//% endfor
