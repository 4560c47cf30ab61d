// Runs kernels as nodes of graphs that are made by the API, and not captured: the runtime chooses the context of such a
// node itself.
#include "common.cuh"

constexpr unsigned BLOCKS = 4000;

// Launches a graph, and returns the number of SMs on which its kernel wrote to `ids`.
static int ran(cudaGraphExec_t exec, const unsigned* ids) {
    std::vector<unsigned> found(BLOCKS);
    CHECK(cudaGraphLaunch(exec, nullptr));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(found.data(), ids, BLOCKS * sizeof *ids, cudaMemcpyDeviceToHost));
    return static_cast<int>(std::set(found.begin(), found.end()).size());
}

int main() {
    unsigned *ids, *others, values[2] = {};
    CHECK(cudaMalloc(&ids, BLOCKS * sizeof *ids));
    CHECK(cudaMalloc(&others, BLOCKS * sizeof *others));

    void* arguments[] = {&ids};
    cudaKernelNodeParams kernel{};
    kernel.func = reinterpret_cast<void*>(write_sm);
    kernel.gridDim = dim3(BLOCKS);
    kernel.blockDim = dim3(128);
    kernel.kernelParams = arguments;
    cudaMemsetParams memset{};
    memset.dst = ids;
    memset.elementSize = sizeof *ids;
    memset.value = 7;
    memset.width = BLOCKS;
    memset.height = 1;

    cudaGraph_t graph;
    cudaGraphNode_t zero, node;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphAddMemsetNode(&zero, graph, nullptr, 0, &memset));
    CHECK(cudaGraphAddKernelNode(&node, graph, &zero, 1, &kernel));
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    const int added = ran(exec, ids);

    // The same node with other parameters. The memset runs again, and nothing overwrites its values.
    arguments[0] = &others;
    CHECK(cudaGraphExecKernelNodeSetParams(exec, node, &kernel));
    const int changed = ran(exec, others);
    CHECK(cudaMemcpy(&values[0], ids, sizeof *ids, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(&values[1], ids + BLOCKS - 1, sizeof *ids, cudaMemcpyDeviceToHost));
    const int wrong = (values[0] != 7) + (values[1] != 7);
    printf("{\"told\": %d, \"sms\": [%d, %d], \"wrong\": %d}\n", told(), added, changed, wrong);
    return wrong > 0;
}
