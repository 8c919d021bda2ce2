# Everything lives in the checkout: the virtual environment in .venv, the demo in demo/, runs in runs/, the benchmark corpus in bench/corpus,
# the engines of the cluster tests in .engines.
PYTHON ?= python3
BIN := .venv/bin
export MPLCONFIGDIR := $(CURDIR)/.venv/matplotlib

.PHONY: install demo train eval test test-cluster lint bench clean

install: .venv/core

.venv/core: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/test: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

.venv/cluster: .venv/test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,dask]'
	touch $@

.venv/bench: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	touch $@

# This Python's standard library without what is installed into it, so that the demo is the same everywhere and twice.
demo/corpus: .venv/core
	$(BIN)/python -c "import shutil, sysconfig; shutil.copytree(sysconfig.get_path('stdlib'), '$@', symlinks=True, \
	ignore=shutil.ignore_patterns('site-packages', 'dist-packages', '__pycache__', 'lib-dynload', 'config-*'))"

demo: .venv/core demo/corpus  ## pack this Python's own standard library with BM25
	$(BIN)/splice build demo/corpus --glob '*.py' --min-chars 200 --output demo/stdlib
	$(BIN)/splice validate demo/stdlib
	$(BIN)/splice inspect demo/stdlib --example 0

.venv/train: .venv/core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[train]'
	touch $@

train: .venv/train  ## a small model on the demo's dataset, exported and drawn: two minutes of a CPU
	test -f demo/stdlib/manifest.json || $(MAKE) --no-print-directory demo
	$(BIN)/splice train --config configs/train/tiny_yarn.yaml --resume
	rm -rf runs/tiny_yarn/hf && $(BIN)/splice export runs/tiny_yarn/step-000040 --output runs/tiny_yarn/hf
	$(BIN)/splice plot runs/tiny_yarn --output runs/tiny_yarn/figures

.venv/eval: .venv/core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[eval]'
	touch $@

eval: .venv/eval  ## two checkpoints of that model evaluated, compared and drawn: a minute
	test -d runs/tiny_yarn/step-000040 || $(MAKE) --no-print-directory train
	$(BIN)/splice eval run configs/eval/tiny.yaml --model runs/tiny_yarn/step-000020 --model runs/tiny_yarn/step-000040 --output runs/eval
	$(BIN)/splice eval compare runs/eval/step-000040 runs/eval/step-000020
	$(BIN)/splice eval plot runs/eval/step-000040 runs/eval/step-000020 --output runs/eval/figures

test: .venv/test  ## all tests, then the linter
	$(BIN)/python -m pytest -n auto
	$(MAKE) --no-print-directory lint

test-cluster: .venv/cluster  ## builds on Flink, Spark, Prism and Dask, and in S3, GCS and HDFS, all fetched into .engines
	$(BIN)/python tests/cluster/install.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/cluster -rs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto tests/faults/test_store.py tests/faults/test_other_stores.py -rs

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: .venv/bench  ## the Linux corpus: fetched with apt into bench/corpus, tables to the terminal, JSON into bench/results, the figure into docs
	$(BIN)/python bench/corpus.py
	$(BIN)/python bench/knn.py --corpus bench/corpus/linux --json bench/results/knn.json
	$(BIN)/python bench/build.py --corpus bench/corpus/linux --json bench/results/build.json
	$(BIN)/python bench/dedup.py --corpus bench/corpus/linux --json bench/results/dedup.json
	$(BIN)/python bench/dense.py --corpus bench/corpus/linux --json bench/results/dense.json
	$(BIN)/python bench/packs.py --code bench/corpus/linux --text bench/corpus/linux-text/Documentation --json bench/results/packs.json --figure docs/packs.png
	$(BIN)/python bench/report.py --gigabyte --json bench/results/report.json
	$(BIN)/python bench/train.py --json bench/results/train.json
	$(BIN)/python bench/eval.py --json bench/results/eval.json
	$(BIN)/python bench/experts.py --whole --kernels --json bench/results/experts.json --figure docs/experts.png
	test -f demo/stdlib/manifest.json || $(MAKE) --no-print-directory demo
	$(BIN)/python bench/moe_quality.py --json bench/results/moe_quality.json
	$(BIN)/python bench/growth.py --corpus bench/corpus/linux --json bench/results/growth.json --figure docs/growth.png

clean:
	rm -rf .venv .engines demo runs build *.egg-info
