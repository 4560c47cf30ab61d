#!/bin/sh
# Makes the images again. Needs ptxas and fatbinary of CUDA 13.0 on the path.
set -eu
cd "$(dirname "$0")"
for arch in 80 90; do
    ptxas -arch=sm_$arch ../../src/observe/probe.ptx -o probe.sm_$arch.cubin
    ptxas -arch=sm_$arch kernels.ptx -o kernels.sm_$arch.cubin
done
fatbinary -64 -compress-all -compress-mode balance -create kernels.zstd.fatbin \
    --image3=kind=elf,sm=90,file=kernels.sm_90.cubin \
    --image3=kind=elf,sm=80,file=kernels.sm_80.cubin \
    --image3=kind=ptx,sm=80,file=kernels.ptx
fatbinary -64 -compress-all -compress-mode speed -create kernels.lz4.fatbin \
    --image3=kind=ptx,sm=80,file=kernels.ptx
rm kernels.sm_80.cubin kernels.sm_90.cubin
