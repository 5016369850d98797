//% set singles, halves = 8, 3
// batch_norm_tickets, {{ T.name }}: batch_norm in training, forward and backward, in one launch whose blocks write a channel
// soon after they have read it.
//
// The formulas stand in batch_norm.hip, and how they are computed in kernels_ptx/batch_norm.ptx; the sums are in the order
// of that one's variant split, with its bits. Every product that is added to something is an fma() in the text.
//
//   batch_norm_tickets, batch_norm_backward_tickets: any grid along x, 256 threads. A slice is `values` values of a
//     channel, a multiple of {{ 16 // T.size }}; batch * hw is below 2^31. sums_ptr: for each channel, the sums of its slices,
//     then one more of these whose first f64 is k: in place, x may be y already. tickets_ptr: zeros.

constexpr unsigned THREADS = 256, MOST_THREADS = THREADS;

//% include "elements.jinja"
//% include "pairs.jinja"
//% include "vectors.jinja"
//% include "block_sum.jinja"
//% include "moments.jinja"
//% include "walk.jinja"
//% include "batch_norm_parts.jinja"
//% include "tickets.jinja"

// One ticket's slice, and its channel's rows of partial sums.
template <bool BACKWARD>
struct Slice {
    static constexpr unsigned COUNT = BACKWARD ? 4 : 2;  // sums of a row
    unsigned slice, channel, slices, first, last;
    Number* rows;

    __device__ Slice(const Tickets& at, double* sums_ptr, unsigned slices, unsigned values, unsigned m)
        : slice(at.place % slices), channel(at.place / slices), slices(slices), first(slice * values),
          last(min(first + values, m)),
          rows(reinterpret_cast<Number*>(sums_ptr) + COUNT * size_t(channel) * (slices + 1)) {}

    __device__ double& k() const { return *reinterpret_cast<double*>(rows + COUNT * slices); }

    __device__ void leave(Sums& sums, double shift) const {
        if constexpr (BACKWARD) block_sum(sums.sum, sums.squares, sums.go_sum, sums.dot);
        else block_sum(sums.sum, sums.squares);
        if (threadIdx.x == 0) {
            Number* row = rows + COUNT * slice;
            row[0] = sums.sum;
            row[1] = sums.squares;
            if constexpr (BACKWARD) {
                row[2] = sums.go_sum;
                row[3] = sums.dot;
            }
            if (slice == 0) k() = shift;
        }
    }

    __device__ Sums all() const {
        Sums sums;
        if (threadIdx.x < 128) {  // so that the order is that of batch_norm_finish
            for (unsigned row = threadIdx.x; row < slices; row += 128) {
                const Number* part = rows + COUNT * row;
                sums.sum += part[0];
                sums.squares += part[1];
                if constexpr (BACKWARD) {
                    sums.go_sum += part[2];
                    sums.dot += part[3];
                }
            }
        }
        if constexpr (BACKWARD) block_sum(sums.sum, sums.squares, sums.go_sum, sums.dot);
        else block_sum(sums.sum, sums.squares);
        return sums;
    }
};

//% if entry is none or "backward" not in entry
extern "C" __global__ void __launch_bounds__(THREADS, {{ 2 if T.name == "f64" else 4 }})
batch_norm_tickets{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr,
                   Real* mean_ptr, Real* var_ptr, Real* rmean_ptr, Real* rvar_ptr, double* sums_ptr,
                   unsigned* tickets_ptr, unsigned batch, unsigned channels, unsigned hw, Real eps, Real momentum,
                   unsigned slices, unsigned values, unsigned tickets, unsigned lead) {
    __shared__ Normal normal;
    const size_t pitch = size_t(channels) * hw;
    const unsigned m = batch * hw;
    const size_t addresses = reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(out_ptr);
    for (Tickets at(tickets_ptr, tickets, lead); at.next();) {
        const Slice<false> own(at, sums_ptr, slices, values, m);
        const size_t home = size_t(own.channel) * hw;
        const Element* x = in_ptr + home;
        if (!at.output) {
            const double k = Real(x[0]);
            Sums sums;
            by_width(hw, addresses, Units<THREADS, false, Adding<false>>{x, x, pitch, hw, own.first, own.last, {sums, k}});
            own.leave(sums, k);
            at.announce(own.channel);
        } else {
            const Known<false> known(own.channel, w_ptr, b_ptr);
            at.await(own.channel, slices);
            const double k = own.k();
            const Sums sums = own.all();
            Number var;
            if (threadIdx.x == 0) normal = sums.normal(k, m, known, eps, var);
            __syncthreads();
            const Normal formula = normal;
            if (threadIdx.x == 0 && own.slice == 0) {
                report(formula.mean, var, m, own.channel, mean_ptr, var_ptr, rmean_ptr, rvar_ptr, momentum);
            }
            by_width(hw, addresses, Units<THREADS, false, Writing<false, Normal>>{
                x, x, pitch, hw, own.first, own.last, {out_ptr + home, formula}});
        }
    }
}
//% endif
//% if entry is none or "backward" in entry

extern "C" __global__ void __launch_bounds__(THREADS, {{ 2 if T.name == "f64" else 3 }})
batch_norm_backward_tickets{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr, Real* gw_ptr,
                            Real* gb_ptr, const Real* w_ptr, const Real* mean_ptr, const Real* var_ptr,
                            double* sums_ptr, unsigned* tickets_ptr, unsigned batch, unsigned channels, unsigned hw,
                            Real eps, unsigned slices, unsigned values, unsigned tickets, unsigned lead) {
    __shared__ Gradient gradient;
    for (Tickets at(tickets_ptr, tickets, lead); at.next();) {
        const size_t addresses =
            reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(go_ptr) | reinterpret_cast<size_t>(gi_ptr);
        const size_t pitch = size_t(channels) * hw;
        const unsigned m = batch * hw;
        const Slice<true> own(at, sums_ptr, slices, values, m);
        // hw, of which no compiler knows that it is the same in each turn: what follows from it for walks by each width would
        // be more scalar registers than AMD's GPUs have.
        const unsigned row = hw + (own.first > own.last);
        const size_t home = size_t(own.channel) * hw;
        const Element *x = in_ptr + home, *go = go_ptr + home;
        if (!at.output) {
            const double k = mean_ptr ? mean_ptr[own.channel] : Real(x[0]);
            Sums sums;
            by_width(row, addresses, Units<THREADS, true, Adding<true>>{x, go, pitch, row, own.first, own.last, {sums, k}});
            own.leave(sums, k);
            at.announce(own.channel);
        } else {
            const Known<true> known(own.channel, w_ptr, mean_ptr ? var_ptr : nullptr);
            at.await(own.channel, slices);
            const double k = own.k();
            const Sums sums = own.all();
            if (threadIdx.x == 0) {
                gradient = sums.gradient(k, m, own.channel, known, mean_ptr, own.slice ? nullptr : gw_ptr,
                                         own.slice ? nullptr : gb_ptr, eps);
            }
            __syncthreads();
            const Gradient formula = gradient;
            by_width(row, addresses, Units<THREADS, true, Writing<true, Gradient>>{
                x, go, pitch, row, own.first, own.last, {gi_ptr + home, formula}});
        }
    }
}
//% endif
