"""What peers have for awaiting: round trips of PyTorch, CuPy and of asyncio over a host function, and what becomes of a
waiter on a host function behind a kernel that faults. Prints `name value unit` lines (medians).
Usage: python3 bench/peers/host_function.py"""
import asyncio
import multiprocessing
import statistics
import time

REPEATS, COUNT = 21, 200


def measure(name, once, idle_s=0.0):
    once()
    values = []
    for _ in range(REPEATS):
        if idle_s:
            time.sleep(idle_s)
        count = 1 if idle_s else COUNT
        start = time.perf_counter()
        for _ in range(count):
            once()
        values.append((time.perf_counter() - start) / count * 1e9)
    print(f"{name} {statistics.median(values):.0f} ns", flush=True)


def peers_round_trips():
    import cupy
    import torch

    x = torch.zeros(1024, device="cuda")

    def with_torch():
        x.add_(1)
        torch.cuda.synchronize()

    y = cupy.zeros(1024, dtype=cupy.float32)
    stream = cupy.cuda.get_current_stream()

    def with_cupy():
        cupy.add(y, 1, out=y)
        stream.synchronize()

    for name, once in (("torch", with_torch), ("cupy", with_cupy)):
        measure(f"{name}_round_trip", once)
        measure(f"{name}_round_trip_idle", once, 0.01)


async def asyncio_round_trips():
    import cupy

    y = cupy.zeros(1024, dtype=cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    loop = asyncio.get_running_loop()

    async def once():
        future = loop.create_future()
        with stream:
            cupy.add(y, 1, out=y)
        stream.launch_host_func(lambda _: loop.call_soon_threadsafe(future.set_result, None), None)
        await future

    await once()
    for name, idle_s, count in (("asyncio_round_trip", 0, COUNT), ("asyncio_round_trip_idle", 0.01, 1)):
        values = []
        for _ in range(REPEATS):
            if idle_s:
                await asyncio.sleep(idle_s)
            start = time.perf_counter()
            for _ in range(count):
                await once()
            values.append((time.perf_counter() - start) / count * 1e9)
        print(f"{name} {statistics.median(values):.0f} ns", flush=True)


def faulty(said):
    """A waiter behind a kernel that faults; then the next launch."""
    import cupy

    trap = cupy.RawKernel('extern "C" __global__ void trap(int *x) { x[0] = 1; __trap(); }', "trap")
    x = cupy.zeros(1, dtype=cupy.int32)
    stream = cupy.cuda.Stream(non_blocking=True)

    async def wait():
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with stream:
            trap((1,), (1,), (x,))
        stream.launch_host_func(lambda _: loop.call_soon_threadsafe(future.set_result, None), None)
        try:
            await asyncio.wait_for(future, 5)
            said.put("# host function behind a fault: resumed")
        except asyncio.TimeoutError:
            said.put("# host function behind a fault: not resumed within 5 s")

    try:
        asyncio.run(wait())
    except Exception as error:
        said.put(f"# host function behind a fault: {type(error).__name__}")
    try:
        cupy.zeros(1)
        said.put("# the next allocation in that process: works")
    except Exception as error:
        said.put(f"# the next allocation in that process: {str(error).splitlines()[0]}")
    said.close()
    said.join_thread()


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    said = context.Queue()
    child = context.Process(target=faulty, args=(said,))
    child.start()
    print(said.get())
    print(said.get())
    child.join(10)
    child.kill()
    peers_round_trips()
    asyncio.run(asyncio_round_trips())
