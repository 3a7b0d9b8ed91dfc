# One place for every chore. `make help` lists the targets; the two that a newcomer needs are `make demo` and `make test`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_SECONDS ?= 30
SEEDS ?= 2000
# Of `make soak`: where chance begins, how many times a broker is killed, how many faults a ring of five has.
SEED ?= 1
KILLS ?= 200
FAULTS ?= 50
ROUNDS ?= 10
# How many times a broker is killed at each kind of acknowledgement, for each store; how many bits are flipped in each store.
ACK_KILLS ?= 100
FLIPS ?= 500
# How many times each broker with a queue is killed, and each home of a queue with several ones harmed.
QUEUE_KILLS ?= 20
# How many times the home of exchanges, an interchange on their way, and the directory of their services are killed.
INTERCHANGE_KILLS ?= 100
# Seconds for each part of `make fuzz`.
FOR ?= 600
# `make demo SPARK=0` leaves out the last act, and does not install what it needs.
SPARK ?= 1
# Arguments for pytest, for example: make test ARGS="tests/mqtt -k codec"
ARGS ?=
# Processes of `make test`. Most tests wait for brokers, so five of them share two processors well; 0 runs all in one.
WORKERS ?= 5
# Processes of `make quick`. Each reads all of its tests first.
QUICK_WORKERS ?= 3

.PHONY: help plan venv services quick test check lint format site demo bench soak fuzz nightly lock clean

help: ## show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  A fresh machine needs Python 3.11 or newer, make and git; every target sets up what it needs."

# Done again only when the interpreter, the pinned versions or the project's own metadata change.
venv: .typing/mqmesh ## the virtual environment in .venv with everything, from requirements*.lock; of another interpreter by PYTHON=python3.13
	@.ci/venv "$(PYTHON)" "$(VENV)" test

# mypy takes the repository's root for the package `mqmesh` through this link.
.typing/mqmesh:
	@mkdir -p .typing && ln -sfn .. $@

services: ## the real brokers and clients that some tests talk to (mosquitto, nats-server, chromium, postgresql, rabbitmq, redis, php, java's jax-ws), from Debian's packages
	@.ci/services

quick: venv ## units, and a sample of the simulation, in QUICK_WORKERS (3) processes: under two minutes on two free cores; ARGS=tests/mqtt for a folder
	MQMESH_QUICK=1 $(BIN)/pytest -n $(QUICK_WORKERS) --dist worksteal $(ARGS)

plan: ## what `make test` is about to install, and how long it takes
	@echo "make test installs what is missing, then runs every test: 14 to 22 minutes on two free cores once all is there, longer where others use them."
	@.ci/venv "$(PYTHON)" "$(VENV)" test plan | sed 's/^/  /'
	@.ci/services plan | sed 's/^/  /'

test: plan venv services ## every test, with real third-party clients and brokers
	@.ci/tests "$(BIN)" "$(WORKERS)" $(ARGS)

check: lint ## lint, formatting, strict types, import layers
	$(BIN)/pytest tests/packaging/test_layers.py

lint: venv ## `make check` without the import layers, which `make test` looks at too
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=.typing $(BIN)/mypy -p mqmesh

format: venv ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

site: ## the documents as a site with search in out/site, to be opened from the disk
	@.ci/site "$(PYTHON)" out/site-environment

demo: .typing/mqmesh ## the main job: a ring of five brokers, real readings, a cut link, a killed broker, a foreign broker, an application that hangs, services that ask each other; then Spark (SPARK=0: without)
	@.ci/venv "$(PYTHON)" "$(VENV)" $(if $(filter 0,$(SPARK)),demo,spark)
	$(BIN)/mqmesh demo --for $(DEMO_SECONDS) $(if $(filter 0,$(SPARK)),--no-spark)

bench: venv services ## throughput and latency beside Mosquitto, amqtt and NATS; many clients and subscriptions
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.scale

soak: venv ## long: 200 x kill -9, 50 random faults, 10 timed ones, 10 of a metabroker, 2000 simulated meshes and 2000 with copied data folders; SEED=1 KILLS=200 FAULTS=50 ROUNDS=10 SEEDS=2000 QUEUE_KILLS=20
	$(BIN)/python -m benchmarks.trials.kill --rounds $(KILLS) --seed $(SEED)
	$(BIN)/python -m benchmarks.trials.random_faults --journal --faults $(FAULTS) --seed $(SEED)
	$(BIN)/python -m benchmarks.trials.traces --messages 1000 --seed $(SEED)
	$(BIN)/python -m benchmarks.trials.spark_kill --kills 10 --seed $(SEED)
	$(BIN)/python -m benchmarks.trials.streaming_kill --kills 20 --events 40000 --seed $(SEED)
	$(BIN)/python -m benchmarks.trials.faults --rounds $(ROUNDS) --seed $(SEED)
	$(BIN)/python -m benchmarks.trials.blackhole --rounds $$((2 * $(ROUNDS))) --seed $(SEED)
	$(BIN)/python -m benchmarks.trials.metabroker_kill --rounds $(ROUNDS) --seed $(SEED)
	$(BIN)/python -m benchmarks.trials.metabroker_kill --inside --rounds $(ROUNDS) --seed $(SEED)
	$(BIN)/python -m benchmarks.trials.worst_address
	$(BIN)/python -m benchmarks.trials.away --messages 10000000
	$(BIN)/python -m benchmarks.trials.recipients
	$(BIN)/python -m benchmarks.trials.recipients --kill --rounds $(KILLS) --seed $(SEED) --rate 300
	$(BIN)/python -m benchmarks.trials.hijack --seed $(SEED)
	$(BIN)/python -m benchmarks.trials.clones --seed $(SEED)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --start $(SEED)
	$(BIN)/python -m tests.simulation --mode recipients --seeds $(SEEDS) --start $(SEED)
	$(BIN)/python -m tests.simulation --mode recipients --turns --seeds $$(($(SEEDS) / 10)) --start $(SEED)
	$(BIN)/python -m tests.simulation --mode queues --seeds $(SEEDS) --start $(SEED)
	$(BIN)/python -m tests.simulation --mode clones --seeds $(SEEDS) --start $(SEED)
	MQMESH_INTERCHANGE_KILLS=$(INTERCHANGE_KILLS) MQMESH_INTERCHANGE_SEEDS=10000 $(BIN)/pytest --timeout=7200 tests/faults/kills/test_kill_interchange.py tests/interchange/test_simulation.py
	MQMESH_ACK_KILLS=$(ACK_KILLS) MQMESH_FLIPS=$(FLIPS) $(BIN)/pytest --timeout=14400 tests/faults/kills/test_kill_at_acknowledgement.py tests/contract/test_store_flips.py
	MQMESH_RULES=1000000 MQMESH_REGISTRIES=10000 $(BIN)/pytest --timeout=14400 tests/interchange/rules tests/interchange/test_route_against_reference.py
	MQMESH_METABROKER_KILLS=30 $(BIN)/pytest --timeout=7200 tests/faults/kills/test_kill_metabrokers.py
	MQMESH_WORKER_KILLS=100 MQMESH_SEED=$(SEED) $(BIN)/pytest tests/faults/test_workers.py
	MQMESH_ATTACH_FAULTS=$(FAULTS) $(BIN)/pytest --timeout=7200 tests/faults/test_attach.py
	MQMESH_EXAMPLES=2 $(BIN)/pytest --timeout=14400 tests/faults/kills/test_kill_custody.py tests/faults/test_roaming.py tests/contract/test_store_kill.py tests/interop/test_roaming.py tests/client/test_connection_breaks.py
	MQMESH_QUEUE_KILLS=$(QUEUE_KILLS) MQMESH_QUEUE_STORES=log,sqlite,lmdb,postgres,redis,nats,rabbitmq $(BIN)/pytest --timeout=14400 tests/faults/test_kill_queues.py tests/faults/test_kill_queues_across_sites.py tests/faults/test_two_homes.py

fuzz: venv ## damaged input for FOR (600) seconds each: packets, CONNECT, WebSocket, links, configuration, commands, files to migrate, and the worst that clients do to the loop and to memory; SEED=1
	for part in codec broker websocket link config commands migrate slices memory; do $(BIN)/python -m tests.fuzz.fuzz_$$part --for $(FOR) --seed $(SEED); done

nightly: venv services ## every test with ten times the examples, and the simulation with SEEDS (2000) seeds
	MQMESH_SEEDS=$(SEEDS) MQMESH_RETAINED_SEEDS=$(SEEDS) $(BIN)/pytest --timeout=7200 tests/simulation tests/mesh/retained/test_sync.py
	MQMESH_EXAMPLES=10 $(BIN)/pytest

lock: ## resolve pyproject.toml anew and write requirements*.lock
	@.ci/lock "$(PYTHON)"

clean: ## remove everything that can be made again, the virtual environment too
	rm -rf $(VENV) .typing build dist out tests/browser/node_modules tests/directory/uddi/clients/node_modules tests/interchange/gateway/clients/node_modules *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
