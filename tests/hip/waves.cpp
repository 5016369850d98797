/* The scheduler of waves.h, and the launch of a kernel: the same for every text, and so compiled apart. */

#include "waves.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// __shared__ variables are the library's only ones without initial values, and so its .bss is the block's shared memory.
// What is not shared therefore goes elsewhere.
extern "C" __attribute__((visibility("hidden"))) char __bss_start[], _end[];
#define WAVES_STATE __attribute__((section(".data")))

WAVES_STATE dim3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0}, blockDim, gridDim;
WAVES_STATE int warpSize = 0;

namespace waves {

enum Schedule { FORWARD, BACKWARD, WAVE_BY_WAVE };

WAVES_STATE std::vector<Thread> threads;
WAVES_STATE std::vector<std::unique_ptr<char[]>> stacks;  // one a thread, or more: of a larger block before
WAVES_STATE Thread* current = nullptr;
WAVES_STATE ucontext_t scheduler;
WAVES_STATE std::function<void()> kernel;
WAVES_STATE std::string error;

// What a thread does -----------------------------------------------------------------------------------------------

void wait(State state, int line) {
    current->state = state;
    current->line = line;
    swapcontext(&current->context, &scheduler);
}

static void complain(const std::string& what, int line) {
    if (error.empty()) error = "line " + std::to_string(line) + ": " + what;
}

void check_width(int width, int line) {
    if (width < 1 || width > warpSize || (width & (width - 1)) != 0)
        complain("a shuffle's width is " + std::to_string(width) + ", in waves of " + std::to_string(warpSize), line);
}

// The scheduler ----------------------------------------------------------------------------------------------------

static void thread_body() {
    kernel();
    current->state = State::ended;
}

static void begin(Thread& thread) {
    constexpr size_t stack_bytes = 128 << 10;
    const size_t number = &thread - threads.data();
    if (number == stacks.size()) stacks.emplace_back(new char[stack_bytes]);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = stacks[number].get();
    thread.context.uc_stack.ss_size = stack_bytes;
    thread.context.uc_link = &scheduler;
    makecontext(&thread.context, thread_body, 0);
    thread.state = State::ready;
}

// Run those of the threads that are ready, in this order; return whether there were any.
static bool run(const std::vector<unsigned int>& order) {
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
static bool exchange(unsigned int wave) {
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
static bool open_barrier() {
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

static void run_block(Schedule schedule) {
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

}  // namespace waves

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
