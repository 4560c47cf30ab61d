/* Links libcuda.so.1 with NVIDIA's own header, and runs under a memory checker: two threads work in
 * partitions of their own, and one waits for what the other wrote. With an argument it does not wait. */

#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE ((size_t)1 << 16)

#define EXPECT(call, expected)                                                                   \
    do {                                                                                         \
        CUresult status = (call);                                                                \
        if (status != (expected)) {                                                              \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, (int)status);          \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

#define OK(call) EXPECT(call, CUDA_SUCCESS)

#define CHECK(condition)                                                                         \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                      \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

static const char PTX[] = ".version 7.0\n.target sm_52\n.address_size 64\n"
                          ".visible .entry work(.param .u64 out, .param .u32 count) { ret; }\n";

/* A partition, and what a thread does in it. */
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

static CUdevResource device_sms(void) {
    CUdevResource sms;
    OK(cuDeviceGetDevResource(0, &sms, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(sms.type == CU_DEV_RESOURCE_TYPE_SM && sms.sm.smCount == 132);
    return sms;
}

static void create(struct partition *part, CUdevResource *sms) {
    CUdevResourceDesc desc;
    CUdevResource given;
    OK(cuDevResourceGenerateDesc(&desc, sms, 1));
    OK(cuGreenCtxCreate(&part->green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuCtxFromGreenCtx(&part->context, part->green));
    OK(cuGreenCtxGetDevResource(part->green, &given, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(given.sm.smCount == sms->sm.smCount);
    OK(cuGreenCtxStreamCreate(&part->stream, part->green, CU_STREAM_NON_BLOCKING, 0));
}

static void destroy(struct partition *part) {
    OK(cuStreamDestroy(part->stream));
    OK(cuGreenCtxDestroy(part->green));
}

static void CUDA_CB note(void *user_data) { ((struct partition *)user_data)->called += 1; }

/* Fills the memory in the partition's stream, after what it waits for. */
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

static void two_partitions_share_a_buffer(int ordered) {
    CUdevResource device = device_sms(), groups[2], rest;
    unsigned count = 2;
    OK(cuDevSmResourceSplitByCount(groups, &count, &device, &rest, 0, 16));
    CHECK(count == 2 && rest.sm.smCount == 100);

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
    float milliseconds = 0;
    OK(cuEventElapsedTime(&milliseconds, first.done, second.done));
    CHECK(milliseconds > 0 || !ordered);

    unsigned char *host = malloc(SIZE);
    CHECK(host != NULL);
    OK(cuMemcpyDtoH(host, first.memory, SIZE));
    for (size_t index = 0; index < SIZE; index += 1) {
        CHECK(host[index] == 2 || !ordered);
    }
    memset(host, 9, SIZE);
    OK(cuMemcpyHtoDAsync(first.memory, host, SIZE, second.stream));
    memset(host, 0, SIZE);
    OK(cuMemcpyDtoHAsync(host, first.memory, SIZE, second.stream));
    OK(cuStreamSynchronize(second.stream));
    CHECK(host[0] == 9 && host[SIZE - 1] == 9);
    free(host);

    OK(cuMemFree(first.memory));
    OK(cuEventDestroy(first.done));
    OK(cuEventDestroy(second.done));
    OK(cuCtxPopCurrent(NULL));
    OK(cuLibraryUnload(library));
    destroy(&first);
    destroy(&second);
}

/* Groups of different sizes: drivers have them from 13.1 on, and the library exports the function
 * for every version. */
static void structured(int version) {
    CUdevResource device = device_sms(), groups[2], rest;
    CU_DEV_SM_RESOURCE_GROUP_PARAMS params[2];
    memset(params, 0, sizeof params);
    params[0].smCount = 24;
    params[1].smCount = 66;
    params[1].flags = CU_DEV_SM_RESOURCE_GROUP_BACKFILL;
    if (version < 13010) {
        EXPECT(cuDevSmResourceSplit(groups, 2, &device, &rest, 0, params),
               CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER);
        return;
    }
    OK(cuDevSmResourceSplit(groups, 2, &device, &rest, 0, params));
    CHECK(groups[0].sm.smCount == 24 && groups[1].sm.smCount == 66 && rest.sm.smCount == 42);
    struct partition part = {0};
    create(&part, &groups[1]);
    destroy(&part);
}

static void misuse(void) {
    CUdevResource device = device_sms(), group, empty;
    unsigned count = 1;
    memset(&empty, 0, sizeof empty);
    EXPECT(cuDevSmResourceSplitByCount(&group, &count, &device, NULL, 0, 133),
           CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    EXPECT(cuDevSmResourceSplitByCount(&group, &count, &empty, NULL, 0, 8),
           CUDA_ERROR_INVALID_RESOURCE_TYPE);
    EXPECT(cuDevSmResourceSplitByCount(&group, NULL, &device, NULL, 0, 8),
           CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuStreamSynchronize((CUstream)0x1234560), CUDA_ERROR_INVALID_HANDLE);
    EXPECT(cuDeviceGet(NULL, 0), CUDA_ERROR_INVALID_VALUE);

    const char *name;
    OK(cuGetErrorName(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, &name));
    CHECK(strcmp(name, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION") == 0);

    void *function;
    CUdriverProcAddressQueryResult found;
    OK(cuGetProcAddress("cuGreenCtxCreate", &function, 12040, 0, &found));
    CHECK(function != NULL && found == CU_GET_PROC_ADDRESS_SUCCESS);
    EXPECT(cuGetProcAddress("cuInit", &function, 99000, 0, &found), CUDA_ERROR_INVALID_VALUE);
    CHECK(function == NULL);
}

int main(int count_of_arguments, char **arguments) {
    (void)arguments;
    int version, count;
    EXPECT(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    OK(cuInit(0));
    OK(cuDriverGetVersion(&version));
    OK(cuDeviceGetCount(&count));
    CHECK(count == 1);
    char text[8];
    OK(cuDeviceGetName(text, sizeof text, 0));
    CHECK(strcmp(text, "NVIDIA ") == 0);

    two_partitions_share_a_buffer(count_of_arguments == 1);
    structured(version);
    misuse();
    printf("partitions: done on %d\n", version);
    return 0;
}
