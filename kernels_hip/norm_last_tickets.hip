//% set one_each, single = true, true
// norm_last_tickets, {{ T.name }}: batch_norm in training and group_norm of channels-last arrays, forward and backward, in one launch.
//
// An array is [images, rows, channels], a group per_group neighbouring channels of all rows of an image. To batch_norm all
// positions are rows of one image, and each channel is a group. {{ 16 // T.size }} divides `channels`. Formulas, and why the sums are accurate, stand in
// kernels_ptx/batch_norm.ptx and group_norm.ptx: sums are of d = x - k and of go, k being a group's first value, or the mean
// where that is given. Every product that is added to something is an fma() in the text.
//
// A tile is `across` vectors of 16 bytes side by side, whole groups, of all rows of an image; its slices, `length` rows each, have
// the tickets of tickets.jinja. A block that draws one for sums leaves those of each channel of the slice in the workspace. One
// that draws one for output adds up those of the tile's groups, makes the coefficients of its channels, and writes the
// slice. Arrays are small, so that what a thread waits for counts: whatever the ticket, its first rows are asked for
// before anything else, and what coefficients need besides sums before these are awaited.
//
//   norm_last_tickets, norm_last_backward_tickets: `tickets` blocks of 256 threads. An image has less than 2^31 values, and
//     `tiles` tiles of at most 128 channels. 2^adding threads, up to 32, add up a channel of a block's rows, 2^gathering a
//     group's sums: as many as the block has for each. out_ptr may be in_ptr, gi_ptr in_ptr or go_ptr.
//     sums_ptr: [images, channels, slices] of two Numbers, backward of four, of which group_norm's gradients of weight and bias
//     are made. shifts_ptr: [images, channels] of k: in place, x may be y already. tickets_ptr: zeros.
//     Backward, of batch_norm: gw_ptr and gb_ptr, unless null; of group_norm: statistics_ptr, as in kernels_ptx/norm_last.ptx.
//     A null w_ptr is a weight of ones, a null b_ptr a bias of zeros; other null pointers are of what is not given or wanted.

constexpr unsigned THREADS = 256, MOST_CHANNELS = 128, ROOM = THREADS * {{ 16 // T.size }} + MOST_CHANNELS;

//% include "elements.jinja"
//% include "pairs.jinja"
//% include "vectors.jinja"
//% include "words.jinja"
//% include "moments.jinja"
//% include "walk.jinja"
//% include "batch_norm_parts.jinja"
//% include "norm_last_parts.jinja"
//% include "over_lanes.jinja"
//% include "statistics.jinja"
//% include "tickets.jinja"

// How a launch cuts its arrays. What is divided by stands beside its reciprocal, 2^31 over it, rounded up: the host refuses what
// that is not exact for.
struct Cut {
    unsigned rows, channels, per_group, slices, length, tiles, across, adding, gathering;
    unsigned by_group, by_slices, by_tiles, by_across;
};

__device__ inline unsigned over(unsigned count, unsigned reciprocal) {
    return unsigned((unsigned long long)count * reciprocal >> 31);
}

// A ticket's slice of a tile.
struct Slice {
    unsigned tile, number, channel, width, begin, end;  // the tile among those of all images; its first channel, and how many
    size_t image;

    __device__ Slice(const Cut& cut, unsigned place) {
        tile = over(place, cut.by_slices);
        number = place - tile * cut.slices;
        begin = number * cut.length;
        end = min(begin + cut.length, cut.rows);
        const unsigned of_image = over(tile, cut.by_tiles), most = cut.across * VECTOR;
        image = of_image;
        channel = (tile - of_image * cut.tiles) * most;
        width = min(most, cut.channels - channel);
    }
};

// A thread's rows of a slice, each at_once-th one, of {{ 16 // T.size }} channels: the next few are on their way.
template <bool BACKWARD>
struct Rows {
    const unsigned channels, at_once, own;
    unsigned column;  // the first channel among the tile's
    bool there;
    size_t first;  // its place in the image's first row

    __device__ Rows(const Cut& cut, const Slice& slice, const Element* in, const Element* grad, bool aligned)
        : channels(cut.channels), at_once(over(THREADS, cut.by_across)), own(over(threadIdx.x, cut.by_across)),
          aligned(aligned) {
        column = (threadIdx.x - own * cut.across) * VECTOR;
        row = slice.begin + own;
        there = own < at_once && column < slice.width;
        if (!there) column = 0;
        end = there ? slice.end : 0;
        first = slice.image * cut.rows * channels + slice.channel + column;
        x = in + first;
        go = grad + first;
        ask();
    }

    // `use` of each row, with its offset from the image's first.
    template <typename Use>
    __device__ void each(Use use) {
        while (row < end) {
#pragma unroll
            for (unsigned i = 0; i < AT_ONCE; ++i) {
                if (row + i * at_once >= end) continue;
                Real own[VECTOR], grads[VECTOR];
                widen(own, values[i]);
                if constexpr (BACKWARD) widen(grads, gradients[i]);
                use.one(offset(i), own, grads);
            }
            row += AT_ONCE * at_once;
            ask();
        }
    }

    template <typename Formula>
    __device__ void write(Element* out, const Formula (&formulas)[VECTOR]) {
        if (aligned) each(Write<VECTOR, Formula, BACKWARD, true>{out + first, formulas});
        else each(Write<VECTOR, Formula, BACKWARD, false>{out + first, formulas});
    }

  private:
    static constexpr unsigned AT_ONCE = BACKWARD ? 2 : 4;
    const bool aligned;
    unsigned row, end;
    const Element *x, *go;
    Words values[AT_ONCE], gradients[BACKWARD ? AT_ONCE : 1];

    __device__ unsigned offset(unsigned i) const { return (row + i * at_once) * channels; }

    __device__ void ask() {
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; ++i) {
            if (row + i * at_once >= end) continue;
            values[i] = read(x + offset(i), aligned);
            if constexpr (BACKWARD) gradients[i] = read(go + offset(i), aligned);
        }
    }
};

// The sums of a channel of a slice, as they lie in the workspace.
template <unsigned COUNT>
struct alignas(16) Row {
    Number numbers[COUNT];
};

// What a block does for either kind of ticket.
template <bool BACKWARD>
struct Norm {
    static constexpr unsigned COUNT = BACKWARD ? 4 : 2;
    const Cut cut;
    Row<COUNT>* const sums;
    double* const shifts;
    Number* const space;  // ROOM of them

    // Leaves the sums of a slice in the workspace.
    __device__ void add_up(const Slice& slice, Rows<BACKWARD>& rows, const Element* in, const Real* mean_ptr) const {
        const size_t first = slice.image * cut.channels + slice.channel;
        const Element* first_row = in + slice.image * cut.rows * cut.channels;
        double k[VECTOR];
        unsigned within = rows.column - over(rows.column, cut.by_group) * cut.per_group;
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) {
            const unsigned channel = slice.channel + rows.column + i;
            k[i] = mean_ptr ? mean_ptr[channel] : Real(first_row[channel - within]);
            within = within + 1 == cut.per_group ? 0 : within + 1;
        }
        Sums own[VECTOR];
        rows.each(AddEach<BACKWARD, VECTOR>{own, k});
        if (slice.number == 0 && threadIdx.x < cut.across && rows.there) {
#pragma unroll
            for (unsigned i = 0; i < VECTOR; ++i) shifts[first + rows.column + i] = k[i];
        }
        Row<COUNT> all;
        all.numbers[0] = of_rows(slice, rows, own, &Sums::sum);
        all.numbers[1] = of_rows(slice, rows, own, &Sums::squares);
        if constexpr (BACKWARD) {
            all.numbers[2] = of_rows(slice, rows, own, &Sums::go_sum);
            all.numbers[3] = of_rows(slice, rows, own, &Sums::dot);
        }
        over_lanes((1u << cut.adding) / 2, all);
        const unsigned channel = threadIdx.x >> cut.adding;
        if (channel << cut.adding == threadIdx.x && channel < slice.width) {
            sums[(first + channel) * cut.slices + slice.number] = all;
        }
    }

    // The sums of a group, over its channels and their slices, each of which counts as often as its weight says; for the
    // threads that have a channel of the tile.
    __device__ Row<COUNT> gather(const Slice& slice, const double* weights) const {
        const unsigned gatherers = 1u << cut.gathering, lane = threadIdx.x % gatherers;
        const unsigned first = (threadIdx.x >> cut.gathering) * cut.per_group;
        const unsigned count = first < slice.width ? cut.per_group * cut.slices : 0;
        const Row<COUNT>* rows = sums + (slice.image * cut.channels + slice.channel + first) * cut.slices;
        Row<COUNT> all{};
        for (unsigned i = lane; i < count; i += AHEAD * gatherers) {
            Row<COUNT> some[AHEAD];
#pragma unroll
            for (unsigned u = 0; u < AHEAD; ++u) {
                if (i + u * gatherers < count) some[u] = rows[i + u * gatherers];
            }
#pragma unroll
            for (unsigned u = 0; u < AHEAD; ++u) {
                if (i + u * gatherers >= count) continue;
                all.numbers[0] += some[u].numbers[0];
                all.numbers[1] += some[u].numbers[1];
                if constexpr (BACKWARD) {
                    const double weight = weights[first + over(i + u * gatherers, cut.by_slices)];
                    all.numbers[2] = fma(some[u].numbers[2], weight, all.numbers[2]);
                    all.numbers[3] = fma(some[u].numbers[3], weight, all.numbers[3]);
                }
            }
        }
        const unsigned lanes = min(gatherers, unsigned(GROUP)), parts = cut.gathering < 5 ? 1 : gatherers / GROUP;
        over_lanes(lanes / 2, all);
        Row<COUNT>* of_groups = reinterpret_cast<Row<COUNT>*>(space);
        if (lane % lanes == 0) of_groups[threadIdx.x >> min(cut.gathering, 5u)] = all;
        __syncthreads();
        if (threadIdx.x < slice.width) {
            of_groups += over(threadIdx.x, cut.by_group) * parts;
            all = of_groups[0];
#pragma unroll 1
            for (unsigned part = 1; part < parts; ++part) {
                for (unsigned n = 0; n < COUNT; ++n) all.numbers[n] += of_groups[part].numbers[n];
            }
        }
        return all;
    }

  private:
    static constexpr unsigned AHEAD = {{ 2 if T.name == "f64" else 4 }};

    // The thread's share of the sum of a block's rows, of the channel that it adds up with others. A channel's numbers lie side
    // by side, with room for one more before the next channel's, which spreads them over the banks.
    __device__ Number of_rows(const Slice& slice, const Rows<BACKWARD>& thread, const Sums (&own)[VECTOR],
                              Number Sums::*member) const {
        const unsigned pitch = thread.at_once + 1, adders = 1u << cut.adding, channel = threadIdx.x >> cut.adding;
        __syncthreads();  // shared memory has been read
        if (thread.there) {
#pragma unroll
            for (unsigned i = 0; i < VECTOR; ++i) space[(thread.column + i) * pitch + thread.own] = own[i].*member;
        }
        __syncthreads();
        const unsigned rows = channel < slice.width ? thread.at_once : 0;
        const Number* from = space + channel * pitch;
        Number sum = 0;
        for (unsigned row = threadIdx.x % adders; row < rows; row += VECTOR * adders) {
            Number some[VECTOR];
#pragma unroll
            for (unsigned u = 0; u < VECTOR; ++u) {
                if (row + u * adders < rows) some[u] = from[row + u * adders];
            }
#pragma unroll
            for (unsigned u = 0; u < VECTOR; ++u) {
                if (row + u * adders < rows) sum += some[u];
            }
        }
        return sum;
    }

    static __device__ void over_lanes(unsigned distance, Row<COUNT>& row) {
        if constexpr (BACKWARD) ::over_lanes(distance, row.numbers[0], row.numbers[1], row.numbers[2], row.numbers[3]);
        else ::over_lanes(distance, row.numbers[0], row.numbers[1]);
    }
};

//% if entry is none or "backward" not in entry

extern "C" __global__ void __launch_bounds__(THREADS, 2)
norm_last_tickets{{ suffix }}(const Element* in_ptr, Element* out_ptr, const Real* w_ptr, const Real* b_ptr, Real* mean_ptr,
                  Real* var_ptr, Real* rmean_ptr, Real* rvar_ptr, double* sums_ptr, double* shifts_ptr,
                  unsigned* tickets_ptr, unsigned rows, unsigned channels, unsigned per_group, Real eps, Real momentum,
                  unsigned slices, unsigned length, unsigned tiles, unsigned across, unsigned adding, unsigned gathering,
                  unsigned by_group, unsigned by_slices, unsigned by_tiles, unsigned by_across, unsigned tickets,
                  unsigned lead) {
    __shared__ Row<2> space[ROOM / 2];
    __shared__ Normal formulas[MOST_CHANNELS];
    Tickets at(tickets_ptr, tickets, lead);
    const Norm<false> norm{{ "{{" }}rows, channels, per_group, slices, length, tiles, across, adding, gathering, by_group, by_slices,
                            by_tiles, by_across},
                           reinterpret_cast<Row<2>*>(sums_ptr), shifts_ptr, space[0].numbers};
    const double m = double(size_t(per_group) * rows);
    const bool aligned = (reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(out_ptr)) % 16 == 0;
    Statistics statistics(m);
    if (!at.next()) return;
    const Slice slice(norm.cut, at.place);
    Rows<false> values(norm.cut, slice, in_ptr, in_ptr, aligned);
    if (!at.output) {
        norm.add_up(slice, values, in_ptr, nullptr);
        at.announce(slice.tile);
    } else {
        const bool finds = threadIdx.x < slice.width, reports = finds && slice.number == 0 && mean_ptr;
        const unsigned channel = slice.channel + (finds ? threadIdx.x : 0);
        const double weight = of_channel(w_ptr, channel, 1), bias = of_channel(b_ptr, channel, 0);
        Real rmean = reports ? of_channel(rmean_ptr, channel, 0) : 0;
        Real rvar = reports ? of_channel(rvar_ptr, channel, 0) : 0;
        at.await(slice.tile, slices);
        const double k = shifts_ptr[slice.image * channels + channel];
        const Row<2> all = norm.gather(slice, nullptr);
        Number mean;
        if (finds) {
            statistics.set(all.numbers[0], all.numbers[1], eps);
            mean = k + statistics.offset;
            formulas[threadIdx.x] = Normal{mean, statistics.inv * weight, bias};
        }
        __syncthreads();
        if (reports) {
            report(mean, statistics.var, m, 0, mean_ptr + channel, var_ptr + channel, &rmean, &rvar, momentum);
            if (rmean_ptr) rmean_ptr[channel] = rmean, rvar_ptr[channel] = rvar;
        }
        Normal formula[VECTOR];
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) formula[i] = formulas[values.column + i];
        values.write<Normal>(out_ptr, formula);
    }
}
//% endif
//% if entry is none or "backward" in entry

extern "C" __global__ void __launch_bounds__(THREADS, 2)
norm_last_backward_tickets{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr, const Real* w_ptr,
                           const Real* mean_ptr, const Real* var_ptr, Real* gw_ptr, Real* gb_ptr, double* statistics_ptr,
                           double* sums_ptr, double* shifts_ptr, unsigned* tickets_ptr, unsigned rows, unsigned channels,
                           unsigned per_group, Real eps, unsigned slices, unsigned length, unsigned tiles, unsigned across,
                           unsigned adding, unsigned gathering, unsigned by_group, unsigned by_slices, unsigned by_tiles,
                           unsigned by_across, unsigned tickets, unsigned lead) {
    __shared__ Row<2> space[ROOM / 2];
    __shared__ Gradients formulas[MOST_CHANNELS];
    __shared__ double weights[MOST_CHANNELS];
    Tickets at(tickets_ptr, tickets, lead);
    const Norm<true> norm{{ "{{" }}rows, channels, per_group, slices, length, tiles, across, adding, gathering, by_group, by_slices,
                            by_tiles, by_across},
                           reinterpret_cast<Row<4>*>(sums_ptr), shifts_ptr, space[0].numbers};
    const size_t addresses =
        reinterpret_cast<size_t>(in_ptr) | reinterpret_cast<size_t>(go_ptr) | reinterpret_cast<size_t>(gi_ptr);
    Statistics statistics(double(size_t(per_group) * rows));
    if (!at.next()) return;
    const Slice slice(norm.cut, at.place);
    Rows<true> values(norm.cut, slice, in_ptr, go_ptr, addresses % 16 == 0);
    if (!at.output) {
        norm.add_up(slice, values, in_ptr, mean_ptr);
        at.announce(slice.tile);
    } else {
        const bool finds = threadIdx.x < slice.width;
        const unsigned channel = slice.channel + (finds ? threadIdx.x : 0);
        const double weight = of_channel(w_ptr, channel, 1);
        if (finds) weights[threadIdx.x] = statistics_ptr ? weight : 1;
        if (mean_ptr) {
            statistics.offset = 0;
            statistics.inv = inverse_root(Number(var_ptr[channel]) + eps);
        }
        at.await(slice.tile, slices);
        const double k = shifts_ptr[slice.image * channels + channel];
        const Row<4> all = norm.gather(slice, weights);
        if (finds) {
            const Number go_sum = all.numbers[2];
            Number dot = all.numbers[3];
            if (!mean_ptr) {
                statistics.set(all.numbers[0], all.numbers[1], eps);
                dot = fma(-statistics.offset, go_sum, dot);
            }
            const Number mean = k + statistics.offset, inv = statistics.inv;
            if (slice.number == 0) {
                if (gw_ptr) gw_ptr[channel] = Real(dot * inv);
                if (gb_ptr) gb_ptr[channel] = Real(go_sum);
                if (statistics_ptr && channel % per_group == 0) {
                    Number* of_group = reinterpret_cast<Number*>(statistics_ptr) +
                                       5 * (slice.image * (channels / per_group) + channel / per_group);
                    of_group[1] = statistics.offset;
                    of_group[2] = inv;
                }
            }
            // Sums of group_norm have their weights.
            const double rest = statistics_ptr ? 1 : weight;
            const Number shift = -(statistics.over_n(go_sum * rest) * inv);
            const Number slope = -(statistics.over_n(dot * rest * inv) * inv * inv);
            formulas[threadIdx.x] = Gradients{mean, inv * weight, slope, shift};
        }
        __syncthreads();
        Gradients formula[VECTOR];
#pragma unroll
        for (unsigned i = 0; i < VECTOR; ++i) formula[i] = formulas[values.column + i];
        values.write<Gradients>(gi_ptr, formula);
    }
}
//% endif
