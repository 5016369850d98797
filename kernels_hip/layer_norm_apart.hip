// layer_norm_apart, {{ T.name }}: the backward of layer_norm of few short rows, in one launch.
//
// The formulas and the ABI are those of kernels_ptx/layer_norm_few.ptx, the order of the sums is another one; rows_apart.jinja tells how
// it is computed. Up to 256 rows of up to 32 * slots vectors of 16 bytes.
//
//   layer_norm_apart_backward_SLOTS_kernel: a grid of ceil(width * {{ T.size }} / 64) + ceil(rows / 16) blocks of 512 threads. gi_ptr is no other
//     array. A null w_ptr is a weight of ones; a null gw_ptr is not written.

//% include "elements.jinja"
//% include "pairs.jinja"
//% include "rows_apart.jinja"

//% for slots in range(1, T.size + 1) if entry in (none, "layer_norm_apart_backward_" ~ slots ~ "_kernel" ~ suffix)
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
layer_norm_apart_backward_{{ slots }}_kernel{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr, const float* w_ptr,
                               float* gw_ptr, float* gb_ptr, size_t rows, size_t width, float eps, double per_value) {
    __shared__ Shared<true> shared;
    if (aligned(size_t(in_ptr) | size_t(go_ptr) | size_t(gi_ptr) | size_t(w_ptr)))
        backward_apart<true, true, {{ slots }}>(shared, in_ptr, go_ptr, gi_ptr, w_ptr, gw_ptr, gb_ptr, rows, width, eps, per_value);
    else
        backward_apart<true, false, {{ slots }}>(shared, in_ptr, go_ptr, gi_ptr, w_ptr, gw_ptr, gb_ptr, rows, width, eps, per_value);
}

//% endfor
