/* A libamdhip64.so with no GPU behind it: every function of HIP that ptxrt calls hands its arguments to a callback,
 * which standin.py sets as the variable standin_<name>. With none set it answers as a machine without an AMD GPU does. */

#include <stddef.h>
#include <stdio.h>

enum { hipErrorNoDevice = 100 };

#define FORWARD(name, parameters, arguments)                              \
    int (*standin_##name) parameters;                                    \
    int name parameters { return standin_##name ? standin_##name arguments : hipErrorNoDevice; }

/* Handles and out-parameters alike are addresses here. */
typedef void *P;
typedef unsigned int U;

FORWARD(hipInit, (U flags), (flags))
FORWARD(hipRuntimeGetVersion, (P version), (version))
FORWARD(hipGetDeviceCount, (P count), (count))
FORWARD(hipGetDevicePropertiesR0600, (P properties, int device), (properties, device))
FORWARD(hipDeviceGetAttribute, (P value, int attribute, int device), (value, attribute, device))
FORWARD(hipGetDevice, (P device), (device))
FORWARD(hipSetDevice, (int device), (device))
FORWARD(hipDeviceSynchronize, (void), ())
FORWARD(hipGetLastError, (void), ())

FORWARD(hipMallocAsync, (P out, size_t bytes, P stream), (out, bytes, stream))
FORWARD(hipFreeAsync, (P memory, P stream), (memory, stream))
FORWARD(hipDeviceGetMemPool, (P out, int device), (out, device))
FORWARD(hipMemPoolTrimTo, (P pool, size_t bytes), (pool, bytes))
FORWARD(hipMemcpyHtoDAsync, (P to, P from, size_t bytes, P stream), (to, from, bytes, stream))
FORWARD(hipMemcpyDtoHAsync, (P to, P from, size_t bytes, P stream), (to, from, bytes, stream))
FORWARD(hipMemcpyDtoDAsync, (P to, P from, size_t bytes, P stream), (to, from, bytes, stream))
FORWARD(hipMemsetD8Async, (P to, unsigned char byte, size_t bytes, P stream), (to, byte, bytes, stream))
FORWARD(hipMemGetAddressRange, (P start, P bytes, P address), (start, bytes, address))

FORWARD(hipStreamCreateWithFlags, (P out, U flags), (out, flags))
FORWARD(hipStreamDestroy, (P stream), (stream))
FORWARD(hipStreamGetDevice, (P stream, P device), (stream, device))
FORWARD(hipStreamQuery, (P stream), (stream))
FORWARD(hipStreamSynchronize, (P stream), (stream))
FORWARD(hipStreamWaitEvent, (P stream, P event, U flags), (stream, event, flags))

FORWARD(hipEventCreate, (P out), (out))
FORWARD(hipEventCreateWithFlags, (P out, U flags), (out, flags))
FORWARD(hipEventDestroy, (P event), (event))
FORWARD(hipEventRecord, (P event, P stream), (event, stream))
FORWARD(hipEventQuery, (P event), (event))
FORWARD(hipEventSynchronize, (P event), (event))
FORWARD(hipEventElapsedTime, (P milliseconds, P start, P end), (milliseconds, start, end))

FORWARD(hipModuleLoadData, (P out, P image), (out, image))
FORWARD(hipModuleUnload, (P module), (module))
FORWARD(hipModuleGetFunction, (P out, P module, P name), (out, module, name))
FORWARD(hipFuncGetAttribute, (P value, int attribute, P function), (value, attribute, function))
FORWARD(hipModuleGetGlobal, (P out, P bytes, P module, P name), (out, bytes, module, name))
FORWARD(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor, (P out, P function, int threads, size_t shared_bytes),
        (out, function, threads, shared_bytes))
FORWARD(hipModuleLaunchKernel,
        (P function, U gx, U gy, U gz, U bx, U by, U bz, U shared_bytes, P stream, P parameters, P extra),
        (function, gx, gy, gz, bx, by, bz, shared_bytes, stream, parameters, extra))
FORWARD(hipModuleLaunchCooperativeKernel,
        (P function, U gx, U gy, U gz, U bx, U by, U bz, U shared_bytes, P stream, P parameters),
        (function, gx, gy, gz, bx, by, bz, shared_bytes, stream, parameters))

FORWARD(hipStreamBeginCapture, (P stream, int mode), (stream, mode))
FORWARD(hipStreamEndCapture, (P stream, P out), (stream, out))
FORWARD(hipGraphInstantiateWithFlags, (P out, P graph, unsigned long long flags), (out, graph, flags))
FORWARD(hipGraphDestroy, (P graph), (graph))
FORWARD(hipGraphLaunch, (P executable, P stream), (executable, stream))
FORWARD(hipGraphExecDestroy, (P executable), (executable))

const char *hipGetErrorString(int error)
{
    static char text[64];
    snprintf(text, sizeof text, "the stand-in's words for error %d", error);
    return text;
}
