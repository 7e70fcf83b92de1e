"""The service of examples/hosts/libuv.lua as a Python asyncio service: GET /nearest?x=0.3&y=0.7 answers which of 65536
points is the nearest, computed by PyTorch, CuPy or NumPy, whichever is named. Requests that arrive together, or while
others are computed, are one computation; BATCH says of how many at most (64). Prints its address, serves until it is
ended. uvloop is used where it is there.
Usage: python3 bench/peers/service.py torch|cupy|numpy|process [PORT]
`process`: each request is a process of its own, `gpulua bench/service_once.lua X Y` (GPULUA says which gpulua)."""
import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor

COUNT = 65536
BATCH_MAX = int(os.environ.get("BATCH", 64))


def finder(library):
    """A function of a list of (x, y) to a list of indices, which blocks."""
    import numpy

    k = numpy.arange(COUNT, dtype=numpy.float64)
    points = numpy.stack([k * 0.754877666 % 1, k * 0.569840291 % 1], axis=1).astype(numpy.float32)

    def distances(xp, there, queries):
        dx = there[None, :, 0] - queries[:, 0, None]
        dy = there[None, :, 1] - queries[:, 1, None]
        return xp.argmin(dx * dx + dy * dy, 1)

    if library == "torch":
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        there = torch.from_numpy(points).to(device)
        return lambda batch: distances(torch, there, torch.tensor(batch, dtype=torch.float32, device=device)).tolist()
    if library == "cupy":
        import cupy

        there = cupy.asarray(points)
        return lambda batch: distances(cupy, there, cupy.asarray(batch, dtype=cupy.float32)).tolist()
    return lambda batch: distances(numpy, points, numpy.asarray(batch, dtype=numpy.float32)).tolist()


class Batches:
    """Queries that come while others are computed are computed together."""

    def __init__(self, find):
        self.find = find
        self.waiting = []
        self.is_busy = False
        self.thread = ThreadPoolExecutor(1)  # the loop goes on meanwhile

    async def nearest(self, x, y):
        answer = asyncio.get_running_loop().create_future()
        self.waiting.append(((x, y), answer))
        if not self.is_busy:
            self.is_busy = True
            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(self.work()))
        return await answer

    async def work(self):
        loop = asyncio.get_running_loop()
        while self.waiting:
            batch, self.waiting = self.waiting[:BATCH_MAX], self.waiting[BATCH_MAX:]
            results = await loop.run_in_executor(self.thread, self.find, [query for query, _ in batch])
            for (_, answer), result in zip(batch, results):
                if not answer.done():
                    answer.set_result(result)
        self.is_busy = False


async def in_a_process(x, y):
    script = os.path.join(os.path.dirname(__file__), "..", "service_once.lua")
    process = await asyncio.create_subprocess_exec(
        os.environ.get("GPULUA", "build/gpulua"), script, f"{x:.6f}", f"{y:.6f}",
        stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode != 0 or not output:
        print(f"gpulua {x} {y}: {process.returncode}", file=sys.stderr, flush=True)
    return output.decode().strip()


def serve(nearest):
    async def on_connection(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                target = head.split(b" ", 2)[1].decode()
                fields = dict(part.split("=") for part in target.partition("?")[2].split("&"))
                body = f"{await nearest(float(fields['x']), float(fields['y']))}\n".encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    return on_connection


async def main(mode, port):
    nearest = in_a_process if mode == "process" else Batches(finder(mode)).nearest
    await nearest(0.3, 0.7)  # nothing is compiled or loaded any more when the first request comes
    server = await asyncio.start_server(serve(nearest), "127.0.0.1", port)
    print("http://127.0.0.1:%d/" % server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        import uvloop
        uvloop.install()
    except ImportError:
        pass
    try:
        asyncio.run(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0))
    except KeyboardInterrupt:
        pass
