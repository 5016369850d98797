// Tensor cores through the C++ interface, a warp a tile of c = a @ b: in each element type that it has.
#include <mma.h>
using namespace nvcuda;

template <class T, class Part, class S, int M, int N, int K>
__device__ void tile(const T *a, const T *b, S *c, int n, int k) {
    wmma::fragment<wmma::matrix_a, M, N, K, Part, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, M, N, K, Part, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, M, N, K, S> sum;
    wmma::fill_fragment(sum, (S)0);
    int row = blockIdx.x * M, column = blockIdx.y * N;
    for (int at = 0; at < k; at += K) {
        wmma::load_matrix_sync(left, a + row * k + at, k);
        wmma::load_matrix_sync(right, b + column * k + at, k);
        wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(c + row * n + column, sum, n, wmma::mem_row_major);
}

extern "C" __global__ void wmma_f16(const __half *a, const __half *b, float *c, int n, int k) {
    tile<__half, __half, float, 16, 16, 16>(a, b, c, n, k);
}
extern "C" __global__ void wmma_f16_wide(const __half *a, const __half *b, __half *c, int n, int k) {
    tile<__half, __half, __half, 8, 32, 16>(a, b, c, n, k);
}
extern "C" __global__ void wmma_bf16(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c, int n, int k) {
    tile<__nv_bfloat16, __nv_bfloat16, float, 32, 8, 16>(a, b, c, n, k);
}
extern "C" __global__ void wmma_tf32(const float *a, const float *b, float *c, int n, int k) {
    tile<float, wmma::precision::tf32, float, 16, 16, 8>(a, b, c, n, k);
}
extern "C" __global__ void wmma_s8(const signed char *a, const signed char *b, int *c, int n, int k) {
    tile<signed char, signed char, int, 16, 16, 16>(a, b, c, n, k);
}
extern "C" __global__ void wmma_f64(const double *a, const double *b, double *c, int n, int k) {
    tile<double, double, double, 8, 8, 4>(a, b, c, n, k);
}

// c = alpha * a @ b + c by way of a tile in shared memory, b row-major.
extern "C" __global__ void wmma_shared(const __half *a, const __half *b, float *c, int n, int k, float alpha) {
    __shared__ __half left_tile[16][24], right_tile[16][24];
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum, before;
    wmma::fill_fragment(sum, 0.0f);
    for (int at = 0; at < k; at += 16) {
        for (int i = threadIdx.x; i < 256; i += 32) {
            left_tile[i / 16][i % 16] = a[(blockIdx.x * 16 + i / 16) * k + at + i % 16];
            right_tile[i / 16][i % 16] = b[(at + i / 16) * n + blockIdx.y * 16 + i % 16];
        }
        __syncwarp();
        wmma::load_matrix_sync(left, &left_tile[0][0], 24);
        wmma::load_matrix_sync(right, &right_tile[0][0], 24);
        wmma::mma_sync(sum, left, right, sum);
        __syncwarp();
    }
    float *place = c + blockIdx.x * 16 * n + blockIdx.y * 16;
    wmma::load_matrix_sync(before, place, n, wmma::mem_row_major);
    for (int i = 0; i < sum.num_elements; ++i)
        sum.x[i] = __fadd_rn(__fmul_rn(alpha, sum.x[i]), before.x[i]);
    wmma::store_matrix_sync(place, sum, n, wmma::mem_row_major);
}
