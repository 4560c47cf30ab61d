// A library that the driver loads by CUDA_INJECTION64_PATH. It writes one line for each context in which work ran to the
// file `$CONTEXTS.<pid>`: device, 1 for a green context, SMs, kernels, and copies and memsets. It does so every second too,
// because some programs kill their children.
#include <cupti.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <unistd.h>

namespace {

struct Context {
    unsigned device = 0, green = 0, sms = 0;
    unsigned long kernels = 0, copies = 0;
};

std::mutex lock;
std::map<unsigned, Context>& contexts = *new std::map<unsigned, Context>;

void CUPTIAPI give(uint8_t** buffer, size_t* size, size_t* most) {
    *size = 1 << 20;
    *most = 0;
    *buffer = static_cast<uint8_t*>(aligned_alloc(8, *size));
}

void write() {
    const auto name = std::string(getenv("CONTEXTS")) + "." + std::to_string(getpid());
    auto file = fopen(name.c_str(), "w");
    for (const auto& [id, each] : contexts)
        if (each.kernels || each.copies)
            fprintf(file, "%u %u %u %lu %lu\n", each.device, each.green, each.sms, each.kernels, each.copies);
    fclose(file);
}

void CUPTIAPI take(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
    const std::lock_guard<std::mutex> held(lock);
    CUpti_Activity* record = nullptr;
    while (valid && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONTEXT) {
            const auto& found = *reinterpret_cast<CUpti_ActivityContext3*>(record);
            auto& context = contexts[found.contextId];
            context.device = found.deviceId;
            context.green = found.isGreenContext;
            context.sms = found.numMultiprocessors;
        } else if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const auto& found = *reinterpret_cast<CUpti_ActivityKernel10*>(record);
            contexts[found.contextId].device = found.deviceId;
            contexts[found.contextId].kernels++;
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            contexts[reinterpret_cast<CUpti_ActivityMemcpy6*>(record)->contextId].copies++;
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY2) {
            contexts[reinterpret_cast<CUpti_ActivityMemcpyPtoP4*>(record)->contextId].copies++;
        } else {
            contexts[reinterpret_cast<CUpti_ActivityMemset4*>(record)->contextId].copies++;
        }
    }
    free(buffer);
    write();
}

void finish() { cuptiActivityFlushAll(1); }

}  // namespace

extern "C" int InitializeInjection() {
    if (!getenv("CONTEXTS")) return 1;
    cuptiActivityRegisterCallbacks(give, take);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONTEXT);
    for (auto kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY2,
                      CUPTI_ACTIVITY_KIND_MEMSET})
        cuptiActivityEnable(kind);
    cuptiActivityFlushPeriod(1000);
    atexit(finish);
    return 1;
}
