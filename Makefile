# SPDX-License-Identifier: Apache-2.0
#
# Front doors. CMake does the work: see CMakePresets.json for the presets these call.

PRESET ?= dev
# The long tests want optimised code, unless a preset is asked for.
LONG_PRESET := $(if $(filter command line environment,$(origin PRESET)),$(PRESET),release)
CMAKE ?= cmake
CTEST ?= ctest
CPACK ?= cpack
# More for the first configuring of a build folder, such as -DDT_WERROR=ON.
CMAKE_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo serve-demo train test test-long build bench asan tsan format lint tidy pages install deb clean setup

help:
	@echo "make demo       build, then let the small Llama in examples/checkpoint write on two ranks"
	@echo "make serve-demo build, then serve that Llama; prints a line of curl that asks it"
	@echo "make train      build, then train that Llama anew for a minute, on two ranks"
	@echo "make test       build and run the tests (PRESET=dev, release, asan or tsan)"
	@echo "make test-long  all tests, the long ones too, on the release build (or PRESET=asan)"
	@echo "make build      the release build: build/release/bin/dtensor"
	@echo "make bench      run the benches; each prints the limit of this machine beside its figure"
	@echo "make asan tsan  the tests under sanitizers"
	@echo "make format     clang-format 14, in place"
	@echo "make lint       the rules a script can check; make tidy: clang-tidy"
	@echo "make pages      write the code that pages quote anew (tools/pages.sh)"
	@echo "make install    the release build, to PREFIX (default /usr/local)"
	@echo "make deb        Debian packages, in build/deb/packages"
	@echo "make clean      remove build/"

setup:
	@tools/setup.sh $(filter deb,$(MAKECMDGOALS))

# A build folder configures itself again when a file comes or goes; this is the first time.
configure-%: setup
	@test -f build/$*/build.ninja || $(CMAKE) --preset $* $(CMAKE_ARGS)

build-%: configure-%
	@$(CMAKE) --build --preset $*

test-in-%: build-%
	@$(CTEST) --preset $* -LE long

build: build-release

demo: configure-release
	@$(CMAKE) --build --preset release --target dtensor_cli
	build/release/bin/dtensor generate --model examples/checkpoint --prompt "ROMEO:" --mesh tp=2 --max-new-tokens 200

serve-demo: configure-release
	@$(CMAKE) --build --preset release --target dtensor_cli
	build/release/bin/dtensor serve --model examples/checkpoint --demo

train: configure-release
	@$(CMAKE) --build --preset release --target example_21_train_text
	build/release/examples/21_train_text examples/checkpoint examples/data/tinyshakespeare.txt 150

test: test-in-$(PRESET)

test-long: build-$(LONG_PRESET)
	@$(CTEST) --preset $(LONG_PRESET)

asan tsan: %: test-in-%

bench: build-release
	@for b in bench/bench_*.c; do b=build/release/bench/$$(basename $$b .c); echo "== $$b"; $$b || exit 1; done

format:
	@tools/lint.sh --files | xargs -P 2 -n 16 clang-format -i

lint: build-$(PRESET)
	@tools/lint.sh build/$(PRESET)/lib/libdtensor.a

tidy: configure-dev
	@tools/lint.sh --tidy build/dev

pages:
	@tools/pages.sh --update

# The static library knows where its modules are installed.
install: configure-release
	@$(CMAKE) build/release $(if $(PREFIX),-DCMAKE_INSTALL_PREFIX=$(abspath $(PREFIX))) >/dev/null
	@$(CMAKE) --build build/release
	@$(CMAKE) --install build/release

deb: build-deb
	@cd build/deb && $(CPACK) -G DEB -B packages
	@rm -rf build/deb/packages/_CPack_Packages
	@ls build/deb/packages/*.deb

clean:
	rm -rf build
