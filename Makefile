# SPDX-License-Identifier: Apache-2.0
# Short names for things done by hand; building and testing is ./run and ./test.
.PHONY: check-packages clang deb docs format fuzz help lint results sdist style wheel
sources = $(shell find include src cli python tests bench examples -name '*.h' -o -name '*.cpp')
fuzzers = $(filter-out target replay,$(basename $(notdir $(wildcard tests/fuzz/*.cpp))))
TIME = 60

help:
	@echo 'make bench-NAME  build and run one benchmark:' $(sort $(basename $(notdir $(wildcard bench/*.cpp bench/*.py))))
	@echo 'make fuzz        look for inputs that break a reader, TIME=60 seconds each:' $(fuzzers)
	@echo 'make wheel       wheels for the Pythons that are found here, in build/packages: pip installs them without a compiler'
	@echo 'make sdist       the sources as pip takes them, in build/packages'
	@echo 'make deb         Debian packages in build/packages: libejk, libejk-dev, ejk'
	@echo 'make check-packages  install and use what is in build/packages where there is no compiler'
	@echo 'make results     measure the claims of speed, or those of NAMES=, and write docs/results.md (on a quiet machine)'
	@echo 'make docs        the site of docs/, in build/docs/html; a warning is an error'
	@echo 'make format      clang-format all sources in place'
	@echo 'make style       check the style, as ./test does: clang-format, ruff, mypy, shellcheck'
	@echo 'make lint        clang-tidy on src/, cli/ and python/, or with BASE=main on what differs from main'
	@echo 'make clang       build with clang++ and run the fast tests'

# A benchmark is bench/NAME.py, with the Python package or programs bench/NAME_*.cpp, or bench/NAME.cpp.
# ARGS goes to either: make bench-winner ARGS=--quick.
bench-%:
	@. cmake/setup.sh && set_up && \
	if [ -f bench/$*.py ]; then \
	  for program in $(basename $(notdir $(wildcard bench/$*_*.cpp))); do build release bench_$$program; done && \
	  if grep -qE "^ *(import|from) ejk[ .]" bench/$*.py; then install_python; fi && \
	  .venv/bin/python bench/$*.py $(ARGS); \
	elif [ -f bench/$*.cpp ]; then \
	  build release bench_$* && build/release/bench/$* $(ARGS); \
	else \
	  fail "no bench/$*.cpp and no bench/$*.py"; \
	fi

# Takes what build/results has of the last day, so that it can be interrupted: docs/site/results.py.
results:
	@. cmake/setup.sh && set_up && .venv/bin/python docs/site/results.py $(NAMES)

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

# The manual page of the tool is in it if the tool was built, by whichever preset.
docs:
	@. cmake/setup.sh && need doxygen doxygen && make_docs_venv && \
	stage "making the site" && logged docs .venv-docs/bin/sphinx-build -q -E -W --keep-going -d build/docs/doctrees docs build/docs/html && \
	stage "made build/docs/html/index.html"

wheel:
	@. cmake/setup.sh && set_up && build_wheels build/packages && ls -sh build/packages/*.whl

sdist:
	@. cmake/setup.sh && make_venv && mkdir -p build/packages && rm -f build/packages/*.tar.gz && \
	logged sdist .venv/bin/python -c 'from scikit_build_core.build import build_sdist; build_sdist("build/packages")' && \
	ls -sh build/packages/*.tar.gz

deb:
	@. cmake/setup.sh && install_packages && build_debs release build/packages && ls -sh build/packages/*.deb

# Of what the three above made; ./test packages does the same with a library that is compiled faster.
check-packages:
	.venv/bin/python -m pytest -q tests/packages

format:
	.venv/bin/clang-format -i $(sources)

style:
	@.venv/bin/clang-format --dry-run -Werror $(sources)
	@.venv/bin/ruff check --quiet python bench tests examples docs tools
	@.venv/bin/mypy --no-error-summary
	@.venv/bin/shellcheck run test .ci/run tools/release cmake/setup.sh tests/under_load.sh examples/fleet/tune.sbatch

# A change to one header costs a minute, one to src/base/format.h a quarter of an hour, everything an hour on two cores.
lint:
	@. cmake/setup.sh && set_up && need clang-tidy clang-tidy && need clang++ clang && build lint ejk_kernel_headers && \
	stage "clang-tidy on $(if $(BASE),what differs from $(BASE),everything)" && .venv/bin/python tools/lint.py $(BASE)

clang:
	@command -v clang++ >/dev/null || { echo 'make clang needs clang++; on Debian: apt-get install clang' >&2; exit 1; }
	@. cmake/setup.sh && install_packages && build clang fast_tests
	ctest --preset clang -L fast
