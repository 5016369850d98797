// group_norm_teams, {{ T.name }}: group_norm of groups whose values stay in registers from the one reading to the writing, for any hw.
//
// What is computed, each entry's launch and the ABI stand in kernels_ptx/group_norm_teams.ptx, whose bits these are. A warp is
// there what 32 lanes are here.

//% set of_lanes, of_team = true, true
//% include "elements.jinja"
//% include "rows_held.jinja"

// A team, and the sums over it: each of its threads has the same bits.
template <unsigned SLOTS, unsigned WIDTH>
struct Team : Share<SLOTS, WIDTH> {
    using Share<SLOTS, WIDTH>::lanes;
    const Element* in;  // the thread's first unit
    unsigned turn = 0;

    __device__ Team(unsigned lanes, unsigned own, unsigned values, const Element* group)
        : Share<SLOTS, WIDTH>(lanes, own, values), in(group + own * WIDTH) {
        if (SHIFTED) this->k = group[0];
    }
    __device__ void hold(Unit<Element, WIDTH> (&values)[SLOTS]) const { this->template load<false>(values, in); }

    __device__ void row_sum(double& sum, double& squares) {
#pragma unroll
        for (unsigned distance = 1; distance < GROUP; distance *= 2) {
            if (lanes <= distance) return;
            sum += __shfl_xor(sum, distance, GROUP);
            squares += __shfl_xor(squares, distance, GROUP);
        }
        if (lanes == GROUP) return;
        // A place in shared memory for each 32 lanes, added up by every thread, two at a time; behind the last one are zeros. While
        // threads still read the places of one call, others write those of the next one.
        constexpr unsigned MOST = MOST_THREADS / GROUP;
        __shared__ Unit<double, 2> places[2][MOST];
        auto& of = places[turn ^= 1];
        if (threadIdx.x % GROUP == 0) of[threadIdx.x / GROUP] = {sum, squares};
        if (threadIdx.x == lanes - 1 && lanes < MOST_THREADS) of[lanes / GROUP] = {};
        __syncthreads();
        sum = squares = 0;
#pragma unroll
        for (unsigned i = 0; i < MOST; i += 2) {
            if (i * GROUP >= lanes) break;
            const Unit<double, 2> first = of[i], second = of[i + 1];
            sum += first.of[0] + second.of[0];
            squares += first.of[1] + second.of[1];
        }
    }
};

// Where the weights of a unit's values are: of two channels at most; side by side, at a multiple of 16 bytes; or anywhere.
enum Where { OF_TWO, VECTORS, ANYWHERE };

template <unsigned WIDTH>
struct Weights {
    float weights[WIDTH], biases[WIDTH];  // OF_TWO: those of a channel in the place of a value
    unsigned end;                         // how many values are of the first channel

    template <Where WHERE>
    __device__ void ask(bool there, const float* w, const float* b, unsigned first, unsigned hw, unsigned per_hw) {
        const auto channel_of = [&](unsigned value) { return unsigned((unsigned long long)value * per_hw >> 31); };
        const unsigned channel = channel_of(first);
        end = (channel + 1) * hw - first;
        const auto load = [&](float (&into)[WIDTH], const float* from, float otherwise) {
#pragma unroll
            for (unsigned i = 0; i < (WHERE == OF_TWO ? 2 : WIDTH); ++i) into[i] = otherwise;
            if (!there || !from) return;
            if constexpr (WHERE == OF_TWO) {
                into[0] = from[channel];
                if (end < WIDTH) into[1] = from[channel + 1];
            } else if constexpr (WHERE == VECTORS) {
#pragma unroll
                for (unsigned i = 0; i < WIDTH; i += 4) {
                    const auto four = *reinterpret_cast<const Unit<float, 4>*>(from + first + i);
#pragma unroll
                    for (unsigned j = 0; j < 4; ++j) into[i + j] = four.of[j];
                }
            } else {
#pragma unroll
                for (unsigned i = 0; i < WIDTH; ++i) into[i] = from[channel_of(first + i)];
            }
        };
        load(weights, w, 1);
        load(biases, b, 0);
    }

    template <Where WHERE>
    __device__ float result(unsigned i, float xhat) const {
        const unsigned place = WHERE == OF_TWO ? 0 : i;
        if (WHERE == OF_TWO && i >= end) return fmaf(xhat, weights[1], biases[1]);
        return fmaf(xhat, weights[place], biases[place]);
    }
};

// What a thread writes of its group, and the weights for it.
template <unsigned SLOTS, unsigned WIDTH>
struct Results {
    Team<SLOTS, WIDTH>& team;
    const float *w, *b;  // of the group's channels
    Element* out;        // null for a team of no group
    unsigned own, hw, per_hw;
    bool by_vectors;
    Weights<WIDTH> weights[SLOTS];

    template <Where WHERE>
    __device__ void ask(unsigned slot) {
        weights[slot].template ask<WHERE>(team.has_slot(slot), w, b, (own + slot * team.lanes) * WIDTH, hw, per_hw);
    }

    // One slot's weights are on their way before.
    template <Where WHERE>
    __device__ void write(const Row<true, SLOTS, WIDTH>& x) {
        constexpr unsigned MANY = 8 / WIDTH, AHEAD = WHERE == OF_TWO || SLOTS < MANY ? SLOTS : MANY;  // under way at a time
        if constexpr (SLOTS > 1) {
#pragma unroll
            for (unsigned slot = 0; slot < AHEAD; ++slot) ask<WHERE>(slot);
        }
#pragma unroll
        for (unsigned slot = 0; slot < SLOTS; ++slot) {
            Unit<Element, WIDTH> y;
#pragma unroll
            for (unsigned i = 0; i < WIDTH; ++i) {
                y.of[i] = Element(weights[slot].template result<WHERE>(i, x.normalised(slot * WIDTH + i)));
            }
            if (out && team.has_slot(slot)) team.store(by_vectors, out, slot, y);
            if (slot + AHEAD < SLOTS) ask<WHERE>(slot + AHEAD);
        }
    }
};

template <unsigned SLOTS, unsigned WIDTH>
__device__ inline void forward(const Element* in_ptr, Element* out_ptr, const float* w_ptr, const float* b_ptr, unsigned count,
                               unsigned groups, unsigned per_group, unsigned hw, unsigned lanes, unsigned shift,
                               unsigned per_block, unsigned per_hw, size_t per_groups, float eps, double per_value) {
    // A team behind the last group takes that of the first team of its 32 lanes, and writes nothing.
    const unsigned first = blockIdx.x * per_block + (threadIdx.x / GROUP * GROUP >> shift);
    if (first >= count) return;
    const unsigned own_team = threadIdx.x >> shift, own = threadIdx.x - (own_team << shift);
    unsigned group = blockIdx.x * per_block + own_team;
    const bool mine = group < count, by_vectors = aligned(size_t(in_ptr) | size_t(out_ptr));
    if (!mine) group = first;
    const size_t start = size_t(group) * (per_group * hw);
    Team<SLOTS, WIDTH> team(lanes, own, per_group * hw, in_ptr + start);
    Unit<Element, WIDTH> values[SLOTS];
    team.load(by_vectors, values, team.in);

    const unsigned image = unsigned(__umul64hi(2ull * group, per_groups)), channel = (group - image * groups) * per_group;
    if (w_ptr) w_ptr += channel;
    if (b_ptr) b_ptr += channel;
    const bool of_two = WIDTH > 1 && hw >= WIDTH, in_vectors = WIDTH > 1 && hw == 1 && aligned(size_t(w_ptr) | size_t(b_ptr));
    Results<SLOTS, WIDTH> results{team, w_ptr, b_ptr, mine ? out_ptr + start + own * WIDTH : nullptr, own, hw, per_hw, by_vectors};
    if constexpr (SLOTS == 1) {  // under way meanwhile
        if (of_two) results.template ask<OF_TWO>(0);
        else if (in_vectors) results.template ask<VECTORS>(0);
        else results.template ask<ANYWHERE>(0);
    }
    Row<true, SLOTS, WIDTH> x;
    x.set(values);
    const float none[SLOTS][WIDTH] = {};
    x.template count<false>(team, values, none, per_value, eps);
    if constexpr (WIDTH == 1) team.lanes = unknown(lanes);  // which slots there are takes registers: as long as it is wanted
    if constexpr (WIDTH > 1) {
        if (of_two) return results.template write<OF_TWO>(x);
        if (in_vectors) return results.template write<VECTORS>(x);
    }
    results.template write<ANYWHERE>(x);
}

//% for kind, numbers, width in (("", range(1, 2 * T.size + 1), "VECTOR"), ("singles_", (4, 8, 16, 32), 1))
//% for slots in numbers if entry in (none, "group_norm_teams_%d_%skernel%s" | format(slots, kind, suffix))
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
group_norm_teams_{{ slots }}_{{ kind }}kernel{{ suffix }}(const Element* in_ptr, Element* out_ptr, const float* w_ptr, const float* b_ptr,
                        unsigned count, unsigned groups, unsigned per_group, unsigned hw, unsigned lanes, unsigned shift,
                        unsigned per_block, unsigned per_hw, size_t per_groups, float eps, double per_value) {
    forward<{{ slots }}, {{ width }}>(in_ptr, out_ptr, w_ptr, b_ptr, count, groups, per_group, hw, lanes, shift, per_block, per_hw,
                      per_groups, eps, per_value);
}

//% endfor
//% endfor
