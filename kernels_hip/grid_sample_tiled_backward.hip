// grid_sample_tiled_backward, {{ T.name }}: the gradients of grid_sample.hip and of bilinear images in grid_sample_modes.hip, for few
// channels, in shared memory.
//
// The twin in PTX explains it; here a thread has 4 points, and shared memory the box of up to 5952 pixels. grad_input is added up
// with float atomics: its last bits differ from run to run, and denormals may count as 0. A point's sum of grad_grid is over
// the channels in their order: the same bits on every run.
//
//   backward: both gradients; the sums, [N, C, IH, IW] of float, must be zeros. Grid (tiles, 1, images), 32 to 512 threads, a
//     multiple of 32 << wide. A tile is 32 << wide points wide and 4 * (threads / 32 >> wide) high. Of the box there are up to
//     `space` pixels; one that does not fit is cut to `side` columns, or to more where it has few rows, and then to the rows
//     that fit. space is a multiple of 4, side one of 4 but not of 8.
//   collect: grad_input from those sums, rounded. Grid (count / 1024 rounded up), 256 threads.

//% include "elements.jinja"

//% include "grid_sample_modes_parts.jinja"

const int POINTS = 4, MOST = 5952;

// A point: the lower one of its pixels along each axis, and the weight of the other one.
struct Corner {
    int x, y;
    float hx, hy, mx, my;
    bool touches;

    __device__ Corner(const Element* g, const Image& image) {
        const Point<2, 2> p(g, image);
        touches = p.touches();
        x = p.x.at[1] >= 0 ? p.x.at[1] - 1 : p.x.at[0];
        y = p.y.at[1] >= 0 ? p.y.at[1] - 1 : p.y.at[0];
        hx = p.x.weight[1];
        hy = p.y.weight[1];
        mx = p.x.m;
        my = p.y.m;
    }
};

// What a channel adds for a point: to grad_input at A, B, C and D, and to grad_grid, whose sums these are.
struct Parts {
    float a, b, c, d;

    __device__ Parts(float go, float hx, float hy) {
        const float row_of_a = (1.0f - hy) * go, row_of_c = hy * go;
        a = row_of_a * (1.0f - hx);
        b = row_of_a * hx;
        c = row_of_c * (1.0f - hx);
        d = row_of_c * hx;
    }
};

struct Slopes {
    float x, y;

    __device__ void add(float go, float a, float b, float c, float d, float hx, float hy) {
        x = multiply_add(go, multiply_add(d - c, hy, (b - a) * (1.0f - hy)), x);
        y = multiply_add(go, multiply_add(d - b, hx, (c - a) * (1.0f - hx)), y);
    }
};

// This thread's pixels of a box, row by row: work(item, y, x).
template <typename Work>
__device__ inline void each_pixel(int columns, int area, Work work) {
    const int threads = blockDim.x, down = threads / columns, along = threads % columns;
    int y = threadIdx.x / columns, x = threadIdx.x % columns;
    for (int item = threadIdx.x; item < area; item += threads) {
        work(item, y, x);
        y += down;
        x += along;
        if (x >= columns) {
            x -= columns;
            ++y;
        }
    }
}

// Of 16 bits AMD's compiler has no registers for two blocks at a time, nor NVIDIA's before sm_90; where it has, one is much slower.
#if {{ "1" if T.size != 2 else "__CUDA_ARCH__ >= 900" }}
constexpr int AT_ONCE = 2;
#else
constexpr int AT_ONCE = 1;
#endif

extern "C" __global__ void __launch_bounds__(512, AT_ONCE) grid_sample_tiled_backward_{{ T.name }}(
    const Element* dout_ptr, const Element* input_ptr, const Element* grid_ptr, float* sums_ptr, Element* dgrid_ptr, int wide,
    int space, int side, unsigned padding, unsigned align, int n, int c, int ih, int iw, int oh, int ow) {
    __shared__ float values[MOST], sums[MOST];
    __shared__ int bounds[4];  // the greatest -x, -y, x and y
    __shared__ unsigned totals[3];  // of x and y, and how many there are
    const size_t positions = size_t(oh) * ow, plane = size_t(ih) * iw;
    const Image image{unsigned(n), unsigned(c), 0, ih, iw, positions, {padding, align != 0}, 0, 0, 0, 0, 0};
    const int none = -0x7FFFFFFF, thread = threadIdx.x, threads = blockDim.x, warp = thread / 32;
    const int step = threads / 32 >> wide, tiles = (ow + (32 << wide) - 1) / (32 << wide);
    const int column = (blockIdx.x % tiles << wide | (warp & ((1 << wide) - 1))) * 32 + thread % 32;
    const int line = blockIdx.x / tiles * step * POINTS + (warp >> wide);
    const int count = column < ow && line < oh ? min((oh - line + step - 1) / step, POINTS) : 0;
    const size_t first = size_t(line) * ow + column, apart = size_t(step) * ow;
    const Element* const points = grid_ptr + 2 * (blockIdx.z * positions + first);

    // The box, an odd number of times 4 wide, so that the next row has other banks.
    if (thread < 4) bounds[thread] = none;
    if (thread < 3) totals[thread] = 0;
    __syncthreads();
    int most[4] = {none, none, none, none};
    unsigned total[3] = {};
    for (int p = 0; p < count; ++p) {
        const Corner corner(points + 2 * p * apart, image);
        if (!corner.touches) continue;
        most[0] = max(most[0], -corner.x);
        most[1] = max(most[1], -corner.y);
        most[2] = max(most[2], corner.x);
        most[3] = max(most[3], corner.y);
        total[0] += corner.x;
        total[1] += corner.y;
        ++total[2];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) atomicMax(bounds + i, most[i]);
#pragma unroll
    for (int i = 0; i < 3; ++i) atomicAdd(totals + i, total[i]);
    __syncthreads();
    int left = 0, top = 0, columns = 4, rows = 0;
    if (bounds[0] != none) {
        left = -bounds[0] & -4;
        top = -bounds[1];
        const long long across = (bounds[2] - left + 5 | 4) & -4, down = bounds[3] - top + 2;
        if (across * down <= space) {
            columns = int(across);
            rows = int(down);
        } else if (across * down <= 4ll * space) {  // what is round the mean
            const int all = int(totals[2]), x = int(totals[0]) / all, y = int(totals[1]) / all;
            columns = int(min(max((space / down - 4 | 4) & -4, (long long)side), across));
            left = min(max(left, x - columns / 2 + 1), left + int(across) - columns) & -4;
            rows = int(min((long long)(space / columns), down));
            top = min(max(top, y - rows / 2 + 1), top + int(down) - rows);
        }
    }
    const int area = columns * rows;

    // Where points begin, and in the last bits whether B is the pixel before A, and C the one above.
    int at[POINTS];
    float hx[POINTS], hy[POINTS];
    Slopes slopes[POINTS] = {};
    unsigned strays = 0;
#pragma unroll
    for (int p = 0; p < POINTS; ++p) {
        at[p] = -1;
        if (p >= count) continue;
        const Corner corner(points + 2 * p * apart, image);
        int x = corner.x - left, y = corner.y - top;
        if (!corner.touches) continue;
        if (x < 0 || y < 0 || x >= columns - 1 || y >= rows - 1) {
            strays |= 1u << p;
            continue;
        }
        const int before = (x ^ thread) & 1;
        x += before;
        const int above = ((x >> 2) + y ^ thread >> 1) & 1;
        y += above;
        hx[p] = before ? 1.0f - corner.hx : corner.hx;
        hy[p] = above ? 1.0f - corner.hy : corner.hy;
        at[p] = (y * columns + x) * 4 + above * 2 + before;
    }

    for (int channel = 0; area && channel < c; ++channel) {
        const size_t picture = size_t(blockIdx.z) * c + channel;
        float go[POINTS];
#pragma unroll
        for (int p = 0; p < POINTS; ++p)
            go[p] = at[p] < 0 ? 0.0f : float(dout_ptr[picture * positions + first + p * apart]);
        const Element* const from = input_ptr + picture * plane;
        float* const to = sums_ptr + picture * plane;
        each_pixel(columns, area, [=](int item, int row, int place) {
            const int y = row + top, x = place + left;
            const bool inside = unsigned(y) < unsigned(ih) && unsigned(x) < unsigned(iw);
            values[item] = inside ? float(from[size_t(y) * iw + x]) : 0.0f;
            sums[item] = 0.0f;
        });
        __syncthreads();
#pragma unroll
        for (int p = 0; p < POINTS; ++p) {
            if (at[p] < 0) continue;
            const int a = at[p] >> 2, b = at[p] & 1 ? a - 1 : a + 1, down = at[p] & 2 ? -columns : columns;
            const Parts parts(go[p], hx[p], hy[p]);
            atomicAdd(sums + a, parts.a);
            atomicAdd(sums + b, parts.b);
            atomicAdd(sums + a + down, parts.c);
            atomicAdd(sums + b + down, parts.d);
            slopes[p].add(go[p], values[a], values[b], values[a + down], values[b + down], hx[p], hy[p]);
        }
        __syncthreads();
        each_pixel(columns, area, [=](int item, int row, int place) {
            const int y = row + top, x = place + left;
            const float sum = sums[item];
            if (sum != 0.0f && unsigned(y) < unsigned(ih) && unsigned(x) < unsigned(iw))
                atomicAdd(to + (size_t(y) * iw + x), sum);
        });
        __syncthreads();
    }

#pragma unroll
    for (int p = 0; p < POINTS; ++p) {
        if (p >= count) continue;
        const Corner corner(points + 2 * p * apart, image);
        const bool stray = strays >> p & 1, before = at[p] >= 0 && at[p] & 1, above = at[p] >= 0 && at[p] & 2;
        if (stray) {
            const bool x0 = corner.x >= 0, x1 = corner.x + 1 < iw, y0 = corner.y >= 0, y1 = corner.y + 1 < ih;
            const long long place = (long long)corner.y * iw + corner.x;
            for (int channel = 0; channel < c; ++channel) {
                const size_t picture = size_t(blockIdx.z) * c + channel;
                const Element* const from = input_ptr + picture * plane + place;
                float* const to = sums_ptr + picture * plane + place;
                const float go = float(dout_ptr[picture * positions + first + p * apart]);
                const Parts parts(go, corner.hx, corner.hy);
                if (x0 && y0) atomicAdd(to, parts.a);
                if (x1 && y0) atomicAdd(to + 1, parts.b);
                if (x0 && y1) atomicAdd(to + iw, parts.c);
                if (x1 && y1) atomicAdd(to + iw + 1, parts.d);
                slopes[p].add(go, x0 && y0 ? float(from[0]) : 0.0f, x1 && y0 ? float(from[1]) : 0.0f,
                              x0 && y1 ? float(from[iw]) : 0.0f, x1 && y1 ? float(from[iw + 1]) : 0.0f, corner.hx, corner.hy);
            }
        }
        Element* const to = dgrid_ptr + 2 * (blockIdx.z * positions + first + p * apart);
        to[0] = Element(slopes[p].x * (before ? -corner.mx : corner.mx));
        to[1] = Element(slopes[p].y * (above ? -corner.my : corner.my));
    }
}
//% if T.size == 2

extern "C" __global__ void __launch_bounds__(256, 1)
grid_sample_tiled_backward_collect_{{ T.name }}(const float* sums_ptr, Element* dinput_ptr, size_t count) {
    const size_t first = size_t(blockIdx.x) * 1024 + threadIdx.x;
    for (size_t item = first; item < count && item < first + 1024; item += 256) dinput_ptr[item] = Element(sums_ptr[item]);
}
//% endif
