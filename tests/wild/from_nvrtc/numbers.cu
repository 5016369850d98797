// The integer and half arithmetic of quantised networks and of old code.
#include <cuda_fp16.h>
#include <cuda_bf16.h>

struct Block {  // 32 numbers of 8 bits and their scale: 34 bytes, so no 4 bytes of it are aligned
    __half scale;
    signed char q[32];
};

__device__ __forceinline__ int four(const signed char *q, int i) {
    const unsigned short *h = (const unsigned short *)(q + 4 * i);
    return h[0] | h[1] << 16;
}

// One row a warp: y = x @ v, both in blocks.
extern "C" __global__ void quantised_rows(const Block *__restrict__ x, const Block *__restrict__ v, float *y, int blocks) {
    int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    float sum = 0.0f;
    for (int b = lane / 8; b < blocks; b += 4) {
        const Block *left = x + row * blocks + b, *right = v + b;
        int dot = __dp4a(four(left->q, lane % 8), four(right->q, lane % 8), 0);
        sum = __fadd_rn(sum, __fmul_rn(__fmul_rn(__half2float(left->scale), __half2float(right->scale)), (float)dot));
    }
    for (int by = 16; by > 0; by >>= 1)
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, by, 32));
    if (lane == 0)
        y[row] = sum;
}

// Four numbers at once in a register of 32 bits.
extern "C" __global__ void packed_bytes(const unsigned *x, const unsigned *z, unsigned *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned a = x[i], b = z[i];
    y[8 * i] = __vadd4(a, b);
    y[8 * i + 1] = __vabsdiffu4(a, b);
    y[8 * i + 2] = __vsadu4(a, b);
    y[8 * i + 3] = __vmaxs2(a, b);
    y[8 * i + 4] = __byte_perm(a, b, a & 0x7777);
    y[8 * i + 5] = __funnelshift_l(a, b, b & 31) ^ (a & b | ~a & 0x0f0f0f0f);
    y[8 * i + 6] = __brev(a) ^ __popc(b) << 3 ^ __clz(a & 0xffff) << 9 ^ (a >> 5 & 0x3ff);
    y[8 * i + 7] = __vcmpgts4(a, b) ^ __vavgu4(a, b) ^ __vsubss4(a, b);
}

// Rows with any strides, as libraries of tensors launch them: where(condition, x, y) of halves.
extern "C" __global__ void where_strided(
    const size_t count, const size_t axes, const size_t *info, const unsigned char *condition, const __half *x,
    const __half *y, __half *out) {
    const size_t *sizes = info, *strides = info + axes;
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += blockDim.x * gridDim.x) {
        size_t place = 0, left = i;
        for (size_t axis = axes; axis-- > 0;) {
            place += left % sizes[axis] * strides[axis];
            left /= sizes[axis];
        }
        out[i] = condition[place] ? x[i] : y[i];
    }
}

extern "C" __global__ void half_steps(const __half2 *x, const __nv_bfloat162 *z, __half2 *y, __nv_bfloat162 *w, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    __half2 a = x[i], b = __hfma2(a, a, __float2half2_rn(0.5f));
    y[i] = __hadd2(__hgt2(a, b), __hmax2(__hneg2(a), __hmul2(b, a)));
    __nv_bfloat162 c = z[i];
    w[i] = __hfma2_relu(c, __float2bfloat162_rn(-1.5f), __hmin2(c, __habs2(c)));
}
