"""A study is stopped by the operator who submitted it and by nobody else; everybody may read."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

import coordinator.operations
from coordinator.service import Coordinator
from coordinator.store import Owner, Store
from secure_fl.errors import NotOwnerError
from secure_fl.operations.operator import connect
from secure_fl.study.settings import Study
from tests.support.edge import Edge, at_the_edge
from tests.support.submission import submit

MIGRATIONS = Path(coordinator.operations.__file__).parent / "migrations"


@cache
def study(seed: int = 1) -> Study:
    return Study.parse({"study": {"rounds": 1, "seed": seed}, "task": {"name": "breast-cancer"}}).completed()


def test_another_operator_reads_a_study_but_does_not_stop_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(edge: Edge) -> None:
        async with connect(edge.operator("lead")) as lead, connect(edge.operator("other")) as other:
            assert (await lead.submit(study())).owner == "lead"
            assert (await other.submit(study())).owner == "lead"  # Handing it in again does not make it one's own.
            (seen,) = await other.status(study().id)
            assert (seen.state, seen.owner) == ("running", "lead")
            with pytest.raises(NotOwnerError, match=r"was submitted by operator 'lead', and nobody else may stop it"):
                await other.stop(study().id)
            (seen,) = await other.status(study().id)
            assert seen.state == "running"
            assert (await lead.stop(study().id)).state == "aborted"
            # It is this check: an attacker for whom the store knows no owner stops a study of somebody else's.
            await lead.submit(study(2))
            with monkeypatch.context() as without:
                without.setattr(Store, "owner", lambda *_: None)
                assert (await other.stop(study(2).id)).state == "aborted"

    at_the_edge(tmp_path, scenario)


def test_a_renewed_certificate_under_the_same_name_still_owns_it(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        first = edge.operator("lead")
        async with connect(first) as lead:
            await lead.submit(study())
        kept = edge.coordinator._store.owner(study().id)
        assert kept == Owner(name="lead", fingerprint=first.credential().certificate.fingerprint)
        renewed = edge.operator("lead", renew=True)
        assert renewed.credential().certificate.fingerprint != kept.fingerprint
        async with connect(renewed) as lead:
            assert (await lead.stop(study().id)).state == "aborted"

    at_the_edge(tmp_path, scenario)


def test_a_study_of_the_coordinators_own_file_is_stopped_by_any_operator(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        async with connect(edge.operator("anybody")) as lead:
            (seen,) = await lead.status(edge.workspace.study.id)
            assert seen.owner == ""
            assert (await lead.stop(edge.workspace.study.id)).state == "aborted"

    at_the_edge(tmp_path, scenario)


def test_the_owner_is_remembered_by_a_coordinator_that_starts_again(tmp_path: Path) -> None:
    async def run() -> None:
        owner = Owner(name="lead", fingerprint="ab" * 32)
        made = Coordinator(tmp_path)
        await submit(made, study(), owner=owner)
        await made.close()
        again = Coordinator(tmp_path)
        again.resume()
        assert await again.owner(again.runners[study().id]) == owner
        await again.close()

    asyncio.run(run())


def test_a_store_from_before_owners_is_migrated_and_its_studies_have_none(tmp_path: Path) -> None:
    url = f"sqlite:///{Store.path_in(tmp_path)}"
    engine = sa.create_engine(url)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("version_locations", str(MIGRATIONS / "versions"))
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0003")
        connection.execute(
            sa.text("INSERT INTO studies (id, settings, state, reason, created) VALUES (:id, :s, 'running', '', 1)"),
            {"id": study().id, "s": study().canonical()},
        )
    engine.dispose()
    store = Store(url)
    assert [kept.id for kept in store.studies()] == [study().id]
    assert store.owner(study().id) is None
    # Handed in again, it stays nobody's: whoever is quick must not take over what others run.
    store.add_study(study().id, study().canonical(), now=2.0, owner=Owner(name="late", fingerprint="cd" * 32))
    assert store.owner(study().id) is None
    store.close()
