rockspec_format = "3.0"
package = "smooth"
version = "scm-1"
source = {
  url = "git+file://.",
}
description = {
  summary = "Smooths signals on a GPU, or without one: a project to begin with",
  license = "MIT",
}
dependencies = {
  "lua ~> 5.4",
  "gpulua",
}
test_dependencies = {
  "busted",
}
build = {
  type = "builtin",
  modules = {
    smooth = "src/smooth.lua",
  },
}
test = {
  type = "busted",
}
