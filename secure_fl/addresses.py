"""host:port, as it stands in a party's file."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import AfterValidator


def split_address(address: str) -> tuple[str, int]:
    """Host, without the brackets of an IPv6 address, and port. Raises `ValueError` for anything else."""
    host, separator, port = address.rpartition(":")
    # `isdigit` alone is also true of digits that `int` refuses, such as ².
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not separator or not host.isprintable() or not digits or int(port) > 65535:
        raise ValueError("must be host:port, with a port up to 65535")
    return host.strip("[]"), int(port)


def _address(text: str) -> str:
    split_address(text)
    return text


Address: TypeAlias = Annotated[str, AfterValidator(_address)]
AddressOrNone: TypeAlias = Annotated[str, AfterValidator(lambda text: text and _address(text))]  # empty: nowhere
