// Uses the runtime from 16 threads at the same time, and checks each thread's results in each round: `threads SECONDS`.
#include "common.cuh"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <thread>

constexpr int THREADS = 16, BLOCKS = 256, WIDTH = 256, VALUES = BLOCKS * WIDTH, MOST_SMS = 1024;
constexpr size_t BYTES = VALUES * sizeof(int);

using Clock = std::chrono::steady_clock;

// The device must not be synchronised while any thread captures, so a synchronise takes this lock alone.
static std::shared_mutex captures;

__global__ void add(int* values, int amount, unsigned char* seen) {
    values[blockIdx.x * WIDTH + threadIdx.x] += amount;
    if (threadIdx.x == 0) seen[this_sm()] = 1;
}

struct Worker {
    int* values = nullptr;
    unsigned char* seen = nullptr;
    int expected = 0;
    std::vector<int> results = std::vector<int>(VALUES);

    void begin() {
        CHECK(cudaMalloc(&values, BYTES));
        CHECK(cudaMalloc(&seen, MOST_SMS));
        CHECK(cudaMemset(values, 0, BYTES));
        CHECK(cudaMemset(seen, 0, MOST_SMS));
        CHECK(cudaDeviceSynchronize());
    }

    void launch(cudaStream_t stream, int amount, int times = 1) {
        add<<<BLOCKS, WIDTH, 0, stream>>>(values, amount, seen);
        CHECK(cudaGetLastError());
        expected += amount * times;
    }

    // Returns whether the results are right.
    bool round(bool synchronises) {
        cudaStream_t stream;
        cudaEvent_t event;
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        // The default stream is one for all threads.
        launch(nullptr, 1);
        CHECK(cudaEventRecord(event, nullptr));
        CHECK(cudaStreamWaitEvent(stream, event));
        launch(stream, 2);

        cudaGraph_t graph;
        cudaGraphExec_t executable;
        {
            std::shared_lock lock(captures);
            CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
            launch(stream, 3, 2);
            launch(stream, 4, 2);
            CHECK(cudaStreamEndCapture(stream, &graph));
        }
        CHECK(cudaGraphInstantiate(&executable, graph, 0));
        CHECK(cudaGraphLaunch(executable, stream));
        CHECK(cudaGraphLaunch(executable, stream));

        int *plain, *pooled;
        CHECK(cudaMalloc(&plain, BYTES));
        CHECK(cudaMallocAsync(&pooled, BYTES, stream));
        CHECK(cudaMemcpyAsync(pooled, values, BYTES, cudaMemcpyDeviceToDevice, stream));
        CHECK(cudaMemcpyAsync(plain, pooled, BYTES, cudaMemcpyDeviceToDevice, stream));
        CHECK(cudaFreeAsync(pooled, stream));
        CHECK(cudaMemcpyAsync(results.data(), plain, BYTES, cudaMemcpyDeviceToHost, stream));
        if (synchronises) {
            std::unique_lock lock(captures);
            CHECK(cudaDeviceSynchronize());
        } else {
            CHECK(cudaStreamSynchronize(stream));
        }
        CHECK(cudaFree(plain));
        CHECK(cudaGraphExecDestroy(executable));
        CHECK(cudaGraphDestroy(graph));
        CHECK(cudaEventDestroy(event));
        CHECK(cudaStreamDestroy(stream));
        return std::count(results.begin(), results.end(), expected) == VALUES;
    }
};

int main(int count, char** arguments) {
    const auto end = Clock::now() + std::chrono::duration<double>(count > 1 ? std::stod(arguments[1]) : 10);
    const int told_sms = told();
    std::atomic<long> rounds = 0, wrong = 0, errors = 0;
    std::vector<Worker> workers(THREADS);
    std::vector<std::thread> threads;
    for (auto& worker : workers) worker.begin();
    for (auto& worker : workers) {
        threads.emplace_back([&] {
            try {
                for (int number = 0; Clock::now() < end; number++) {
                    wrong += !worker.round(number % 16 == 15);
                    rounds++;
                }
            } catch (const std::runtime_error& error) {
                // The thread ends, because the context may be unusable after an error.
                errors++;
                fprintf(stderr, "%s\n", error.what());
            }
        });
    }
    for (auto& thread : threads) thread.join();

    std::vector<bool> seen(MOST_SMS);
    for (auto& worker : workers) {
        std::vector<unsigned char> of_thread(MOST_SMS);
        CHECK(cudaMemcpy(of_thread.data(), worker.seen, MOST_SMS, cudaMemcpyDeviceToHost));
        for (int sm = 0; sm < MOST_SMS; sm++) seen[sm] = seen[sm] || of_thread[sm];
    }
    const auto sm_count = std::count(seen.begin(), seen.end(), true);
    printf("{\"told\": %d, \"sms\": [%ld], \"rounds\": %ld, \"wrong\": %ld, \"errors\": %ld}\n", told_sms,
           static_cast<long>(sm_count), rounds.load(), wrong.load(), errors.load());
    return wrong > 0 || errors > 0 || rounds == 0;
}
