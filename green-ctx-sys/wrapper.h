/*
 * What `cargo xtask regen-bindings` gives to bindgen: the driver interface and, for every function
 * and version, its pointer type (PFN_<name>_v<version>).
 */
#include <cuda.h>
#include <cudaTypedefs.h>

/* Declared by cudaProfilerTypedefs.h, which includes a header that the runtime package lacks, and by
 * that header. The last parameter of the first is an enum there. */
typedef CUresult(CUDAAPI *PFN_cuProfilerInitialize_v4000)(const char *configFile, const char *outputFile,
                                                          int outputMode);
typedef CUresult(CUDAAPI *PFN_cuProfilerStart_v4000)(void);
typedef CUresult(CUDAAPI *PFN_cuProfilerStop_v4000)(void);

CUresult CUDAAPI cuProfilerInitialize(const char *configFile, const char *outputFile, int outputMode);
CUresult CUDAAPI cuProfilerStart(void);
CUresult CUDAAPI cuProfilerStop(void);
