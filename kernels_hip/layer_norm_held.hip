// layer_norm_held, {{ T.name }}: layer_norm and its backward, with a row's values in registers from the one reading to the writing.
//
// The formulas, the launches and the ABI are those of layer_norm_held.ptx.

//% include "elements.jinja"
//% from "rows_held_warps.jinja" import backwards, forwards, namespaces, of_warps with context
//% if entry is none or not of_warps
//% include "rows_held.jinja"

//% endif
//% for slots in range(1, 2 * T.size + 1) if entry in (none, "layer_norm_held_" ~ slots ~ "_kernel" ~ suffix)
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 2)
layer_norm_held_{{ slots }}_kernel{{ suffix }}(const Element* in_ptr, Element* out_ptr, const float* w_ptr, const float* b_ptr, size_t rows,
                       size_t width, float eps, double per_value) {
    if (aligned(size_t(in_ptr) | size_t(out_ptr) | size_t(w_ptr) | size_t(b_ptr)))
        forward<true, true, {{ slots }}>(in_ptr, out_ptr, w_ptr, b_ptr, rows, width, eps, per_value);
    else
        forward<true, false, {{ slots }}>(in_ptr, out_ptr, w_ptr, b_ptr, rows, width, eps, per_value);
}

//% endfor
//% for slots in range(1, T.size + 1) if entry in (none, "layer_norm_held_backward_" ~ slots ~ "_kernel" ~ suffix)
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
layer_norm_held_backward_{{ slots }}_kernel{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr, const float* w_ptr,
                                float* partials_ptr, size_t rows, size_t width, size_t slices, size_t length, float eps,
                                double per_value) {
    if (aligned(size_t(in_ptr) | size_t(go_ptr) | size_t(gi_ptr) | size_t(w_ptr)))
        backward<true, true, {{ slots }}>(in_ptr, go_ptr, gi_ptr, w_ptr, partials_ptr, rows, width, slices, length, eps, per_value);
    else
        backward<true, false, {{ slots }}>(in_ptr, go_ptr, gi_ptr, w_ptr, partials_ptr, rows, width, slices, length, eps, per_value);
}

//% endfor
//% if entry in (none, "layer_norm_held_backward_parameters_kernel" ~ suffix)
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
layer_norm_held_backward_parameters_kernel{{ suffix }}(const float* partials_ptr, float* gw_ptr, float* gb_ptr, size_t width,
                                           size_t slices) {
    parameters<true>(partials_ptr, gw_ptr, gb_ptr, width, slices);
}
//% endif

//% if entry is none or of_warps

{{ namespaces() }}
//% endif
//% for kind, slots, lanes in forwards
    //% set name = "%s_held_%s_%s%s_kernel%s" | format("layer_norm", slots, kind, lanes if lanes < 32 or kind != "rows" else "", suffix)
    //% if entry in (none, name)
extern "C" __global__ void __launch_bounds__({{ kind }}{{ lanes }}::THREADS, 2)
{{ name }}(const Element* in_ptr, Element* out_ptr, const float* w_ptr, const float* b_ptr, size_t rows,
                       size_t width, float eps, double per_value) {
    {{ kind }}{{ lanes }}::forward<true, {{ slots }}>(in_ptr, out_ptr, w_ptr, b_ptr, rows, width, eps, per_value);
}

    //% endif
//% endfor
//% for kind, slots, lanes in backwards
    //% set name = "layer_norm_held_backward_%s_%s%s_kernel%s" | format(slots, kind, lanes, suffix)
    //% if entry in (none, name)
extern "C" __global__ void __launch_bounds__({{ kind }}{{ lanes }}::THREADS, 2)
{{ name }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr, const float* w_ptr, float* partials_ptr,
                                size_t rows, size_t width, size_t slices, float eps, double per_value) {
    {{ kind }}{{ lanes }}::backward<true, {{ slots }}>(in_ptr, go_ptr, gi_ptr, w_ptr, partials_ptr, rows, width, slices, eps, per_value);
}

    //% endif
//% endfor
