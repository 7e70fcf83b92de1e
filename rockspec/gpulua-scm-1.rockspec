rockspec_format = "3.0"
package = "gpulua"
version = "scm-1"
source = {
  url = "git+file://.",
}
description = {
  summary = "GPU pipelines from Lua: no races, no leaks, no hangs; the same script with and without a GPU",
  license = "MIT",
}
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
}
test = {
  type = "command",
  command = "make test",
}
