-- What the service in libuv.c does: GET /nearest?x=0.3&y=0.7 answers which of 65536 points is the nearest. Requests
-- that arrive together, or while the device is busy with others, share one launch; the environment's BATCH says how
-- many at most (64). GET /stats says how many did.
local gpu = require "gpulua"

local count <const> = 65536
local batch_max <const> = tonumber(os.getenv "BATCH" or 64)
local dev = gpu.device()
local nearest = dev:compile([==[
  extern "C" __global__ void nearest(int count, const float *points, const float *queries, int *answers) {
    __shared__ float best[256];
    __shared__ int at[256];
    int t = threadIdx.x;
    float x = queries[2 * blockIdx.x], y = queries[2 * blockIdx.x + 1];
    best[t] = 1e30f; at[t] = 0;
    for (int i = t; i < count; i += 256) {
      float dx = points[2 * i] - x, dy = points[2 * i + 1] - y, d = dx * dx + dy * dy;
      if (d < best[t]) { best[t] = d; at[t] = i; }
    }
    for (int step = 128; step > 0; step /= 2) {
      __syncthreads();
      if (t < step && (best[t + step] < best[t] || best[t + step] == best[t] && at[t + step] < at[t])) {
        best[t] = best[t + step]; at[t] = at[t + step];
      }
    }
    if (t == 0) answers[blockIdx.x] = at[0];
  }]==]).nearest

-- Points that lie evenly, and that anybody can compute.
local points = dev:upload("f32", 2 * count, function(i)
  local k = (i - 1) // 2
  return (i % 2 == 1 and k * 0.754877666 or k * 0.569840291) % 1
end)

local requests, launches, largest = 0, 0, 0

--- Answers the queries of a batch, with one launch.
local function launch(batch)
  local n = #batch // 2
  launches, largest = launches + 1, math.max(largest, n)
  local queries <close> = dev:upload("f32", batch)
  local answers <close> = dev:buffer("i32", n)
  nearest:launch({ grid = n, block = 256 }, count, points, queries, answers)
  return answers:read()
end

local open, last -- the batch that still takes queries; the task of the newest batch

--- The index of the point that is nearest to (x, y), from 0. Waits for the launch of a batch.
local function find(x, y)
  local batch = open
  if not batch then
    batch = {}
    local before = last
    open = batch
    -- A task of nobody: a request that is cancelled takes no other one with it. It runs when all that has arrived has
    -- been begun, and behind the batch before.
    last = gpu.spawn(function()
      if before then
        before:join()
      end
      open = open ~= batch and open or nil
      return launch(batch)
    end):detach()
    batch.task = last
  end
  batch[#batch + 1], batch[#batch + 2] = x, y
  local place = #batch // 2
  if place == batch_max then
    open = nil
  end
  return batch.task:await()[place]
end

--- The service: status and body of an answer.
function handle(path, query) -- luacheck: globals handle
  if path == "stats" then
    return 200, ("%d requests, %d launches, at most %d in one\n"):format(requests, launches, largest)
  elseif path ~= "nearest" then
    return 404, "nothing is there\n"
  end
  local x, y = query:match "^x=([%d.]+)&y=([%d.]+)$"
  x, y = tonumber(x), tonumber(y)
  if not x or not y then
    return 400, "x and y expected, as in /nearest?x=0.3&y=0.7\n"
  end
  requests = requests + 1
  return 200, find(x, y) .. "\n"
end
