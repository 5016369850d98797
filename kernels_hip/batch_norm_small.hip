// batch_norm_small, {{ T.name }}: batch_norm of few values, which take as long as one thread waits.
//
// What is computed, how, and each entry's launch stand in kernels_ptx/batch_norm_small.ptx, whose bits these are. Every product
// that is added to something is an fma() in the text.

//% include "elements.jinja"
//% include "inverse_root.jinja"
//% include "pairs.jinja"
//% include "in_order.jinja"

typedef unsigned {{ "short" if T.size == 2 else "int" }} Bits;  // of an element
constexpr unsigned EACH = 4, MOST_THREADS = 256, MOST_WARPS = MOST_THREADS / 32;

// One number of a channel, or `otherwise` where there is no array.
__device__ inline float own(const float* array, float otherwise, bool wanted = true) {
    return array && wanted ? float(*static_cast<const IN_ORDER float*>(array + blockIdx.x)) : otherwise;
}

// Where a thread's values of a channel are, from the channel's first one; in the place of those that are not there the last one,
// so that no load is conditional.
struct Places {
    unsigned at[EACH];
    bool there[EACH];
    __device__ Places(unsigned count, unsigned by_row, unsigned gap) {
#pragma unroll
        for (unsigned u = 0; u < EACH; ++u) {
            const unsigned i = u * blockDim.x + threadIdx.x, value = min(i, count - 1);
            there[u] = i < count;
            at[u] = value + (value * by_row >> 21) * gap;
        }
    }
};

struct alignas(16) Row {
    double sum, products;
    __device__ Row& operator+=(Row other) {
        sum += other.sum;
        products += other.products;
        return *this;
    }
};

// Whether a number is so large or small, below zero or none, that results need f64.
__device__ inline bool is_rare(float value) { return __float_as_uint(value) - (27u << 23) >= 200u << 23; }
__device__ inline bool is_rare(double value) {
    return unsigned(__double_as_longlong(value) >> 32) - (923u << 20) >= 200u << 20;
}

// The block's sums of a, and of b * c.
__device__ inline Row sum_up(const double (&a)[EACH], const double (&b)[EACH], const double (&c)[EACH]) {
    Row all{(a[0] + a[1]) + (a[2] + a[3]), fma(b[1], c[1], fma(b[0], c[0], 0.0)) + fma(b[3], c[3], fma(b[2], c[2], 0.0))};
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        all += Row{__shfl_xor(all.sum, distance, 32), __shfl_xor(all.products, distance, 32)};
    }
    if (blockDim.x <= 32) return all;
    __shared__ Row rows[MOST_WARPS];
    if (threadIdx.x % 32 == 0) rows[threadIdx.x / 32] = all;
    if (threadIdx.x < MOST_WARPS && threadIdx.x >= blockDim.x / 32) rows[threadIdx.x] = Row{0, 0};
    __syncthreads();
    Row row[MOST_WARPS];
#pragma unroll
    for (unsigned warp = 0; warp < MOST_WARPS; ++warp) row[warp] = rows[warp];
#pragma unroll
    for (unsigned apart = 1; apart < MOST_WARPS; apart *= 2) {
#pragma unroll
        for (unsigned warp = 0; warp < MOST_WARPS; warp += 2 * apart) row[warp] += row[warp + apart];
    }
    return row[0];
}
//% if entry is none or "norm_small" in entry

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
batch_norm_small{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr, Real* mean_ptr,
                 Real* var_ptr, Real* rmean_ptr, Real* rvar_ptr, unsigned hw, unsigned count, unsigned by_row,
                 unsigned gap, Real eps, Real momentum, double per_value, double unbiased) {
    const unsigned channel = blockIdx.x;
    const size_t home = size_t(channel) * hw;
    const Element* from = in_ptr + home;
    const Places places(count, by_row, gap);
    const bool first = threadIdx.x == 0;
    Element x[EACH];
#pragma unroll
    for (unsigned u = 0; u < EACH; ++u) x[u] = from[places.at[u]];
    const float weight = own(w_ptr, 1), bias = own(b_ptr, 0);
    const double rmean = own(rmean_ptr, 0, first), rvar = own(rvar_ptr, 0, first);
    const Bits bits = *reinterpret_cast<const IN_ORDER Bits*>(from);
    const double k = Real(reinterpret_cast<const Element&>(bits));

    double d[EACH];
#pragma unroll
    for (unsigned u = 0; u < EACH; ++u) d[u] = places.there[u] ? Real(x[u]) - k : 0;
    const Row all = sum_up(d, d, d);
    const double offset = all.sum * per_value;
    const double of_all = fma(-offset, all.sum, all.products), var = of_all * per_value;
    const double with_eps = fma(of_all, per_value, double(eps));
    const bool rare = is_rare(with_eps);
    const double scale = rare ? weight * inverse_root_at_once(var + eps) : 0;
    const float root = inverse_root_of_f32(float(with_eps));
    Element* to = out_ptr + home;
#pragma unroll
    for (unsigned u = 0; u < EACH; ++u) {
        const double own = d[u] - offset;
        const Real result = rare ? Real(fma(own, scale, double(bias))) : fmaf(Real(own) * root, weight, bias);
        if (places.there[u]) to[places.at[u]] = Element(result);
    }

    // What nobody waits for
    if (!first) return;
    const double mean = k + offset, share = momentum, keep = 1 - share;
    mean_ptr[channel] = Real(mean);
    var_ptr[channel] = Real(var);
    if (!rmean_ptr) return;
    rmean_ptr[channel] = Real(fma(share, mean, fma(rmean, keep, 0.0)));
    rvar_ptr[channel] = Real(fma(share, fma(var, unbiased, 0.0), fma(rvar, keep, 0.0)));
}
//% endif
//% if entry is none or "backward" in entry

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
batch_norm_backward_small{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr, Real* gw_ptr, Real* gb_ptr,
                          const Real* w_ptr, const Real* mean_ptr, const Real* var_ptr, unsigned hw, unsigned count,
                          unsigned by_row, unsigned gap, Real eps, double per_value, unsigned training) {
    const unsigned channel = blockIdx.x;
    const size_t home = size_t(channel) * hw;
    const Places places(count, by_row, gap);
    Element x[EACH], go[EACH];
#pragma unroll
    for (unsigned u = 0; u < EACH; ++u) x[u] = in_ptr[home + places.at[u]], go[u] = go_ptr[home + places.at[u]];
    const double weight = own(w_ptr, 1), mean = own(mean_ptr, 0), var = own(var_ptr, 0);

    const double inv = inverse_root_at_once(var + eps), scale = weight * inv;
    double d[EACH], e[EACH];
#pragma unroll
    for (unsigned u = 0; u < EACH; ++u) {
        d[u] = places.there[u] ? Real(x[u]) - mean : 0;
        e[u] = places.there[u] ? double(Real(go[u])) : 0;
    }
    const Row all = sum_up(e, d, e);
    // grad_input = (go - sum / count - (x - mean) * slope) * scale
    const double slope = all.products * -(inv * inv * per_value), shift = all.sum * per_value;
    Element* to = gi_ptr + home;
#pragma unroll
    for (unsigned u = 0; u < EACH; ++u) {
        const double own = training ? fma(d[u], slope, e[u] - shift) : e[u];
        if (places.there[u]) to[places.at[u]] = Element(Real(own * scale));
    }
    if (threadIdx.x > 0) return;
    if (gw_ptr) gw_ptr[channel] = Real(all.products * inv);
    if (gb_ptr) gb_ptr[channel] = Real(all.sum);
}
//% endif
//% if entry is none or "eval" in entry

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
batch_norm_eval_small{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr,
                      const Real* mean_ptr, const Real* var_ptr, unsigned hw, Real eps) {
    const unsigned first = blockIdx.z * blockDim.x * EACH + threadIdx.x;
    if (first >= hw) return;
    const unsigned row = (blockIdx.y * gridDim.x + blockIdx.x) * hw;
    // Its values; in the place of those that are not there its first one, so that no load is conditional.
    unsigned columns[EACH];
    Element x[EACH];
#pragma unroll
    for (unsigned u = 0; u < EACH; ++u) {
        columns[u] = first + u * blockDim.x;
        x[u] = in_ptr[row + (columns[u] < hw ? columns[u] : first)];
    }
    const float weight = own(w_ptr, 1), bias = own(b_ptr, 0), mean = own(mean_ptr, 0), var = own(var_ptr, 0);
    const bool rare = is_rare(var + eps);
    const double scale = rare ? weight * inverse_root_at_once(double(var) + eps) : 0;
    const float root = inverse_root_of_f32(var + eps);
#pragma unroll
    for (unsigned u = 0; u < EACH; ++u) {
        const Real value = x[u];
        const Real result = rare ? Real(fma(double(value) - mean, scale, double(bias)))
                                 : fmaf((value - mean) * root, weight, bias);
        if (columns[u] < hw) out_ptr[row + columns[u]] = Element(result);
    }
}
//% endif
