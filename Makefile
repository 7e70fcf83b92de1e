# gpulua. Settings first; each can be given on the command line or in the environment.

CC ?= cc
CXX ?= c++
AR ?= ar
CFLAGS ?= -O2 -g
LDFLAGS ?=
PREFIX ?= /usr/local
DESTDIR ?=
# Lua 5.4: its pkg-config package, the interpreter that runs the build's own tools, headers, static library.
LUA_PKG ?= lua5.4
LUA ?= lua5.4
LUA_CFLAGS ?= $(shell pkg-config --cflags $(LUA_PKG) 2>/dev/null || echo -I/usr/include/lua5.4)
LUA_STATIC ?= $(firstword $(wildcard $(addsuffix /liblua5.4.a,$(LUA_LIB_DIRS))) -llua5.4)
# The CUDA toolkit's headers; without them the cuda backend is left out.
CUDA_HOME ?= /usr/local/cuda
# Where tests run: cpu, cuda, cuda:N.
DEVICE ?= cpu
# Where Lua's own test suite lies, for `make lua-tests`.
LUA_TESTS ?=
# How long `make soak` goes on.
SOAK_SECONDS ?= 3600
# And each target of `make fuzz`.
FUZZ_SECONDS ?= 600
# V=1 shows every command in full.
V ?=
# Sanitizers to build with, as for -fsanitize (address,undefined or thread). They get a folder of their own.
SANITIZE ?=
# PROFILE=1: built twice by GCC, the second time for the ways that tools/train.lua took on DEVICE: launches cost less.
PROFILE ?=
comma := ,
BUILD ?= build$(if $(SANITIZE),/sanitize-$(subst $(comma),-,$(SANITIZE)))

LUA_LIB_DIRS = $(shell pkg-config --variable=libdir $(LUA_PKG) 2>/dev/null) \
	/usr/lib/$(shell $(CC) -dumpmachine 2>/dev/null) /usr/lib/x86_64-linux-gnu \
	/usr/lib/aarch64-linux-gnu /usr/local/lib /usr/lib

# What follows is derived.

VERSION := $(shell sed -n 's/^.define GPULUA_VERSION_[A-Z]* *\([0-9][0-9]*\)$$/\1/p' src/gpulua.h | \
	tr '\n' '.' | sed 's/\.$$//')
VERSION_MAJOR := $(firstword $(subst ., ,$(VERSION)))

WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wconversion
SANITIZE_FLAGS := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer \
	$(if $(findstring undefined,$(SANITIZE)),-fno-sanitize-recover=undefined))
ifneq ($(PROFILE),)
ifeq ($(findstring Free Software Foundation,$(shell $(CC) --version 2>&1)),)
$(error PROFILE=1 wants GCC; CC is $(CC))
endif
endif
# Files without a profile, and the parts of others that were not trained, are compiled as always.
# Of what a profile does not fit GCC warns without an option against it; all other warnings are those of a plain build.
PROFILE_FLAGS := $(if $(PROFILE),-fprofile-use -fprofile-partial-training -w)
LIBS := -lm -ldl -lpthread

CUDA_INCLUDE := $(patsubst %/nvrtc.h,%,$(firstword $(wildcard $(addsuffix /nvrtc.h, \
	$(patsubst %/cuda.h,%,$(wildcard $(CUDA_HOME)/include/cuda.h /usr/include/cuda.h))))))

# Evaluated once; nothing here looks at the network.
LUA_CFLAGS := $(strip $(LUA_CFLAGS))
LUA_STATIC := $(LUA_STATIC)

# Ranges for profilers: headers alone, for the C library loads what listens.
NVTX_INCLUDE := $(patsubst %/nvtx3/nvToolsExt.h,%,$(firstword $(wildcard $(CUDA_HOME)/include/nvtx3/nvToolsExt.h \
	/usr/include/nvtx3/nvToolsExt.h)))

# Times of kernels: the library is loaded at run time, and events do where it is not there.
CUPTI_INCLUDE := $(if $(CUDA_INCLUDE),$(patsubst %/cupti.h,%,$(firstword $(wildcard $(CUDA_INCLUDE)/cupti.h \
	$(CUDA_HOME)/extras/CUPTI/include/cupti.h))))

ALL_CFLAGS = -std=c11 -D_GNU_SOURCE -Isrc $(LUA_CFLAGS) $(if $(CUDA_INCLUDE),-DGPULUA_CUDA) \
	$(if $(CUPTI_INCLUDE),-DGPULUA_CUPTI) $(WARNINGS) \
	-fPIC -fvisibility=hidden $(CFLAGS) $(SANITIZE_FLAGS) $(PROFILE_FLAGS)
ALL_LDFLAGS = $(LDFLAGS) $(SANITIZE_FLAGS)

SOURCES := $(sort $(wildcard src/*/*.c src/*/*/*.c src/*/*/*/*.c))
SOURCES := $(if $(CUDA_INCLUDE),$(SOURCES),$(filter-out src/backend/cuda/%,$(SOURCES)))
# What kernels include: gpulua's own, for all devices, and what only the CPU device lacks.
KERNEL_HEADERS := $(sort $(wildcard src/backend/kernel/*))
SHIM_FILES := $(sort $(wildcard src/backend/cpu/shim/*)) $(KERNEL_HEADERS)
LUA_FILES := $(sort $(wildcard lua/gpulua/*.lua lua/gpulua/*.html))

object = $(patsubst src/%.c,$(BUILD)/obj/%.o,$(1))
MAIN_OBJECTS := $(call object,$(filter src/interpreter/%,$(SOURCES)))
# Of gpulua-exec alone: what only a process of its own may do.
EXEC_MAIN_SOURCES := src/executor/main.c src/executor/broker.c src/executor/confine.c
EXEC_MAIN_OBJECTS := $(call object,$(EXEC_MAIN_SOURCES))
SHIM_OBJECT := $(BUILD)/obj/shim.o
KERNEL_HEADERS_OBJECT := $(BUILD)/obj/kernel_headers.o
LUA_FILES_OBJECT := $(BUILD)/obj/lua_files.o
LIBRARY_OBJECTS := $(call object,$(filter-out src/interpreter/% $(EXEC_MAIN_SOURCES),$(SOURCES))) \
	$(SHIM_OBJECT) $(KERNEL_HEADERS_OBJECT) $(LUA_FILES_OBJECT)
EXEC_OBJECTS := $(EXEC_MAIN_OBJECTS) $(SHIM_OBJECT) $(KERNEL_HEADERS_OBJECT) $(call object,$(filter-out $(EXEC_MAIN_SOURCES), \
	$(filter src/executor/% src/wire/% src/backend/% src/ranges/%,$(SOURCES))))
OBJECTS := $(sort $(MAIN_OBJECTS) $(EXEC_OBJECTS) $(LIBRARY_OBJECTS))

TEST_SOURCES := $(sort $(wildcard spec/*_test.c spec/*/*_test.c spec/*/*/*_test.c))
TEST_PROGRAMS := $(patsubst spec/%.c,$(BUILD)/spec/%,$(TEST_SOURCES))
NVRTC_CHECK := $(if $(CUDA_INCLUDE),$(patsubst spec/%.c,$(BUILD)/spec/%,$(wildcard spec/backend/nvrtc_check.c)))
# What the specs of ranges have NVTX load.
RANGE_LISTENER := $(if $(NVTX_INCLUDE),$(BUILD)/spec/ranges/listener.so)
BENCH_SOURCES := $(sort $(wildcard bench/*.c))
BENCH_SOURCES := $(if $(CUDA_INCLUDE),$(BENCH_SOURCES),$(filter-out $(patsubst %,bench/%.c, \
	alarm cold coredump cublas cupti curand fault graphs lanes load raw_driver),$(BENCH_SOURCES)))
BENCH_PROGRAMS := $(patsubst bench/%.c,$(BUILD)/bench/%,$(BENCH_SOURCES))

# The interpreter is build/gpulua, so the Lua module's folder cannot have that name too: in a build tree, stock Lua
# takes LUA_CPATH=build/lua/?.so and LUA_PATH=build/lua/?.lua.
INTERPRETER := $(BUILD)/gpulua
EXECUTOR := $(BUILD)/gpulua-exec
SHARED := $(BUILD)/libgpulua.so
ARCHIVE := $(BUILD)/libgpulua.a
MODULE := $(BUILD)/lua/gpulua/core.so
PRODUCTS := $(INTERPRETER) $(EXECUTOR) $(SHARED) $(ARCHIVE) $(MODULE)

quiet := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' $(1) $@)

.PHONY: all deps demo demo-run test test-build test-run test-programs lua-tests check soak fuzz lint docs site bench bench-programs rock \
	install-rock install uninstall install-shell uninstall-shell clean
.DELETE_ON_ERROR:
.SUFFIXES:

SHELL_FILES := $(addprefix $(BUILD)/shell/,gpulua.1 gpulua.bash gpulua.zsh gpulua.fish)

all: $(PRODUCTS) $(SHELL_FILES)

# Said once, not with every make: the note is a file that only a clean removes.
ifeq ($(CUDA_INCLUDE),)
$(OBJECTS): | $(BUILD)/no-cuda
$(BUILD)/no-cuda:
	@mkdir -p $(@D)
	@echo "gpulua: no cuda.h and nvrtc.h under $(CUDA_HOME)/include: the cuda backend is left out"
	@touch $@
endif

# Changes only when the flags do, so that other flags rebuild everything and the same ones nothing.
FLAGS_TEXT := $(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) $(LUA_STATIC) $(CUDA_INCLUDE) $(CUPTI_INCLUDE) $(NVTX_INCLUDE)
ifneq ($(FLAGS_TEXT),$(shell cat $(BUILD)/flags 2>/dev/null))
.PHONY: $(BUILD)/flags
endif
$(BUILD)/flags:
	@mkdir -p $(@D)
	@printf '%s\n' '$(FLAGS_TEXT)' > $@

# GCC finds a profile beside the object that it is for.
ifneq ($(PROFILE),)
$(OBJECTS): $(BUILD)/trained
$(BUILD)/trained: $(SOURCES) $(SHIM_FILES) $(LUA_FILES) tools/train.lua
	@rm -rf $(BUILD)/training
	@$(MAKE) --no-print-directory PROFILE= BUILD=$(BUILD)/training CFLAGS='$(CFLAGS) -fprofile-generate \
		-fprofile-update=atomic' LDFLAGS='$(LDFLAGS) -fprofile-generate' $(BUILD)/training/gpulua $(BUILD)/training/gpulua-exec
	@for transport in none thread process; do GPULUA_CACHE=$(BUILD)/training/cache GPULUA_EXECUTOR=$(BUILD)/training/gpulua-exec \
		$(BUILD)/training/gpulua --device $(DEVICE) --isolate $$transport tools/train.lua || exit 1; done
	@cd $(BUILD)/training && find obj -name '*.gcda' | while read -r profile; do \
		mkdir -p ../$$(dirname $$profile) && mv $$profile ../$$profile; done
	@rm -rf $(BUILD)/training
	@touch $@
endif

$(BUILD)/obj/backend/cuda/%.o: src/backend/cuda/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC)
	$(quiet)$(CC) $(ALL_CFLAGS) -isystem $(CUDA_INCLUDE) $(if $(CUPTI_INCLUDE),-isystem $(CUPTI_INCLUDE)) \
		-MMD -MP -c -o $@ $<

$(BUILD)/obj/ranges/%.o: src/ranges/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC)
	$(quiet)$(CC) $(ALL_CFLAGS) $(if $(NVTX_INCLUDE),-DGPULUA_NVTX3 -isystem $(NVTX_INCLUDE)) -MMD -MP -c -o $@ $<

$(BUILD)/obj/%.o: src/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC)
	$(quiet)$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

# Compiled kernels that lie in a cache are those of the backends that made them.
BACKEND_SOURCES := $(filter src/backend/%,$(SOURCES)) $(sort $(wildcard src/backend/*.h src/backend/*/*.h src/backend/*/*/*.h))
$(BUILD)/obj/backend/cache_key.o: $(BACKEND_SOURCES)
$(BUILD)/obj/backend/cache_key.o: ALL_CFLAGS += -DGPULUA_BACKENDS=$$(cat $(BACKEND_SOURCES) | cksum | cut -d' ' -f1)

# Where a JPEG's codes are damaged stb shifts and adds beyond what C defines: pixels that mean nothing come of it.
$(BUILD)/obj/binding/image.o: SANITIZE_FLAGS += -fno-sanitize=shift,signed-integer-overflow

$(BUILD)/shim.c: tools/embed.lua $(SHIM_FILES)
	@mkdir -p $(@D)
	$(call say,EMBED)
	$(quiet)$(LUA) tools/embed.lua gpu_cpu_shim $@ $(SHIM_FILES)

$(BUILD)/kernel_headers.c: tools/embed.lua $(KERNEL_HEADERS)
	@mkdir -p $(@D)
	$(call say,EMBED)
	$(quiet)$(LUA) tools/embed.lua gpu_kernel_headers $@ $(KERNEL_HEADERS)

$(BUILD)/lua_files.c: tools/embed.lua $(LUA_FILES)
	@mkdir -p $(@D)
	$(call say,EMBED)
	$(quiet)$(LUA) tools/embed.lua gpu_lua $@ $(LUA_FILES)

$(SHIM_OBJECT) $(KERNEL_HEADERS_OBJECT) $(LUA_FILES_OBJECT): $(BUILD)/obj/%.o: $(BUILD)/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC)
	$(quiet)$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

# A list of the objects, so that a source taken away relinks what held it.
ifneq ($(OBJECTS),$(shell cat $(BUILD)/objects 2>/dev/null))
.PHONY: $(BUILD)/objects
endif
$(BUILD)/objects: $(BUILD)/flags
	@printf '%s\n' '$(OBJECTS)' > $@

# All of Lua goes in, used here or not, for the C modules that scripts load.
$(INTERPRETER): $(MAIN_OBJECTS) $(LIBRARY_OBJECTS) $(BUILD)/objects $(filter %.a,$(LUA_STATIC))
	$(call say,LINK)
	$(quiet)$(CC) $(ALL_LDFLAGS) -Wl,-E -o $@ $(MAIN_OBJECTS) $(LIBRARY_OBJECTS) \
		-Wl,--whole-archive $(LUA_STATIC) -Wl,--no-whole-archive $(LIBS)

$(EXECUTOR): $(EXEC_OBJECTS) $(BUILD)/objects
	$(call say,LINK)
	$(quiet)$(CC) $(ALL_LDFLAGS) -o $@ $(EXEC_OBJECTS) $(LIBS)

# lua_* stay undefined in the library and the module: the host or the interpreter has them.
$(SHARED): $(LIBRARY_OBJECTS) $(BUILD)/objects
	$(call say,LINK)
	$(quiet)$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,libgpulua.so.$(VERSION_MAJOR) -o $@ $(LIBRARY_OBJECTS) $(LIBS)
	$(quiet)ln -sf libgpulua.so $@.$(VERSION_MAJOR)

$(ARCHIVE): $(LIBRARY_OBJECTS) $(BUILD)/objects
	@rm -f $@
	$(call say,AR)
	$(quiet)$(AR) rcs $@ $(LIBRARY_OBJECTS)

# The executor is looked for beside the module. `require "gpulua"` and, before it, `require "gpulua.npy"` find the
# same file under the name gpulua.so.
$(MODULE): $(LIBRARY_OBJECTS) $(BUILD)/objects
	@mkdir -p $(@D)
	$(call say,LINK)
	$(quiet)$(CC) $(ALL_LDFLAGS) -shared -o $@ $(LIBRARY_OBJECTS) $(LIBS)
	$(quiet)ln -sf ../../gpulua-exec $(@D)/gpulua-exec
	$(quiet)ln -sf gpulua/core.so $(BUILD)/lua/gpulua.so

# C tests see the internal headers and everything in the library; those that embed Lua get it too.
$(BUILD)/spec/%: spec/%.c $(ARCHIVE) $(BUILD)/flags $(filter %.a,$(LUA_STATIC))
	@mkdir -p $(@D)
	$(call say,CC)
	$(quiet)$(CC) $(filter-out -fvisibility=hidden,$(ALL_CFLAGS)) -Ispec $(addprefix -isystem ,$(CUDA_INCLUDE)) \
		-MMD -MP -MF $@.d -o $@ $< $(ALL_LDFLAGS) \
		-Wl,-E $(ARCHIVE) $(LUA_STATIC) $(LIBS)

# Fuzz targets: tools/fuzz.sh makes them, in a folder of their own.
ifdef FUZZ
$(BUILD)/spec/fuzz/%: ALL_LDFLAGS += -fsanitize=fuzzer
endif

$(BUILD)/bench/%: bench/%.c $(ARCHIVE) $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC)
	$(quiet)$(CC) $(ALL_CFLAGS) $(addprefix -isystem ,$(CUDA_INCLUDE) $(CUPTI_INCLUDE)) -MMD -MP -MF $@.d -o $@ $< $(ALL_LDFLAGS) \
		-Wl,-E $(ARCHIVE) $(LUA_STATIC) $(LIBS)

$(BUILD)/spec/ranges/listener.so: spec/ranges/listener.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC)
	$(quiet)$(CC) -std=c11 -D_GNU_SOURCE $(WARNINGS) -fPIC -fvisibility=hidden $(CFLAGS) -isystem $(NVTX_INCLUDE) \
		-shared -o $@ $<

test-programs: $(TEST_PROGRAMS) $(NVRTC_CHECK) $(RANGE_LISTENER)
bench-programs: $(BENCH_PROGRAMS)

# Programs, headers and libraries that make and the tests need. With demo and test, which begin with their part of it, the
# only target that uses the network.
deps:
	@CC='$(CC)' CXX='$(CXX)' sh tools/deps.sh all

# What make finds at its start may have been installed by deps: each of these goes on in a make of its own.
demo:
	@CC='$(CC)' CXX='$(CXX)' sh tools/deps.sh build
	@$(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$$(nproc)) all
	@$(MAKE) --no-print-directory demo-run

demo-run: $(INTERPRETER) $(EXECUTOR)
	@mkdir -p $(BUILD)/demo
	$(INTERPRETER) --device $(DEVICE) examples/ecg.lua examples/data/ecg.npy $(BUILD)/demo/ecg.png
	$(INTERPRETER) --device $(DEVICE) examples/edges.lua examples/data/ascent.png $(BUILD)/demo/ascent-edges.png
	$(INTERPRETER) --device $(DEVICE) examples/edges.lua examples/data/raccoon.png $(BUILD)/demo/raccoon-edges.png
	$(INTERPRETER) --device $(DEVICE) examples/mlp.lua examples/data/penguins.csv $(BUILD)/demo/penguins.png
	$(INTERPRETER) --device $(DEVICE) examples/nbody.lua $(BUILD)/demo/galaxies.png
	$(INTERPRETER) --device $(DEVICE) examples/denoise.lua examples/data/raccoon.png $(BUILD)/demo/noise.png
	$(INTERPRETER) --device $(DEVICE) examples/spectrogram.lua examples/data/ecg.npy $(BUILD)/demo/spectrogram.png
	$(INTERPRETER) --device $(DEVICE) examples/option.lua
	@echo "pictures: $(BUILD)/demo/ecg.png $(BUILD)/demo/ascent-edges.png $(BUILD)/demo/raccoon-edges.png" \
		"$(BUILD)/demo/penguins.png $(BUILD)/demo/galaxies.png $(BUILD)/demo/noise.png $(BUILD)/demo/spectrogram.png"

# Built by all processors, unless make was told otherwise.
test:
	@CC='$(CC)' CXX='$(CXX)' sh tools/deps.sh test
	@$(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$$(nproc)) test-build
	@$(MAKE) --no-print-directory test-run

# All that the suite runs.
test-build: $(PRODUCTS) test-programs bench-programs

test-run: test-build
	@BUILD='$(BUILD)' DEVICE='$(DEVICE)' CC='$(CC)' CXX='$(CXX)' CFLAGS='$(CFLAGS)' NVRTC_CHECK='$(NVRTC_CHECK)' sh tools/test.sh $(TEST_PROGRAMS)

check:
	@MAKE='$(MAKE)' DEVICE='$(DEVICE)' CC='$(CC)' sh tools/check.sh

# 100 tasks, a fault every second.
soak: $(PRODUCTS)
	@GPULUA_DEVICE='$(DEVICE)' GPULUA_CACHE='$(BUILD)/test-cache' $(INTERPRETER) spec/soak.lua $(SOAK_SECONDS)

# Hostile input for whatever reads some (spec/fuzz).
fuzz:
	@MAKE='$(MAKE)' FUZZ_SECONDS='$(FUZZ_SECONDS)' sh tools/fuzz.sh

lint:
	@CC='$(CC)' CXX='$(CXX)' LUA_CFLAGS='$(LUA_CFLAGS)' CUDA_INCLUDE='$(CUDA_INCLUDE)' sh tools/lint.sh

# Lua's own test suite, in the folder LUA_TESTS.
lua-tests: $(INTERPRETER) $(EXECUTOR)
	@BUILD='$(BUILD)' LUA='$(LUA)' CC='$(CC)' LUA_CFLAGS='$(LUA_CFLAGS)' sh tools/lua-tests.sh '$(LUA_TESTS)'

# What is made of the definition files: the reference, the error codes, what luacheck is to know.
docs:
	@$(LUA) tools/reference.lua

# The manual as pages for browsers, of README.md and docs/: build/site/index.html. Nothing is fetched.
site:
	@$(LUA) tools/site.lua $(BUILD)/site $(VERSION)

bench: $(PRODUCTS) $(BENCH_PROGRAMS)
	@BUILD='$(BUILD)' DEVICE='$(DEVICE)' CC='$(CC)' sh bench/run.sh

# What luarocks builds and installs; the folders are its own. It copies what links point to, so the module is one file:
# Lua finds gpulua.core and the others in gpulua.so, too. It installs with other settings than it builds with, so that
# depends on nothing: all would be compiled a second time.
rock: $(MODULE) $(EXECUTOR) $(INTERPRETER)

install-rock:
	install -d '$(ROCK_BINDIR)' '$(ROCK_LIBDIR)/gpulua'
	install -m 755 $(INTERPRETER) '$(ROCK_BINDIR)/gpulua'
	install -m 755 $(MODULE) '$(ROCK_LIBDIR)/gpulua.so'
	install -m 755 $(EXECUTOR) '$(ROCK_LIBDIR)/gpulua/gpulua-exec'

# The manual page and what shells complete, made of what the interpreter says of its options.

$(BUILD)/shell/help: $(INTERPRETER)
	@mkdir -p $(@D)
	$(quiet)$(INTERPRETER) --help > $@

options = $(quiet)$(LUA) tools/options.lua $(1) $(2) < $(BUILD)/shell/help > $@
$(SHELL_FILES): $(BUILD)/shell/help tools/options.lua
$(BUILD)/shell/gpulua.1: tools/gpulua.1.in
	$(call options,manual,$<)
$(BUILD)/shell/gpulua.%: tools/shell/gpulua.%
	$(call options,$*,$<)

MANUAL := share/man/man1/gpulua.1
BASH_COMPLETION := share/bash-completion/completions/gpulua
ZSH_COMPLETION := share/zsh/site-functions/_gpulua
FISH_COMPLETION := share/fish/vendor_completions.d/gpulua.fish
DOCUMENTS := share/doc/gpulua

install-shell: $(SHELL_FILES)
	install -d $(patsubst %,'$(DESTDIR)$(PREFIX)/%', \
		$(dir $(MANUAL) $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION)))
	install -m 644 $(BUILD)/shell/gpulua.1 '$(DESTDIR)$(PREFIX)/$(MANUAL)'
	install -m 644 $(BUILD)/shell/gpulua.bash '$(DESTDIR)$(PREFIX)/$(BASH_COMPLETION)'
	install -m 644 $(BUILD)/shell/gpulua.zsh '$(DESTDIR)$(PREFIX)/$(ZSH_COMPLETION)'
	install -m 644 $(BUILD)/shell/gpulua.fish '$(DESTDIR)$(PREFIX)/$(FISH_COMPLETION)'

uninstall-shell:
	rm -f $(patsubst %,'$(DESTDIR)$(PREFIX)/%',$(MANUAL) $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION))

install: $(PRODUCTS) install-shell
	install -d '$(DESTDIR)$(PREFIX)/bin' '$(DESTDIR)$(PREFIX)/include' '$(DESTDIR)$(PREFIX)/libexec' \
		'$(DESTDIR)$(PREFIX)/lib/pkgconfig' '$(DESTDIR)$(PREFIX)/lib/lua/5.4/gpulua'
	install -m 755 $(INTERPRETER) '$(DESTDIR)$(PREFIX)/bin/gpulua'
	install -m 755 $(EXECUTOR) '$(DESTDIR)$(PREFIX)/libexec/gpulua-exec'
	install -m 644 src/gpulua.h '$(DESTDIR)$(PREFIX)/include/gpulua.h'
	install -m 644 $(ARCHIVE) '$(DESTDIR)$(PREFIX)/lib/libgpulua.a'
	install -m 755 $(SHARED) '$(DESTDIR)$(PREFIX)/lib/libgpulua.so.$(VERSION)'
	ln -sf libgpulua.so.$(VERSION) '$(DESTDIR)$(PREFIX)/lib/libgpulua.so.$(VERSION_MAJOR)'
	ln -sf libgpulua.so.$(VERSION_MAJOR) '$(DESTDIR)$(PREFIX)/lib/libgpulua.so'
	install -m 755 $(MODULE) '$(DESTDIR)$(PREFIX)/lib/lua/5.4/gpulua/core.so'
	ln -sf gpulua/core.so '$(DESTDIR)$(PREFIX)/lib/lua/5.4/gpulua.so'
	install -d '$(DESTDIR)$(PREFIX)/share/gpulua' '$(DESTDIR)$(PREFIX)/$(DOCUMENTS)'
	cp -R types '$(DESTDIR)$(PREFIX)/share/gpulua/'
	cp -R README.md LICENSE docs examples '$(DESTDIR)$(PREFIX)/$(DOCUMENTS)/'
	chmod -R u=rwX,go=rX '$(DESTDIR)$(PREFIX)/share/gpulua' '$(DESTDIR)$(PREFIX)/$(DOCUMENTS)'
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@LUA@|$(LUA_PKG)|' tools/gpulua.pc.in \
		> '$(DESTDIR)$(PREFIX)/lib/pkgconfig/gpulua.pc'
	chmod 644 '$(DESTDIR)$(PREFIX)/lib/pkgconfig/gpulua.pc'
	@$(CACHE_LIBRARIES)

# Programs find a new library in the loader's folders only when its list has been made again.
CACHE_LIBRARIES = [ -n '$(DESTDIR)' ] || [ $$(id -u) -ne 0 ] || ! command -v ldconfig > /dev/null || ldconfig

# Files, and the folder that is gpulua's alone; a folder that others may use stays.
uninstall: uninstall-shell
	rm -f '$(DESTDIR)$(PREFIX)/bin/gpulua' '$(DESTDIR)$(PREFIX)/libexec/gpulua-exec' \
		'$(DESTDIR)$(PREFIX)/include/gpulua.h' '$(DESTDIR)$(PREFIX)/lib/libgpulua.a' \
		'$(DESTDIR)$(PREFIX)/lib/libgpulua.so' '$(DESTDIR)$(PREFIX)/lib/libgpulua.so.$(VERSION_MAJOR)' \
		'$(DESTDIR)$(PREFIX)/lib/libgpulua.so.$(VERSION)' '$(DESTDIR)$(PREFIX)/lib/pkgconfig/gpulua.pc' \
		'$(DESTDIR)$(PREFIX)/lib/lua/5.4/gpulua.so' '$(DESTDIR)$(PREFIX)/lib/lua/5.4/gpulua/core.so'
	rm -rf '$(DESTDIR)$(PREFIX)/share/gpulua' '$(DESTDIR)$(PREFIX)/$(DOCUMENTS)'
	[ ! -d '$(DESTDIR)$(PREFIX)/lib/lua/5.4/gpulua' ] || \
		rmdir --ignore-fail-on-non-empty '$(DESTDIR)$(PREFIX)/lib/lua/5.4/gpulua'

clean:
	rm -rf $(BUILD)

-include $(OBJECTS:.o=.d) $(addsuffix .d,$(TEST_PROGRAMS) $(NVRTC_CHECK) $(BENCH_PROGRAMS))
