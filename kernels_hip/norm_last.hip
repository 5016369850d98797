//% set parts, single = 2 if T.name == "f64" else 1, true
/*#- What grad_input is made of: of one f64 the mean is in shift. -#*/
//% set gradient = "mean scale slope shift".split()[parts == 1:]
// norm_last, {{ T.name }}: batch_norm and group_norm of channels-last arrays, forward and backward.
//
// An array is [images, rows, channels], a group per_group neighbouring channels of all rows of an image. To batch_norm
// all positions are rows of one image, and each channel is a group. How blocks and threads share the values, the order
// of the sums, and what the workspace holds, is said in kernels_ptx/norm_last.ptx. Every product that is added to
// something is an fma() in the text; each result is rounded to {{ R.name }} once{{ ", then to " ~ T.name if T.size == 2 }}.
//
//   norm_last_sums, norm_last_backward_sums: the sums of each channel of each slice.
//   norm_last_finish, norm_last_backward_finish: grid (images * groups), 128 threads: what follows from them.
//   norm_last_write, norm_last_eval, norm_last_backward_write: the results. out_ptr may be in_ptr, gi_ptr in_ptr or go_ptr.
//
// A null w_ptr is a weight of ones, a null b_ptr a bias of zeros; other null pointers are of what is not given or wanted.

constexpr unsigned THREADS = 256, MOST_THREADS = THREADS;

//% include "elements.jinja"
//% include "pairs.jinja"
//% include "vectors.jinja"
//% include "block_sum.jinja"
//% include "moments.jinja"
//% include "walk.jinja"
//% include "batch_norm_parts.jinja"
//% include "norm_last_parts.jinja"

// What a block has, and a thread of it, which loads TURNS rows at once, a chunk's: `whole` of its chunks are all there,
// and `rest` rows of one more are. `row` is the first of them among those of all images.
template <unsigned TURNS>
struct Place {
    size_t image, row, channels;
    unsigned across, at_once, step, unit, tile, slice, lane, own, column, whole, rest;
    bool there;  // whether it has a unit

    __device__ Place(unsigned rows, unsigned channels, unsigned slices, unsigned across)
        : channels(channels), across(across), at_once(THREADS / across), step(TURNS * at_once * slices),
          unit(channels % VECTOR ? 1 : VECTOR), lane(threadIdx.x % across), own(threadIdx.x / across), whole(0), rest(0) {
        const unsigned units = channels / unit, tiles = (units - 1) / across + 1;
        tile = blockIdx.x % tiles;
        slice = blockIdx.x / tiles % slices;
        image = blockIdx.x / tiles / slices;
        column = tile * across + lane;
        there = column < units;
        if (!there) column = 0;
        const unsigned first = slice * TURNS * at_once + own, last = first + (TURNS - 1) * at_once;
        row = image * rows + first;
        if (there && own < at_once) {
            if (last < rows) whole = (rows - last - 1) / step + 1;
            const unsigned next = first + whole * step;
            if (next < rows) rest = (rows - next - 1) / at_once + 1;
        }
    }
};

// Work for all channels of a unit at once, or for one after the other.
template <typename At, typename Work>
__device__ inline void by_width(const At& at, size_t addresses, Work work) {
    if (at.unit == VECTOR && addresses % 16 == 0) {
        work.template run<VECTOR>(size_t(at.column) * VECTOR, 0);
    } else {
        for (unsigned place = 0; place < at.unit; ++place) work.template run<1>(size_t(at.column) * at.unit + place, place);
    }
}

template <bool BACKWARD>
struct Turns {
    static constexpr unsigned COUNT = BACKWARD ? 2 : 4;
    typedef Place<COUNT> At;
};

// Units of the thread's rows, from the channel on, and `use` of each; BACK from the last rows on, which the pass before
// has read last: a cache may still have them.
template <bool BACKWARD, bool BACK, unsigned WIDTH, typename Use>
struct Down {
    const Element *x, *go;
    Use use;

    template <unsigned AT_ONCE>
    __device__ void turn(size_t offset, size_t skip) {
        Real values[AT_ONCE][WIDTH], gradients[BACKWARD ? AT_ONCE : 1][WIDTH];
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; ++i) {
            load<true>(values[i], x + offset + i * skip);
            if constexpr (BACKWARD) load<true>(gradients[i], go + offset + i * skip);
        }
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; ++i) use.one(offset + i * skip, values[i], gradients[BACKWARD ? i : 0]);
    }

    __device__ void run(const typename Turns<BACKWARD>::At& at, size_t channel) {
        constexpr unsigned COUNT = Turns<BACKWARD>::COUNT;
        const size_t skip = at.at_once * at.channels, stride = at.step * at.channels;
        const size_t first = at.row * at.channels + channel, end = first + at.whole * stride;
        if constexpr (BACK) {
            for (unsigned i = 0; i < at.rest; ++i) turn<1>(end + i * skip, skip);
            size_t offset = end;
            for (unsigned left = at.whole; left > 0; --left) turn<COUNT>(offset -= stride, skip);
        } else {
            for (size_t offset = first; offset != end; offset += stride) turn<COUNT>(offset, skip);
            for (unsigned i = 0; i < at.rest; ++i) turn<1>(end + i * skip, skip);
        }
    }
};

template <bool BACKWARD>
struct Partial {
    static constexpr unsigned COUNT = BACKWARD ? 4 : 2;
    const typename Turns<BACKWARD>::At& at;
    const Element *x, *go;
    const Real* mean_ptr;
    Number *shared, *sums;
    unsigned rows, per_group, slices;

    // The sum of the rows' threads, in their order, in those that have a channel of the tile.
    template <unsigned WIDTH>
    __device__ Number of_rows(const Sums (&own)[WIDTH], Number Sums::*member) {
        __syncthreads();  // shared memory has been read
#pragma unroll
        for (unsigned i = 0; i < WIDTH; ++i) shared[i * THREADS + threadIdx.x] = own[i].*member;
        __syncthreads();
        Number sum = 0;
        if (at.own < WIDTH) {
            const Number* from = shared + at.own * THREADS + at.lane;
#pragma unroll 4
            for (unsigned row = 0; row < at.at_once; ++row) sum += from[row * at.across];
        }
        return sum;
    }

    template <unsigned WIDTH>
    __device__ void run(size_t channel, unsigned) {
        Sums own[WIDTH];
        double k[WIDTH];
#pragma unroll
        for (unsigned i = 0; i < WIDTH; ++i) {
            const size_t one = channel + i, group = one - unsigned(one) % per_group;
            k[i] = mean_ptr ? mean_ptr[one] : Real(x[at.image * rows * at.channels + group]);
        }
        Down<BACKWARD, false, WIDTH, AddEach<BACKWARD, WIDTH>>{x, go, {own, k}}.run(at, channel);
        Sums all;
        all.sum = of_rows(own, &Sums::sum);
        all.squares = of_rows(own, &Sums::squares);
        if constexpr (BACKWARD) {
            all.go_sum = of_rows(own, &Sums::go_sum);
            all.dot = of_rows(own, &Sums::dot);
        }
        if (at.own < WIDTH && at.there) {
            Number* row = sums + COUNT * ((at.image * at.channels + channel + at.own) * slices + at.slice);
            row[0] = all.sum;
            row[1] = all.squares;
            if constexpr (BACKWARD) {
                row[2] = all.go_sum;
                row[3] = all.dot;
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, {{ 4 if T.name == "f32" else 2 }})
norm_last_sums{{ suffix }}(const Element* in_ptr, double* sums_ptr, unsigned rows, unsigned channels, unsigned per_group,
               unsigned slices, unsigned across) {
    __shared__ Number shared[VECTOR * THREADS];
    const Turns<false>::At at(rows, channels, slices, across);
    by_width(at, reinterpret_cast<size_t>(in_ptr),
             Partial<false>{at, in_ptr, in_ptr, nullptr, shared, reinterpret_cast<Number*>(sums_ptr), rows, per_group,
                            slices});
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
norm_last_backward_sums{{ suffix }}(const Element* in_ptr, const Element* go_ptr, const Real* mean_ptr, double* sums_ptr,
                        unsigned rows, unsigned channels, unsigned per_group, unsigned slices, unsigned across) {
    __shared__ Number shared[VECTOR * THREADS];
    const Turns<true>::At at(rows, channels, slices, across);
    by_width(at, reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(go_ptr),
             Partial<true>{at, in_ptr, go_ptr, mean_ptr, shared, reinterpret_cast<Number*>(sums_ptr), rows, per_group,
                           slices});
}

extern "C" __global__ void __launch_bounds__(128)
norm_last_finish{{ suffix }}(const Element* in_ptr, const Real* w_ptr, const Real* b_ptr, Real* mean_ptr, Real* var_ptr,
                 Real* rmean_ptr, Real* rvar_ptr, const double* sums_ptr, double* coefficients_ptr, unsigned rows,
                 unsigned channels, unsigned per_group, Real eps, Real momentum, unsigned slices) {
    const unsigned groups = channels / per_group, first = blockIdx.x % groups * per_group;
    const size_t image = blockIdx.x / groups, count = size_t(per_group) * slices;
    const double m = double(size_t(per_group) * rows), k = Real(in_ptr[image * rows * channels + first]);
    const Number* sums = reinterpret_cast<const Number*>(sums_ptr) + 2 * (image * channels + first) * slices;
    Number sum = 0, squares = 0;
    for (size_t i = threadIdx.x; i < count; i += blockDim.x) {
        sum += sums[2 * i];
        squares += sums[2 * i + 1];
    }
    block_sum(sum, squares);
    const Moments<Number> all = moments(sum, squares, m);
    const Number mean = k + all.offset, inv = inverse_root(all.var + eps);
    if (mean_ptr && threadIdx.x == 0) report(mean, all.var, m, first, mean_ptr, var_ptr, rmean_ptr, rvar_ptr, momentum);
    for (size_t channel = first + threadIdx.x; channel < size_t(first) + per_group; channel += blockDim.x) {
        const double weight = w_ptr ? w_ptr[channel] : 1, bias = b_ptr ? b_ptr[channel] : 0;
        const Number scale = inv * weight;
        double* to = coefficients_ptr + image * channels * {{ 2 * parts + 1 }} + channel;
//% for value in (["mean", "scale"] if parts == 1 else ["mean.high", "mean.low", "scale.high", "scale.low"]) + ["bias"]
        to[{{ loop.index0 }} * size_t(channels)] = {{ value }};
//% endfor
    }
}

extern "C" __global__ void __launch_bounds__(128)
norm_last_backward_finish{{ suffix }}(const Element* in_ptr, const Real* w_ptr, const Real* mean_ptr, const Real* var_ptr,
                          Real* gw_ptr, Real* gb_ptr, double* statistics_ptr, const double* sums_ptr,
                          double* coefficients_ptr, unsigned rows, unsigned channels, unsigned per_group, Real eps,
                          unsigned training, unsigned slices) {
    const unsigned groups = channels / per_group, first = blockIdx.x % groups * per_group;
    const size_t image = blockIdx.x / groups, count = size_t(per_group) * slices;
    const double m = double(size_t(per_group) * rows);
    const Number* sums = reinterpret_cast<const Number*>(sums_ptr) + 4 * (image * channels + first) * slices;
    Number sum = 0, squares = 0, go_sum = 0, dot = 0, weighted_go = 0, weighted_dot = 0;
    for (size_t i = threadIdx.x; i < count; i += blockDim.x) {
        const double weight = w_ptr ? w_ptr[first + i / slices] : 1;
        sum += sums[4 * i];
        squares += sums[4 * i + 1];
        go_sum += sums[4 * i + 2];
        dot += sums[4 * i + 3];
        weighted_go = fma(sums[4 * i + 2], weight, weighted_go);
        weighted_dot = fma(sums[4 * i + 3], weight, weighted_dot);
    }
    block_sum(sum, squares, go_sum, dot, weighted_go, weighted_dot);

    // offset = mean - k, of which the sums with d are made those with x - mean
    Number mean, var, offset = 0;
    if (mean_ptr) {
        mean = mean_ptr[first];
        var = var_ptr[first];
    } else {
        const double k = Real(in_ptr[image * rows * channels + first]);
        const Moments<Number> all = moments(sum, squares, m);
        offset = all.offset;
        mean = k + offset;
        var = all.var;
        dot = fma(-offset, go_sum, dot);
        weighted_dot = fma(-offset, weighted_go, weighted_dot);
    }
    const Number inv = inverse_root(var + eps);
    if (threadIdx.x == 0) {
        if (gw_ptr) gw_ptr[first] = Real(dot * inv);
        if (gb_ptr) gb_ptr[first] = Real(go_sum);
        if (statistics_ptr) {
            Number* statistics = reinterpret_cast<Number*>(statistics_ptr) + 5 * size_t(blockIdx.x);
            statistics[1] = offset;
            statistics[2] = inv;
        }
    }
    Number shift = -(weighted_go / m * inv), slope = -(weighted_dot * inv / m * inv * inv);
//% if "mean" not in gradient
    shift = fma(-mean, slope, shift);
//% endif
    for (size_t channel = first + threadIdx.x; channel < size_t(first) + per_group; channel += blockDim.x) {
        const double weight = w_ptr ? w_ptr[channel] : 1;
        const Number scale = inv * weight;
        if (training) {
            double* to = coefficients_ptr + image * channels * {{ gradient | length * parts }} + channel;
//% for name in gradient
//% for part in ([""] if parts == 1 else [".high", ".low"])
            to[{{ loop.index0 }} * size_t(channels)] = {{ name ~ part }};
//% endfor
            to += {{ parts }} * size_t(channels);
//% endfor
        } else {  // those with which norm_last_write makes grad_input of go: -0 adds up to a product as it is
            double* to = coefficients_ptr + channel;
//% for value in (["0.0", "scale"] if parts == 1 else ["0.0", "0.0", "scale.high", "scale.low"]) + ["-0.0"]
            to[{{ loop.index0 }} * size_t(channels)] = {{ value }};
//% endfor
        }
    }
}

__device__ inline Number coefficient(const double*& from, size_t channels) {
//% if parts == 2
    const Number number(from[0], from[channels]);
    from += 2 * channels;
//% else
    const Number number = *from;
    from += channels;
//% endif
    return number;
}

//% if "mean" not in gradient

// grad_input of a channel's values.
struct Sloped {
    double scale, slope, shift;
    __device__ Real operator()(Real x, Real go) const { return Real(fma(double(x), slope, fma(double(go), scale, shift))); }
};
//% else
typedef Slanted Sloped;
//% endif

template <bool BACKWARD>
struct Written {
    const typename Turns<BACKWARD>::At& at;
    const Element *x, *go;
    Element* to;
    const double* coefficients;

    template <unsigned WIDTH>
    __device__ void run(size_t channel, unsigned) {
        if constexpr (BACKWARD) {
            Sloped own[WIDTH];
#pragma unroll
            for (unsigned i = 0; i < WIDTH; ++i) {
                const double* from = coefficients + at.image * at.channels * {{ gradient | length * parts }} + channel + i;
//% for name in gradient
                own[i].{{ name }} = coefficient(from, at.channels);
//% endfor
            }
            Down<true, true, WIDTH, Write<WIDTH, Sloped, true>>{x, go, {to, own}}.run(at, channel);
        } else {
            Normal own[WIDTH];
#pragma unroll
            for (unsigned i = 0; i < WIDTH; ++i) {
                const double* from = coefficients + at.image * at.channels * {{ 2 * parts + 1 }} + channel + i;
                const Number mean = coefficient(from, at.channels), scale = coefficient(from, at.channels);
                own[i] = Normal{mean, scale, *from};
            }
            Down<false, true, WIDTH, Write<WIDTH, Normal, false>>{x, x, {to, own}}.run(at, channel);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, {{ 3 if T.name == "f32" else 2 }})
norm_last_write{{ suffix }}(const Element* in_ptr, Element* out_ptr, const double* coefficients_ptr, unsigned rows,
                unsigned channels, unsigned slices, unsigned across) {
    const Turns<false>::At at(rows, channels, slices, across);
    by_width(at, reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(out_ptr),
             Written<false>{at, in_ptr, in_ptr, out_ptr, coefficients_ptr});
}

extern "C" __global__ void __launch_bounds__(THREADS, {{ 3 if T.name == "f32" else 2 }})
norm_last_backward_write{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr,
                         const double* coefficients_ptr, unsigned rows, unsigned channels, unsigned slices, unsigned across) {
    const Turns<true>::At at(rows, channels, slices, across);
    const size_t addresses =
        reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(go_ptr) | reinterpret_cast<size_t>(gi_ptr);
    by_width(at, addresses, Written<true>{at, in_ptr, go_ptr, gi_ptr, coefficients_ptr});
}

struct Eval {
    const Turns<false>::At& at;
    const Element* x;
    Element* y;
    const Normal* shared;

    template <unsigned WIDTH>
    __device__ void run(size_t channel, unsigned place) {
        Normal own[WIDTH];
#pragma unroll
        for (unsigned i = 0; i < WIDTH; ++i) own[i] = shared[at.there ? at.lane * at.unit + place + i : 0];
        Down<false, false, WIDTH, Write<WIDTH, Normal, false>>{x, x, {y, own}}.run(at, channel);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, {{ 3 if T.name == "f32" else 2 }})
norm_last_eval{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr,
               const Real* mean_ptr, const Real* var_ptr, unsigned rows, unsigned channels, Real eps, unsigned slices, unsigned across) {
    __shared__ Normal shared[THREADS];  // of each channel in the block: a thread each
    const Turns<false>::At at(rows, channels, slices, across);
    const unsigned width = across * at.unit, channel = at.tile * width + threadIdx.x;
    if (threadIdx.x < width && channel < channels) {
        const double weight = w_ptr ? w_ptr[channel] : 1, bias = b_ptr ? b_ptr[channel] : 0;
        shared[threadIdx.x] = {mean_ptr[channel], inverse_root(Number(var_ptr[channel]) + eps) * weight, bias};
    }
    __syncthreads();
    by_width(at, reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(out_ptr), Eval{at, in_ptr, out_ptr, shared});
}
