// batch_norm_statistics, {{ T.name }}: what batch_norm launches beside its own kernels where asked. Vectors are [channels].
//
//   batch_norm_count: batches += 1.
//   batch_norm_cumulative: running = (running * (n - 1) + batch) / n where n = batches, counted already; the variance is the
//     unbiased one, M / (M - 1) of the biased var, M = batch * hw.
//   batch_norm_inverse_deviation: var = 1 / sqrt(var + eps), in place.
//   batch_norm_backward_variance: var = (1 / inverse)^2, for kernels that are handed it with an eps of 0.
//
// All is f64, in the order of the entries in PTX. Launch: blocks of any size, as many as give each channel a thread, or
// fewer: then threads take turns. batch_norm_count: one thread.

//% include "elements.jinja"
//% include "pairs.jinja"

//% if T.name == "f32"
extern "C" __global__ void batch_norm_count(long long* batches_ptr) { *batches_ptr += 1; }

//% endif
extern "C" __global__ void __launch_bounds__(1024)
batch_norm_cumulative{{ suffix }}(const Real* mean_ptr, const Real* var_ptr, Real* rmean_ptr, Real* rvar_ptr,
                      const long long* batches_ptr, unsigned batch, unsigned channels, unsigned hw) {
    const double n = double(*batches_ptr), m = size_t(batch) * hw;
    const size_t threads = size_t(gridDim.x) * blockDim.x;
    for (size_t channel = size_t(blockIdx.x) * blockDim.x + threadIdx.x; channel < channels; channel += threads) {
        const double unbiased = var_ptr[channel] * m / (m - 1);
        rmean_ptr[channel] = fma(double(rmean_ptr[channel]), n - 1, double(mean_ptr[channel])) / n;
        rvar_ptr[channel] = fma(double(rvar_ptr[channel]), n - 1, unbiased) / n;
    }
}

extern "C" __global__ void __launch_bounds__(1024)
batch_norm_inverse_deviation{{ suffix }}(Real* var_ptr, unsigned channels, Real eps) {
    const size_t threads = size_t(gridDim.x) * blockDim.x;
    for (size_t channel = size_t(blockIdx.x) * blockDim.x + threadIdx.x; channel < channels; channel += threads) {
        const Number var = double(var_ptr[channel]), sum = var + Number(double(eps));
        var_ptr[channel] = double(inverse_root(sum));
    }
}

extern "C" __global__ void __launch_bounds__(1024)
batch_norm_backward_variance{{ suffix }}(const Real* inverse_ptr, Real* var_ptr, unsigned channels) {
    const size_t threads = size_t(gridDim.x) * blockDim.x;
    for (size_t channel = size_t(blockIdx.x) * blockDim.x + threadIdx.x; channel < channels; channel += threads) {
        const double deviation = 1.0 / inverse_ptr[channel];
        var_ptr[channel] = deviation * deviation;
    }
}
