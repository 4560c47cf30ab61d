/*
 * The input of `cargo xtask regen-bindings` to bindgen: the driver interface, and the pointer type of
 * each function and version (PFN_<name>_v<version>).
 */
#include <cuda.h>
#include <cudaTypedefs.h>

/* cudaProfilerTypedefs.h and a header that it includes declare these. The runtime package lacks that
 * header. There, the last parameter of cuProfilerInitialize is an enum. */
typedef CUresult(CUDAAPI *PFN_cuProfilerInitialize_v4000)(const char *configFile, const char *outputFile,
                                                          int outputMode);
typedef CUresult(CUDAAPI *PFN_cuProfilerStart_v4000)(void);
typedef CUresult(CUDAAPI *PFN_cuProfilerStop_v4000)(void);

CUresult CUDAAPI cuProfilerInitialize(const char *configFile, const char *outputFile, int outputMode);
CUresult CUDAAPI cuProfilerStart(void);
CUresult CUDAAPI cuProfilerStop(void);
