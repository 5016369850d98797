// group_norm_tickets, {{ T.name }}: group_norm in one launch, whose blocks write a group soon after they have read it.
//
// The formula, and why its sums are accurate, stand in kernels_ptx/group_norm.ptx; the sums are in the order of
// that file's split entries. Every product that is added to something is an fma() in the text.
//
//   group_norm_tickets_kernel: any grid along x, 256 threads. A slice is `length` values of a group. out_ptr may be in_ptr.
//     sums_ptr: for each group of each image, slices of (sum(d), sum(d*d)), then (k, k).
//     tickets_ptr: zeros; the counters of tickets.jinja. A null w_ptr is a weight of ones, a null b_ptr a bias of zeros.
//
// Backward, a slice is a unit, `length` values of a channel of an image:
//
//   group_norm_backward_tickets_kernel: any grid along x, 256 threads. gi_ptr may be in_ptr or go_ptr. partials_ptr: for
//     each unit sum(d), sum(d*d), sum(go), sum(go*d). statistics_ptr: five Numbers for each group of each image: first k,
//     then offset and inv, of which group_norm.hip makes the gradients of weight and bias. tickets_ptr as above.

constexpr unsigned THREADS = 256, MOST_THREADS = THREADS;

//% include "elements.jinja"
//% include "pairs.jinja"
//% if T.name == "f64"
//% include "own_sums.jinja"
//% endif
//% include "vectors.jinja"
//% include "block_sum.jinja"
//% include "moments.jinja"
//% include "walk.jinja"
//% include "tickets.jinja"

// Loads that are under way at a time, of one tensor and of each of two.
constexpr unsigned TURNS = {{ {2: 2, 4: 4, 8: 4}[T.size] }}, HALF_TURNS = {{ 1 if T.size == 2 else 2 }};

//% include "group_norm_loops.jinja"
//% include "group_norm_gradient.jinja"

extern "C" __global__ void __launch_bounds__(THREADS, 2)
group_norm_tickets_kernel{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr,
                          double* sums_ptr, unsigned* tickets_ptr, unsigned channels, unsigned groups, unsigned hw,
                          Real eps, unsigned slices, unsigned length, unsigned tickets, unsigned lead) {
    const unsigned per_group = channels / groups;
    const size_t n = size_t(per_group) * hw;
    const size_t addresses = reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(out_ptr);
    for (Tickets at(tickets_ptr, tickets, lead); at.next();) {
        const unsigned group = at.place / slices, slice = at.place % slices;
        const size_t start = group * n, begin = size_t(slice) * length;
        const unsigned count = min(n - begin, size_t(length));
        Number* sums = reinterpret_cast<Number*>(sums_ptr) + 2 * size_t(group) * (slices + 1);
        Number sum = 0, squares = 0;
        if (!at.output) {
            const double k = Real(in_ptr[start]);
            by_vectors(hw, addresses, Sums{in_ptr + start + begin, nullptr, count, k, sum, squares});
            block_sum(sum, squares);
            if (threadIdx.x == 0) {
                sums[2 * slice] = sum;
                sums[2 * slice + 1] = squares;
                if (slice == 0) *reinterpret_cast<double*>(sums + 2 * slices) = k;
            }
            at.announce(group);
        } else {
            // k too is read from the workspace: in place, x may be y already.
            at.await(group, slices);
            const double k = *reinterpret_cast<const double*>(sums + 2 * slices);
            for (unsigned row = threadIdx.x; row < slices; row += THREADS) {
                sum += sums[2 * row];
                squares += sums[2 * row + 1];
            }
            block_sum(sum, squares);
            const Moments<Number> all = moments(sum, squares, n);
            const Number mean = k + all.offset, inv = inverse_root(all.var + eps);
            const Element* x = in_ptr + start + begin;
            Element* y = out_ptr + start + begin;
            const size_t first_channel = size_t(group % groups) * per_group;
            by_vectors(hw, addresses, Output{x, y, w_ptr, b_ptr, first_channel, begin, count, hw, mean, inv});
        }
    }
}

struct BackwardSums {
    const Element *x, *go;
    unsigned count;
//% if T.name == "f64"
    OwnSums& own;

//% else
    double k;
    Number &sum, &squares, &go_sum, &go_dot;

//% endif
    template <unsigned WIDTH, bool ALIGNED, unsigned AT_ONCE>
    __device__ unsigned turns(unsigned i) {
        constexpr unsigned STEP = THREADS * WIDTH;
        for (; i < count && count - i > (AT_ONCE - 1) * STEP; i += AT_ONCE * STEP) {
            Real values[AT_ONCE][WIDTH], grads[AT_ONCE][WIDTH];
#pragma unroll
            for (unsigned turn = 0; turn < AT_ONCE; ++turn) {
                load<ALIGNED>(values[turn], x + i + turn * STEP);
                load<ALIGNED>(grads[turn], go + i + turn * STEP);
            }
#pragma unroll
            for (unsigned turn = 0; turn < AT_ONCE; ++turn) {
#pragma unroll
                for (unsigned place = 0; place < WIDTH; ++place) {
//% if T.name == "f64"
                    const bool first = turn == 0 && place == 0, last = turn == AT_ONCE - 1 && place == WIDTH - 1;
                    own.take(values[turn][place], grads[turn][place], 1, first, last);
//% else
                    const Number d = Number(values[turn][place]) - k;
                    const double g = grads[turn][place];
                    sum += d;
                    squares = fma(d, d, squares);
                    go_sum += g;
                    go_dot = fma(d, g, go_dot);
//% endif
                }
            }
        }
        return i;
    }

    template <unsigned WIDTH, bool ALIGNED>
    __device__ void run() {
//% if T.name == "f64"
        const unsigned begin = threadIdx.x * WIDTH < count ? threadIdx.x * WIDTH : 0;
        own.own_k = x[begin];
        own.own_g = fabs(go[begin]) < __longlong_as_double(0x7FF0000000000000) ? go[begin] : 0;  // an infinite sum stays so
//% endif
        const unsigned rest = turns<WIDTH, ALIGNED, HALF_TURNS>(threadIdx.x * WIDTH);
        if constexpr (HALF_TURNS > 1) turns<WIDTH, ALIGNED, 1>(rest);
    }
};

struct GradInput {
    const Element *x, *go;
    Element* gi;
    unsigned count;
    Gradient gradient;

    template <unsigned WIDTH, bool ALIGNED, unsigned AT_ONCE>
    __device__ unsigned turns(unsigned i) {
        constexpr unsigned STEP = THREADS * WIDTH;
        for (; i < count && count - i > (AT_ONCE - 1) * STEP; i += AT_ONCE * STEP) {
            Real values[AT_ONCE][WIDTH], grads[AT_ONCE][WIDTH];
#pragma unroll
            for (unsigned turn = 0; turn < AT_ONCE; ++turn) {
                load<ALIGNED>(values[turn], x + i + turn * STEP);
                load<ALIGNED>(grads[turn], go + i + turn * STEP);
            }
#pragma unroll
            for (unsigned turn = 0; turn < AT_ONCE; ++turn) {
#pragma unroll
                for (unsigned place = 0; place < WIDTH; ++place) {
                    values[turn][place] = gradient(values[turn][place], grads[turn][place]);
                }
                store<ALIGNED>(gi + i + turn * STEP, values[turn]);
            }
        }
        return i;
    }

    template <unsigned WIDTH, bool ALIGNED>
    __device__ void run() {
        const unsigned rest = turns<WIDTH, ALIGNED, HALF_TURNS>(threadIdx.x * WIDTH);
        if constexpr (HALF_TURNS > 1) turns<WIDTH, ALIGNED, 1>(rest);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, {{ 4 if T.size == 2 else 3 }})
group_norm_backward_tickets_kernel{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr,
                                   const Real* w_ptr, double* partials_ptr, double* statistics_ptr,
                                   unsigned* tickets_ptr, unsigned channels, unsigned groups, unsigned hw, Real eps,
                                   unsigned slices, unsigned length, unsigned tickets, unsigned lead) {
    const unsigned per_group = channels / groups, units = per_group * slices;
    const size_t n = size_t(per_group) * hw;
    const size_t addresses = reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(go_ptr) |
                             reinterpret_cast<size_t>(gi_ptr);
    Number* partials = reinterpret_cast<Number*>(partials_ptr);
    for (Tickets at(tickets_ptr, tickets, lead); at.next();) {
        const unsigned row = at.place / slices, begin = at.place % slices * length, count = min(hw - begin, length);
        const unsigned group = row / per_group;
        const size_t start = size_t(row) * hw + begin, group_start = group * n;
        Number* statistics = reinterpret_cast<Number*>(statistics_ptr) + 5 * size_t(group);
        const bool leaves = threadIdx.x == 0 && start == group_start;
        Number sum = 0, squares = 0, go_sum = 0, go_dot = 0;
        if (!at.output) {
            const double k = Real(in_ptr[group_start]);
//% if T.name == "f64"
            // Of few values a thread has one, its own, so that the pairs lose nothing.
            OwnSums own{0, 0, 0, sum, squares, go_sum, go_dot};
            by_vectors(n < 64 ? 1 : hw, addresses, BackwardSums{in_ptr + start, go_ptr + start, count, own});
            own.shift_to(k, true);
//% else
            by_vectors(hw, addresses, BackwardSums{in_ptr + start, go_ptr + start, count, k, sum, squares, go_sum, go_dot});
//% endif
            block_sum(sum, squares, go_sum, go_dot);
            if (threadIdx.x == 0) {
                Number* partial = partials + 4 * size_t(at.place);
                partial[0] = sum;
                partial[1] = squares;
                partial[2] = go_sum;
                partial[3] = go_dot;
            }
            // In place, x may be grad_input when k is needed next.
            if (leaves) *reinterpret_cast<double*>(statistics) = k;
            at.announce(group);
        } else {
            at.await(group, units);
            const double k = *reinterpret_cast<const double*>(statistics);
            const Number* partial = partials + 4 * (size_t(group) * units + threadIdx.x);
            for (unsigned unit = threadIdx.x; unit < units; unit += THREADS, partial += 4 * THREADS) {
                const double weight = w_ptr ? w_ptr[(group * per_group + unit / slices) % channels] : 1;
                sum += partial[0];
                squares += partial[1];
                go_sum = fma(partial[2], weight, go_sum);
                go_dot = fma(partial[3], weight, go_dot);
            }
            block_sum(sum, squares, go_sum, go_dot);
            const Moments<Number> all = moments(sum, squares, n);
            const Number mean = k + all.offset, inv = inverse_root(all.var + eps);
            if (leaves) {
                statistics[1] = all.offset;
                statistics[2] = inv;
            }
            const Number mean_g = go_sum / n, slope = fma(-all.offset, go_sum, go_dot) * inv / n * inv;
            const double weight = w_ptr ? w_ptr[row % channels] : 1;
            const Element *x = in_ptr + start, *go = go_ptr + start;
            by_vectors(hw, addresses, GradInput{x, go, gi_ptr + start, count, {{ "Gradient{n < 64, weight, mean, inv, rounded(mean_g), rounded(slope)}" if T.name == "f64" else "Gradient{weight, mean, inv, mean_g, slope}" }}});
        }
    }
}
