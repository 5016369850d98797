/* What the kernels of kernels_hip/ need of HIP, on the host's CPU and with waves of any width: a block's threads are
 * fibers, which run one at a time, each up to its next barrier, shuffle or vote. So a launch is deterministic, and the
 * order of the threads is the caller's choice.
 *
 * It is an error when live threads wait at different barriers, or live lanes of a wave at different shuffles or votes. A
 * shuffle's value from a lane that is not there is poison (0xFF bytes, NaN), and so is shared memory when a block begins.
 *
 * waves.py compiles a text behind this header, and adds a WAVES_ENTRY for each kernel in it.
 */

#pragma once

#include <math.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__ __attribute__((visibility("default")))
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

// __shared__ variables are the library's only ones without initial values, and so its .bss is the block's shared memory.
// What is not shared therefore goes elsewhere.
extern "C" __attribute__((visibility("hidden"))) char __bss_start[], _end[];
#define WAVES_STATE __attribute__((section(".data")))

struct dim3 {
    unsigned int x = 1, y = 1, z = 1;
};
WAVES_STATE dim3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0}, blockDim, gridDim;
WAVES_STATE int warpSize = 0;

namespace waves {

enum class State { ready, at_barrier, in_exchange, ended };
enum Schedule { FORWARD, BACKWARD, WAVE_BY_WAVE };

struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    State state;
    int line;                            // where it waits
    unsigned int source;                 // in an exchange: the lane whose value it wants
    unsigned long long value, received;  // what it gives, what it gets
    unsigned long long votes, live;      // a bit a lane: those that gave no 0, those that took part
};

WAVES_STATE std::vector<Thread> threads;
WAVES_STATE Thread* current = nullptr;
WAVES_STATE ucontext_t scheduler;
WAVES_STATE std::function<void()> kernel;
WAVES_STATE std::string error;

// What a thread does -----------------------------------------------------------------------------------------------

inline void wait(State state, int line) {
    current->state = state;
    current->line = line;
    swapcontext(&current->context, &scheduler);
}

inline void complain(const std::string& what, int line) {
    if (error.empty()) error = "line " + std::to_string(line) + ": " + what;
}

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

inline void check_width(int width, int line) {
    if (width < 1 || width > warpSize || (width & (width - 1)) != 0)
        complain("a shuffle's width is " + std::to_string(width) + ", in waves of " + std::to_string(warpSize), line);
}

// The scheduler ----------------------------------------------------------------------------------------------------

inline void thread_body() {
    kernel();
    current->state = State::ended;
}

inline void begin(Thread& thread) {
    constexpr size_t stack_bytes = 128 << 10;
    if (!thread.stack) thread.stack.reset(new char[stack_bytes]);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = stack_bytes;
    thread.context.uc_link = &scheduler;
    makecontext(&thread.context, thread_body, 0);
    thread.state = State::ready;
}

// Run those of the threads that are ready, in this order; return whether there were any.
inline bool run(const std::vector<unsigned int>& order) {
    bool ran = false;
    for (unsigned int i : order) {
        if (threads[i].state != State::ready) continue;
        ran = true;
        current = &threads[i];
        threadIdx.x = i;
        swapcontext(&scheduler, &current->context);
    }
    return ran;
}

// Make a wave's exchange, if all of its live lanes wait for it at one place; return whether it was made.
inline bool exchange(unsigned int wave) {
    const unsigned int first = wave * warpSize, end = std::min(first + warpSize, blockDim.x);
    unsigned long long live = 0, votes = 0;
    int line = 0;
    for (unsigned int i = first; i < end; ++i) {
        const Thread& thread = threads[i];
        if (thread.state == State::ended) continue;
        if (thread.state != State::in_exchange || (live && thread.line != line)) return false;
        line = thread.line;
        live |= 1ull << (i - first);
        votes |= (unsigned long long)(thread.value != 0) << (i - first);
    }
    for (unsigned int i = first; i < end; ++i) {
        Thread& thread = threads[i];
        if (thread.state == State::ended) continue;
        const bool there = thread.source < 64 && live >> thread.source & 1;
        thread.received = there ? threads[first + thread.source].value : ~0ull;
        thread.votes = votes;
        thread.live = live;
        thread.state = State::ready;
    }
    return live != 0;
}

// Open the barrier, if all live threads wait at the same one. With none live, or with an error, the block is done.
inline bool open_barrier() {
    const Thread* one = nullptr;
    for (const Thread& thread : threads) {
        if (thread.state == State::ended) continue;
        if (!one) one = &thread;
        if (thread.state == one->state && thread.line == one->line) continue;
        const auto said = [](const Thread& t) {
            return "thread " + std::to_string(&t - threads.data()) + " waits in line " + std::to_string(t.line) +
                   (t.state == State::at_barrier ? " for its block" : " for its wave");
        };
        complain(said(*one) + ", " + said(thread), one->line);
        return false;
    }
    if (!one) return false;
    for (Thread& thread : threads)
        if (thread.state == State::at_barrier) thread.state = State::ready;
    return true;
}

inline void run_block(Schedule schedule) {
    memset(__bss_start, 0xFF, _end - __bss_start);
    for (Thread& thread : threads) begin(thread);

    // Each group of waves runs as far as it comes without the others.
    const unsigned int waves = (blockDim.x + warpSize - 1) / warpSize;
    const unsigned int groups = schedule == WAVE_BY_WAVE ? waves : 1, size = waves / groups;
    do {
        for (unsigned int group = groups; group-- > 0;) {
            std::vector<unsigned int> order;
            for (unsigned int i = group * size * warpSize; i < blockDim.x && i < (group + 1) * size * warpSize; ++i)
                order.insert(schedule == BACKWARD ? order.begin() : order.end(), i);
            bool moved = true;
            while (moved && error.empty()) {
                moved = run(order);
                for (unsigned int wave = group * size; wave < (group + 1) * size; ++wave) moved |= exchange(wave);
            }
        }
    } while (error.empty() && open_barrier());
}

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

// Run a kernel, block after block; return what went wrong, or nothing. `grid`: three numbers; `block`: threads along x.
extern "C" __global__ const char* waves_launch(void (*entry)(void**), void** arguments, const unsigned int* grid,
                                               unsigned int block, int wave, int schedule) {
    using namespace waves;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block, 1, 1};
    warpSize = wave;
    kernel = [=] { entry(arguments); };
    error.clear();
    threads.resize(block);
    const unsigned long long blocks = 1ull * grid[0] * grid[1] * grid[2];
    for (unsigned long long i = 0; i < blocks && error.empty(); ++i) {
        const unsigned long long at = schedule == BACKWARD ? blocks - 1 - i : i;
        blockIdx = {unsigned(at % grid[0]), unsigned(at / grid[0] % grid[1]), unsigned(at / grid[0] / grid[1])};
        run_block(Schedule(schedule));
    }
    return error.c_str();
}

// HIP's names ------------------------------------------------------------------------------------------------------

inline void __syncthreads(int line = __builtin_LINE()) { waves::wait(waves::State::at_barrier, line); }

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
