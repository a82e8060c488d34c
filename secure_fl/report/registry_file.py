"""An audit in the fields of the OpenDP deployments registry (registry.opendp.org): YAML, one document per data set.

What a ledger cannot know (who is served, where, why) is left for the site to fill in, marked TODO.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import secure_fl
from secure_fl.privacy.audit import Audit, DatasetAudit
from secure_fl.report.audit_words import (
    COMPOSITION,
    NEIGHBOURS,
    TRUST,
    libraries,
    mechanism,
    not_covered,
    rationales,
    unit,
)

Yaml: TypeAlias = "str | int | float | Sequence[Yaml] | Mapping[str, Yaml] | None"

_TODO = "TODO: the site fills this in"


def render(found: Audit) -> str:
    """Every data set of which something left."""
    shown = [dataset for dataset in found.datasets if dataset.uses and dataset.epsilon is not None]
    left_out = [dataset for dataset in found.datasets if dataset.epsilon is None]
    head = (
        f"# Written by secure-fl {secure_fl.__version__} from the ledger of {json.dumps(found.site)},"
        f" {found.head.length} entries, head {found.head.head}\n"
    )
    if not found.ok:
        head += "# DO NOT SUBMIT: the ledger does not hold, see `secure-fl audit verify`\n"
    for dataset in left_out:
        head += f"# {json.dumps(dataset.name)} is no deployment of differential privacy: {dataset.sentence}\n"
    if not shown:
        return head + "# there is nothing to register\n"
    return head + "".join("---\n" + _block(_deployment(found, dataset), 0) for dataset in shown)


def _deployment(found: Audit, dataset: DatasetAudit) -> dict[str, Yaml]:
    studies = list(dict.fromkeys(found.study_name(use.plan.study) for use in dataset.uses))
    return {
        "url_slug": f"{found.site}-{dataset.name}".lower(),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": f"{dataset.name} at {found.site}",
                "data_curators": [{"data_curator_name": found.site, "data_curator_type": _TODO}],
                "intended_use": _TODO,
                "data_product_type": "Machine learning model",
                "data_product_region": _TODO,
                "description": f"Models trained by federated learning in the studies {', '.join(studies)}.",
                "publication_date": f"{found.ended:%Y-%m-%d}",
                "data_product_sector": _TODO,
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": _TODO,
                "unprotected_quantities": "; ".join(not_covered(dataset)),
            },
            "privacy_loss": _loss(dataset),
            "deployment_model": {
                "model_name": "Central",
                "model_name_details": "Each site is the curator of its own records and adds the noise itself.",
                "actors": TRUST,
                "release_type": "Many releases",
                "release_type_details": f"{dataset.sent} releases, composed over all studies that used this data set.",
                "data_source_type": _TODO,
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": "Sums over sites, the server's step and every later use of the model.",
                "composition": COMPOSITION,
            },
            "implementation": _implementation(found, dataset),
            "administrative": {"sources": _TODO, "registry_authors": [_TODO]},
        },
    }


def _loss(dataset: DatasetAudit) -> dict[str, Yaml]:
    loss: dict[str, Yaml] = {
        "privacy_unit": "Group-level" if dataset.privacy.get("unit") == "group" else "Record-level",
        "privacy_unit_details": f"The unit is {unit(dataset)}. {NEIGHBOURS}",
    }
    if dataset.epsilon is not None and dataset.delta is not None:
        loss["privacy_parameters"] = {"epsilon": float(f"{dataset.epsilon:.6g}"), "delta": dataset.delta}
    loss["privacy_parameters_details"] = dataset.sentence
    return loss


def _implementation(found: Audit, dataset: DatasetAudit) -> dict[str, Yaml]:
    facts = dataset.privacy
    reasons = [study.rationale for study in rationales(found, dataset)]
    return {
        "preprocessing_and_hyperparameter_tuning": (
            f"Preprocessing: {facts.get('preprocessing', 'not stated')}. Split: {facts.get('split', 'not stated')}. "
            "Tuning runs outside the ledger are not accounted for."
        ),
        "mechanisms": f"{mechanism(dataset)} Libraries: {libraries(dataset)}.",
        "justification": " ".join(reasons) or _TODO,
    }


def _block(values: Mapping[str, Yaml], depth: int) -> str:
    """A mapping as YAML. Every text is a JSON string, which is a YAML string whatever stands in it."""
    lines = []
    pad = "  " * depth
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines.append(f"{pad}{key}:\n{_block(value, depth + 1)}")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            lines.append(f"{pad}{key}:\n" + "".join(_item(item, depth + 1) for item in value))
        else:
            lines.append(f"{pad}{key}: {_scalar(value)}\n")
    return "".join(lines)


def _item(item: Yaml, depth: int) -> str:
    pad = "  " * depth
    if isinstance(item, Mapping):
        return f"{pad}-\n{_block(item, depth + 1)}"
    return f"{pad}- {_scalar(item)}\n"


def _scalar(value: Any) -> str:
    # YAML 1.2 contains JSON; non-ASCII is escaped, so that no line separator of Unicode ends a line. YAML 1.1 readers
    # take 1e-05 for a text, and 1.0e-05 for a number.
    text = json.dumps(value, ensure_ascii=True)
    if isinstance(value, float) and "e" in text and "." not in text:
        text = text.replace("e", ".0e")
    return text
