// grid_sample_modes, {{ T.name }}: grid_sample in every mode and padding, with align_corners or without, of images and volumes.
//
// A point has taps along each axis, pixels with a weight w; neighbours have a slope d, by which their difference counts in
// the derivative. With v = x[n,c,z,y,x] at the taps, 0 where one is outside, and go = grad_out[n,c,p] of position p:
//
//   y[n,c,p] = sum over taps of w_z*w_y*w_x*v             grad_input[n,c,tap] += go * w_z*w_y*w_x
//   grad_grid[n,p].x = m_x * sum over c of go * sum over w_z*w_y*d_x*(v of the next x - v),   y and z likewise
//
// g being the grid's value along an axis and L its length, the coordinate is s = (g + 1) / 2 * L - 1 / 2, with
// align_corners (g + 1) / 2 * (L - 1), and m = (L or L - 1) / 2. By t = s - floor(s), u = 1 - t, the taps are
//
//   nearest    s rounded, half to even     w = 1; grad_grid is 0
//   bilinear   floor(s) + 0, 1             w = u, t               d = 1
//   bicubic    floor(s) - 1, 0, 1, 2       w = f(1 + t), f(t), f(u), f(1 + u) of cubic convolution, a = -0.75:
//                                          w = a*t*u*u, u*(1 + t - 1.25*t*t), t*(1 + u - 1.25*u*u), a*u*t*t
//                                          d = u*(3/4 - 9/4*t), 3/4 + 3/2*t*u, t*(3/4 - 9/4*u)
//
// Padding zeros: a tap outside counts as 0, each by itself; a point that touches no pixel, is infinite or not a number
// gives 0 and gradients of 0. A tap inside counts with a weight of 0 too (infinity there gives NaN, as in PyTorch).
// Border: s is clipped to 0 ... L - 1, where m is 0 then; NaN is read as 0, with m = 0. Reflection: s is first reflected
// about 0 and L - 1, without align_corners about -0.5 and L - 0.5, as often as needed, which turns the sign of m each
// time; infinity and NaN are read as 0, with m = 0. A coordinate too large for its fraction to be known goes somewhere
// inside. Bicubic pads each tap in place of s, and m stays, but for NaN and under reflection infinity, as above.
// An axis of length 0 has all taps outside, under any padding. No value of the grid becomes an address unchecked.
//
// All arithmetic is in {{ R.name }}{{ ", results are rounded to " ~ T.name ~ " once" if T.size == 2 }}. Sums are in the order of the taps, x innermost, and of the
// channels. Every product that is added to something is written as an fma, but for that with a power of two, which is
// exact; one that the point's floor is subtracted from is an fma with 0. So contraction changes no bit, and y and
// grad_grid have the bits of the PTX twin.
//
// x has any strides, in elements; all else is contiguous, sums for grad_input too. Launches: blocks of up to 256 threads.
// Grids may be of any size where threads take turns, and are said below.
//
//   grid_sample_modes_MODE: grid (blocks for positions, parts of the channels, images); each is taken in turns.
//   grid_sample_modes_backward_MODE: grid (blocks for positions, 1, images). Adds to dinput_ptr, zeros at first, by float
//     atomics: the last bits of grad_input differ from run to run, and in f32 denormals may count as 0. grad_grid does
//     not: a thread sums over all channels of a position.
//   grid_sample_modes_backward_fixed_MODE: the same by integer atomics, whose order does not matter. An element's sum is
//     two 64-bit integers, of units 2^unit and 2^(unit - 62 + places), where 2^places parts, each as large as the
//     plane's largest gradient, fit the first (three places more where padded taps fold on a pixel). Parts that
//     are infinite or not numbers set bits of the element's flags: 1 for NaN, 2 and 4 for +infinity and -infinity.
//   grid_sample_modes_backward_clear: zeros to count words. One-dimensional grid.
//   grid_sample_modes_backward_largest: the largest finite magnitude of each plane of grad_out, [n, c], as the bits of an
//     f64, whose order is that of the numbers; zeros at first. Grid (blocks for positions, planes), in turns.
//   grid_sample_modes_backward_collect: grad_input from fixed sums. One-dimensional grid; count elements, plane a plane.
//   grid_sample_modes_backward_round (half types): grad_input from f32 sums. One-dimensional grid.

//% include "elements.jinja"

typedef unsigned long long Word;

//% include "grid_sample_modes_parts.jinja"

// Forward -------------------------------------------------------------------------------------------------------------

// What a thread has of an image of the result: in order, or, of a large one, in tiles of 256 threads, 32 x 8, of a
// volume 16 x 4 x 4. What neighbouring points read is still in the cache then.
template <int AXES>
struct Turns {
    static constexpr unsigned X = AXES == 3 ? 4 : 5, Y = AXES == 3 ? 2 : 3, Z = AXES == 3 ? 2 : 0;  // powers of two
    unsigned ow, oh, od;
    unsigned each;  // each block has one tile, or as many positions as threads, up to the end
    bool tiled;
    size_t end;

    __device__ Turns(unsigned ow, unsigned oh, unsigned od) : ow(ow), oh(oh), od(od) {
        const size_t tiles = size_t(across()) * down() * ((od + (1 << Z) - 1) >> Z);
        const bool large = AXES == 3 ? ow >= 64 && oh >= 16 && od >= 16 : ow >= 128 && oh >= 32;
        tiled = large && blockDim.x == 256 && tiles >> 31 == 0;
        each = tiled ? 1 : blockDim.x;
        end = tiled ? tiles : size_t(od) * oh * ow;
    }

    __device__ unsigned across() const { return (ow + (1 << X) - 1) >> X; }
    __device__ unsigned down() const { return (oh + (1 << Y) - 1) >> Y; }

    // The position of this thread in a block's turn; as many as there are if it has none.
    __device__ size_t position(size_t block, size_t positions) const {
        if (!tiled) return min(block * blockDim.x + threadIdx.x, positions);
        const unsigned row = unsigned(block) / across();
        const unsigned x = (unsigned(block) % across() << X) + (threadIdx.x & ((1u << X) - 1));
        const unsigned y = (row % down() << Y) + (threadIdx.x >> X & ((1u << Y) - 1));
        const unsigned z = (row / down() << Z) + (threadIdx.x >> (X + Y));
        return x < ow && y < oh && z < od ? (size_t(z) * oh + y) * ow + x : positions;
    }
};

// The same number, in a register of each lane: what all lanes of a wave have alike is here more than a wave's registers hold.
template <typename T>
__device__ inline T in_lanes(T value) {
#ifdef __AMDGCN__
    asm("" : "+v"(value));
#endif
    return value;
}

// Results of COUNT channels from values at the taps, which all are on their way before the first is used.
template <int COUNT, int TAPS, int AXES>
__device__ inline void interpolate(Real* values, const Point<TAPS, AXES>& p, Element* to, size_t positions) {
    constexpr int SLICES = Point<TAPS, AXES>::SLICES, ALL = SLICES * TAPS * TAPS;
#pragma unroll
    for (int channel = 0; channel < COUNT; ++channel) {
        Real* const own = values + channel * ALL;
        contract<SLICES * TAPS>(own, p.x);
        contract<SLICES>(own, p.y);
        contract<1>(own, p.z);
        to[channel * positions] = Element(own[0]);
    }
}

template <int TAPS, int AXES>
__device__ void sample(const Element* __restrict__ input, const Element* __restrict__ grid,
                       Element* __restrict__ output, const Image& image, const Turns<AXES>& turns) {
    typedef Point<TAPS, AXES> P;
    constexpr int ROWS = P::SLICES * TAPS, ALL = ROWS * TAPS, COUNT = ALL < 4 ? 4 : ALL < 16 ? 16 / ALL : 1;
    const unsigned part = (image.c + gridDim.y - 1) / gridDim.y;
    const unsigned first = blockIdx.y * part, last = in_lanes(min(first + part, image.c));
    const size_t stride = in_lanes(image.channel_stride), positions = in_lanes(image.positions);
    for (unsigned n = blockIdx.z; n < image.n; n += gridDim.z)
        for (size_t block = blockIdx.x; block * turns.each < turns.end; block += gridDim.x) {
            const size_t position = turns.position(block, positions);
            if (position == positions) continue;
            const P p(grid + AXES * (n * positions + position), image);
            const Places<TAPS, AXES> from(p, image.depth_stride, image.row_stride, image.column_stride);
            Element* to = output + (size_t(n) * image.c + first) * positions + position;
            size_t plane = n * image.image_stride + first * stride;
            unsigned channel = first;
            if (from.straight()) {  // then a pointer a row will do
                const Element* rows[ROWS];
#pragma unroll
                for (int row = 0; row < ROWS; ++row)
                    rows[row] = input + plane + (from.z[row / TAPS] + from.y[row % TAPS] + from.x[0]);
                for (; channel + COUNT <= last; channel += COUNT, to += COUNT * positions) {
                    Real values[COUNT * ALL];
#pragma unroll
                    for (int i = 0; i < COUNT * ALL; ++i) {
                        values[i] = Real(rows[i % ALL / TAPS][i % TAPS]);
                        if (i % TAPS == TAPS - 1) rows[i % ALL / TAPS] += stride;
                    }
                    interpolate<COUNT>(values, p, to, positions);
                }
                plane += (channel - first) * stride;
            }
            for (; channel < last; ++channel, plane += stride, to += positions) {
                Real values[ALL];
#pragma unroll
                for (int i = 0; i < ALL; ++i)
                    values[i] = from.value(input, plane, i / (TAPS * TAPS), i / TAPS % TAPS, i % TAPS);
                interpolate<1>(values, p, to, positions);
            }
        }
}

// Backward ------------------------------------------------------------------------------------------------------------

__device__ inline double power_of_two(int exponent) {
    return __longlong_as_double((long long)(exponent + 1023) << 52);
}

// 2^-unit in two factors, since one alone could be out of range, and 2^(62 - places), by which the second integer is
// finer; with sign -1 the reciprocals. The largest is below 2^(e - 1022), e being its exponent's bits.
struct Scale {
    double first, second, finer;

    __device__ Scale(Word largest, int places, int sign) {
        const int exponent = 1084 - int(largest >> 52) - places, half = exponent >> 1;
        first = power_of_two(sign * half);
        second = power_of_two(sign * (exponent - half));
        finer = power_of_two(sign * (62 - places));
    }
};

// Where the parts of grad_input go: into floats,
struct Floats {
    Real* sums;

    __device__ void begin(size_t) {}
    __device__ void add(size_t element, Real go, Real weight) const { atomicAdd(sums + element, go * weight); }
};

// or into pairs of integers.
struct Integers {
    Word* sums;
    unsigned* flags;
    const Word* largest;
    int places;
    double first, second, finer;

    __device__ void begin(size_t plane) {
        const Scale scale(largest[plane], places, 1);
        first = scale.first;
        second = scale.second;
        finer = scale.finer;
    }

    __device__ void add(size_t element, Real go, Real weight) const {
        const Real part = go * weight;
        if (!(go - go == Real(0))) {
            atomicOr(flags + element, part != part ? 1u : part > Real(0) ? 2u : 4u);
            return;
        }
        const double scaled = double(go) * first * double(weight) * second, whole = rint(scaled);
        atomicAdd(sums + 2 * element, Word((long long)whole));
        atomicAdd(sums + 2 * element + 1, Word((long long)rint((scaled - whole) * finer)));
    }
};

template <int TAPS, int AXES, typename Sums>
__device__ void gradients(const Element* __restrict__ dout, const Element* __restrict__ input,
                          const Element* __restrict__ grid, Sums sums, Element* __restrict__ dgrid,
                          const Image& image) {
    typedef Point<TAPS, AXES> P;
    const size_t start = size_t(blockIdx.x) * blockDim.x + threadIdx.x, step = size_t(gridDim.x) * blockDim.x;
    const size_t row_size = image.width, slice_size = image.height * row_size;
    const size_t plane_size = (AXES == 3 ? image.depth : 1) * slice_size;
    for (unsigned n = blockIdx.z; n < image.n; n += gridDim.z)
        for (size_t position = start; position < image.positions; position += step) {
            const size_t place = AXES * (n * image.positions + position);
            const P p(grid + place, image);
            const Places<TAPS, AXES> from(p, image.depth_stride, image.row_stride, image.column_stride);
            const Places<TAPS, AXES> to(p, slice_size, row_size, 1);
            const size_t channels = p.touches() ? image.c : 0;

            // grad_input, row by row of the taps: what all of them need at once would be more than the registers.
#pragma unroll
            for (int i = 0; i < P::SLICES; ++i)
#pragma unroll
                for (int j = 0; j < TAPS; ++j) {
                    const long long row = to.z[i] + to.y[j];
                    const Real weight = p.z.weight[i] * p.y.weight[j];
                    for (size_t channel = row < 0 ? channels : 0; channel < channels; ++channel) {
                        const size_t plane = size_t(n) * image.c + channel;
                        const Real go = Real(dout[plane * image.positions + position]);
                        sums.begin(plane);
#pragma unroll
                        for (int k = 0; k < TAPS; ++k) {
                            const long long tap = (long long)(plane * plane_size) + row + to.x[k];
                            if (tap >= 0) sums.add(tap, go, weight * p.x.weight[k]);
                        }
                    }
                }

            // grad_grid.
            Real along_x = 0, along_y = 0, along_z = 0;
            for (size_t channel = TAPS == 1 ? channels : 0; channel < channels; ++channel) {
                const Real go = Real(dout[(size_t(n) * image.c + channel) * image.positions + position]);
                const size_t plane = n * image.image_stride + channel * image.channel_stride;
                Real values[P::SLICES * TAPS * TAPS];
#pragma unroll
                for (int i = 0; i < P::SLICES; ++i)
#pragma unroll
                    for (int j = 0; j < TAPS; ++j)
#pragma unroll
                        for (int k = 0; k < TAPS; ++k)
                            values[(i * TAPS + j) * TAPS + k] = from.value(input, plane, i, j, k);
                along_x = multiply_add(go, slope<0>(values, p, p.x), along_x);
                along_y = multiply_add(go, slope<1>(values, p, p.y), along_y);
                if constexpr (AXES == 3) along_z = multiply_add(go, slope<2>(values, p, p.z), along_z);
            }
            dgrid[place] = Element(TAPS == 1 ? Real(0) : along_x * p.x.m);
            dgrid[place + 1] = Element(TAPS == 1 ? Real(0) : along_y * p.y.m);
            if constexpr (AXES == 3) dgrid[place + 2] = Element(TAPS == 1 ? Real(0) : along_z * p.z.m);
        }
}

// The entries ---------------------------------------------------------------------------------------------------------

//% for mode, taps, axes in (("bilinear", 2, 2), ("nearest", 1, 2), ("bicubic", 4, 2), ("volume_bilinear", 2, 3), ("volume_nearest", 1, 3))
//% set depth, out_depth = ("int id, ", "int od, ") if axes == 3 else ("", "")
//% set sizes = "int n, int c, " ~ depth ~ "int ih, int iw, " ~ out_depth ~ "int oh, int ow"
//% set strides = "size_t image_stride, size_t channel_stride, " ~ ("size_t depth_stride, " if axes == 3 else "") ~ "size_t row_stride, size_t column_stride"
//% macro image()
    const Image image{unsigned(n), unsigned(c), {{ "id" if axes == 3 else "0" }}, ih, iw,
                      size_t({{ "od" if axes == 3 else "1" }}) * oh * ow, {padding, align != 0},
                      image_stride, channel_stride, {{ "depth_stride" if axes == 3 else "0" }}, row_stride, column_stride};
//% endmacro
//% if entry in (none, "grid_sample_modes_" ~ mode ~ "_" ~ T.name)
extern "C" __global__ void __launch_bounds__(256, {{ (3 if taps == 4 else 4) if T.size == 4 else 2 if T.size == 8 or taps == 4 else 3 }}) grid_sample_modes_{{ mode }}_{{ T.name }}(
    const Element* input_ptr, const Element* grid_ptr, Element* output_ptr, {{ sizes }},
    unsigned padding, unsigned align, {{ strides }}) {
{{ image() }}    const Turns<{{ axes }}> turns(ow, oh, {{ "od" if axes == 3 else "1" }});
    sample<{{ taps }}, {{ axes }}>(input_ptr, grid_ptr, output_ptr, image, turns);
}

//% endif
//% if entry in (none, "grid_sample_modes_backward_" ~ mode ~ "_" ~ T.name)
extern "C" __global__ void __launch_bounds__(256, 1) grid_sample_modes_backward_{{ mode }}_{{ T.name }}(
    const Element* dout_ptr, const Element* input_ptr, const Element* grid_ptr, Real* dinput_ptr, Element* dgrid_ptr,
    {{ sizes }},
    unsigned padding, unsigned align, {{ strides }}) {
{{ image() }}    gradients<{{ taps }}, {{ axes }}>(dout_ptr, input_ptr, grid_ptr, Floats{dinput_ptr}, dgrid_ptr, image);
}

//% endif
//% if entry in (none, "grid_sample_modes_backward_fixed_" ~ mode ~ "_" ~ T.name)
extern "C" __global__ void __launch_bounds__(256, 1) grid_sample_modes_backward_fixed_{{ mode }}_{{ T.name }}(
    const Element* dout_ptr, const Element* input_ptr, const Element* grid_ptr, Word* sums_ptr, unsigned* flags_ptr,
    const Word* largest_ptr, int places, Element* dgrid_ptr, {{ sizes }},
    unsigned padding, unsigned align, {{ strides }}) {
{{ image() }}    const Integers sums{sums_ptr, flags_ptr, largest_ptr, places};
    gradients<{{ taps }}, {{ axes }}>(dout_ptr, input_ptr, grid_ptr, sums, dgrid_ptr, image);
}

//% endif
//% endfor
//% if entry in (none, "grid_sample_modes_backward_clear_" ~ T.name)
extern "C" __global__ void __launch_bounds__(256, 1)
grid_sample_modes_backward_clear_{{ T.name }}(Word* words_ptr, size_t count) {
    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) words_ptr[i] = 0;
}

//% endif
//% if entry in (none, "grid_sample_modes_backward_largest_" ~ T.name)
extern "C" __global__ void __launch_bounds__(256, 1)
grid_sample_modes_backward_largest_{{ T.name }}(const Element* dout_ptr, Word* largest_ptr, size_t positions,
                                                size_t planes) {
    __shared__ Word most[256];
    const size_t start = size_t(blockIdx.x) * blockDim.x + threadIdx.x, step = size_t(gridDim.x) * blockDim.x;
    for (size_t plane = blockIdx.y; plane < planes; plane += gridDim.y) {
        Word own = 0;
        for (size_t i = start; i < positions; i += step) {
            const double value = double(Real(dout_ptr[plane * positions + i]));
            const Word bits = Word(__double_as_longlong(value)) & 0x7FFFFFFFFFFFFFFFull;
            if (bits < 0x7FF0000000000000ull && bits > own) own = bits;
        }
        most[threadIdx.x] = own;
        __syncthreads();
        for (unsigned width = 128; width > 0; width /= 2) {
            if (threadIdx.x < width && threadIdx.x + width < blockDim.x && most[threadIdx.x + width] > most[threadIdx.x])
                most[threadIdx.x] = most[threadIdx.x + width];
            __syncthreads();
        }
        if (threadIdx.x == 0) atomicMax(largest_ptr + plane, most[0]);
    }
}

//% endif
//% if entry in (none, "grid_sample_modes_backward_collect_" ~ T.name)
extern "C" __global__ void __launch_bounds__(256, 1)
grid_sample_modes_backward_collect_{{ T.name }}(const Word* sums_ptr, const unsigned* flags_ptr, const Word* largest_ptr,
                                                int places, Element* dinput_ptr, size_t count, size_t plane) {
    const double infinity = __longlong_as_double(0x7FF0000000000000ll);
    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        const Scale scale(largest_ptr[i / plane], places, -1);
        const double high = double((long long)sums_ptr[2 * i]), low = double((long long)sums_ptr[2 * i + 1]);
        double value = fma(low, scale.finer, high) * scale.second * scale.first;
        const unsigned flags = flags_ptr[i];
        if (flags) value = flags == 2 ? infinity : flags == 4 ? -infinity : infinity - infinity;
        dinput_ptr[i] = Element(Real(value));
    }
}
//% endif
//% if T.size == 2 and entry in (none, "grid_sample_modes_backward_round_" ~ T.name)
extern "C" __global__ void __launch_bounds__(256, 1)
grid_sample_modes_backward_round_{{ T.name }}(const Real* sums_ptr, Element* dinput_ptr, size_t count) {
    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
        dinput_ptr[i] = Element(sums_ptr[i]);
}
//% endif
