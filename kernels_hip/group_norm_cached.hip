// group_norm_cached, {{ T.name }}: group_norm of groups that fit a block's shared memory, which are read once.
//
// The formula, and why its sums are accurate, stand in kernels_ptx/group_norm.ptx; the order of the sums is another one.
// Every product that is added to something is an fma() in the text.
//
//   group_norm_cached_kernel: any grid along x, 512 threads; a block has a group of an image, of {{ 46 * 1024 // T.size }} values at most.
//     out_ptr may be in_ptr. A null w_ptr is a weight of ones, a null b_ptr a bias of zeros.

constexpr unsigned THREADS = 512, MOST_THREADS = THREADS, MOST = {{ 46 * 1024 // T.size }};
constexpr unsigned TURNS = {{ {2: 2, 4: 4, 8: 1}[T.size] }};  // loads that are under way at a time

//% include "elements.jinja"
//% include "pairs.jinja"
//% include "vectors.jinja"
//% include "block_sum.jinja"
//% include "moments.jinja"
//% include "walk.jinja"
//% include "group_norm_loops.jinja"

extern "C" __global__ void __launch_bounds__(THREADS, {{ 2 if T.name == "f32" else 1 }})
group_norm_cached_kernel{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr,
                         unsigned batch, unsigned channels, unsigned groups, unsigned hw, Real eps) {
    alignas(16) __shared__ Element kept[MOST];
    const unsigned per_group = channels / groups, n = per_group * hw;
    const size_t addresses = reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(out_ptr);
    for (size_t group = blockIdx.x; group < size_t(batch) * groups; group += gridDim.x) {
        const Element* x = in_ptr + group * n;
        const double k = Real(x[0]);
        Number sum = 0, squares = 0;
        by_vectors(hw, addresses, Sums{x, kept, n, k, sum, squares});
        block_sum(sum, squares);
        const Moments<Number> all = moments(sum, squares, n);
        const Number mean = k + all.offset, inv = inverse_root(all.var + eps);
        const size_t first_channel = group % groups * per_group;
        by_vectors(hw, addresses, Output{kept, out_ptr + group * n, w_ptr, b_ptr, first_channel, 0, n, hw, mean, inv});
    }
}
