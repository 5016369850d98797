// upsample_nearest2d, {{ T.name }}.
//
//   y[n,c,i,j] = x[n,c,row(i),column(j)],   row(i) = min(trunc(i * (H / OH)), H - 1),   column(j) likewise of W, OW
//
// The scales H / OH and W / OW come rounded to f64, and the product is rounded to f64 once more, as candle has it:
// integers answer otherwise at some places (30 -> 44 at 22 is 14). Elements are moved, and nothing is computed of them:
// a type is a number of bits here, and those of a NaN or a denormal arrive as they are. x has any strides, y is
// contiguous.
//
// Launch: any grid and block. A thread takes an element of y, and goes on in steps of the grid.
// ABI: (u64 w_out, u64 h_out, f64 w_scale, f64 h_scale, info, src, dst), where "w" is the third axis, OH and H / OH,
// and "h" the fourth, OW and W / OW; info is u64[8], the shape of x and its strides in elements.
//% if T.kind == "float"
//
// Backward: grad_input[n,c,r,s] = sum of grad_out[n,c,i,j] over the i with row(i) = r and the j with column(j) = s, from
// +0 on, in the order of grad_out, in {{ R.name }}; rounded once. So one that nothing was copied from gets 0.
//
// Launch: any grid and block. A thread takes one of the total = N * C * H * W elements of grad_input, and goes on in steps
// of the grid.
// ABI: (go_ptr, gi_ptr, rows_ptr, columns_ptr, u64 total, u64 channels, u64 in_h, u64 in_w, u64 image_stride,
// u64 channel_stride, u64 row_stride, u64 column_stride): strides in elements of grad_out. rows_ptr is u64[H + 1], the
// first i with row(i) >= r for each r, and OH; columns_ptr likewise. Whoever launches finds them by the forward's own
// product, since no inverse of it is exact.
//% endif

// Where along an axis of x, of so many elements, a place along the same axis of y has its value from.
__device__ inline size_t source_of(size_t place, double scale, size_t length) {
    return min(size_t(double(place) * scale), length - 1);
}

template <typename Bits>
__device__ void upsample_nearest2d(size_t out_h, size_t out_w, double row_scale, double column_scale,
                                   const size_t* __restrict__ info, const Bits* __restrict__ src,
                                   Bits* __restrict__ dst) {
    const size_t *shape = info, *strides = info + 4;

    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t element = size_t(blockIdx.x) * blockDim.x + threadIdx.x;; element += step) {
        // The element's place on each axis of y, from the last axis up.
        size_t rest = element;
        const size_t j = rest % out_w;
        rest /= out_w;
        const size_t i = rest % out_h;
        rest /= out_h;
        const size_t channel = rest % shape[1];
        const size_t image = rest / shape[1];
        if (image >= shape[0]) return;

        const size_t row = source_of(i, row_scale, shape[2]);
        const size_t column = source_of(j, column_scale, shape[3]);
        dst[element] = src[image * strides[0] + channel * strides[1] + row * strides[2] + column * strides[3]];
    }
}

#define UPSAMPLE_NEAREST2D(type, Bits)                                                                                 \
    extern "C" __global__ void __launch_bounds__(1024) upsample_nearest2d_##type(                                      \
        const size_t w_out, const size_t h_out, const double w_scale, const double h_scale, const size_t* info,        \
        const void* src, void* dst) {                                                                                  \
        upsample_nearest2d(w_out, h_out, w_scale, h_scale, info, static_cast<const Bits*>(src),                        \
                           static_cast<Bits*>(dst));                                                                   \
    }

//% set bits = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
UPSAMPLE_NEAREST2D({{ T.name }}, {{ bits[T.size] }})
//% if T.kind == "float"

//% include "elements.jinja"

extern "C" __global__ void __launch_bounds__(1024)
upsample_nearest2d_backward_{{ T.name }}(const Element* go_ptr, Element* gi_ptr, const size_t* rows_ptr,
                                const size_t* columns_ptr, size_t total, size_t channels, size_t in_h, size_t in_w,
                                size_t image_stride, size_t channel_stride, size_t row_stride, size_t column_stride) {
    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t element = size_t(blockIdx.x) * blockDim.x + threadIdx.x; element < total; element += step) {
        const size_t s = element % in_w, r = element / in_w % in_h, plane = element / in_w / in_h;
        const Element* go = go_ptr + plane / channels * image_stride + plane % channels * channel_stride;
        const size_t bottom = rows_ptr[r + 1], left = columns_ptr[s], right = columns_ptr[s + 1];
        Real sum = 0;
        for (size_t i = rows_ptr[r]; i < bottom; ++i) {
#pragma unroll 1
            for (size_t j = left; j < right; ++j) sum += Real(go[i * row_stride + j * column_stride]);
        }
        gi_ptr[element] = Element(sum);
    }
}
//% endif
