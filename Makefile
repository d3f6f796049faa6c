# make train, make test, make bench: each sets itself up on a fresh machine.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: train test lint bench bench-models torture clean

train: $(VENV)/.train
	@out=runs/quick-$$(date +%Y%m%d-%H%M%S) && \
	$(RUN) train.py --preset quick --out $$out && \
	$(RUN) -m eval report $$out --json $$out/report.json --html $$out/report.html && \
	echo && echo "run folder:  $$out" && \
	echo "report:      $$out/report.html" && \
	echo "TensorBoard: $(VENV)/bin/tensorboard --logdir $$out"

test: $(VENV)/.dev
	$(RUN) -m pytest -q -n auto --dist loadfile -m "not slow"

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: $(VENV)/.dev
	$(RUN) benchmarks/training_step.py
	$(RUN) benchmarks/codebooks.py

$(VENV)/.train: pyproject.toml
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -e ".[train]"
	touch $@

$(VENV)/.dev: pyproject.toml
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@ $(VENV)/.train

torture: $(VENV)/.dev
	PYTHONPATH=tests:. $(RUN) -m torture

bench-models: $(VENV)/.dev
	$(RUN) benchmarks/plain_models.py

clean:
	rm -rf $(VENV) dist
