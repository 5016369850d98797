// group_norm_held, {{ T.name }}: group_norm of groups that a block's registers hold, which are read once.
//
// The formula, and why its sums are accurate, stand in kernels_ptx/group_norm.ptx; the order of the sums is another one.
// Every product that is added to something is an fma() in the text.
//
//   group_norm_held_kernel: any grid along x; a block has a group of an image. hw is a multiple of {{ 16 // T.size }}, and a thread has
//     at most 5 vectors of 16 bytes of a group. out_ptr may be in_ptr. A null w_ptr is a weight of ones, a null b_ptr a
//     bias of zeros.

constexpr unsigned MOST_THREADS = 1024, HELD = 5;

//% include "elements.jinja"
//% include "pairs.jinja"
//% include "vectors.jinja"
//% include "block_sum.jinja"
//% include "moments.jinja"
//% include "walk.jinja"
//% include "narrow.jinja"
//% include "words.jinja"

__device__ inline void run(const Element* x, Element* y, const Real* weights, const Real* biases, unsigned units,
                           unsigned hw, Real eps, bool aligned) {
    Words held[HELD];
#pragma unroll
    for (unsigned i = 0; i < HELD; ++i) {
        const unsigned unit = threadIdx.x + i * blockDim.x;
        if (unit < units) held[i] = read(x + unit * VECTOR, aligned);
    }
    const double k = Real(x[0]);
    Number sum = 0, squares = 0;
#pragma unroll
    for (unsigned i = 0; i < HELD; ++i) {
        if (threadIdx.x + i * blockDim.x >= units) continue;
        const Vector vector = vector_of(held[i]);
#pragma unroll
        for (unsigned place = 0; place < VECTOR; ++place) {
            const Number d = Number(Real(vector.elements[place])) - k;
            sum += d;
            squares = fma(d, d, squares);
        }
    }
    block_sum(sum, squares);
    const Moments<Number> all = moments(sum, squares, units * VECTOR);
    const Number mean = k + all.offset, inv = inverse_root(all.var + eps);
    Walk at(threadIdx.x, blockDim.x, hw / VECTOR);
#pragma unroll
    for (unsigned i = 0; i < HELD; ++i, at.next()) {
        const unsigned unit = threadIdx.x + i * blockDim.x;
        if (unit >= units) continue;
        const Vector vector = vector_of(held[i]);
        const double weight = weights ? weights[at.row] : 1, bias = biases ? biases[at.row] : 0;
        const Number scale = weight * inv;
//% if T.size == 2
        const Line line(mean, scale);
        const float constant = float(line.lost + bias);
//% endif
        Real results[VECTOR];
#pragma unroll
        for (unsigned place = 0; place < VECTOR; ++place) {
            const Real value = Real(vector.elements[place]);
            results[place] = {{ "line(value, constant)" if T.size == 2 else "Real(fma(Number(value) - mean, scale, bias))" }};
        }
        if (aligned) store<true>(y + unit * VECTOR, results);
        else store<false>(y + unit * VECTOR, results);
    }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
group_norm_held_kernel{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr, unsigned batch,
                       unsigned channels, unsigned groups, unsigned hw, Real eps) {
    const unsigned per_group = channels / groups, units = per_group * hw / VECTOR;
    const bool aligned = (reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(out_ptr)) % 16 == 0;
    for (size_t group = blockIdx.x; group < size_t(batch) * groups; group += gridDim.x) {
        const size_t start = group * units * VECTOR, first_channel = group % groups * per_group;
        const Real *weights = w_ptr ? w_ptr + first_channel : nullptr, *biases = b_ptr ? b_ptr + first_channel : nullptr;
        run(in_ptr + start, out_ptr + start, weights, biases, units, hw, eps, aligned);
    }
}
