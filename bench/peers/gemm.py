"""The products of bench/gemm.lua with PyTorch and CuPy. Prints `name value unit` lines (medians).
Usage: python3 bench/peers/gemm.py"""
import statistics
import time

REPEATS = 15


def measure(name, multiply, wait, count):
    enqueue, whole = [], []
    multiply()
    for _ in range(REPEATS):
        wait()
        start = time.perf_counter()
        for _ in range(20):
            multiply()
        enqueue.append((time.perf_counter() - start) / 20 * 1e9)
        wait()
        start = time.perf_counter()
        for _ in range(count):
            multiply()
        wait()
        whole.append((time.perf_counter() - start) / count * 1e6)
    print(f"{name}_enqueue {statistics.median(enqueue):.0f} ns")
    print(f"{name} {statistics.median(whole):.2f} us", flush=True)


def torch_products():
    import torch

    def product(name, n, batch, dtype, count, tf32=False):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        shape = (batch, n, n) if batch > 1 else (n, n)
        a = torch.full(shape, 0.0078, dtype=dtype, device="cuda")
        b, c = a.clone(), a.clone()
        measure("torch_" + name, lambda: torch.matmul(a, b, out=c), torch.cuda.synchronize, count)

    product("gemm_64_f32", 64, 1, torch.float32, 200)
    product("gemm_512_f32_x64", 512, 64, torch.float32, 20)
    product("gemm_8192_f32", 8192, 1, torch.float32, 3)
    product("gemm_8192_tf32", 8192, 1, torch.float32, 5, True)
    product("gemm_8192_bf16", 8192, 1, torch.bfloat16, 10)


def cupy_products():
    import cupy

    def product(name, n, batch, count):
        shape = (batch, n, n) if batch > 1 else (n, n)
        a = cupy.full(shape, 0.0078, dtype=cupy.float32)
        b, c = a.copy(), a.copy()
        measure("cupy_" + name, lambda: cupy.matmul(a, b, out=c), cupy.cuda.get_current_stream().synchronize, count)

    product("gemm_64_f32", 64, 1, 200)
    product("gemm_512_f32_x64", 512, 64, 20)
    product("gemm_8192_f32", 8192, 1, 3)


for run in (torch_products, cupy_products):
    try:
        run()
    except ImportError as missing:
        print(f"# {missing}")
