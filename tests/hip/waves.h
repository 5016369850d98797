/* What the kernels of kernels_hip/ need of HIP, on the host's CPU and with waves of any width: a block's threads are
 * fibers, which run one at a time, each up to its next barrier, shuffle or vote. So a launch is deterministic, and the
 * order of the threads is the caller's choice.
 *
 * It is an error when live threads wait at different barriers, or live lanes of a wave at different shuffles or votes. A
 * shuffle's value from a lane that is not there is poison (0xFF bytes, NaN), and so is shared memory when a block begins.
 *
 * waves.py compiles a text behind this header, adds a WAVES_ENTRY for each kernel in it, and links waves.cpp, the scheduler.
 */

#pragma once

#include <math.h>
#include <ucontext.h>

#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#define __global__ __attribute__((visibility("default")))
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
    unsigned int x = 1, y = 1, z = 1;
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;
extern int warpSize;

namespace waves {

enum class State { ready, at_barrier, in_exchange, ended };

struct Thread {
    ucontext_t context;
    State state;
    int line;                            // where it waits
    unsigned int source;                 // in an exchange: the lane whose value it wants
    unsigned long long value, received;  // what it gives, what it gets
    unsigned long long votes, live;      // a bit a lane: those that gave no 0, those that took part
};

extern Thread* current;

void wait(State state, int line);
void check_width(int width, int line);

// Give a value to the other lanes of the wave, and get that of lane `source`.
template <typename T>
T exchange(T value, unsigned int source, int line) {
    static_assert(sizeof(T) <= sizeof current->value && std::is_trivially_copyable_v<T>);
    current->value = 0;
    memcpy(&current->value, &value, sizeof value);
    current->source = source;
    wait(State::in_exchange, line);
    memcpy(&value, &current->received, sizeof value);
    return value;
}

inline unsigned int lane() { return threadIdx.x % warpSize; }

template <typename... Parameters, size_t... I>
void call(void (*entry)(Parameters...), void** arguments, std::index_sequence<I...>) {
    entry(*static_cast<Parameters*>(arguments[I])...);
}

template <typename... Parameters>
void call(void (*entry)(Parameters...), void** arguments) {
    call(entry, arguments, std::index_sequence_for<Parameters...>());
}

}  // namespace waves

#define WAVES_ENTRY(name) \
    extern "C" __global__ void waves_##name(void** arguments) { waves::call(name, arguments); }

// HIP's names ------------------------------------------------------------------------------------------------------

inline void __syncthreads(int line = __builtin_LINE()) { waves::wait(waves::State::at_barrier, line); }

inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

inline void __threadfence() {}  // one thread runs at a time, and one block after another

template <typename T>
T __shfl(T value, int source, int width = warpSize, int line = __builtin_LINE()) {
    waves::check_width(width, line);
    return waves::exchange(value, (waves::lane() & -width) + (source & (width - 1)), line);
}
template <typename T>
T __shfl_up(T value, unsigned int lanes, int width = warpSize, int line = __builtin_LINE()) {
    waves::check_width(width, line);
    const unsigned int lane = waves::lane();
    return waves::exchange(value, (lane & (width - 1)) < lanes ? lane : lane - lanes, line);
}
template <typename T>
T __shfl_down(T value, unsigned int lanes, int width = warpSize, int line = __builtin_LINE()) {
    waves::check_width(width, line);
    const unsigned int lane = waves::lane();
    return waves::exchange(value, (lane & (width - 1)) + lanes >= unsigned(width) ? lane : lane + lanes, line);
}
template <typename T>
T __shfl_xor(T value, int lanes, int width = warpSize, int line = __builtin_LINE()) {
    waves::check_width(width, line);
    const unsigned int lane = waves::lane(), source = lane ^ lanes;
    return waves::exchange(value, source >= ((lane + width) & -width) ? lane : source, line);
}

inline unsigned long long __ballot(int predicate, int line = __builtin_LINE()) {
    waves::exchange(predicate, waves::lane(), line);
    return waves::current->votes;
}
inline int __any(int predicate, int line = __builtin_LINE()) { return __ballot(predicate, line) != 0; }
inline int __all(int predicate, int line = __builtin_LINE()) {
    return __ballot(predicate, line) == waves::current->live;
}

template <typename T>
T atomicAdd(T* address, T value) {
    const T before = *address;
    *address += value;
    return before;
}

template <typename T>
T atomicMax(T* address, T value) {
    const T before = *address;
    if (value > before) *address = value;
    return before;
}

template <typename T>
T atomicOr(T* address, T value) {
    const T before = *address;
    *address |= value;
    return before;
}

template <typename A, typename B>
auto min(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return T(fmin(a, b));
    else return T(a) < T(b) ? T(a) : T(b);
}
template <typename A, typename B>
auto max(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return T(fmax(a, b));
    else return T(a) > T(b) ? T(a) : T(b);
}

struct alignas(16) uint4 {
    unsigned int x, y, z, w;
};
inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) { return {x, y, z, w}; }

// Each byte of the result is that of (low, high) which a byte of `which` numbers; it numbers no constants here.
inline unsigned int waves_perm(unsigned int high, unsigned int low, unsigned int which) {
    const unsigned long long both = (unsigned long long)(high) << 32 | low;
    unsigned int result = 0;
    for (int i = 0; i < 32; i += 8) result |= unsigned(both >> 8 * (which >> i & 7) & 0xFF) << i;
    return result;
}
#define __builtin_amdgcn_perm waves_perm
#define __builtin_amdgcn_exp2f exp2f
#define __builtin_amdgcn_rcpf(value) (1 / (value))

inline unsigned int __float_as_uint(float value) { return std::bit_cast<unsigned int>(value); }
inline float __uint_as_float(unsigned int bits) { return std::bit_cast<float>(bits); }
inline long long __double_as_longlong(double value) { return std::bit_cast<long long>(value); }
inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }

// bfloat16, which not every host's compiler has; another one's __bf16 is replaced, too.
struct waves_bf16 {
    unsigned short bits;

    waves_bf16() = default;
    explicit waves_bf16(float value) {
        const unsigned int wide = __float_as_uint(value), even = wide >> 16 & 1;
        bits = value == value ? (wide + 0x7FFF + even) >> 16 : 0x7FFF;
    }
    operator float() const { return __uint_as_float(unsigned(bits) << 16); }
};
#define __bf16 waves_bf16
