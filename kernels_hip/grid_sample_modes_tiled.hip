// grid_sample_modes_tiled, {{ T.name }}: grid_sample of bicubic images, with its taps in shared memory.
//
// grid_sample_modes.hip has the formulas. A block takes a tile of the result, 32 points wide, a thread each, and a part
// of the channels. The taps of its points lie in a box of the image. For four channels at a time the box is in shared
// memory, a cell of the four a pixel, with zeros for what is outside of the image: one load gives a tap of four
// channels. As many such boxes as fit are there at once. A box that is too large is cut to its middle. Points that have
// taps outside of it, and those that the padding folds, are read from global memory.
//
// {{ 32 // T.size }} lanes read a cell each at a time, of pixels that lie anywhere. So that they never meet in a bank, a box is
// made of bricks of 4 x {{ 8 // T.size }} pixels, which have all the banks, and a lane begins with that column and line
// whose place in a brick its own number says: the others follow by an exclusive or, the same for all lanes. A sum must
// not depend on who begins where. It is of rounded products, and its pairs are columns 2 i and 2 i + 1 of the image,
// then the pairs of these, then lines likewise: either one of a pair may come first. These are the bits of the twin in
// PTX; grid_sample_modes.hip adds up in another order.
//
// Launch: grid (tiles, parts of the channels, images), up to 256 threads, a multiple of 32; a tile is threads / 32
// high. There is shared memory for `space` cells, of which a box has at most `most`: 64 or more, and up to four a
// thread. A block takes `part` channels, a multiple of 4. x is contiguous, and a plane has fewer than 2^30 pixels.

//% include "elements.jinja"

//% include "grid_sample_modes_parts.jinja"

typedef Point<4, 2> Cubic;

constexpr int SPACE = (15 << 10) / (4 * sizeof(Element));
constexpr int ACROSS = 4, DOWN = 8 / sizeof(Element), BRICK = ACROSS * DOWN;
constexpr int EACH = 4;  // cells of a box that a thread fills
constexpr unsigned NOWHERE = ~0u;

// Four channels of a pixel.
struct alignas(4 * sizeof(Element)) Cell {
    Element channels[4];
};

// A product that is rounded before it is added to something. Not by fmaf(a, b, -0.0f), of which AMD's compiler makes a * b
// again, and then one fma with the sum; nor by fmaf(a, b, 0.0f), as in pairs.jinja, by which -0 would be 0.
__device__ inline Real product(Real a, Real b) {
#ifdef __HIP_PLATFORM_NVIDIA__
    return __fmul_rn(a, b);
#else
#pragma clang fp contract(off)
    return a * b;
#endif
}

__device__ inline Real sum_of_four(const Real* values, const Real* weights) {
    return (product(values[0], weights[0]) + product(values[1], weights[1])) +
           (product(values[2], weights[2]) + product(values[3], weights[3]));
}

// The four taps of an axis in the order in which this lane takes them: first the one whose pixel's number modulo 4 is
// the lane's kind, then those of kind ^ 1, kind ^ 2 and kind ^ 3.
struct Taps {
    int first, kind;  // of the four pixels; of the lane
    Real weight[4];
    int at[4];  // how many bytes behind the first cell of the box

    __device__ Taps() {}

    __device__ Taps(const Axis<4>& axis, int kind) : first(axis.first), kind(kind) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const Real even = tap(k) & 2 ? axis.weight[2] : axis.weight[0];
            const Real odd = tap(k) & 2 ? axis.weight[3] : axis.weight[1];
            weight[k] = tap(k) & 1 ? odd : even;
        }
    }

    __device__ int tap(int k) const { return ((kind ^ k) - first) & 3; }
    __device__ int pixel(int k) const { return first + tap(k); }
};

// A box of the image: where it begins, and how large it is.
struct Box {
    int x, y, columns, lines;

    __device__ int area() const { return columns * lines; }

    __device__ bool holds(int first_x, int first_y) const {
        return first_x >= x && first_x + 4 <= x + columns && first_y >= y && first_y + 4 <= y + lines;
    }

    // From the greatest -x, -y, x and y of first pixels; of no pixels if there are none, or too little of it fits.
    __device__ Box(const int* bounds, int most) : x(-bounds[0]), y(-bounds[1]), columns(0), lines(0) {
        const unsigned width = unsigned(bounds[2]) - x + 4, height = unsigned(bounds[3]) - y + 4;
        if (bounds[2] < x || width > 0xFFFF || height > 0xFFFF || width * height / 4 > unsigned(most)) return;
        columns = int(width + ACROSS - 1) & -ACROSS;
        lines = int(height + DOWN - 1) & -DOWN;
        const int all_columns = columns, all_lines = lines;
        while (area() > most) {  // to its middle
            columns = max(columns - 4, 4);
            lines = max(lines - 4, 4);
        }
        x += (all_columns - columns) / 2;
        y += (all_lines - lines) / 2;
    }
};

// Where a pixel is in a plane.
__device__ inline unsigned place(int x, int y, const Image& image) {
    const bool inside = unsigned(x) < unsigned(image.width) && unsigned(y) < unsigned(image.height);
    return inside ? unsigned(y) * image.width + x : NOWHERE;
}

// A tile of the result: where it begins.
struct Tile {
    int x, y;

    __device__ int column(int thread) const { return x + thread % 32; }
    __device__ int line(int thread) const { return y + thread / 32; }
};

// The second tap and the last one change places where the first one is at an odd pixel: pairs begin at even ones.
template <typename T>
__device__ inline void pair(T* values, int first) {
    const T second = values[1];
    const bool odd = first & 1;
    values[1] = odd ? values[3] : second;
    values[3] = odd ? second : values[3];
}

// A point from global memory, in every `step`th of some channels.
__device__ inline void sample(const Element* __restrict__ plane, Cubic p, const Image& image, Element* __restrict__ to,
                              int channels, int step) {
    pair(p.x.at, p.x.first);
    pair(p.x.weight, p.x.first);
    pair(p.y.at, p.y.first);
    pair(p.y.weight, p.y.first);
    unsigned from[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) from[i] = place(p.x.at[i % 4], p.y.at[i / 4], image);
    for (; channels > 0; channels -= step) {
        Real values[16], lines[4];
#pragma unroll
        for (int i = 0; i < 16; ++i) values[i] = from[i] == NOWHERE ? Real(0) : Real(plane[from[i]]);
#pragma unroll
        for (int i = 0; i < 4; ++i) lines[i] = sum_of_four(values + 4 * i, p.x.weight);
        *to = Element(sum_of_four(lines, p.y.weight));
        plane += step * image.channel_stride;
        to += step * image.positions;
    }
}

__device__ void sample_tile(const Element* __restrict__ input, const Element* __restrict__ grid,
                            Element* __restrict__ output, const Image& image, int ow, int oh, int space, int most,
                            int part) {
    __shared__ Cell cells[SPACE];
    __shared__ int bounds[4], count;
    __shared__ unsigned short strays[256];  // threads whose points the box does not hold
    const int thread = threadIdx.x, threads = blockDim.x, tiles = (ow - 1) / 32 + 1, n = blockIdx.z;
    const Tile tile{int(blockIdx.x) % tiles * 32, int(blockIdx.x) / tiles * (threads / 32)};
    const auto position = [&](int own) { return size_t(tile.line(own)) * ow + tile.column(own); };
    const auto point = [&](int own) { return Cubic(grid + 2 * (n * image.positions + position(own)), image); };
    const bool there = tile.column(thread) < ow && tile.line(thread) < oh;

    // The box of the points that have taps in the image, and no folded one: their first ones are outside by up to 3
    // pixels where padding is zeros.
    const int before = image.padding.kind ? 0 : 3, none = -0x7FFFFFFF;
    if (thread < 4) bounds[thread] = none;
    if (thread == 0) count = 0;
    __syncthreads();
    Taps x, y;
    bool held = false;
    if (there) {
        const Cubic p = point(thread);
        x = Taps(p.x, thread & (ACROSS - 1));
        y = Taps(p.y, thread / ACROSS & (DOWN - 1));
        held = unsigned(x.first + before) < unsigned(max(image.width + 2 * before - 3, 0)) &&
               unsigned(y.first + before) < unsigned(max(image.height + 2 * before - 3, 0));
    }
    atomicMax(bounds, held ? -x.first : none);
    atomicMax(bounds + 1, held ? -y.first : none);
    atomicMax(bounds + 2, held ? x.first : none);
    atomicMax(bounds + 3, held ? y.first : none);
    __syncthreads();
    const Box box(bounds, most);
    held = held && box.holds(x.first, y.first);
    if (there && !held) strays[atomicAdd(&count, 1)] = thread;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int across = x.pixel(k) - box.x, down = y.pixel(k) - box.y;
        x.at[k] = (across / ACROSS * BRICK + across % ACROSS) * int(sizeof(Cell));
        y.at[k] = (down / DOWN * DOWN * box.columns + down % DOWN * ACROSS) * int(sizeof(Cell));
    }

    // Where this thread's cells are in a plane.
    const int area = box.area(), fitting = area ? space / area : 0;
    unsigned from[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int item = thread + i * threads, brick = item / BRICK, bricks = max(box.columns / ACROSS, 1);
        const int at_x = box.x + brick % bricks * ACROSS + item % ACROSS;
        const int at_y = box.y + brick / bricks * DOWN + item / ACROSS % DOWN;
        from[i] = item < area ? place(at_x, at_y, image) : NOWHERE;
    }

    // Behind the last channel it is read, and written, again: to leave that out would take branches.
    const int first = blockIdx.y * part, last = min(first + part, int(image.c)), bytes = area * int(sizeof(Cell));
    const Element* const planes = input + n * image.image_stride + first * image.channel_stride;
    Element* const results = output + (size_t(n) * image.c + first) * image.positions;
    const char* const shared = reinterpret_cast<const char*>(cells);
    const Element* plane = planes;
    Element* to = results + position(thread);
    for (int left = area ? last - first : 0; left > 0; left -= 4 * fitting) {
        const int boxes = min(fitting, (left + 3) / 4);
        __syncthreads();  // the boxes before have been read
        for (int b = 0; b < boxes; ++b) {
            Element read[EACH][4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
#pragma unroll
                for (int i = 0; i < EACH; ++i)
                    read[i][k] = from[i] == NOWHERE ? Element(0.0f) : plane[from[i]];
                if (4 * b + k + 1 < left) plane += image.channel_stride;
            }
#pragma unroll
            for (int i = 0; i < EACH; ++i)
                if (thread + i * threads < area)
                    cells[b * area + thread + i * threads] = {{ "{{" }}read[i][0], read[i][1], read[i][2], read[i][3]}};
        }
        __syncthreads();
        if (!held) continue;
        for (int b = 0; b < boxes; ++b) {
            Real lines[4][4];  // of each channel
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                Cell taps[4];
#pragma unroll
                for (int k = 0; k < 4; ++k)
                    taps[k] = *reinterpret_cast<const Cell*>(shared + (y.at[j] + x.at[k]));
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    const Real values[4] = {Real(taps[0].channels[k]), Real(taps[1].channels[k]),
                                            Real(taps[2].channels[k]), Real(taps[3].channels[k])};
                    lines[k][j] = sum_of_four(values, x.weight);
                }
                y.at[j] += bytes;  // on to the next box: a sum that no box changes would be kept in a register
            }
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                *to = Element(sum_of_four(lines[k], y.weight));
                if (4 * b + k + 1 < left) to += image.positions;
            }
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) y.at[j] -= boxes * bytes;
    }

    // The points that the box does not hold. Where they are few, several threads share the channels of one.
    __syncthreads();
    const int channels = last - first, share = min(max(threads / max(count, 1), 1), channels);
    for (int i = thread; i < count * share; i += threads) {
        const int own = strays[i % count], begin = i / count;
        sample(planes + begin * image.channel_stride, point(own), image,
               results + begin * image.positions + position(own), channels - begin, share);
    }
}

extern "C" __global__ void __launch_bounds__(256, 3) grid_sample_modes_tiled_bicubic_{{ T.name }}(
    const Element* input_ptr, const Element* grid_ptr, Element* output_ptr, int space, int most, int part, int n, int c,
    int ih, int iw, int oh, int ow, unsigned padding, unsigned align, size_t image_stride, size_t channel_stride,
    size_t row_stride, size_t column_stride) {
    const Image image{unsigned(n), unsigned(c), 0, ih, iw, size_t(oh) * ow, {padding, align != 0},
                      image_stride, channel_stride, 0, row_stride, column_stride};
    sample_tile(input_ptr, grid_ptr, output_ptr, image, ow, oh, space, most, part);
}
