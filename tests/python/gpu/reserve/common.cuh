// The parts that the programs of reserved_programs.py share.
#pragma once

#include <cstdio>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

// Throws at an error. A program that does not catch it ends by a signal, so no later answer is taken for a result.
#define CHECK(call) check(call, #call)

inline void check(cudaError_t status, const char* call) {
    if (status != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
}

__device__ inline unsigned this_sm() {
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    return sm;
}

__global__ void write_sm(unsigned* to) {
    // Blocks that ended immediately could all run on a few SMs.
    for (auto end = clock64() + 20'000; clock64() < end;) {}
    if (threadIdx.x == 0) to[blockIdx.x] = this_sm();
}

// Returns the number of SMs on which a stream's work runs.
inline int sms(cudaStream_t stream = nullptr) {
    std::vector<unsigned> found(4000);
    unsigned* to;
    CHECK(cudaMalloc(&to, found.size() * sizeof *to));
    write_sm<<<found.size(), 128, 0, stream>>>(to);
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(found.data(), to, found.size() * sizeof *to, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(to));
    return static_cast<int>(std::set(found.begin(), found.end()).size());
}

// Returns the number of SMs that the program is told.
inline int told() {
    int count;
    CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
    return count;
}
