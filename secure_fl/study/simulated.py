"""[simulation]: the sites that `secure-fl run` makes up, and how it divides data among them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from secure_fl import limits
from secure_fl.settings import PathText, Settings
from secure_fl.tasks.partition import PartitionSettings


class SimulationSection(Settings):
    """Only for `secure-fl run`: not part of the study's hash."""

    nodes: int = Field(10, ge=1, le=limits.NODES)
    partition: Literal["iid", "dirichlet", "pathological", "rotated", "rotated-pathological", "natural"] = "iid"
    alpha: float = Field(0.5, ge=0.001)
    classes: int = Field(2, ge=1)
    domains: int = Field(4, ge=1)
    degrees: float = Field(360, gt=0, le=360)
    min_samples: int = Field(10, ge=2)
    test_fraction: float = Field(0.2, gt=0, lt=1)
    # The least that training takes at any site; it sleeps what is left. Sites that sleep do not contend for this
    # machine's cores, as sites on machines of their own do not.
    seconds: float = Field(0.0, ge=0, le=3600)
    slow: dict[str, float] = Field(default_factory=dict)  # site → how many times longer it trains
    path: PathText = ""  # data of a task that reads files, divided among the sites; relative to where `run` is started
    format: str = ""

    def partition_settings(self) -> PartitionSettings:
        """The part of this section that divides the data."""
        others = {"nodes", "partition", "seconds", "slow", "path", "format"}
        return PartitionSettings(kind=self.partition, **self.model_dump(exclude=others))


def simulated_names(sites: int) -> list[str]:
    """What `secure-fl run` calls its sites, so that a study can list circles of them."""
    return [f"site-{index + 1:02d}" for index in range(sites)]
