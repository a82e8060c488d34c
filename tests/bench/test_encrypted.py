"""What `encrypted` may cost: bytes, a node's seconds beside those of TenSEAL's usual setting, everybody's memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from secure_fl.bench import baseline
from secure_fl.cli import app
from secure_fl.errors import UnknownNameError

GIB = 1 << 30


def invoke(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["bench", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def aggregation(*arguments: str) -> dict[str, Any]:
    return dict(json.loads(invoke("aggregation", "--protections", "encrypted", *arguments, "--json")))


# --- the baseline -----------------------------------------------------------------------------------------------


def test_the_baseline_is_the_usual_setting_and_says_how_much_of_it_was_measured() -> None:
    told = aggregation("--nodes", "4", "--parameters", "600000", "--repeat", "1", "--baseline", "tenseal, flare")
    figures = told["baselines"]["tenseal"]
    assert figures["measured_parameters"] == baseline.MOST_PARAMETERS < 600_000
    # Two polynomials of 8192 coefficients modulo three primes of 8 bytes, for 4096 values: 96 bytes before compression.
    assert 60 < figures["bytes_per_parameter"] < 96
    assert 40 < told["baselines"]["flare"]["bytes_per_parameter"] < 64  # modulo two
    for measured in told["baselines"].values():
        assert measured["max_error"] < 1e-6  # it decrypts to the sum
        assert min(measured[f"seconds_{part}"] for part in ("encrypt", "add", "decrypt")) > 0


def test_an_unknown_baseline_is_said_before_anything_is_measured() -> None:
    with pytest.raises(UnknownNameError, match="tensel"):
        aggregation("--baseline", "tensel")


# --- the figures ------------------------------------------------------------------------------------------------


def test_an_upload_takes_three_bytes_a_parameter_and_an_openers_part_is_told_apart() -> None:
    parameters = 200_000
    (figures,) = aggregation("--nodes", "5", "--parameters", str(parameters), "--repeat", "1")["protections"].values()
    assert figures["exact"]
    assert figures["bytes_upload_per_node"] < 3.2 * parameters
    # One opener says the totals, 4 bytes each; the one on the side of bodies was sent everybody's and a sum of masks.
    assert figures["bytes_up_per_node"] > figures["bytes_upload_per_node"] + 4 * parameters
    assert figures["bytes_down_per_node"] > 6 * 3 * parameters
    assert [figures["phases"][phase]["nodes"] for phase in ("key", "upload", "check", "open")] == [1, 5, 2, 2]


def test_the_table_is_for_people() -> None:
    arguments = ("--nodes", "4", "--parameters", "9000", "--repeat", "1", "--protections", "encrypted+recovery")
    shown = invoke("aggregation", *arguments, "--combine", "--phases", "--baseline", "tenseal")
    assert "…" not in shown
    assert "a combination each" in shown
    assert "deliver" in shown
    assert "× encrypted" in shown
    assert "WRONG" not in shown


@pytest.mark.slow
def test_ten_nodes_with_a_million_parameters() -> None:
    told = aggregation("--repeat", "5", "--baseline", "tenseal")
    (sums,) = told["protections"].values()
    (combined,) = aggregation("--repeat", "3", "--combine")["protections"].values()
    usual = told["baselines"]["tenseal"]["seconds_encrypt"]
    print(
        f"until an upload: {sums['seconds_until_upload']:.4f} s, TenSEAL's usual setting {usual:.4f} s; "
        f"{sums['bytes_upload_per_node']:,} and {combined['bytes_upload_per_node']:,} bytes"
    )
    for figures, most in ((sums, 4), (combined, 8)):
        assert figures["exact"]
        assert figures["bytes_upload_per_node"] <= most * 1_000_000
    assert combined["combinations_opened"] == 10
    assert sums["seconds_until_upload"] <= usual / 6


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", ["fedavg", "fedamp"])
def test_ten_million_parameters_take_every_process_less_than_four_gigabytes(strategy: str) -> None:
    told = json.loads(
        invoke(
            "round", "--nodes", "10", "--parameters", "10000000", "--rounds", "2", "--repeat", "1",
            "--protections", "encrypted", "--set", f"strategy.name={strategy}", "--json",
        )
    )  # fmt: skip
    figures = told["protections"]["encrypted"]
    peaks = {role: used["high_water_bytes"] for role, used in figures["memory"].items()}
    print(strategy, {role: f"{peak / GIB:.2f} GiB" for role, peak in peaks.items()})
    assert figures["incomplete_rounds"] == 0
    assert peaks.keys() == {"coordinator", "node", "worker"}
    assert max(peaks.values()) < 4 * GIB
