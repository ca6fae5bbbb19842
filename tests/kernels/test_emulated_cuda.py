"""The emulator on which CUDA kernels run where there is no GPU: that it finds what is wrong."""

import subprocess
import sys

import emulated_cuda
import pytest
import torch

pytestmark = pytest.mark.skipif(not emulated_cuda.ABLE, reason="needs Linux and g++")

_REVERSE = """
extern "C" __global__ void reverse(float* values) {{
  __shared__ float kept[96];
  kept[threadIdx.x] = values[threadIdx.x];
  {barrier}
  values[threadIdx.x] = kept[blockDim.x - 1 - threadIdx.x];
}}
"""
_TOGETHER = """
extern "C" __global__ void together(int* sums, int* votes, int* neighbours, int* over) {
  extern __shared__ int room[];
  const int thread = threadIdx.x;
  if (thread >= 70) return;  // of a warp, some are left
  sums[thread] = __reduce_add_sync(0xffffffffu, thread % 32);
  neighbours[thread] = __shfl_down_sync(0xffffffffu, thread, 1);
  votes[thread] = 1000 * __syncthreads_count(thread % 2) + __syncthreads_and(thread < 70);
  room[thread] = thread;
  __syncthreads();
  over[thread] = room[69 - thread];
}
"""


def run(source, name, given, threads, room=0):
    """A launch of a single block."""
    kernel = getattr(emulated_cuda.load(source), name)
    kernel((1, 1, 1), (threads, 1, 1), given, shared_mem=room)
    return kernel


def test_a_block_waits_at_a_barrier():
    values = torch.arange(96.0)
    for _ in range(2):
        run(_REVERSE.format(barrier="__syncthreads();"), "reverse", [values], 96)
    assert torch.equal(values, torch.arange(96.0))


def test_without_the_barrier_nothing_is_there_yet():
    kernel = run(_REVERSE.format(barrier=""), "reverse", [torch.zeros(96)], 96)
    found = []
    for _ in range(5):
        values = torch.arange(96.0)
        kernel((1, 1, 1), (96, 1, 1), [values])
        found.append(values)
    assert all(values.isnan().any() for values in found)
    assert len({tuple(values.isnan().tolist()) for values in found}) > 1, "warps take other turns"


def test_threads_that_have_ended_are_waited_for_by_nobody():
    given = [torch.zeros(70, dtype=torch.int32) for _ in range(4)]
    run(_TOGETHER, "together", given, 70, 4 * 70)
    sums, votes, neighbours, over = (tensor.tolist() for tensor in given)
    assert sums == [31 * 16] * 64 + [15] * 6
    assert neighbours == [n if n % 32 == 31 or n == 69 else n + 1 for n in range(70)]
    assert votes == [35_001] * 70
    assert over == [*range(69, -1, -1)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("if (threadIdx.x < 5) __syncwarp();", "not all of its warp come"),
        ("int x = 0; threadIdx.x % 2 ? __syncwarp() : (void)__shfl_sync(0, x, 0);", "another inst"),
        ("extern __shared__ int room[];\nroom[threadIdx.x] = 0;", "behind its shared memory"),
        ("__shared__ int few[8]; few[threadIdx.x] = 0;", "out of bounds"),
        ("__shared__ float4 four[2]; *(float4*)((float*)four + 1) = four[0];", "misaligned"),
        ("__trap();", "trap"),
    ],
)
def test_what_is_wrong_ends_the_process(line, message):
    source = f'extern "C" __global__ void wrong() {{ {line} }}'
    library = emulated_cuda._library("#define EXACT 0", source)
    call = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).run_wrong(None, 1, 1, 32, 0, 1)"
    command = [sys.executable, "-c", call, library._name]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert message in ended.stderr


def test_a_kernel_is_called_with_as_many_arguments_as_it_has():
    source = 'extern "C" __global__ void nothing(double x) {}'
    run(source, "nothing", [0.5], 32)
    with pytest.raises(AssertionError, match="nothing"):
        run(source, "nothing", [0.5, 1], 32)
