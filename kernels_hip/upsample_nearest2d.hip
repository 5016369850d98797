// upsample_nearest2d, {{ T.name }}.
//
//   y[n,c,i,j] = x[n,c,row(i),column(j)],   row(i) = min(trunc(i * (H / OH)), H - 1),   column(j) likewise of W, OW
//
// The scales H / OH and W / OW come rounded to f64, and the product is rounded to f64 once more, as candle has it:
// integers answer otherwise at some places (30 -> 44 at 22 is 14). Elements are moved, and nothing is computed of them:
// a type is a number of bits here, and those of a NaN or a denormal arrive as they are. x has any strides, y is
// contiguous.
//
// Launch: at least N * C * OH * OW threads in blocks of any size, an element of y each.
// ABI: (u64 w_out, u64 h_out, f64 w_scale, f64 h_scale, info, src, dst), where "w" is the third axis, OH and H / OH,
// and "h" the fourth, OW and W / OW; info is u64[8], the shape of x and its strides in elements.

// Where along an axis of x, of so many elements, a place along the same axis of y has its value from.
__device__ inline size_t source_of(size_t place, double scale, size_t length) {
    return min(size_t(double(place) * scale), length - 1);
}

template <typename Bits>
__device__ void upsample_nearest2d(size_t out_h, size_t out_w, double row_scale, double column_scale,
                                   const size_t* __restrict__ info, const Bits* __restrict__ src,
                                   Bits* __restrict__ dst) {
    const size_t *shape = info, *strides = info + 4;

    // The element's place on each axis of y, from the last axis up.
    const size_t element = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
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

#define UPSAMPLE_NEAREST2D(type, Bits)                                                                                 \
    extern "C" __global__ void __launch_bounds__(1024) upsample_nearest2d_##type(                                      \
        const size_t w_out, const size_t h_out, const double w_scale, const double h_scale, const size_t* info,        \
        const void* src, void* dst) {                                                                                  \
        upsample_nearest2d(w_out, h_out, w_scale, h_scale, info, static_cast<const Bits*>(src),                        \
                           static_cast<Bits*>(dst));                                                                   \
    }

//% set bits = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
UPSAMPLE_NEAREST2D({{ T.name }}, {{ bits[T.size] }})
