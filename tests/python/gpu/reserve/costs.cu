// Measures what calls cost a program, in ns: medians of many batches on an idle device.
#include "common.cuh"

#include <algorithm>
#include <chrono>

constexpr int BATCHES = 300;

__global__ void nothing() {}

// Returns the median over batches of the mean time of a call. The device is idle at the start of each batch.
template <class Call> double median_ns(int calls, Call call) {
    using Clock = std::chrono::steady_clock;
    std::vector<double> times;
    for (int batch = 0; batch < BATCHES; batch++) {
        const auto begin = Clock::now();
        for (int number = 0; number < calls; number++) call();
        const std::chrono::duration<double, std::nano> time = Clock::now() - begin;
        times.push_back(time.count() / calls);
        CHECK(cudaDeviceSynchronize());
    }
    std::nth_element(times.begin(), times.begin() + BATCHES / 2, times.end());
    return times[BATCHES / 2];
}

int main() {
    const int told_sms = told(), seen = sms();
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int node = 0; node < 10; node++) nothing<<<1, 1, 0, stream>>>();
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));

    // A batch is short enough for the driver's queue, where a launch would otherwise wait for the device.
    const double launch = median_ns(100, [&] {
        nothing<<<1, 1, 0, stream>>>();
        CHECK(cudaGetLastError());
    });
    const double replay = median_ns(20, [&] { CHECK(cudaGraphLaunch(executable, stream)); });
    const double create = median_ns(20, [] {
        cudaStream_t created;
        CHECK(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking));
        CHECK(cudaStreamDestroy(created));
    });
    const double allocate = median_ns(20, [] {
        void* memory;
        CHECK(cudaMalloc(&memory, 1 << 20));
        CHECK(cudaFree(memory));
    });
    printf("{\"told\": %d, \"sms\": [%d], \"launch_ns\": %.1f, \"graph_ns\": %.1f, ", told_sms, seen, launch, replay);
    printf("\"stream_ns\": %.1f, \"malloc_ns\": %.1f}\n", create, allocate);
}
