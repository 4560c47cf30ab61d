/* The C functions of libtorch that green_ctx_torch calls, with their signatures. Each thread has a current
   stream on each of 8 devices. */

#include <stdint.h>
#include <stdlib.h>

#define DEVICES 8

struct guard {
    int32_t device;
    void *previous;
};

static _Thread_local void *current[DEVICES];

int32_t aoti_torch_get_current_cuda_stream(int32_t device, void **stream) {
    if (device == -1) device = 0;
    if (device < 0 || device >= DEVICES) return 1;
    *stream = current[device];
    return 0;
}

int32_t torch_set_current_cuda_stream(void *stream, int32_t device) {
    if (device < 0 || device >= DEVICES) return 1;
    current[device] = stream;
    return 0;
}

int32_t aoti_torch_create_cuda_stream_guard(void *stream, int32_t device, struct guard **guard) {
    if (device < 0 || device >= DEVICES) return 1;
    *guard = malloc(sizeof **guard);
    **guard = (struct guard){device, current[device]};
    current[device] = stream;
    return 0;
}

int32_t aoti_torch_delete_cuda_stream_guard(struct guard *guard) {
    current[guard->device] = guard->previous;
    free(guard);
    return 0;
}

/* The handle belongs to no stream, because no test submits work to the pool. */
int32_t torch_get_cuda_stream_from_pool(_Bool high, int32_t device, void **stream) {
    if (device < 0 || device >= DEVICES) return 1;
    *stream = (void *)(uintptr_t)(high ? 0x1001 : 0x1000);
    return 0;
}
