// Prints its rate, the SMs that it is told, and the SMs that its blocks saw.
#include "common.cuh"

#include <chrono>

__global__ void work(float* to) {
    float value = threadIdx.x;
    for (int round = 0; round < 20'000; round++) value = value * 0.999f + 1.0f;
    to[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

int main() {
    constexpr int BLOCKS = 4 * 1056, THREADS = 256;
    float* to;
    CHECK(cudaMalloc(&to, BLOCKS * THREADS * sizeof *to));
    work<<<BLOCKS, THREADS>>>(to);
    CHECK(cudaDeviceSynchronize());
    const auto begin = std::chrono::steady_clock::now();
    int count = 0;
    double seconds = 0;
    for (; seconds < 1; seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()) {
        work<<<BLOCKS, THREADS>>>(to);
        CHECK(cudaDeviceSynchronize());
        count++;
    }
    printf("rate: %.3f per s, told %d, saw %d\n", count / seconds, told(), sms());
}
