"""Every kind of codebook, in every layout."""

import copy

import pytest
from small_codebooks import KINDS, made


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def kind(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["channel_last", "channel_first"])
def codebook(kind, request):
    return copy.deepcopy(made(kind, request.param))
