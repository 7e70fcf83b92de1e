-- What wrk asks for, and what it prints in the end, for bench/service.sh: each request another point, from a seed of
-- its own for each thread. An answer that is no index of a point counts as an error.
-- luacheck: globals setup init request response done wrk seed wrong
local threads = {}

function setup(thread)
  threads[#threads + 1] = thread
  thread:set("seed", #threads)
end

function init()
  math.randomseed(seed)
  wrong = 0
end

function request()
  return wrk.format("GET", ("/nearest?x=%.6f&y=%.6f"):format(math.random(), math.random()))
end

function response(status, _, body)
  local index = tonumber(body)
  if status ~= 200 or not index or index < 0 or index >= 65536 or index % 1 ~= 0 then
    wrong = wrong + 1
  end
end

function done(summary, latency)
  local errors, bad = summary.errors, 0
  for _, thread in ipairs(threads) do
    bad = bad + thread:get "wrong"
  end
  print(("requests %d errors %d wrong %d rate %.0f p50 %.3f p99 %.3f max %.3f"):format(summary.requests,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout, bad,
    summary.requests / summary.duration * 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    latency.max / 1e3))
end
