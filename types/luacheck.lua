-- Made by `make docs` from types/library: change it there.
-- What luacheck is to know of gpulua where a script has it as a global: gpulua -l gpulua, or -l gpu=gpulua.

local module = {
  fields = {
    device = {},
    devices = {},
    type = {},
    spawn = {},
    run = {},
    all = {},
    any = {},
    sleep = {},
    readable = {},
    timeout = {},
    step = {},
    pollfd = {},
    timeout_hint = {},
    why = {},
    map = {},
    reduce = {},
    pool = {},
    progress = {},
    range = {},
    report = {},
    version = { other_fields = true },
    graph = { fields = {
      if_ = {},
      while_ = {},
      switch = {},
    } },
    trace = { fields = {
      events = {},
      json = {},
      timeline = {},
      reason = {},
      info = {},
      arguments = {},
    } },
  },
}

return { read_globals = { gpulua = module, gpu = module } }
