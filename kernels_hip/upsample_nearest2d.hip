//% set turn = 4
// upsample_nearest2d, {{ T.name }}.
//
//   y[n,c,i,j] = x[n,c,row(i),column(j)],   row(i) = min(trunc(i * (H / OH)), H - 1),   column(j) likewise of W, OW
//
// The scales H / OH and W / OW come rounded to f64, and the product is rounded to f64 once more, as candle has it:
// integers answer otherwise at some places (30 -> 44 at 22 is 14). Elements are moved, and nothing is computed of them:
// a type is a number of bits here, and those of a NaN or a denormal arrive as they are. x has any strides, y is
// contiguous.
//
// Launch: any grid and block. A thread takes an element of y, and goes on in steps of the grid.
// ABI: (u64 w_out, u64 h_out, f64 w_scale, f64 h_scale, info, src, dst), where "w" is the third axis, OH and H / OH,
// and "h" the fourth, OW and W / OW; info is u64[8], the shape of x and its strides in elements.
//
// upsample_nearest2d_tables_{{ T.name }} is the twin of that in PTX, which explains it: 16 bytes of several rows of y a thread. All
// that is read for {{ turn }} rows of y is on its way before the first is written; rows that are the same one of x come from cache.
//% if entry is none or "_narrow_" in entry
//
// upsample_nearest2d_narrow_W_{{ T.name }} is the twin of that in PTX, which explains it: pieces of W bytes of all rows of y that are the same one
// of x a thread.
//% endif
//% if T.kind == "float"
//
// Backward: grad_input[n,c,r,s] = sum of grad_out[n,c,i,j] over the i with row(i) = r and the j with column(j) = s, from
// +0 on, in the order of grad_out, in {{ R.name }}; rounded once. So one that nothing was copied from gets 0.
//
// Launch: any grid and block. A thread takes one of the total = N * C * H * W elements of grad_input, and goes on in steps
// of the grid.
// ABI: (go_ptr, gi_ptr, rows_ptr, columns_ptr, u64 total, u64 channels, u64 in_h, u64 in_w, u64 image_stride,
// u64 channel_stride, u64 row_stride, u64 column_stride): strides in elements of grad_out. rows_ptr is u64[H + 1], the
// first i with row(i) >= r for each r, and OH; columns_ptr likewise. Whoever launches finds them by the forward's own
// product, since no inverse of it is exact.
//
// upsample_nearest2d_backward_factors_{{ T.name }} is the twin of that in PTX, which explains it: 16 bytes of grad_input a thread, where rows and columns were copied a whole number of times, columns 2, 3 or 4 times.
//% if entry is none or "_narrow_" in entry
//
// upsample_nearest2d_backward_narrow_F_W_{{ T.name }} is the twin of that in PTX, which explains it: 8 bytes of grad_input a thread, in pieces of W
// bytes, where rows and columns were copied F times.
//% endif
//% endif

//% set bits = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
typedef {{ bits[T.size] }} Bits;

// Where along an axis of x, of so many elements, a place along the same axis of y has its value from.
__device__ inline size_t source_of(size_t place, double scale, size_t length) {
    return min(size_t(double(place) * scale), length - 1);
}

__device__ void upsample_nearest2d(size_t out_h, size_t out_w, double row_scale, double column_scale,
                                   const size_t* __restrict__ info, const Bits* __restrict__ src,
                                   Bits* __restrict__ dst) {
    const size_t *shape = info, *strides = info + 4;

    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t element = size_t(blockIdx.x) * blockDim.x + threadIdx.x;; element += step) {
        // The element's place on each axis of y, from the last axis up.
        size_t rest = element;
        const size_t j = rest % out_w;
        rest /= out_w;
        const size_t i = rest % out_h;
        rest /= out_h;
        const size_t channel = rest % shape[1];
        const size_t image = rest / shape[1];
        if (image >= shape[0]) return;

        const size_t row = source_of(i, row_scale, shape[2]);
        const size_t column = source_of(j, column_scale, shape[3]);
        dst[element] = src[image * strides[0] + channel * strides[1] + row * strides[2] + column * strides[3]];
    }
}

#define UPSAMPLE_NEAREST2D(type, Bits)                                                                                 \
    extern "C" __global__ void __launch_bounds__(1024) upsample_nearest2d_##type(                                      \
        const size_t w_out, const size_t h_out, const double w_scale, const double h_scale, const size_t* info,        \
        const void* src, void* dst) {                                                                                  \
        upsample_nearest2d(w_out, h_out, w_scale, h_scale, info, static_cast<const Bits*>(src),                        \
                           static_cast<Bits*>(dst));                                                                   \
    }

UPSAMPLE_NEAREST2D({{ T.name }}, Bits)

constexpr int TURN = {{ turn }};  // rows of y that are read ahead
//% if T.size > 2

// 16 bytes of a row of y.
struct alignas(16) Piece {
    Bits elements[{{ 16 // T.size }}];
};
//% else

// Byte i is that of (low, high) whose number is in bits 4i to 4i + 2 of `which`.
__device__ inline unsigned pick(unsigned low, unsigned high, unsigned which) {
#ifdef __HIP_PLATFORM_NVIDIA__
    return __byte_perm(low, high, which);
#else
    const unsigned spread = (which & 0xF) | (which & 0xF0) << 4 | (which & 0xF00) << 8 | (which & 0xF000) << 12;
    return __builtin_amdgcn_perm(high, low, spread);
#endif
}

// 32 bits of memory, by one access or by one for each element.
template <bool AT_ONCE>
__device__ inline unsigned word_at(const char* from) {
    if (AT_ONCE) return *reinterpret_cast<const unsigned*>(from);
    const Bits* elements = reinterpret_cast<const Bits*>(from);
    unsigned word = 0;
    for (int i = 0; i < {{ 4 // T.size }}; ++i) word |= unsigned(elements[i]) << {{ 8 * T.size }} * i;
    return word;
}
//% endif

// The first `left` rows of y from `to` on, which are those of x that `rows` has, in a plane at `from`.
template <int WINDOWS, bool AT_ONCE>
__device__ void rows_by_tables(const char* from, char* to, size_t pitch, const unsigned* rows, unsigned left,
                               const uint4 entry, size_t row_bytes) {
    constexpr int WORDS = {{ "2 * WINDOWS" if T.size < 4 else 16 // T.size }};
//% if T.size < 4
    const unsigned windows[2] = {entry.x, entry.y}, which[4] = {entry.z, entry.z >> 16, entry.w, entry.w >> 16};
    typedef unsigned Word;
//% else
    const unsigned windows[4] = {entry.x, entry.y, entry.z, entry.w};
    typedef Bits Word;
//% endif
    for (; left; rows += TURN) {
        Word words[TURN][WORDS];
#pragma unroll
        for (unsigned r = 0; r < TURN; ++r) {
            const char* row = from + rows[min(r, left - 1)] * row_bytes;
#pragma unroll
//% if T.size < 4
            for (int w = 0; w < WORDS; ++w) words[r][w] = word_at<AT_ONCE>(row + windows[w / 2] + w % 2 * 4);
//% else
            for (int w = 0; w < WORDS; ++w) words[r][w] = *reinterpret_cast<const Bits*>(row + windows[w]);
//% endif
        }
#pragma unroll
        for (unsigned r = 0; r < TURN; ++r) {
            if (r >= left) return;
//% if T.size < 4
            unsigned parts[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const int first = WINDOWS * k / 4 * 2;
                parts[k] = pick(words[r][first], words[r][first + 1], which[k]);
            }
            if (AT_ONCE) {
                *reinterpret_cast<uint4*>(to) = make_uint4(parts[0], parts[1], parts[2], parts[3]);
            } else {
#pragma unroll
                for (int k = 0; k < {{ 16 // T.size }}; ++k) {
                    reinterpret_cast<Bits*>(to)[k] = Bits(parts[k * {{ T.size }} / 4] >> k * {{ 8 * T.size }} % 32);
                }
            }
//% else
            Piece piece;
#pragma unroll
            for (int k = 0; k < WORDS; ++k) piece.elements[k] = words[r][k];
            if (AT_ONCE) {
                *reinterpret_cast<Piece*>(to) = piece;
            } else {
                for (int k = 0; k < WORDS; ++k) reinterpret_cast<Bits*>(to)[k] = words[r][k];
            }
//% endif
            to += pitch;
        }
        left -= TURN;
    }
}

extern "C" __global__ void __launch_bounds__(256)
upsample_nearest2d_tables_{{ T.name }}(const void* src, void* dst, const unsigned* rows_ptr, const unsigned* columns_ptr,
                             unsigned threads, unsigned chunks, unsigned bands, unsigned height, unsigned windows,
                             unsigned channels, unsigned out_h, size_t image_stride, size_t channel_stride,
                             unsigned row_bytes) {
    const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= threads) return;
    const unsigned chunk = thread % chunks, band = thread / chunks % bands, plane = thread / chunks / bands;
    const unsigned first = band * height, left = min(height, out_h - first);
    const uint4 entry = reinterpret_cast<const uint4*>(columns_ptr)[chunk];
    const char* from = static_cast<const char*>(src) +
                       (plane / channels * image_stride + plane % channels * channel_stride) * sizeof(Bits);
    const size_t pitch = size_t(chunks) * 16;
    char* to = static_cast<char*>(dst) + (size_t(plane) * out_h + first) * pitch + size_t(chunk) * 16;
    const unsigned* rows = rows_ptr + first;
//% if T.size < 4
    const bool at_once = reinterpret_cast<size_t>(to) % 16 == 0 && reinterpret_cast<size_t>(from) % 4 == 0;
    if (!at_once) rows_by_tables<2, false>(from, to, pitch, rows, left, entry, row_bytes);
    else if (windows == 1) rows_by_tables<1, true>(from, to, pitch, rows, left, entry, row_bytes);
    else rows_by_tables<2, true>(from, to, pitch, rows, left, entry, row_bytes);
//% else
    if (reinterpret_cast<size_t>(to) % 16) rows_by_tables<1, false>(from, to, pitch, rows, left, entry, row_bytes);
    else rows_by_tables<1, true>(from, to, pitch, rows, left, entry, row_bytes);
//% endif
}
//% if entry is none or "_narrow_" in entry

// Of a piece of a run: its row, and which one of the row's it is.
struct PieceOfRun {
    unsigned line, j;

    __device__ PieceOfRun(unsigned piece, unsigned across, unsigned across_factor, unsigned across_shift)
        : line(unsigned((unsigned long long)piece * across_factor >> across_shift)), j(piece - line * across) {}
};

// So many bytes as they are in registers, and are read and written at once.
template <unsigned BYTES>
struct alignas(BYTES) Packed {
    unsigned words[BYTES / 4];
};
template <>
struct Packed<2> {
    unsigned short word;
};
//% if entry is none or "backward" not in entry

// A thread's pieces of `rows` rows of y, a block's threads apart; all that they are of is on its way at once.
template <unsigned WIDTH>
__device__ inline void narrow(const char* from, char* to, unsigned count, unsigned across, unsigned across_factor,
                              unsigned across_shift, unsigned rows, unsigned column_factor, size_t run_stride,
                              unsigned row_stride, unsigned column_stride) {
    constexpr unsigned EACH = WIDTH / sizeof(Bits), PIECES = WIDTH < 8 ? 8 / WIDTH : 1;
    const unsigned pitch = across * WIDTH, band = pitch * rows, first = blockIdx.x * blockDim.x * PIECES + threadIdx.x;
    from += blockIdx.y * run_stride;
    to += size_t(count) * rows * blockIdx.y * WIDTH;
    const bool at_once = reinterpret_cast<size_t>(to) % WIDTH == 0;

    Bits values[PIECES][EACH];
    char* places[PIECES];
#pragma unroll
    for (unsigned p = 0; p < PIECES; ++p) {
        const unsigned piece = min(first + p * blockDim.x, count - 1);  // what is not there is the last one, and not written
        const PieceOfRun at(piece, across, across_factor, across_shift);
        const char* row = from + size_t(at.line) * row_stride;
        places[p] = to + size_t(at.line) * band + size_t(at.j) * WIDTH;
#pragma unroll
        for (unsigned k = 0; k < EACH; ++k) {
            const unsigned column = (at.j * EACH + k) * column_factor >> 16;
            values[p][k] = *reinterpret_cast<const Bits*>(row + size_t(column) * column_stride);
        }
    }
    Packed<WIDTH> packed[PIECES];
#pragma unroll
    for (unsigned p = 0; p < PIECES; ++p) memcpy(&packed[p], values[p], WIDTH);
#pragma unroll 1
    for (; rows; --rows) {
#pragma unroll
        for (unsigned p = 0; p < PIECES; ++p) {
            if (first + p * blockDim.x >= count) break;
            if (at_once) {
                *reinterpret_cast<Packed<WIDTH>*>(places[p]) = packed[p];
            } else {
#pragma unroll
                for (unsigned k = 0; k < EACH; ++k) reinterpret_cast<Bits*>(places[p])[k] = values[p][k];
            }
            places[p] += pitch;
        }
    }
}
//% for width in (16, 8, 4, 2) if width >= T.size and T.name in ("u8", "f16", "u32", "f64")

extern "C" __global__ void __launch_bounds__(256)
upsample_nearest2d_narrow_{{ width }}_{{ T.name }}(const void* src, void* dst, unsigned count, unsigned across, unsigned across_factor,
                                 unsigned across_shift, unsigned rows, unsigned column_factor, size_t run_stride,
                                 unsigned row_stride, unsigned column_stride) {
    narrow<{{ width }}>(static_cast<const char*>(src), static_cast<char*>(dst), count, across, across_factor, across_shift, rows,
               column_factor, run_stride, row_stride, column_stride);
}
//% endfor
//% endif
//% endif
//% if T.kind == "float"

//% include "elements.jinja"

extern "C" __global__ void __launch_bounds__(1024)
upsample_nearest2d_backward_{{ T.name }}(const Element* go_ptr, Element* gi_ptr, const size_t* rows_ptr,
                                const size_t* columns_ptr, size_t total, size_t channels, size_t in_h, size_t in_w,
                                size_t image_stride, size_t channel_stride, size_t row_stride, size_t column_stride) {
    const size_t step = size_t(gridDim.x) * blockDim.x;
    for (size_t element = size_t(blockIdx.x) * blockDim.x + threadIdx.x; element < total; element += step) {
        const size_t s = element % in_w, r = element / in_w % in_h, plane = element / in_w / in_h;
        const Element* go = go_ptr + plane / channels * image_stride + plane % channels * channel_stride;
        const size_t bottom = rows_ptr[r + 1], left = columns_ptr[s], right = columns_ptr[s + 1];
        Real sum = 0;
        for (size_t i = rows_ptr[r]; i < bottom; ++i) {
#pragma unroll 1
            for (size_t j = left; j < right; ++j) sum += Real(go[i * row_stride + j * column_stride]);
        }
        gi_ptr[element] = Element(sum);
    }
}
//% if entry in (none, "upsample_nearest2d_backward_factors_" ~ T.name)

//% include "vectors.jinja"

// To the sums what ROWS rows of grad_out have for them, all of which is on its way at once.
template <unsigned COLUMNS, unsigned ROWS>
__device__ inline void add_rows(Real (&sums)[VECTOR], const Element* from, size_t step) {
    uint4 vectors[ROWS][COLUMNS];
#pragma unroll
    for (unsigned r = 0; r < ROWS; ++r)
#pragma unroll
        for (unsigned v = 0; v < COLUMNS; ++v) vectors[r][v] = reinterpret_cast<const uint4*>(from + r * step)[v];
#pragma unroll
    for (unsigned r = 0; r < ROWS; ++r)
#pragma unroll
        for (unsigned k = 0; k < VECTOR * COLUMNS; ++k)
            sums[k / COLUMNS] += Real(reinterpret_cast<const Element*>(vectors[r])[k]);
}

// 16 bytes of grad_input, of sums of `rows` rows and COLUMNS columns each.
template <unsigned COLUMNS>
__device__ void add_vectors(const Element* from, Element* to, unsigned rows, size_t step) {
    constexpr unsigned TURN = 2 + COLUMNS % 2;
    Real sums[VECTOR] = {};
//% if T.size == 2
#pragma unroll 1  // turns together have more registers than NVIDIA's assembler wants to give, and it spills them
//% endif
    for (; rows >= TURN; rows -= TURN, from += TURN * step) add_rows<COLUMNS, TURN>(sums, from, step);
//% if T.size == 2
#pragma unroll 1
//% endif
    for (; rows; --rows, from += step) add_rows<COLUMNS, 1>(sums, from, step);
    store<true>(to, sums);
}

extern "C" __global__ void __launch_bounds__(256)
upsample_nearest2d_backward_factors_{{ T.name }}(const Element* go_ptr, Element* gi_ptr, unsigned threads, unsigned chunks,
                                        unsigned channels, unsigned in_h, unsigned rows, unsigned columns,
                                        size_t image_stride, size_t channel_stride, size_t row_stride) {
    const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= threads) return;
    const unsigned chunk = thread % chunks, row = thread / chunks % in_h, plane = thread / chunks / in_h;
    const Element* from = go_ptr + plane / channels * image_stride + plane % channels * channel_stride +
                          size_t(row) * rows * row_stride + size_t(chunk) * VECTOR * columns;
    Element* to = gi_ptr + size_t(thread) * VECTOR;
    const size_t addresses = reinterpret_cast<size_t>(from) | reinterpret_cast<size_t>(to) | row_stride * sizeof(Element);
    if (addresses % 16 == 0) {
        if (columns == 2) add_vectors<2>(from, to, rows, row_stride);
        else if (columns == 3) add_vectors<3>(from, to, rows, row_stride);
        else add_vectors<4>(from, to, rows, row_stride);
        return;
    }
#pragma unroll 1
    for (unsigned k = 0; k < VECTOR; ++k) {
        Real sum = 0;
#pragma unroll 1
        for (unsigned i = 0; i < rows; ++i)
#pragma unroll 1
            for (unsigned j = 0; j < columns; ++j) sum += Real(from[i * row_stride + k * columns + j]);
        to[k] = Element(sum);
    }
}
//% endif
//% if entry is none or "backward_narrow_" in entry

// 8 bytes of grad_input, in pieces of WIDTH bytes, a block's threads apart; all that they are sums of is on its way at once.
template <unsigned FACTOR, unsigned WIDTH>
__device__ inline void narrow_sums(const char* from, char* to, unsigned count, unsigned across, unsigned across_factor,
                                   unsigned across_shift, size_t run_stride, unsigned row_stride) {
    constexpr unsigned EACH = WIDTH / sizeof(Element), PIECES = 8 / WIDTH, ROW = FACTOR * WIDTH;
    constexpr unsigned ACCESS = FACTOR == 3 ? WIDTH : ROW < 16 ? ROW : 16;
    const unsigned first = blockIdx.x * blockDim.x * PIECES + threadIdx.x;
    from += blockIdx.y * run_stride;
    to += size_t(count) * blockIdx.y * WIDTH;
    if ((reinterpret_cast<size_t>(from) | reinterpret_cast<size_t>(to) | row_stride) % ACCESS == 0) {
        Packed<ACCESS> kept[PIECES][FACTOR][ROW / ACCESS];
#pragma unroll
        for (unsigned p = 0; p < PIECES; ++p) {
            const unsigned piece = min(first + p * blockDim.x, count - 1);  // what is not there is the last one
            const PieceOfRun at(piece, across, across_factor, across_shift);
            const char* row = from + size_t(at.line) * (row_stride * FACTOR) + size_t(at.j) * ROW;
#pragma unroll
            for (unsigned r = 0; r < FACTOR; ++r, row += row_stride)
#pragma unroll
                for (unsigned a = 0; a < ROW / ACCESS; ++a) kept[p][r][a] = reinterpret_cast<const Packed<ACCESS>*>(row)[a];
        }
#pragma unroll
        for (unsigned p = 0; p < PIECES; ++p) {
            const unsigned piece = first + p * blockDim.x;
            if (piece >= count) break;
            Real sums[EACH] = {};
            Element results[EACH];
#pragma unroll
            for (unsigned r = 0; r < FACTOR; ++r) {
                Element elements[FACTOR * EACH];
                memcpy(elements, kept[p][r], ROW);
#pragma unroll
                for (unsigned k = 0; k < FACTOR * EACH; ++k) sums[k / FACTOR] += Real(elements[k]);
            }
#pragma unroll
            for (unsigned k = 0; k < EACH; ++k) results[k] = Element(sums[k]);
            Packed<WIDTH> packed;
            memcpy(&packed, results, WIDTH);
            reinterpret_cast<Packed<WIDTH>*>(to)[piece] = packed;
        }
        return;
    }
#pragma unroll 1
    for (unsigned p = 0; p < PIECES; ++p) {
        const unsigned piece = first + p * blockDim.x;
        if (piece >= count) return;
        const PieceOfRun at(piece, across, across_factor, across_shift);
        const char* columns = from + size_t(at.line) * (row_stride * FACTOR) + size_t(at.j) * ROW;
#pragma unroll 1
        for (unsigned k = 0; k < EACH; ++k, columns += FACTOR * sizeof(Element)) {
            Real sum = 0;
#pragma unroll
            for (unsigned r = 0; r < FACTOR; ++r)
#pragma unroll
                for (unsigned c = 0; c < FACTOR; ++c)
                    sum += Real(reinterpret_cast<const Element*>(columns + size_t(r) * row_stride)[c]);
            reinterpret_cast<Element*>(to)[size_t(piece) * EACH + k] = Element(sum);
        }
    }
}
//% for factor in (2, 3, 4)
//% for width in (8, 4, 2) if width >= T.size

extern "C" __global__ void __launch_bounds__(256)
upsample_nearest2d_backward_narrow_{{ factor }}_{{ width }}_{{ T.name }}(const Element* go_ptr, Element* gi_ptr, unsigned count, unsigned across,
                                           unsigned across_factor, unsigned across_shift, size_t run_stride,
                                           unsigned row_stride) {
    narrow_sums<{{ factor }}, {{ width }}>(reinterpret_cast<const char*>(go_ptr), reinterpret_cast<char*>(gi_ptr), count, across,
                      across_factor, across_shift, run_stride, row_stride);
}
//% endfor
//% endfor
//% endif
//% endif
