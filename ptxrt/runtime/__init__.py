"""The runtime: devices, memory, arrays, streams, kernels and the cache of their modules; `ptxrt` exports its names."""
