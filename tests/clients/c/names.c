/* A C program that has variables with the names of the driver's functions, as loaders such as cuew do. It is linked
 * with -rdynamic, so a library that calls such a function by its name would jump into the variable. */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"

int (*cuInit)(unsigned);
int (*cuDevicePrimaryCtxRetain)(void **, int);
int (*cuCtxSetCurrent)(void *);
int (*cuCtxSynchronize)(void);
int (*cuCtxPushCurrent_v2)(void *);
int (*cuStreamCreate)(void **, unsigned);
int (*cuStreamCreateWithPriority)(void **, unsigned, int);
int (*cuGetProcAddress_v2)(const char *, void **, int, unsigned long, void *);
int (*cuCtxSynchronize_v2)(void *);

#define FIND(name) CHECK((*(void **)&name = dlsym(driver, #name)) != NULL)

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context, *stream;
    CHECK(driver != NULL);
    FIND(cuInit);
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuCtxSetCurrent);
    FIND(cuCtxSynchronize);
    FIND(cuStreamCreate);
    FIND(cuCtxSynchronize_v2);
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0);
    CHECK(cuCtxSetCurrent(context) == 0);
    /* These call other functions of the driver's interface. */
    CHECK(cuStreamCreate(&stream, 1) == 0);
    CHECK(cuCtxSynchronize() == 0 && cuCtxSynchronize_v2(context) == 0);
    printf("names: done\n");
    return 0;
}
