# SPDX-License-Identifier: Apache-2.0
# Short names for things done by hand; building and testing is ./run and ./test.
.PHONY: help format lint
sources = $(shell git ls-files '*.h' '*.cpp')

help:
	@echo 'make bench-NAME  build and run one benchmark:' $(sort $(basename $(notdir $(wildcard bench/*.cpp bench/*.py))))
	@echo 'make format      clang-format all sources in place'
	@echo 'make lint        clang-tidy on src/ (needs a configured dev preset)'

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

format:
	clang-format -i $(sources)

lint:
	cmake --preset dev >/dev/null
	clang-tidy -p build/dev --quiet $(filter src/%.cpp,$(sources))
