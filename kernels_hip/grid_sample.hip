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

__device__ inline float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double multiply_add(double a, double b, double c) { return fma(a, b, c); }
__device__ inline float round_down(float value) { return floorf(value); }
__device__ inline double round_down(double value) { return floor(value); }

// Along one axis: the lower one of the two pixels round a point, and the weights of both.
struct Axis {
    int low;
    Real low_weight, high_weight;

    __device__ Axis(Real point, int length) {
        Real s = multiply_add(point + Real(1), Real(length), Real(-1)) * Real(0.5);
        // What touches no pixel goes to -2, of which both pixels, -2 and -1, are outside. NaN fails the comparison.
        if (!(s >= Real(-1) && s < Real(length))) s = Real(-2);
        const Real floor_of_s = round_down(s);
        low = int(floor_of_s);
        high_weight = s - floor_of_s;
        low_weight = Real(1) - high_weight;
    }

    // One comparison for both ends: -2 and -1 are huge as unsigned numbers.
    __device__ bool low_inside(int length) const { return unsigned(low) < unsigned(length); }
    __device__ bool high_inside(int length) const { return unsigned(low + 1) < unsigned(length); }
};

// The four corners round a point, jk being row j and column k: whether each is inside, their weights, and the place of
// corner 00 in a plane of the image, from which the others are 1 and `width` away.
struct Point {
    Axis x, y;
    bool inside00, inside01, inside10, inside11;
    Real weight00, weight01, weight10, weight11;
    long long corner;
    long long width;

    __device__ Point(const Element* grid, int ih, int iw) : x(Real(grid[0]), iw), y(Real(grid[1]), ih), width(iw) {
        inside00 = y.low_inside(ih) && x.low_inside(iw);
        inside01 = y.low_inside(ih) && x.high_inside(iw);
        inside10 = y.high_inside(ih) && x.low_inside(iw);
        inside11 = y.high_inside(ih) && x.high_inside(iw);
        weight00 = y.low_weight * x.low_weight;
        weight01 = y.low_weight * x.high_weight;
        weight10 = y.high_weight * x.low_weight;
        weight11 = y.high_weight * x.high_weight;
        corner = y.low * width + x.low;
    }

    __device__ bool touches_the_image() const { return inside00 || inside01 || inside10 || inside11; }
};

// What a plane of the image has at the corners of a point.
struct Values {
    Real v00, v01, v10, v11;

    __device__ Values(const Element* plane, const Point& p) {
        v00 = p.inside00 ? Real(plane[p.corner]) : Real(0);
        v01 = p.inside01 ? Real(plane[p.corner + 1]) : Real(0);
        v10 = p.inside10 ? Real(plane[p.corner + p.width]) : Real(0);
        v11 = p.inside11 ? Real(plane[p.corner + p.width + 1]) : Real(0);
    }
};

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
                const Real along_x = multiply_add(v.v11 - v.v10, p.y.high_weight, (v.v01 - v.v00) * p.y.low_weight);
                const Real along_y = multiply_add(v.v11 - v.v01, p.x.high_weight, (v.v10 - v.v00) * p.x.low_weight);
                sum_x = multiply_add(go, along_x, sum_x);
                sum_y = multiply_add(go, along_y, sum_y);
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
