// grid_sample, {{ T.name }}: bilinear, zeros outside of the image, align_corners = false.
//
//   s_x = ((g_x + 1) * IW - 1) / 2,   x0 = floor(s_x),   x1 = x0 + 1,   wx1 = s_x - x0,   wx0 = 1 - wx1;   y likewise
//   y[n,c,p]           = wy0*wx0*v00 + wy0*wx1*v01 + wy1*wx0*v10 + wy1*wx1*v11,   v_jk = x[n,c,y_j,x_k]
//   grad_input[n,c,y_j,x_k] += go[n,c,p] * wy_j * wx_k
//   grad_grid[n,p].x   = IW/2 * sum_c go[n,c,p] * (wy0*(v01 - v00) + wy1*(v11 - v10))
//   grad_grid[n,p].y   = IH/2 * sum_c go[n,c,p] * (wx0*(v10 - v00) + wx1*(v11 - v01))
//
// p is a position of the OH x OW. Each corner is inside or not by itself; one outside is read as 0, never from memory.
// A coordinate that is below -1, at or past the image's length, infinite or not a number has no corner inside, and its
// weights are finite: its result is 0. A corner inside counts with a weight of 0 too (infinity there gives NaN, as in
// PyTorch).
//
// All arithmetic is in {{ R.name }}{{ ", and each result is rounded to " ~ T.name ~ " once" if T.size == 2 }}. Every product that is added to
// something is written as fma, but for that with a half, which is exact: contraction changes no bit, and results have the
// bits of the PTX twin.
//% if T.size > 2
// grad_input is added up with float atomics: the order in which a pixel gets its parts, and so its last bits, differ from
// run to run, and in f32 denormals may count as 0.
//% endif
//
// No kernel knows how wide a wave is. The 32 is a width in positions, which the launches agree on.

//% include "elements.jinja"

//% include "grid_sample_parts.jinja"

// y. Launch: any grid (for OH*OW, parts of the channels, images), up to 256 threads. A thread takes one position, and those
// of the blocks gridDim.x, 2 * gridDim.x, ... further. In a result of at least 32 rows of 128, a block is a tile 32 wide
// and as high as its threads allow, if they are whole rows of it: what neighbouring rows read of the image is still in the
// cache then. Of each image blockIdx.z, blockIdx.z + gridDim.z, ... a block takes part blockIdx.y of the channels, equal
// parts of a multiple of 4.
// ABI: (input_ptr, grid_ptr, output_ptr, i32 n, i32 c, i32 ih, i32 iw, i32 oh, i32 ow).
__device__ void sample(const Element* __restrict__ input, const Element* __restrict__ grid,
                       Element* __restrict__ output, unsigned n, unsigned c, int ih, int iw, unsigned oh, unsigned ow) {
    // Its block's channels: first up to last.
    const unsigned part = ((c + gridDim.y - 1) / gridDim.y + 3) / 4 * 4;
    const unsigned first = blockIdx.y * part, last = min(first + part, c);  // at most c + 4 * gridDim.y

    const unsigned threads = blockDim.x, tiles = (ow + 31) / 32, height = threads / 32;  // in a row of tiles; of a tile
    const bool tiled = threads % 32 == 0 && oh >= 32 && ow >= 128;
    const size_t plane = size_t(ih) * iw, positions = size_t(oh) * ow;
    const size_t blocks = tiled ? size_t(tiles) * ((oh + height - 1) / height) : (positions + threads - 1) / threads;
    for (unsigned image = blockIdx.z; image < n; image += gridDim.z) {
        for (size_t block = blockIdx.x; block < blocks; block += gridDim.x) {
            // This thread's position.
            size_t position = block * threads + threadIdx.x;
            bool past = position >= positions;
            if (tiled) {
                const size_t column = block % tiles * 32 + threadIdx.x % 32;
                const size_t row = block / tiles * height + threadIdx.x / 32;
                position = row * ow + column;
                past = row >= oh || column >= ow;
            }
            if (past) continue;

            const Point p(grid + 2 * (image * positions + position), ih, iw);
            const size_t k = size_t(image) * c + first;
            const Element* from = input + k * plane;
            Element* to = output + k * positions + position;
            for (unsigned channel = first; channel < last; ++channel, from += plane, to += positions) {
                const Values v(from, p);
                Real sum = v.v00 * p.weight00;
                sum = multiply_add(v.v01, p.weight01, sum);
                sum = multiply_add(v.v10, p.weight10, sum);
                *to = Element(multiply_add(v.v11, p.weight11, sum));
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) grid_sample_{{ T.name }}(
    const Element* input_ptr, const Element* grid_ptr, Element* output_ptr, int n, int c, int ih, int iw, int oh,
    int ow) {
    sample(input_ptr, grid_ptr, output_ptr, n, c, ih, iw, oh, ow);
}

// y of channels-last x. Launch: 256 threads, n * ceil(ow / width) * ceil(oh / height) blocks along x and any number along y. A
// block takes a tile of 32 points, width = 2^shift wide and height = 32 / width high, and of its channels each {{ 128 // T.size }}th part
// blockIdx.y, + gridDim.y, ... Eight threads take a point, each {{ 16 // T.size }} channels, and put results into shared memory; then 32
// threads write 32 points of a channel. Parts have two places in turn, so that one barrier a part will do.
// ABI: (input_ptr, grid_ptr, output_ptr, i32 shift, i32 n, i32 c, i32 ih, i32 iw, i32 oh, i32 ow).
constexpr unsigned VECTOR = 16 / sizeof(Element), PART = 8 * VECTOR;

template <bool ALIGNED>
struct alignas(ALIGNED ? 16 : sizeof(Element)) Channels {
    Element values[VECTOR];
};

// A tile's point: where it is in the result.
struct Target {
    size_t position;
    bool inside;

    __device__ Target(unsigned point, unsigned tile, unsigned across, unsigned shift, unsigned oh, unsigned ow) {
        const unsigned x = (tile % across << shift) + (point & ((1u << shift) - 1));
        const unsigned y = (tile / across << (5 - shift)) + (point >> shift);
        inside = x < ow && y < oh;
        position = inside ? size_t(y) * ow + x : 0;
    }
};

template <bool ALIGNED>
__device__ inline Channels<ALIGNED> at(const Element* from, bool inside) {
    Channels<ALIGNED> found;
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) found.values[i] = Element(Real(0));
    if (inside) found = *reinterpret_cast<const Channels<ALIGNED>*>(from);
    return found;
}

template <bool ALIGNED>
__device__ inline void weigh(Real (&y)[VECTOR], const Element* corner, size_t c, const Point& p, bool there) {
    const auto v00 = at<ALIGNED>(corner, there && p.inside00);
    const auto v01 = at<ALIGNED>(corner + c, there && p.inside01);
    const auto v10 = at<ALIGNED>(corner + p.width * c, there && p.inside10);
    const auto v11 = at<ALIGNED>(corner + (p.width + 1) * c, there && p.inside11);
#pragma unroll
    for (unsigned i = 0; i < VECTOR; ++i) {
        Real sum = Real(v00.values[i]) * p.weight00;
        sum = multiply_add(Real(v01.values[i]), p.weight01, sum);
        sum = multiply_add(Real(v10.values[i]), p.weight10, sum);
        y[i] = multiply_add(Real(v11.values[i]), p.weight11, sum);
    }
}

extern "C" __global__ void __launch_bounds__(256) grid_sample_last_{{ T.name }}(
    const Element* __restrict__ input_ptr, const Element* __restrict__ grid_ptr, Element* __restrict__ output_ptr,
    int shift, int n, int c, int ih, int iw, int oh, int ow) {
    __shared__ Real results[2][PART][33];
    const unsigned across = (unsigned(ow - 1) >> shift) + 1, down = (unsigned(oh - 1) >> (5 - shift)) + 1;
    const unsigned image = blockIdx.x / (across * down), tile = blockIdx.x % (across * down);
    const unsigned point = threadIdx.x / 8, lane = threadIdx.x % 8, written = threadIdx.x % 32, row = threadIdx.x / 32;
    const Target own(point, tile, across, shift, oh, ow), target(written, tile, across, shift, oh, ow);
    const size_t plane = size_t(ih) * iw, positions = size_t(oh) * ow;

    const Point p(grid_ptr + 2 * (image * positions + own.position), ih, iw);
    const Element* const corner = input_ptr + (long long)(image * plane + p.corner) * c;
    const bool aligned = size_t(input_ptr) % 16 == 0;
    unsigned place = 0;
    for (size_t first = size_t(blockIdx.y) * PART; first < c; first += size_t(gridDim.y) * PART, place ^= 1) {
        const size_t channel = first + lane * VECTOR;
        Real y[VECTOR];
        if (aligned) weigh<true>(y, corner + channel, c, p, channel < c);
        else weigh<false>(y, corner + channel, c, p, channel < c);
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) results[place][lane * VECTOR + i][point] = y[i];
        __syncthreads();
#pragma unroll
        for (unsigned i = row; i < PART; i += 8) {
            if (target.inside && first + i < c)
                output_ptr[(image * size_t(c) + first + i) * positions + target.position] = Element(results[place][i][written]);
        }
    }
}
//% if T.size > 2

// Both gradients; grad_input must be zeros. Launch: any grid, its blocks counted along x, then y, then z; 32 to 256 threads,
// of which the first 32 * slices work. A block takes 32 positions of an image, and those as many further as there are
// blocks. Thread t takes position t % 32 of these and slice t / 32 of the channels: that one, + slices, ... The sum of
// grad_grid is that of the slices' sums, in their order.
// ABI: (dout_ptr, input_ptr, grid_ptr, dinput_ptr, dgrid_ptr, i32 n, i32 c, i32 ih, i32 iw, i32 oh, i32 ow).
__device__ void gradients(const Real* __restrict__ dout, const Real* __restrict__ input, const Real* __restrict__ grid,
                          Real* __restrict__ dinput, Real* __restrict__ dgrid, unsigned n, unsigned c, int ih, int iw,
                          unsigned oh, unsigned ow) {
    __shared__ Real sums_x[256], sums_y[256];

    const size_t plane = size_t(ih) * iw, positions = size_t(oh) * ow;
    const unsigned slice = threadIdx.x / 32, slices = max(blockDim.x / 32, 1u);

    // This block's units: tiles of 32 positions, one image's after the other's.
    const size_t tiles = (positions + 31) / 32, units = n * tiles;
    const size_t first = blockIdx.x + size_t(gridDim.x) * (blockIdx.y + gridDim.y * blockIdx.z);
    for (size_t unit = first; unit < units; unit += size_t(gridDim.x) * (gridDim.y * gridDim.z)) {
        const size_t image = unit / tiles, position = unit % tiles * 32 + threadIdx.x % 32;
        const bool past = position >= positions || slice >= slices;
        const size_t place = 2 * (image * positions + position);
        Real sum_x = Real(0), sum_y = Real(0);

        // This slice's channels: each gives its part to the pixels, and its slopes to the sums.
        if (!past) {
            const Point p(grid + place, ih, iw);
            for (unsigned channel = p.touches_the_image() ? slice : c; channel < c; channel += slices) {
                const size_t k = image * c + channel;
                const Real go = dout[k * positions + position];
                const Values v(input + k * plane, p);
                Real* const corner = dinput + k * plane + p.corner;
                if (p.inside00) atomicAdd(corner, go * p.weight00);
                if (p.inside01) atomicAdd(corner + 1, go * p.weight01);
                if (p.inside10) atomicAdd(corner + p.width, go * p.weight10);
                if (p.inside11) atomicAdd(corner + p.width + 1, go * p.weight11);
                v.add_slopes(go, p, sum_x, sum_y);
            }
        }

        // The block: of each position the sums of its slices, added by the thread of the first.
        sums_x[threadIdx.x] = sum_x;
        sums_y[threadIdx.x] = sum_y;
        __syncthreads();
        if (slice == 0 && !past) {
            for (unsigned other = 1; other < slices; ++other) {
                sum_x += sums_x[32 * other + threadIdx.x];
                sum_y += sums_y[32 * other + threadIdx.x];
            }
            dgrid[place] = sum_x * (Real(iw) * Real(0.5));
            dgrid[place + 1] = sum_y * (Real(ih) * Real(0.5));
        }
        __syncthreads();  // before the next unit's sums
    }
}

extern "C" __global__ void __launch_bounds__(256) grid_sample_backward_{{ T.name }}(
    const Real* dout_ptr, const Real* input_ptr, const Real* grid_ptr, Real* dinput_ptr, Real* dgrid_ptr, int n, int c,
    int ih, int iw, int oh, int ow) {
    gradients(dout_ptr, input_ptr, grid_ptr, dinput_ptr, dgrid_ptr, n, c, ih, iw, oh, ow);
}
//% endif
//% if entry in (none, "grid_sample_backward_last_" ~ T.name)

// Both gradients, by way of sums in a workspace whose channels lie side by side: a part for 32 channels of a pixel is then
// one wide addition, not 32. 2^shift lanes, at most 32, serve a chunk of as many channels of a pixel; a pixel of the sums,
// zeros before, has max(c, 2^shift) places. Launch: any one-dimensional grid, 256 threads. These are `groups` sets of 32
// positions times 8 / groups slices of the channels, groups = min(8, 32 / 2^shift); a block takes the positions of its
// sets, and those as many further as there are blocks.
// ABI: grid_sample_backward_{{ T.name }}'s, and before the sizes: sums_ptr; i32 shift. dinput_ptr is not used.
__device__ void gradients_of_sums(const Element* __restrict__ dout, const Element* __restrict__ input,
                                  const Element* __restrict__ grid, Element* __restrict__ dgrid,
                                  Real* __restrict__ sums, unsigned shift, unsigned n, unsigned c, int ih, int iw,
                                  unsigned oh, unsigned ow) {
    __shared__ Real tile[1056];  // dout of a chunk: a row a channel, 32 * groups positions and 1
    __shared__ Real weights[1024], sums_x[256], sums_y[256];
    __shared__ long long corners[256];
    __shared__ unsigned insides[256];  // bit 2j + k: corner jk is inside

    const unsigned lanes = 1u << shift, turns = min(lanes, 4u), high = max(shift, 2u) - 2, slices = 1u << high;
    const unsigned items = 1u << (8 - high), pitch = items + 1;  // positions of a block: 32 * groups
    const unsigned slice = threadIdx.x >> (8 - high), column = threadIdx.x & (items - 1);
    const size_t plane = size_t(ih) * iw, positions = size_t(oh) * ow, stride = max(lanes, c);
    const size_t tiles = (positions + items - 1) / items, units = n * tiles;
    for (size_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const size_t image = unit / tiles, position = unit % tiles * items + column;
        const bool past = position >= positions;
        const size_t place = 2 * (image * positions + (past ? 0 : position));
        const Point p(grid + place, ih, iw);
        const unsigned in_row0 = (p.inside00 ? 1u : 0u) + (p.inside01 ? 2u : 0u);
        const unsigned in_row1 = (p.inside10 ? 4u : 0u) + (p.inside11 ? 8u : 0u);
        const unsigned inside = past ? 0u : in_row0 + in_row1;
        if (slice == 0) {
            insides[column] = inside;
            corners[column] = p.corner;
            weights[4 * column] = p.weight00;
            weights[4 * column + 1] = p.weight01;
            weights[4 * column + 2] = p.weight10;
            weights[4 * column + 3] = p.weight11;
        }
        Real sum_x = Real(0), sum_y = Real(0);
        for (unsigned chunk = 0; chunk < c; chunk += lanes) {
            // Neighbouring threads are positions: each adds up its channels' slopes, and leaves dout in the tile.
//% for k in range(4)
            const unsigned lane{{ k }} = slice + {{ k }} * slices, channel{{ k }} = chunk + lane{{ k }};
            const bool wanted{{ k }} = inside && {{ k }} < turns && channel{{ k }} < c;
            const size_t plane{{ k }} = image * c + channel{{ k }};
            const Real go{{ k }} = wanted{{ k }} ? Real(dout[plane{{ k }} * positions + position]) : Real(0);
            const Values v{{ k }}(input + plane{{ k }} * plane, p, wanted{{ k }});
//% endfor
//% for k in range(4)
            if (wanted{{ k }}) tile[lane{{ k }} * pitch + column] = go{{ k }};
            v{{ k }}.add_slopes(go{{ k }}, p, sum_x, sum_y);
//% endfor
            __syncthreads();

            // Neighbouring threads are channels: each gives one channel of one position to the four pixels.
            for (unsigned item = threadIdx.x; item < items << shift; item += 256) {
                const unsigned point = item >> shift, lane = item & (lanes - 1), corner = insides[point];
                if (chunk + lane >= c || corner == 0) continue;
                const Real go = tile[lane * pitch + point];
                Real* const to = sums + (image * plane + corners[point]) * stride + (chunk + lane);
                const Real* const weight = weights + 4 * point;
                if (corner & 1) atomicAdd(to, go * weight[0]);
                if (corner & 2) atomicAdd(to + stride, go * weight[1]);
                if (corner & 4) atomicAdd(to + iw * stride, go * weight[2]);
                if (corner & 8) atomicAdd(to + (iw + 1) * stride, go * weight[3]);
            }
            __syncthreads();
        }

        // The block: of each position the sums of its slices, added by the thread of the first.
        sums_x[threadIdx.x] = sum_x;
        sums_y[threadIdx.x] = sum_y;
        __syncthreads();
        if (slice == 0 && !past) {
            for (unsigned other = 1; other < slices; ++other) {
                sum_x += sums_x[items * other + threadIdx.x];
                sum_y += sums_y[items * other + threadIdx.x];
            }
            dgrid[place] = Element(sum_x * (Real(iw) * Real(0.5)));
            dgrid[place + 1] = Element(sum_y * (Real(ih) * Real(0.5)));
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 1) grid_sample_backward_last_{{ T.name }}(
    const Element* dout_ptr, const Element* input_ptr, const Element* grid_ptr, Element* dinput_ptr, Element* dgrid_ptr,
    Real* sums_ptr, int shift, int n, int c, int ih, int iw, int oh, int ow) {
    (void)dinput_ptr;
    gradients_of_sums(dout_ptr, input_ptr, grid_ptr, dgrid_ptr, sums_ptr, shift, n, c, ih, iw, oh, ow);
}
//% endif
//% if entry in (none, "grid_sample_backward_collect_" ~ T.name)

// grad_input from those sums{{ ", rounded to " ~ T.name if T.size == 2 }}: by tiles of 2^shift channels and 1024 / 2^shift pixels. Launch: any one-dimensional
// grid, 256 threads; a block takes a tile, and those as many further as there are blocks.
// ABI: (sums_ptr, dinput_ptr, i32 shift, i32 n, i32 c, u64 plane).
__device__ void collect(const Real* __restrict__ sums, Element* __restrict__ dinput, unsigned shift, unsigned n,
                        unsigned c, size_t plane) {
    __shared__ Real tile[1056];  // a row a channel, its pixels and 1

    const unsigned lanes = 1u << shift, pixels = 1u << (10 - shift), pitch = pixels + 1;
    const size_t stride = max(lanes, c), pieces = (plane + pixels - 1) >> (10 - shift);
    const unsigned parts = (c + lanes - 1) >> shift;
    const size_t units = size_t(n) * parts * pieces;
    for (size_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const size_t first = unit % pieces << (10 - shift), image = unit / pieces / parts;
        const unsigned chunk = unsigned(unit / pieces % parts) << shift;
//% for turn in range(4)
        {
            const unsigned place = threadIdx.x + {{ 256 * turn }}, lane = place & (lanes - 1), column = place >> shift;
            const size_t pixel = first + column;
            if (chunk + lane < c && pixel < plane)
                tile[lane * pitch + column] = sums[(image * plane + pixel) * stride + (chunk + lane)];
        }
//% endfor
        __syncthreads();
//% for turn in range(4)
        {
            const unsigned place = threadIdx.x + {{ 256 * turn }}, lane = place >> (10 - shift), column = place & (pixels - 1);
            const size_t pixel = first + column;
            if (chunk + lane < c && pixel < plane)
                dinput[(image * c + (chunk + lane)) * plane + pixel] = Element(tile[lane * pitch + column]);
        }
//% endfor
        __syncthreads();  // before the next tile
    }
}

extern "C" __global__ void __launch_bounds__(256) grid_sample_backward_collect_{{ T.name }}(
    const Real* sums_ptr, Element* dinput_ptr, int shift, int n, int c, size_t plane) {
    collect(sums_ptr, dinput_ptr, shift, n, c, plane);
}
//% endif
