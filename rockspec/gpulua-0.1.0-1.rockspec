rockspec_format = "3.0"
package = "gpulua"
version = "0.1.0-1"
source = {
  url = "git+file://.",
  tag = "v0.1.0",
}
description = {
  summary = "GPU pipelines from Lua: no races, no leaks, no hangs; the same script with and without a GPU",
  detailed = [[
Device buffers, CUDA C kernels, streams, graphs and coroutines. Work on the device is ordered by what it reads and writes.
The CPU device runs the same kernels where there is no GPU. The command gpulua is Lua with all of it; the CUDA toolkit is
looked for when the rock is built, and a C++17 compiler makes the CPU device's kernels.]],
  license = "MIT",
}
supported_platforms = { "linux" }
dependencies = {
  "lua ~> 5.4",
}
-- The CUDA toolkit is looked for by the Makefile; without it the CPU device is built alone.
build = {
  type = "make",
  build_variables = {
    CFLAGS = "$(CFLAGS)",
    LUA = "$(LUA)",
    LUA_CFLAGS = "-I$(LUA_INCDIR)",
  },
  build_target = "rock",
  install_target = "install-rock",
  install_variables = {
    ROCK_BINDIR = "$(BINDIR)",
    ROCK_LIBDIR = "$(LIBDIR)",
  },
  copy_directories = { "types" },
}
test = {
  type = "command",
  command = "make test",
}
