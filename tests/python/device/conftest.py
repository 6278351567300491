"""Tests of a CUDA device. Without a card that the build has kernels for they are skipped with the reason."""

import pytest

import mpfa


def pytest_collection_modifyitems(items):
    found = mpfa.available("sm90")
    here = [item for item in items if "device" in item.path.parts]
    for item in here:
        if not found:
            item.add_marker(pytest.mark.skip(reason=f"no device of kind sm90: {found.reason}"))
