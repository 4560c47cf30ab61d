"""Kernels that `cuda.core` loads from PTX, cubins and fat binaries, and asks about."""

from pathlib import Path

from checks import PTX, raises, refuses, run
from cuda.core import ContextOptions, Device, LaunchConfig, ObjectCode, SMResourceOptions, launch

device = Device()
device.set_current()

IMAGES = Path(__file__).parents[2] / "sim/images"


def image(name):
    """The bytes of an image that NVIDIA's compiler made."""
    return (IMAGES / name).read_bytes()


def test_kernels_have_parameters_and_attributes():
    work = ObjectCode.from_ptx(PTX).get_kernel("work")
    assert work.num_arguments == 2
    assert [(info.offset, info.size) for info in work.arguments_info] == [(0, 8), (8, 4)]
    assert work.attributes.max_threads_per_block == 1024
    assert work.attributes.binary_version == 90


def test_occupancy_follows_from_the_device():
    work = ObjectCode.from_ptx(PTX).get_kernel("work")
    occupancy = work.occupancy
    assert occupancy.max_active_blocks_per_multiprocessor(1024, 0) == 2
    best = occupancy.max_potential_block_size(0, 0)
    assert best.max_block_size == 1024 and best.min_grid_size == 2 * 132


def test_clusters_fit_a_partition():
    work = ObjectCode.from_ptx(PTX).get_kernel("work")
    [group], _ = device.resources.sm.split(SMResourceOptions(count=16))
    context = device.create_context(ContextOptions(resources=[group]))
    stream = context.create_stream()
    config = LaunchConfig(grid=64, block=1024, cluster=8)
    inside = work.occupancy.max_active_clusters(config, stream=stream)
    outside = work.occupancy.max_active_clusters(config, stream=device.default_stream)
    assert 0 < inside < outside
    stream.close()
    context.close()


def test_cubins_and_fat_binaries_are_loaded():
    stream = device.create_stream()
    ObjectCode.from_cubin(image("probe.sm_90.cubin")).get_kernel("green_ctx_probe")
    ObjectCode.from_cubin(str(IMAGES / "probe.sm_90.cubin")).get_kernel("green_ctx_probe")
    for name in ("kernels.lz4.fatbin", "kernels.zstd.fatbin"):
        code = ObjectCode.from_fatbin(image(name))
        launch(stream, LaunchConfig(grid=1, block=32), code.get_kernel("second"))
    stream.sync()
    stream.close()


def test_images_that_do_not_fit():
    with refuses("NO_BINARY_FOR_GPU"):
        ObjectCode.from_cubin(image("probe.sm_80.cubin")).get_kernel("green_ctx_probe")
    with refuses("NOT_FOUND"):
        ObjectCode.from_ptx(PTX).get_kernel("absent")


def test_cooperative_launches_have_to_fit():
    work = ObjectCode.from_ptx(PTX).get_kernel("work")
    stream = device.create_stream()
    launch(stream, LaunchConfig(grid=264, block=1024, is_cooperative=True), work, 0, 1)
    # cuda.core asks for the occupancy itself.
    with raises(ValueError, "exceeds the limit (264)"):
        launch(stream, LaunchConfig(grid=265, block=1024, is_cooperative=True), work, 0, 1)
    stream.sync()
    stream.close()


if __name__ == "__main__":
    run(dict(globals()))
