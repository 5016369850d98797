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
constexpr int TURN = 2;  // pixels of a box that a thread reads at once

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

// The additions to A, B, C and D. NVIDIA's devices have none to shared memory of float: there each is a read and an exchange if
// nobody came between, and the four of a point are on their way together. What came back is looked at last one first: else NVIDIA's
// assembler waits for each before the next exchange.
template <typename Meanwhile>
__device__ inline void add(float* a, float* b, float* c, float* d, const Parts& parts, Meanwhile meanwhile) {
    float* const at[4] = {a, b, c, d};
    const float more[4] = {parts.a, parts.b, parts.c, parts.d};
#ifdef __HIP_PLATFORM_NVIDIA__
    int old[4], found[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) old[i] = *reinterpret_cast<volatile int*>(at[i]);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        found[i] = atomicCAS(reinterpret_cast<int*>(at[i]), old[i], __float_as_int(__int_as_float(old[i]) + more[i]));
    meanwhile();
#pragma unroll
    for (int i = 3; i >= 0; --i)
        if (found[i] != old[i]) atomicAdd(at[i], more[i]);
#else
#pragma unroll
    for (int i = 0; i < 4; ++i) atomicAdd(at[i], more[i]);
    meanwhile();
#endif
}

// This thread's pixels of a box, row by row: this one, and the next one, `threads` further.
struct Walk {
    int x, y;

    __device__ explicit Walk(int columns) : x(threadIdx.x % columns), y(threadIdx.x / columns) {}

    __device__ void next(int columns, int along, int down) {
        y += down;
        x += along;
        if (x >= columns) {
            x -= columns;
            ++y;
        }
    }
};

extern "C" __global__ void __launch_bounds__(512, 2) grid_sample_tiled_backward_{{ T.name }}(
    const Element* dout_ptr, const Element* input_ptr, const Element* grid_ptr, float* sums_ptr, Element* dgrid_ptr, int wide,
    int space, int side, unsigned padding, unsigned align, int n, int c, int ih, int iw, int oh, int ow) {
    __shared__ float values[MOST], sums[MOST];
    __shared__ int bounds[4];  // the greatest -x, -y, x and y
    const size_t positions = size_t(oh) * ow, plane = size_t(ih) * iw;
    const Image image{unsigned(n), unsigned(c), 0, ih, iw, positions, {padding, align != 0}, 0, 0, 0, 0, 0};
    const int none = -0x7FFFFFFF, thread = threadIdx.x, threads = blockDim.x, warp = thread / 32;
    const int step = threads / 32 >> wide, tiles = (ow + (32 << wide) - 1) / (32 << wide);
    const int column = (blockIdx.x % tiles << wide | (warp & ((1 << wide) - 1))) * 32 + thread % 32;
    // A thread's points lie in neighbouring lines: so warps at work on the same one of theirs are far from each other, and seldom
    // want the same pixel.
    const int line = (blockIdx.x / tiles * step + (warp >> wide)) * POINTS;
    const int count = column < ow && line < oh ? min(oh - line, POINTS) : 0;
    const size_t first = size_t(line) * ow + column;
    const Element* const points = grid_ptr + 2 * (blockIdx.z * positions + first);

    // The box, an odd number of times 4 wide, so that the next row has other banks.
    if (thread < 4) bounds[thread] = none;
    __syncthreads();
    int most[4] = {none, none, none, none};
    int xs[POINTS], ys[POINTS], at[POINTS];  // where points begin, at first 0; -1 for one that touches nothing, -2 for one outside of the box
    float hx[POINTS], hy[POINTS];
#pragma unroll
    for (int p = 0; p < POINTS; ++p) {
        at[p] = -1;
        if (p >= count) continue;
        const Corner corner(points + 2 * size_t(p) * ow, image);
        xs[p] = corner.x;
        ys[p] = corner.y;
        hx[p] = corner.hx;
        hy[p] = corner.hy;
        if (!corner.touches) continue;
        at[p] = 0;
        most[0] = max(most[0], -corner.x);
        most[1] = max(most[1], -corner.y);
        most[2] = max(most[2], corner.x);
        most[3] = max(most[3], corner.y);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) atomicMax(bounds + i, most[i]);
    __syncthreads();
    int left = 0, top = 0, columns = 4, rows = 0;
    if (bounds[0] != none) {
        left = -bounds[0] & -4;
        top = -bounds[1];
        const long long across = (bounds[2] - left + 5 | 4) & -4, down = bounds[3] - top + 2;
        if (across * down <= space) {
            columns = int(across);
            rows = int(down);
        } else if (across * down <= 4ll * space) {  // its middle
            columns = int(min(max((space / down - 4 | 4) & -4, (long long)side), across));
            left += (int(across) - columns) / 2 & -4;
            rows = int(min((long long)(space / columns), down));
            top += (int(down) - rows) / 2;
        }
    }
    const int along = threads % columns, down = threads / columns;

    // In the last bits, whether B is the pixel before A, and C the one above.
    Slopes slopes[POINTS] = {};
#pragma unroll
    for (int p = 0; p < POINTS; ++p) {
        if (at[p] < 0) continue;
        int x = xs[p] - left, y = ys[p] - top;
        if (x < 0 || y < 0 || x >= columns - 1 || y >= rows - 1) {
            at[p] = -2;
            continue;
        }
        const int before = (x ^ thread) & 1;
        x += before;
        const int above = ((x >> 2) + y ^ thread >> 1) & 1;
        y += above;
        if (before) hx[p] = 1.0f - hx[p];
        if (above) hy[p] = 1.0f - hy[p];
        at[p] = (y * columns + x) * 4 + above * 2 + before;
    }

    for (int channel = 0; rows; ++channel) {
        // The sums of the channel before go to global memory while x of this one is on its way.
        const size_t picture = size_t(blockIdx.z) * c + channel;
        const Element* const from = input_ptr + picture * plane;
        float* const to = sums_ptr + (picture - (channel > 0)) * plane;
        float go[POINTS];
#pragma unroll
        for (int p = 0; p < POINTS; ++p)
            go[p] = channel == c || at[p] < 0 ? 0.0f : float(dout_ptr[picture * positions + first + size_t(p) * ow]);
        for (Walk walk(columns); walk.y < rows;) {
            Element read[TURN];
            Walk ahead = walk;
#pragma unroll
            for (int i = 0; i < TURN; ++i) {
                const int x = ahead.x + left, y = ahead.y + top;
                const bool inside = ahead.y < rows && unsigned(y) < unsigned(ih) && unsigned(x) < unsigned(iw);
                read[i] = inside && channel < c ? from[(long long)y * iw + x] : Element(0.0f);
                ahead.next(columns, along, down);
            }
#pragma unroll
            for (int i = 0; i < TURN && walk.y < rows; ++i) {
                const int x = walk.x + left, y = walk.y + top, item = walk.y * columns + walk.x;
                const float sum = channel ? sums[item] : 0.0f;
                if (sum != 0.0f && unsigned(y) < unsigned(ih) && unsigned(x) < unsigned(iw))
                    atomicAdd(to + ((long long)y * iw + x), sum);
                values[item] = float(read[i]);
                sums[item] = 0.0f;
                walk.next(columns, along, down);
            }
        }
        if (channel == c) break;
        __syncthreads();
#pragma unroll
        for (int p = 0; p < POINTS; ++p) {
            if (at[p] < 0) continue;
            const int a = at[p] >> 2, b = at[p] & 1 ? a - 1 : a + 1, down = at[p] & 2 ? -columns : columns;
            const float v[4] = {values[a], values[b], values[a + down], values[b + down]};
            add(sums + a, sums + b, sums + a + down, sums + b + down, Parts(go[p], hx[p], hy[p]),
                [&] { slopes[p].add(go[p], v[0], v[1], v[2], v[3], hx[p], hy[p]); });
        }
        __syncthreads();
    }

#pragma unroll
    for (int p = 0; p < POINTS; ++p) {
        if (p >= count) continue;
        const Corner corner(points + 2 * size_t(p) * ow, image);
        const bool stray = at[p] == -2, before = at[p] >= 0 && at[p] & 1, above = at[p] >= 0 && at[p] & 2;
        if (stray) {
            const bool x0 = corner.x >= 0, x1 = corner.x + 1 < iw, y0 = corner.y >= 0, y1 = corner.y + 1 < ih;
            const long long place = (long long)corner.y * iw + corner.x;
            for (int channel = 0; channel < c; ++channel) {
                const size_t picture = size_t(blockIdx.z) * c + channel;
                const Element* const from = input_ptr + picture * plane + place;
                float* const to = sums_ptr + picture * plane + place;
                const float go = float(dout_ptr[picture * positions + first + size_t(p) * ow]);
                const Parts parts(go, corner.hx, corner.hy);
                if (x0 && y0) atomicAdd(to, parts.a);
                if (x1 && y0) atomicAdd(to + 1, parts.b);
                if (x0 && y1) atomicAdd(to + iw, parts.c);
                if (x1 && y1) atomicAdd(to + iw + 1, parts.d);
                slopes[p].add(go, x0 && y0 ? float(from[0]) : 0.0f, x1 && y0 ? float(from[1]) : 0.0f,
                              x0 && y1 ? float(from[iw]) : 0.0f, x1 && y1 ? float(from[iw + 1]) : 0.0f, corner.hx, corner.hy);
            }
        }
        Element* const to = dgrid_ptr + 2 * (blockIdx.z * positions + first + size_t(p) * ow);
        to[0] = Element(slopes[p].x * (before ? -corner.mx : corner.mx));
        to[1] = Element(slopes[p].y * (above ? -corner.my : corner.my));
    }
}
//% if T.size == 2

extern "C" __global__ void __launch_bounds__(256, 1)
grid_sample_tiled_backward_collect_{{ T.name }}(const float* sums_ptr, Element* dinput_ptr, size_t count) {
    const size_t first = size_t(blockIdx.x) * 1024 + threadIdx.x;
    float values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = sums_ptr[min(first + 256 * i, count - 1)];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (first + 256 * i < count) dinput_ptr[first + 256 * i] = Element(values[i]);
}
//% endif
