// Uses memory in the ways that depend on a context: managed, from a pool, of another process. Before its first other
// call, the program sets flags of the device.
#include "common.cuh"

#include <sys/wait.h>
#include <unistd.h>

constexpr unsigned COUNT = 1 << 20;

__global__ void fill(unsigned* to, unsigned value) {
    const auto index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < COUNT) to[index] = value + index;
}

static void fill_on(cudaStream_t stream, unsigned* to, unsigned value) {
    fill<<<COUNT / 256, 256, 0, stream>>>(to, value);
    CHECK(cudaGetLastError());
}

static int differ(const unsigned* found, unsigned value) {
    int wrong = 0;
    for (unsigned index = 0; index < COUNT; index++) wrong += found[index] != value + index;
    return wrong;
}

// The other process: fills the memory that its parent shares.
static int other() {
    cudaIpcMemHandle_t handle;
    if (read(STDIN_FILENO, &handle, sizeof handle) != sizeof handle) return 1;
    void* memory;
    CHECK(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess));
    fill_on(nullptr, static_cast<unsigned*>(memory), 3);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaIpcCloseMemHandle(memory));
    return 0;
}

int main(int count, char** arguments) {
    CHECK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
    if (count > 1) return other();
    int wrong = 0;
    std::vector<unsigned> host(COUNT);

    unsigned* managed;
    CHECK(cudaMallocManaged(&managed, COUNT * sizeof *managed));
    fill_on(nullptr, managed, 1);
    CHECK(cudaDeviceSynchronize());
    wrong += differ(managed, 1);

    cudaStream_t stream;
    unsigned* pooled;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMallocAsync(&pooled, COUNT * sizeof *pooled, stream));
    fill_on(stream, pooled, 2);
    CHECK(cudaMemcpyAsync(host.data(), pooled, COUNT * sizeof *pooled, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaFreeAsync(pooled, stream));
    CHECK(cudaStreamSynchronize(stream));
    wrong += differ(host.data(), 2);

    unsigned* shared;
    cudaIpcMemHandle_t handle;
    CHECK(cudaMalloc(&shared, COUNT * sizeof *shared));
    CHECK(cudaIpcGetMemHandle(&handle, shared));
    auto child = popen((std::string(arguments[0]) + " other").c_str(), "w");
    fwrite(&handle, sizeof handle, 1, child);
    wrong += pclose(child) != 0;
    CHECK(cudaMemcpy(host.data(), shared, COUNT * sizeof *shared, cudaMemcpyDeviceToHost));
    wrong += differ(host.data(), 3);

    unsigned flags;
    CHECK(cudaGetDeviceFlags(&flags));
    wrong += (flags & cudaDeviceScheduleMask) != cudaDeviceScheduleBlockingSync;
    printf("{\"told\": %d, \"sms\": [%d, %d], \"wrong\": %d}\n", told(), sms(), sms(stream), wrong);
    return wrong > 0;
}
