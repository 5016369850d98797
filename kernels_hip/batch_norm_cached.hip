//% set kept, kept_by_few = 46 * 1024 // T.size, 49 * 512 // T.size
/*#- Threads of a block that holds a channel, forward and backward -> the blocks that registers leave room for. -#*/
//% set at_once = ({128: {"f32": 8}.get(T.name, 6), 256: 3 if T.size == 2 else 4}, {128: {"f32": 6}.get(T.name, 4), 512: {"f32": 2}.get(T.name, 1)})
//% set rest = (0, 0) if T.name == "f64" else (4, 2)
//% if T.name == "f64"
//% set singles = 7
//% endif
// batch_norm_cached, {{ T.name }}: batch_norm in training, forward and backward, by a block a channel that holds all its values.
//
// The formulas, how they are computed and why that is accurate stand in batch_norm.ptx. What is different is that each value is
// read once: it stays in shared memory{{ ", or in a register of its thread," if rest[0] }} between the sums and the result.
//
//   batch_norm_cached, batch_norm_backward_cached: grid (channels), 256 and 512 threads, in training: all, reading once
//     into shared memory{{ " and registers" if rest[0] }}, batch * hw up to {{ kept + 256 * rest[0] }} and {{ kept // 2 + 512 * rest[1] }}. The
//     backward one computes the statistics where mean_ptr is null.
//   batch_norm_cached128, batch_norm_backward_cached128: the same of 128 threads, batch * hw up to {{ kept_by_few + 128 * rest[0] }} and
//     {{ kept_by_few // 2 + 128 * rest[1] }}, of which more blocks fit a multiprocessor.

constexpr int MOST_THREADS = 512;

//% include "elements.jinja"
//% include "pairs.jinja"
//% include "block_sum.jinja"
//% include "moments.jinja"
//% include "vectors.jinja"
//% include "walk.jinja"
//% include "batch_norm_parts.jinja"

template <bool BACKWARD, unsigned THREADS>
struct Cached {
    static constexpr unsigned MOST = (THREADS == 128 ? {{ kept_by_few }} : {{ kept }}) / (BACKWARD ? 2 : 1);
    static constexpr unsigned REST = BACKWARD ? {{ rest[1] }} : {{ rest[0] }};  // values of a thread behind these
    typedef typename Choice<BACKWARD>::Formula Formula;

    const Element *in_ptr, *go_ptr;
    Element* out_ptr;
    const Real *w_ptr, *b_ptr, *given_mean, *given_var;
    Real *mean_ptr, *var_ptr, *rmean_ptr, *rvar_ptr, *gw_ptr, *gb_ptr;
    unsigned batch, channels, hw;
    Real eps, momentum;
    Element* kept;  // of x, and behind them of go

    struct Keeping {
        Adding<BACKWARD> adding;
        Element* slot;
        template <unsigned WIDTH>
        __device__ void one(size_t offset, const Real (&values)[WIDTH], const Real (&gradients)[WIDTH]) {
            store<true>(slot, values);
            if constexpr (BACKWARD) store<true>(slot + MOST, gradients);
            slot += THREADS * WIDTH;
            adding.one(offset, values, gradients);
        }
    };

    template <unsigned WIDTH>
    __device__ void run() {
        __shared__ Formula all;
        const size_t channel = blockIdx.x, pitch = size_t(channels) * hw, home = channel * hw;
        const Element *x = in_ptr + home, *go = go_ptr + home;
        const unsigned m = batch * hw;
        const double k = given_mean ? given_mean[channel] : Real(x[0]);
        Sums sums;
        const unsigned held = min(m, MOST);
        Units<THREADS, BACKWARD, Keeping>{x, go, pitch, hw, 0, held, {{ "{" }}{sums, k}, kept + threadIdx.x * WIDTH}}
            .template run<WIDTH>();
//% if rest[0]
        Real rest[REST], rest_go[REST];  // what shared memory does not hold
        for_rest(m, [&](unsigned i, size_t offset) {
            rest[i] = Real(x[offset]);
            if constexpr (BACKWARD) {
                rest_go[i] = Real(go[offset]);
                sums.take(rest[i], rest_go[i], k);
            } else {
                sums.take(rest[i], k);
            }
        });
//% endif
        if constexpr (BACKWARD) block_sum(sums.sum, sums.squares, sums.go_sum, sums.dot);
        else block_sum(sums.sum, sums.squares);
        const Known<BACKWARD> known(channel, w_ptr, BACKWARD ? given_var : b_ptr);
        Number var;
        if (threadIdx.x == 0) {
            if constexpr (BACKWARD) all = sums.gradient(k, m, channel, known, given_mean, gw_ptr, gb_ptr, eps);
            else all = sums.normal(k, m, known, eps, var);
        }
        __syncthreads();
        const Formula formula = all;
        if constexpr (!BACKWARD) {
            if (threadIdx.x == 0) {
                report(formula.mean, var, m, channel, mean_ptr, var_ptr, rmean_ptr, rvar_ptr, momentum);
            }
        }
        Writing<BACKWARD, Formula> writing{out_ptr + home, formula};
        Walk at(threadIdx.x, THREADS, hw / WIDTH, pitch, WIDTH);
#pragma unroll 2
        for (unsigned unit = threadIdx.x; unit < held / WIDTH; unit += THREADS, at.next()) {
            Real values[WIDTH], gradients[WIDTH];
            load<true>(values, kept + unit * WIDTH);
            if constexpr (BACKWARD) load<true>(gradients, kept + MOST + unit * WIDTH);
            writing.one(at.offset, values, gradients);
        }
//% if rest[0]
        for_rest(m, [&](unsigned i, size_t offset) {
            const Real values[1] = {rest[i]}, gradients[1] = {rest_go[i]};
            writing.one(offset, values, gradients);
        });
//% endif
    }
//% if rest[0]

    template <typename Use>
    __device__ void for_rest(unsigned m, Use use) {
        if (m <= MOST) return;
        Walk at(MOST + threadIdx.x, THREADS, hw, size_t(channels) * hw);
#pragma unroll
        for (unsigned i = 0; i < REST; ++i, at.next()) {
            if (at.row < batch) use(i, at.offset);
        }
    }
//% endif
};
//% for own_threads, ending in ((256, ""), (128, "128")) if entry is none or entry.endswith("norm_cached" ~ ending ~ suffix)

extern "C" __global__ void __launch_bounds__({{ own_threads }}, {{ at_once[0][own_threads] }})
batch_norm_cached{{ ending ~ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr,
                  Real* mean_ptr, Real* var_ptr, Real* rmean_ptr, Real* rvar_ptr, unsigned batch, unsigned channels,
                  unsigned hw, Real eps, Real momentum) {
    typedef Cached<false, {{ own_threads }}> Work;
    alignas(16) __shared__ Element kept[Work::MOST];
    const size_t addresses = reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(out_ptr);
    by_width(hw, addresses, Work{in_ptr, in_ptr, out_ptr, w_ptr, b_ptr, nullptr, nullptr, mean_ptr, var_ptr, rmean_ptr,
                                 rvar_ptr, nullptr, nullptr, batch, channels, hw, eps, momentum, kept});
}
//% endfor
//% for own_threads, ending in ((512, ""), (128, "128")) if entry is none or entry.endswith("backward_cached" ~ ending ~ suffix)

extern "C" __global__ void __launch_bounds__({{ own_threads }}, {{ at_once[1][own_threads] }})
batch_norm_backward_cached{{ ending ~ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr, Real* gw_ptr,
                           Real* gb_ptr, const Real* w_ptr, const Real* mean_ptr, const Real* var_ptr,
                           unsigned batch, unsigned channels, unsigned hw, Real eps) {
    typedef Cached<true, {{ own_threads }}> Work;
    alignas(16) __shared__ Element kept[2 * Work::MOST];
    const size_t addresses =
        reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(go_ptr) | reinterpret_cast<size_t>(gi_ptr);
    by_width(hw, addresses, Work{in_ptr, go_ptr, gi_ptr, w_ptr, nullptr, mean_ptr, mean_ptr ? var_ptr : nullptr, nullptr,
                                 nullptr, nullptr, nullptr, gw_ptr, gb_ptr, batch, channels, hw, eps, 0, kept});
}
//% endfor
