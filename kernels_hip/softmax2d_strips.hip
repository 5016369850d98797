//% set halves, bf16, log2_e = T.size == 2, T.name == "bf16", 1.4426950408889634
//% set held = {2: (1, 4, 8), 4: (0, 1, 2), 8: (1,)} if halves else {2: (1,), 4: (0, 1)}
// softmax2d_strips, {{ T.name }}: softmax2d and its backward of few channels. A thread has neighbouring columns.
//
// What is computed, in which order, and each entry's launch stand in kernels_ptx/softmax2d_strips.ptx, whose bits these are
// {{ "on NVIDIA's devices and on sim: AMD's own powers of 2 and inverses are as good, within an ulp, and have other bits." if halves else "on every device." }}
// In place is fine, and so no pointer is __restrict__: a thread alone reads what it writes.
//
// softmax2d_strips_POSITIONS_GROUPS, softmax2d_backward_strips_POSITIONS_GROUPS. Launch: up to 256 threads, each with
// POSITIONS columns of an image, up to 3 + 4 * GROUPS channels of them; grid (blocks for the hw columns of an image, batch).
// ABI: (in_ptr, out_ptr, u32 channels, u32 hw), backward with the pointers (go_ptr, y_ptr, gi_ptr); hw is 2^31 at most.

//% include "elements.jinja"

//% include "softmax2d_parts.jinja"

//% if halves
// Within 2^-22, or an ulp, and 0 for what would be denormal.
__device__ inline float power_of_2(float x) {
#ifdef __HIP_PLATFORM_NVIDIA__
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(x));
    return x;
#else
    return __builtin_amdgcn_exp2f(x);
#endif
}
__device__ inline float inverse_of(float x) {
#ifdef __HIP_PLATFORM_NVIDIA__
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(x));
    return x;
#else
    return __builtin_amdgcn_rcpf(x);
#endif
}

//% endif
// The same number, of which AMD's compiler does not know that it is: it would keep what it was widened to.
__device__ inline unsigned again(unsigned word) {
#ifdef __AMDGCN__
    asm volatile("" : "+v"(word));
#endif
    return word;
}

// A thread's columns, `left` of them at least up to the end of the image: from element `start` on, and `step` elements from a
// channel to the next one; there are `odd` channels, 0 to 3, then `fours` times 4.
template <unsigned POSITIONS, unsigned GROUPS>
struct Strip {
    static constexpr unsigned SLOTS = 3 + 4 * GROUPS;
    typedef unsigned {{ "short" if halves else "int" }} Part;

    struct alignas(POSITIONS * sizeof(Element)) Neighbours {
        unsigned words[POSITIONS * sizeof(Element) / 4];  // elements of 16 bits would take a register each
    };

    unsigned left, odd, fours;
    size_t start, step;
    bool aligned;  // whether all neighbours begin where a vector may

    __device__ Strip(unsigned position, unsigned channels, unsigned hw, size_t addresses)
        : left(hw - position), odd(channels % 4), fours(channels / 4),
          start(size_t(blockIdx.y) * channels * hw + position), step(hw),
          aligned((step * sizeof(Element) | addresses) % sizeof(Neighbours) == 0) {}

    // Each channel of the thread.
    template <typename Work>
    __device__ void each(Work work) const {
#pragma unroll
        for (unsigned slot = 0; slot < 3; ++slot) {
            if (slot >= odd) break;
            work(slot);
        }
#pragma unroll
        for (unsigned group = 0; group < GROUPS; ++group) {
            if (group >= fours) break;
#pragma unroll
            for (unsigned slot = 3 + 4 * group; slot < 7 + 4 * group; ++slot) work(slot);
        }
    }

    __device__ void read(Neighbours (&raw)[SLOTS], const Element* from) const {
        from += start;
        if (aligned) {
            each([&](unsigned slot) {
                raw[slot] = *reinterpret_cast<const Neighbours*>(from);
                from += step;
            });
            return;
        }
        each([&](unsigned slot) {
            const Part* parts = reinterpret_cast<const Part*>(from);
#pragma unroll
            for (unsigned i = 0; i < POSITIONS; i += {{ 4 // T.size }}) {
                raw[slot].words[i / {{ 4 // T.size }}] = {{ "(i < left ? parts[i] : 0) | unsigned(i + 1 < left ? parts[i + 1] : 0) << 16" if halves else "i < left ? parts[i] : 0" }};
            }
            from += step;
        });
    }

    // What `values_of` makes of each channel.
    template <typename ValuesOf>
    __device__ void write(Element* to, ValuesOf values_of) const {
        to += start;
        if (aligned) {
            each([&](unsigned slot) {
                Real values[POSITIONS];
                Element elements[POSITIONS];
                values_of(values, slot);
#pragma unroll
                for (unsigned i = 0; i < POSITIONS; ++i) elements[i] = Element(values[i]);
                Neighbours written;
                memcpy(&written, elements, sizeof written);
                *reinterpret_cast<Neighbours*>(to) = written;
                to += step;
            });
            return;
        }
        each([&](unsigned slot) {
            Real values[POSITIONS];
            values_of(values, slot);
#pragma unroll
            for (unsigned i = 0; i < POSITIONS; ++i) {
                if (i < left) to[i] = Element(values[i]);
            }
            to += step;
        });
    }

    __device__ static void widen(Real (&values)[POSITIONS], const Neighbours& raw) {
        constexpr unsigned EACH = 4 / sizeof(Element);  // elements of a word
#pragma unroll
        for (unsigned i = 0; i < POSITIONS / EACH; ++i) {
            const unsigned word = again(raw.words[i]);
            Element elements[EACH];
            memcpy(elements, &word, 4);
            for (unsigned j = 0; j < EACH; ++j) values[i * EACH + j] = Real(elements[j]);
        }
    }
};

template <unsigned POSITIONS, unsigned GROUPS>
__device__ inline void forward(const Element* in, Element* out, unsigned channels, unsigned hw) {
    const unsigned position = (blockIdx.x * blockDim.x + threadIdx.x) * POSITIONS;
    if (position >= hw) return;
    typedef Strip<POSITIONS, GROUPS> Strip;
    const Strip strip(position, channels, hw, size_t(in) | size_t(out));
    typename Strip::Neighbours raw[Strip::SLOTS];
    Real values[Strip::SLOTS][POSITIONS], maxima[POSITIONS];
    strip.read(raw, in);
#pragma unroll
    for (unsigned i = 0; i < POSITIONS; ++i) maxima[i] = real_of(0x{{ number(-inf, R)[2:] }});
    strip.each([&](unsigned slot) {
        strip.widen(values[slot], raw[slot]);
#pragma unroll
        for (unsigned i = 0; i < POSITIONS; ++i) maxima[i] = fmaxf(maxima[i], values[slot][i]);
    });
//% if halves

    // The powers, which the values become{{ ", 2^32 as large as they should be" if bf16 else ", of one fma: what rounding took from the product of the maximum is in all of them" }}; and the inverse of their sum.
    Real inverses[POSITIONS] = {};
//% if not bf16
#pragma unroll
    for (unsigned i = 0; i < POSITIONS; ++i) maxima[i] *= {{ -log2_e }}f;
//% endif
    strip.each([&](unsigned slot) {
#pragma unroll
        for (unsigned i = 0; i < POSITIONS; ++i) {
//% if bf16
            values[slot][i] = power_of_2(fmaf(values[slot][i] - maxima[i], {{ log2_e }}f, 32.0f));
//% else
            values[slot][i] = power_of_2(fmaf(values[slot][i], {{ log2_e }}f, maxima[i]));
//% endif
            inverses[i] += values[slot][i];
        }
    });
#pragma unroll
    for (unsigned i = 0; i < POSITIONS; ++i) inverses[i] = inverse_of(inverses[i]);
    strip.write(out, [&](Real(&results)[POSITIONS], unsigned slot) {
#pragma unroll
        for (unsigned i = 0; i < POSITIONS; ++i) results[i] = values[slot][i] * inverses[i];
    });
//% else

    Sum sums[POSITIONS];
    Inverse inverses[POSITIONS];
#pragma unroll
    for (unsigned i = 0; i < POSITIONS; ++i) sums[i] = {1, 0};  // no addend is larger
    strip.each([&](unsigned slot) {
#pragma unroll
        for (unsigned i = 0; i < POSITIONS; ++i) {
            values[slot][i] = exponential(values[slot][i] - maxima[i]);
            sums[i].add(values[slot][i]);
        }
    });
#pragma unroll
    for (unsigned i = 0; i < POSITIONS; ++i) {
        sums[i].high -= 1;
        inverses[i] = Inverse(sums[i]);
    }
    strip.write(out, [&](Real(&results)[POSITIONS], unsigned slot) {
#pragma unroll
        for (unsigned i = 0; i < POSITIONS; ++i) results[i] = inverses[i].times(values[slot][i]);
    });
//% endif
}

template <unsigned POSITIONS, unsigned GROUPS>
__device__ inline void backward(const Element* go, const Element* y, Element* gi, unsigned channels, unsigned hw) {
    const unsigned position = (blockIdx.x * blockDim.x + threadIdx.x) * POSITIONS;
    if (position >= hw) return;
    typedef Strip<POSITIONS, GROUPS> Strip;
    const Strip strip(position, channels, hw, size_t(go) | size_t(y) | size_t(gi));
    typename Strip::Neighbours raw_go[Strip::SLOTS], raw_y[Strip::SLOTS];
    strip.read(raw_go, go);
    strip.read(raw_y, y);
    Sum dots[POSITIONS];
#pragma unroll
    for (unsigned i = 0; i < POSITIONS; ++i) dots[i] = {0, 0};
    strip.each([&](unsigned slot) {
        Real g[POSITIONS], w[POSITIONS];
        strip.widen(g, raw_go[slot]);
        strip.widen(w, raw_y[slot]);
#pragma unroll
        for (unsigned i = 0; i < POSITIONS; ++i) {{ "dots[i].add(fmaf(g[i], w[i], 0), -0.0f);  // products of 16 bits are exact" if halves else "dots[i].add_product(g[i], w[i]);" }}
    });
#pragma unroll
    for (unsigned i = 0; i < POSITIONS; ++i) dots[i].settle();
    strip.write(gi, [&](Real(&results)[POSITIONS], unsigned slot) {
        Real w[POSITIONS];
        strip.widen(results, raw_go[slot]);
        strip.widen(w, raw_y[slot]);
#pragma unroll
        for (unsigned i = 0; i < POSITIONS; ++i) results[i] = dots[i].less_than(results[i]) * w[i];
    });
}
//% for positions, counts in held.items()
//% for groups in counts

extern "C" __global__ void __launch_bounds__(256)
softmax2d_strips_{{ positions }}_{{ groups }}{{ suffix }}(const Element* in_ptr, Element* out_ptr, unsigned channels, unsigned hw) {
    forward<{{ positions }}, {{ groups }}>(in_ptr, out_ptr, channels, hw);
}

extern "C" __global__ void __launch_bounds__(256)
softmax2d_backward_strips_{{ positions }}_{{ groups }}{{ suffix }}(const Element* go_ptr, const Element* y_ptr, Element* gi_ptr, unsigned channels,
                                     unsigned hw) {
    backward<{{ positions }}, {{ groups }}>(go_ptr, y_ptr, gi_ptr, channels, hw);
}
//% endfor
//% endfor
