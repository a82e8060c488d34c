"""A study knows a site by its signing key: a certificate under its name for another key opens nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import coordinator.sessions
from node.policy import Policy
from secure_fl.errors import NotEnrolledError, RefusedError
from secure_fl.identity.credential import make_renewal
from tests.support.edge import Edge, at_the_edge, hello


def test_a_certificate_for_another_key_is_not_in_the_study_and_a_renewed_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(edge: Edge) -> None:
        hub, (study_id,) = edge.coordinator.hub, edge.coordinator.hub._runners
        study = hub._runners[study_id].study
        file = edge.node_file()
        mine = file.credential()
        renewed = edge.authority.issue_from_request(make_renewal(mine), renew=True)
        # The authority itself, tricked or bribed, gives somebody a certificate under the site's name.
        twin = edge.authority.issue("node", "site-01", renew=True).certificate

        for peer in (mine.certificate, renewed):
            assert hub._runner(peer, study_id).id == study_id
            Policy(file, peer).check_terms(study)
        with pytest.raises(NotEnrolledError):
            hub._runner(twin, study_id)
        with pytest.raises(RefusedError, match="this site's key is not in the roster"):
            Policy(file, twin).check_terms(study)

        # By name alone it would be in.
        by_name = lambda peer, runner: peer.name in runner.study.study.roster  # noqa: E731
        monkeypatch.setattr(coordinator.sessions, "_enrolled", by_name)
        assert hub._runner(twin, study_id).id == study_id

    at_the_edge(tmp_path, scenario)


def test_a_renewed_certificate_takes_the_place_of_the_session_before(tmp_path: Path) -> None:
    """One site, one session: two would be counted as two sites that are there."""

    async def scenario(edge: Edge) -> None:
        hub, mine = edge.coordinator.hub, edge.node_file().credential()
        renewed = edge.authority.issue_from_request(make_renewal(mine), renew=True)
        first = aiter(hub.session(mine.certificate, hello()))
        await anext(first)
        second = aiter(hub.session(renewed, hello()))
        await anext(second)
        assert hub.connected == 1
        assert {session.peer.digest for session in hub._sessions.values()} == {renewed.digest}
        hub.hang_up()
        assert [message async for message in second if message.WhichOneof("body") == "welcome"] == []

    at_the_edge(tmp_path, scenario)
