/* A machine that runs AMD's instructions: waves of 32 or of 64 lanes, on the host's CPU.
 *
 * machine_code.py reads a kernel's disassembly into Instructions, and compiles Lane::compute, with a case for each
 * operation, behind this header. What the machine holds wrong, it throws: an access outside of what a launch may reach,
 * two waves of a block at one word of LDS with no barrier between them, a value from a lane that is not active.
 *
 * With a seed, what AMD's manuals leave open is random: which wave goes on after an access to memory, of all blocks of the
 * launch; what registers hold at first; the last bits of a reciprocal. Without, waves run one after the other as far as
 * they come, registers and reciprocals are the same each time.
 */

#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

// What Python hands over, with the same fields there ---------------------------------------------------------------

enum Place : uint8_t { NOWHERE, VECTOR_REGISTER, SCALAR_REGISTER, CONSTANT };
enum Kind : uint32_t {
    NOTHING, VECTOR, CARRY, COMPARE, SCALAR, BRANCH, BARRIER, END, PAST_THE_END, PERMUTE, SCALAR_LOAD, LOAD, LOAD_LOW,
    LOAD_HIGH, STORE, STORE_HIGH, ADD_F32, ADD_F64, ADD_U32, FETCH_ADD_U32,
    ADD_U64, OR_B64, COMPARE_SWAP, LDS_LOAD, LDS_LOAD_LOW, LDS_LOAD_HIGH, LDS_STORE, LDS_STORE_HIGH, LDS_ADD_U64, LDS_OR_B64
};
constexpr unsigned VCC = 106, EXEC = 126;  // as scalar registers; the manuals' numbers

struct Operand {
    Place place;
    uint8_t words, negate, absolute;
    uint32_t index;  // of the register
    uint64_t value;  // of the constant
};
struct Instruction {
    Kind kind;
    uint32_t operation;      // its case in Lane::compute
    uint32_t together;       // whether the next one is done at the same time
    uint32_t target;         // of a branch: an index
    uint32_t bytes, count;   // of memory: the size of an element, and how many there are, at
    int32_t offsets[2];      // these offsets
    Operand operands[6];
};
struct Range {
    uint64_t address, size;
    uint32_t writable;
};
struct Launch {
    const Instruction* instructions;
    const Range* ranges;
    uint64_t first, last;  // the blocks to run, of all
    uint32_t range_count, grid[3], block, width, vector_registers, lds, seed;
    uint32_t at_first[16];      // a wave's first scalar registers
    uint32_t id_register, ids;  // where it finds its block's numbers; which of them: bits x, y, z
    uint32_t at;                // out: the instruction that failed
};

// State ------------------------------------------------------------------------------------------------------------

struct Word {  // of LDS: who was there last, and behind how many barriers
    int64_t written = -1, read = -1, changed = -1;  // changed: by an atomic operation
    int writer = 0, reader = 0, changer = 0;
};
struct Block {
    std::vector<uint8_t> lds;
    std::vector<Word> words;
    std::vector<struct Wave*> waves;
    int64_t barriers = 0;
};
struct Wave {
    Block& block;
    int number;  // in its block
    uint32_t at = 0, scalar[128];
    std::vector<std::array<uint32_t, 64>> vector;  // [register][lane]
    bool scc = false, ended = false, waits = false;

    uint64_t mask(unsigned index) const;
    void write(const Operand& to, uint64_t value, int lane);
};
constexpr int SEVERAL = -1;         // waves
constexpr uint64_t LONGEST = 2e7;  // instructions; what runs longer counts as endless

static const Launch* launch;
static std::mt19937 rng;

[[noreturn]] static void fail(const std::string& what) { throw std::runtime_error(what); }

uint64_t Wave::mask(unsigned index) const {
    return scalar[index] | (launch->width == 64 ? uint64_t(scalar[index + 1]) << 32 : 0);
}

void Wave::write(const Operand& to, uint64_t value, int lane) {
    if (to.place == NOWHERE) return;
    for (unsigned i = 0; i < to.words; ++i, value >>= 32)
        (to.place == VECTOR_REGISTER ? vector[to.index + i][lane] : scalar[to.index + i]) = value;
}

// Values -----------------------------------------------------------------------------------------------------------

struct Bits {
    uint64_t value = 0;
    Bits() = default;
    template <typename T>
    Bits(T from) { memcpy(&value, &from, sizeof from); }
};

// One lane of one instruction; for a scalar one the first active lane, of which v_readfirstlane wants to know.
struct Lane {
    Wave& wave;
    const Instruction& instruction;
    int lane;
    bool& flag;  // SCC of a scalar instruction, the lane's bit of the mask that a vector one writes

    // Do the operation; it is generated, from the names below.
    Bits compute();

    uint64_t bits(int n) const {
        const Operand& o = instruction.operands[n];
        uint64_t value = o.value;
        if (o.place == VECTOR_REGISTER || o.place == SCALAR_REGISTER) {
            const auto word = [&](unsigned i) -> uint64_t {
                return o.place == VECTOR_REGISTER ? wave.vector[o.index + i][lane] : wave.scalar[o.index + i];
            };
            value = word(0) | (o.words > 1 ? word(1) << 32 : 0);
        }
        const uint64_t sign = o.words > 1 ? 1ull << 63 : 1ull << 31;
        if (o.absolute) value &= ~sign;
        return o.negate ? value ^ sign : value;
    }
    uint32_t u32(int n) const { return bits(n); }
    int32_t i32(int n) const { return bits(n); }
    uint64_t u64(int n) const { return bits(n); }
    int64_t i64(int n) const { return bits(n); }
    float f32(int n) const { return std::bit_cast<float>(u32(n)); }
    double f64(int n) const { return std::bit_cast<double>(bits(n)); }
    bool bit(int n) const { return bits(n) >> lane & 1; }  // the lane's, of a mask

    uint64_t exec() const { return wave.mask(EXEC); }
    uint64_t vcc() const { return wave.mask(VCC); }
    uint64_t lanes_below() const { return (1ull << lane) - 1; }

    // Results that set the flag too.
    template <typename T>
    T nonzero(T value) {
        flag = value != 0;
        return value;
    }
    uint32_t carried(uint64_t sum) {
        flag = sum >> 32 & 1;
        return sum;
    }
    uint64_t wide(__int128 sum) {
        flag = sum >> 64 & 1;
        return sum;
    }
    int32_t overflowed(int64_t sum) {
        flag = sum != int32_t(sum);
        return sum;
    }
    uint64_t save_exec(uint64_t next) {
        const uint64_t before = exec();
        const uint8_t words = launch->width / 32;
        wave.write({SCALAR_REGISTER, words, 0, 0, EXEC, 0}, nonzero(next), lane);
        return before;
    }
    template <typename T>
    T divide_scale(T value, T denominator, T numerator);
};

// Out of range: the nearest number there is; NaN: 0.
template <typename T>
T saturated(double value) {
    if (value != value) return 0;
    if (value <= double(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
    if (value >= double(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
    return T(value);
}

static float of_half(uint16_t bits) { return float(std::bit_cast<_Float16>(bits)); }
static uint32_t half(float value) { return std::bit_cast<uint16_t>(_Float16(value)); }

static uint32_t reversed(uint32_t value) {
    uint32_t result = 0;
    for (int i = 0; i < 32; ++i) result |= (value >> i & 1) << (31 - i);
    return result;
}

// Each byte of the result is that of (low, high) which a byte of `which` numbers; from 8 on it would number constants.
static uint32_t permuted(uint32_t high, uint32_t low, uint32_t which) {
    const uint64_t both = uint64_t(high) << 32 | low;
    uint32_t result = 0;
    for (int i = 0; i < 32; i += 8) {
        if ((which >> i & 0xFF) > 7) abort();
        result |= (both >> 8 * (which >> i & 7) & 0xFF) << i;
    }
    return result;
}

// `width` bits of a value from `offset` on, these two as S_BFE packs them.
static uint32_t field(uint32_t value, uint32_t packed) {
    const uint32_t offset = packed & 31, width = packed >> 16 & 127;
    return value >> offset & (width < 32 ? (1u << width) - 1 : ~0u);
}

static float flushed(float value) { return fabsf(value) < 0x1p-126f ? copysignf(0, value) : value; }

// V_MAD and V_MAC round twice, and take and give no denormals.
static float mad(float a, float b, float c) { return flushed(flushed(flushed(a) * flushed(b)) + flushed(c)); }

// The manuals grant 1 ulp in f32; in f64 about as many bits as f32 has, since it is meant as the first guess of a Newton
// iteration.
static double guess(double exact) {
    const bool open = launch->seed && std::isfinite(exact) && exact != 0;
    return open ? exact * (1 + (int(rng() % 3) - 1) * 0x1p-23) : exact;
}
static float within_an_ulp(double exact) {
    const float nearest = float(exact);
    if (!launch->seed || nearest == exact || !std::isfinite(nearest)) return nearest;
    const float other = nextafterf(nearest, nearest < exact ? INFINITY : -INFINITY);
    return rng() % 2 ? nearest : other;
}

static int exponent(double value) { return std::bit_cast<uint64_t>(value) >> 52 & 2047; }
static int exponent(float value) { return std::bit_cast<uint32_t>(value) >> 23 & 255; }
template <typename T>
bool denormal(T value) { return value != 0 && exponent(value) == 0; }
template <typename T>
bool same(T a, T b) { return a == b ? std::signbit(a) == std::signbit(b) : a != a && b != b; }

static int frexp_exponent(double value) {
    int result = 0;
    if (std::isfinite(value)) std::frexp(value, &result);
    return result;
}
static double frexp_mantissa(double value) {
    int ignored;
    return std::isfinite(value) ? std::frexp(value, &ignored) : value;
}

// V_CMP_CLASS: a bit for each kind of number.
template <typename T>
static bool is_of_class(T value, uint32_t classes) {
    const bool negative = std::signbit(value);
    if (value != value) {
        if constexpr (sizeof(T) == 8) return classes >> (std::bit_cast<uint64_t>(value) >> 51 & 1) & 1;
        else return classes >> (std::bit_cast<uint32_t>(value) >> 22 & 1) & 1;
    }
    if (std::isinf(value)) return classes >> (negative ? 2 : 9) & 1;
    if (value == 0) return classes >> (negative ? 5 : 6) & 1;
    if (denormal(value)) return classes >> (negative ? 4 : 7) & 1;
    return classes >> (negative ? 3 : 8) & 1;
}

// The three steps of a division that keep its iterations from overflow, as "RDNA3 Instruction Set Architecture" writes
// V_DIV_SCALE, V_DIV_FMAS and V_DIV_FIXUP of both types in its chapter on VOP3 instructions. To the letter, quotients that
// are too large become NaN, and denormal ones are rounded twice or NaN; what hardware does there, this cannot tell.
template <typename T>
T Lane::divide_scale(T value, T denominator, T numerator) {
    constexpr bool wide = sizeof(T) == 8;
    constexpr int step = wide ? 128 : 64;
    flag = false;
    if (numerator == 0 || denominator == 0) return NAN;
    const bool small_reciprocal = denormal(1 / denominator), small_quotient = denormal(numerator / denominator);
    if (exponent(numerator) - exponent(denominator) >= (wide ? 768 : 96)) {
        flag = true;
        return same(value, denominator) ? std::ldexp(value, step) : value;
    }
    if (denormal(denominator)) return std::ldexp(value, step);
    if (small_reciprocal && small_quotient) {
        flag = true;
        return same(value, denominator) ? std::ldexp(value, step) : value;
    }
    if (small_reciprocal) return std::ldexp(value, -step);
    if (small_quotient) {
        flag = true;
        return same(value, numerator) ? std::ldexp(value, step) : value;
    }
    return exponent(numerator) <= (wide ? 53 : 23) ? std::ldexp(value, step) : value;
}
template <typename T>
T divide_fmas(T a, T b, T c, bool scaled) {
    constexpr bool wide = sizeof(T) == 8;
    constexpr int step = wide ? 128 : 64;
    const T result = std::fma(a, b, c);
    return scaled ? std::ldexp(result, exponent(c) > (wide ? 1023 : 127) ? step : -step) : result;
}
template <typename T>
T divide_fixup(T quotient, T denominator, T numerator) {
    const T sign = std::signbit(denominator) != std::signbit(numerator) ? -1 : 1;
    if (numerator != numerator) return numerator;
    if (denominator != denominator) return denominator;
    if ((denominator == 0 && numerator == 0) || (std::isinf(denominator) && std::isinf(numerator))) return NAN;
    if (denominator == 0 || std::isinf(numerator)) return sign * INFINITY;
    if (std::isinf(denominator) || numerator == 0) return sign * 0;
    if (exponent(numerator) - exponent(denominator) < (sizeof(T) == 8 ? -1075 : -150)) return sign * 0;
    return sign * std::fabs(quotient);
}

// Memory -----------------------------------------------------------------------------------------------------------

// Return where the bytes are, if the launch may reach all of them.
static uint8_t* reach(uint64_t address, unsigned bytes, bool write) {
    if (address % std::min(bytes, 4u)) fail("not aligned");
    for (unsigned i = 0; i < launch->range_count; ++i) {
        const Range& range = launch->ranges[i];
        if (address < range.address || address - range.address + bytes > range.size) continue;
        if (write && !range.writable) fail("written to range " + std::to_string(i));
        return reinterpret_cast<uint8_t*>(address);
    }
    fail(std::string(write ? "writes" : "reads") + " outside of what the launch may reach");
}

static uint8_t* reach_lds(Wave& wave, uint32_t address, unsigned bytes, bool write, bool atomic) {
    Block& block = wave.block;
    if (address % std::min(bytes, 8u)) fail("not aligned in LDS");
    if (uint64_t(address) + bytes > block.lds.size()) fail("outside of the block's LDS");
    for (unsigned i = address / 4; i < (address + bytes + 3) / 4; ++i) {
        Word& word = block.words[i];
        const bool others = word.read == block.barriers && word.reader != wave.number;
        const bool changed = word.changed == block.barriers && word.changer != wave.number;
        const bool written = word.written == block.barriers && word.writer != wave.number;
        if (written || (write && others) || (changed && !atomic))
            fail("two waves at one word of LDS, with no barrier between them");
        if (atomic) {
            word.changer = changed ? SEVERAL : wave.number;
            word.changed = block.barriers;
            continue;
        }
        (write ? word.writer : word.reader) = others ? SEVERAL : wave.number;
        (write ? word.written : word.read) = block.barriers;
    }
    return &block.lds[address];
}

// One lane's access. Operands: data; address, base; for two elements to be stored also the second one's data.
static void access(Wave& wave, const Instruction& i, int lane) {
    bool unused;
    const Lane values{wave, i, lane, unused};
    const bool lds = i.kind >= LDS_LOAD;
    const bool write = i.kind >= (lds ? LDS_STORE : STORE);
    const Operand& data = i.operands[0];
    const uint64_t base = values.bits(1) + (lds ? 0 : values.bits(2));  // may be where the first element is loaded
    for (unsigned n = 0; n < i.count; ++n) {
        const uint64_t address = base + i.offsets[n];
        uint8_t* const at = lds ? reach_lds(wave, address, i.bytes, write, i.kind >= LDS_ADD_U64) : reach(address, i.bytes, write);
        uint32_t words[16] = {};
        const unsigned count = (i.bytes + 3) / 4;
        const auto registers = [&](unsigned word) -> uint32_t& {
            if (i.kind == SCALAR_LOAD) return wave.scalar[data.index + word];
            const bool second = i.kind == LDS_STORE && n;
            return wave.vector[second ? i.operands[2].index + word : data.index + n * count + word][lane];
        };
        if (i.kind == ADD_F32 || i.kind == ADD_F64 || i.kind == ADD_U32) {
            const auto add = [&](auto value) {
                decltype(value) before;
                memcpy(&before, at, sizeof before);
                value += before;
                memcpy(at, &value, sizeof value);
            };
            i.kind == ADD_F32 ? add(values.f32(0)) : i.kind == ADD_F64 ? add(values.f64(0)) : add(values.u32(0));
        } else if (i.kind == ADD_U64 || i.kind == LDS_ADD_U64 || i.kind == OR_B64 || i.kind == LDS_OR_B64) {
            uint64_t value;
            memcpy(&value, at, sizeof value);
            if (i.kind == ADD_U64 || i.kind == LDS_ADD_U64) value += values.u64(0);
            else value |= values.u64(0);
            memcpy(at, &value, sizeof value);
        } else if (i.kind == FETCH_ADD_U32) {  // operand 3: what to add
            memcpy(words, at, sizeof *words);
            const uint32_t sum = words[0] + values.u32(3);
            memcpy(at, &sum, sizeof sum);
            registers(0) = words[0];
        } else if (i.kind == COMPARE_SWAP) {  // operand 3: what to store, then what to compare with
            const auto operand = [&](unsigned word) { return wave.vector[i.operands[3].index + word][lane]; };
            uint32_t store[2], expected[2];
            for (unsigned k = 0; k < count; ++k) store[k] = operand(k), expected[k] = operand(count + k);
            memcpy(words, at, i.bytes);
            if (!memcmp(at, expected, i.bytes)) memcpy(at, store, i.bytes);
            for (unsigned k = 0; k < count; ++k) registers(k) = words[k];
        } else if (write) {
            for (unsigned k = 0; k < count; ++k) words[k] = registers(k);
            if (i.kind == STORE_HIGH || i.kind == LDS_STORE_HIGH) words[0] >>= 16;
            memcpy(at, words, i.bytes);
        } else {
            memcpy(words, at, i.bytes);
            if (i.kind == LOAD_LOW || i.kind == LDS_LOAD_LOW) words[0] |= registers(0) & 0xffff0000;
            if (i.kind == LOAD_HIGH || i.kind == LDS_LOAD_HIGH) words[0] = words[0] << 16 | (registers(0) & 0xffff);
            for (unsigned k = 0; k < count; ++k) registers(k) = words[k];
        }
    }
}

// Instructions -----------------------------------------------------------------------------------------------------

template <typename Body>
void each_lane(const Wave& wave, Body body) {
    const uint64_t exec = wave.mask(EXEC);
    for (unsigned lane = 0; lane < launch->width; ++lane)
        if (exec >> lane & 1) body(lane);
}

// Instructions that are done together all read before one of them writes.
static void vector_operation(Wave& wave, const Instruction* i) {
    uint64_t mask = 0;
    const int count = i->together ? 2 : 1;
    each_lane(wave, [&](int lane) {
        bool flag = false;
        Bits results[2];
        for (int k = 0; k < count; ++k) results[k] = Lane{wave, i[k], lane, flag}.compute();
        for (int k = 0; k < count; ++k)
            if (i->kind != COMPARE) wave.write(i[k].operands[0], results[k].value, lane);
        mask |= uint64_t(flag) << lane;
    });
    if (i->kind != VECTOR) wave.write(i->operands[i->kind == CARRY], mask, 0);
}

// Operands: what is received, four times the lane that gives it, what is given.
static void permute(Wave& wave, const Instruction& i) {
    uint32_t received[64];
    each_lane(wave, [&](int lane) {
        bool unused;
        const unsigned source = Lane{wave, i, lane, unused}.u32(1) / 4 % launch->width;
        if (!(wave.mask(EXEC) >> source & 1)) fail("a value from a lane that is not active");
        received[lane] = Lane{wave, i, int(source), unused}.u32(2);
    });
    each_lane(wave, [&](int lane) { wave.write(i.operands[0], received[lane], lane); });
}

// Do an instruction; return whether it may matter which wave goes on.
static bool step(Wave& wave) {
    const Instruction& i = launch->instructions[wave.at];
    const int first = std::countr_zero(wave.mask(EXEC)) % 64;  // 0 where none is active
    wave.at += i.together ? 2 : 1;
    switch (i.kind) {
        case NOTHING: return false;
        case VECTOR: case CARRY: case COMPARE: vector_operation(wave, &i); return false;
        case SCALAR: {
            const Bits result = Lane{wave, i, first, wave.scc}.compute();
            wave.write(i.operands[0], result.value, 0);
            return false;
        }
        case BRANCH: {
            bool taken = wave.scc;
            Lane{wave, i, first, taken}.compute();
            if (taken) wave.at = i.target;
            return false;
        }
        case BARRIER: return wave.waits = true;
        case END: return wave.ended = true;
        case PAST_THE_END: fail("it has no s_endpgm");
        case PERMUTE: permute(wave, i); return false;
        case SCALAR_LOAD: access(wave, i, 0); return true;
        default: each_lane(wave, [&](int lane) { access(wave, i, lane); }); return true;
    }
}

// The scheduler ----------------------------------------------------------------------------------------------------

static std::unique_ptr<Wave> begin(Block& block, uint64_t number, int of_block) {
    auto wave = std::make_unique<Wave>(Wave{block, of_block});
    wave->vector.resize(launch->vector_registers);
    const auto poison = [] { return launch->seed ? uint32_t(rng()) : 0xFFFFFFFF; };
    for (uint32_t& each : wave->scalar) each = poison();
    for (auto& each : wave->vector)
        for (uint32_t& of_lane : each) of_lane = poison();

    const uint32_t* grid = launch->grid;
    const uint32_t ids[3] = {uint32_t(number % grid[0]), uint32_t(number / grid[0] % grid[1]),
                             uint32_t(number / grid[0] / grid[1])};
    memcpy(wave->scalar, launch->at_first, sizeof launch->at_first);
    uint32_t* to = wave->scalar + launch->id_register;
    for (int axis = 0; axis < 3; ++axis)
        if (launch->ids >> axis & 1) *to++ = ids[axis];
    uint64_t exec = 0;
    for (unsigned lane = 0; lane < launch->width; ++lane) {
        const uint32_t thread = of_block * launch->width + lane;
        wave->vector[0][lane] = thread;
        exec |= uint64_t(thread < launch->block) << lane;
    }
    memcpy(wave->scalar + EXEC, &exec, sizeof exec);
    return wave;
}

// Open the block's barrier if all of its live waves wait there; return them.
static std::vector<Wave*> open_barrier(Block& block) {
    std::vector<Wave*> live;
    for (Wave* wave : block.waves) {
        if (wave->ended) continue;
        if (!wave->waits) return {};
        live.push_back(wave);
    }
    for (Wave* wave : live) wave->waits = false;
    ++block.barriers;
    return live;
}

// Run blocks to their end, all at once.
static void run_blocks(uint64_t first, uint64_t last, uint32_t& at, uint64_t& steps) {
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<std::unique_ptr<Wave>> waves;
    std::vector<Wave*> ready;
    for (uint64_t number = first; number < last; ++number) {
        Block& block = *blocks.emplace_back(std::make_unique<Block>());
        block.lds.assign(launch->lds, 0xFF);
        block.words.resize((launch->lds + 3) / 4);
        for (unsigned i = 0; i * launch->width < launch->block; ++i) {
            waves.push_back(begin(block, number, i));
            block.waves.push_back(waves.back().get());
        }
        ready.insert(ready.end(), block.waves.begin(), block.waves.end());
    }
    while (!ready.empty()) {
        const size_t chosen = launch->seed ? rng() % ready.size() : 0;
        Wave& wave = *ready[chosen];
        do {
            at = wave.at;
            if (++steps > LONGEST) fail("it does not end");
        } while (!step(wave) || !(launch->seed || wave.waits || wave.ended));
        if (!wave.waits && !wave.ended) continue;
        ready.erase(ready.begin() + chosen);
        const std::vector<Wave*> released = open_barrier(wave.block);
        ready.insert(ready.end(), released.begin(), released.end());
    }
}

// Return what went wrong, or nothing.
extern "C" __attribute__((visibility("default"))) const char* machine_launch(Launch* what) {
    static std::string error;
    error.clear();
    launch = what;
    rng.seed(what->seed);
    uint64_t steps = 0;
    try {
        if (what->seed) {
            run_blocks(what->first, what->last, what->at, steps);
        } else {
            for (uint64_t i = what->first; i < what->last; ++i) run_blocks(i, i + 1, what->at, steps);
        }
    } catch (const std::runtime_error& fault) {
        error = fault.what();
    }
    return error.c_str();
}
