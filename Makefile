# Every target sets up what it needs in .venv first: only make and Python have to be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRA := dev
# A process that ends in a test is replaced once, and not for ever: its successor runs that test anew.
# More processes than two cores: tests wait more than they compute, ten seconds for each allocation that
# TensorFlow refuses.
SPREAD := --numprocesses 4 --dist loadfile --max-worker-restart 1

.PHONY: demo quick test check browser fuzz chaos bench likeness doctor-score compat docs clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m demo.install --constraint constraints.txt --editable '.[$(EXTRA)]'
	touch $@

# `make demo DEVICE=standin`: the same on a GPU that is not there, with TensorFlow's own GPU code.
DEVICE ?= cpu
demo: $(STAMP)
	$(BIN)/python -m demo --device $(DEVICE)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What can be known in a minute: no test that starts TensorFlow or other processes that take a while.
quick: check
	$(BIN)/python -m pytest $(SPREAD) -q -m 'not slow' --durations 5 --durations-min 2

# All tests on this Python; on the others that are on the PATH, those that depend on it.
test: check
	PYTHONPATH=tests $(BIN)/python -m support.pythons $(SPREAD) --rerun-failed --durations 20

# For the test of the page in a browser, which is skipped without one.
browser:
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && timeout 120 apt-get update -qq \
		&& DEBIAN_FRONTEND=noninteractive timeout 600 \
			apt-get install -qq -y --no-install-recommends chromium > /dev/null; } \
		|| echo 'No Chromium: it takes root, apt-get and a network to install it.'

# `make fuzz SECONDS=600 TARGET=hpack`: inputs that find a fault are kept in tests/fuzz/corpus.
SECONDS ?= 60
TARGET ?= all
fuzz: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m fuzz $(TARGET) $(SECONDS)

# `make chaos MINUTES=30 SEED=7`: a mixed load, a fault each second, and what broke a promise.
MINUTES ?= 5
SEED ?=
chaos: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m chaos $(MINUTES) $(SEED)

bench: $(STAMP)
	$(BIN)/python -m demo.install --constraint constraints.txt --editable '.[dev,bench]'
	$(BIN)/python -m bench

# `make likeness ONLY=keras-io CORPUS=~/checkouts LANES=2`: public programs beside plain Python, in an
# environment of their own. CORPUS has git directories named owner+name; what it lacks is fetched.
LIKENESS := $(VENV)-likeness
CORPUS ?= $(LIKENESS)/corpus
ONLY ?=
LANES ?= 1
likeness:
	test -x $(LIKENESS)/bin/python || $(PYTHON) -m venv $(LIKENESS)
	$(LIKENESS)/bin/python -m demo.install --constraint constraints.txt \
		--editable '.[tensorflow,corpus]'
	mkdir -p $(CORPUS)
	$(LIKENESS)/bin/python -m bench.likeness --corpus '$(CORPUS)' --only '$(ONLY)' --lanes $(LANES)

# `make doctor-score CORPUS=~/checkouts`: precision and recall of `sublet doctor`; with a corpus over
# public programs, too. REPRODUCE=1 runs the sick programs with TensorFlow, and takes half an hour.
REPRODUCE ?=
doctor-score: $(STAMP)
	$(BIN)/python -m bench.doctor $(if $(REPRODUCE),--reproduce,) \
		$(if $(filter-out file,$(origin CORPUS)),--corpus '$(CORPUS)')

# `make compat TENSORFLOW=2.18 PYTHON=python3.12`: what touches TensorFlow, with another one.
COMPAT := $(VENV)-$(TENSORFLOW)
compat:
	test -n '$(TENSORFLOW)' || { echo 'Say which: make compat TENSORFLOW=2.18'; exit 2; }
	test -x $(COMPAT)/bin/python || $(PYTHON) -m venv $(COMPAT)
	$(COMPAT)/bin/python -m demo.install --editable '.[dev]' \
		'tensorflow==$(TENSORFLOW).*' 'tf_keras==$(TENSORFLOW).*' 'tensorflow-serving-api==$(TENSORFLOW).*'
	$(COMPAT)/bin/python -m pytest $(SPREAD) \
		tests/inside tests/journeys tests/process tests/pool tests/serving

# The documentation as a site, in build/site.
docs: $(STAMP)
	$(BIN)/python -m handbook build/site

clean:
	rm -rf $(VENV) $(VENV)-* build/standin build/site
