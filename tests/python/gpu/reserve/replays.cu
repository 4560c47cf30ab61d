// Calls that wait for the work of the device: do they wait for a kernel, and for a graph that is the last work of its
// stream? The answer of each call has 1 where it does.
#include "common.cuh"

#include <functional>
#include <unistd.h>

#include <cuda.h>

constexpr std::size_t BYTES = 1 << 22;

__global__ void late(unsigned* ended) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < 20'000'000);
    atomicAdd_system(ended, 1);
}

static void late_on(cudaStream_t stream, unsigned* ended) {
    late<<<1, 1, 0, stream>>>(ended);
    CHECK(cudaGetLastError());
}

template <class Function> static Function* driver(const char* name, int version) {
    void* found;
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault));
    return reinterpret_cast<Function*>(found);
}

static void must(CUresult status) {
    if (status != CUDA_SUCCESS) throw std::runtime_error("the driver's status " + std::to_string(status));
}

// Starts another process that shares memory, and returns its handle. The process ends with this one.
static cudaIpcMemHandle_t shared() {
    int handles[2], life[2];
    cudaIpcMemHandle_t handle;
    if (pipe(handles) || pipe(life)) throw std::runtime_error("pipe");
    if (fork() == 0) {
        close(life[1]);
        void* memory;
        CHECK(cudaMalloc(&memory, BYTES));
        CHECK(cudaIpcGetMemHandle(&handle, memory));
        if (write(handles[1], &handle, sizeof handle) != sizeof handle) _exit(1);
        char none;
        _exit(read(life[0], &none, 1) != 0);
    }
    close(life[0]);
    close(handles[1]);
    if (read(handles[0], &handle, sizeof handle) != sizeof handle) throw std::runtime_error("no handle");
    return handle;
}

int main() {
    const auto handle = shared();
    const auto unload_module = driver<CUresult(CUmodule)>("cuModuleUnload", 2000);
    const auto load_module = driver<CUresult(CUmodule*, const void*)>("cuModuleLoadData", 2000);
    const auto context_of = driver<CUresult(CUcontext*)>("cuCtxGetCurrent", 4000);
    const auto synchronize = driver<CUresult()>("cuCtxSynchronize", 2000);
    const auto record = driver<CUresult(CUcontext, CUevent)>("cuCtxRecordEvent", 12050);
    const auto load_library = driver<decltype(cuLibraryLoadData)>("cuLibraryLoadData", 12000);
    const auto unload_library = driver<CUresult(CUlibrary)>("cuLibraryUnload", 12000);
    const auto kernel_of = driver<decltype(cuLibraryGetKernel)>("cuLibraryGetKernel", 12000);
    const auto function_of = driver<decltype(cuKernelGetFunction)>("cuKernelGetFunction", 12000);
    const char* ptx = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry none() { ret; }\n";

    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    unsigned* ended;
    CHECK(cudaMallocHost(&ended, sizeof *ended));
    *ended = 0;
    const auto done = [=] { return *const_cast<volatile unsigned*>(ended); };
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    late_on(stream, ended);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));

    // Each makes what it then destroys, and returns the call that may wait.
    using Call = std::function<void()>;
    const std::pair<const char*, std::function<Call()>> calls[] = {
        {"cudaDeviceSynchronize", [] { return [] { CHECK(cudaDeviceSynchronize()); }; }},
        {"cuCtxSynchronize", [&] { return [&] { must(synchronize()); }; }},
        {"cuCtxRecordEvent", [&] {
            return [&] {
                CUcontext context;
                cudaEvent_t event;
                must(context_of(&context));
                CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
                must(record(context, event));
                CHECK(cudaEventSynchronize(event));
            };
        }},
        {"cudaDeviceSynchronize after cudaStreamDestroy", [&] {
            return [&] {
                CHECK(cudaStreamDestroy(stream));
                CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
                CHECK(cudaDeviceSynchronize());
            };
        }},
        {"cudaFree", [] {
            void* memory;
            CHECK(cudaMalloc(&memory, BYTES));
            return [=] { CHECK(cudaFree(memory)); };
        }},
        {"cudaFree of managed memory", [] {
            void* memory;
            CHECK(cudaMallocManaged(&memory, BYTES));
            return [=] { CHECK(cudaFree(memory)); };
        }},
        {"cudaFreeHost", [] {
            void* memory;
            CHECK(cudaMallocHost(&memory, BYTES));
            return [=] { CHECK(cudaFreeHost(memory)); };
        }},
        {"cudaHostUnregister", [] {
            void* memory = aligned_alloc(4096, BYTES);
            CHECK(cudaHostRegister(memory, BYTES, 0));
            return [=] { CHECK(cudaHostUnregister(memory)); };
        }},
        {"cudaFreeArray", [] {
            cudaArray_t array;
            const auto format = cudaCreateChannelDesc<float>();
            CHECK(cudaMallocArray(&array, &format, 1024, 1024));
            return [=] { CHECK(cudaFreeArray(array)); };
        }},
        {"cudaFreeMipmappedArray", [] {
            cudaMipmappedArray_t array;
            const auto format = cudaCreateChannelDesc<float>();
            CHECK(cudaMallocMipmappedArray(&array, &format, {1024, 1024, 0}, 4));
            return [=] { CHECK(cudaFreeMipmappedArray(array)); };
        }},
        {"cudaIpcCloseMemHandle", [&] {
            void* memory;
            CHECK(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess));
            return [=] { CHECK(cudaIpcCloseMemHandle(memory)); };
        }},
        {"cuModuleUnload", [&] {
            CUmodule module;
            must(load_module(&module, ptx));
            return [=] { must(unload_module(module)); };
        }},
        {"cuLibraryUnload", [&] {
            CUlibrary library;
            CUkernel kernel;
            CUfunction function;
            must(load_library(&library, ptx, nullptr, nullptr, 0, nullptr, nullptr, 0));
            // It is loaded when its first kernel is.
            must(kernel_of(&kernel, library, "none"));
            must(function_of(&function, kernel));
            return [=] { must(unload_library(library)); };
        }},
        {"cudaFreeAsync", [&] {
            void* memory;
            CHECK(cudaMallocAsync(&memory, BYTES, stream));
            return [&stream, memory] { CHECK(cudaFreeAsync(memory, stream)); };
        }},
    };
    printf("{\"told\": %d, \"sms\": [%d], \"waits\": {", told(), sms(stream));
    const char* comma = "";
    for (const auto& [name, make] : calls) {
        int waits[2] = {};
        for (const bool as_graph : {false, true}) {
            const auto call = make();
            CHECK(cudaDeviceSynchronize());
            const auto before = done();
            if (as_graph) CHECK(cudaGraphLaunch(executable, stream));
            else late_on(stream, ended);
            call();
            waits[as_graph] = done() > before;
            while (done() == before) {}
        }
        printf("%s\"%s\": [%d, %d]", comma, name, waits[0], waits[1]);
        comma = ", ";
    }
    printf("}}\n");
}
