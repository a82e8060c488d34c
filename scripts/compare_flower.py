"""Flower's SecAgg+ and secure-fl's `masked`: the same updates, the same machine, one after the other.

Run by scripts/compare_flower in an environment that has Flower and not secure-fl. Flower's own code does all Flower's
work: `SecAggPlusWorkflow` is called as a server calls it, and every message it sends goes to `secaggplus_mod` with the
context of that node. What is ours is the grid between them, which passes messages on inside this process, so that no
network, no Ray and no process start is measured. secure-fl is measured by `secure-fl bench aggregation`, which drives
its two halves in one process in the same way. Seconds are CPU seconds of this process (`time.process_time`, all
threads), counted for each party by itself; of several runs the quickest counts, on both sides.

Choices, and whom each favours ("neither" where it costs nothing):

- Updates: for each node, float32 uniform on [−1, 1] from the same seed on both sides. Neither.
- Flower's clipping range is 1 instead of 8, as it is ours. Everything else about quantisation is Flower's default: 2²²
  steps, modulus 2³². Flower carries every value as int64 whatever the range; secure-fl uses 2¹⁶ steps and packs several
  values into a word of 64 bits. Fewer steps are coarser (max error says how much) and cheaper: favours secure-fl.
- Every node has the weight that Flower calls `max_weight`, its default. Neither.
- Neighbours: everybody (`num_shares` = nodes) unless --shares says otherwise, as in secure-fl. A sparse graph is what
  SecAgg+ adds to SecAgg, and saves Flower masks: without --shares, this favours secure-fl where nodes are many.
- Threshold: as in secure-fl, the least t > (n + 1)/2; with --shares K, the least t > K/2. Neither.
- Not counted for Flower: serialising and parsing messages, storing a node's context between messages, the model on its
  way down (an empty one is sent), the client turning its arrays into a `FitRes`, and averaging in a strategy (it takes
  the parameters as the workflow hands them over). secure-fl's messages are serialised and parsed within what is counted
  and its uploads hashed and read back from a file. Favours Flower.
- Counted for Flower and not for secure-fl: turning the opened sum into floats, one pass over the parameters at the
  server. Favours secure-fl.
- Counted for secure-fl, no counterpart in Flower: checking certificates, signatures, commitments to seeds, agreement on
  who survived. Issuing certificates is not counted. Favours Flower.
- Masks: Flower's come from NumPy's Mersenne Twister with a seed of 32 bits folded from the key, secure-fl's from
  AES-256-CTR under the key itself. They differ in speed as well as in strength; see docs/results/aggregation.md.
- Dropouts answer until they were told who takes part, and then fail instead of uploading. The same on both sides.
- Bytes up: contents of a surviving node's replies in Flower's own serialisation, without a message's metadata; for
  secure-fl, bodies and uploads. Neither counts what a transport adds.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.serde import message_from_proto, message_to_proto, recorddict_to_proto
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.supercore.task_identity import TaskIdentity

CLIP = 1.0
WEIGHT = 1000  # Flower's default of max_weight


@dataclass
class Cost:
    """What one run of Flower took."""

    server: float = 0.0
    nodes: dict[int, float] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return self.server + sum(self.nodes.values())


class Node:
    """One Flower client: its context, its update, and the mod in front of its training."""

    def __init__(self, node_id: int, update: np.ndarray) -> None:
        self.node_id = node_id
        self.training = 0.0
        self._update = update
        self._context = Context(
            run_id=1, node_id=node_id, node_config={}, state=RecordDict(), run_config={}, series_id=0
        )

    def handle(self, message: Message) -> Message:
        return secaggplus_mod(message, self._context, self._train)

    def _train(self, message: Message, _context: Context) -> Message:
        begun = time.process_time()
        trained = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([self._update]), WEIGHT, {})
        reply = Message(compat.fitres_to_recorddict(trained, keep_input=False), reply_to=message)
        self.training += time.process_time() - begun
        return reply


class MemoryGrid:
    """Flower's grid, as far as the workflow uses it: messages go straight to the nodes, in serialised form."""

    def __init__(self, nodes: list[Node], gone: set[int], cost: Cost) -> None:
        self._nodes = {node.node_id: node for node in nodes}
        self._gone = gone
        self._cost = cost
        self.inside = 0.0

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:  # noqa: ARG002
        begun = time.process_time()
        replies = [self._deliver(_copy(message)) for message in messages]
        self.inside += time.process_time() - begun
        return replies

    def _deliver(self, message: Message) -> Message:
        node = self._nodes[message.metadata.dst_node_id]
        stage = message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        if node.node_id in self._gone and stage == Stage.COLLECT_MASKED_VECTORS:
            return Message(Error(code=0, reason="dropped out"), reply_to=message)
        node.training = 0.0
        begun = time.process_time()
        reply = node.handle(message)
        spent = time.process_time() - begun - node.training
        self._cost.nodes[node.node_id] = self._cost.nodes.get(node.node_id, 0.0) + spent
        size = recorddict_to_proto(reply.content).ByteSize()
        self._cost.sent[node.node_id] = self._cost.sent.get(node.node_id, 0) + size
        return _copy(reply)


class Proxy:
    """What the workflow knows of a client."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id


class Clients:
    """What the workflow asks of a client manager."""

    def __init__(self, count: int) -> None:
        self._count = count

    def num_available(self) -> int:
        return self._count


class TakeAsItIs:
    """A strategy that adds nothing to what the workflow does: everybody takes part, and the mean stays as it comes."""

    def __init__(self, node_ids: list[int]) -> None:
        self._node_ids = node_ids

    def configure_fit(self, _round: int, parameters: Parameters, _clients: Clients) -> list[tuple[Proxy, FitIns]]:
        return [(Proxy(node_id), FitIns(parameters, {})) for node_id in self._node_ids]

    def aggregate_fit(self, _round: int, results: list, _failures: list) -> tuple[Parameters, dict]:
        return results[0][1].parameters, {}


def _copy(message: Message) -> Message:
    """The message as the other side of a wire has it."""
    proto = message_to_proto(message)
    return message_from_proto(type(proto).FromString(proto.SerializeToString()))


def run_flower(updates: list[np.ndarray], *, dropouts: int, shares: int, threshold: int) -> tuple[Cost, np.ndarray]:
    """One aggregation with SecAgg+: what it cost, and the mean it opened."""
    cost = Cost()
    node_ids = list(range(1, len(updates) + 1))
    nodes = [Node(node_id, update) for node_id, update in zip(node_ids, updates, strict=True)]
    grid = MemoryGrid(nodes, set(node_ids[:dropouts]), cost)
    state = RecordDict()
    state[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
    state[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(Parameters([], "numpy.ndarray"), keep_input=True)
    context = LegacyContext(
        Context(run_id=1, node_id=0, node_config={}, state=state, run_config={}, series_id=0),
        strategy=TakeAsItIs(node_ids),
        client_manager=Clients(len(node_ids)),
    )
    workflow = SecAggPlusWorkflow(
        num_shares=shares, reconstruction_threshold=threshold, max_weight=float(WEIGHT), clipping_range=CLIP
    )
    begun = time.process_time()
    workflow(grid, context)
    cost.server = time.process_time() - begun - grid.inside
    opened = compat.arrayrecord_to_parameters(context.state.array_records[MAIN_PARAMS_RECORD], keep_input=True)
    arrays = parameters_to_ndarrays(opened)
    if len(arrays) != 1:
        raise SystemExit("Flower opened no sum: too many dropouts for these shares and this threshold")
    return cost, arrays[0]


def measure_flower(*, nodes: int, parameters: int, dropouts: int, shares: int, repeat: int) -> dict[str, float]:
    """Flower's figures, under the names that `secure-fl bench aggregation` uses."""
    threshold = (nodes + 1) // 2 + 1 if shares == nodes else shares // 2 + 1
    rng = np.random.default_rng(0)  # what secure-fl bench aggregation draws
    updates = [rng.uniform(-CLIP, CLIP, parameters).astype(np.float32) for _ in range(nodes)]
    mean = np.mean(updates[dropouts:], axis=0, dtype=np.float64)
    best: Cost | None = None
    for _ in range(repeat):
        cost, opened = run_flower(updates, dropouts=dropouts, shares=shares, threshold=threshold)
        error = float(np.abs(opened - mean).max())
        if best is None or cost.total < best.total:
            best = cost
    up = max(best.sent.values())
    return {
        "seconds_total": best.total,
        "seconds_node_max": max(best.nodes.values()),
        "seconds_coordinator": best.server,
        "bytes_up_per_node": up,
        "bytes_per_parameter": up / parameters,
        "max_error": error,
        "num_shares": shares,
        "threshold": threshold,
    }


def measure_masked(executable: str, *, nodes: int, parameters: int, dropouts: int, repeat: int) -> dict[str, float]:
    """secure-fl's figures, from its own command."""
    options = {"--nodes": nodes, "--parameters": parameters, "--dropouts": dropouts, "--repeat": repeat}
    command = [executable, "bench", "aggregation", "--protections", "masked", "--json"]
    for name, value in options.items():
        command += [name, str(value)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(done.stdout)["protections"]["masked"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/compare_flower", description="Flower's SecAgg+ and `masked`.")
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--dropouts", type=int, default=0, help="nodes that fail instead of uploading")
    parser.add_argument("--shares", type=int, help="Flower's num_shares: a node and its neighbours (default: all)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each; the quickest counts")
    parser.add_argument("--secure-fl", required=True, help=argparse.SUPPRESS)
    given = parser.parse_args()
    shares = given.shares or given.nodes
    if shares < 3 or given.nodes < shares or not 0 <= given.dropouts < given.nodes or given.repeat < 1:
        parser.error("3 ≤ shares ≤ nodes, 0 ≤ dropouts < nodes, repeat ≥ 1")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # a message names its sender

    size = {"nodes": given.nodes, "parameters": given.parameters, "dropouts": given.dropouts, "repeat": given.repeat}
    flower = measure_flower(**size, shares=shares)
    masked = measure_masked(given.secure_fl, **size)
    print(f"{given.nodes} nodes × {given.parameters:,} parameters, {given.dropouts} dropouts, best of {given.repeat}")
    print(
        f"flwr {version('flwr')}, NumPy {np.__version__}, Python {platform.python_version()}; "
        f"num_shares {flower['num_shares']}, threshold {flower['threshold']}"
    )
    print(f"{'':16}{'all s':>9}{'node s':>9}{'hub s':>9}{'bytes up':>13}{'B/par':>8}{'max error':>11}")
    for name, of in (("Flower SecAgg+", flower), ("masked", masked)):
        print(
            f"{name:16}{of['seconds_total']:9.3f}{of['seconds_node_max']:9.3f}{of['seconds_coordinator']:9.3f}"
            f"{of['bytes_up_per_node']:13,}{of['bytes_per_parameter']:8.2f}{of['max_error']:11.1e}"
        )
    ratios = [flower[key] / masked[key] for key in ("seconds_total", "seconds_node_max", "seconds_coordinator")]
    print(f"{'Flower / masked':16}" + "".join(f"{ratio:8.2f}×" for ratio in ratios), end="")
    print(f"{flower['bytes_up_per_node'] / masked['bytes_up_per_node']:12.2f}×")


if __name__ == "__main__":
    main()
