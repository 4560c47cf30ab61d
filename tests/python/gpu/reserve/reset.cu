// Works before and after a reset of the device. With two devices, it also checks that a reset of one leaves the current
// context and the memory of the other as they are.
#include "common.cuh"

#include <algorithm>
#include <cuda.h>
#include <thread>

constexpr int BLOCKS = 1024, WIDTH = 256, VALUES = BLOCKS * WIDTH;

__global__ void fill(int* values, int value) { values[blockIdx.x * WIDTH + threadIdx.x] = value; }

// Returns whether a buffer that the default stream fills has right values.
static bool works(int value) {
    std::vector<int> results(VALUES);
    int* values;
    CHECK(cudaMalloc(&values, VALUES * sizeof *values));
    fill<<<BLOCKS, WIDTH>>>(values, value);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(results.data(), values, VALUES * sizeof *values, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(values));
    return std::count(results.begin(), results.end(), value) == VALUES;
}

// Returns a driver function. The program does not link the driver, so that it starts on any.
template <class Function> Function* driver(const char* name, unsigned version) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result));
    if (result != cudaDriverEntryPointSuccess) throw std::runtime_error(std::string("the driver lacks ") + name);
    return reinterpret_cast<Function*>(found);
}

// Resets device 1 by the runtime on another thread, and by the driver on this one, where device 0 is current. Returns
// how many of the checks fail.
static int reset_other() {
    const auto current = driver<CUresult(CUcontext*)>("cuCtxGetCurrent", 4000);
    const auto reset = driver<CUresult(CUdevice)>("cuDevicePrimaryCtxReset", 11000);
    int *kept, value = 3, wrong = 0;
    CHECK(cudaMalloc(&kept, sizeof *kept));
    CHECK(cudaMemcpy(kept, &value, sizeof value, cudaMemcpyHostToDevice));

    std::thread([&] {
        CHECK(cudaSetDevice(1));
        wrong += !works(4);
        CHECK(cudaDeviceReset());
        wrong += !works(5);
    }).join();
    CUcontext before = nullptr, after = nullptr;
    wrong += current(&before) != CUDA_SUCCESS || before == nullptr;
    wrong += reset(1) != CUDA_SUCCESS;
    wrong += current(&after) != CUDA_SUCCESS || after != before;

    value = 0;
    CHECK(cudaMemcpy(&value, kept, sizeof value, cudaMemcpyDeviceToHost));
    wrong += value != 3;
    wrong += !works(6);
    return wrong;
}

int main() {
    int devices, wrong = 0;
    CHECK(cudaGetDeviceCount(&devices));
    wrong += !works(1);
    const int before = sms();
    CHECK(cudaDeviceReset());
    wrong += !works(2);
    const int after = sms();
    if (devices > 1) wrong += reset_other();
    printf("{\"told\": %d, \"sms\": [%d, %d], \"wrong\": %d, \"devices\": %d}\n", told(), before, after, wrong,
           devices);
    return wrong > 0;
}
