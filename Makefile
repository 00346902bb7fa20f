# SPDX-License-Identifier: Apache-2.0
# Short names for things done by hand; building and testing is ./run and ./test.
.PHONY: clang help format fuzz lint style
sources = $(shell find include src cli python tests bench examples -name '*.h' -o -name '*.cpp')
fuzzers = $(filter-out target replay,$(basename $(notdir $(wildcard tests/fuzz/*.cpp))))
TIME = 60

help:
	@echo 'make bench-NAME  build and run one benchmark:' $(sort $(basename $(notdir $(wildcard bench/*.cpp bench/*.py))))
	@echo 'make fuzz        look for inputs that break a reader, TIME=60 seconds each:' $(fuzzers)
	@echo 'make format      clang-format all sources in place'
	@echo 'make style       check the style, as ./test does: clang-format, ruff, mypy, shellcheck'
	@echo 'make lint        clang-tidy on src/, or with BASE=main on what differs there from main'
	@echo 'make clang       build with clang++ and run the fast tests'

# A benchmark is bench/NAME.py, which may use programs of the release preset, or bench/NAME.cpp.
# ARGS goes to either: make bench-winner ARGS=--quick.
bench-%:
	@. cmake/setup.sh && set_up && \
	if [ -f bench/$*.py ]; then \
	  if [ -f bench/$*_ours.cpp ]; then build release bench_$*_ours; else install_python; fi && \
	  .venv/bin/python bench/$*.py $(ARGS); \
	elif [ -f bench/$*.cpp ]; then \
	  build release bench_$* && build/release/bench/$* $(ARGS); \
	else \
	  fail "no bench/$*.cpp and no bench/$*.py"; \
	fi

# Begins with what is kept in tests/fuzz/corpus, which the tests replay; what it learns goes to build/fuzz.
fuzz:
	@. cmake/setup.sh && mkdir -p build/fuzz/found && \
	echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' | \
	  clang++ -x c++ -fsanitize=fuzzer,address -o build/fuzz/probe - 2>/dev/null || \
	  fail 'fuzzing needs clang with libFuzzer; on Debian: apt-get install clang libclang-rt-14-dev'; \
	build fuzz && \
	for name in $(fuzzers); do \
	  stage "fuzzing $$name for $(TIME) s" && mkdir -p build/fuzz/corpus/$$name && \
	  logged fuzz_$$name build/fuzz/tests/fuzz/$$name -max_total_time=$(TIME) -max_len=8192 -timeout=20 \
	    -artifact_prefix=build/fuzz/found/$$name- build/fuzz/corpus/$$name tests/fuzz/corpus/$$name; \
	done && echo 'nothing was found'

format:
	.venv/bin/clang-format -i $(sources)

style:
	@.venv/bin/clang-format --dry-run -Werror $(sources)
	@.venv/bin/ruff check --quiet python bench tests examples
	@.venv/bin/mypy --no-error-summary
	@.venv/bin/shellcheck run test .ci/run cmake/setup.sh tests/under_load.sh

lint_all = $(filter src/%.cpp,$(sources))
lint_changed = $(filter $(lint_all),$(shell git diff --name-only $(BASE)...))
lint:
	@command -v clang-tidy >/dev/null || { echo 'make lint needs clang-tidy; on Debian: apt-get install clang-tidy' >&2; exit 1; }
	@. cmake/setup.sh && build dev ejk  # for the headers made of kernels
	printf '%s\n' $(if $(BASE),$(lint_changed),$(lint_all)) | xargs -r -n 1 -P $$(nproc) clang-tidy -p build/dev --quiet

clang:
	@command -v clang++ >/dev/null || { echo 'make clang needs clang++; on Debian: apt-get install clang' >&2; exit 1; }
	@. cmake/setup.sh && install_packages && build clang fast_tests
	ctest --preset clang -L fast
