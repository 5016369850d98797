// group_norm_few, {{ T.name }}: group_norm and its backward of few values, a vector of 16 bytes a thread.
//
// What is computed, in which order, and each entry's launch stand in kernels_ptx/group_norm_few.ptx, whose bits these are. A warp
// is there what 32 lanes are here. Every product that is added to something is an fma() in the text.

//% include "elements.jinja"
//% include "pairs.jinja"
//% include "vectors.jinja"
//% include "narrow.jinja"
//% include "group_norm_gradient.jinja"
//% include "in_order.jinja"
//% include "over_lanes.jinja"
//% include "statistics.jinja"

constexpr unsigned MOST_THREADS[2] = { {{- 512 if T.name == "f64" else 1024 }}, {{ 1024 if T.name == "f32" else 512 -}} };  // forward, backward

// A thread's place: it has a vector of a group of an image, or none, and then reads the last one without using it.
struct Place {
    unsigned own_warp, vector, channel;  // the channel's number among those of the group
    bool mine;
    size_t start;  // of the group of the image, in elements
    __device__ Place(unsigned image, unsigned own_warp, unsigned groups, unsigned vectors, unsigned per_width)
        : own_warp(own_warp), vector(own_warp * GROUP + threadIdx.x % GROUP) {
        mine = vector < vectors;
        vector = min(vector, vectors - 1);
        channel = unsigned((unsigned long long)vector * per_width >> 31);
        start = size_t(image * groups + blockIdx.x) * vectors * VECTOR;
    }
};

typedef unsigned {{ {2: "short", 4: "int", 8: "long long"}[T.size] }} Bits;  // of an element

__device__ inline Real first_of(const Element* group) {
    const Bits bits = *reinterpret_cast<const IN_ORDER Bits*>(group);
    return Real(reinterpret_cast<const Element&>(bits));
}

__device__ inline Real of_channel(const Real* array, unsigned channel, Real otherwise) {
    return array ? Real(*static_cast<const IN_ORDER Real*>(array + channel)) : otherwise;
}

// The sums of a vector, of one group of an image, or of a channel.
template <bool BACKWARD>
struct Sums {
    Number sum = 0, squares = 0, go_sum = 0, dot = 0;

    // f16 in f32 first about their own mean, of dot two terms at a time: about the group's first value, which may be far from all
    // others, what is rounded could be more than the deviation. Two values have half the square of their difference as
    // squares about their mean; means of two, and then of four, go on in the same way.
    __device__ void add(const Real (&x)[VECTOR], const Real (&grad)[VECTOR], Real first) {
//% if T.name == "f16"
        float totals[VECTOR], levels[3];
#pragma unroll
        for (unsigned e = 0; e < VECTOR; ++e) totals[e] = x[e];
#pragma unroll
        for (unsigned level = 0; level < 3; ++level) {
#pragma unroll
            for (unsigned i = 0; i < VECTOR >> (level + 1); ++i) {
                const float apart = totals[2 * i] - totals[2 * i + 1];
                totals[i] = totals[2 * i] + totals[2 * i + 1];
                levels[level] = i ? fmaf(apart, apart, levels[level]) : apart * apart;
            }
        }
        const float own_mean = totals[0] / VECTOR;
        const double from_k = double(own_mean) - first, times_count = from_k * VECTOR;
        squares = fma(double(fmaf(fmaf(levels[2], 0.5f, levels[1]), 0.5f, levels[0])), 0.5, squares);
        sum += times_count;
        squares = fma(from_k, times_count, squares);
        if constexpr (BACKWARD) {
            float of_go, of_dot;
#pragma unroll
            for (unsigned e = 0; e < VECTOR; ++e) {
                const float apart = x[e] - own_mean;
                of_go = e ? of_go + grad[e] : grad[e];
                of_dot = e % 2 ? fmaf(apart, grad[e], of_dot) : apart * grad[e];
                if (e % 2) dot += of_dot;
            }
            go_sum += of_go;
            dot = fma(from_k, double(of_go), dot);
        }
//% else
        const double k = first;
#pragma unroll
        for (unsigned e = 0; e < VECTOR; ++e) {
            const Number d = Number(x[e]) - k;
            sum += d;
            squares = fma(d, d, squares);
            if constexpr (BACKWARD) {
                go_sum += grad[e];
                dot = fma(d, Number(grad[e]), dot);
            }
        }
//% endif
    }
};

// Each number's sum over the warps of an image's group, in all of their threads.
template <bool BACKWARD, typename... Numbers>
__device__ inline void over_group(const Place& place, unsigned warps, unsigned distance, Numbers&... numbers) {
    over_lanes(GROUP / 2, numbers...);
    if (distance == 0) return;
    __shared__ Number of_warps[MOST_THREADS[BACKWARD] / GROUP][sizeof...(Numbers)];
    const unsigned warp = threadIdx.x / GROUP, lane = threadIdx.x % GROUP, row = lane & (2 * distance - 1);
    unsigned column = 0;
    if (lane == 0) ((of_warps[warp][column++] = numbers), ...);
    __syncthreads();
    column = 0;
    if (row < warps) ((numbers = of_warps[warp - place.own_warp + row][column++]), ...);
    else ((numbers = 0), ...);
    over_lanes(distance, numbers...);
}
//% if entry is none or "backward" not in entry

extern "C" __global__ void __launch_bounds__(MOST_THREADS[0], 1)
group_norm_few_kernel{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr, unsigned groups,
                      unsigned per_group, unsigned hw, unsigned warps, unsigned distance, unsigned vectors, unsigned per_width,
                      Real eps) {
    const Place at(blockIdx.y, threadIdx.x / GROUP, groups, vectors, per_width);
    const size_t place = at.start + size_t(at.vector) * VECTOR;
    const bool aligned = (size_t(in_ptr) | size_t(out_ptr)) % 16 == 0;
    const Real first = first_of(in_ptr + at.start);
    const unsigned channel = blockIdx.x * per_group + at.channel;
    const double weight = of_channel(w_ptr, channel, 1), bias = of_channel(b_ptr, channel, 0);
    Real x[VECTOR];
    if (aligned) load<true>(x, in_ptr + place);
    else load<false>(x, in_ptr + place);
    Statistics all(double(per_group * hw));
    Sums<false> own;
    if (at.mine) own.add(x, x, first);
    over_group<false>(at, warps, distance, own.sum, own.squares);
    all.set(own.sum, own.squares, eps);
    if (!at.mine) return;
    const Number mean = double(first) + all.offset, scale = weight * all.inv;
//% if T.size == 2
    const Line line(mean, scale);
    const float constant = float(line.lost + bias);
//% endif
#pragma unroll
    for (unsigned e = 0; e < VECTOR; ++e) {
        x[e] = {{ "line(x[e], constant)" if T.size == 2 else "Real(fma(Number(x[e]) - mean, scale, bias))" }};
    }
    if (aligned) store<true>(out_ptr + place, x);
    else store<false>(out_ptr + place, x);
}
//% endif
//% if entry is none or "backward" in entry

extern "C" __global__ void __launch_bounds__(MOST_THREADS[1], 1)
group_norm_backward_few_kernel{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr, const Real* w_ptr,
                               Real* gw_ptr, Real* gb_ptr, unsigned batch, unsigned per_warps, unsigned groups,
                               unsigned per_group, unsigned hw, unsigned warps, unsigned distance, unsigned vectors,
                               unsigned per_width, Real eps) {
    const unsigned warp = threadIdx.x / GROUP, lane = threadIdx.x % GROUP, first_channel = blockIdx.x * per_group;
    const unsigned own_image = unsigned((unsigned long long)warp * per_warps >> 31);
    const Place at(own_image, warp - own_image * warps, groups, vectors, per_width);
    const size_t place = at.start + size_t(at.vector) * VECTOR;
    const bool aligned = (size_t(in_ptr) | size_t(go_ptr) | size_t(gi_ptr)) % 16 == 0;
    const Real first = first_of(in_ptr + at.start);
    const double weight = of_channel(w_ptr, first_channel + at.channel, 1);
    Real x[VECTOR], grad[VECTOR];
    if (aligned) {
        load<true>(x, in_ptr + place);
        load<true>(grad, go_ptr + place);
    } else {
        load<false>(x, in_ptr + place);
        load<false>(grad, go_ptr + place);
    }
    Statistics all(double(per_group * hw));
    Sums<true> own;
    if (at.mine) own.add(x, grad, first);
    Number g_sum = product(own.go_sum, weight), g_dot = product(own.dot, weight);
    over_group<true>(at, warps, distance, own.sum, own.squares, g_sum, g_dot);
    all.set(own.sum, own.squares, eps);
    const Number inv = all.inv, mean_g = all.over_n(g_sum);
    const Number slope = product(all.over_n(product(fma(-all.offset, g_sum, g_dot), inv)), inv);

    // The thread's share of the gradients of weight and bias.
    __shared__ Number of_threads[MOST_THREADS[1]][2];
    of_threads[threadIdx.x][0] = own.go_sum;
    of_threads[threadIdx.x][1] = product(fma(-all.offset, own.go_sum, own.dot), inv);
    if (at.mine) {
        const Gradient gradient{ {{- "per_group * hw < 64, weight, double(first) + all.offset, inv, rounded(mean_g), rounded(slope)" if T.name == "f64" else "weight, double(first) + all.offset, inv, mean_g, slope" }}};
#pragma unroll
        for (unsigned e = 0; e < VECTOR; ++e) x[e] = gradient(x[e], grad[e]);
        if (aligned) store<true>(gi_ptr + place, x);
        else store<false>(gi_ptr + place, x);
    }
    __syncthreads();

    // A warp a channel: all vectors of all images.
    const unsigned width = hw / VECTOR, count = width * batch;
    for (unsigned channel = warp; channel < per_group; channel += blockDim.x / GROUP) {
        Number bias_sum = 0, weight_sum = 0;
        for (unsigned vector = lane; vector < count; vector += GROUP) {
            const unsigned image = unsigned((unsigned long long)vector * per_width >> 31);
            const Number* share = of_threads[image * warps * GROUP + channel * width + vector - image * width];
            bias_sum += share[0];
            weight_sum += share[1];
        }
        over_lanes(GROUP / 2, bias_sum, weight_sum);
        if (lane != 0) continue;
        if (gw_ptr) gw_ptr[first_channel + channel] = Real(weight_sum);
        gb_ptr[first_channel + channel] = Real(bias_sum);
    }
}
//% endif
