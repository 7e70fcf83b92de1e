"""The programs of bench/graphs.lua as PyTorch and CuPy capture them: with the capture of a stream, which makes one chain
of all. Prints `name value unit` lines (medians). Usage: python3 bench/peers/graphs.py"""
import statistics
import time

REPEATS = 15


def median_us(launch, wait, count):
    times = []
    for _ in range(REPEATS):
        wait()
        start = time.perf_counter()
        for _ in range(count):
            launch()
        wait()
        times.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(times)


def enqueue_ns(launch, wait):
    times = []
    for _ in range(REPEATS):
        wait()
        start = time.perf_counter()
        for _ in range(20):
            launch()
        times.append((time.perf_counter() - start) / 20 * 1e9)
    wait()
    return statistics.median(times)


def torch_graphs():
    import torch

    wait = torch.cuda.synchronize
    xs = [torch.zeros(1024, dtype=torch.int32, device="cuda") for _ in range(8)]

    def captured(nodes, chains, ticks):
        def body():
            for i in range(nodes):
                if ticks:
                    torch.cuda._sleep(ticks)  # a kernel of its own; PyTorch has no edges to lose here
                else:
                    xs[i % chains].add_(1)

        body()
        wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            body()
        return graph

    for name, nodes, chains, ticks in (
        ("chain_1", 1, 1, 0),
        ("chain_10", 10, 1, 0),
        ("chain_100", 100, 1, 0),
        ("small_4x24", 96, 4, 0),
        ("10us_8x12", 96, 8, 18000),
    ):
        graph = captured(nodes, chains, ticks)
        print(f"torch {name}_enqueue {enqueue_ns(graph.replay, wait):.0f} ns")
        print(f"torch {name}_replay {median_us(graph.replay, wait, 20 if ticks else 200):.2f} us")


def cupy_graphs():
    import cupy

    kernel = cupy.RawKernel(
        r"""extern "C" __global__ void tick(int *x, unsigned long long ticks) {
          long long start = clock64();
          while (clock64() - start < (long long)ticks) { }
          x[threadIdx.x] += 1;
        }""",
        "tick",
    )
    xs = [cupy.zeros(1024, dtype=cupy.int32) for _ in range(8)]
    stream = cupy.cuda.Stream(non_blocking=True)

    def captured(nodes, chains, ticks):
        with stream:
            kernel((1,), (32,), (xs[0], cupy.uint64(0)))
            stream.synchronize()
            stream.begin_capture()
            for i in range(nodes):
                kernel((1,), (32,), (xs[i % chains], cupy.uint64(ticks)))
            return stream.end_capture()

    for name, nodes, chains, ticks in (
        ("chain_1", 1, 1, 0),
        ("chain_10", 10, 1, 0),
        ("chain_100", 100, 1, 0),
        ("small_4x24", 96, 4, 0),
        ("10us_8x12", 96, 8, 18000),
    ):
        graph = captured(nodes, chains, ticks)

        def launch(graph=graph):
            graph.launch(stream)

        print(f"cupy {name}_enqueue {enqueue_ns(launch, stream.synchronize):.0f} ns")
        print(f"cupy {name}_replay {median_us(launch, stream.synchronize, 20 if ticks else 200):.2f} us")


def torch_bytes():
    """A sequence with 32 temporaries of 1 MiB, each read by the next only: what its private pool takes."""
    import gc

    import torch

    x = torch.zeros(262144, device="cuda")

    def body():
        t = x
        for _ in range(32):
            t = t + 1
        x.copy_(t)

    body()
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    before, free = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    graph.replay()
    torch.cuda.synchronize()
    print(f"torch bytes_pool {torch.cuda.memory_reserved() - before} bytes")
    print(f"torch bytes_device {free - torch.cuda.mem_get_info()[0]} bytes")


for run in (torch_graphs, torch_bytes, cupy_graphs):
    try:
        run()
    except Exception as error:  # what is not installed is left out, and said
        print(f"# {run.__name__}: {error!r}")
