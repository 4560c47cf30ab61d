// Gives right results only if work on the default stream and on another stream runs in the order of submission.
//
// - `order blocking`: the other stream is one of cudaStreamCreate, and the driver's rule gives the order.
// - `order events`: the stream is non-blocking, and an event takes the place of the rule.
// - `order none`: the stream is non-blocking, and nothing gives the order. The results must be wrong, which shows that
//   the program notices a lost order.
// - `order threads`: sixteen threads, each with blocking streams of its own that it creates and destroys.
#include "common.cuh"

#include <atomic>
#include <thread>

constexpr int ROUNDS = 5;

__global__ void write_late(int* to, int value) {
    // About 20 ms, in which work that does not wait overtakes this kernel.
    for (auto end = clock64() + 40'000'000; clock64() < end;) {}
    *to = value;
}

__global__ void copy(int* to, const int* from) { *to = *from; }

__global__ void set(int* to, int value) {
    for (auto end = clock64() + 200'000; clock64() < end;) {}
    *to = value;
}

// Writes values on blocking streams, and reads them through the default stream.
static int in_threads() {
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 16; thread++) {
        threads.emplace_back([&wrong, thread] {
            int *written, *copied, read;
            CHECK(cudaMalloc(&written, sizeof *written));
            CHECK(cudaMalloc(&copied, sizeof *copied));
            for (int round = 0; round < 200; round++) {
                const int value = 1000 * thread + round;
                cudaStream_t stream;
                CHECK(cudaStreamCreate(&stream));
                copy<<<1, 1, 0, stream>>>(written, copied);
                CHECK(cudaMemsetAsync(written, 0, sizeof *written, stream));
                set<<<1, 1, 0, stream>>>(written, value);
                copy<<<1, 1>>>(copied, written);
                CHECK(cudaStreamDestroy(stream));
                CHECK(cudaMemcpy(&read, copied, sizeof read, cudaMemcpyDeviceToHost));
                wrong += read != value;
            }
        });
    }
    for (auto& thread : threads) thread.join();
    printf("{\"told\": %d, \"sms\": [%d], \"wrong\": %d}\n", told(), sms(), wrong.load());
    return wrong > 0;
}

int main(int count, char** arguments) {
    const std::string mode = count > 1 ? arguments[1] : "blocking";
    if (mode == "threads") return in_threads();
    cudaStream_t other, third;
    // Programs that want no flags call the older function.
    if (mode == "blocking") CHECK(cudaStreamCreate(&other));
    else CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&third, cudaStreamNonBlocking));
    cudaEvent_t event, covering;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&covering, cudaEventDisableTiming));
    int *written, *copied;
    CHECK(cudaMalloc(&written, sizeof *written));
    CHECK(cudaMalloc(&copied, sizeof *copied));

    const auto write_on = [&](cudaStream_t stream, int value) { write_late<<<1, 1, 0, stream>>>(written, value); };
    const auto copy_on = [&](cudaStream_t stream) { copy<<<1, 1, 0, stream>>>(copied, written); };
    // Orders the later stream after the earlier one in the mode that has no rule for it.
    const auto order = [&](cudaStream_t earlier, cudaStream_t later) {
        if (mode != "events") return;
        CHECK(cudaEventRecord(event, earlier));
        CHECK(cudaStreamWaitEvent(later, event));
    };
    const auto result = [&](int* from) {
        int value;
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy(&value, from, sizeof value, cudaMemcpyDeviceToHost));
        return value;
    };
    // A kernel's first launch loads it, which could wait for other work.
    write_on(third, 0);
    copy_on(third);
    CHECK(cudaDeviceSynchronize());

    int wrong[4] = {};
    for (int value = 1; value <= ROUNDS; value++) {
        write_on(nullptr, value);
        order(nullptr, other);
        copy_on(other);
        wrong[0] += result(copied) != value;

        write_on(other, -value);
        order(other, nullptr);
        copy_on(nullptr);
        wrong[1] += result(copied) != -value;

        int read;
        write_on(other, value);
        order(other, nullptr);
        CHECK(cudaMemcpy(&read, written, sizeof read, cudaMemcpyDeviceToHost));
        wrong[2] += read != value;
        CHECK(cudaDeviceSynchronize());

        write_on(other, -value);
        order(other, nullptr);
        CHECK(cudaEventRecord(covering, nullptr));
        CHECK(cudaStreamWaitEvent(third, covering));
        copy_on(third);
        wrong[3] += result(copied) != -value;
    }
    CHECK(cudaGetLastError());
    printf("{\"told\": %d, \"sms\": [%d, %d], \"wrong\": [%d, %d, %d, %d]}\n", told(), sms(), sms(other), wrong[0],
           wrong[1], wrong[2], wrong[3]);
}
