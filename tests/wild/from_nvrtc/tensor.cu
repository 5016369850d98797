// mma.sync by inline assembly, a warp a tile, as papers and inference engines write it.
#include <cuda_fp16.h>

__device__ __forceinline__ unsigned place(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

// c = a @ b of 16 x 16 tiles, both row-major: a by ldmatrix, b by ldmatrix.trans.
extern "C" __global__ void mma_f16(const __half *a, const __half *b, float *c, int n, int k) {
    __shared__ __align__(16) __half left[16 * 16], right[16 * 16];
    int lane = threadIdx.x, row = blockIdx.x * 16, column = blockIdx.y * 16;
    float d[2][4] = {};
    for (int at = 0; at < k; at += 16) {
        *(uint4 *)(left + lane * 8) = *(const uint4 *)(a + (row + lane / 2) * k + at + lane % 2 * 8);
        *(uint4 *)(right + lane * 8) = *(const uint4 *)(b + (at + lane / 2) * n + column + lane % 2 * 8);
        __syncwarp();
        unsigned l[4], r[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(l[0]), "=r"(l[1]), "=r"(l[2]), "=r"(l[3])
                     : "r"(place(left + lane % 16 * 16 + lane / 16 * 8)));
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(place(right + lane % 16 * 16 + lane / 16 * 8)));
        for (int half = 0; half < 2; ++half)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                         "{%0,%1,%2,%3};"
                         : "+f"(d[half][0]), "+f"(d[half][1]), "+f"(d[half][2]), "+f"(d[half][3])
                         : "r"(l[0]), "r"(l[1]), "r"(l[2]), "r"(l[3]), "r"(r[2 * half]), "r"(r[2 * half + 1]));
        __syncwarp();
    }
    for (int half = 0; half < 2; ++half)
        for (int i = 0; i < 4; ++i)
            c[(row + lane / 4 + i / 2 * 8) * n + column + half * 8 + lane % 4 * 2 + i % 2] = d[half][i];
}

// y = x @ x^T summed over k, in tf32 of k 4 and in bf16 of k 8 (the upper halves of the same words).
extern "C" __global__ void mma_narrow(const float *x, const float *w, float *tf32, float *bf16) {
    int lane = threadIdx.x, row = lane / 4, k = lane % 4;
    float d[4] = {}, e[4] = {};
    unsigned a0 = __float_as_uint(x[row * 4 + k]), a1 = __float_as_uint(x[(row + 8) * 4 + k]);
    unsigned b0 = __float_as_uint(w[row * 4 + k]);
    asm volatile("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(b0));
    a0 &= 0xffff0000u, a1 &= 0xffff0000u, b0 &= 0xffff0000u;  // elements 2k + 1; the others are 0
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(e[0]), "+f"(e[1]), "+f"(e[2]), "+f"(e[3])
                 : "r"(a0), "r"(a1), "r"(b0));
    for (int i = 0; i < 4; ++i) {
        tf32[(row + i / 2 * 8) * 8 + k * 2 + i % 2] = d[i];
        bf16[(row + i / 2 * 8) * 8 + k * 2 + i % 2] = e[i];
    }
}

extern "C" __global__ void mma_s8(const unsigned *a, const unsigned *b, int *c) {
    int lane = threadIdx.x, row = lane / 4, k = lane % 4, d[4] = {1, 2, 3, 4};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[row * 4 + k]), "r"(a[(row + 8) * 4 + k]), "r"(b[row * 4 + k]));
    for (int i = 0; i < 4; ++i)
        c[(row + i / 2 * 8) * 8 + k * 2 + i % 2] = d[i];
}

extern "C" __global__ void mma_f64(const double *a, const double *b, double *c) {
    int lane = threadIdx.x, row = lane / 4, k = lane % 4;
    double d[2] = {c[row * 8 + 2 * k], c[row * 8 + 2 * k + 1]};
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+d"(d[0]), "+d"(d[1])
                 : "d"(a[row * 4 + k]), "d"(b[row * 4 + k]));
    c[row * 8 + 2 * k] = d[0];
    c[row * 8 + 2 * k + 1] = d[1];
}
