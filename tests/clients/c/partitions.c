/* A C program that uses NVIDIA's header, is linked with libcuda.so.1, and runs under a memory checker. Its
 * two threads work in two partitions; the second waits for the memory that the first fills. With an
 * argument it does not wait. */

#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"

#define SIZE ((size_t)1 << 16)

/* The number of SMs that this program sees of the 132. */
#ifndef SMS
#define SMS 132
#endif

#define OK(call) CHECK((call) == CUDA_SUCCESS)

static const char PTX[] = ".version 7.0\n.target sm_52\n.address_size 64\n"
                          ".visible .entry work(.param .u64 out, .param .u32 count) { ret; }\n";

/* A partition and the work of its thread. */
struct partition {
    CUgreenCtx green;
    CUcontext context;
    CUstream stream;
    CUkernel kernel;
    CUdeviceptr memory;
    CUevent waits_for, done;
    unsigned char value;
    int called;
};

static void create(struct partition *part, CUdevResource *sms) {
    CUdevResourceDesc desc;
    CUdevResource given;
    OK(cuDevResourceGenerateDesc(&desc, sms, 1));
    OK(cuGreenCtxCreate(&part->green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuCtxFromGreenCtx(&part->context, part->green));
    OK(cuGreenCtxGetDevResource(part->green, &given, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(given.sm.smCount == 16);
    OK(cuGreenCtxStreamCreate(&part->stream, part->green, CU_STREAM_NON_BLOCKING, 0));
}

static void destroy(struct partition *part) {
    OK(cuEventDestroy(part->done));
    OK(cuStreamDestroy(part->stream));
    OK(cuGreenCtxDestroy(part->green));
}

static void CUDA_CB note(void *user_data) { ((struct partition *)user_data)->called += 1; }

static void *work(void *argument) {
    struct partition *part = argument;
    unsigned count = 3;
    void *parameters[] = {&part->memory, &count};
    OK(cuCtxPushCurrent(part->context));
    if (part->waits_for != NULL) {
        OK(cuStreamWaitEvent(part->stream, part->waits_for, 0));
    }
    OK(cuMemsetD8Async(part->memory, part->value, SIZE, part->stream));
    OK(cuLaunchKernel((CUfunction)part->kernel, 64, 1, 1, 128, 1, 1, 0, part->stream, parameters,
                      NULL));
    OK(cuLaunchHostFunc(part->stream, note, part));
    OK(cuEventRecord(part->done, part->stream));
    OK(cuCtxPopCurrent(NULL));
    return NULL;
}

static void run(struct partition *part) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, part) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

int main(int argument_count, char **arguments) {
    (void)arguments;
    int ordered = argument_count == 1;
    OK(cuInit(0));

    CUdevResource device, groups[2], rest;
    unsigned count = 2;
    OK(cuDeviceGetDevResource(0, &device, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevSmResourceSplitByCount(groups, &count, &device, &rest, 0, 16));
    CHECK(device.sm.smCount == SMS && count == 2 && rest.sm.smCount == SMS - 32);
    struct partition first = {.value = 1}, second = {.value = 2};
    create(&first, &groups[0]);
    create(&second, &groups[1]);

    CUlibrary library;
    OK(cuLibraryLoadData(&library, PTX, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&first.kernel, library, "work"));
    second.kernel = first.kernel;
    OK(cuCtxPushCurrent(first.context));
    OK(cuEventCreate(&first.done, CU_EVENT_DEFAULT));
    OK(cuEventCreate(&second.done, CU_EVENT_DEFAULT));
    OK(cuMemAlloc(&first.memory, SIZE));
    second.memory = first.memory;
    second.waits_for = ordered ? first.done : NULL;

    run(&first);
    run(&second);
    OK(cuEventSynchronize(first.done));
    OK(cuEventSynchronize(second.done));
    CHECK(first.called == 1 && second.called == 1);

    unsigned char *host = malloc(SIZE);
    CHECK(host != NULL);
    OK(cuMemcpyDtoH(host, first.memory, SIZE));
    float milliseconds = 0;
    OK(cuEventElapsedTime(&milliseconds, first.done, second.done));
    CHECK(!ordered || (host[0] == 2 && host[SIZE - 1] == 2 && milliseconds > 0));
    free(host);

    OK(cuMemFree(first.memory));
    OK(cuCtxPopCurrent(NULL));
    OK(cuLibraryUnload(library));
    destroy(&first);
    destroy(&second);
    printf("partitions: done\n");
    return 0;
}
