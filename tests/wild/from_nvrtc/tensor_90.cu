// Tiles of 8 x 8 halves through ldmatrix, movmatrix and stmatrix: a transpose of 32 x 32, and the rows' softmax.
#include <cuda_fp16.h>

__device__ __forceinline__ unsigned place(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

extern "C" __global__ void turned(const __half *x, __half *y) {
    __shared__ __align__(16) __half tile[32 * 40], out[32 * 40];
    int lane = threadIdx.x;
    for (int i = 0; i < 4; ++i)
        *(uint4 *)(tile + (i * 8 + lane / 4) * 40 + lane % 4 * 8) = *(const uint4 *)(x + i * 256 + lane * 8);
    __syncwarp();
    for (int i = 0; i < 4; ++i) {
        unsigned r[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(place(tile + (i * 8 + lane % 8) * 40 + lane / 8 * 8)));
        if (i % 2) {  // two ways to turn a tile
            for (int j = 0; j < 4; ++j)
                asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(r[j]));
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                             place(out + lane * 40 + i * 8)),
                         "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                         : "memory");
        } else
            asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                             place(out + lane * 40 + i * 8)),
                         "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                         : "memory");
    }
    __syncwarp();
    for (int i = 0; i < 4; ++i)
        *(uint4 *)(y + i * 256 + lane * 8) = *(uint4 *)(out + (i * 8 + lane / 4) * 40 + lane % 4 * 8);
}

// softmax(x @ x^T / 4) of 16 rows of 16 halves: the scores stay in the registers of mma.sync.
extern "C" __global__ void scores(const __half *x, __half *y) {
    __shared__ __align__(16) __half tile[16 * 16];
    int lane = threadIdx.x;
    *(uint4 *)(tile + lane * 8) = *(const uint4 *)(x + lane * 8);
    __syncwarp();
    unsigned a[4], h[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(place(tile + lane % 16 * 16 + lane / 16 * 8)));
    float d[8] = {};
    for (int half = 0; half < 2; ++half)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(d[4 * half]), "+f"(d[4 * half + 1]), "+f"(d[4 * half + 2]), "+f"(d[4 * half + 3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[half]), "r"(a[2 + half]));
    for (int upper = 0; upper < 2; ++upper) {
        float most = -__int_as_float(0x7f800000), sum = 0.0f;
        for (int half = 0; half < 2; ++half)
            for (int i = 0; i < 2; ++i)
                most = fmaxf(most, d[4 * half + 2 * upper + i] *= 0.25f);
        for (int by = 1; by < 4; by *= 2)
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, by));
        for (int half = 0; half < 2; ++half)
            for (int i = 0; i < 2; ++i) {
                float &value = d[4 * half + 2 * upper + i];
                asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"((value - most) * 1.44269504f));
                sum += value;
            }
        for (int by = 1; by < 4; by *= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, by);
        for (int half = 0; half < 2; ++half) {
            __half2 two = __floats2half2_rn(
                __fdiv_rn(d[4 * half + 2 * upper], sum), __fdiv_rn(d[4 * half + 2 * upper + 1], sum));
            h[2 * half + upper] = *(unsigned *)&two;
        }
    }
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     place(tile + lane % 16 * 16 + lane / 16 * 8)),
                 "r"(h[0]), "r"(h[1]), "r"(h[2]), "r"(h[3])
                 : "memory");
    __syncwarp();
    *(uint4 *)(y + lane * 8) = *(uint4 *)(tile + lane * 8);
}
