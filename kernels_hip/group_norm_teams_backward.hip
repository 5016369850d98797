// group_norm_teams_backward, {{ T.name }}: the backward of group_norm of groups whose values stay in registers, for any hw.
//
// What is computed, each entry's launch and the ABI stand in kernels_ptx/group_norm_teams_backward.ptx, whose bits these are. A warp
// is there what 32 lanes are here; a block of teams that are parts of a warp has 128 threads at most.

//% set of_lanes, of_team, of_parameters = true, true, true
//% include "elements.jinja"
//% include "rows_held.jinja"

// Threads of a block at most. More values of f32 a thread, or more that are no vectors, take the registers of fewer threads.
__device__ constexpr unsigned most_threads(unsigned part, unsigned slots, unsigned width) {
    return part ? 128 : width == 1 && slots > 8 || sizeof(Element) == 4 && slots * width > 12 ? 384 : MOST_THREADS;
}

// A team, of PART lanes at most, or of whole warps where that is 0, and the sums over it: each of its threads has the same bits.
template <unsigned SLOTS, unsigned WIDTH, unsigned PART>
struct Team : Share<SLOTS, WIDTH> {
    typedef Unit<Element, WIDTH> Values;
    using Share<SLOTS, WIDTH>::lanes;
    const Element* in;  // the thread's first unit, of the image that it has
    bool there;         // whether there is that image
    unsigned turn = 0;

    __device__ Team(unsigned lanes, unsigned own, unsigned values) : Share<SLOTS, WIDTH>(lanes, own, values) {}
    __device__ void hold(Values (&values)[SLOTS]) const { this->template load<false>(values, in, there); }

    // Of parts of a warp the sums are PART / lanes times as large: a lane without a partner takes its own numbers.
    __device__ void row_sum(double& sum, double& squares, double& g_sum, double& dot) {
        if constexpr (PART > 0) {
#pragma unroll
            for (unsigned distance = 1; distance < PART; distance *= 2) {
                const unsigned partner = (lanes - 1) & distance;
                sum += __shfl_xor(sum, partner, GROUP), squares += __shfl_xor(squares, partner, GROUP);
                g_sum += __shfl_xor(g_sum, partner, GROUP), dot += __shfl_xor(dot, partner, GROUP);
            }
        } else {
            // Lanes give away half of their numbers as long as they have several: lanes 0 to 7 end with the first one, and so on.
            const auto give = [&](double& low, double high, unsigned distance) {
                const bool upper = threadIdx.x & distance;
                low = (upper ? high : low) + __shfl_xor(upper ? low : high, distance, GROUP);
            };
            const auto over_eight = [&] {
#pragma unroll
                for (unsigned distance = 4; distance > 0; distance /= 2) sum += __shfl_xor(sum, distance, GROUP);
            };
            give(sum, g_sum, 16);
            give(squares, dot, 16);
            give(sum, squares, 8);
            over_eight();
            if (lanes > GROUP) {
                // A row in shared memory for each 32 lanes, of which a lane takes those of two. While threads still read the rows of one
                // call, others write those of the next one.
                constexpr unsigned MOST = MOST_THREADS / GROUP;
                __shared__ double rows[2][MOST][4];
                auto& of = rows[turn ^= 1];
                const unsigned row = threadIdx.x % 8, number = threadIdx.x / 8 % 4;
                if (row == 0) of[threadIdx.x / GROUP][number] = sum;
                __syncthreads();
                sum = row * GROUP < lanes ? of[row][number] : 0;
                if ((row + 8) * GROUP < lanes) sum += of[row + 8][number];
                over_eight();
            }
            squares = __shfl(sum, 8, GROUP), g_sum = __shfl(sum, 16, GROUP), dot = __shfl(sum, 24, GROUP);
            sum = __shfl(sum, 0, GROUP);
        }
    }
};

template <unsigned SLOTS, unsigned WIDTH, unsigned PART>
__device__ inline void backward(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr, const float* w_ptr,
                                float* partials_ptr, unsigned batch, unsigned groups, unsigned per_group, unsigned hw,
                                unsigned lanes, unsigned shift, unsigned at_once, unsigned images, unsigned readers,
                                unsigned pitch, unsigned rounds, unsigned round_pitch, unsigned per_hw, size_t row, float eps,
                                double per_value) {
    constexpr unsigned VALUES = SLOTS * WIDTH, MOST = most_threads(PART, SLOTS, WIDTH);
    const bool by_vectors = aligned(size_t(in_ptr) | size_t(go_ptr) | size_t(gi_ptr));
    const unsigned values = per_group * hw, first_group = blockIdx.x * at_once;
    const unsigned own_team = threadIdx.x >> shift, own = threadIdx.x - (own_team << shift);
    // The team's group and its first image; there is none for a team of no group, or of no image.
    const unsigned number = own_team / at_once, group = min(first_group + own_team % at_once, groups - 1);
    const bool mine = number < images && first_group + own_team % at_once < groups;
    unsigned first = blockIdx.y * images, image = mine ? first + number : 0x7FFFFFFF;
    Team<SLOTS, WIDTH, PART> team(lanes, own, values);

    // What the thread has of its team's image.
    struct Image {
        Unit<Element, WIDTH> in[SLOTS], go[SLOTS];
        Real k;
        size_t place;
        bool there;
    };
    const auto hold = [&](Image& of) {
        of.there = image < batch;
#ifdef __AMDGCN__
        const unsigned from = own * WIDTH;
#else
        const unsigned from = unknown(own) * WIDTH;  // held no longer than it is wanted: NVIDIA's threads have few registers
#endif
        of.place = image * row + size_t(group) * values + from;
        of.k = SHIFTED && of.there ? Real(in_ptr[of.place - own * WIDTH]) : Real(0);
        if (WIDTH == 1 || by_vectors) {
            team.template load<true>(of.in, in_ptr + of.place, of.there);
            team.template load<true>(of.go, go_ptr + of.place, of.there);
        } else {
            team.template load<false>(of.in, in_ptr + of.place, of.there);
            team.template load<false>(of.go, go_ptr + of.place, of.there);
        }
    };
    constexpr bool AHEAD = VALUES <= 8;  // registers suffice to have the next image under way meanwhile
    Image next;
    if constexpr (AHEAD) hold(next);

    // The weights of the thread's values, which are of the same channels in each image.
    float weights[SLOTS][WIDTH], sums[2][SLOTS][WIDTH] = {};
#pragma unroll
    for (unsigned slot = 0; slot < SLOTS; ++slot) {
        const unsigned unit = (own + slot * lanes) * WIDTH;
        const bool weighted = w_ptr && team.has_slot(slot);
        const auto channel_of = [&](unsigned value) { return unsigned((unsigned long long)value * per_hw >> 31); };
        const auto weight_of = [&](bool asked, unsigned channel) { return asked ? w_ptr[group * per_group + channel] : 1; };
        if (WIDTH > 1 && hw >= WIDTH) {  // of two channels at most
            const unsigned channel = channel_of(unit), end = (channel + 1) * hw - unit;
            const float of_first = weight_of(weighted, channel), of_second = weight_of(weighted && end < WIDTH, channel + 1);
#pragma unroll
            for (unsigned i = 0; i < WIDTH; ++i) weights[slot][i] = i < end ? of_first : of_second;
        } else {
#pragma unroll
            for (unsigned i = 0; i < WIDTH; ++i) weights[slot][i] = weight_of(weighted, channel_of(unit + i));
        }
    }
    if constexpr (PART > 0) per_value *= lanes * (1.0 / PART);  // Team::row_sum()

    for (bool more = true; more;) {
        Image now;
        if constexpr (AHEAD) now = next;
        else hold(now);
        image += gridDim.y * images;
        first += gridDim.y * images;
        more = first < batch;
        if constexpr (AHEAD) {
            if (more) hold(next);
        }
        team.in = in_ptr + now.place;
        team.there = now.there;
        team.k = now.k;
        Row<true, SLOTS, WIDTH> x;
        x.set(now.in);
        x.template count<true>(team, now.go, weights, per_value, eps);
        x.differentiate(per_value);
#pragma unroll
        for (unsigned slot = 0; slot < SLOTS; ++slot) {
            Unit<Element, WIDTH> gradients;
#pragma unroll
            for (unsigned i = 0; i < WIDTH; ++i) {
                const float go = Real(now.go[slot].of[i]), xhat = x.normalised(slot * WIDTH + i);
                if (now.there) sums[0][slot][i] = fmaf(go, xhat, sums[0][slot][i]);  // 0 may be no number times go
                sums[1][slot][i] += go;
                gradients.of[i] = Element(x.gradient(xhat, go, weights[slot][i]));
            }
            if (now.there && team.has_slot(slot)) team.store(by_vectors, gi_ptr + now.place, slot, gradients);
        }
    }

    // The sums of places to shared memory, one of each kind after the other, and those of channels from there.
    __shared__ Unit<float, 4> fours[MOST * VALUES / 4];
    float* const places = fours[0].of;
    const unsigned at_once_of_channels = blockDim.x >> readers, reader = threadIdx.x & ((1u << readers) - 1);
    const unsigned terms = hw == 1 ? images : hw, channels = groups * per_group, first_channel = first_group * per_group;
    const unsigned count = min(groups - first_group, at_once) * per_group;
    float* partials = partials_ptr + 2 * size_t(blockIdx.y) * channels + first_channel;
#pragma unroll
    for (unsigned kind = 0; kind < 2; ++kind, partials += channels) {
        if (kind > 0) __syncthreads();
#pragma unroll
        for (unsigned slot = 0; slot < SLOTS; ++slot) {
            if (!team.has_slot(slot)) continue;
            float* const at = places + own_team * values + (own + slot * lanes) * WIDTH;
            if constexpr (WIDTH == 1) at[0] = sums[kind][slot][0];
#pragma unroll
            for (unsigned i = 0; i + 4 <= WIDTH; i += 4) {
                const float* const of = sums[kind][slot] + i;
                *reinterpret_cast<Unit<float, 4>*>(at + i) = {of[0], of[1], of[2], of[3]};
            }
        }
        __syncthreads();
        for (unsigned base = 0; base < count; base += at_once_of_channels) {
            const unsigned channel = base + (threadIdx.x >> readers);
            const bool has_channel = channel < count;
            double total = 0;
            for (unsigned round = 0; round < rounds && has_channel; ++round) {
                const float* from = places + channel * hw + round * round_pitch;
                for (unsigned term = reader; term < terms;) {
                    float four[4];
#pragma unroll
                    for (unsigned i = 0; i < 4; ++i, term += 1u << readers) four[i] = term < terms ? from[term * pitch] : 0;
                    total += (four[0] + four[1]) + (four[2] + four[3]);
                }
            }
            for (unsigned distance = 1; distance < 1u << readers; distance *= 2) total += __shfl_xor(total, distance, GROUP);
            if (has_channel && reader == 0) partials[channel] = float(total);
        }
    }
}

//% set whole, parts = {4: (1, 2, 3, 4, 5), 2: (1, 2)}[T.size], {4: (1, 2), 2: (1,)}[T.size]
//% for part, of_part, vectors, singles in ((0, "", whole, (4, 8, 12)), (4, "parts4_", parts, (4, 8)), (16, "parts16_", parts, (4, 8)))
//% for kind, numbers, width in (("", vectors, "VECTOR"), ("singles_", singles, 1))
//% for slots in numbers if entry in (none, "group_norm_backward_teams_%d_%s%skernel%s" | format(slots, kind, of_part, suffix))
extern "C" __global__ void __launch_bounds__(most_threads({{ part }}, {{ slots }}, {{ width }}), 1)
group_norm_backward_teams_{{ slots }}_{{ kind }}{{ of_part }}kernel{{ suffix }}(const Element* in_ptr, const Element* go_ptr, Element* gi_ptr,
                        const float* w_ptr, float* partials_ptr, unsigned batch, unsigned groups, unsigned per_group, unsigned hw,
                        unsigned lanes, unsigned shift, unsigned at_once, unsigned images, unsigned readers, unsigned pitch,
                        unsigned rounds, unsigned round_pitch, unsigned per_hw, size_t row, float eps, double per_value) {
    backward<{{ slots }}, {{ width }}, {{ part }}>(in_ptr, go_ptr, gi_ptr, w_ptr, partials_ptr, batch, groups, per_group, hw, lanes, shift,
                      at_once, images, readers, pitch, rounds, round_pitch, per_hw, row, eps, per_value);
}

//% endfor
//% endfor
//% endfor
//% if entry in (none, "group_norm_backward_teams_parameters_kernel" ~ suffix)
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
group_norm_backward_teams_parameters_kernel{{ suffix }}(const float* partials_ptr, float* gw_ptr, float* gb_ptr, size_t width,
                        size_t slices) {
    parameters<true>(partials_ptr, gw_ptr, gb_ptr, width, slices);
}
//% endif
